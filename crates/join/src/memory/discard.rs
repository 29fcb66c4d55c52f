//! Drops filled ranges. A large range is dropped in steps, from its end.
//!
//! ```text
//!  range  t|ann| .. t|ann}                   the fill, with its nodes and updaters
//!         t|ann| .. t|ann|0700    the rest is dropped, and no longer part of the fill: a read fills it again
//!         t|ann| .. t|ann|0400    and so on, until few rows are left, which are dropped with the nodes
//! ```
//!
//! 1. Between steps, the rest of a fill is filled and fresh, and every change is applied to it.
//! 2. A fill that others were computed from is dropped after them.
//! 3. A dropped join is invisible immediately: no table lists it as a maker or a reader. Its fills are dropped in
//!    steps, and so are their pins on the fills that they were computed from.

use crate::base::pattern::Binding;
use crate::budget::{Budget, NODE_ROWS};
use crate::engine::Engine;
use crate::join::run::Run;
use crate::join::{Join, JoinId};

impl Engine {
    /// Drops a fill: its rows, nodes and updaters.
    pub(crate) fn discard(&mut self, join: &mut Join, number: u32) {
        let mut run = Run::for_fill(join, number, false, 0);
        let fill = join.fills.get(number);
        let (root, fixed, packed) = (fill.root, fill.fixed, fill.packed.clone());
        let mut binding = Binding::default();
        binding.unpack(fixed, &join.definition.slots, &packed);
        self.drop_node(join, &mut run, 0, root, &mut binding, false);
        join.tracked.mark_range_stale(&join.fills.get(number).range);
        let fill = join.fills.remove(number, &join.output.rows);
        join.output.remove_range(&fill.range);
    }

    /// Drops a fill or, if it has more rows than one step, that many rows from its end. Returns whether it is gone.
    pub(crate) fn discard_some(&mut self, join: &mut Join, number: u32) -> bool {
        if join.fills.get(number).unsettled().is_some() {
            self.reads.deferred.retry_all();
        }
        let rows_max = self.step_limits.step_rows.map(|rows| rows.max(1));
        let Some(cut) = rows_max.and_then(|rows| join.find_cut_key(number, rows)) else {
            self.discard(join, number);
            return true;
        };
        join.truncate_fill(number, cut);
        false
    }

    /// Drops fills of a join until the budget is spent. Returns whether all are gone.
    fn discard_fills_in_steps(&mut self, id: JoinId) -> bool {
        let is_empty = self.with_join(id, |engine, join| {
            while !engine.budget.is_spent()
                && let Some(number) = join.fills.status().first()
            {
                let before = join.output.rows.len();
                engine.discard_some(join, number);
                engine
                    .budget
                    .spend(NODE_ROWS + (before - join.output.rows.len()) as usize);
            }
            join.fills.len() == 0
        });
        is_empty.unwrap_or(true)
    }

    /// Drops about `rows_max` rows that other joins computed from a join's output, in preparation for dropping the
    /// join. Returns whether none is left; then, or if the join does not exist, [`Engine::drop_join`] takes little
    /// time.
    pub fn prepare_drop(&mut self, name: &str, rows_max: usize) -> bool {
        let Some(table) = self.joins.find_by_name(name).map(|join| join.table) else {
            return true;
        };
        self.set_budget(Budget::limited_to(Some(rows_max.max(1))));
        let mut downstream = self.lineage().downstream(table);
        downstream.retain(|&id| !self.discard_fills_in_steps(id));
        downstream.is_empty()
    }

    /// Frees the state of dropped joins, about `rows_max` rows.
    pub(crate) fn free_dropped(&mut self, rows_max: usize) {
        self.set_budget(Budget::limited_to(Some(rows_max)));
        while !self.budget.is_spent()
            && let Some(id) = self.joins.first_dropped()
        {
            if !self.discard_fills_in_steps(id) {
                return;
            }
            if self
                .joins
                .get(id)
                .is_some_and(|join| !join.nodes.backlog().is_empty())
            {
                // Writers wait for the changes in its queues, which no entry is left to receive.
                return;
            }
            let freed = self.joins.remove_first_dropped();
            for table in freed.map_or(Vec::new(), |join| join.tables) {
                self.release_replicas(table);
            }
        }
    }
}

impl Join {
    /// Returns the key at which to cut off the last rows of a fill, or `None` if the fill has at most `rows_max` rows.
    fn find_cut_key(&self, number: u32, rows_max: usize) -> Option<Box<[u8]>> {
        let range = &self.fills.get(number).range;
        let mut cursor = self.output.rows.cursor(&range.lo, &range.hi, true);
        for _ in 0..rows_max {
            cursor.next()?;
        }
        let (key, _) = cursor.current()?;
        // The ranks of a `top` group are counted from its start, so a group is not divided.
        let len = self.definition.shape.rank.map_or(Some(key.len()), |rank| {
            let output = &self.definition.shape.output;
            output.prefix_len(key, rank.element, &self.definition.slots)
        })?;
        (key[..len] > *range.lo).then(|| key[..len].into())
    }

    /// Drops the rows of a fill from a key on.
    fn truncate_fill(&mut self, number: u32, at: Box<[u8]>) {
        self.tracked.mark_range_stale(&self.fills.get(number).range);
        let removed = self.fills.truncate(number, at, &self.output.rows);
        self.output.remove_range(&removed);
        self.update_target(number);
    }
}
