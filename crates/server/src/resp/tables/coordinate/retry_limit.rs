//! The time limits for retrying a command over several nodes while slots move between them.

use std::time::{Duration, Instant};

use larder_protocol::errors::Code;

use super::super::super::core::Core;
use super::slots_still_moving;
use crate::tables::Refusal;

/// Maximum time without a newer map.
const UNCHANGED_MAP_MAX: Duration = Duration::from_secs(3);
/// Maximum total time, while one map follows another.
const TOTAL_MAX: Duration = Duration::from_secs(20);

/// The remaining time of one command. While slots move, many maps arrive in succession, and each may justify a retry.
pub(in crate::resp) struct RetryLimit {
    started_at: Instant,
    /// The epoch of the newest map seen so far, and when it was first seen.
    epoch: u64,
    epoch_seen_at: Instant,
    has_moved: bool,
}

impl RetryLimit {
    pub fn new(core: &Core) -> RetryLimit {
        let now = Instant::now();
        RetryLimit {
            started_at: now,
            epoch: core.tables.map_epoch(),
            epoch_seen_at: now,
            has_moved: false,
        }
    }

    /// Returns whether the time is over.
    pub fn is_exhausted(&mut self, core: &Core) -> bool {
        let epoch = core.tables.map_epoch();
        if epoch != self.epoch {
            (self.epoch, self.epoch_seen_at) = (epoch, Instant::now());
            self.has_moved = true;
        }
        self.epoch_seen_at.elapsed() > UNCHANGED_MAP_MAX || self.started_at.elapsed() > TOTAL_MAX
    }

    /// Returns the error after the time is over; `why` is the failure of the last attempt.
    pub fn refusal(&self, why: &str) -> Refusal {
        if self.has_moved {
            slots_still_moving()
        } else {
            (
                Code::ClusterDown,
                format!("some nodes did not reply: {why}"),
            )
        }
    }
}
