//! The memory limit: selects the ranges to evict, and drops them.
//!
//! Read `clock`, the policy; `evict`, which carries it out; and `discard`, which drops a range with its nodes and
//! updaters.
//!
//! 1. Evicted ranges can be recreated by a read: filled ranges, supplied ranges, and replicas of other shards' rows.
//!    Base rows are never evicted.
//! 2. A range that others were computed from is evicted after them.

pub(crate) mod clock;
pub(crate) mod discard;
pub(crate) mod evict;

use clock::Clock;
use evict::Victim;

/// The ranges that can be evicted, and the limit.
#[derive(Default)]
pub struct Memory {
    pub clock: Clock<Victim>,
    /// `None`: no limit.
    pub limit_bytes: Option<usize>,
    /// Distinguishes a range from others that had the same number.
    serial: u32,
}

impl Memory {
    pub fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
}
