//! Tracks how far a core has applied the updates from PostgreSQL.
//!
//! While the cores are paused, no updates are applied, so that all reads of the pause see the same state. Before that,
//! the cores advance to the same update number: those behind apply the updates that they have already received.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::distribute::{PostgresUpdate, ReplicatedWrite};
use crate::tables::Tables;
use crate::tables::pause::PostgresPosition;

/// One core's progress.
#[derive(Default)]
pub struct PostgresProgress {
    /// The last update for all cores that is applied here.
    pub(super) applied_number: Cell<u64>,
    /// The last change of these updates that outputs wait for, whether or not they reflect it already.
    pub(super) last_change: Cell<Option<u64>>,
    /// Updates that arrived while the core was paused.
    deferred: RefCell<VecDeque<PostgresUpdate>>,
    /// Writes that outputs do not reflect yet, with the change that they wait for.
    pub(super) unreflected_writes: RefCell<VecDeque<(u64, Arc<ReplicatedWrite>)>>,
    /// Tasks that wait for updates to arrive.
    waiting: RefCell<Vec<Waker>>,
}

impl Tables {
    /// Applies an update from PostgreSQL immediately or, while the core is paused, after the pause.
    pub fn receive_postgres_update(&self, update: PostgresUpdate) {
        if !self.is_paused() {
            return self.apply_postgres_update(update);
        }
        self.postgres_progress
            .deferred
            .borrow_mut()
            .push_back(update);
        self.postgres_progress.wake();
    }

    /// Applies the updates that arrived during a pause.
    pub(in crate::tables) fn apply_held_updates(&self) {
        loop {
            let update = self.postgres_progress.deferred.borrow_mut().pop_front();
            match update {
                Some(update) => self.apply_postgres_update(update),
                None => return,
            }
        }
    }

    /// The last update for all cores that is applied here.
    pub(in crate::tables) fn postgres_position(&self) -> u64 {
        self.postgres_progress.applied_number.get()
    }

    /// Returns whether outputs reflect all applied updates.
    fn is_reflected(&self) -> bool {
        let change = self.postgres_progress.last_change.get();
        change.is_none_or(|change| self.engine.borrow().is_done(change))
    }

    /// Returns the position at which a core grants a pause.
    pub(in crate::tables) fn postgres_state(&self) -> PostgresPosition {
        PostgresPosition {
            number: self.postgres_position(),
            is_reflected: self.is_reflected(),
        }
    }

    /// On a paused core: applies updates up to the number that another core has reached, and waits until outputs
    /// reflect them.
    pub(in crate::tables) async fn apply_up_to(&self, number: u64) {
        poll_fn(|cx| {
            while self.postgres_position() < number {
                let update = self.postgres_progress.deferred.borrow_mut().pop_front();
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

    /// Releases writes that outputs now reflect. Their clients receive replies when all cores have released them.
    pub(in crate::tables) fn release_reflected_writes(&self) {
        let engine = self.engine.borrow();
        let mut seen = self.postgres_progress.unreflected_writes.borrow_mut();
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
