//! Reads of a row, of a range, and of the number of rows in a range.
//!
//! ```text
//!  range ──► find_group: one filled and fresh range, found by its group ──► rows
//!     ├────► base rows that are all present ────────────────────────────► rows
//!     ├────► find_page: a page of several joins (see `pages`) ──────────► rows
//!     └────► view (fill, settle, compute) ──► hand_out ──► rows
//! ```
//!
//! The rest of a long reply is read later (see `reading`).

use std::ops::ControlFlow;

use crate::base::key_range::{EachRow, Flow, KeyRange, is_successor};
use crate::base::pattern::Binding;
use crate::base::rows::{GroupId, Rows};
use crate::budget::Budget;
use crate::engine::Engine;
use crate::error::Error;
use crate::evaluate::needs::ReadOutcome;
use crate::evaluate::partial::Extent;
use crate::evaluate::reading::Reading;
use crate::join::{Join, JoinId, TableId};
use crate::language::grammar::JoinMode;
use crate::propagate::auto::count_read;
use crate::tables::scan::{Limits, View};

/// The outcome of a request for an engine's own base rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnRows {
    /// The rows were output.
    Given,
    /// No row was output: removing the expired rows of the range takes several steps. Retry after the next step.
    ExpireFirst,
}

/// The result of a read besides its rows.
#[derive(Default)]
struct Notes {
    /// The error of the first omitted row, an aggregate of values that are not numbers.
    left_out: Option<Error>,
    /// The view that was made for the read. `None` if the rows were filled and settled already.
    viewed: Option<Viewed>,
}

