//! Several rows by their keys, so that what one look-up waits for is fetched while others go on.
//!
//! A look-up of a key in a large tree waits for memory some five times: pages on the way down, the slots of the leaf, the record. Here keys take these
//! steps side by side, [`AT_ONCE`] of them: each step asks for what the next one reads.

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
        for (at, page) in pages.iter().enumerate() {
            if let Some(page) = page {
                page.prefetch_likely_row(suffix(at));
            }
        }
        for (at, page) in pages.iter().enumerate().take(keys.len()) {
            let index = page.and_then(|page| page.search(suffix(at)).ok());
            let value = page.zip(index).map(|(page, index)| page.value(index));
            each(lot * AT_ONCE + at, value);
        }
    }
}
