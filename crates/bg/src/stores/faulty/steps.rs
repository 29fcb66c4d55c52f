//! What is certainly before what, though calls are stamped outside of this store and on several threads.
//!
//! A client stamps a call just before this store sees it, and again just after it was answered; in between nothing else runs on
//! that thread. So whatever a worker stamps lies between two of its *steps*, the entries into this store and the returns from it. Steps
//! are numbered in one order over all workers.
//!
//! ```text
//!   worker 1    return of w ── w's end is stamped ── next step
//!   worker 2                                            step ── r's start is stamped ── entry of r
//! ```
//!
//! By the stamps w ended before r began if worker 1's next step came before the step that worker 2 made before r's entry; or, if both are of
//! one worker, if w returned before r entered. What is not certain so may be so or so.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers steps.
#[derive(Default)]
pub struct Order {
    steps: AtomicU64,
    workers: AtomicU64,
}

/// The steps of one worker; dropping them is its last.
pub struct Steps {
    order: Arc<Order>,
    worker: u64,
    last: Cell<u64>,
    /// Of returns after which this worker made no step yet.
    open: RefCell<Vec<Arc<AtomicU64>>>,
}

/// A call came in.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    worker: u64,
    /// The worker's step before.
    before: u64,
    pub at: u64,
}

/// A call went out.
#[derive(Clone, Debug)]
pub struct Return {
    worker: u64,
    at: u64,
    /// The worker's next step; `u64::MAX` until there is one.
    next: Arc<AtomicU64>,
}

impl Order {
    pub fn step(&self) -> u64 {
        self.steps.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Steps {
    /// Of one more worker.
    pub fn new(order: Arc<Order>) -> Steps {
        Steps {
            worker: order.workers.fetch_add(1, Ordering::SeqCst),
            order,
            last: Cell::new(0),
            open: RefCell::default(),
        }
    }

    pub fn enter(&self) -> Entry {
        let before = self.last.get();
        Entry {
            worker: self.worker,
            before,
            at: self.step(),
        }
    }

    /// To be called last, without anything that waits behind it.
    pub fn leave(&self) -> Return {
        let at = self.step();
        let next = Arc::new(AtomicU64::new(u64::MAX));
        self.open.borrow_mut().push(next.clone());
        Return {
            worker: self.worker,
            at,
            next,
        }
    }

    /// Nothing but a step.
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

impl Return {
    /// Whether it certainly ended before the other began, by their stamps.
    pub fn is_before(&self, other: &Entry) -> bool {
        match self.worker == other.worker {
            true => self.at < other.at,
            false => self.next.load(Ordering::SeqCst) < other.before,
        }
    }

    /// Whether that will be said of every call from now on, and no later than from which step.
    pub fn settled(&self) -> Option<u64> {
        let next = self.next.load(Ordering::SeqCst);
        (next < u64::MAX).then_some(next)
    }
}

impl Entry {
    /// Whether the worker's step before was behind this one: then this call began behind it.
    pub fn is_after(&self, step: u64) -> bool {
        step < self.before
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Order, Steps};

    #[test]
    fn what_may_overlap_by_its_stamps_is_not_before() {
        let order = Arc::new(Order::default());
        let (one, other) = (Steps::new(order.clone()), Steps::new(order));
        let early = other.enter();
        let write = one.leave();
        // Its end may not be stamped yet.
        let same_time = other.enter();
        assert!(!write.is_before(&early) && !write.is_before(&same_time));
        assert_eq!(write.settled(), None);
        let own = one.enter();
        assert!(write.is_before(&own));
        // Its end is stamped now, but this one's start may have been before.
        let stamped_before = other.enter();
        assert!(!write.is_before(&stamped_before));
        let behind = other.enter();
        assert!(write.is_before(&behind));
        assert!(behind.is_after(write.settled().unwrap()));
    }

    #[test]
    fn a_worker_that_is_gone_has_stamped_all() {
        let order = Arc::new(Order::default());
        let (one, other) = (Steps::new(order.clone()), Steps::new(order));
        let write = one.leave();
        drop(one);
        other.enter();
        assert!(write.is_before(&other.enter()));
    }
}
