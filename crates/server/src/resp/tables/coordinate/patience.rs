//! The time limits for retrying a command over several nodes while slots move between them.

use std::time::{Duration, Instant};

use larder_protocol::errors::Code;

use super::super::super::core::Core;
use super::still_moving;
use crate::tables::Refusal;

/// Maximum time without a newer map.
const QUIET_MAX: Duration = Duration::from_secs(3);
/// Maximum total time, while one map follows another.
const MOVING_MAX: Duration = Duration::from_secs(20);

/// The remaining time of one command. While slots move, many maps arrive in succession, and each may justify a retry.
pub(in crate::resp) struct Patience {
    begun: Instant,
    /// The epoch of the newest map seen so far, and when it was first seen.
    epoch: u64,
    since: Instant,
    has_moved: bool,
}

impl Patience {
    pub fn new(core: &Core) -> Patience {
        let now = Instant::now();
        Patience {
            begun: now,
            epoch: core.tables.epoch_of_map(),
            since: now,
            has_moved: false,
        }
    }

    /// Returns whether the time is over.
    pub fn is_over(&mut self, core: &Core) -> bool {
        let epoch = core.tables.epoch_of_map();
        if epoch != self.epoch {
            (self.epoch, self.since) = (epoch, Instant::now());
            self.has_moved = true;
        }
        self.since.elapsed() > QUIET_MAX || self.begun.elapsed() > MOVING_MAX
    }

    /// Returns the error after the time is over; `why` is the failure of the last attempt.
    pub fn refusal(&self, why: &str) -> Refusal {
        if self.has_moved {
            still_moving()
        } else {
            (Code::ClusterDown, format!("not all nodes answer: {why}"))
        }
    }
}
