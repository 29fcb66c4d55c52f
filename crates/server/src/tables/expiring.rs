//! Expiry with several cores: no output shows a row that had expired when the read arrived.
//!
//! ```text
//!   core 1, owner of p|bob|3                       core 0, where an output was computed from it
//!   the row expires and is removed ── Changes ───► the output is updated
//!   `expiring[1]` is that time until all have acknowledged the removal
//!                                  ◄── settle ──── a read finds a time in `expiring` that is not later than its own
//! ```
//!
//! 1. All cores use one clock, which never decreases: a row that one core has removed as expired has also expired for
//!    every later read on another core.
//! 2. A core's entry in `expiring` is not later than the expiry time of any of its rows whose removal is not reflected
//!    by all outputs on the node's other cores. It is published before the reply to the command that sets an expiry
//!    time.
//! 3. A read waits for rows that had expired when it arrived, and not for rows that expire while it waits.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use larder_join::{Engine, LogEntry};

use super::{Awaited, Tables, TablesHandle};
use crate::clock::unix_ms;

/// The expiry state of all cores.
pub struct Expiring {
    /// The latest time that any core has read, in milliseconds since 1970.
    clock: AtomicU64,
    /// Indexed by core; `u64::MAX` if none of its rows has an expiry time.
    earliest: Vec<AtomicU64>,
}

/// The next expiry of a core's own rows, and the removals that other cores' outputs may not reflect.
pub struct OwnExpiry {
    next: u64,
    /// The times of removals, with the last change that other cores must acknowledge for each.
    told: VecDeque<(u64, u64)>,
}

impl Default for OwnExpiry {
    fn default() -> OwnExpiry {
        OwnExpiry {
            next: u64::MAX,
            told: VecDeque::new(),
        }
    }
}

impl Expiring {
    pub fn new(cores: usize) -> Expiring {
        Expiring {
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
    fn not_settled(&self, now: u64, but: usize) -> Vec<usize> {
        let earliest = self.expiring.earliest.iter().enumerate();
        let late = earliest.filter(|(core, at)| *core != but && at.load(Ordering::SeqCst) <= now);
        late.map(|(core, _)| core).collect()
    }
}

impl Tables {
    /// Returns what a read that arrives now must wait for before it reads outputs.
    pub fn expired_elsewhere(&self) -> Option<Awaited> {
        self.sharing.as_ref()?;
        let earliest = &self.handle.expiring.earliest;
        if earliest
            .iter()
            .all(|at| at.load(Ordering::SeqCst) == u64::MAX)
        {
            return None;
        }
        let by = self.now();
        let cores = self.handle.not_settled(by, self.index);
        (!cores.is_empty()).then_some(Awaited::Expired { cores, by })
    }

    /// Waits until no output here shows a row of these cores that had expired at `by`.
    pub(super) async fn wait_until_settled(&self, cores: &[usize], by: u64, ticket: Option<u64>) {
        // Those cores may not have received all messages of this one.
        self.send_exchange();
        let settle = |&core: &usize| {
            let settle = move |tables: std::rc::Rc<Tables>| async move { tables.settle(by).await };
            self.handle.start_on(core, ticket, settle)
        };
        let begun: Vec<_> = cores.iter().map(settle).collect();
        for settled in begun {
            // An error means that the server is stopping.
            let _ = settled.await;
        }
    }

    /// Removes own rows that had expired at `by`, and waits until all outputs on other cores reflect that.
    async fn settle(&self, by: u64) {
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
            self.publish_expiring();
            if self.handle.expiring.earliest[self.index].load(Ordering::SeqCst) > by {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Updates the expiry state after changes that were sent to other cores.
    pub(super) fn note_if_expiring(&self, changes: &[LogEntry], engine: &Engine) {
        if changes.iter().any(|c| matches!(c, LogEntry::Expire { .. })) {
            self.note_expiring(engine);
        }
    }

    /// Updates the expiry state after own expiry times have changed. Removals have been sent to other cores.
    pub(super) fn note_expiring(&self, engine: &Engine) {
        let Some(sharing) = &self.sharing else { return };
        let next = engine.next_expiry().unwrap_or(u64::MAX);
        let going = &mut *sharing.going.borrow_mut();
        let before = std::mem::replace(&mut going.next, next);
        let told = sharing.last_exported();
        if before < next && !sharing.is_acknowledged_by_first(self.handle.cores(), told) {
            going.told.push_back((before, told));
        }
        self.publish(going);
    }

    /// Publishes the expiry state after other cores have acknowledged changes. Other nodes do not read it, so they need
    /// not have acknowledged.
    pub(super) fn publish_expiring(&self) {
        let Some(sharing) = &self.sharing else { return };
        let going = &mut *sharing.going.borrow_mut();
        let cores = self.handle.cores();
        going
            .told
            .retain(|(_, told)| !sharing.is_acknowledged_by_first(cores, *told));
        self.publish(going);
    }

    fn publish(&self, going: &OwnExpiry) {
        let told = going.told.iter().map(|(at, _)| *at).min();
        let earliest = told.unwrap_or(u64::MAX).min(going.next);
        let published = &self.handle.expiring.earliest[self.index];
        // Other cores read it often.
        if published.load(Ordering::SeqCst) != earliest {
            published.store(earliest, Ordering::SeqCst);
        }
    }
}
