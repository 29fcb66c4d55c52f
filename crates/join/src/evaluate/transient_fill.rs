//! Transient fills: if computing a `pull` or `snapshot` join exceeds the budget, its range is filled in steps and
//! maintained like that of a `push` join, and dropped after it was output.
//!
//! ```text
//!  view ──► compute ──► all rows ────────────────────────────────► rows
//!              └ too much ──► filled in steps, maintained ───────► rows ──► dropped in steps (a snapshot is kept as usual)
//! ```
//!
//! 1. A reply reflects the moment at which it is sent, as if it had been computed then.
//! 2. A join is computed in one step, whatever the work, if its sources do not report their changes, or if it checks
//!    rows of its value's source individually.
//! 3. A range is dropped only after it was output and while no long read holds it. If it is read again before it is
//!    completely dropped, the rest is kept. Filling and dropping therefore never alternate endlessly.

use std::collections::VecDeque;

use crate::base::key_range::KeyRange;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::join::{Join, JoinId};
use crate::language::grammar::JoinMode;

/// Transient fills whose rows were output. The engine drops them next.
#[derive(Default)]
pub(crate) struct TransientFills(VecDeque<TransientFill>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct TransientFill {
    join: JoinId,
    number: u32,
    serial: u32,
}

impl TransientFills {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Engine {
    /// Subscribes a join to the changes of its sources, so that it can be filled in steps. Returns `false` if a source
    /// does not report its changes.
    pub(crate) fn subscribe_to_sources(&mut self, join: &mut Join) -> bool {
        // Maintenance requires the value's source at the last level.
        if !self.budget.is_resumable() || join.order[join.last_level()] != join.definition.value {
            return false;
        }
        let passes_changes_on = |join: &Join| join.definition.mode == JoinMode::Push;
        for &table in &join.tables {
            let mut makers = self.tables[table].makers.iter();
            if !makers.all(|&maker| self.joins.get(maker).is_some_and(passes_changes_on)) {
                return false;
            }
        }
        if !join.is_subscribed {
            join.is_subscribed = true;
            for (level, &table) in join.tables.iter().enumerate() {
                let readers = &mut self.tables[table].readers;
                readers.push((join.id, level as u8));
            }
        }
        true
    }

    /// Takes a range that is read again out of the queue of ranges to drop. It is queued again after the read.
    pub(crate) fn retain_transient(&mut self, join: &Join, range: &KeyRange) {
        if self.reads.transient.is_empty() {
            return;
        }
        let numbers = join.fills.status().overlapping(&range.lo, &range.hi);
        let fills = &mut self.reads.transient.0;
        fills.retain(|fill| fill.join != join.id || !numbers.contains(&fill.number));
    }

    /// Queues ranges of `pull` joins that were output, to be dropped.
    pub(crate) fn queue_transient(&mut self, makers: &[JoinId], range: &KeyRange) {
        for &maker in makers {
            let Some(join) = self.joins.get(maker) else {
                continue;
            };
            for number in join.fills.status().overlapping(&range.lo, &range.hi) {
                let fill = TransientFill {
                    join: maker,
                    number,
                    serial: join.fills.get(number).serial,
                };
                if !self.reads.transient.0.contains(&fill) {
                    self.reads.transient.0.push_back(fill);
                }
            }
        }
    }

    /// Drops queued ranges, about `rows_max` rows. Returns whether more can be dropped now.
    pub(crate) fn drop_transient(&mut self, rows_max: usize) -> bool {
        self.set_budget(Budget::limited_to(Some(rows_max)));
        for _ in 0..self.reads.transient.0.len() {
            let Some(fill) = self.reads.transient.0.pop_front() else {
                break;
            };
            let TransientFill { number, serial, .. } = fill;
            let is_gone = self.with_join(fill.join, |engine, join| {
                let is_held = join.output.rows.has_snapshots();
                let is_current = join.fills.is_current(number, serial);
                let mut is_gone = !is_current || join.fills.get(number).pins() > 0;
                while !is_gone && !is_held && !engine.budget.is_spent() {
                    let before = join.output.rows.len();
                    is_gone = engine.discard_some(join, number);
                    let visited = 1 + (before - join.output.rows.len()) as usize;
                    engine.budget.spend(visited);
                }
                is_gone
            });
            if is_gone == Some(false) {
                self.reads.transient.0.push_back(fill);
            }
        }
        self.budget.is_spent() && !self.reads.transient.is_empty()
    }
}
