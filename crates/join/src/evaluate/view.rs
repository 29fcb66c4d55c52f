//! View: prepares a range for reading. Gaps are filled, filled ranges are settled, and rows that are not stored (of
//! `pull` joins) are computed for this read. `tables::scan` then outputs the rows.

use crate::base::key_range::{Flow, KeyRange, successor};
use crate::base::pattern::Binding;
use crate::base::row_buffer::RowBuffer;
use crate::base::rows::Rows;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::evaluate::partial::FillExtent;
use crate::join::run::{RowSink, Run, Shortfall};
use crate::join::{Join, JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::propagate::auto::count_read;
use crate::tables::scan::View;

/// Number of status ranges in one group above which the group is filled as a whole.
const RANGES_MAX: usize = 4;
/// Maximum number of gaps that are filled separately although each fill scans the same source rows.
const GAPS_MAX: usize = 2;

impl Engine {
    /// Prepares a range of a table. Returns `None` if source ranges are missing, which are recorded, or if the budget
    /// is spent.
    pub(crate) fn view(&mut self, table: TableId, range: &KeyRange, now: u64) -> Option<View> {
        let mut view = View::default();
        let state = &mut self.tables[table];
        if let Some(supplied) = &mut state.supplied {
            let gaps = supplied.read(range);
            let is_ready = gaps.is_empty();
            self.reads.needs.external.extend(gaps);
            return is_ready.then_some(view);
        }
        let mut is_ready = true;
        for at in 0..self.tables[table].makers.len() {
            let maker = self.tables[table].makers[at];
            if !self.settle_upstream(maker, now) {
                is_ready = false;
                continue;
            }
            let is_prepared = self.with_join(maker, |engine, join| {
                engine.view_join(join, range, now, &mut view)
            });
            is_ready &= is_prepared.expect("invariant: joins form no cycle");
        }
        is_ready.then_some(view)
    }

    /// Prepares a range of one join. Rows that are not stored are added to the view.
    fn view_join(&mut self, join: &mut Join, range: &KeyRange, now: u64, view: &mut View) -> bool {
        let mode = join.definition.mode;
        if mode == JoinMode::Pull {
            return self.prepare_pull(join, range, now, view);
        }
        if !self.fill_and_settle(join, range, now) {
            return false;
        }
        if mode == JoinMode::Auto {
            let rows = self.collect_pulled_rows(join, range, now);
            if !rows.is_empty() {
                view.computed.push((join.id, rows));
            }
        }
        true
    }

    /// Like [`Engine::view`], with the given extent of fills.
    pub(crate) fn view_extent(
        &mut self,
        table: TableId,
        range: &KeyRange,
        extent: FillExtent,
    ) -> Option<View> {
        let before = std::mem::replace(&mut self.reads.extent, extent);
        let view = self.view(table, range, self.time.now);
        self.reads.extent = before;
        view
    }

    /// Settles the fills that a join was computed from, so that their changes reach it. The join must be in its slot of
    /// `joins`. Returns `false` if work is left.
    fn settle_upstream(&mut self, maker: JoinId, now: u64) -> bool {
        let upstream = |engine: &Self, at: usize| {
            engine
                .joins
                .get(maker)
                .and_then(|j| j.upstream.get(at).copied())
        };
        let (mut at, mut is_settled) = (0, true);
        while let Some(id) = upstream(self, at) {
            is_settled &= self.settle_pinned(id, now);
            at += 1;
        }
        is_settled
    }

    /// Fills the gaps of a range and settles its filled parts.
    fn fill_and_settle(&mut self, join: &mut Join, range: &KeyRange, now: u64) -> bool {
        if let Some(number) = join.covering(range)
            && !is_expired(join, number, now)
        {
            return self.record_read(join, number, now);
        }
        let range = match plan_fill(join, range) {
            Some(_) if self.reads.extent == FillExtent::Exact => widen_to_groups(join, range),
            Some(range) => range,
            // A group of `top` is always filled as a whole, even if it cannot have rows.
            None if self.is_read(join.table) => widen_to_groups(join, range),
            None => return true,
        };
        let mut is_ready = true;
        for number in join.fills.status().overlapping(&range.lo, &range.hi) {
            if is_expired(join, number, now) {
                self.discard(join, number);
            } else {
                is_ready &= self.record_read(join, number, now);
            }
        }
        let mut gaps = join.fills.status().gaps(&range);
        if gaps.len() > GAPS_MAX && scans_same_rows(join, &gaps[0], &range) {
            // Each gap would scan as much of the source as all of them together.
            for number in join.fills.status().overlapping(&range.lo, &range.hi) {
                if join.fills.get(number).pins() == 0 {
                    self.discard(join, number);
                }
            }
            gaps = join.fills.status().gaps(&range);
        }
        for gap in gaps {
            is_ready &= match join.definition.mode {
                JoinMode::Pull => self.fill_transient(join, &gap, now),
                _ => self.fill(join, &gap, now),
            };
        }
        is_ready
    }

    fn record_read(&mut self, join: &mut Join, number: u32, now: u64) -> bool {
        join.fills.target_mut(number).visit();
        let fill = join.fills.get_mut(number);
        count_read(&mut fill.reads, &mut fill.opened, self.time.ticks);
        if fill.unsettled().is_none() && join.nodes.backlog().is_empty() {
            // The group may have received its first row.
            if join.fills.target(number).group.is_none() {
                join.update_target(number);
            }
            return true;
        }
        self.settle(join, number, now)
    }

    /// Prepares rows of a `pull` join.
    fn prepare_pull(
        &mut self,
        join: &mut Join,
        range: &KeyRange,
        now: u64,
        view: &mut View,
    ) -> bool {
        if join.is_subscribed && is_fill_started(join, range) {
            self.retain_transient(join, range);
            view.transient.push(join.id);
            return self.fill_and_settle(join, range, now);
        }
        let mut computed = self.within_bounds(|engine| engine.compute(join, range, now));
        let is_bounded = self.step_limits.read_rows.is_some() && self.budget.is_resumable();
        if matches!(computed, Err(Shortfall::TooMuch)) && is_bounded {
            if self.subscribe_to_sources(join) {
                self.retain_transient(join, range);
                view.transient.push(join.id);
                return self.fill_and_settle(join, range, now);
            }
            computed =
                self.with_budget(Budget::atomic(), |engine| engine.compute(join, range, now));
        }
        match computed {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => view.computed.push((join.id, rows)),
            Err(Shortfall::RangeMissing) => return false,
            Err(Shortfall::TooMuch) => {
                // It also exceeds the budget of the computation that reads it.
                self.budget.exhaust();
                return false;
            }
        }
        true
    }

    /// Computes a range without storing it. The rows are in key order.
    fn compute(
        &mut self,
        join: &mut Join,
        range: &KeyRange,
        now: u64,
    ) -> Result<RowBuffer, Shortfall> {
        let mut binding = Binding::default();
        let widened = widen_to_groups(join, range);
        let Some(mut run) = Run::without_storing(join, &widened, &mut binding, now) else {
            return Ok(RowBuffer::default());
        };
        self.evaluate(join, &mut run, 0, &mut binding);
        if let Some(why) = run.shortfall {
            return Err(why);
        }
        let mut rows = match run.sink {
            RowSink::Copies(mut rows) => {
                rows.sort();
                rows
            }
            RowSink::Output(mut output) => {
                for (_, group) in std::mem::take(&mut run.effects.touched) {
                    output.update_group_rows(&join.definition.shape, &group, &mut run.effects);
                }
                collect_rows(&output.rows, range)
            }
        };
        if widened != *range {
            rows.retain(|key| range.contains(key));
        }
        Ok(rows)
    }
}

/// Returns whether a range of a `pull` join is filled or being filled, so that no part of it is computed separately.
fn is_fill_started(join: &Join, range: &KeyRange) -> bool {
    let is_begun = |number: &u32| join.fills.get(*number).unsettled().is_some();
    join.covering(range).is_some()
        || join
            .fills
            .status()
            .overlapping(&range.lo, &range.hi)
            .iter()
            .any(is_begun)
        || join.fills.status().gaps(range).is_empty()
}

fn is_expired(join: &Join, fill: u32, now: u64) -> bool {
    match join.definition.mode {
        JoinMode::Snapshot { millis } => {
            let fill = join.fills.get(fill);
            !fill.is_maintained && now.saturating_sub(fill.filled_at) > millis
        }
        _ => false,
    }
}

/// Returns the range to fill for a read of `range`, or `None` if the join cannot have rows there.
///
/// A group consists of the output keys with the same values of the slots that the range fixes. The range is extended to
/// the end of its group, because the next read most likely requests newer rows. It is extended to the end of the table
/// if that scans no more source rows. The complete group is filled if its next slot has no width, because such bounds
/// cannot be applied to the sources, or if the group is divided into many ranges.
pub(crate) fn plan_fill(join: &Join, range: &KeyRange) -> Option<KeyRange> {
    let definition = &join.definition;
    let mut binding = Binding::default();
    let constraint = definition
        .shape
        .output
        .constrain(range, &definition.slots, &mut binding)?;
    if definition.shape.rank.is_some() {
        return Some(widen_to_groups(join, range));
    }
    let is_many = |group_range: &KeyRange| {
        let ranges = join
            .fills
            .status()
            .overlapping(&group_range.lo, &group_range.hi);
        ranges.len() >= RANGES_MAX
    };
    if constraint.point {
        // The rows of a group are being read one by one; fill the complete group.
        let group_range = join.output.rows.head(&range.lo).map(KeyRange::prefix);
        return Some(group_range.filter(is_many).unwrap_or_else(|| range.clone()));
    }
    let mut prefix = Vec::new();
    definition.shape.output.write_prefix(&binding, &mut prefix);
    let group_range = KeyRange {
        lo: prefix.clone().into(),
        hi: successor(&prefix).into(),
    };
    if binding.bound == 0 && !scans_same_rows_to_end(join, range, &group_range) {
        return Some(range.clone());
    }
    if range.hi <= group_range.lo || group_range.hi <= range.lo {
        return None;
    }
    if range.lo < group_range.lo || range.hi > group_range.hi {
        // The range is part of a page of several joins. If this join's part equals its group, fill the group, so that a
        // read of a larger or smaller part of the page also finds it by the group.
        let has_all = range.lo <= group_range.lo && group_range.hi <= range.hi;
        // Until the page is recognized, or if its groups are parts of it, the head is the prefix of all its keys.
        let head = join.output.rows.head(&range.lo).unwrap_or(&range.lo);
        let group = Some(KeyRange::prefix(head)).filter(|group| {
            let mut wider = Binding::default();
            let output = &definition.shape.output;
            let found = output.constrain(group, &definition.slots, &mut wider);
            has_all && range.hi <= group.hi && found.is_some() && wider.bound == binding.bound
        });
        return Some(group.unwrap_or_else(|| range.clone()));
    }
    if binding.bound > 0 && (constraint.unsized_next || is_many(&group_range)) {
        return Some(group_range);
    }
    Some(KeyRange {
        lo: range.lo.clone(),
        hi: group_range.hi,
    })
}

/// Returns whether filling to the end of the table would scan the same rows of a join's only source. This is so if the
/// output begins with the time and the source with the author.
fn scans_same_rows_to_end(join: &Join, range: &KeyRange, group_range: &KeyRange) -> bool {
    if range.hi > group_range.hi {
        return false;
    }
    scans_same_rows(join, range, &KeyRange::new(&range.lo, &group_range.hi))
}

/// Returns whether a join scans the same source rows to fill either range.
fn scans_same_rows(join: &Join, one: &KeyRange, other: &KeyRange) -> bool {
    let scanned = scanned_range(join, one).map(|range| Some(range) == scanned_range(join, other));
    scanned.unwrap_or(false)
}

/// Returns the range of its source that a join scans to fill a range; `None` if it has several sources, or no rows
/// there.
fn scanned_range(join: &Join, range: &KeyRange) -> Option<KeyRange> {
    if join.last_level() > 0 {
        return None;
    }
    let (definition, mut binding) = (&join.definition, Binding::default());
    let output = &definition.shape.output;
    let found = output.constrain(range, &definition.slots, &mut binding)?;
    let source = &join.source(0).pattern;
    Some(source.range(&binding, found.bounds.as_ref()))
}

/// Extends a range to complete groups of `top`, because ranks are counted from the start of a group.
fn widen_to_groups(join: &Join, range: &KeyRange) -> KeyRange {
    let definition = &join.definition;
    let Some(rank) = definition.shape.rank else {
        return range.clone();
    };
    let group_len = |key: &[u8]| {
        definition
            .shape
            .output
            .prefix_len(key, rank.element, &definition.slots)
    };
    let lo = match group_len(&range.lo) {
        Some(len) => Box::from(&range.lo[..len]),
        None => range.lo.clone(),
    };
    let hi = match group_len(&range.hi) {
        Some(len) if len < range.hi.len() => successor(&range.hi[..len]).into(),
        _ => range.hi.clone(),
    };
    KeyRange { lo, hi }
}

fn collect_rows(rows: &Rows, range: &KeyRange) -> RowBuffer {
    let mut all = RowBuffer::default();
    let _ = rows.read(&range.lo, &range.hi, false, &mut |key, value| {
        all.push(key, value);
        Flow::Continue(())
    });
    all
}
