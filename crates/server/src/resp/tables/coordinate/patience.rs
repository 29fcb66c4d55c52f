//! How long a command over several nodes is tried again while slots move between them.

use std::time::{Duration, Instant};

use larder_protocol::errors::Code;

use super::super::super::core::Core;
use super::still_moving;
use crate::tables::Refusal;

/// Maximum time without a newer map.
const QUIET_MAX: Duration = Duration::from_secs(3);
/// Maximum time in all, while one map follows another.
const MOVING_MAX: Duration = Duration::from_secs(20);

/// The time that one command has left. While slots move, many maps come one after another, and each may be the reason for another try.
pub(in crate::resp) struct Patience {
    begun: Instant,
    /// The newest map that was seen, and when it was seen first.
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

    /// Whether the command is to be given up.
    pub fn is_over(&mut self, core: &Core) -> bool {
        let epoch = core.tables.epoch_of_map();
        if epoch != self.epoch {
            (self.epoch, self.since) = (epoch, Instant::now());
            self.has_moved = true;
        }
        self.since.elapsed() > QUIET_MAX || self.begun.elapsed() > MOVING_MAX
    }

    /// The refusal of a read that is given up; `why` is what the last try met.
    pub fn refusal(&self, why: &str) -> Refusal {
        match self.has_moved {
            true => still_moving(),
            false => (Code::ClusterDown, format!("not all nodes answer: {why}")),
        }
    }
}
