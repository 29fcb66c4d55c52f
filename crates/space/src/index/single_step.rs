//! Executes a short search in one step. The rows are sorted as numbers, and read directly from the index.

use std::cmp::Ordering;

use super::SpaceIndex;
use super::finder::{Event, Finder, SINGLE_ROW_EFFORT, StepBudget};
use super::run::finder_query;
use crate::base::ordered::Scalar;
use crate::search::request::SortBy;
use crate::search::{Search, SortKey};

/// The result of a search: a total, and rows in result order. It is valid while the index does not change.
#[derive(Debug)]
pub struct SearchResult<'i> {
    pub total: u64,
    /// The work of the search, as a number of objects that could have been examined individually.
    pub work: u64,
    index: &'i SpaceIndex,
    rows: Vec<u32>,
}

impl<'i> SearchResult<'i> {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the key of each row.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &'i [u8]> {
        self.rows.iter().map(|row| self.index.rows.key(*row))
    }

    /// Returns the value of the first sort key in a row, or `None` if there is no sort key or no value.
    pub fn first_sort_value(&self, at: usize, order: &[SortKey]) -> Option<Scalar> {
        let row = self.rows[at];
        match order.first()?.by {
            SortBy::Key => Some(Scalar::Bytes(self.index.rows.key(row).to_vec())),
            SortBy::Attribute(id) => {
                let attribute = self.index.attribute(id)?;
                attribute.data.sort_value(row, &attribute.attribute)
            }
        }
    }
}

/// The number of surplus rows that accumulate before the first ones are selected.
const SURPLUS_ROWS_MIN: usize = 512;
/// The number of keys that are prefetched before the first is compared.
const KEYS_PREFETCHED: usize = 12;

/// Returns whether there are enough rows to select the first ones now, although more may follow.
pub(super) fn should_select(keep: usize, rows: &[u32]) -> bool {
    rows.len() >= keep.saturating_mul(2).saturating_add(SURPLUS_ROWS_MIN)
}

impl SpaceIndex {
    /// Executes a search, and returns its rows from the offset of `LIMIT`. Returns `None` if it would exceed this
    /// [effort](super::effort); it must then run in steps.
    pub fn search_in_one_step(&self, search: &Search, effort: usize) -> Option<SearchResult<'_>> {
        let query = finder_query(search);
        let keep = search.keep();
        let mut finder = Finder::new(self, &query, None);
        if finder.listed_rows() > effort / SINGLE_ROW_EFFORT {
            return None;
        }
        let mut left = StepBudget::new(effort / search.row_work());
        let (mut rows, mut batch, mut count) = (Vec::new(), Vec::new(), 0);
        loop {
            match finder.next(self, &query, count, &mut left, &mut batch) {
                Event::Found => {
                    count += batch.len();
                    rows.append(&mut batch);
                    if should_select(keep, &rows) {
                        self.keep_first(&search.order, keep, &mut rows);
                    }
                }
                Event::Restarted => {
                    rows.clear();
                    count = 0;
                }
                Event::Paused => return None,
                Event::Done => break,
            }
        }
        self.keep_first(&search.order, keep, &mut rows);
        self.sort_rows(&search.order, &mut rows);
        rows.drain(..(search.offset as usize).min(rows.len()));
        let spent = (left.spent() * search.row_work()).max(finder.planning_effort());
        Some(SearchResult {
            work: spent.div_ceil(SINGLE_ROW_EFFORT) as u64,
            total: finder.total().unwrap_or(0).max(count as u64),
            index: self,
            rows,
        })
    }

    /// Keeps the first `keep` rows in order.
    pub(super) fn keep_first(&self, order: &[SortKey], keep: usize, rows: &mut Vec<u32>) {
        if rows.len() <= keep {
            return;
        }
        if keep == 0 {
            return rows.clear();
        }
        if order.is_empty() {
            let mut heads = self.heads(rows);
            heads.select_nth_unstable_by(keep - 1, |a, b| self.compare_heads(*a, *b));
            rows.truncate(keep);
            rows.iter_mut()
                .zip(heads)
                .for_each(|(row, (_, kept))| *row = kept);
            return;
        }
        rows.select_nth_unstable_by(keep - 1, |a, b| self.compare_ranks(order, *a, *b));
        rows.truncate(keep);
    }

    fn sort_rows(&self, order: &[SortKey], rows: &mut [u32]) {
        if order.is_empty() {
            self.sort_by_key(rows)
        } else {
            rows.sort_unstable_by(|a, b| self.compare_ranks(order, *a, *b))
        }
    }

    fn sort_by_key(&self, rows: &mut [u32]) {
        let mut heads = self.heads(rows);
        heads.sort_unstable_by(|a, b| self.compare_heads(*a, *b));
        for (row, (_, sorted)) in rows.iter_mut().zip(heads) {
            *row = sorted;
        }
    }

    /// Returns each row with the eight key bytes after the common prefix of all keys. They distinguish most keys.
    fn heads(&self, rows: &[u32]) -> Vec<(u64, u32)> {
        let key = |row: u32| self.rows.key(row);
        let Some(first) = rows.first().map(|row| key(*row)) else {
            return Vec::new();
        };
        let mut alike = first.len();
        for (at, row) in rows.iter().enumerate() {
            if let Some(ahead) = rows.get(at + KEYS_PREFETCHED) {
                self.rows.prefetch_key(*ahead);
            }
            alike = common_prefix_len(&first[..alike], key(*row));
        }
        let heads = rows.iter().map(|row| (head_of(&key(*row)[alike..]), *row));
        heads.collect()
    }

    fn compare_heads(&self, a: (u64, u32), b: (u64, u32)) -> Ordering {
        let by_key = || self.rows.key(a.1).cmp(self.rows.key(b.1));
        a.0.cmp(&b.0).then_with(by_key)
    }
}

/// Returns the length of the common prefix.
fn common_prefix_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the first eight bytes as a number that sorts like them.
fn head_of(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            let mut head = [0; 8];
            head[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(head)
        }
    }
}
