//! Fill: computes a gap of an output by nested scans of the sources, and leaves an updater on each range it read.
//!
//! 1. Source ranges are filled before they are scanned, and pinned by the node that was computed from them.
//! 2. Work that cannot be done now is recorded with the fill, which is not read until it is done. Rows of a checked
//!    source below which a range is missing are *pending* (see `settle`); rows beyond the budget are *unread* (see
//!    `unread`). All missing ranges are requested together.
//! 3. A fill that is not maintained (`snapshot`, `pull`) is computed completely in one step, or not at all. If it
//!    exceeds the budget, it becomes a maintained fill for a while (see `transient_fill`).

use crate::base::key_range::{Flow, KeyRange};
use crate::base::pattern::Binding;
use crate::base::rows::Value;
use crate::budget::{Budget, NODE_ROWS};
use crate::engine::Engine;
use crate::evaluate::tree::is_pulled;
use crate::join::combine::{apply_combination, is_possible, row_matches};
use crate::join::fills::{Fill, NO_NODE};
use crate::join::run::{Run, Shortfall, unbind_rank};
use crate::join::{Join, TableId};
use crate::tables::scan::View;

impl Engine {
    /// Fills one gap, as far as the budget allows. Returns `false` if work is left: a source range is missing or being
    /// filled, or the budget is spent.
    pub(crate) fn fill(&mut self, join: &mut Join, gap: &KeyRange, now: u64) -> bool {
        let is_maintained = join.definition.is_maintained();
        match self.try_fill(join, gap, now, is_maintained, true) {
            Ok(is_settled) => is_settled,
            Err(Shortfall::RangeMissing) => false,
            Err(Shortfall::TooMuch) => {
                let is_maintained = self.subscribe_to_sources(join);
                self.try_fill(join, gap, now, is_maintained, false) == Ok(true)
            }
        }
    }

    /// Like [`Engine::fill`], for a transient fill of a `pull` join. The join must be subscribed to its sources.
    pub(crate) fn fill_transient(&mut self, join: &mut Join, gap: &KeyRange, now: u64) -> bool {
        self.try_fill(join, gap, now, true, false) == Ok(true)
    }

    /// Fills a gap. Returns whether it is settled. A fill that is not maintained is computed in one step; with
    /// `is_bounded`, it fails if that exceeds the budget.
    ///
    /// # Errors
    /// The reason why nothing was filled.
    fn try_fill(
        &mut self,
        join: &mut Join,
        gap: &KeyRange,
        now: u64,
        is_maintained: bool,
        is_bounded: bool,
    ) -> Result<bool, Shortfall> {
        let mut binding = Binding::default();
        let serial = self.memory.next_serial();
        let Some(number) = create_fill(join, gap, &mut binding, serial, now, self.time.ticks)
        else {
            if self.is_read(join.table) {
                // The gap cannot have rows, but a subscriber may be about to pin it, so it must not be filled in
                // another way later.
                let fill = Fill::new(gap.clone(), serial);
                let number = join.fills.insert(fill, &join.output.rows);
                self.register_fill(join.id, number, serial);
            }
            return Ok(true);
        };
        join.fills.get_mut(number).is_maintained = is_maintained;
        self.tables[join.table].pages.invalidate_if_stale(join);
        let mut run = Run::for_fill(join, number, false, now);
        let root = match run.leaves_nodes {
            true => self.evaluate(join, &mut run, 0, &mut binding),
            // Nothing would maintain the first part while the rest is computed.
            false if is_bounded => {
                self.within_bounds(|engine| engine.evaluate(join, &mut run, 0, &mut binding))
            }
            false => self.with_budget(Budget::atomic(), |engine| {
                engine.evaluate(join, &mut run, 0, &mut binding)
            }),
        };
        let Some(root) = root.filter(|_| run.leaves_nodes || run.shortfall.is_none()) else {
            self.discard(join, number);
            return Err(run.shortfall.unwrap_or(Shortfall::RangeMissing));
        };
        join.fills.get_mut(number).root = root;
        join.statistics.filled += 1;
        self.finish_effects(join, std::mem::take(&mut run.effects));
        join.update_target(number);
        self.register_fill(join.id, number, join.fills.get(number).serial);
        Ok(join.fills.get(number).unsettled().is_none())
    }

