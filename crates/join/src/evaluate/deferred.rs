//! Deferred reads: a read that has more to compute than it may at a time leaves what it has done and is asked again
//! once [`Engine::step`] has done the rest, some at a time, while others read and write.
//!
//! ```text
//!  range ──► view ─┬─ all is filled ──────────────► rows
//!                  └─ the budget is spent ─► Needs { steps }: the range waits here ◄── step: view goes on, until all is filled
//!                                              └► asked again when `ended_reads` has changed ──► rows
//! ```
//!
//! 1. What has been filled stays filled and is kept fresh, so each step goes on where the last one ended.
//! 2. Many may wait for one range: it is worked on once.
//! 3. Who waits is called too when a range that is being filled is evicted; then it may be worked on anew, or as a whole.

use std::collections::VecDeque;

use crate::base::key_range::KeyRange;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::evaluate::needs::Needs;
use crate::evaluate::partial::Extent;
use crate::join::TableId;

#[derive(Debug, Default)]
pub(crate) struct DeferredReads {
    ranges: VecDeque<DeferredRead>,
    ended: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct DeferredRead {
    table: TableId,
    range: KeyRange,
    extent: Extent,
}

impl DeferredReads {
    /// A read waits for a range; says what it needs.
    pub fn add(&mut self, table: TableId, range: KeyRange, extent: Extent) -> Box<Needs> {
        let new = DeferredRead {
            table,
            range,
            extent,
        };
        if !self.ranges.contains(&new) {
            self.ranges.push_back(new);
        }
        Needs::steps(self.ended)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether some wait for a range.
    pub fn has(&self, table: TableId, range: &KeyRange) -> bool {
        let is_this = |read: &DeferredRead| read.table == table && read.range == *range;
        self.ranges.iter().any(is_this)
    }

    /// What was worked on is gone: those who wait may ask again.
    pub fn retry_all(&mut self) {
        if !self.ranges.is_empty() {
            self.ranges.clear();
            self.ended += 1;
        }
    }
}

impl Engine {
    /// How many source rows (and as many outputs of changes that wait) a read may visit before it is deferred, one at the
    /// least; `None`, as at first, for any number. What a `pull` join computes, and a `snapshot`, may take eight times as many in one go
    /// before it is (see `transient_fill`).
    pub fn set_read_rows(&mut self, rows: Option<usize>) {
        self.pace.read_rows = rows.map(|rows| rows.max(1));
    }

    /// How many reads that were deferred have ended so far: those who wait may ask again when it changes.
    pub fn ended_reads(&self) -> u64 {
        self.reads.deferred.ended
    }

    /// How many source rows were read so far to compute what was asked for.
    pub fn rows_read(&self) -> u64 {
        self.reads.rows_read
    }

    /// Works on the ranges that wait, in turn.
    pub(crate) fn go_on_with_reads(&mut self, rows_max: usize) {
        self.set_budget(Budget::of(Some(rows_max)));
        for _ in 0..self.reads.deferred.ranges.len() {
            if self.budget.is_spent() {
                break;
            }
            let Some(read) = self.reads.deferred.ranges.pop_front() else {
                break;
            };
            // Late rows go first.
            if self.has_late_rows() {
                self.reads.deferred.ranges.push_back(read);
                continue;
            }
            self.reads.needs.clear();
            let view = self.view_extent(read.table, &read.range, read.extent);
            // Who asks again learns what is missing.
            if view.is_some() || self.reads.needs.lacks_rows() {
                self.reads.deferred.ended += 1;
            } else {
                self.reads.deferred.ranges.push_back(read);
            }
            self.reads.needs.clear();
        }
    }
}
