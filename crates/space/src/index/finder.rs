//! How a run comes by the rows that a query holds for, in steps between which the index may change.
//!
//! ```text
//!            ┌─► Walk: in the order of the answer, until enough are found ──► Count, if the total is not known ─┐
//!  Finder::new                 │ too many looked at, or the index changed                                       ├─► Done
//!            └─► Rows ◄────────┘                                                                                ┘
//! ```
//!
//! *Rows* looks at the candidates of the query's access once: a list of them, made at the beginning, if they are few, else all rows by number. A row keeps its
//! number while its object is there, and rows that came after the run began are passed over; so whatever comes and goes in between, each row is looked at
//! once (invariant 2 of the room).
//! *Walk* looks at objects in the order in which they are returned, and stops. By key it goes on behind the last key. By an attribute it must end
//! before the index changes, since an object may move in that order; else what was found is forgotten, and Rows begins.
//!
//! 1. A walk that finds less than was hoped looks at no more rows than what it was to save would have cost.
//! 2. What a run keeps is bounded: a list of [`LIST_MAX`] rows, and what was found in one step.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, Range};

use super::SpaceIndex;
use super::access::{Access, walk_ranks};
use super::check::{Check, Extent, SIFTED_MAX, are_sketched};
use super::plan::{Origin, Plan};
use crate::query::Predicate;
use crate::schema::AttributeId;
use crate::search::SortKey;
use crate::search::request::SortBy;

/// What is looked for. The same in every step of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    pub predicate: &'a Predicate,
    pub order: &'a [SortKey],
    /// How many rows are kept, the first in order.
    pub keep: usize,
    /// Whether it must be known how many there are.
    pub is_counted: bool,
    /// Only objects with these keys.
    pub keys: Option<&'a BTreeSet<Vec<u8>>>,
}

#[derive(Debug)]
pub(super) struct Finder {
    /// The index's clock. Rows that came later are passed over.
    began: u64,
    /// Only objects with keys behind this one.
    after: Option<Vec<u8>>,
    phase: Phase,
    /// How many the query holds for, once that is known.
    total: Option<u64>,
    /// As [`Profile`](super::Profile) tells them.
    pub work: Work,
    origin: Origin,
    estimate: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Work {
    pub candidates: u64,
    pub scanned: u64,
    pub found: u64,
}

#[derive(Debug)]
enum Phase {
    Rows(Candidates),
    Count(Candidates, u64),
    Walk(Walk),
    Done,
}

#[derive(Debug)]
enum Candidates {
    List {
        rows: Vec<u32>,
        next: usize,
        /// What is known of all of them as long as the index is what it was at this time.
        clock: u64,
        known: Known,
    },
    /// All rows from this one on.
    Scan(u32),
    /// The keys that are asked for, behind this one.
    Keys(Option<Vec<u8>>),
}

/// What holds for all rows of a list.
#[derive(Debug, Clone, Copy)]
enum Known {
    Nothing,
    /// This part of a conjunction.
    Part(usize),
    All,
}

#[derive(Debug)]
struct Walk {
    by: SortBy,
    is_descending: bool,
    /// Further sort keys decide among rows of one value: all of them are looked at.
    has_ties: bool,
    /// No object that the query holds for lies beyond.
    is_whole: bool,
    place: WalkPlace,
    /// Rows of the order that come next, as the index was at this time.
    fetched: VecDeque<u32>,
    clock: u64,
    /// The row that was found last.
    last: Option<u32>,
    /// How many rows it may still look at.
    budget: usize,
    /// What the query leads to, as it was when the run began.
    access: Option<Access>,
}

#[derive(Debug)]
enum WalkPlace {
    /// Behind the key that was looked at last; and at this rank, as the index was then.
    Key(Option<Vec<u8>>, Option<usize>),
    /// Ranges of ranks of the attribute's order that are left.
    Order {
        ranges: Vec<Range<usize>>,
        /// Of rows of one value, where the walk descends: they come in the order of their keys.
        group: Range<usize>,
    },
}

pub(super) enum Event {
    /// There may be rows in the batch.
    Found,
    /// All rows that were found are to be forgotten: they will come again.
    Restarted,
    /// So many were looked at as may be.
    Paused,
    Done,
}

/// A list of more rows than these is not made: all rows are looked at instead.
pub(super) const LIST_MAX: usize = 1 << 18;
/// The effort of looking at a row by itself, wherever it lies; a bit and a byte of one after the other is looked at for one.
pub(super) const APART: usize = 256;
/// That of looking at a row of a list: several are fetched from memory at a time.
const LISTED: usize = 16;
/// Rows of a list that are looked at before the effort of those that were found is counted.
const LISTED_AT_ONCE: usize = 256;
/// So few rows are listed, whatever there is.
const FEW: usize = 64;
/// That of looking at the next row, where its bytes do not tell.
const NEXT: usize = 32;
/// Rows that are looked at, in words of 64, before the effort of those that were found is counted.
const FOUND_WORDS: usize = 8;
/// Rows that are taken from an order in one go.
const CHUNK: usize = 256;

/// What it takes to look at all rows one after the other.
fn scan_effort(index: &SpaceIndex, predicate: &Predicate) -> usize {
    let each = if are_sketched(predicate, index) {
        1
    } else {
        NEXT
    };
    (index.rows.end() * each).max(64 * NEXT)
}

/// Whether the rows of an access are listed, and not found again among all.
fn is_list_cheaper(access: &Access, index: &SpaceIndex, predicate: &Predicate) -> bool {
    let (count, all) = (access.count, index.rows.end());
    let is_cheaper = count <= FEW
        || (access.is_exact && count * 8 <= all)
        || count * LISTED <= scan_effort(index, predicate);
    access.is_list() && count <= LIST_MAX && is_cheaper
}

/// See [`SpaceIndex::estimate`].
pub(super) fn estimate(index: &SpaceIndex, predicate: &Predicate) -> (f64, Vec<AttributeId>) {
    let access = index.access(predicate);
    match is_list_cheaper(&access, index, predicate) {
        true => (
            access.count as f64,
            Origin::of(&access, index).attributes().collect(),
        ),
        false => {
            let scan = scan_effort(index, predicate) as f64 / LISTED as f64;
            (scan.min(access.count as f64), Vec::new())
        }
    }
}

impl Candidates {
    fn new(access: &Access, index: &SpaceIndex, predicate: &Predicate) -> Candidates {
        if is_list_cheaper(access, index, predicate) {
            let mut rows = Vec::with_capacity(access.count);
            access.list(index, &mut rows);
            return Candidates::List {
                rows,
                next: 0,
                clock: index.clock(),
                known: match (access.is_exact, access.decides) {
                    (true, _) => Known::All,
                    (false, Some(part)) => Known::Part(part),
                    (false, None) => Known::Nothing,
                },
            };
        }
        Candidates::Scan(0)
    }

