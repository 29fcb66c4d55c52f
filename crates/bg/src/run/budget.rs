//! Counts down the actions that a trial bounded by a count may still start.

use std::sync::atomic::{AtomicU64, Ordering};

/// The remaining actions of a trial, shared by its workers.
pub struct Budget {
    left: AtomicU64,
}

impl Budget {
    pub fn new(actions: u64) -> Budget {
        Budget {
            left: AtomicU64::new(actions),
        }
    }

    /// Takes one action from the budget. Returns false if none is left.
    pub fn take(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        taken.is_ok()
    }

    pub fn is_spent(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}
