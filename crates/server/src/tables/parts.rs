//! Writes of one connection that several cores execute at the same time: after a crash all of them are there or none.
//!
//! ```text
//!  SET a ─ here, before any other core's ─────────────► log: a
//!  SET b ─ core 1 ┐                                     log: part b        ┐ in any order
//!  SET c ─ core 2 ├ at the same time, parts of one ───► log: part c        │
//!  SET d ─ here   ┘                                     log: part d        ┘
//!                   all have answered ────────────────► log: kept          the replies wait for this
//! ```
//!
//! So what survives of a connection is a beginning, though no core waits for another one. The journal has no part of it before
//! it has `kept`, which is written when all parts are; that takes as long as the slowest core.

use larder_journal::Entry;

use super::{Gate, Tables};

impl Tables {
    /// The number of something new that has parts.
    pub fn new_parts(&self) -> u64 {
        self.producer.borrow().new_shared_batch()
    }

    /// Executes something whose writes are parts of `parts`, if that is any.
    #[inline]
    pub fn in_parts<T>(&self, parts: Option<u64>, run: impl FnOnce() -> T) -> T {
        if parts.is_none() {
            return run();
        }
        self.part.set(parts);
        let done = run();
        self.part.set(None);
        done
    }

    /// Says that all parts are in the journal. `gate` then waits until it has that, too.
    pub fn keep_parts(&self, batch: u64, gate: &mut Gate) {
        match self.producer.borrow_mut().append(Entry::Kept { batch }) {
            Ok(ticket) => gate.ticket = Some(ticket),
            Err(_) => gate.failed = true,
        }
        self.wake_maintenance();
    }
}
