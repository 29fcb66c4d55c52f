//! One node of the cluster: its idle connections and its health.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ClusterOptions;
use super::connection::Connection;
use super::health::{Health, NodeState};

pub(crate) struct Node {
    pub address: String,
    /// From the caller's options, or from the cluster.
    pub zone: Option<String>,
    idle: Mutex<Vec<Connection>>,
    health: Mutex<Health>,
}

impl Node {
    pub fn new(address: &str, zone: Option<String>) -> Node {
        Node {
            address: address.to_owned(),
            zone,
            idle: Mutex::default(),
            health: Mutex::default(),
        }
    }

    /// Returns an idle connection, or a new one if there is none or `is_fresh` is set.
    pub fn connection(&self, options: &ClusterOptions, is_fresh: bool) -> io::Result<Connection> {
        let take = || locked(&self.idle).pop();
        let mut idle_connection = if is_fresh { None } else { take() };
        while let Some(mut connection) = idle_connection {
            if connection.is_idle() {
                return Ok(connection);
            }
            idle_connection = take();
        }
        Connection::begin(&self.address, options)
    }

    /// Returns a connection to the pool. All its replies must have been read.
    pub fn release(&self, connection: Connection, idle_max: usize) {
        let mut idle = locked(&self.idle);
        if idle.len() < idle_max {
            idle.push(connection);
        }
    }

    pub fn state(&self, now_ms: u64) -> NodeState {
        locked(&self.health).state(now_ms)
    }

    pub fn begin_probe(&self, now_ms: u64, timeout_ms: u64) {
        locked(&self.health).begin_probe(now_ms, timeout_ms);
    }

    pub fn record_success(&self) {
        locked(&self.health).record_success();
    }

    /// Records that another node was faster. Several of these count as a failure.
    pub fn record_overtaken(&self, now_ms: u64, random: u64) {
        let has_failed = locked(&self.health).record_overtaken();
        if has_failed {
            self.record_failure(now_ms, random);
        }
    }

    /// Records a failure. Idle connections are probably broken too, and are dropped.
    pub fn record_failure(&self, now_ms: u64, random: u64) {
        locked(&self.idle).clear();
        locked(&self.health).record_failure(now_ms, random);
    }
}

/// Locks a mutex. After a panic in another thread its data is consistent, because each change is one step.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
