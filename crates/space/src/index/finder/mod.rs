//! Finds the matching rows of a query in steps, between which the index may change.
//!
//! ```text
//!            ┌─► Walk: in result order, until enough are found ──► Count, if the total is not known ─┐
//!  Finder::new                 │ too many examined, or the index changed                              ├─► Done
//!            └─► Rows ◄────────┘                                                                     ┘
//! ```
//!
//! *Rows* examines each candidate of the query's access path once. If there are few candidates, it lists them at the
//! start; otherwise it scans all rows by number. A row keeps its number while its object exists, and rows added after
//! the start of the run are skipped. Each row is therefore examined once, whatever changes meanwhile (invariant 2 of
//! the module `index`).
//!
//! *Walk* examines objects in result order, and stops early. By key, it continues after the last key in the next step.
//! By an attribute, it must end before the index changes, because an object may move within that order. If the index
//! changes first, the matches found so far are discarded, and Rows starts.
//!
//! 1. A walk that finds fewer matches than expected examines no more rows than the work it was expected to save.
//! 2. The memory of a run is bounded: a list of [`candidates::LIST_MAX`] rows, and the matches of one step.

mod candidates;
mod walk;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

pub(super) use candidates::estimate;

use self::candidates::{Candidates, is_list_cheaper, scan_effort};
use self::walk::{Walk, WalkEnd, WalkPlace};
use super::SpaceIndex;
use super::access::{Access, walk_ranks};
use super::check::ScanSize;
use super::plan::{Origin, Plan};
use crate::query::Predicate;
use crate::search::SortKey;
use crate::search::request::SortBy;

/// The request of a search. It is the same in every step of a run.
#[derive(Debug, Clone, Copy)]
pub struct FinderQuery<'a> {
    pub predicate: &'a Predicate,
    pub order: &'a [SortKey],
    /// The number of rows to keep, the first ones in order.
    pub keep: usize,
    /// True if the total is requested.
    pub is_counted: bool,
    /// Restricts the search to these keys.
    pub keys: Option<&'a BTreeSet<Vec<u8>>>,
    /// The work of testing a row, where 1 is a test of a few conditions.
    pub weight: usize,
}

impl<'a> FinderQuery<'a> {
    pub fn new(predicate: &'a Predicate, keep: usize) -> FinderQuery<'a> {
        FinderQuery {
            predicate,
            order: &[],
            keep,
            is_counted: false,
            keys: None,
            weight: 1 + predicate.tests() / CONDITIONS,
        }
    }

    /// Limits the preparation of the predicate. With many conditions, each gets less.
    fn extent(&self, wanted: ScanSize) -> ScanSize {
        match self.weight {
            0..=2 => wanted,
            3..=16 => wanted.min(ScanSize::Many),
            _ => wanted.min(ScanSize::Some),
        }
    }
}

#[derive(Debug)]
pub(super) struct Finder {
    /// The index's clock at the start. Rows added later are skipped.
    started_at: u64,
    /// Restricts the search to keys after this one.
    after: Option<Vec<u8>>,
    phase: Phase,
    /// The number of matches, once it is known.
    total: Option<u64>,
    /// The counters for [`Profile`](super::Profile).
    pub work: Work,
    /// The cost of planning, in units of [`SINGLE_ROW_EFFORT`].
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
    /// The batch may contain matches.
    Found,
    /// All matches so far must be discarded. They will be found again.
    Restarted,
    /// The effort is spent.
    Paused,
    Done,
}

/// The number of conditions that count as the effort of one row. Fewer conditions cost the same, because most of the
/// time is spent on cache misses.
const CONDITIONS: usize = 4;
/// The minimum number of rows per step of a query with many conditions, because preparing the conditions takes as long
/// as testing some rows.
const ROWS_MIN: usize = 16;

/// The effort of examining one row individually, anywhere in memory. In a sequential scan, the same work examines one
/// row for an effort of 1.
pub(super) const SINGLE_ROW_EFFORT: usize = 256;

/// The remaining effort of a step, and the work done so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepBudget {
    effort: usize,
    /// The maximum number of rows in a batch.
    rows_max: usize,
    looked_at: usize,
    spent: usize,
}

impl StepBudget {
    pub fn new(effort: usize) -> StepBudget {
        StepBudget {
            effort: effort.max(1),
            rows_max: usize::MAX,
            looked_at: 0,
            spent: 0,
        }
    }

