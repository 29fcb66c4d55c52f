//! Deferred reads: a read that exceeds its budget keeps its partial work and is suspended. [`Engine::step`] does the
//! rest in steps, between other reads and writes; then the caller retries the read.
//!
//! ```text
//!  range ──► view ─┬─ all filled ────────────────► rows
//!                  └─ budget spent ─► Needs { steps }: the range is queued ◄── step: view continues, until all is filled
//!                                      └► retry when `ended_reads` has changed ──► rows
//! ```
//!
//! 1. Filled parts stay filled and are kept fresh, so each step continues where the last one ended.
//! 2. Several reads may wait for one range; the work is done once.
//! 3. Waiting reads are also retried when a range that is being filled is evicted. The retry queues the range again.

use std::collections::VecDeque;

use crate::base::key_range::KeyRange;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::evaluate::needs::Needs;
use crate::evaluate::partial::FillExtent;
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
    extent: FillExtent,
}

impl DeferredReads {
    /// Queues a range for a read. Returns what the read needs.
    pub fn add(&mut self, table: TableId, range: KeyRange, extent: FillExtent) -> Box<Needs> {
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

    /// Returns whether a range is queued.
    pub fn contains(&self, table: TableId, range: &KeyRange) -> bool {
        let is_this = |read: &DeferredRead| read.table == table && read.range == *range;
        self.ranges.iter().any(is_this)
    }

    /// Empties the queue after partial work was discarded, so that the waiting reads are retried.
    pub fn retry_all(&mut self) {
        if !self.ranges.is_empty() {
            self.ranges.clear();
            self.ended += 1;
        }
    }
}

impl Engine {
    /// Limits the source rows that a read visits before it is deferred, and the outputs of pending changes that it
    /// updates. The minimum is 1; `None`, the default, means no limit. The limit of `pull` and `snapshot` joins is
    /// eight times as high (see `transient_fill`).
    pub fn set_read_rows(&mut self, rows: Option<usize>) {
        self.step_limits.read_rows = rows.map(|rows| rows.max(1));
    }

    /// Number of deferred reads that have ended. Waiting reads are retried when it changes.
    pub fn ended_reads(&self) -> u64 {
        self.reads.deferred.ended
    }

    /// Number of source rows that fills have read.
    pub fn rows_read(&self) -> u64 {
        self.reads.rows_read
    }

    /// Continues the deferred reads, in turn.
    pub(crate) fn continue_deferred_reads(&mut self, rows_max: usize) {
        self.set_budget(Budget::limited_to(Some(rows_max)));
        for _ in 0..self.reads.deferred.ranges.len() {
            if self.budget.is_spent() {
                break;
            }
            let Some(read) = self.reads.deferred.ranges.pop_front() else {
                break;
            };
            // Expired rows must be removed first.
            if self.has_expired_rows() {
                self.reads.deferred.ranges.push_back(read);
                continue;
            }
            self.reads.needs.clear();
            let view = self.view_extent(read.table, &read.range, read.extent);
            // If rows are missing, the retry reports which.
            if view.is_some() || self.reads.needs.lacks_rows() {
                self.reads.deferred.ended += 1;
            } else {
                self.reads.deferred.ranges.push_back(read);
            }
            self.reads.needs.clear();
        }
    }
}
