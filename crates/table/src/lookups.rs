//! Several rows by their keys, so that what one look-up waits for is fetched while others go on.
//!
//! A look-up of a key in a large tree waits for memory some five times: pages on the way down, the slots of the leaf, records whose keys begin alike. Here keys take
//! these steps side by side, [`AT_ONCE`] of them: each step asks for what the next one reads.

use std::ops::Range;

use crate::groups::Groups;
use crate::page::Page;
use crate::split::Split;

/// Look-ups that go on side by side: about as many lines as a processor fetches at a time, with some to spare.
const AT_ONCE: usize = 16;

/// Hands out the value of each key's row, `None` where there is none, in the order of the keys, with the key's number.
pub(crate) fn values_of<'t>(
    groups: &'t Groups,
    split: Split,
    keys: &[&[u8]],
    each: &mut dyn FnMut(usize, Option<&'t [u8]>),
) {
    for (lot, keys) in keys.chunks(AT_ONCE).enumerate() {
        // Of keys whose group is there: a page on the way to the leaf.
        let mut pages: [Option<Page>; AT_ONCE] = [None; AT_ONCE];
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
        // Where each row is, as far as it is known.
        let mut rows: [Range<usize>; AT_ONCE] = [const { 0..0 }; AT_ONCE];
        for (at, (rows, page)) in rows.iter_mut().zip(&pages).enumerate() {
            if let Some(page) = page {
                *rows = page.alike(suffix(at));
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
                |page: &Page| !rows.is_empty() && page.order_of(rows.start, suffix(at)).is_eq();
            let value = page.filter(is_it).map(|page| page.value(rows.start));
            each(lot * AT_ONCE + at, value);
        }
    }
}
