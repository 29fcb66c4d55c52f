//! Forget: lets go of what was filled. A large range goes some rows at a time, from its end.
//!
//! ```text
//!  range  t|ann| .. t|ann}                   the fill's, which all its nodes and updaters belong to
//!         t|ann| .. t|ann|0700    gone, and no more of the fill: a read fills it again
//!         t|ann| .. t|ann|0400    gone …  until few rows are left, which go with the nodes
//! ```
//!
//! 1. What is left of a fill in between is filled and fresh as ever, and every change is applied to it.
//! 2. A fill that others were computed from goes after them.
//! 3. A join that is dropped is seen by nobody from then on: no table has it as a maker or a reader. Its fills go in steps, and so
//!    their pins on what they were computed from are taken back before that goes.

use crate::base::key_range::KeyRange;
use crate::base::pattern::Binding;
use crate::budget::{Budget, NODE_ROWS};
use crate::engine::Engine;
use crate::join::run::Run;
use crate::join::{Join, JoinId};

impl Engine {
    /// Forgets a fill: its rows, nodes and updaters.
    pub(crate) fn discard(&mut self, join: &mut Join, number: u32) {
        let mut run = Run::of_fill(join, number, false, 0);
        let fill = join.fills.get(number);
        let (root, fixed, packed) = (fill.root, fill.fixed, fill.packed.clone());
        let mut binding = Binding::default();
        binding.unpack(fixed, &join.definition.slots, &packed);
        self.drop_node(join, &mut run, 0, root, &mut binding, false);
        join.uncover(number);
        let fill = join.fills.remove(number);
        join.held_bytes -= fill.held_bytes();
        join.unsettled.remove(&number);
        join.output.remove_range(&fill.range);
        debug_assert!(
            join.fills.len() > 0 || join.held_bytes == 0,
            "what is counted is taken back"
        );
    }

    /// Forgets a fill or, of one with more rows than a step has, a step's from its end; says whether it is gone.
    pub(crate) fn discard_some(&mut self, join: &mut Join, number: u32) -> bool {
        if join.fills.get(number).unsettled.is_some() {
            self.reads.deferred.retry_all();
        }
        let rows_max = self.pace.step_rows.map(|rows| rows.max(1));
        let Some(cut) = rows_max.and_then(|rows| join.place_to_cut(number, rows)) else {
            self.discard(join, number);
            return true;
        };
        join.cut(number, cut);
        false
    }

    /// Forgets fills of a join while the budget lasts; says whether all are gone.
    fn discard_fills_in_steps(&mut self, id: JoinId) -> bool {
        let is_empty = self.with_join(id, |engine, join| {
            while !engine.budget.is_spent()
                && let Some(number) = join.status.first()
            {
                let before = join.output.rows.len();
                engine.discard_some(join, number);
                engine
                    .budget
                    .spend(NODE_ROWS + (before - join.output.rows.len()) as usize);
            }
            join.status.len() == 0
        });
        is_empty.unwrap_or(true)
    }

    /// Forgets what other joins computed from a join's output, about so many rows of it: it must be gone when the join is dropped.
    /// Says whether all is; then, or if there is no such join, [`Engine::drop_join`] takes little time.
    pub fn prepare_drop(&mut self, name: &str, rows_max: usize) -> bool {
        let Some(table) = self.joins.named(name).map(|join| join.table) else {
            return true;
        };
        self.set_budget(Budget::of(Some(rows_max.max(1))));
        let mut downstream = self.lineage().downstream(table);
        downstream.retain(|&id| !self.discard_fills_in_steps(id));
        downstream.is_empty()
    }

    /// Forgets what joins have left that were dropped, about so many rows of it.
    pub(crate) fn forget_dropped(&mut self, rows_max: usize) {
        self.set_budget(Budget::of(Some(rows_max)));
        while !self.budget.is_spent()
            && let Some(id) = self.joins.first_dropped()
        {
            if !self.discard_fills_in_steps(id) {
                return;
            }
            if self
                .joins
                .get(id)
                .is_some_and(|join| !join.lists_with_backlog.is_empty())
            {
                // Writers wait until what they changed has been seen by all; nobody is left to see it.
                return;
            }
            let gone = self.joins.remove_first_dropped();
            for table in gone.map_or(Vec::new(), |join| join.tables) {
                self.release_replicas(table);
            }
        }
    }
}

impl Join {
    /// From which key on the last rows of a fill go; nothing if it has no more than so many.
    fn place_to_cut(&self, number: u32, rows_max: usize) -> Option<Box<[u8]>> {
        let range = &self.fills.get(number).range;
        let mut cursor = self.output.rows.cursor(&range.lo, &range.hi, true);
        for _ in 0..rows_max {
            cursor.next()?;
        }
        let (key, _) = cursor.current()?;
        // The rows of a group of `top` are counted from its start.
        let len = self.definition.shape.rank.map_or(Some(key.len()), |rank| {
            let output = &self.definition.shape.output;
            output.prefix_len(key, rank.element, &self.definition.slots)
        })?;
        (key[..len] > *range.lo).then(|| key[..len].into())
    }

    /// Forgets the rows of a fill from a key on.
    fn cut(&mut self, number: u32, at: Box<[u8]>) {
        let marks = self.targets[number as usize];
        self.uncover(number);
        let fill = self.fills.get_mut(number);
        let gone = KeyRange {
            hi: std::mem::replace(&mut fill.range.hi, at.clone()),
            lo: at,
        };
        fill.is_prefix = false;
        if let Some(unsettled) = &mut fill.unsettled {
            unsettled.drained.retain(|group| *group < gone.lo);
        }
        self.output.remove_range(&gone);
        self.cover(number);
        self.targets[number as usize].keep_marks(&marks);
        self.aim(number);
    }
}
