//! Pages: several joins write to one table, and each marks its rows by a literal word after a common prefix, the page.
//!
//! ```text
//!  m|ann|17|a         of the join  m|<author>|<seq>|a = copy …
//!  m|ann|17|b         of           m|<author>|<seq>|b = copy …
//!  m|ann|17|c|…       of           m|<author>|<seq>|c|<number> = copy …
//!  └ page ─┘└ word
//! ```
//!
//! 1. A join's rows are split by page and word, for as long as it has rows, if its first fill is a page, or if it was
//!    not filled when another join's page was. All rows of a page that one join computes then form a group. A read of
//!    the page reads one group per join, one after the other: no word is a prefix of another.
//! 2. A page, or its parts up to some join's, is read this way if those parts and everything they were computed from
//!    are filled and fresh.
//!
//! The cache misses of all joins overlap: each lookup step prefetches for all joins before the next one begins.

use crate::base::key_range::{EachRow, KeyRange, is_successor};
use crate::engine::Engine;
use crate::join::joins::Joins;
use crate::join::{Join, JoinId, TableId};
use crate::tables::pages::Pages;
use crate::tables::scan::Limits;

impl Engine {
    /// Number of pages that were read by the groups of their joins.
    pub fn pages_read(&self) -> u64 {
        self.reads.pages_read
    }

    /// Finds a page that is filled and fresh, or its first parts. May return `false` even if it is.
    pub(crate) fn find_page(&mut self, table: TableId, lo: &[u8], hi: &[u8]) -> bool {
        let state = &mut self.tables[table];
        if state.makers.is_empty() {
            return false;
        }
        if !state.pages.is_analyzed {
            self.analyze_pages(table, lo);
        }
        let Engine { tables, joins, .. } = self;
        let Pages {
            makers,
            len,
            found,
            sought,
            keys,
            ..
        } = &mut tables[table].pages;
        if *len != lo.len() {
            return false;
        }
        let count = match hi.strip_prefix(lo) {
            None if is_successor(lo, hi) => makers.len(),
            None => 0,
            Some(end) => parts_before(makers, joins, end),
        };
        if count == 0 {
            return false;
        }
        let makers = &makers[..count];
        let join_of = |maker: JoinId| joins.get(maker);
        let is_idle = |&maker: &JoinId| join_of(maker).is_some_and(Join::is_idle);
        found.clear();
        sought.clear();
        keys.clear();
        for &maker in makers {
            let Some(join) = join_of(maker) else {
                return false;
            };
            let Some(page) = &join.page else { return false };
            if !join.is_read_as_stored() || !join.upstream.iter().all(is_idle) {
                return false;
            }
            let start = keys.len();
            keys.extend_from_slice(lo);
            keys.extend_from_slice(&page.word);
            sought.push((join.output.rows.seek(&keys[start..]), None));
        }
        let all = || makers.iter().filter_map(|&maker| join_of(maker));
        for (join, (sought, _)) in all().zip(&*sought) {
            join.output.rows.prefetch_sought(*sought);
        }
        let mut start = 0;
        for (join, (sought, group)) in all().zip(&mut *sought) {
            let word = join.page.as_ref().map_or(0, |page| page.word.len());
            let end = start + lo.len() + word;
            *group = join.output.rows.find_sought(*sought, &keys[start..end]);
            start = end;
            if let Some(group) = group {
                join.fills.prefetch_of_group(*group);
            }
        }
        for (join, (_, group)) in all().zip(&*sought) {
            if let Some(group) = group {
                join.fills.prefetch_target(*group);
                join.output.rows.prefetch_rows(*group);
            }
        }
        for (&maker, &(_, group)) in makers.iter().zip(&*sought) {
            let Some(join) = joins.get_mut(maker) else {
                return false;
            };
            let fill = match group {
                Some(group) => join.fills.of_group(group),
                // The join has no rows on this page.
                None => join.fills.of_prefix(lo),
            };
            let Some(fill) = fill else {
                return false;
            };
            let Some(target) = join.fills.target_at(fill) else {
                return false;
            };
            let is_complete = group.is_none() || (target.group == group && target.holds(&[]));
            if target.unsettled || !is_complete {
                return false;
            }
            join.fills.target_mut(fill).visit();
            found.push((maker, group));
        }
        self.reads.pages_read += 1;
        true
    }

