//! Examines objects in result order until enough matches are found.

use std::collections::VecDeque;
use std::ops::Range;

use super::candidates::Candidates;
use super::{FinderQuery, StepBudget};
use crate::index::SpaceIndex;
use crate::index::access::Access;
use crate::index::check::{Check, ScanSize};
use crate::index::sorted::Sorted;
use crate::search::request::SortBy;

#[derive(Debug)]
pub(super) struct Walk {
    pub by: SortBy,
    pub is_descending: bool,
    /// There are further sort keys, so all rows with the value of the last match must be examined.
    pub has_ties: bool,
    /// No match is outside the order of the walk.
    pub is_whole: bool,
    pub place: WalkPlace,
    /// The next rows of the order, valid at this value of the index's clock.
    pub fetched: VecDeque<u32>,
    pub clock: u64,
    /// The last match.
    pub last: Option<u32>,
    /// The number of rows that the walk may still examine.
    pub budget: usize,
    /// The access path at the start of the run.
    pub access: Option<Access>,
}

#[derive(Debug)]
pub(super) enum WalkPlace {
    /// After this key, and at this rank if the index has not changed.
    Key(Option<Vec<u8>>, Option<usize>),
    /// The remaining ranges of ranks in the attribute's order.
    Order {
        ranges: Vec<Range<usize>>,
        /// In a descending walk, the ranks of rows with equal values. They are visited in key order.
        group: Range<usize>,
    },
}

/// The maximum number of rows fetched from the order at a time.
const CHUNK: usize = 256;

pub(super) enum WalkEnd {
    /// The requested number of matches was found.
    Enough,
    /// Every object was examined.
    All,
    /// The walk is no longer the best method.
    Abandoned,
}

impl Walk {
    /// Examines rows. Returns `None` if the walk is not complete.
    pub fn next(
        &mut self,
        index: &SpaceIndex,
        query: &FinderQuery<'_>,
        kept: usize,
        left: &mut StepBudget,
        batch: &mut Vec<u32>,
        is_old: impl Fn(u32) -> bool,
    ) -> Option<WalkEnd> {
        if self.clock != index.clock() {
            self.clock = index.clock();
            self.fetched.clear();
            match &mut self.place {
                WalkPlace::Key(_, rank) => *rank = None,
                WalkPlace::Order { .. } => return Some(WalkEnd::Abandoned),
            }
        }
        let is_enough = kept >= query.keep;
        if is_enough && !self.has_ties {
            return Some(WalkEnd::Enough);
        }
        let extent = query.extent(ScanSize::of(self.budget));
        let check = Check::new(query.predicate, index, extent);
        let mut end = None;
        let mut looked_at = None;
        while !left.is_spent() {
            // The caller determines how many of these matches are kept.
            if !is_enough && kept + batch.len() >= query.keep {
                break;
            }
            if self.budget == 0 {
                return Some(WalkEnd::Abandoned);
            }
            if self.fetched.is_empty() {
                // Fetch few rows if few are requested.
                let rows_max = query
                    .keep
                    .saturating_sub(kept + batch.len())
                    .clamp(16, CHUNK);
                self.fetch(index, rows_max);
            }
            let Some(row) = self.fetched.pop_front() else {
                end = Some(match (self.is_whole, is_enough) {
                    (true, false) => WalkEnd::All,
                    (_, true) => WalkEnd::Enough,
                    (false, false) => return Some(WalkEnd::Abandoned),
                });
                break;
            };
            if is_enough && !self.is_tied(index, row) {
                end = Some(WalkEnd::Enough);
                break;
            }
            looked_at = Some(row);
            left.charge_single_rows(1, query.weight);
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

    /// Returns all candidates of the query, after the walk failed.
    pub fn candidates(
        &mut self,
        index: &SpaceIndex,
        query: &FinderQuery<'_>,
        began: u64,
    ) -> Candidates {
        let access = self.access.take().filter(|_| index.clock() == began);
        let access = access.unwrap_or_else(|| index.access(query.predicate));
        Candidates::new(&access, index, query.predicate)
    }

    fn order<'i>(&self, index: &'i SpaceIndex) -> Option<&'i Sorted> {
        match self.by {
            SortBy::Key => Some(index.rows.by_key()),
            SortBy::Attribute(id) => index.attribute(id)?.order.as_ref(),
        }
    }

    /// Returns whether the row has the same value as the last match.
    fn is_tied(&self, index: &SpaceIndex, row: u32) -> bool {
        match (self.by, self.last) {
            (SortBy::Attribute(id), Some(last)) => index
                .attribute(id)
                .is_some_and(|it| it.data.compare(last, row).is_eq()),
            _ => false,
        }
    }

    /// Fetches `count` rows from the order.
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
                // The last key may have been deleted.
                let behind = || {
                    let key = after.as_ref()?;
                    let rank = index.rows.rank_of_key(key);
                    let is_present = order
                        .at(rank)
                        .is_some_and(|row| index.rows.key(row) == &key[..]);
                    Some(rank + usize::from(is_present))
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
                        let begin = if range.len() > 1
                            && order
                                .at(range.end - 2)
                                .is_some_and(|it| data.compare(it, top).is_eq())
                        {
                            order
                                .rank(|it| data.compare(it, top).is_lt())
                                .max(range.start)
                        } else {
                            range.end - 1
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
