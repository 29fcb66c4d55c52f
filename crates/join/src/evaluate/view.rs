//! View: prepares a range for reading. Gaps are filled, filled ranges are settled, and rows that are not stored (of
//! `pull` joins) are computed for this read. `tables::scan` then outputs the rows.

use crate::base::gathered::Gathered;
use crate::base::key_range::{Flow, KeyRange, successor};
use crate::base::pattern::Binding;
use crate::base::rows::Rows;
use crate::budget::Budget;
use crate::engine::Engine;
use crate::evaluate::partial::Extent;
use crate::join::run::{Run, Shortfall, Taken};
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
            let is_here = gaps.is_empty();
            self.reads.needs.elsewhere.extend(gaps);
            return is_here.then_some(view);
        }
        let mut is_here = true;
        for at in 0..self.tables[table].makers.len() {
            let maker = self.tables[table].makers[at];
            if !self.settle_upstream(maker, now) {
                is_here = false;
                continue;
            }
            let is_its = self.with_join(maker, |engine, join| {
                engine.view_join(join, range, now, &mut view)
            });
            is_here &= is_its.expect("invariant: joins form no cycle");
        }
        is_here.then_some(view)
    }

    /// Prepares a range of one join. Rows that are not stored are added to the view.
    fn view_join(&mut self, join: &mut Join, range: &KeyRange, now: u64, view: &mut View) -> bool {
        let mode = join.definition.mode;
        if mode == JoinMode::Pull {
            return self.pull(join, range, now, view);
        }
        if !self.ensure(join, range, now) {
            return false;
        }
        if mode == JoinMode::Auto {
            let rows = self.pulled_rows(join, range, now);
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
        extent: Extent,
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
    fn ensure(&mut self, join: &mut Join, range: &KeyRange, now: u64) -> bool {
        if let Some(number) = join.covering(range)
            && !is_expired(join, number, now)
        {
            return self.touch(join, number, now);
        }
        let range = match fillable(join, range) {
            Some(_) if self.reads.extent == Extent::Exact => widened_to_groups(join, range),
            Some(range) => range,
            // A group of `top` is always filled as a whole, even if it cannot have rows.
            None if self.is_read(join.table) => widened_to_groups(join, range),
            None => return true,
        };
        let mut is_here = true;
        for number in join.status.overlapping(&range.lo, &range.hi) {
            if is_expired(join, number, now) {
                self.discard(join, number);
            } else {
                is_here &= self.touch(join, number, now);
            }
        }
        let mut gaps = join.status.gaps(&range);
        if gaps.len() > GAPS_MAX && is_scanned_alike(join, &gaps[0], &range) {
            // Each gap would scan as much of the source as all of them together.
            for number in join.status.overlapping(&range.lo, &range.hi) {
                if join.fills.get(number).pins == 0 {
                    self.discard(join, number);
                }
            }
            gaps = join.status.gaps(&range);
        }
        for gap in gaps {
            is_here &= match join.definition.mode {
                JoinMode::Pull => self.fill_kept(join, &gap, now),
                _ => self.fill(join, &gap, now),
            };
        }
        is_here
    }

    fn touch(&mut self, join: &mut Join, number: u32, now: u64) -> bool {
        join.targets[number as usize].visit();
        let fill = join.fills.get_mut(number);
        count_read(&mut fill.reads, &mut fill.opened, self.time.ticks);
        if fill.unsettled.is_none() && join.lists_with_backlog.is_empty() {
            // The group may have received its first row.
            if join.targets[number as usize].group.is_none() {
                join.aim(number);
            }
            return true;
        }
        self.settle(join, number, now)
    }

    /// Prepares rows of a `pull` join.
    fn pull(&mut self, join: &mut Join, range: &KeyRange, now: u64, view: &mut View) -> bool {
        if join.is_subscribed && is_under_way(join, range) {
            self.keep_transient(join, range);
            view.transient.push(join.id);
            return self.ensure(join, range, now);
        }
        let mut computed = self.within_bounds(|engine| engine.compute(join, range, now));
        let is_bounded = self.pace.read_rows.is_some() && self.budget.is_resumable();
        if matches!(computed, Err(Shortfall::TooMuch)) && is_bounded {
            if self.subscribe_to_sources(join) {
                self.keep_transient(join, range);
                view.transient.push(join.id);
                return self.ensure(join, range, now);
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
    ) -> Result<Gathered, Shortfall> {
        let mut binding = Binding::default();
        let widened = widened_to_groups(join, range);
        let Some(mut run) = Run::taking(join, &widened, &mut binding, now) else {
            return Ok(Gathered::default());
        };
        self.evaluate(join, &mut run, 0, &mut binding);
        if let Some(why) = run.shortfall {
            return Err(why);
        }
        let mut rows = match run.taken {
            Taken::Copies(mut rows) => {
                rows.sort();
                rows
            }
            Taken::Output(mut output) => {
                for (_, group) in std::mem::take(&mut run.effects.touched) {
                    output.show(&join.definition.shape, &group, &mut run.effects);
                }
                all_rows(&output.rows, range)
            }
        };
        if widened != *range {
            rows.retain(|key| range.contains(key));
        }
        Ok(rows)
    }
}

/// Returns whether a range of a `pull` join is filled or being filled, so that no part of it is computed separately.
fn is_under_way(join: &Join, range: &KeyRange) -> bool {
    let is_begun = |number: &u32| join.fills.get(*number).unsettled.is_some();
    join.covering(range).is_some()
        || join
            .status
            .overlapping(&range.lo, &range.hi)
            .iter()
            .any(is_begun)
        || join.status.gaps(range).is_empty()
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
pub(crate) fn fillable(join: &Join, range: &KeyRange) -> Option<KeyRange> {
    let definition = &join.definition;
    let mut binding = Binding::default();
    let constraint = definition
        .shape
        .output
        .constrain(range, &definition.slots, &mut binding)?;
    if definition.shape.rank.is_some() {
        return Some(widened_to_groups(join, range));
    }
    let is_many = |whole: &KeyRange| {
        let ranges = join.status.overlapping(&whole.lo, &whole.hi);
        ranges.len() >= RANGES_MAX
    };
    if constraint.point {
        // The rows of a group are being read one by one; fill the complete group.
        let whole = join.output.rows.head(&range.lo).map(KeyRange::prefix);
        return Some(whole.filter(is_many).unwrap_or_else(|| range.clone()));
    }
    let mut prefix = Vec::new();
    definition.shape.output.write_prefix(&binding, &mut prefix);
    let whole = KeyRange {
        lo: prefix.clone().into(),
        hi: successor(&prefix).into(),
    };
    if binding.bound == 0 && !is_scanned_whole(join, range, &whole) {
        return Some(range.clone());
    }
    if range.hi <= whole.lo || whole.hi <= range.lo {
        return None;
    }
    if range.lo < whole.lo || range.hi > whole.hi {
        // The range is part of a page of several joins. If this join's part equals its group, fill the group, so that a
        // read of a larger or smaller part of the page also finds it by the group.
        let has_all = range.lo <= whole.lo && whole.hi <= range.hi;
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
    if binding.bound > 0 && (constraint.unsized_next || is_many(&whole)) {
        return Some(whole);
    }
    Some(KeyRange {
        lo: range.lo.clone(),
        hi: whole.hi,
    })
}

/// Returns whether filling to the end of the table would scan the same rows of a join's only source. This is so if the output
/// begins with the time and the source with the author.
fn is_scanned_whole(join: &Join, range: &KeyRange, whole: &KeyRange) -> bool {
    if range.hi > whole.hi {
        return false;
    }
    is_scanned_alike(join, range, &KeyRange::new(&range.lo, &whole.hi))
}

/// Returns whether a join scans the same source rows to fill either range.
fn is_scanned_alike(join: &Join, one: &KeyRange, other: &KeyRange) -> bool {
    let scanned = scanned(join, one).map(|range| Some(range) == scanned(join, other));
    scanned.unwrap_or(false)
}

/// Returns the range of its source that a join scans to fill a range; `None` if it has several sources, or no rows
/// there.
fn scanned(join: &Join, range: &KeyRange) -> Option<KeyRange> {
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
fn widened_to_groups(join: &Join, range: &KeyRange) -> KeyRange {
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

fn all_rows(rows: &Rows, range: &KeyRange) -> Gathered {
    let mut all = Gathered::default();
    let _ = rows.read(&range.lo, &range.hi, false, &mut |key, value| {
        all.push(key, value);
        Flow::Continue(())
    });
    all
}
