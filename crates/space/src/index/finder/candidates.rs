//! The candidate rows of a query, each examined once: a list, all rows, or the rows of given keys.

use std::ops::Bound;

use super::{FinderQuery, StepBudget};
use crate::index::SpaceIndex;
use crate::index::access::Access;
use crate::index::check::{Check, MASKS_MAX, ScanSize, is_decided_by_sketches};
use crate::index::plan::Origin;
use crate::query::Predicate;
use crate::schema::AttributeId;

#[derive(Debug)]
pub(super) enum Candidates {
    List {
        rows: Vec<u32>,
        next: usize,
        /// The index's clock at which `known` was true for all rows of the list.
        clock: u64,
        known: KnownPart,
    },
    /// All rows from this one.
    Scan(u32),
    /// The requested keys after this one.
    Keys(Option<Vec<u8>>),
}
/// The part of the query that holds for all rows of a list.
#[derive(Debug, Clone, Copy)]
pub(super) enum KnownPart {
    Nothing,
    /// This part of a conjunction.
    Part(usize),
    All,
}
/// The maximum length of a list. Longer lists are replaced by a scan of all rows.
const LIST_MAX: usize = 1 << 18;
/// The effort of examining a row of a list. Several rows are prefetched at a time.
const LISTED_ROW_EFFORT: usize = 16;
/// The number of listed rows that are examined before the effort of the matches among them is counted.
const LISTED_BATCH: usize = 256;
/// Up to this many rows are always listed.
const ALWAYS_LISTED_MAX: usize = 64;
/// The effort of examining the next row of a scan, if the sketches do not decide.
const SCANNED_ROW_EFFORT: usize = 32;
/// The number of 64-row words that are examined before the effort of the matches among them is counted.
const SCAN_BATCH_WORDS: usize = 8;

/// Returns the effort of a scan of all rows.
pub(super) fn scan_effort(index: &SpaceIndex, predicate: &Predicate) -> usize {
    let each = if is_decided_by_sketches(predicate, index) {
        1
    } else {
        SCANNED_ROW_EFFORT
    };
    (index.rows.end() * each).max(64 * SCANNED_ROW_EFFORT)
}

/// Returns whether listing the rows of an access is cheaper than a scan of all rows.
pub(super) fn is_list_cheaper(access: &Access, index: &SpaceIndex, predicate: &Predicate) -> bool {
    let (count, all) = (access.count, index.rows.end());
    let is_cheaper = count <= ALWAYS_LISTED_MAX
        || (access.is_exact && count * 8 <= all)
        || count * LISTED_ROW_EFFORT <= scan_effort(index, predicate);
    access.is_list() && count <= LIST_MAX && is_cheaper
}

/// See [`SpaceIndex::estimate`].
pub(in crate::index) fn estimate(
    index: &SpaceIndex,
    predicate: &Predicate,
) -> (f64, Vec<AttributeId>) {
    let access = index.access(predicate);
    if is_list_cheaper(&access, index, predicate) {
        (
            access.count as f64,
            Origin::of(&access, index).attributes().collect(),
        )
    } else {
        let scan = scan_effort(index, predicate) as f64 / LISTED_ROW_EFFORT as f64;
        (scan.min(access.count as f64), Vec::new())
    }
}
impl Candidates {
    pub fn new(access: &Access, index: &SpaceIndex, predicate: &Predicate) -> Candidates {
        if is_list_cheaper(access, index, predicate) {
            let mut rows = Vec::with_capacity(access.count);
            access.list(index, &mut rows);
            return Candidates::List {
                rows,
                next: 0,
                clock: index.clock(),
                known: match (access.is_exact, access.decided_part) {
                    (true, _) => KnownPart::All,
                    (false, Some(part)) => KnownPart::Part(part),
                    (false, None) => KnownPart::Nothing,
                },
            };
        }
        Candidates::Scan(0)
    }

