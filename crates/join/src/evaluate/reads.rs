//! Reads: a row, the rows of a range, how many there are.
//!
//! ```text
//!  range ──► at_once: one filled and fresh range, found by its group ──► rows
//!     ├────► base rows that are all here ───────────────────────────────► rows
//!     ├────► find_page: one of several joins (see `pages`) ─────────────► rows
//!     └────► view (fill, settle, compute) ──► hand_out ──► rows
//!  and what was not taken then is read on later (see `reading`)
//! ```

use std::ops::ControlFlow;

use crate::base::key_range::{EachRow, KeyRange, is_successor, table_name};
use crate::base::rows::{GroupId, Rows};
use crate::engine::Engine;
use crate::error::Error;
use crate::evaluate::view::View;
use crate::join::{Join, JoinId, TableId};
use crate::language::grammar::Mode;
use crate::language::pattern::Binding;
use crate::operators::output::is_spelled_out;
use crate::propagate::auto::count_read;

/// What a read came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    Done,
    /// These ranges must be supplied first (see [`Engine::supply`]), and those that [`Engine::take_foreign`] tells; no
    /// row was handed out. Ask again then.
    Missing(Vec<KeyRange>),
    /// More is to be computed than a read may at a time (see [`Engine::set_read_rows`]), and no row was handed out.
    /// [`Engine::step`] goes on with it; ask again when it has.
    PutOff,
}

/// What of a range is wanted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// At most so many rows.
    pub limit: Option<u64>,
    /// So many rows, at most, will be read of the range in all, with what is read on of it (see `reading`): then no more is filled
    /// than these need. `None`: all of it.
    pub in_all: Option<u64>,
    /// From the greatest key down.
    pub reverse: bool,
    /// Values are handed out empty.
    pub keys_only: bool,
}

impl Limits {
    /// The first rows of a range, and no more.
    pub fn first(rows: u64) -> Limits {
        Limits {
            limit: Some(rows),
            in_all: Some(rows),
            ..Limits::default()
        }
    }
}

