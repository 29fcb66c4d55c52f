//! Shared batches: writes of one connection that several cores execute concurrently. After a crash, either all of them
//! are present or none.
//!
//! ```text
//!  SET a ─ here, before those of other cores ─────────► log: a
//!  SET b ─ core 1 ┐                                     log: part b        ┐ in any order
//!  SET c ─ core 2 ├ concurrently, parts of one batch ─► log: part c        │
//!  SET d ─ here   ┘                                     log: part d        ┘
//!                   all have replied ─────────────────► log: commit        the replies wait for this
//! ```
//!
//! A connection's writes are therefore recovered up to some point, although no core waits for another. The journal
//! considers no part valid before it has `commit`, which is written after all parts. That takes as long as the slowest
//! core.

use larder_journal::Entry;

use super::{Gate, Tables};

impl Tables {
    /// Starts a shared batch. Returns its number.
    pub fn new_shared_batch(&self) -> u64 {
        self.producer.borrow().new_shared_batch()
    }

    /// Runs `run`, whose writes belong to the shared batch, if there is one.
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

    /// Records in the journal that all parts of a shared batch are written. `gate` then waits until the record is
    /// written.
    pub fn end_shared_batch(&self, batch: u64, gate: &mut Gate) {
        if self.is_replicated() {
            // Replication has no shared batches, so each write is recovered separately.
            return;
        }
        match self.producer.borrow_mut().append(Entry::Commit { batch }) {
            Ok(ticket) => gate.ticket = Some(ticket),
            Err(_) => gate.failed = true,
        }
        self.wake_maintenance();
    }
}
