//! The connections of one client. A call uses the connection with the fewest calls in progress.
//!
//! The next call on a lost connection opens it again, at most once per [`PAUSE`]. Calls that arrive meanwhile wait for
//! that attempt, so an unavailable server is not overloaded with attempts.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use crate::stores::contract::Failure;

/// The time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

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
    under_way: Cell<usize>,
    /// The time of the last attempt to open it.
    opening: Mutex<Option<Instant>>,
}

/// A connection with a call in progress, until dropped.
pub struct Entered<'a, L> {
    link: Rc<L>,
    _count: Count<'a>,
}

struct Count<'a>(&'a Cell<usize>);

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<L> Deref for Entered<'_, L> {
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
            under_way: Cell::default(),
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
            slot.live(&open).await?;
        }
        Ok(())
    }

    pub async fn enter<F>(&self, open: impl Fn() -> F) -> Result<Entered<'_, L>, Failure>
    where
        F: Future<Output = Result<L, Failure>>,
    {
        let slot = self.slots.iter().min_by_key(|slot| slot.under_way.get());
        let slot = slot.expect("at least one");
        slot.under_way.set(slot.under_way.get() + 1);
        let count = Count(&slot.under_way);
        Ok(Entered {
            link: slot.live(open).await?,
            _count: count,
        })
    }
}

impl<L: Link> Slot<L> {
    async fn live<F>(&self, open: impl Fn() -> F) -> Result<Rc<L>, Failure>
    where
        F: Future<Output = Result<L, Failure>>,
    {
        if let Some(link) = self.now() {
            return Ok(link);
        }
        let mut tried = self.opening.lock().await;
        if let Some(link) = self.now() {
            return Ok(link);
        }
        if let Some(tried) = *tried {
            tokio::time::sleep(PAUSE.saturating_sub(tried.elapsed())).await;
        }
        *tried = Some(Instant::now());
        let link = Rc::new(open().await?);
        *self.link.borrow_mut() = Some(link.clone());
        Ok(link)
    }

    fn now(&self) -> Option<Rc<L>> {
        let link = self.link.borrow();
        link.as_ref().filter(|link| !link.is_lost()).cloned()
    }
}