impl Engine {
    /// The value of a row, base or computed.
    ///
    /// # Errors
    /// The key names no table, or the row adds up values that are not numbers.
    pub fn get(
        &mut self,
        key: &[u8],
        now: u64,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<Outcome, Error> {
        let mut hi = key.to_vec();
        hi.push(0);
        let (limits, mut left_out) = (Limits::default(), None);
        let mut give = |_: &[u8], value: &[u8]| {
            each(value);
            ControlFlow::Continue(())
        };
        let outcome = self.read(key, &hi, limits, now, &mut give, &mut left_out)?;
        left_out.map_or(Ok(outcome), Err)
    }

    /// What a row that does not exist reads as, if a join says so of its key.
    pub fn otherwise(&self, key: &[u8]) -> Option<&[u8]> {
        let table = *self.names.get(table_name(key)?)?;
        let makers = self.tables[table as usize].makers.iter();
        let mut joins = makers.filter_map(|&maker| self.joins[maker as usize].as_deref());
        joins.find_map(|join| {
            let definition = &join.definition;
            let otherwise = definition.otherwise.as_deref()?;
            let fits = definition
                .output
                .matches(key, &definition.slots, &mut Binding::default());
            fits.then_some(otherwise)
        })
    }

    /// Hands out the rows of a range of one table, base or computed, in key order, until `each` breaks. A row that adds up
    /// values that are not numbers is left out, and counted ([`JoinInfo::left_out`](crate::JoinInfo)).
    ///
    /// # Errors
    /// The range is in no table or in several.
    pub fn range(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        now: u64,
        each: &mut EachRow<'_>,
    ) -> Result<Outcome, Error> {
        self.read(lo, hi, limits, now, each, &mut None)
    }

    /// As [`Engine::range`]; notes why the first row was left out.
    fn read(
        &mut self,
        lo: &[u8],
        hi: &[u8],
        limits: Limits,
        now: u64,
        each: &mut EachRow<'_>,
        left_out: &mut Option<Error>,
    ) -> Result<Outcome, Error> {
        self.begin(now);
        let Some(table) = self.one_table(lo, hi)? else {
            return Ok(Outcome::Done);
        };
        if lo >= hi {
            return Ok(Outcome::Done);
        }
        if self.has_late_rows() && !self.tables[table as usize].makers.is_empty() {
            if self.read_rows.is_some() {
                self.put_off.add(table, KeyRange::new(lo, hi), false);
                return Ok(Outcome::PutOff);
            }
            self.expire_all();
        }
        if let Some(found) = self.at_once(table, lo, hi, limits) {
            self.hand_out_at_once(&found, lo, hi, limits, each);
            return Ok(Outcome::Done);
        }
        let state = &self.tables[table as usize];
        if state.makers.is_empty() && state.supplied.is_none() && !self.has_late_rows() {
            hand_out_base(&state.rows, lo, hi, limits, each);
            return Ok(Outcome::Done);
        }
        if self.find_page(table, lo, hi) {
            self.hand_out_page(table, limits, each);
            return Ok(Outcome::Done);
        }
        let range = KeyRange::new(lo, hi);
        self.missing.clear();
        self.foreign.clear();
        if self.tables[table as usize].makers.is_empty()
            && !self.expire_in(lo, hi, self.read_rows.unwrap_or(usize::MAX))
        {
            self.put_off.add(table, range, false);
            return Ok(Outcome::PutOff);
        }
        let whole = range.clone();
        let (view, range) = match self.view_for(table, range, limits) {
            Ok(viewed) => viewed,
            Err(part) => {
                let missing = self.take_missing();
                if missing.is_empty() && self.foreign.is_empty() {
                    let is_partial = part != whole;
                    self.put_off.add(table, part, is_partial);
                    return Ok(Outcome::PutOff);
                }
                self.make_room();
                self.wanted.extend_from_slice(&missing);
                return Ok(Outcome::Missing(missing));
            }
        };
        *left_out = self.hand_out(table, &range, &view, limits, each);
        if !view.passing.is_empty() {
            self.pass(&view.passing, &range);
        }
        self.computed = (!view.computed.is_empty() || !view.passing.is_empty()).then_some(view);
        self.make_room();
        Ok(Outcome::Done)
    }

    /// Views what of a range is to be read; says what that is. Without success, what is to be viewed first.
    fn view_for(
        &mut self,
        table: TableId,
        range: KeyRange,
        limits: Limits,
    ) -> Result<(View, KeyRange), KeyRange> {
        let mut wanted = limits.in_all.filter(|rows| *rows > 0);
        wanted = wanted.filter(|_| !self.tables[table as usize].makers.is_empty());
        self.budget = self.read_rows.unwrap_or(usize::MAX);
        loop {
            let part = match wanted {
                None => range.clone(),
                Some(rows) => match self.part_for(table, &range, rows, limits.reverse) {
                    None => return Err(range),
                    Some(part) => part,
                },
            };
            if self.waits_too(table, &part) {
                return Err(part);
            }
            let is_whole = part == range;
            self.is_partial = !is_whole;
            let view = self.view(table, &part, self.now);
            self.is_partial = false;
            let Some(view) = view else {
                return Err(part);
            };
            let is_enough = |rows: u64| self.shows(table, &part, &view, rows);
            if is_whole || limits.in_all.is_some_and(is_enough) {
                self.partial_reads += u64::from(!is_whole);
                return Ok((view, part));
            }
            wanted = wanted.map(|rows| rows.saturating_mul(2));
        }
    }

    /// How many rows a range has.
    ///
    /// # Errors
    /// As [`Engine::range`].
    pub fn count(&mut self, lo: &[u8], hi: &[u8], now: u64) -> Result<(u64, Outcome), Error> {
        self.begin(now);
        if let Some(table) = self.one_table(lo, hi)? {
            let state = &self.tables[table as usize];
            if state.makers.is_empty() && state.supplied.is_none() && !self.has_late_rows() {
                return Ok((state.rows.count(lo, hi), Outcome::Done));
            }
            if !self.has_late_rows()
                && let Some(found) = self.at_once(table, lo, hi, Limits::default())
            {
                let rows = &found.join_of(self).output.rows;
                return Ok((rows.count(lo, hi), Outcome::Done));
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
        Ok((count, outcome))
    }

    fn take_missing(&mut self) -> Vec<KeyRange> {
        let mut missing = std::mem::take(&mut self.missing);
        missing.sort();
        missing.dedup();
        missing
    }

    /// The table that a range lies in, if it is known.
    pub(crate) fn one_table(&self, lo: &[u8], hi: &[u8]) -> Result<Option<TableId>, Error> {
        let name = table_name(lo).ok_or_else(|| Error::NoTable { key: lo.to_vec() })?;
        if lo < hi && !hi.starts_with(name) && !is_successor(name, hi) {
            return Err(Error::ManyTables {
                lo: lo.to_vec(),
                hi: hi.to_vec(),
            });
        }
        Ok(self.names.get(name).copied())
    }

    /// Finds a range of a table that one join alone makes inside the rest of a group that is filled and fresh: the read
    /// that is worth being quick. `None` does not mean that there is none.
    fn at_once(&mut self, table: TableId, lo: &[u8], hi: &[u8], limits: Limits) -> Option<AtOnce> {
        let &[maker] = &*self.tables[table as usize].makers else {
            return None;
        };
        let join = self.joins[maker as usize].as_mut()?;
        if !is_read_at_once(join) {
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
            // It is filled, perhaps, and has no rows.
            None => join.fill_of_head(prefix)?,
        };
        let target = join.targets.get_mut(fill as usize)?;
        let is_its = target.is_group && (group.is_none() || target.group == group);
        if !is_its || target.unsettled {
            return None;
        }
        let mut start = None;
        if !target.holds(low) {
            // What is filled of the group's end may be all that is wanted.
            let rows = limits.in_all.filter(|_| limits.reverse && target.is_tail)?;
            let filled = join.fills.get(fill).range.lo.strip_prefix(prefix)?;
            let stored = &join.output.rows;
            let mut cursor = stored.cursor_in(group?, filled, hi.strip_prefix(prefix), true)?;
            for _ in 0..rows {
                cursor.next()?;
            }
            start = Some(fill);
        }
        if join.definition.mode == Mode::Auto {
            let fill = join.fills.get_mut(fill);
            if !fill.pulled.is_empty() {
                return None;
            }
            count_read(&mut fill.reads, &mut fill.opened, self.ticks);
        }
        target.visit();
        Some(AtOnce {
            maker,
            group,
            prefix_len: prefix.len(),
            start,
        })
    }

    fn hand_out_at_once(
        &self,
        found: &AtOnce,
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

/// Base rows that are all here are read as they are.
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

/// A range inside the rest of one group, and the join that made it.
struct AtOnce {
    maker: JoinId,
    /// `None`: it has no rows.
    group: Option<GroupId>,
    prefix_len: usize,
    /// Only what this fill has of it is to be read.
    start: Option<u32>,
}

impl AtOnce {
    fn join_of<'e>(&self, engine: &'e Engine) -> &'e Join {
        engine.joins[self.maker as usize]
            .as_ref()
            .expect("invariant: it was found in its place")
    }
}

/// Whether what a join has stored can be read as it is, once it is filled and settled.
fn is_read_at_once(join: &Join) -> bool {
    matches!(join.definition.mode, Mode::Push | Mode::Auto)
        && join.upstream.is_empty()
        && join.busy.is_empty()
        && !is_spelled_out(&join.definition)
}