    /// Limits batches to this many rows, but at least one.
    pub fn in_batches_of(self, rows_max: usize) -> StepBudget {
        StepBudget {
            rows_max: rows_max.max(1),
            ..self
        }
    }

    fn is_spent(&self) -> bool {
        self.effort == 0
    }

    /// Returns how many rows may be examined, at least one, if each takes the effort `each`, multiplied by `weight`.
    fn rows(&self, each: usize, weight: usize) -> usize {
        let rows = match weight {
            1 => self.effort.div_ceil(each),
            _ => self.effort.div_ceil(each * weight).max(ROWS_MIN),
        };
        rows.min(self.rows_max)
    }

    fn charge(&mut self, rows: usize, each: usize, weight: usize) {
        let effort = rows.saturating_mul(each).saturating_mul(weight);
        self.effort = self.effort.saturating_sub(effort);
        self.looked_at += rows;
        self.spent += effort;
    }

    /// Returns the spent effort, including any excess over the allowed effort.
    pub fn spent(&self) -> usize {
        self.spent
    }

    fn charge_found(&mut self, rows: usize) {
        self.effort = self.effort.saturating_sub(rows * SINGLE_ROW_EFFORT);
        self.spent += rows * SINGLE_ROW_EFFORT;
    }

    fn charge_single_rows(&mut self, rows: usize, weight: usize) {
        self.charge(rows, SINGLE_ROW_EFFORT, weight);
    }
}

impl Finder {
    /// Plans a query. With `after`, it is restricted to keys after this one, and matches are not counted.
    pub fn new(index: &SpaceIndex, query: &FinderQuery<'_>, after: Option<Vec<u8>>) -> Finder {
        let mut finder = Finder {
            started_at: index.clock(),
            after,
            phase: Phase::Done,
            total: None,
            work: Work::default(),
            planned: 0,
            origin: Origin::Nothing,
            estimate: 0,
        };
        if let Some(keys) = query.keys {
            finder.origin = Origin::Keys(keys.len());
            finder.estimate = keys.len() as u64;
            finder.phase = Phase::Rows(Candidates::Keys(finder.after.clone()));
            return finder;
        }
        let (access, planned) = Access::planned(query.predicate, index);
        finder.planned = planned;
        finder.origin = Origin::of(&access, index);
        finder.estimate = access.count as u64;
        if access.is_exact && finder.after.is_none() {
            finder.total = Some(access.count as u64);
        }
        if access.count == 0 {
            finder.total = Some(0);
        }
        if access.count == 0 || (query.keep == 0 && (finder.total.is_some() || !query.is_counted)) {
            finder.estimate = 0;
            return finder;
        }
        finder.phase = match finder.walk(index, query, &access) {
            Some(walk) => Phase::Walk(Walk {
                access: Some(access),
                ..walk
            }),
            None if query.keep == 0 => {
                Phase::Count(Candidates::new(&access, index, query.predicate), 0)
            }
            None => Phase::Rows(Candidates::new(&access, index, query.predicate)),
        };
        finder
    }

    /// Returns a walk in result order, if it is probably cheaper.
    fn walk(
        &mut self,
        index: &SpaceIndex,
        query: &FinderQuery<'_>,
        access: &Access,
    ) -> Option<Walk> {
        let all = index.rows.len();
        let found = ((access.share * all as f64) as usize)
            .min(access.count)
            .max(1);
        if query.keep == 0 || query.keep >= found {
            return None;
        }
        let first = query.order.first().copied();
        let (by, is_descending) =
            first.map_or((SortBy::Key, false), |it| (it.by, it.is_descending));
        let (place, length, is_whole) = match by {
            SortBy::Key => (WalkPlace::Key(self.after.clone(), None), all, true),
            SortBy::Attribute(id) => {
                let attribute = index.attribute(id).filter(|it| it.can_walk())?;
                let (ranges, is_whole) = walk_ranks(query.predicate, attribute, all);
                let length = ranges.iter().map(Range::len).sum();
                let group = 0..0;
                (WalkPlace::Order { ranges, group }, length, is_whole)
            }
        };
        if self.after.is_some() && (by != SortBy::Key || is_descending) {
            return None;
        }
        // The cost of examining all candidates, as a number of individually examined rows. Each match costs one more,
        // to sort it.
        let scan = scan_effort(index, query.predicate);
        let candidates = if is_list_cheaper(access, index, query.predicate) {
            access.count
        } else {
            scan.div_ceil(SINGLE_ROW_EFFORT)
        };
        let is_count_saved = self.total.is_some() || !query.is_counted;
        let saved = found + if is_count_saved { candidates } else { 0 };
        let expected = (query.keep as f64 * length as f64 / found as f64) as usize;
        // A walk that finds too few matches within this budget ends, and all candidates are examined after all. The
        // total cost is then at most doubled.
        if expected.saturating_mul(5) / 4 > saved {
            return None;
        }
        self.estimate = (expected + if is_count_saved { 0 } else { candidates }) as u64;
        Some(Walk {
            by,
            is_descending,
            has_ties: query.order.len() > 1 && by != SortBy::Key,
            is_whole,
            place,
            fetched: VecDeque::new(),
            clock: index.clock(),
            last: None,
            budget: saved,
            access: None,
        })
    }