    /// Puts the rows that it holds for into `out`, which is empty: of as many as the effort that is left allows. Whether there are no more.
    fn next(
        &mut self,
        index: &SpaceIndex,
        asked: &Asked<'_>,
        left: &mut Left,
        out: &mut Vec<u32>,
    ) -> bool {
        match self {
            Candidates::List {
                rows,
                next,
                clock,
                known,
            } => {
                // Not so many that those which are found are much more than the effort allows.
                let most = left.rows(LISTED).min(LISTED_AT_ONCE);
                let end = rows.len().min(next.saturating_add(most));
                let looked_at = &rows[*next..end];
                left.note(looked_at.len(), LISTED);
                let is_same = *clock == index.clock();
                out.extend_from_slice(looked_at);
                if !is_same {
                    out.retain(|row| index.rows.is_alive(*row));
                }
                let known = if is_same { *known } else { Known::Nothing };
                let extent = Extent::of(out.len());
                match known {
                    Known::All => {}
                    Known::Part(part) => {
                        Check::of_others(asked.predicate, part, index, extent).keep(out);
                    }
                    Known::Nothing => Check::new(asked.predicate, index, extent).keep(out),
                }
                left.note_found(out.len());
                *next = end;
                *next == rows.len()
            }
            Candidates::Scan(next) => {
                scan(index, asked, next, left, false, &mut |word, mut found| {
                    while found != 0 {
                        out.push(word * 64 + found.trailing_zeros());
                        found &= found - 1;
                    }
                });
                *next as usize >= index.rows.end()
            }
            Candidates::Keys(after) => {
                let Some(keys) = asked.keys else { return true };
                let check = Check::new(asked.predicate, index, Extent::Few);
                let from = match &after {
                    Some(after) => Bound::Excluded(after.clone()),
                    None => Bound::Unbounded,
                };
                let mut last = None;
                for key in keys.range((from, Bound::Unbounded)) {
                    if left.is_none() {
                        break;
                    }
                    left.note_apart(1);
                    last = Some(key.clone());
                    out.extend(index.rows.find(key).filter(|row| check.holds(*row)));
                }
                match last {
                    None => true,
                    last => {
                        *after = last;
                        *after == keys.last().cloned()
                    }
                }
            }
        }
    }

