//! The connections of one client. A call uses the connection with the fewest calls in progress.
//!
//! The next call on a lost connection opens it again, at most once per [`RECONNECT_INTERVAL`]. Calls that arrive
//! meanwhile wait for that attempt, so an unavailable server is not overloaded with attempts.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::stores::contract::Failure;

/// The time between two attempts to connect.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);

/// A connection that may be lost.
pub trait Link {
    /// Returns whether calls on the connection would fail.
    fn is_lost(&self) -> bool;
}

pub struct Links<L> {
    slots: Vec<Slot<L>>,
}

struct Slot<L> {
    link: RefCell<Option<Rc<L>>>,
    in_flight: Cell<usize>,
    /// The time of the last attempt to open it.
    opening: Mutex<Option<Instant>>,
}

/// A connection with a call in progress, until dropped.
pub struct LinkGuard<'a, L> {
    link: Rc<L>,
    _count: InFlightGuard<'a>,
}

struct InFlightGuard<'a>(&'a Cell<usize>);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<L> Deref for LinkGuard<'_, L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.link
    }
}

impl<L: Link> Links<L> {
    /// Creates connections that are not open yet.
    pub fn new(count: usize) -> Links<L> {
        let slot = || Slot {
            link: RefCell::default(),
            in_flight: Cell::default(),
            opening: Mutex::default(),
        };
        Links {
            slots: (0..count.max(1)).map(|_| slot()).collect(),
        }
    }

    /// Opens all connections that are not open.
    pub async fn open_all<F>(&self, open: impl Fn() -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<L, Failure>>,
    {
        for slot in &self.slots {
            slot.get_or_open(&open).await?;
        }
        Ok(())
    }

    pub async fn acquire<F>(&self, open: impl Fn() -> F) -> Result<LinkGuard<'_, L>, Failure>
    where
        F: Future<Output = Result<L, Failure>>,
    {
        let slot = self.slots.iter().min_by_key(|slot| slot.in_flight.get());
        let slot = slot.expect("at least one");
        slot.in_flight.set(slot.in_flight.get() + 1);
        let count = InFlightGuard(&slot.in_flight);
        Ok(LinkGuard {
            link: slot.get_or_open(open).await?,
            _count: count,
        })
    }
}

impl<L: Link> Slot<L> {
    async fn get_or_open<F>(&self, open: impl Fn() -> F) -> Result<Rc<L>, Failure>
    where
        F: Future<Output = Result<L, Failure>>,
    {
        if let Some(link) = self.current() {
            return Ok(link);
        }
        let mut tried = self.opening.lock().await;
        if let Some(link) = self.current() {
            return Ok(link);
        }
        if let Some(tried) = *tried {
            tokio::time::sleep(RECONNECT_INTERVAL.saturating_sub(tried.elapsed())).await;
        }
        *tried = Some(Instant::now());
        let link = Rc::new(open().await?);
        *self.link.borrow_mut() = Some(link.clone());
        Ok(link)
    }

    fn current(&self) -> Option<Rc<L>> {
        let link = self.link.borrow();
        link.as_ref().filter(|link| !link.is_lost()).cloned()
    }
}
