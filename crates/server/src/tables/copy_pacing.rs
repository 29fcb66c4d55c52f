//! Regions are filled while clients are served, so the work is done in small steps with pauses between them.
//!
//! ```text
//!  own objects ───── some ────► assigned to cells of new subspaces ──┐
//!  others' objects ─ a chunk ─► added to indexes ────────────────────┤
//!  own objects ───── a chunk ─► added to indexes ────────────────────┤
//!  objects, copies ─ some ────► added to new indexes ────────────────┴─► STEP_US of work ─► rest ─► the next chunks are requested
//! ```
//!
//! A rest takes as long as the work before it, and longer if the budget of background work requires it
//! (docs/decisions/0026-one-budget.md): three times as long at a share of one half. This applies while searches contact
//! all owners until the work is done. New subspaces are not searched yet, so filling them has the share of work for
//! which no client waits. The first few hundred copies, however, have a share of at least a quarter. The cost of an
//! object is a constant, not measured, so that steps and rests are the same in each run of a simulation.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::Tables;
use super::spaces::STEP_OBJECTS;
use crate::spaces::Backlog;
use crate::spaces::copies::SubscriptionRequest;

/// Work between two rests, in microseconds: if no other thread waits for a processor, and if one does. The second is
/// the maximum time by which such a thread is delayed.
const STEP_US: usize = 1600;
const YIELDING_STEP_US: usize = 140;
/// Cost of a copy: it is added to an index of each attribute.
const COPY_US: usize = 35;
/// Cost of assigning an indexed object to a cell.
const PLACED_US: usize = 4;
/// Cost of adding an object to an index under construction. There are usually one or two of these.
const BUILT_US: usize = 4;

/// The first work of a burst, in microseconds, has at least `HEAD_START_SHARE`, even if no client waits for it. Small
/// spaces are thus filled quickly, and meanwhile it becomes known whether threads wait for processors. The allowance is
/// restored in `HEAD_START_TIMES` as much time.
const HEAD_START_US: usize = 20_000;
const HEAD_START_SHARE: f64 = 0.25;
const HEAD_START_TIMES: u128 = 100;

/// Copies removed in one step.
const SWEEP_COPIES: usize = 32;

#[derive(Default)]
pub struct CopyPacer {
    /// Work since the last rest, in microseconds.
    done_us: Cell<usize>,
    is_resting: Cell<bool>,
    is_yielding: Cell<bool>,
    head_start: Cell<HeadStart>,
}

/// The used part of the head start.
#[derive(Debug, Clone, Copy, Default)]
struct HeadStart {
    used_us: usize,
    at: Option<Instant>,
}

impl HeadStart {
    /// Returns whether this work belongs to the head start.
    fn consume(&mut self, now: Instant, done_us: usize) -> bool {
        let since = self.at.map_or(Duration::ZERO, |at| now - at);
        let back = usize::try_from(since.as_micros() / HEAD_START_TIMES).unwrap_or(usize::MAX);
        self.used_us = self.used_us.saturating_sub(back);
        self.at = Some(now);
        let is_left = self.used_us < HEAD_START_US;
        self.used_us += if is_left { done_us } else { 0 };
        is_left
    }
}

impl Tables {
    /// Like [`Tables::index_step`], but with rests unless a search waits for the work. Called by maintenance; returns
    /// whether to call it again.
    pub(super) fn index_paced(self: &Rc<Self>) -> bool {
        if self.is_paused() {
            return false;
        }
        self.queue_moved_objects();
        if self.spaces.read().backlog() == Backlog::Placing {
            if !self.may_continue_copying() {
                return false;
            }
            let copying = &self.copy_pacer;
            copying
                .done_us
                .set(copying.done_us.get() + STEP_OBJECTS * PLACED_US);
        }
        self.index_step() != Backlog::Empty
    }

    /// Continues building indexes. Called by maintenance; returns whether to call it again. Searches use the existing
    /// indexes meanwhile.
    pub(super) fn build_paced(self: &Rc<Self>) -> bool {
        if !self.spaces.is_building() || self.is_paused() || !self.may_continue_copying() {
            return false;
        }
        let copying = &self.copy_pacer;
        let built_us = STEP_OBJECTS * BUILT_US;
        copying.done_us.set(copying.done_us.get() + built_us);
        self.spaces.build_step(STEP_OBJECTS)
    }