    /// Counts what [`Candidates::next`] would add, of rows that have all been there when the run began. `None`: not these candidates.
    fn count(&mut self, index: &SpaceIndex, asked: &Asked<'_>, left: &mut Left) -> Option<u64> {
        let Candidates::Scan(next) = self else {
            return None;
        };
        let mut count = 0;
        scan(index, asked, next, left, true, &mut |_, found| {
            count += u64::from(found.count_ones());
        });
        Some(count)
    }
}

/// Looks at the rows from `next` on, as many as the effort allows, and shows those that the query holds for: 64 with each number. Unless they are
/// only counted, something is done with each of these, which is part of the effort.
fn scan(
    index: &SpaceIndex,
    asked: &Asked<'_>,
    next: &mut u32,
    left: &mut Left,
    is_counting: bool,
    each: &mut dyn FnMut(u32, u64),
) {
    let end = index.rows.end() as u32;
    if *next >= end || left.is_none() {
        return;
    }
    let check = Check::new(asked.predicate, index, Extent::All);
    let each_row = if check.is_quick() { 1 } else { NEXT };
    let words_max = if is_counting { SIFTED_MAX } else { FOUND_WORDS };
    while *next < end && !left.is_none() {
        let rows = u32::try_from(left.rows(each_row)).unwrap_or(u32::MAX);
        let (first, begun) = (*next / 64, *next % 64);
        let stop = end.min(next.saturating_add(rows));
        let stop = stop.min((first + words_max as u32) * 64);
        let mut masks = [0; SIFTED_MAX];
        let masks = &mut masks[..(stop.div_ceil(64) - first) as usize];
        for (word, mask) in (first..).zip(&mut *masks) {
            *mask = index.rows.alive_word(word as usize);
        }
        masks[0] &= u64::MAX << begun;
        if !stop.is_multiple_of(64)
            && let Some(last) = masks.last_mut()
        {
            *last &= u64::MAX >> (64 - stop % 64);
        }
        check.sift(first as usize, masks);
        left.note((stop - *next) as usize, each_row);
        for (word, found) in (first..).zip(masks) {
            each(word, *found);
            if !is_counting {
                left.note_found(found.count_ones() as usize);
            }
        }
        *next = stop;
    }
}

/// The effort that a step may still take, and what it has looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    effort: usize,
    looked_at: usize,
}

impl Left {
    pub fn new(effort: usize) -> Left {
        Left {
            effort: effort.max(1),
            looked_at: 0,
        }
    }

    fn is_none(&self) -> bool {
        self.effort == 0
    }

    /// How many rows may be looked at, each with so much effort: one at least.
    fn rows(&self, each: usize) -> usize {
        self.effort.div_ceil(each)
    }

    fn note(&mut self, rows: usize, each: usize) {
        self.effort = self.effort.saturating_sub(rows.saturating_mul(each));
        self.looked_at += rows;
    }

    fn note_found(&mut self, rows: usize) {
        self.effort = self.effort.saturating_sub(rows * APART);
    }

    fn note_apart(&mut self, rows: usize) {
        self.note(rows, APART);
    }
}

impl Finder {
    /// `after`: only objects with keys behind this one; they are not counted.
    pub fn new(index: &SpaceIndex, asked: &Asked<'_>, after: Option<Vec<u8>>) -> Finder {
        let mut finder = Finder {
            began: index.clock(),
            after,
            phase: Phase::Done,
            total: None,
            work: Work::default(),
            origin: Origin::Nothing,
            estimate: 0,
        };
        if let Some(keys) = asked.keys {
            finder.origin = Origin::Keys(keys.len());
            finder.estimate = keys.len() as u64;
            finder.phase = Phase::Rows(Candidates::Keys(finder.after.clone()));
            return finder;
        }
        let access = index.access(asked.predicate);
        finder.origin = Origin::of(&access, index);
        finder.estimate = access.count as u64;
        if access.is_exact && finder.after.is_none() {
            finder.total = Some(access.count as u64);
        }
        if access.count == 0 {
            finder.total = Some(0);
        }
        if access.count == 0 || (asked.keep == 0 && (finder.total.is_some() || !asked.is_counted)) {
            finder.estimate = 0;
            return finder;
        }
        finder.phase = match finder.walk(index, asked, &access) {
            Some(walk) => Phase::Walk(Walk {
                access: Some(access),
                ..walk
            }),
            None if asked.keep == 0 => {
                Phase::Count(Candidates::new(&access, index, asked.predicate), 0)
            }
            None => Phase::Rows(Candidates::new(&access, index, asked.predicate)),
        };
        finder
    }

