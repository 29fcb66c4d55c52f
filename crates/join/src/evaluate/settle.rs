//! Settle: brings a filled range up to date before it is read.
//!
//! 1. First, the pending changes are applied to the fill's entries (see `maintain`).
//! 2. Then, added rows of checked sources are evaluated from their level on, and rows that were computed from removed
//!    ones are taken back. The order does not matter: each node records what it reflects.
//! 3. Then, unread rows of source ranges are read (see `unread`).
//! 4. Then, drained groups are computed again.
//!
//! The work of a read is limited (see `deferred`). When the budget is spent, the rest stays in the fill's record, and
//! the next read or step continues.

use crate::base::key_range::KeyRange;
use crate::base::pattern::Binding;
use crate::budget::NODE_ROWS;
use crate::engine::Engine;
use crate::join::combine::is_possible;
use crate::join::run::{RowSink, Run, Shortfall};
use crate::join::{Join, JoinId};
use crate::operators::output::Output;

impl Engine {
    /// Brings one fill up to date, as far as the budget allows. Returns `false` if work is left: a source range is
    /// missing or being filled, or the budget is spent.
    pub(crate) fn settle(&mut self, join: &mut Join, fill: u32, now: u64) -> bool {
        if !join.nodes.backlog().is_empty() {
            self.catch_up(join, fill);
        }
        if join.fills.get(fill).unsettled().is_none() {
            return true;
        }
        let records_effects = self.is_read(join.table) || !join.tracked.is_empty();
        let mut run = Run::for_fill(join, fill, records_effects, now);
        loop {
            self.apply_all_pending(join, &mut run, fill);
            if self.budget.is_spent() || !self.read_next_node(join, &mut run, fill) {
                break;
            }
        }
        let effects = std::mem::take(&mut run.effects);
        self.finish_effects(join, effects);
        let unsettled = join.mark_unsettled(fill);
        if unsettled.has_read_all() {
            for group in unsettled.drained.clone() {
                if !self.recompute_group(join, fill, &group, records_effects, now) {
                    // The group is too large for one step; the complete range is filled again, in steps.
                    self.discard(join, fill);
                    return false;
                }
            }
        }
        join.fills.settle(fill)
    }

    fn apply_all_pending(&mut self, join: &mut Join, run: &mut Run, fill: u32) {
        let mut skipped = None;
        while !self.budget.is_spent()
            && let Some(((node, packed), is_added)) =
                join.fills.take_pending(fill, skipped.as_ref())
        {
            if !self.apply_pending(join, run, node, &packed, is_added) {
                // Put it back immediately, because it must be dropped together with its node.
                join.record_pending(fill, node, &packed, is_added);
                skipped = Some((node, packed));
            }
        }
    }

    fn apply_pending(
        &mut self,
        join: &mut Join,
        run: &mut Run,
        node: u32,
        packed: &[u8],
        is_added: bool,
    ) -> bool {
        let inner = join.nodes.inner(node);
        let level = usize::from(inner.level);
        let fresh = join.source(level).pattern.slots & !inner.bound;
        let mut binding = Binding::default();
        binding.unpack(inner.bound, &join.definition.slots, &inner.packed);
        binding.unpack(fresh, &join.definition.slots, packed);
        if is_added {
            if !is_possible(join, run, &binding) {
                return true;
            }
            let Some(child) = self.evaluate(join, run, level + 1, &mut binding) else {
                return false;
            };
            join.nodes.add_child(node, packed, child);
        } else if let Some(child) = join.nodes.remove_child(node, packed) {
            self.budget.spend(NODE_ROWS);
            self.drop_node(join, run, level + 1, child, &mut binding, true);
        }
        true
    }

    /// Computes one group again. Returns `false` if that exceeds the budget and the fill can be discarded instead.
    fn recompute_group(
        &mut self,
        join: &mut Join,
        fill: u32,
        group: &[u8],
        records_effects: bool,
        now: u64,
    ) -> bool {
        let range = if join.definition.shape.rank.is_some() {
            KeyRange::prefix(group)
        } else {
            KeyRange::point(group)
        };
        let mut binding = Binding::default();
        let Some(mut run) = Run::without_storing(join, &range, &mut binding, now) else {
            return true;
        };
        run.sink = RowSink::Output(Output::default());
        if join.fills.get(fill).pins() == 0 {
            self.within_bounds(|engine| engine.evaluate(join, &mut run, 0, &mut binding));
        } else {
            let budget = self.budget.without_limit();
            self.with_budget(budget, |engine| {
                engine.evaluate(join, &mut run, 0, &mut binding)
            });
        }
        match run.shortfall {
            None => {}
            Some(Shortfall::TooMuch) => return false,
            Some(Shortfall::RangeMissing) => return true,
        }
        let RowSink::Output(mut taken) = run.sink else {
            unreachable!("invariant: it was set above")
        };
        join.output.replace_group(group, &mut taken);
        join.mark_unsettled(fill).drained.remove(group);
        let mut effects = crate::operators::output::Effects {
            is_recorded: records_effects,
            ..Default::default()
        };
        join.output
            .update_group_rows(&join.definition.shape, group, &mut effects);
        self.finish_effects(join, effects);
        true
    }

    /// Brings all fills of a join that other fills were computed from up to date, as far as the budget allows. Returns
    /// `false` if work is left, as in [`Engine::settle`].
    pub(crate) fn settle_pinned(&mut self, id: JoinId, now: u64) -> bool {
        let is_settled = self.with_join(id, |engine, join| {
            let mut is_settled = engine.finish_lists(join);
            let fills: Vec<u32> = join.fills.unsettled().iter().copied().collect();
            for fill in fills {
                is_settled &= engine.settle(join, fill, now);
            }
            is_settled
        });
        is_settled.unwrap_or(true)
    }
}
