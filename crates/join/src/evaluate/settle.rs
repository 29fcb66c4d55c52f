//! Settle: brings a filled range up to date before it is read.
//!
//! 1. First the fill's entries see the changes that still wait (see `maintain`).
//! 2. Then rows of checked sources that came are evaluated from their level on, and what was computed from rows that
//!    went is taken back. The order does not matter: each node knows what it reflects.
//! 3. Then what has yet to be read of source ranges is read (see `unread`).
//! 4. Then groups that were drained are read again.
//!
//! What a read may visit is bounded (see `deferred`). Where it ends, what is left stays in the fill's record, and the next read
//! or step goes on with it.

use std::ops::Bound;

use crate::base::key_range::KeyRange;
use crate::base::pattern::Binding;
use crate::budget::NODE_ROWS;
use crate::engine::Engine;
use crate::evaluate::tree::add_child;
use crate::join::combine::is_possible;
use crate::join::run::{Run, Shortfall, Taken};
use crate::join::{Join, JoinId, pending_bytes};
use crate::operators::output::Output;

/// A node, and the slots that a row of its source binds.
type Slot = (u32, Box<[u8]>);

impl Engine {
    /// Brings one fill up to date, as far as the budget goes. On `false` something is left: a source range is missing or being
    /// filled, or the budget is spent.
    pub(crate) fn settle(&mut self, join: &mut Join, fill: u32, now: u64) -> bool {
        if !join.lists_with_backlog.is_empty() {
            self.catch_up(join, fill);
        }
        if join.fills.get(fill).unsettled.is_none() {
            return true;
        }
        let wanted = self.is_read(join.table) || !join.tracked.is_empty();
        let mut run = Run::of_fill(join, fill, wanted, now);
        loop {
            self.apply_all_pending(join, &mut run, fill);
            if self.budget.is_spent() || !self.read_on(join, &mut run, fill) {
                break;
            }
        }
        let effects = std::mem::take(&mut run.effects);
        self.conclude(join, effects);
        let unsettled = join.unsettle(fill);
        if unsettled.pending.is_empty() && unsettled.unread.is_empty() {
            for group in unsettled.drained.clone() {
                if !self.read_again(join, fill, &group, wanted, now) {
                    // Too much to be read at once: all of it is filled anew, in steps.
                    self.discard(join, fill);
                    return false;
                }
            }
        }
        let is_settled = join.unsettle(fill).is_empty();
        if is_settled {
            join.settled(fill);
        }
        is_settled
    }

    fn apply_all_pending(&mut self, join: &mut Join, run: &mut Run, fill: u32) {
        let mut kept = None;
        while !self.budget.is_spent()
            && let Some(((node, packed), came)) = next_pending(join, fill, kept.as_ref())
        {
            if !self.apply_pending(join, run, node, &packed, came) {
                // It is put back at once: it goes if its node does.
                join.note_pending(fill, node, &packed, came);
                kept = Some((node, packed));
            }
        }
    }

    fn apply_pending(
        &mut self,
        join: &mut Join,
        run: &mut Run,
        node: u32,
        packed: &[u8],
        came: bool,
    ) -> bool {
        let inner = join.inner.get(node);
        let level = usize::from(inner.level);
        let fresh = join.source(level).pattern.slots & !inner.bound;
        let mut binding = Binding::default();
        binding.unpack(inner.bound, &join.definition.slots, &inner.packed);
        binding.unpack(fresh, &join.definition.slots, packed);
        if came {
            if !is_possible(join, run, &binding) {
                return true;
            }
            let Some(child) = self.evaluate(join, run, level + 1, &mut binding) else {
                return false;
            };
            add_child(join, node, packed, child);
        } else if let Some((child, freed)) = join.inner.get_mut(node).children.remove(packed) {
            join.held_bytes -= freed;
            self.budget.spend(NODE_ROWS);
            self.drop_node(join, run, level + 1, child, &mut binding, true);
        }
        true
    }

    /// Computes one group anew. `false` if that is too much at once, and the fill can go instead.
    fn read_again(
        &mut self,
        join: &mut Join,
        fill: u32,
        group: &[u8],
        wanted: bool,
        now: u64,
    ) -> bool {
        let range = if join.definition.shape.rank.is_some() {
            KeyRange::prefix(group)
        } else {
            KeyRange::point(group)
        };
        let mut binding = Binding::default();
        let Some(mut run) = Run::taking(join, &range, &mut binding, now) else {
            return true;
        };
        run.taken = Taken::Output(Output::default());
        if join.fills.get(fill).pins == 0 {
            self.within_bounds(|engine| engine.evaluate(join, &mut run, 0, &mut binding));
        } else {
            let budget = self.budget.lifted();
            self.with_budget(budget, |engine| {
                engine.evaluate(join, &mut run, 0, &mut binding)
            });
        }
        match run.shortfall {
            None => {}
            Some(Shortfall::TooMuch) => return false,
            Some(Shortfall::RangeMissing) => return true,
        }
        let Taken::Output(mut taken) = run.taken else {
            unreachable!("invariant: it was set above")
        };
        join.output.take_group(group, &mut taken);
        join.unsettle(fill).drained.remove(group);
        let mut effects = crate::operators::output::Effects {
            wanted,
            ..Default::default()
        };
        join.output
            .show(&join.definition.shape, group, &mut effects);
        self.conclude(join, effects);
        true
    }

    /// Brings all that others were computed from up to date, in one join, as far as the budget goes. On `false` something is
    /// left, as in [`Engine::settle`].
    pub(crate) fn settle_pinned(&mut self, id: JoinId, now: u64) -> bool {
        let is_settled = self.with_join(id, |engine, join| {
            let mut is_settled = engine.finish_lists(join);
            let fills: Vec<u32> = join.unsettled.iter().copied().collect();
            for fill in fills {
                is_settled &= engine.settle(join, fill, now);
            }
            is_settled
        });
        is_settled.unwrap_or(true)
    }
}

/// Takes out the first pending row, or the first one after `kept`.
fn next_pending(join: &mut Join, fill: u32, kept: Option<&Slot>) -> Option<(Slot, bool)> {
    let unsettled = join.fills.get_mut(fill).unsettled.as_mut()?;
    let next = match kept {
        None => unsettled.pending.pop_first()?,
        Some(kept) => {
            let after = (Bound::Excluded(kept), Bound::Unbounded);
            let slot = unsettled.pending.range(after).next()?.0.clone();
            unsettled.pending.remove_entry(&slot)?
        }
    };
    join.held_bytes -= pending_bytes(&next.0.1);
    Some(next)
}