    /// Scans the source of one level within the binding, and evaluates the next level for each row. Returns the node it
    /// left ([`NO_NODE`] for none), or `None` if the range cannot be read now.
    pub(crate) fn evaluate(
        &mut self,
        join: &mut Join,
        run: &mut Run,
        level: usize,
        binding: &mut Binding,
    ) -> Option<u32> {
        let range = join
            .source(level)
            .pattern
            .range(binding, run.bounds.as_ref());
        let table = join.tables[level];
        let has_all_rows = self.has_replicas(table, &range);
        let view = self.view(table, &range, run.now).filter(|_| has_all_rows);
        let Some(view) = view else {
            run.fall_short(if !run.leaves_nodes && self.budget.is_spent() {
                Shortfall::TooMuch
            } else {
                Shortfall::RangeMissing
            });
            return None;
        };
        self.budget.spend(NODE_ROWS);
        let node = if run.leaves_nodes {
            self.create_node(join, run, level, binding, &range)
        } else {
            NO_NODE
        };
        if !run.leaves_nodes
            && level + 1 == join.last_level()
            && let Some(pairs) = self.compile_pair(join, run, level, binding)
        {
            let rows = self.evaluate_pair(join, run, binding, &range, pairs);
            self.budget.spend(rows);
            if self.budget.is_spent() {
                run.fall_short(Shortfall::TooMuch);
            }
            return Some(node);
        }
        if level == join.last_level() && run.leaves_nodes && is_pulled(join, node) {
            let fill = run.fill.expect("invariant: nodes belong to fills");
            join.fills.get_mut(fill).pulled.push(node);
        } else {
            self.read_rows(join, run, level, binding, &range, &view, node);
        }
        Some(node)
    }