    /// Examines as many rows as the remaining effort allows, and adds the matches to `out`, which must be empty.
    /// Returns whether all rows have been examined.
    pub fn next(
        &mut self,
        index: &SpaceIndex,
        query: &FinderQuery<'_>,
        left: &mut StepBudget,
        out: &mut Vec<u32>,
    ) -> bool {
        match self {
            Candidates::List {
                rows,
                next,
                clock,
                known,
            } => {
                // Limit the batch, so that the effort of its matches does not greatly exceed the allowed effort.
                let most = left.rows(LISTED_ROW_EFFORT, query.weight).min(LISTED_BATCH);
                let end = rows.len().min(next.saturating_add(most));
                let looked_at = &rows[*next..end];
                left.charge(looked_at.len(), LISTED_ROW_EFFORT, query.weight);
                let is_same = *clock == index.clock();
                out.extend_from_slice(looked_at);
                if !is_same {
                    out.retain(|row| index.rows.is_alive(*row));
                }
                let known = if is_same { *known } else { KnownPart::Nothing };
                let extent = query.extent(ScanSize::of(out.len()));
                match known {
                    KnownPart::All => {}
                    KnownPart::Part(part) => {
                        Check::without_part(query.predicate, part, index, extent).retain(out);
                    }
                    KnownPart::Nothing => Check::new(query.predicate, index, extent).retain(out),
                }
                left.charge_found(out.len());
                *next = end;
                *next == rows.len()
            }
            Candidates::Scan(next) => {
                scan(index, query, next, left, false, &mut |word, mut found| {
                    while found != 0 {
                        out.push(word * 64 + found.trailing_zeros());
                        found &= found - 1;
                    }
                });
                *next as usize >= index.rows.end()
            }
            Candidates::Keys(after) => {
                let Some(keys) = query.keys else { return true };
                let check = Check::new(query.predicate, index, ScanSize::Few);
                let from = match &after {
                    Some(after) => Bound::Excluded(after.clone()),
                    None => Bound::Unbounded,
                };
                let mut last = None;
                for key in keys.range((from, Bound::Unbounded)) {
                    if left.is_spent() {
                        break;
                    }
                    left.charge_single_rows(1, query.weight);
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

    /// Counts the rows that [`Candidates::next`] would add. All rows must be older than the run. Returns `None` if
    /// these candidates cannot be counted without listing.
    pub fn count(
        &mut self,
        index: &SpaceIndex,
        query: &FinderQuery<'_>,
        left: &mut StepBudget,
    ) -> Option<u64> {
        let Candidates::Scan(next) = self else {
            return None;
        };
        let mut count = 0;
        scan(index, query, next, left, true, &mut |_, found| {
            count += u64::from(found.count_ones());
        });
        Some(count)
    }
}

/// Examines rows from `next` as far as the effort allows, and passes the matches to `each`: the number of a 64-row
/// word, and its bits. Unless the matches are only counted, the work for each of them counts as effort.
fn scan(
    index: &SpaceIndex,
    query: &FinderQuery<'_>,
    next: &mut u32,
    left: &mut StepBudget,
    is_counting: bool,
    each: &mut dyn FnMut(u32, u64),
) {
    let end = index.rows.end() as u32;
    if *next >= end || left.is_spent() {
        return;
    }
    let check = Check::new(query.predicate, index, query.extent(ScanSize::All));
    let each_row = if check.is_quick() {
        1
    } else {
        SCANNED_ROW_EFFORT
    };
    let words_max = if is_counting {
        MASKS_MAX
    } else {
        SCAN_BATCH_WORDS
    };
    let words_max = words_max.div_ceil(query.weight);
    while *next < end && !left.is_spent() {
        let rows = u32::try_from(left.rows(each_row, query.weight)).unwrap_or(u32::MAX);
        let (first, begun) = (*next / 64, *next % 64);
        let stop = end.min(next.saturating_add(rows));
        let stop = stop.min((first + words_max as u32) * 64);
        let mut masks = [0; MASKS_MAX];
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
        check.filter_masks(first as usize, masks);
        left.charge((stop - *next) as usize, each_row, query.weight);
        for (word, found) in (first..).zip(masks) {
            each(word, *found);
            if !is_counting {
                left.charge_found(found.count_ones() as usize);
            }
        }
        *next = stop;
    }
}
