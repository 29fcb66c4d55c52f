//! Regions are filled while clients are served, so what fills them works in small steps and rests.
//!
//! ```text
//!  others' objects ─ a chunk ─► put into indexes ─┐
//!  own objects ──── a chunk ─► put into indexes ──┴─► STEP_COPIES of them ─► rest ─► the next chunks are let come
//! ```
//!
//! It rests for as long as these copies took, and longer where the budget of background work says so (docs/decisions/0026-one-budget.md): at a share of a half for
//! three times as long. What a copy takes is not measured but known about, so that steps and rests are the same in each run of a simulation.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::Tables;
use super::spaces::STEP_OBJECTS;
use crate::spaces::Behind;
use crate::spaces::copies::Said;

/// Copies that are put between two rests.
const STEP_COPIES: usize = 64;
/// What one takes: it is put into an index of each attribute.
const COPY_US: f64 = 25.0;

#[derive(Default)]
pub struct Copying {
    /// Copies that were put since the last rest.
    put: Cell<usize>,
    is_resting: Cell<bool>,
}

impl Tables {
    /// Asks others for the copies that this core is to hold, and goes on with what others ask of it, for maintenance: says whether it is to be called
    /// again.
    pub(super) fn copy_in_turn(self: &Rc<Self>) -> bool {
        let (Some(sharing), true) = (&self.sharing, self.spaces.has_copies()) else {
            return false;
        };
        if self.is_paused() {
            return false;
        }
        let shard = sharing.shard();
        let mut exchange = sharing.exchange.borrow_mut();
        for said in self.spaces.take_said(&shard) {
            match said {
                Said::Ask {
                    owner,
                    number,
                    part,
                } => exchange.ask_part(owner, number, part),
                Said::End(number) => exchange.end_part(number),
            }
        }
        self.note_moved_objects();
        let is_caught_up = self.spaces.read().behind() == Behind::Nothing;
        if self.may_copy() {
            let mut more = exchange.take_part();
            if is_caught_up {
                let engine = self.engine.borrow();
                more |= self.spaces.supply_own(&engine, &shard, STEP_OBJECTS);
            }
            if more {
                return true;
            }
        }
        // Those who asked while it was behind.
        let is_waited_for = is_caught_up && exchange.has_part_answers();
        drop(exchange);
        if is_waited_for {
            self.exchange();
        }
        false
    }

    /// Begins to rest when enough was put. False while it rests; it is woken then.
    fn may_copy(self: &Rc<Self>) -> bool {
        let copying = &self.copying;
        copying.put.set(copying.put.get() + self.spaces.take_put());
        if !copying.is_resting.get() && copying.put.get() >= STEP_COPIES {
            copying.is_resting.set(true);
            let rest = self.rest_of(copying.put.take());
            let tables = self.clone();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(rest).await;
                tables.copying.is_resting.set(false);
                tables.wake_maintenance();
            });
        }
        !copying.is_resting.get()
    }

    fn rest_of(&self, copies: usize) -> Duration {
        let background = self.handle.background.get();
        let share = background.map_or(1.0, |share| share(0));
        rest(copies, share)
    }
}

/// How long to rest after so many copies, where background work has such a share.
fn rest(copies: usize, share: f64) -> Duration {
    let busy = copies as f64 * COPY_US / 1e6;
    Duration::from_secs_f64(busy * (2.0 / share.clamp(0.01, 1.0) - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_as_long_as_it_worked_and_longer_where_it_is_to_yield() {
        let busy = Duration::from_micros(64 * 25);
        assert_eq!(rest(64, 1.0), busy);
        assert_eq!(rest(64, 0.5), 3 * busy);
        assert_eq!(rest(64, 0.1).as_micros(), 19 * busy.as_micros());
        assert!(rest(64, 0.0) < Duration::from_secs(1));
    }
}
