//! Reads of a row, of a range, and of the number of rows in a range.
//!
//! ```text
//!  range ──► find_group: one filled and fresh range, found by its group ──► rows
//!     ├────► base rows that are all present ────────────────────────────► rows
//!     ├────► find_page: a page of several joins (see `pages`) ──────────► rows
//!     └────► view (fill, settle, compute) ──► output_rows ──► rows
//! ```
//!
//! The rest of a long reply is read later (see `range_reader`).

use std::ops::ControlFlow;

use crate::base::key_range::{EachRow, Flow, KeyRange, is_successor};
use crate::base::pattern::Binding;
use crate::base::rows::{GroupId, Rows};
use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::Error;
use crate::evaluate::needs::ReadOutcome;
use crate::evaluate::partial::FillExtent;
use crate::evaluate::range_reader::RangeReader;
use crate::join::{Join, JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::propagate::auto::count_read;
use crate::tables::scan::{Limits, View};

/// The outcome of a request for an engine's own base rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnRowsOutcome {
    /// The rows were output.
    Complete,
    /// No row was output: removing the expired rows of the range takes several steps. Retry after the next step.
    ExpireFirst,
}

/// The result of a read besides its rows.
#[derive(Default)]
struct ReadReport {
    /// The error of the first omitted row, an aggregate of values that are not numbers.
    omission: Option<Error>,
    /// The view that was made for the read. `None` if the rows were filled and settled already.
    prepared: Option<PreparedView>,
}

/// A range that a read has filled and settled. The next [`Engine::make_room`] may evict it.
pub(crate) struct PreparedView {
    pub view: View,
    pub range: KeyRange,
}