    /// Reads rows of one level's source, as far as the budget allows. The unread rest is recorded with the node.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn read_rows(
        &mut self,
        join: &mut Join,
        run: &mut Run,
        level: usize,
        binding: &mut Binding,
        range: &KeyRange,
        view: &View,
        node: u32,
    ) {
        let unread = if level == join.last_level() {
            self.evaluate_last_level(join, run, level, binding, range, view)
        } else {
            self.evaluate_inner_level(join, run, level, binding, range, view, node)
        };
        if unread.is_some() && !run.leaves_nodes {
            run.fall_short(Shortfall::TooMuch);
        } else if let Some(from) = unread {
            let fill = run
                .fill
                .expect("invariant: only stored fills have a budget");
            join.record_unread(fill, level, node, from);
        }
    }

    /// Evaluates the last level: each row of the source completes an output row. Returns the key at which the unread
    /// rest begins.
    fn evaluate_last_level(
        &mut self,
        join: &mut Join,
        run: &mut Run,
        level: usize,
        binding: &mut Binding,
        range: &KeyRange,
        view: &View,
    ) -> Option<Box<[u8]>> {
        let is_value = join.order[level] == join.definition.value;
        let table = join.tables[level];
        let (rows_max, mut rows, mut unread) = (self.budget.left(), 0, None);
        self.scan(table, range, view, &mut |key, value| {
            if rows == rows_max {
                unread = Some(key.into());
                return Flow::Break(());
            }
            rows += 1;
            let mark = binding.mark();
            if row_matches(join, level, key, value, binding) {
                if is_value {
                    apply_combination(join, run, binding, key, Some(value), 1);
                } else if let Some((source_key, value)) = run.value.take() {
                    apply_combination(join, run, binding, &source_key, Some(&value), 1);
                    run.value = Some((source_key, value));
                }
            }
            binding.reset(mark);
            Flow::Continue(())
        });
        self.budget.spend(rows);
        self.reads.rows_read += rows as u64;
        unread
    }

    /// Evaluates an inner level: the next level is evaluated for each row of the source. Returns the key at which the
    /// unread rest begins.
    #[allow(clippy::too_many_arguments)]
    fn evaluate_inner_level(
        &mut self,
        join: &mut Join,
        run: &mut Run,
        level: usize,
        binding: &mut Binding,
        range: &KeyRange,
        view: &View,
        node: u32,
    ) -> Option<Box<[u8]>> {
        let is_value = join.order[level] == join.definition.value;
        let fresh = join.source(level).pattern.slots & !binding.bound;
        let mut found: Vec<u8> = Vec::new();
        let mut ends: Vec<u32> = Vec::new();
        let mut values: Vec<(Box<[u8]>, Value)> = Vec::new();
        // The rows that the budget covers if little is found below each.
        let rows_max = self.budget.left().div_ceil(NODE_ROWS + 1);
        let (mut rows, mut unread) = (0, None);
        self.scan(join.tables[level], range, view, &mut |key, value| {
            if rows == rows_max {
                unread = Some(key.into());
                return Flow::Break(());
            }
            rows += 1;
            let mark = binding.mark();
            if row_matches(join, level, key, value, binding) && is_possible(join, run, binding) {
                binding.pack(fresh, &join.definition.slots, &mut found);
                ends.push(found.len() as u32);
                if is_value {
                    values.push((key.into(), value.clone()));
                }
            }
            binding.reset(mark);
            Flow::Continue(())
        });
        self.budget.spend(rows);
        self.reads.rows_read += rows as u64;
        if run.leaves_nodes {
            join.nodes.reserve_children(node, ends.len());
        }
        let mut start = 0;
        for (number, &end) in ends.iter().enumerate() {
            let packed = &found[start..end as usize];
            start = end as usize;
            let mark = binding.mark();
            binding.unpack(fresh, &join.definition.slots, packed);
            if is_value {
                run.value = Some(values[number].clone());
            }
            if self.budget.is_spent() && !run.leaves_nodes {
                run.fall_short(Shortfall::TooMuch);
                break;
            }
            let child = if self.budget.is_spent() {
                None
            } else {
                self.evaluate(join, run, level + 1, binding)
            };
            match (run.fill, child) {
                (Some(_), Some(child)) if run.leaves_nodes => {
                    join.nodes.add_child(node, packed, child)
                }
                (Some(fill), None) if run.leaves_nodes => {
                    join.record_pending(fill, node, packed, true);
                }
                _ => {}
            }
            binding.reset(mark);
        }
        unread
    }

    /// Returns whether the table is a base table whose rows are all local.
    pub(crate) fn is_plain(&self, table: TableId) -> bool {
        let state = &self.tables[table];
        state.makers.is_empty() && state.supplied.is_none() && self.sharding.own.is_none()
    }
}

/// Creates the record of a fill. Returns `None` if the join cannot have rows in the gap.
fn create_fill(
    join: &mut Join,
    gap: &KeyRange,
    binding: &mut Binding,
    serial: u32,
    now: u64,
    opened: u64,
) -> Option<u32> {
    let definition = &join.definition;
    let constraint = definition
        .shape
        .output
        .constrain(gap, &definition.slots, binding)?;
    unbind_rank(join, binding);
    let mut prefix = Vec::new();
    let elements = definition.shape.output.write_prefix(binding, &mut prefix);
    let is_prefix = *gap == KeyRange::prefix(&prefix);
    join.split_for_fill(gap, &prefix, elements);
    let definition = &join.definition;
    let mut packed = Vec::new();
    binding.pack(binding.bound, &definition.slots, &mut packed);
    let mut fill = Fill::new(gap.clone(), serial);
    (fill.is_prefix, fill.prefix, fill.elements) = (is_prefix, prefix.into(), elements as u8);
    (fill.fixed, fill.packed, fill.bounds) = (binding.bound, packed.into(), constraint.bounds);
    (fill.filled_at, fill.opened) = (now, opened);
    Some(join.fills.insert(fill, &join.output.rows))
}