    /// Requests the copies that this core must hold, and continues serving such requests of other cores. Called by
    /// maintenance; returns whether to call it again.
    pub(super) fn copy_paced(self: &Rc<Self>) -> bool {
        let (Some(sharing), true) = (&self.sharing, self.spaces.has_copies()) else {
            return false;
        };
        if self.is_paused() {
            return false;
        }
        // Searches of these regions are not answered until this is done, so it does not rest.
        if self.spaces.sweep_step(SWEEP_COPIES) {
            return true;
        }
        let shard = sharing.shard();
        let mut exchange = sharing.exchange.borrow_mut();
        for request in self.spaces.drain_outgoing(&shard) {
            match request {
                SubscriptionRequest::Subscribe {
                    owner,
                    number,
                    part,
                } => exchange.request_part(owner, number, part),
                SubscriptionRequest::Unsubscribe(number) => exchange.end_part(number),
            }
        }
        self.queue_moved_objects();
        let is_caught_up = self.spaces.read().backlog() == Backlog::Empty;
        if self.may_continue_copying() {
            let mut more = exchange.release_part_chunk();
            if is_caught_up {
                let engine = self.engine.borrow();
                more |= self.spaces.copy_local_step(&engine, &shard, STEP_OBJECTS);
            }
            if more {
                return true;
            }
        }
        // Cores whose requests waited while this core was behind.
        let is_waited_for = is_caught_up && exchange.has_pending_parts();
        drop(exchange);
        if is_waited_for {
            self.exchange_step();
        }
        false
    }

    /// Starts a rest after enough work. Returns `false` during a rest, at whose end maintenance is woken.
    fn may_continue_copying(self: &Rc<Self>) -> bool {
        let copying = &self.copy_pacer;
        let copied_us = self.spaces.take_stored_count() * COPY_US;
        copying.done_us.set(copying.done_us.get() + copied_us);
        let step_us = if copying.is_yielding.get() {
            YIELDING_STEP_US
        } else {
            STEP_US
        };
        if !copying.is_resting.get() && copying.done_us.get() >= step_us {
            copying.is_resting.set(true);
            let done_us = copying.done_us.take();
            let mut head_start = copying.head_start.get();
            let background = self.handle.background.get();
            let share = match background.map(|shares| shares(0)) {
                None => 1.0,
                Some(shares) if self.spaces.read().copies.lacks_searched() => shares.background,
                Some(shares) if head_start.consume(Instant::now(), done_us) => {
                    shares.unhurried.max(HEAD_START_SHARE)
                }
                Some(shares) => shares.unhurried,
            };
            copying.head_start.set(head_start);
            copying.is_yielding.set(share < 1.0);
            let rest = rest_after(done_us, share);
            let tables = self.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(rest).await;
                tables.copy_pacer.is_resting.set(false);
                tables.wake_maintenance();
            });
        }
        !copying.is_resting.get()
    }
}

/// Returns the rest after an amount of work, for a share of background work.
fn rest_after(done_us: usize, share: f64) -> Duration {
    let done = done_us as f64 / 1e6;
    Duration::from_secs_f64(done * (2.0 / share.clamp(0.01, 1.0) - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_lasts_as_long_as_the_work_and_longer_for_a_smaller_share() {
        let done = Duration::from_micros(1600);
        assert_eq!(rest_after(1600, 1.0), done);
        assert_eq!(rest_after(1600, 0.5), 3 * done);
        assert_eq!(rest_after(1600, 0.1).as_micros(), 19 * done.as_micros());
        assert!(rest_after(1600, 0.0) < Duration::from_secs(1));
    }

    #[test]
    fn a_head_start_is_consumed_and_restored_over_time() {
        let (started, mut head_start) = (Instant::now(), HeadStart::default());
        let mut steps = |after_ms: u64| {
            let now = started + Duration::from_millis(after_ms);
            let steps = std::iter::repeat_with(|| head_start.consume(now, 2000));
            steps.take_while(|is_left| *is_left).count()
        };
        assert_eq!(steps(0), 10);
        assert_eq!(steps(0), 0);
        assert_eq!(steps(1000), 5);
        assert_eq!(steps(60_000), 10);
    }
}
