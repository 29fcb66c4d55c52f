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
//! 2. What a run keeps is bounded: a list of [`candidates::LIST_MAX`] rows, and what was found in one step.

mod candidates;
mod walk;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

pub(super) use candidates::estimate;

use self::candidates::{Candidates, is_list_cheaper, scan_effort};
use self::walk::{Walk, WalkEnd, WalkPlace};
use super::SpaceIndex;
use super::access::{Access, walk_ranks};
use super::check::Extent;
use super::plan::{Origin, Plan};
use crate::query::Predicate;
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
    /// How much more than a few conditions on the object a row that is looked at takes: 1 for those.
    pub weight: usize,
}

impl<'a> Asked<'a> {
    pub fn new(predicate: &'a Predicate, keep: usize) -> Asked<'a> {
        Asked {
            predicate,
            order: &[],
            keep,
            is_counted: false,
            keys: None,
            weight: 1 + predicate.tests() / CONDITIONS,
        }
    }

    /// The extent to which the predicate is made ready for a step: for many conditions, less is done for each.
    fn extent(&self, wanted: Extent) -> Extent {
        match self.weight {
            0..=2 => wanted,
            3..=16 => wanted.min(Extent::Many),
            _ => wanted.min(Extent::Some),
        }
    }
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
    /// What planning took, in units of [`APART`].
    planned: usize,
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

pub(super) enum Event {
    /// There may be rows in the batch.
    Found,
    /// All rows that were found are to be forgotten: they will come again.
    Restarted,
    /// So many were looked at as may be.
    Paused,
    Done,
}

/// Conditions that are tested with the effort of one row. Fewer make no difference: most of it is waiting for memory.
const CONDITIONS: usize = 4;
/// Rows that are looked at in any step of a query with many conditions: to make them ready takes as long as to test some rows.
const ROWS_MIN: usize = 16;

/// The effort of looking at a row by itself, wherever it lies; a bit and a byte of one after the other is looked at for one.
pub(super) const APART: usize = 256;

/// The effort that a step may still take, and what it has looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Left {
    effort: usize,
    /// The most rows in a batch.
    rows_max: usize,
    looked_at: usize,
    spent: usize,
}

impl Left {
    pub fn new(effort: usize) -> Left {
        Left {
            effort: effort.max(1),
            rows_max: usize::MAX,
            looked_at: 0,
            spent: 0,
        }
    }

    /// With batches of so many rows at most, one at least.
    pub fn in_batches_of(self, rows_max: usize) -> Left {
        Left {
            rows_max: rows_max.max(1),
            ..self
        }
    }

    fn is_none(&self) -> bool {
        self.effort == 0
    }

    /// How many rows may be looked at, each with so much effort, `weight` times as much for the conditions: one at least.
    fn rows(&self, each: usize, weight: usize) -> usize {
        let rows = match weight {
            1 => self.effort.div_ceil(each),
            _ => self.effort.div_ceil(each * weight).max(ROWS_MIN),
        };
        rows.min(self.rows_max)
    }

    fn note(&mut self, rows: usize, each: usize, weight: usize) {
        let effort = rows.saturating_mul(each).saturating_mul(weight);
        self.effort = self.effort.saturating_sub(effort);
        self.looked_at += rows;
        self.spent += effort;
    }

    /// What was spent, also beyond the effort that was allowed.
    pub fn spent(&self) -> usize {
        self.spent
    }

    fn note_found(&mut self, rows: usize) {
        self.effort = self.effort.saturating_sub(rows * APART);
        self.spent += rows * APART;
    }

    fn note_apart(&mut self, rows: usize, weight: usize) {
        self.note(rows, APART, weight);
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
            planned: 0,
            origin: Origin::Nothing,
            estimate: 0,
        };
        if let Some(keys) = asked.keys {
            finder.origin = Origin::Keys(keys.len());
            finder.estimate = keys.len() as u64;
            finder.phase = Phase::Rows(Candidates::Keys(finder.after.clone()));
            return finder;
        }
        let (access, planned) = Access::planned(asked.predicate, index);
        finder.planned = planned;
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

    /// Whether what comes next depends on how many are kept of what was found.
    pub fn is_walking(&self) -> bool {
        matches!(self.phase, Phase::Walk(_))
    }

    /// The effort that planning took, and listing rows.
    pub fn effort_of_planning(&self) -> usize {
        self.planned * APART + self.lists()
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
