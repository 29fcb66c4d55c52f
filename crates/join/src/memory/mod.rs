//! Memory under a limit: which ranges go when it is short, and how they go.
//!
//! Read `clock`, the policy by itself; `evict`, which does what the clock decides; and `forget`, which takes a range back with all that
//! was left behind for it.
//!
//! 1. What goes can be had again by a read: a filled range, a supplied one, copies of other shards' rows. Base rows never go.
//! 2. A range that others were computed from goes after them.

pub(crate) mod clock;
pub(crate) mod evict;
pub(crate) mod forget;

use clock::Clock;
use evict::Victim;

/// What is known of the ranges that can go.
#[derive(Default)]
pub struct Memory {
    pub clock: Clock<Victim>,
    /// `None`: any amount.
    pub limit_bytes: Option<usize>,
    /// Tells a range from others that had its number.
    serial: u32,
}

impl Memory {
    pub fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }
}
