//! Expiry with several cores: no output shows a row that had expired when the read arrived.
//!
//! ```text
//!   core 1, owner of p|bob|3                       core 0, where an output was computed from it
//!   the row expires and is removed ── Changes ───► the output is updated
//!   `earliest[1]` is that time until all have acknowledged the removal
//!                                  ◄── settle ──── a read finds a time in `earliest` that is not later than its own
//! ```
//!
//! 1. All cores use one clock, which never decreases: a row that one core has removed as expired has also expired for
//!    every later read on another core.
//! 2. A core's entry in `earliest` is not later than the expiry time of any of its rows whose removal is not reflected
//!    by all outputs on the node's other cores. It is published before the reply to the command that sets an expiry
//!    time.
//! 3. A read waits for rows that had expired when it arrived, and not for rows that expire while it waits.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use larder_join::{Engine, LogEntry};

use super::{Tables, TablesHandle, WaitCondition};
use crate::clock::unix_ms;

/// The expiry state of all cores.
pub struct SharedExpiry {
    /// The latest time that any core has read, in milliseconds since 1970.
    clock: AtomicU64,
    /// Indexed by core; `u64::MAX` if none of its rows has an expiry time.
    earliest: Vec<AtomicU64>,
}

/// The next expiry of a core's own rows, and the removals that other cores' outputs may not reflect.
pub struct ExpiryQueue {
    next: u64,
    /// The times of removals, with the last change that other cores must acknowledge for each.
    unacknowledged: VecDeque<(u64, u64)>,
}

impl Default for ExpiryQueue {
    fn default() -> ExpiryQueue {
        ExpiryQueue {
            next: u64::MAX,
            unacknowledged: VecDeque::new(),
        }
    }
}

impl SharedExpiry {
    pub fn new(cores: usize) -> SharedExpiry {
        SharedExpiry {
            clock: AtomicU64::new(0),
            earliest: (0..cores).map(|_| AtomicU64::new(u64::MAX)).collect(),
        }
    }

    /// Returns the current time (invariant 1).
    pub fn now(&self) -> u64 {
        let now = unix_ms();
        // Another core has usually read the same millisecond already.
        match self.clock.load(Ordering::SeqCst) {
            last if last >= now => last,
            _ => self.clock.fetch_max(now, Ordering::SeqCst).max(now),
        }
    }
}

impl TablesHandle {
    /// Returns the cores with rows that have expired by `now`, and that outputs of `but` may still show.
    fn find_unsettled_cores(&self, now: u64, but: usize) -> Vec<usize> {
        let earliest = self.expiry.earliest.iter().enumerate();
        let late = earliest.filter(|(core, at)| *core != but && at.load(Ordering::SeqCst) <= now);
        late.map(|(core, _)| core).collect()
    }
}

impl Tables {
    /// Returns what a read that arrives now must wait for before it reads outputs.
    pub fn unreflected_expiry(&self) -> Option<WaitCondition> {
        self.sharing.as_ref()?;
        let earliest = &self.handle.expiry.earliest;
        if earliest
            .iter()
            .all(|at| at.load(Ordering::SeqCst) == u64::MAX)
        {
            return None;
        }
        let by = self.now();
        let cores = self.handle.find_unsettled_cores(by, self.index);
        (!cores.is_empty()).then_some(WaitCondition::Expired { cores, by })
    }

    /// Waits until no output here shows a row of these cores that had expired at `by`.
    pub(super) async fn wait_for_expiry(&self, cores: &[usize], by: u64, ticket: Option<u64>) {
        // Those cores may not have received all messages of this one.
        self.send_exchange();
        let settle = |&core: &usize| {
            let settle =
                move |tables: std::rc::Rc<Tables>| async move { tables.settle_expired(by).await };
            self.handle.start_on(core, ticket, settle)
        };
        let started: Vec<_> = cores.iter().map(settle).collect();
        for settled in started {
            // An error means that the server is stopping.
            let _ = settled.await;
        }
    }

    /// Removes own rows that had expired at `by`, and waits until all outputs on other cores reflect that.
    async fn settle_expired(&self, by: u64) {
        poll_fn(|cx| {
            let is_late = self
                .engine
                .borrow()
                .next_expiry()
                .is_some_and(|at| at <= by);
            if is_late {
                self.read(|_, _| ());
                self.wake_maintenance();
            }
            self.publish_acknowledged_expiry();
            if self.handle.expiry.earliest[self.index].load(Ordering::SeqCst) > by {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Updates the expiry state after changes that were sent to other cores.
    pub(super) fn update_expiry_after(&self, changes: &[LogEntry], engine: &Engine) {
        if changes.iter().any(|c| matches!(c, LogEntry::Expire { .. })) {
            self.update_expiry(engine);
        }
    }

    /// Updates the expiry state after own expiry times have changed. Removals have been sent to other cores.
    pub(super) fn update_expiry(&self, engine: &Engine) {
        let Some(sharing) = &self.sharing else { return };
        let next = engine.next_expiry().unwrap_or(u64::MAX);
        let queue = &mut *sharing.expiry_queue.borrow_mut();
        let before = std::mem::replace(&mut queue.next, next);
        let last_sent = sharing.last_exported();
        if before < next && !sharing.is_acknowledged_by_first(self.handle.cores(), last_sent) {
            queue.unacknowledged.push_back((before, last_sent));
        }
        self.publish_earliest(queue);
    }

    /// Publishes the expiry state after other cores have acknowledged changes. Other nodes do not read it, so they need
    /// not have acknowledged.
    pub(super) fn publish_acknowledged_expiry(&self) {
        let Some(sharing) = &self.sharing else { return };
        let queue = &mut *sharing.expiry_queue.borrow_mut();
        let cores = self.handle.cores();
        queue
            .unacknowledged
            .retain(|(_, last_sent)| !sharing.is_acknowledged_by_first(cores, *last_sent));
        self.publish_earliest(queue);
    }

    fn publish_earliest(&self, queue: &ExpiryQueue) {
        let last_sent = queue.unacknowledged.iter().map(|(at, _)| *at).min();
        let earliest = last_sent.unwrap_or(u64::MAX).min(queue.next);
        let published = &self.handle.expiry.earliest[self.index];
        // Other cores read it often.
        if published.load(Ordering::SeqCst) != earliest {
            published.store(earliest, Ordering::SeqCst);
        }
    }
}
