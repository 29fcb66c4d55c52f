//! How far a core has come with what PostgreSQL tells.
//!
//! While the cores are paused nothing is applied, so that all they read is of one moment. Before, they come to stand at
//! the same number: those who are behind apply what has been sent to them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::spread::{News, Seen};
use crate::tables::Tables;
use crate::tables::pause::Stand;

/// One core's.
#[derive(Default)]
pub struct Followed {
    /// The last that all cores are told which is applied here.
    pub(super) number: Cell<u64>,
    /// The last change of it that outputs wait for.
    pub(super) change: Cell<Option<u64>>,
    /// What came while the core was paused.
    held: RefCell<VecDeque<News>>,
    /// Writes that outputs do not reflect yet, with the change that they wait for.
    pub(super) seen: RefCell<VecDeque<(u64, Arc<Seen>)>>,
    /// Who waits for more to come.
    waiting: RefCell<Vec<Waker>>,
}

impl Tables {
    /// Takes in what the source says: at once, unless the core is paused.
    pub fn take_news(&self, news: News) {
        if !self.is_paused() {
            return self.apply_news(news);
        }
        self.followed.held.borrow_mut().push_back(news);
        self.followed.wake();
    }

    /// Applies what came in a pause.
    pub(in crate::tables) fn apply_held(&self) {
        loop {
            let news = self.followed.held.borrow_mut().pop_front();
            match news {
                Some(news) => self.apply_news(news),
                None => return,
            }
        }
    }

    /// The last of what all cores are told that is applied here.
    pub(in crate::tables) fn followed(&self) -> u64 {
        self.followed.number.get()
    }

    /// Whether outputs reflect what is applied here.
    fn is_reflected(&self) -> bool {
        let change = self.followed.change.get();
        change.is_none_or(|change| self.engine.borrow().is_done(change))
    }

    /// Where a core stands that grants a pause.
    pub(in crate::tables) fn stand(&self) -> Stand {
        Stand {
            number: self.followed(),
            is_reflected: self.is_reflected(),
        }
    }

    /// Of a paused core: comes to stand at a number that another one has come to, and has outputs reflect it.
    pub(in crate::tables) async fn follow_to(&self, number: u64) {
        poll_fn(|cx| {
            while self.followed() < number {
                let news = self.followed.held.borrow_mut().pop_front();
                let Some(news) = news else {
                    self.followed.waiting.borrow_mut().push(cx.waker().clone());
                    return Poll::Pending;
                };
                self.apply_news(news);
            }
            if self.is_reflected() {
                return Poll::Ready(());
            }
            self.followed.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Lets go of writes that outputs reflect by now.
    pub(in crate::tables) fn release_reflected_writes(&self) {
        let engine = self.engine.borrow();
        let mut seen = self.followed.seen.borrow_mut();
        while seen
            .front()
            .is_some_and(|(change, _)| engine.is_done(*change))
        {
            seen.pop_front();
        }
        self.followed.wake();
    }
}

impl Followed {
    fn wake(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}
