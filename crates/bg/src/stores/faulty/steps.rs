//! Determines which calls are certainly ordered by their timestamps, although these are taken outside of this store and
//! on several threads.
//!
//! A client takes a call's first timestamp directly before this store is called, and the second one directly after the
//! return. Nothing else runs on that thread in between. The timestamps of a worker are therefore between two of its
//! *steps*: its entries into this store, and its returns. Steps are numbered in one order over all workers.
//!
//! ```text
//!   worker 1    return of w ── timestamp of w's end ── next step
//!   worker 2                                            step ── timestamp of r's start ── entry of r
//! ```
//!
//! By the timestamps, w ended before r began if worker 1's next step precedes worker 2's step before r's entry; or, for
//! a single worker, if w returned before r entered. In all other cases the order is uncertain.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers the steps.
#[derive(Default)]
pub struct StepCounter {
    steps: AtomicU64,
    workers: AtomicU64,
}

/// The steps of one worker. Dropping it is the worker's last step.
pub struct Steps {
    order: Arc<StepCounter>,
    worker: u64,
    last: Cell<u64>,
    /// The returns after which this worker has not made a step yet.
    open: RefCell<Vec<Arc<AtomicU64>>>,
}

/// The entry of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallEntry {
    worker: u64,
    /// The worker's previous step.
    before: u64,
    pub at: u64,
}

/// The return of a call.
#[derive(Clone, Debug)]
pub struct CallReturn {
    worker: u64,
    at: u64,
    /// The worker's next step; `u64::MAX` until there is one.
    next: Arc<AtomicU64>,
}

impl StepCounter {
    pub fn step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Steps {
    /// Adds a worker.
    pub fn new(order: Arc<StepCounter>) -> Steps {
        Steps {
            worker: order.workers.fetch_add(1, Ordering::SeqCst),
            order,
            last: Cell::new(0),
            open: RefCell::default(),
        }
    }

    pub fn enter(&self) -> CallEntry {
        let before = self.last.get();
        CallEntry {
            worker: self.worker,
            before,
            at: self.step(),
        }
    }

    /// Records a return. Must be the last operation of a call, without an await after it.
    pub fn leave(&self) -> CallReturn {
        let at = self.step();
        let next = Arc::new(AtomicU64::new(u64::MAX));
        self.open.borrow_mut().push(next.clone());
        CallReturn {
            worker: self.worker,
            at,
            next,
        }
    }

    /// Records a step without an entry or a return.
    pub fn step(&self) -> u64 {
        let now = self.order.step();
        self.last.set(now);
        for next in self.open.borrow_mut().drain(..) {
            next.store(now, Ordering::SeqCst);
        }
        now
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.step();
    }
}

impl CallReturn {
    /// Returns whether, by the timestamps, this call certainly ended before the other began.
    pub fn is_before(&self, other: &CallEntry) -> bool {
        if self.worker == other.worker {
            self.at < other.at
        } else {
            self.next.load(Ordering::SeqCst) < other.before
        }
    }

    /// Returns a step after which this holds for every new call, or `None` if it is not known yet.
    pub fn settled(&self) -> Option<u64> {
        let next = self.next.load(Ordering::SeqCst);
        (next < u64::MAX).then_some(next)
    }
}

impl CallEntry {
    /// Returns whether the worker's previous step was after this one, so that this call began after it.
    pub fn is_after(&self, step: u64) -> bool {
        step < self.before
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{StepCounter, Steps};

    #[test]
    fn calls_with_overlapping_timestamps_are_unordered() {
        let order = Arc::new(StepCounter::default());
        let (one, other) = (Steps::new(order.clone()), Steps::new(order));
        let early = other.enter();
        let write = one.leave();
        // The timestamp of its end may not have been taken yet.
        let same_time = other.enter();
        assert!(!write.is_before(&early) && !write.is_before(&same_time));
        assert_eq!(write.settled(), None);
        let own = one.enter();
        assert!(write.is_before(&own));
        // The timestamp of its end has been taken, but the start of this call may precede it.
        let stamped_before = other.enter();
        assert!(!write.is_before(&stamped_before));
        let behind = other.enter();
        assert!(write.is_before(&behind));
        assert!(behind.is_after(write.settled().unwrap()));
    }

    #[test]
    fn a_dropped_worker_has_taken_its_last_timestamp() {
        let order = Arc::new(StepCounter::default());
        let (one, other) = (Steps::new(order.clone()), Steps::new(order));
        let write = one.leave();
        drop(one);
        other.enter();
        assert!(write.is_before(&other.enter()));
    }
}
