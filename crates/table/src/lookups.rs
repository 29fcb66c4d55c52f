//! Interleaved lookups of several keys, so that their cache misses overlap.
//!
//! A lookup in a large tree has about five cache misses: inner pages, the leaf's slots, and records with equal heads.
//! This module advances [`INTERLEAVED`] lookups in parallel: each step prefetches the memory that the next one reads.

use std::ops::Range;

use crate::groups::Groups;
use crate::page::Page;
use crate::split::Split;

/// The number of interleaved lookups: slightly more than the number of cache lines that a processor fetches
/// concurrently.
const INTERLEAVED: usize = 16;

/// Calls `each` with each key's number and value, in the order of the keys. The value is `None` if the key has no
/// row.
pub(crate) fn lookup_values<'t>(
    groups: &'t Groups,
    split: Split,
    keys: &[&[u8]],
    each: &mut dyn FnMut(usize, Option<&'t [u8]>),
) {
    for (lot, keys) in keys.chunks(INTERLEAVED).enumerate() {
        // The current page of each lookup whose group exists.
        let mut pages: [Option<Page>; INTERLEAVED] = [None; INTERLEAVED];
        let suffix = |at: usize| &keys[at][split.group_len(keys[at])..];
        for (page, key) in pages.iter_mut().zip(keys) {
            let group = groups.find(&key[..split.group_len(key)]);
            *page = group.map(|group| groups.get(group).tree().root());
        }
        let mut is_on_the_way = true;
        while is_on_the_way {
            is_on_the_way = false;
            for (at, page) in pages.iter_mut().enumerate() {
                if let Some(page) = page.as_mut().filter(|page| !page.is_leaf()) {
                    *page = page.child(page.child_index(suffix(at)));
                    page.prefetch_start();
                    is_on_the_way = true;
                }
            }
        }
        // The remaining candidate rows of each lookup.
        let mut rows: [Range<usize>; INTERLEAVED] = [const { 0..0 }; INTERLEAVED];
        for (at, (rows, page)) in rows.iter_mut().zip(&pages).enumerate() {
            if let Some(page) = page {
                *rows = page.candidate_rows(suffix(at));
                page.prefetch_middle(rows);
            }
        }
        let mut are_many = true;
        while are_many {
            are_many = false;
            for (at, (rows, page)) in rows.iter_mut().zip(&pages).enumerate() {
                if let Some(page) = page.filter(|_| rows.len() > 1) {
                    page.halve(rows, suffix(at));
                    page.prefetch_middle(rows);
                    are_many |= rows.len() > 1;
                }
            }
        }
        for (at, (rows, page)) in rows.iter().zip(&pages).enumerate().take(keys.len()) {
            let is_it =
                |page: &Page| !rows.is_empty() && page.compare_row(rows.start, suffix(at)).is_eq();
            let value = page.filter(is_it).map(|page| page.value(rows.start));
            each(lot * INTERLEAVED + at, value);
        }
    }
}
