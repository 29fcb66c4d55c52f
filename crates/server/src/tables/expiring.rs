//! Rows that expire, where there are several cores: no output shows one whose time had come when the read came.
//!
//! ```text
//!   core 1, owner of p|bob|3                       core 0, where an output was computed from it
//!   its time comes: the row goes ── Changes ─────► the output follows
//!   `expiring[1]` is that time until all have acknowledged it
//!                                  ◄── settle ──── a read finds a time in `expiring` that is not behind its own
//! ```
//!
//! 1. All cores read one clock, which never goes back: what one core has let go, no later read of another finds to be early.
//! 2. `expiring` of a core is no later than the time of any row of its own whose removal the outputs of the node's other cores do not reflect yet. It is
//!    published before the reply to whoever set the time.
//! 3. A read waits for what has expired by the time at which it came, and not for what expires while it waits.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use larder_join::{Engine, LogEntry};

use super::{Awaited, Tables, TablesHandle};
use crate::clock::unix_ms;

/// Of all cores.
pub struct Expiring {
    /// Milliseconds since 1970, the latest that any core has read.
    clock: AtomicU64,
    /// By core; `u64::MAX` if nothing of its own is to go.
    earliest: Vec<AtomicU64>,
}

/// When a core's own rows expire, and which that have expired other cores' outputs may still show.
pub struct OwnExpiry {
    next: u64,
    /// When rows went, and the last change that others must reflect for it.
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

    /// Invariant 1.
    pub fn now(&self) -> u64 {
        let now = unix_ms();
        // Most often another core has read the same millisecond already.
        match self.clock.load(Ordering::SeqCst) {
            last if last >= now => last,
            _ => self.clock.fetch_max(now, Ordering::SeqCst).max(now),
        }
    }
}

impl TablesHandle {
    /// Cores with rows that have expired by `now` and may still be seen in outputs of `but`.
    fn not_settled(&self, now: u64, but: usize) -> Vec<usize> {
        let earliest = self.expiring.earliest.iter().enumerate();
        let late = earliest.filter(|(core, at)| *core != but && at.load(Ordering::SeqCst) <= now);
        late.map(|(core, _)| core).collect()
    }
}

impl Tables {
    /// What a read that comes now must wait for before it looks at outputs.
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

    /// Waits until no output here shows a row of these cores that has expired by `by`.
    pub(super) async fn wait_until_settled(&self, cores: &[usize], by: u64, ticket: Option<u64>) {
        // They may lack what has been said here.
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

    /// Lets own rows go that have expired by then, and waits until all outputs elsewhere reflect it.
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

    /// After changes that others were told.
    pub(super) fn note_if_expiring(&self, changes: &[LogEntry], engine: &Engine) {
        if changes.iter().any(|c| matches!(c, LogEntry::Expire { .. })) {
            self.note_expiring(engine);
        }
    }

    /// After a change of when own rows go: what went is told to others by now.
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

    /// Publishes when own rows go, after other cores have acknowledged changes. Other nodes do not look at it, so they are not waited for.
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
        // Others look at it often.
        if published.load(Ordering::SeqCst) != earliest {
            published.store(earliest, Ordering::SeqCst);
        }
    }
}
