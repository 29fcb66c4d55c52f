//! How far a core has come in applying what PostgreSQL tells.
//!
//! While the cores are paused nothing is applied, so that all they read is of one moment. Before, they come to stand at
//! the same number: those who are behind apply what has been sent to them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::spread::{PostgresUpdate, Seen};
use crate::tables::Tables;
use crate::tables::pause::PostgresStand;

/// How far one core has come.
#[derive(Default)]
pub struct PostgresProgress {
    /// The last update that all cores are told and that is applied here.
    pub(super) number: Cell<u64>,
    /// The last change of the updates that outputs have yet to reflect, or reflect by now.
    pub(super) change: Cell<Option<u64>>,
    /// Updates that came while the core was paused.
    held: RefCell<VecDeque<PostgresUpdate>>,
    /// Writes that outputs do not reflect yet, with the change that they wait for.
    pub(super) seen: RefCell<VecDeque<(u64, Arc<Seen>)>>,
    /// Who waits for more to come.
    waiting: RefCell<Vec<Waker>>,
}

impl Tables {
    /// Applies what PostgreSQL tells: at once or, while the core is paused, after the pause.
    pub fn receive_postgres_update(&self, update: PostgresUpdate) {
        if !self.is_paused() {
            return self.apply_postgres_update(update);
        }
        self.postgres_progress.held.borrow_mut().push_back(update);
        self.postgres_progress.wake();
    }

    /// Applies the updates that came in a pause.
    pub(in crate::tables) fn apply_held_updates(&self) {
        loop {
            let update = self.postgres_progress.held.borrow_mut().pop_front();
            match update {
                Some(update) => self.apply_postgres_update(update),
                None => return,
            }
        }
    }

    /// The last of what all cores are told that is applied here.
    pub(in crate::tables) fn postgres_position(&self) -> u64 {
        self.postgres_progress.number.get()
    }

    /// Whether outputs reflect what is applied here.
    fn is_reflected(&self) -> bool {
        let change = self.postgres_progress.change.get();
        change.is_none_or(|change| self.engine.borrow().is_done(change))
    }

    /// Where a core stands that grants a pause.
    pub(in crate::tables) fn stand(&self) -> PostgresStand {
        PostgresStand {
            number: self.postgres_position(),
            is_reflected: self.is_reflected(),
        }
    }

    /// Of a paused core: comes to stand at a number that another one has come to, and has outputs reflect it.
    pub(in crate::tables) async fn apply_up_to(&self, number: u64) {
        poll_fn(|cx| {
            while self.postgres_position() < number {
                let update = self.postgres_progress.held.borrow_mut().pop_front();
                let Some(update) = update else {
                    self.postgres_progress
                        .waiting
                        .borrow_mut()
                        .push(cx.waker().clone());
                    return Poll::Pending;
                };
                self.apply_postgres_update(update);
            }
            if self.is_reflected() {
                return Poll::Ready(());
            }
            self.postgres_progress
                .waiting
                .borrow_mut()
                .push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Lets go of writes that outputs reflect by now: their clients are answered when all cores have done so.
    pub(in crate::tables) fn release_reflected_writes(&self) {
        let engine = self.engine.borrow();
        let mut seen = self.postgres_progress.seen.borrow_mut();
        while seen
            .front()
            .is_some_and(|(change, _)| engine.is_done(*change))
        {
            seen.pop_front();
        }
        self.postgres_progress.wake();
    }
}

impl PostgresProgress {
    fn wake(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
    }
}
