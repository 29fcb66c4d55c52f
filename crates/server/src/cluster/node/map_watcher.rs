//! Maintains this node's copy of the keys, publishes a view for each map, and updates the node's status.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_cluster::coordination::{Coordination, Follower, Keys, boot_ms};
use larder_cluster::map::{Map, NodeId, NodeName};
use tokio::sync::watch;

use super::coordination_state::CoordinationState;
use super::map_copy::MapCopy;
use super::{NodeHealth, ViewCallback};
use crate::cluster::{Life, View};
use crate::log_limit::LogLimit;

/// The interval at which the watch is checked for lost events, and etcd for answers.
const CHECK_EVERY: Duration = Duration::from_secs(2);

pub struct MapWatcher {
    follower: Follower,
    pub state: CoordinationState,
    updates: watch::Sender<CoordinationState>,
    name: NodeName,
    life: Option<Life>,
    copy: MapCopy,
    view: Arc<ArcSwap<View>>,
    on_view: ViewCallback,
    health: SharedHealth,
    silence_log: LogLimit,
    lease_log: LogLimit,
}

/// This node's status, as read by other threads.
pub struct SharedHealth {
    pub health: Arc<ArcSwap<NodeHealth>>,
    pub is_refusing: Arc<AtomicBool>,
}

impl MapWatcher {
    pub fn new(
        service: Arc<dyn Coordination>,
        name: NodeName,
        (copy, state): (MapCopy, CoordinationState),
        view: Arc<ArcSwap<View>>,
        health: SharedHealth,
        on_view: ViewCallback,
    ) -> MapWatcher {
        let (sender, _) = watch::channel(state.clone());
        MapWatcher {
            follower: Follower::new(service, Keys::with_prefix(""), CHECK_EVERY),
            state,
            updates: sender,
            name,
            life: None,
            copy,
            view,
            on_view,
            health,
            silence_log: LogLimit::default(),
            lease_log: LogLimit::default(),
        }
    }

    /// A receiver of changes of the known state.
    pub fn subscribe(&self) -> watch::Receiver<CoordinationState> {
        self.updates.subscribe()
    }

    /// Processes events until `what` completes.
    pub async fn run_until<T>(&mut self, what: impl Future<Output = T>) -> T {
        tokio::pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut what => return done,
                () = self.poll_watch() => {}
            }
        }
    }

    /// Processes events until the known state satisfies the predicate.
    pub async fn wait_for_state(&mut self, holds: impl Fn(&CoordinationState) -> bool) {
        while !(self.has_loaded() && holds(&self.state)) {
            self.poll_watch().await;
        }
    }

    /// Returns whether the keys have been read.
    pub fn has_loaded(&self) -> bool {
        self.follower.confirmed_at_ms().is_some()
    }

    /// Waits for the next events, or for a check without any. Cancel-safe.
    async fn poll_watch(&mut self) {
        let events = self.follower.next().await;
        if !self.has_loaded() {
            return self.refresh_health();
        }
        let was_set_back = self.state.is_set_back;
        let is_map_new = self.state.apply_events(&events, self.follower.mirror());
        if is_map_new {
            if let Some(latest) = &self.state.map {
                self.copy.schedule_write(latest.map.clone());
            }
            self.publish();
        }
        if self.state.is_set_back
            && !was_set_back
            && let Some(why) = &self.state.map_error
        {
            tracing::error!("the cluster's map in etcd cannot be used: {why}");
        }
        if !events.is_empty() || was_set_back != self.state.is_set_back {
            self.updates.send_replace(self.state.clone());
        }
        self.refresh_health();
    }

    /// Sets the current incarnation, if any: assignments of the map to other incarnations no longer count.
    pub fn set_life(&mut self, life: Option<Life>) {
        self.life = life;
        self.publish();
        self.refresh_health();
    }

    fn publish(&self) {
        let before = self.view.load_full();
        let map: Arc<Map> = match &self.state.map {
            Some(latest) => latest.map.clone(),
            None => before.map.clone(),
        };
        let me = map.member_named(&self.name).map_or(NodeId(0), |it| it.id);
        if map.epoch() != before.map.epoch() {
            tracing::debug!(epoch = %map.epoch(), "the cluster has a new map");
        }
        let view = Arc::new(before.next(map, me, self.life.clone()));
        self.view.store(view.clone());
        (self.on_view)(view);
    }

    /// Changes this node's status.
    pub fn update_health(&self, change: impl FnOnce(&mut NodeHealth)) {
        let SharedHealth {
            health,
            is_refusing,
        } = &self.health;
        let mut now = NodeHealth::clone(&health.load());
        change(&mut now);
        let refuses = now.refusal(&self.view.load()).is_some();
        health.store(Arc::new(now));
        is_refusing.store(refuses, Ordering::Relaxed);
    }

    /// Logs when etcd stops answering, and when it answers again.
    fn refresh_health(&self) {
        let trouble = self.follower.last_error().map(ToString::to_string);
        let before = self.health.health.load_full();
        match (&before.etcd_error, &trouble) {
            (None, None) => {}
            (Some(_), None) => tracing::info!("etcd answers again"),
            (_, Some(why)) => {
                if let Some(times) = self.silence_log.note() {
                    tracing::warn!(
                        why,
                        times,
                        etcd = before.endpoints,
                        "etcd does not answer; this node keeps its last map and retries"
                    );
                }
                let held = self.life.as_ref().map(|life| &life.held);
                if held.is_some_and(|held| !held.is_certainly_held(boot_ms()))
                    && let Some(times) = self.lease_log.note()
                {
                    tracing::warn!(
                        times,
                        "this node's lease may have expired: it rejects writes to tables until etcd answers; reads of stores continue"
                    );
                }
            }
        }
        self.update_health(|health| {
            health.etcd_error = trouble;
            health.confirmed_at_ms = self.follower.confirmed_at_ms();
            health.state = self.state.clone();
        });
    }
}