/// A range that a read has filled and settled. The next [`Engine::make_room`] may evict it.
pub(crate) struct Viewed {
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
            && self.has_base_rows_alone(table)
        {
            if let Some(value) = self.tables[table].rows.get(key) {
                each(value);
            }
            return Ok(ReadOutcome::Done(()));
        }
        let mut hi = key.to_vec();
        hi.push(0);
        let (limits, mut notes) = (Limits::default(), Notes::default());
        let mut give = |_: &[u8], value: &[u8]| {
            each(value);
            ControlFlow::Continue(())
        };
        let outcome = self.read_begun(key, &hi, limits, &mut give, &mut notes)?;
        self.make_room_if(notes.viewed.is_some());
        notes.left_out.map_or(Ok(outcome), Err)
    }

    /// Returns the value that a join's `else` clause defines for an absent row with this key.
    pub fn otherwise(&self, key: &[u8]) -> Option<&[u8]> {
        let table = self.tables.of_key(key)?;
        let makers = self.tables[table].makers.iter();
        let mut joins = makers.filter_map(|&maker| self.joins.get(maker));
        joins.find_map(|join| {
            let definition = &join.definition;
            let otherwise = definition.otherwise.as_deref()?;
            let fits =
                definition
                    .shape
                    .output
                    .matches(key, &definition.slots, &mut Binding::default());
            fits.then_some(otherwise)
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
        let mut notes = Notes::default();
        let outcome = self.read(lo, hi, limits, now, each, &mut notes)?;
        self.make_room_if(notes.viewed.is_some());
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
    ) -> Result<ReadOutcome<Option<Reading>>, Error> {
        let (mut notes, mut rows, mut last) = (Notes::default(), 0, None);
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
        let is_viewed = notes.viewed.is_some();
        let hold_rest = |last: Vec<u8>| {
            let limits = Limits { limit, ..limits };
            let rest = if limits.reverse {
                KeyRange::new(lo, &last)
            } else {
                KeyRange::new(&KeyRange::point(&last).hi, hi)
            };
            self.hold(rest, limits, notes.viewed)
        };
        // The rest must be held before eviction can remove it.
        let rest = outcome.map(|()| last.map(hold_rest));
        self.make_room_if(is_viewed);
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
    ) -> Result<ReadOutcome<Reading>, Error> {
        let mut notes = Notes::default();
        let mut none = |_: &[u8], _: &[u8]| ControlFlow::Break(());
        let outcome = self.read(lo, hi, limits, now, &mut none, &mut notes)?;
        let is_viewed = notes.viewed.is_some();
        let reading = outcome.map(|()| self.hold(KeyRange::new(lo, hi), limits, notes.viewed));
        self.make_room_if(is_viewed);
        Ok(reading)
    }

    /// Evicts after a read that has filled or settled something. Other reads use no memory.
    fn make_room_if(&mut self, is_viewed: bool) {
        if is_viewed {
            self.make_room();
        }
    }

    /// Outputs at most `rows_max` of this engine's own base rows, for another engine. The owner has all of them, so the
    /// request needs nothing else and cannot fail.
    pub(crate) fn own_rows(
        &mut self,
        range: &KeyRange,
        rows_max: u64,
        now: u64,
        each: &mut EachRow<'_>,
    ) -> OwnRows {
        self.begin(now);
        let Some(table) = self.tables.of_key(&range.lo) else {
            return OwnRows::Given;
        };
        if !self.tables[table].makers.is_empty() {
            // A join now computes the table, so it has no base rows. The requester will learn of the join separately.
            return OwnRows::Given;
        }
        let expired_max = self.pace.read_rows.unwrap_or(usize::MAX);
        if self.has_late_rows() && !self.expire_in(&range.lo, &range.hi, expired_max) {
            let _ = self
                .reads
                .deferred
                .add(table, range.clone(), Extent::Widened);
            return OwnRows::ExpireFirst;
        }
        let limits = Limits {
            limit: Some(rows_max),
            ..Limits::default()
        };
        let rows = &self.tables[table].rows;
        hand_out_base(rows, &range.lo, &range.hi, limits, each);
        OwnRows::Given
    }

    /// Reads a range without evicting. The caller calls [`Engine::make_room_if`] after it has held the rows that it
    /// reads later.
    fn read(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        now: u64,
        each: &mut EachRow<'_>,
        notes: &mut Notes,
    ) -> Result<ReadOutcome, Error> {
        self.begin(now);
        self.read_begun(lo, hi, limits, each, notes)
    }

    fn read_begun(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        each: &mut EachRow<'_>,
        notes: &mut Notes,
    ) -> Result<ReadOutcome, Error> {
        let Some(table) = self.tables.of_range(lo, hi)? else {
            return Ok(ReadOutcome::Done(()));
        };
        if lo >= hi {
            return Ok(ReadOutcome::Done(()));
        }
        if self.has_late_rows() && !self.tables[table].makers.is_empty() {
            if self.pace.read_rows.is_some() {
                let range = KeyRange::new(lo, hi);
                let needs = self.reads.deferred.add(table, range, Extent::Widened);
                return Ok(ReadOutcome::Needs(needs));
            }
            self.expire_all();
        }
        if let Some(found) = self.find_group(table, lo, hi, limits) {
            self.hand_out_group(&found, lo, hi, limits, each);
            return Ok(ReadOutcome::Done(()));
        }
        if self.has_base_rows_alone(table) {
            hand_out_base(&self.tables[table].rows, lo, hi, limits, each);
            return Ok(ReadOutcome::Done(()));
        }
        if self.find_page(table, lo, hi) {
            self.hand_out_page(table, limits, each);
            return Ok(ReadOutcome::Done(()));
        }
        let range = KeyRange::new(lo, hi);
        self.reads.needs.clear();
        if self.tables[table].makers.is_empty()
            && !self.expire_in(lo, hi, self.pace.read_rows.unwrap_or(usize::MAX))
        {
            let needs = self.reads.deferred.add(table, range, Extent::Widened);
            return Ok(ReadOutcome::Needs(needs));
        }
        let whole = range.clone();
        let (view, range) = match self.view_for(table, range, limits) {
            Ok(viewed) => viewed,
            Err(part) => {
                if !self.reads.needs.lacks_rows() {
                    let extent = Extent::of_part(&part, &whole);
                    let needs = self.reads.deferred.add(table, part, extent);
                    return Ok(ReadOutcome::Needs(needs));
                }
                let needs = self.reads.needs.take();
                self.make_room();
                return Ok(ReadOutcome::Needs(Box::new(needs)));
            }
        };
        notes.left_out = self.hand_out(table, &range, &view, limits, each);
        if !view.transient.is_empty() {
            self.release_transient(&view.transient, &range);
        }
        notes.viewed = Some(Viewed { view, range });
        Ok(ReadOutcome::Done(()))
    }

    /// Returns whether a read of the table has nothing to compute, to load or to expire first.
    #[inline]
    fn has_base_rows_alone(&self, table: TableId) -> bool {
        let state = &self.tables[table];
        state.makers.is_empty() && state.supplied.is_none() && !self.has_late_rows()
    }

    /// Prepares the part of a range that the limits need. Returns the view and the part, or the part that must be
    /// prepared first as an error.
    fn view_for(
        &mut self,
        table: TableId,
        range: KeyRange,
        limits: Limits,
    ) -> Result<(View, KeyRange), KeyRange> {
        let mut wanted = limits.in_all.filter(|rows| *rows > 0);
        wanted = wanted.filter(|_| !self.tables[table].makers.is_empty());
        self.set_budget(Budget::of(self.pace.read_rows));
        loop {
            let part = match wanted {
                None => range.clone(),
                Some(rows) => match self.part_for(table, &range, rows, limits.reverse) {
                    None => return Err(range),
                    Some(part) => part,
                },
            };
            // The part is queued already; this read waits with the others.
            if self.pace.read_rows.is_some() && self.reads.deferred.has(table, &part) {
                return Err(part);
            }
            let extent = Extent::of_part(&part, &range);
            let Some(view) = self.view_extent(table, &part, extent) else {
                return Err(part);
            };
            let is_whole = extent == Extent::Widened;
            let is_enough = |rows: u64| self.shows(table, &part, &view, rows);
            if is_whole || limits.in_all.is_some_and(is_enough) {
                self.reads.partial_reads += u64::from(!is_whole);
                return Ok((view, part));
            }
            wanted = wanted.map(|rows| rows.saturating_mul(2));
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
            if state.makers.is_empty() && state.supplied.is_none() && !self.has_late_rows() {
                return Ok(ReadOutcome::Done(state.rows.count(lo, hi)));
            }
            if !self.has_late_rows()
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
            Some(group) => *join.fill_of_group.get(group.index())?,
            // The group may be filled and have no rows.
            None => join.fill_of_head(prefix)?,
        };
        let target = join.targets.get_mut(fill as usize)?;
        let is_its = target.is_group && (group.is_none() || target.group == group);
        if !is_its || target.unsettled {
            return None;
        }
        let mut start = None;
        if !target.holds(low) {
            // The filled part at the end of the group may have as many rows as the limit.
            let rows = limits.in_all.filter(|_| limits.reverse && target.is_tail)?;
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
        target.visit();
        Some(FoundGroup {
            maker,
            group,
            prefix_len: prefix.len(),
            start,
        })
    }

    fn hand_out_group(
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
fn hand_out_base(rows: &Rows, lo: &[u8], hi: &[u8], limits: Limits, each: &mut EachRow<'_>) {
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
        && join.lists_with_backlog.is_empty()
        && join.definition.shape.row_state().is_none()
}
