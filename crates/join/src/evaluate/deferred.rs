//! Reads that are put off: a read that has more to compute than it may at a time leaves what it has done and is asked again
//! once [`Engine::step`] has done the rest, some at a time, while others read and write.
//!
//! ```text
//!  range ──► view ─┬─ all is filled ──────────────► rows
//!                  └─ the budget is spent ─► PutOff: the range waits here ◄── step: view goes on, until all is filled
//!                                              └► asked again when `ended_reads` has changed ──► rows
//! ```
//!
//! 1. What has been filled stays filled and is kept fresh, so each step goes on where the last one ended.
//! 2. Many may wait for one range: it is worked on once.
//! 3. Who waits is called too when a range that is being filled is evicted; then it may be worked on anew, or as a whole.

use std::collections::VecDeque;

use crate::base::key_range::KeyRange;
use crate::engine::Engine;
use crate::evaluate::needs::Needs;
use crate::tables::table::TableId;

#[derive(Debug, Default)]
pub(crate) struct PutOff {
    /// With whether no more is to be filled than that (see `partial`).
    ranges: VecDeque<(TableId, KeyRange, bool)>,
    ended: u64,
}

impl PutOff {
    /// A read waits for a range; says what it needs.
    pub fn add(&mut self, table: TableId, range: KeyRange, is_partial: bool) -> Box<Needs> {
        let new = (table, range, is_partial);
        if !self.ranges.contains(&new) {
            self.ranges.push_back(new);
        }
        Needs::steps(self.ended)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl Engine {
    /// How many source rows (and as many outputs of changes that wait) a read may visit before it is put off, one at the
    /// least; `None`, as at first, for any number. What a `pull` join computes, and a `snapshot`, may take eight times as many in one go
    /// before it is (see `transient_fill`).
    pub fn set_read_rows(&mut self, rows: Option<usize>) {
        // With none a read would never learn what it lacks.
        self.read_rows = rows.map(|rows| rows.max(1));
    }

    /// How many reads that were put off have ended so far: those who wait may ask again when it changes.
    pub fn ended_reads(&self) -> u64 {
        self.put_off.ended
    }

    /// Whether any range waits for [`Engine::step`].
    pub fn has_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }

    /// How many source rows were read so far to compute what was asked for.
    pub fn rows_read(&self) -> u64 {
        self.rows_read
    }

    /// Whether others wait for a range: then this read waits with them.
    pub(crate) fn waits_too(&self, table: TableId, range: &KeyRange) -> bool {
        let is_this = |(t, r, _): &(TableId, KeyRange, bool)| *t == table && r == range;
        self.read_rows.is_some() && self.put_off.ranges.iter().any(is_this)
    }

    /// Works on the ranges that wait, in turn.
    pub(crate) fn go_on_with_reads(&mut self, budget: usize) {
        self.budget = budget;
        for _ in 0..self.put_off.ranges.len() {
            if self.budget == 0 {
                break;
            }
            let Some((table, range, is_partial)) = self.put_off.ranges.pop_front() else {
                break;
            };
            // Late rows go first.
            if self.has_late_rows() {
                self.put_off.ranges.push_back((table, range, is_partial));
                continue;
            }
            self.needs.clear();
            self.is_partial = is_partial;
            let is_filled = self.view(table, &range, self.now).is_some();
            self.is_partial = false;
            // Who asks again learns what is missing.
            if is_filled || self.needs.lacks_rows() {
                self.put_off.ended += 1;
            } else {
                self.put_off.ranges.push_back((table, range, is_partial));
            }
            self.needs.clear();
        }
    }

    /// What was worked on is gone.
    pub(crate) fn give_up_reads(&mut self) {
        if !self.put_off.is_empty() {
            self.put_off.ranges.clear();
            self.put_off.ended += 1;
        }
    }

    /// Counts what was visited.
    pub(crate) fn spend(&mut self, rows: usize) {
        self.budget = self.budget.saturating_sub(rows);
    }

    /// Does something that cannot be left half done.
    pub(crate) fn in_one_go<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let budget = std::mem::replace(&mut self.budget, usize::MAX);
        let done = run(self);
        self.budget = budget;
        done
    }
}
