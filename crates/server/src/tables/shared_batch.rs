//! Shared batches: writes of one connection that several cores execute at the same time. After a crash all of them are there or none.
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
    /// Begins a shared batch; returns its number.
    pub fn new_shared_batch(&self) -> u64 {
        self.producer.borrow().new_shared_batch()
    }

    /// Executes something whose writes belong to a shared batch, if it is one.
    #[inline]
    pub fn in_shared_batch<T>(&self, shared_batch: Option<u64>, run: impl FnOnce() -> T) -> T {
        if shared_batch.is_none() {
            return run();
        }
        self.part.set(shared_batch);
        let done = run();
        self.part.set(None);
        done
    }

    /// Notes in the journal that all parts of a shared batch are in it: it is kept. `gate` then waits until that is written.
    pub fn end_shared_batch(&self, batch: u64, gate: &mut Gate) {
        if self.is_replicated() {
            // Replicas know nothing of such batches, so each write is kept by itself.
            return;
        }
        match self.producer.borrow_mut().append(Entry::Kept { batch }) {
            Ok(ticket) => gate.ticket = Some(ticket),
            Err(_) => gate.failed = true,
        }
        self.wake_maintenance();
    }
}