    /// A walk in the order of the answer, if that is likely to be cheaper.
    fn walk(&mut self, index: &SpaceIndex, asked: &Asked<'_>, access: &Access) -> Option<Walk> {
        let all = index.rows.len();
        let found = ((access.share * all as f64) as usize)
            .min(access.count)
            .max(1);
        if asked.keep == 0 || asked.keep >= found {
            return None;
        }
        let first = asked.order.first().copied();
        let (by, is_descending) =
            first.map_or((SortBy::Key, false), |it| (it.by, it.is_descending));
        let (place, length, is_whole) = match by {
            SortBy::Key => (WalkPlace::Key(self.after.clone(), None), all, true),
            SortBy::Attribute(id) => {
                let attribute = index.attribute(id).filter(|it| it.can_walk())?;
                let (ranges, is_whole) = walk_ranks(asked.predicate, attribute, all);
                let length = ranges.iter().map(Range::len).sum();
                let group = 0..0;
                (WalkPlace::Order { ranges, group }, length, is_whole)
            }
        };
        if self.after.is_some() && (by != SortBy::Key || is_descending) {
            return None;
        }
        // What looking at all candidates costs, as a number of rows apart; a found one costs another for its place in order.
        let scan = scan_effort(index, asked.predicate);
        let candidates = match is_list_cheaper(access, index, asked.predicate) {
            true => access.count,
            false => scan.div_ceil(APART),
        };
        let is_count_saved = self.total.is_some() || !asked.is_counted;
        let saved = found + if is_count_saved { candidates } else { 0 };
        let expected = (asked.keep as f64 * length as f64 / found as f64) as usize;
        // One that finds too few in that time ends, and the candidates are looked at after all: which costs twice as much at most.
        if expected.saturating_mul(5) / 4 > saved {
            return None;
        }
        self.estimate = (expected + if is_count_saved { 0 } else { candidates }) as u64;
        Some(Walk {
            by,
            is_descending,
            has_ties: asked.order.len() > 1 && by != SortBy::Key,
            is_whole,
            place,
            fetched: VecDeque::new(),
            clock: index.clock(),
            last: None,
            budget: saved,
            access: None,
        })
    }

    pub fn plan(&self, index: &SpaceIndex, asked: &Asked<'_>) -> Plan {
        let (predicate, keep) = (asked.predicate, asked.keep);
        let mut filters = Vec::new();
        let is_decided = matches!(predicate, Predicate::Leaf(_)) && self.total.is_some();
        if !is_decided {
            predicate.leaves(&mut |leaf| {
                for id in &leaf.attributes {
                    if !filters.contains(id) {
                        filters.push(*id);
                    }
                }
            });
        }
        Plan {
            definition: index.definition().clone(),
            origin: self.origin.clone(),
            walk: match &self.phase {
                Phase::Walk(walk) => Some((walk.by, walk.is_descending, keep)),
                _ => None,
            },
            candidates_estimated: self.estimate,
            filters,
            is_counted: self.total.is_some(),
        }
    }

    /// How many objects it has listed.
    pub fn lists(&self) -> usize {
        match &self.phase {
            Phase::Rows(Candidates::List { rows, .. })
            | Phase::Count(Candidates::List { rows, .. }, _) => rows.len(),
            _ => 0,
        }
    }