impl Engine {
    /// Passes the value of a base or computed row to `each`.
    ///
    /// # Errors
    /// The key does not name a table, or the row aggregates values that are not numbers.
    pub fn get(
        &mut self,
        key: &[u8],
        now: u64,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<ReadOutcome, Error> {
        self.begin(now);
        if let Some(table) = self.tables.of_key(key)
            && self.has_only_base_rows(table)
        {
            if let Some(value) = self.tables[table].rows.get(key) {
                each(value);
            }
            return Ok(ReadOutcome::Done(()));
        }
        let mut hi = key.to_vec();
        hi.push(0);
        let (limits, mut notes) = (Limits::default(), ReadReport::default());
        let mut give = |_: &[u8], value: &[u8]| {
            each(value);
            ControlFlow::Continue(())
        };
        let outcome = self.read_after_begin(key, &hi, limits, &mut give, &mut notes)?;
        self.evict_if_prepared(notes.prepared.is_some());
        notes.omission.map_or(Ok(outcome), Err)
    }

    /// Returns the value that a join's `else` clause defines for an absent row with this key.
    pub fn else_value(&self, key: &[u8]) -> Option<&[u8]> {
        let table = self.tables.of_key(key)?;
        let makers = self.tables[table].makers.iter();
        let mut joins = makers.filter_map(|&maker| self.joins.get(maker));
        joins.find_map(|join| {
            let definition = &join.definition;
            let otherwise = definition.else_value.as_deref()?;
            let matches =
                definition
                    .shape
                    .output
                    .matches(key, &definition.slots, &mut Binding::default());
            matches.then_some(otherwise)
        })
    }

    /// Passes the rows of a range of one table, base or computed, to `each` in key order, until it breaks. An aggregate
    /// of values that are not numbers is omitted and counted ([`JoinInfo::left_out`](crate::JoinInfo)).
    ///
    /// # Errors
    /// The range is in no table, or in several.
    pub fn range(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        now: u64,
        each: &mut EachRow<'_>,
    ) -> Result<ReadOutcome, Error> {
        let mut notes = ReadReport::default();
        let outcome = self.read(lo, hi, limits, now, each, &mut notes)?;
        self.evict_if_prepared(notes.prepared.is_some());
        Ok(outcome)
    }

    /// Like [`Engine::range`], for a reply that is output in parts: the rows after the one at which `each` breaks are
    /// held as they are now, for [`Engine::read_more`]. `None`: no rows are left.
    ///
    /// # Errors
    /// As [`Engine::range`].
    pub fn begin_range(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        now: u64,
        mut each: impl FnMut(&[u8], &[u8]) -> Flow,
    ) -> Result<ReadOutcome<Option<RangeReader>>, Error> {
        let (mut notes, mut rows, mut last) = (ReadReport::default(), 0, None);
        let mut give = |key: &[u8], value: &[u8]| {
            rows += 1;
            let flow = each(key, value);
            if flow.is_break() && limits.limit != Some(rows) {
                last = Some(key.to_vec());
            }
            flow
        };
        let outcome = self.read(lo, hi, limits, now, &mut give, &mut notes)?;
        let limit = limits.limit.map(|limit| limit - rows);
        let is_prepared = notes.prepared.is_some();
        let open_rest = |last: Vec<u8>| {
            let limits = Limits { limit, ..limits };
            let rest = if limits.reverse {
                KeyRange::new(lo, &last)
            } else {
                KeyRange::new(&KeyRange::point(&last).hi, hi)
            };
            self.open_reader(rest, limits, notes.prepared)
        };
        // The rest must be held before eviction can remove it.
        let rest = outcome.map(|()| last.map(open_rest));
        self.evict_if_prepared(is_prepared);
        Ok(rest)
    }

    /// Holds a range as it is now, for reads in parts ([`Engine::read_more`]).
    ///
    /// # Errors
    /// As [`Engine::range`].
    pub fn open_range(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        now: u64,
    ) -> Result<ReadOutcome<RangeReader>, Error> {
        let mut notes = ReadReport::default();
        let mut none = |_: &[u8], _: &[u8]| ControlFlow::Break(());
        let outcome = self.read(lo, hi, limits, now, &mut none, &mut notes)?;
        let is_prepared = notes.prepared.is_some();
        let reading =
            outcome.map(|()| self.open_reader(KeyRange::new(lo, hi), limits, notes.prepared));
        self.evict_if_prepared(is_prepared);
        Ok(reading)
    }

    /// Evicts after a read that has filled or settled something. Other reads use no memory.
    fn evict_if_prepared(&mut self, is_prepared: bool) {
        if is_prepared {
            self.make_room();
        }
    }

    /// Outputs at most `rows_max` of this engine's own base rows, for another engine. The owner has all of them, so the
    /// request needs nothing else and cannot fail.
    pub(crate) fn read_own_rows(
        &mut self,
        range: &KeyRange,
        rows_max: u64,
        now: u64,
        each: &mut EachRow<'_>,
    ) -> OwnRowsOutcome {
        self.begin(now);
        let Some(table) = self.tables.of_key(&range.lo) else {
            return OwnRowsOutcome::Complete;
        };
        if !self.tables[table].makers.is_empty() {
            // A join now computes the table, so it has no base rows. The requester will learn of the join separately.
            return OwnRowsOutcome::Complete;
        }
        let expired_max = self.step_limits.read_rows.unwrap_or(usize::MAX);
        if self.has_expired_rows() && !self.expire_in(&range.lo, &range.hi, expired_max) {
            let _ = self
                .reads
                .deferred
                .add(table, range.clone(), FillExtent::Widened);
            return OwnRowsOutcome::ExpireFirst;
        }
        let limits = Limits {
            limit: Some(rows_max),
            ..Limits::default()
        };
        let rows = &self.tables[table].rows;
        output_base_rows(rows, &range.lo, &range.hi, limits, each);
        OwnRowsOutcome::Complete
    }

    /// Reads a range without evicting. The caller calls [`Engine::evict_if_prepared`] after it has held the rows that
    /// it reads later.
    fn read(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        now: u64,
        each: &mut EachRow<'_>,
        notes: &mut ReadReport,
    ) -> Result<ReadOutcome, Error> {
        self.begin(now);
        self.read_after_begin(lo, hi, limits, each, notes)
    }

    fn read_after_begin(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        each: &mut EachRow<'_>,
        notes: &mut ReadReport,
    ) -> Result<ReadOutcome, Error> {
        let Some(table) = self.tables.of_range(lo, hi)? else {
            return Ok(ReadOutcome::Done(()));
        };
        if lo >= hi {
            return Ok(ReadOutcome::Done(()));
        }
        if self.has_expired_rows() && !self.tables[table].makers.is_empty() {
            if self.step_limits.read_rows.is_some() {
                let range = KeyRange::new(lo, hi);
                let needs = self.reads.deferred.add(table, range, FillExtent::Widened);
                return Ok(ReadOutcome::Needs(needs));
            }
            self.expire_all();
        }
        if let Some(found) = self.find_group(table, lo, hi, limits) {
            self.output_group(&found, lo, hi, limits, each);
            return Ok(ReadOutcome::Done(()));
        }
        if self.has_only_base_rows(table) {
            output_base_rows(&self.tables[table].rows, lo, hi, limits, each);
            return Ok(ReadOutcome::Done(()));
        }
        if self.find_page(table, lo, hi) {
            self.output_page(table, limits, each);
            return Ok(ReadOutcome::Done(()));
        }
        let range = KeyRange::new(lo, hi);
        self.reads.needs.clear();
        if self.tables[table].makers.is_empty()
            && !self.expire_in(lo, hi, self.step_limits.read_rows.unwrap_or(usize::MAX))
        {
            let needs = self.reads.deferred.add(table, range, FillExtent::Widened);
            return Ok(ReadOutcome::Needs(needs));
        }
        let whole = range.clone();
        let (view, range) = match self.prepare_view(table, range, limits) {
            Ok(viewed) => viewed,
            Err(part) => {
                if !self.reads.needs.lacks_rows() {
                    let extent = FillExtent::of_part(&part, &whole);
                    let needs = self.reads.deferred.add(table, part, extent);
                    return Ok(ReadOutcome::Needs(needs));
                }
                let needs = self.reads.needs.take();
                self.make_room();
                return Ok(ReadOutcome::Needs(Box::new(needs)));
            }
        };
        notes.omission = self.output_rows(table, &range, &view, limits, each);
        if !view.transient.is_empty() {
            self.queue_transient(&view.transient, &range);
        }
        notes.prepared = Some(PreparedView { view, range });
        Ok(ReadOutcome::Done(()))
    }

    /// Returns whether a read of the table has nothing to compute, to load or to expire first.
    #[inline]
    fn has_only_base_rows(&self, table: TableId) -> bool {
        let state = &self.tables[table];
        state.makers.is_empty() && state.supplied.is_none() && !self.has_expired_rows()
    }

    /// Prepares the part of a range that the limits need. Returns the view and the part, or the part that must be
    /// prepared first as an error.
    fn prepare_view(
        &mut self,
        table: TableId,
        range: KeyRange,
        limits: Limits,
    ) -> Result<(View, KeyRange), KeyRange> {
        let mut rows_max = limits.total_limit.filter(|rows| *rows > 0);
        rows_max = rows_max.filter(|_| !self.tables[table].makers.is_empty());
        self.set_budget(Budget::limited_to(self.step_limits.read_rows));
        loop {
            let part = match rows_max {
                None => range.clone(),
                Some(rows) => match self.plan_part(table, &range, rows, limits.reverse) {
                    None => return Err(range),
                    Some(part) => part,
                },
            };
            // The part is queued already; this read waits with the others.
            if self.step_limits.read_rows.is_some() && self.reads.deferred.contains(table, &part) {
                return Err(part);
            }
            let extent = FillExtent::of_part(&part, &range);
            let Some(view) = self.view_extent(table, &part, extent) else {
                return Err(part);
            };
            let is_widened = extent == FillExtent::Widened;
            let is_enough = |rows: u64| self.has_visible_rows(table, &part, &view, rows);
            if is_widened || limits.total_limit.is_some_and(is_enough) {
                self.reads.partial_reads += u64::from(!is_widened);
                return Ok((view, part));
            }
            rows_max = rows_max.map(|rows| rows.saturating_mul(2));
        }
    }

    /// Returns the number of rows in a range.
    ///
    /// # Errors
    /// As [`Engine::range`].
    pub fn count(&mut self, lo: &[u8], hi: &[u8], now: u64) -> Result<ReadOutcome<u64>, Error> {
        self.begin(now);
        if let Some(table) = self.tables.of_range(lo, hi)? {
            let state = &self.tables[table];
            if state.makers.is_empty() && state.supplied.is_none() && !self.has_expired_rows() {
                return Ok(ReadOutcome::Done(state.rows.count(lo, hi)));
            }
            if !self.has_expired_rows()
                && let Some(found) = self.find_group(table, lo, hi, Limits::default())
            {
                let rows = &found.join_of(self).output.rows;
                return Ok(ReadOutcome::Done(rows.count(lo, hi)));
            }
        }
        let mut count = 0;
        let outcome = self.range(
            lo,
            hi,
            Limits {
                keys_only: true,
                ..Limits::default()
            },
            now,
            &mut |_, _| {
                count += 1;
                ControlFlow::Continue(())
            },
        )?;
        Ok(outcome.map(|()| count))
    }

    /// Finds a range inside a filled and fresh part of one group, in a table with one join. This is the fast path. May
    /// return `None` although such a part exists.
    fn find_group(
        &mut self,
        table: TableId,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
    ) -> Option<FoundGroup> {
        let &[maker] = &*self.tables[table].makers else {
            return None;
        };
        let join = self.joins.get_mut(maker)?;
        if !is_read_by_group(join) {
            return None;
        }
        let head = join.output.rows.head(lo)?;
        let (prefix, low) = lo.split_at(head.len());
        if !hi.starts_with(prefix) && !is_successor(prefix, hi) {
            return None;
        }
        let group = join.output.rows.group_of(prefix);
        let fill = match group {
            Some(group) => join.fills.of_group(group)?,
            // The group may be filled and have no rows.
            None => join.fills.of_head(prefix)?,
        };
        let target = join.fills.target_at(fill)?;
        let is_current = target.is_group && (group.is_none() || target.group == group);
        if !is_current || target.unsettled {
            return None;
        }
        let mut start = None;
        if !target.holds(low) {
            // The filled part at the end of the group may have as many rows as the limit.
            let rows = limits
                .total_limit
                .filter(|_| limits.reverse && target.is_tail)?;
            let filled = join.fills.get(fill).range.lo.strip_prefix(prefix)?;
            let stored = &join.output.rows;
            let mut cursor = stored.cursor_in(group?, filled, hi.strip_prefix(prefix), true)?;
            for _ in 0..rows {
                cursor.next()?;
            }
            start = Some(fill);
        }
        if join.definition.mode == JoinMode::Auto {
            let fill = join.fills.get_mut(fill);
            if !fill.pulled.is_empty() {
                return None;
            }
            count_read(&mut fill.reads, &mut fill.opened, self.time.ticks);
        }
        join.fills.target_mut(fill).visit();
        Some(FoundGroup {
            maker,
            group,
            prefix_len: prefix.len(),
            start,
        })
    }

    fn output_group(
        &self,
        found: &FoundGroup,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        each: &mut EachRow<'_>,
    ) {
        let (prefix, low) = lo.split_at(found.prefix_len);
        let join = found.join_of(self);
        let low = found.start.map_or(low, |fill| {
            &join.fills.get(fill).range.lo[found.prefix_len..]
        });
        let rows = &join.output.rows;
        let high = hi.strip_prefix(prefix);
        let Some(mut rows) = found
            .group
            .and_then(|group| rows.cursor_in(group, low, high, limits.reverse))
        else {
            return;
        };
        let mut left = limits.limit.unwrap_or(u64::MAX);
        while left > 0
            && let Some((key, value)) = rows.next()
        {
            left -= 1;
            if each(key, if limits.keys_only { &[] } else { value }).is_break() {
                return;
            }
        }
    }
}

/// Outputs base rows that are all present.
fn output_base_rows(rows: &Rows, lo: &[u8], hi: &[u8], limits: Limits, each: &mut EachRow<'_>) {
    let Some(mut rows) = rows.cursor_near(lo, hi, limits.reverse) else {
        return;
    };
    let mut left = limits.limit.unwrap_or(u64::MAX);
    while left > 0
        && let Some((key, value)) = rows.next()
    {
        left -= 1;
        if each(key, if limits.keys_only { &[] } else { value }).is_break() {
            return;
        }
    }
}

/// A range inside a part of one group, and the join that computed it.
struct FoundGroup {
    maker: JoinId,
    /// `None`: the group has no rows.
    group: Option<GroupId>,
    prefix_len: usize,
    /// If set, only the part that this fill covers may be read.
    start: Option<u32>,
}

impl FoundGroup {
    fn join_of<'e>(&self, engine: &'e Engine) -> &'e Join {
        engine
            .joins
            .get(self.maker)
            .expect("invariant: it was found in its place")
    }
}

/// Returns whether a join's stored rows can be read without a view once they are filled and settled.
fn is_read_by_group(join: &Join) -> bool {
    matches!(join.definition.mode, JoinMode::Push | JoinMode::Auto)
        && join.upstream.is_empty()
        && join.nodes.backlog().is_empty()
        && join.definition.shape.row_state().is_none()
}