    /// Determines from the page being read whether the joins of a table can be read this way.
    fn analyze_pages(&mut self, table: TableId, lo: &[u8]) {
        let Engine { tables, joins, .. } = self;
        let state = &mut tables[table];
        state.pages.makers.clear();
        let mut pages = state.makers.iter().filter_map(|&maker| {
            let join = joins.get(maker)?;
            join.page.as_ref()
        });
        match pages.next() {
            // This read is not of a page, but another one may be.
            Some(page) if page.len != lo.len() => return,
            Some(_) => {
                let page = KeyRange::prefix(lo);
                for &maker in &state.makers {
                    if let Some(join) = joins.get_mut(maker) {
                        join.split_for_page(&page);
                    }
                }
            }
            None => {}
        }
        let state = &mut self.tables[table];
        let word = |maker: JoinId| {
            let join = self.joins.get(maker)?;
            join.page.as_ref().map(|page| (page, maker))
        };
        let words: Option<Vec<_>> = state.makers.iter().map(|&maker| word(maker)).collect();
        let mut words = words.unwrap_or_default();
        words.sort_by(|(a, _), (b, _)| a.word.cmp(&b.word));
        let is_apart = words
            .windows(2)
            .all(|two| two[0].0.len == two[1].0.len && !two[1].0.word.starts_with(&two[0].0.word));
        let pages = &mut state.pages;
        pages.is_analyzed = true;
        if let (true, Some((first, _))) = (is_apart, words.first()) {
            pages.len = first.len;
            pages.makers.extend(words.iter().map(|(_, maker)| maker));
        }
    }

    /// Outputs the page that was found last.
    pub(crate) fn output_page(&self, table: TableId, limits: Limits, each: &mut EachRow<'_>) {
        let found = &self.tables[table].pages.found;
        let mut left = limits.limit.unwrap_or(u64::MAX);
        let mut text = Vec::new();
        for at in 0..found.len() {
            let at = if limits.reverse {
                found.len() - 1 - at
            } else {
                at
            };
            let (maker, group) = found[at];
            let Some(join) = self.joins.get(maker) else {
                continue;
            };
            let Some(mut rows) = group.and_then(|g| join.output.rows.rows_of(g, limits.reverse))
            else {
                continue;
            };
            let state = join.definition.shape.row_state();
            while left > 0
                && let Some((key, value)) = rows.next()
            {
                left -= 1;
                let value = match state {
                    _ if limits.keys_only => &[],
                    None => value,
                    Some(state) => {
                        text.clear();
                        // Such a state always has a value.
                        let _ = state.format(value, &mut text);
                        &text[..]
                    }
                };
                if each(key, value).is_break() {
                    return;
                }
            }
        }
    }
}

/// Returns how many joins, in the order of their words, cover a page before `end`. Returns `None` if `end` is inside a
/// join's part.
fn parts_before(makers: &[JoinId], joins: &Joins, end: &[u8]) -> usize {
    let word = |maker: &JoinId| {
        let join = joins.get(*maker)?;
        join.page.as_ref().map(|page| &*page.word)
    };
    let is_before = |maker: &&JoinId| word(maker).is_some_and(|word| word < end);
    let count = makers.iter().take_while(is_before).count();
    let is_complete = |last: &JoinId| word(last).is_some_and(|word| !end.starts_with(word));
    match makers[..count].last() {
        Some(last) if is_complete(last) => count,
        _ => 0,
    }
}