    /// How many the query holds for, if the rows that were found do not tell.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// Looks at more rows, with the effort that is left, and fills the batch with those that the query holds for. `kept`: how many were kept of those
    /// that were found before.
    pub fn next(
        &mut self,
        index: &SpaceIndex,
        asked: &Asked<'_>,
        kept: usize,
        left: &mut Left,
        batch: &mut Vec<u32>,
    ) -> Event {
        batch.clear();
        if left.is_none() && !matches!(self.phase, Phase::Done) {
            return Event::Paused;
        }
        let before = left.looked_at;
        let is_scan = match &self.phase {
            Phase::Rows(candidates) | Phase::Count(candidates, _) => {
                matches!(candidates, Candidates::Scan(_))
            }
            _ => false,
        };
        let mut phase = std::mem::replace(&mut self.phase, Phase::Done);
        let event = match &mut phase {
            Phase::Done => return Event::Done,
            Phase::Rows(candidates) => {
                let is_done = candidates.next(index, asked, left, batch);
                self.total = None;
                self.pass_over(index, batch);
                if is_done {
                    phase = Phase::Done;
                }
                Event::Found
            }
            Phase::Count(candidates, count) => {
                // Rows that are all old enough need not be listed.
                if index.clock() == self.began
                    && let Some(more) = candidates.count(index, asked, left)
                {
                    *count += more;
                }
                let is_done = candidates.next(index, asked, left, batch);
                self.pass_over(index, batch);
                *count += batch.len() as u64;
                batch.clear();
                if is_done {
                    self.total = Some(*count);
                    phase = Phase::Done;
                }
                Event::Found
            }
            Phase::Walk(walk) => {
                let is_old = |row| self.is_old(index, row);
                let end = walk.next(index, asked, kept, left, batch, is_old);
                match end {
                    None => Event::Found,
                    Some(WalkEnd::Enough) if self.total.is_some() || !asked.is_counted => {
                        phase = Phase::Done;
                        Event::Found
                    }
                    Some(WalkEnd::Enough) => {
                        let candidates = walk.candidates(index, asked, self.began);
                        phase = Phase::Count(candidates, 0);
                        Event::Found
                    }
                    Some(WalkEnd::All) => {
                        // What was found is all there is.
                        self.total = None;
                        phase = Phase::Done;
                        Event::Found
                    }
                    Some(WalkEnd::Lost) => {
                        batch.clear();
                        phase = Phase::Rows(walk.candidates(index, asked, self.began));
                        Event::Restarted
                    }
                }
            }
        };
        self.phase = phase;
        let looked_at = (left.looked_at - before) as u64;
        match is_scan {
            true => self.work.scanned += looked_at,
            false => self.work.candidates += looked_at,
        }
        self.work.found += batch.len() as u64;
        event
    }

    #[inline]
    fn is_old(&self, index: &SpaceIndex, row: u32) -> bool {
        let after = self.after.as_deref();
        index.rows.born(row) <= self.began && after.is_none_or(|after| index.rows.key(row) > after)
    }

    fn pass_over(&self, index: &SpaceIndex, batch: &mut Vec<u32>) {
        if index.clock() != self.began || self.after.is_some() {
            batch.retain(|row| self.is_old(index, *row));
        }
    }
}

enum WalkEnd {
    /// As many were found as are asked for.
    Enough,
    /// Every object was looked at.
    All,
    /// Another way is better now.
    Lost,
}

impl Walk {
    /// None if it goes on.
    fn next(
        &mut self,
        index: &SpaceIndex,
        asked: &Asked<'_>,
        kept: usize,
        left: &mut Left,
        batch: &mut Vec<u32>,
        is_old: impl Fn(u32) -> bool,
    ) -> Option<WalkEnd> {
        if self.clock != index.clock() {
            self.clock = index.clock();
            self.fetched.clear();
            match &mut self.place {
                WalkPlace::Key(_, rank) => *rank = None,
                WalkPlace::Order { .. } => return Some(WalkEnd::Lost),
            }
        }
        let is_enough = kept >= asked.keep;
        if is_enough && !self.has_ties {
            return Some(WalkEnd::Enough);
        }
        let check = Check::new(asked.predicate, index, Extent::of(self.budget));
        let mut end = None;
        let mut looked_at = None;
        while !left.is_none() {
            // Whoever asks tells whether what was found is kept.
            if !is_enough && kept + batch.len() >= asked.keep {
                break;
            }
            if self.budget == 0 {
                return Some(WalkEnd::Lost);
            }
            if self.fetched.is_empty() {
                // Where few are asked for, few are fetched.
                let hoped = asked
                    .keep
                    .saturating_sub(kept + batch.len())
                    .clamp(16, CHUNK);
                self.fetch(index, hoped);
            }
            let Some(row) = self.fetched.pop_front() else {
                end = Some(match (self.is_whole, is_enough) {
                    (true, false) => WalkEnd::All,
                    (_, true) => WalkEnd::Enough,
                    (false, false) => return Some(WalkEnd::Lost),
                });
                break;
            };
            if is_enough && !self.is_tied(index, row) {
                end = Some(WalkEnd::Enough);
                break;
            }
            looked_at = Some(row);
            left.note_apart(1);
            self.budget -= 1;
            if is_old(row) && check.holds(row) {
                batch.push(row);
                self.last = Some(row);
            }
        }
        if let (WalkPlace::Key(after, _), Some(row)) = (&mut self.place, looked_at) {
            *after = Some(index.rows.key(row).to_vec());
        }
        end
    }