    pub fn plan(&self, index: &SpaceIndex, query: &FinderQuery<'_>) -> Plan {
        let (predicate, keep) = (query.predicate, query.keep);
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

    /// Returns whether the next rows depend on how many of the previous matches were kept.
    pub fn is_walking(&self) -> bool {
        matches!(self.phase, Phase::Walk(_))
    }

    /// Returns the effort of planning and of listing rows.
    pub fn planning_effort(&self) -> usize {
        self.planned * SINGLE_ROW_EFFORT + self.listed_rows()
    }

    /// Returns the number of listed rows.
    pub fn listed_rows(&self) -> usize {
        match &self.phase {
            Phase::Rows(Candidates::List { rows, .. })
            | Phase::Count(Candidates::List { rows, .. }, _) => rows.len(),
            _ => 0,
        }
    }

    /// Returns the number of matches, if it differs from the number of rows found.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// Examines more rows within the remaining effort, and fills the batch with matches. `kept` is the number of
    /// previous matches that were kept.
    pub fn next(
        &mut self,
        index: &SpaceIndex,
        query: &FinderQuery<'_>,
        kept: usize,
        left: &mut StepBudget,
        batch: &mut Vec<u32>,
    ) -> Event {
        batch.clear();
        if left.is_spent() && !matches!(self.phase, Phase::Done) {
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
                let is_done = candidates.next(index, query, left, batch);
                self.total = None;
                self.remove_new_rows(index, batch);
                if is_done {
                    phase = Phase::Done;
                }
                Event::Found
            }
            Phase::Count(candidates, count) => {
                // If all rows are older than the run, they can be counted without listing them.
                if index.clock() == self.started_at
                    && let Some(more) = candidates.count(index, query, left)
                {
                    *count += more;
                }
                let is_done = candidates.next(index, query, left, batch);
                self.remove_new_rows(index, batch);
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
                let end = walk.next(index, query, kept, left, batch, is_old);
                match end {
                    None => Event::Found,
                    Some(WalkEnd::Enough) if self.total.is_some() || !query.is_counted => {
                        phase = Phase::Done;
                        Event::Found
                    }
                    Some(WalkEnd::Enough) => {
                        let candidates = walk.candidates(index, query, self.started_at);
                        phase = Phase::Count(candidates, 0);
                        Event::Found
                    }
                    Some(WalkEnd::All) => {
                        // The rows found are all matches.
                        self.total = None;
                        phase = Phase::Done;
                        Event::Found
                    }
                    Some(WalkEnd::Abandoned) => {
                        batch.clear();
                        phase = Phase::Rows(walk.candidates(index, query, self.started_at));
                        Event::Restarted
                    }
                }
            }
        };
        self.phase = phase;
        let looked_at = (left.looked_at - before) as u64;
        if is_scan {
            self.work.scanned += looked_at
        } else {
            self.work.candidates += looked_at
        }
        self.work.found += batch.len() as u64;
        event
    }

    #[inline]
    fn is_old(&self, index: &SpaceIndex, row: u32) -> bool {
        let after = self.after.as_deref();
        index.rows.added_at(row) <= self.started_at
            && after.is_none_or(|after| index.rows.key(row) > after)
    }

    fn remove_new_rows(&self, index: &SpaceIndex, batch: &mut Vec<u32>) {
        if index.clock() != self.started_at || self.after.is_some() {
            batch.retain(|row| self.is_old(index, *row));
        }
    }
}