    /// All that the query may hold for, to be looked at after all.
    fn candidates(&mut self, index: &SpaceIndex, asked: &Asked<'_>, began: u64) -> Candidates {
        let access = self.access.take().filter(|_| index.clock() == began);
        let access = access.unwrap_or_else(|| index.access(asked.predicate));
        Candidates::new(&access, index, asked.predicate)
    }

    fn order<'i>(&self, index: &'i SpaceIndex) -> Option<&'i super::sorted::Sorted> {
        match self.by {
            SortBy::Key => Some(index.rows.by_key()),
            SortBy::Attribute(id) => index.attribute(id)?.order.as_ref(),
        }
    }

    /// Whether the row has the same value as the one that was found last.
    fn is_tied(&self, index: &SpaceIndex, row: u32) -> bool {
        match (self.by, self.last) {
            (SortBy::Attribute(id), Some(last)) => index
                .attribute(id)
                .is_some_and(|it| it.data.compare(last, row).is_eq()),
            _ => false,
        }
    }

    /// Takes so many rows from the order.
    fn fetch(&mut self, index: &SpaceIndex, count: usize) {
        let Some(order) = self.order(index) else {
            return;
        };
        let is_descending = self.is_descending;
        let mut out = Vec::with_capacity(count);
        match &mut self.place {
            WalkPlace::Key(after, rank) if is_descending => {
                let known = || after.as_ref().map(|key| index.rows.rank_of_key(key));
                let end = rank.or_else(known).unwrap_or(order.len());
                let begin = end.saturating_sub(count);
                order.copy_between(begin, end, &mut out);
                out.reverse();
                *rank = Some(begin);
            }
            WalkPlace::Key(after, rank) => {
                // The last key itself may have gone.
                let behind = || {
                    let key = after.as_ref()?;
                    let rank = index.rows.rank_of_key(key);
                    let is_there = order
                        .at(rank)
                        .is_some_and(|row| index.rows.key(row) == &key[..]);
                    Some(rank + usize::from(is_there))
                };
                let begin = rank.or_else(behind).unwrap_or(0);
                order.copy_between(begin, begin + count, &mut out);
                *rank = Some(begin + out.len());
            }
            WalkPlace::Order { ranges, group, .. } if is_descending => {
                let SortBy::Attribute(id) = self.by else {
                    return;
                };
                let Some(data) = index.attribute(id).map(|it| &it.data) else {
                    return;
                };
                while out.len() < count {
                    if group.start == group.end {
                        let Some(range) = ranges.last_mut() else {
                            break;
                        };
                        let Some(top) = order.at(range.end - 1) else {
                            break;
                        };
                        let begin = match range.len() > 1
                            && order
                                .at(range.end - 2)
                                .is_some_and(|it| data.compare(it, top).is_eq())
                        {
                            false => range.end - 1,
                            true => order
                                .rank(|it| data.compare(it, top).is_lt())
                                .max(range.start),
                        };
                        *group = begin..range.end;
                        range.end = begin;
                        if range.start == range.end {
                            ranges.pop();
                        }
                    }
                    let end = group.end.min(group.start + count - out.len());
                    order.copy_between(group.start, end, &mut out);
                    group.start = end;
                }
            }
            WalkPlace::Order { ranges, .. } => {
                while out.len() < count {
                    let Some(range) = ranges.first_mut() else {
                        break;
                    };
                    let end = range.end.min(range.start + count - out.len());
                    order.copy_between(range.start, end, &mut out);
                    range.start = end;
                    if range.start == range.end {
                        ranges.remove(0);
                    }
                }
            }
        }
        self.fetched.extend(out);
    }
}
