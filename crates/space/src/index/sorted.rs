//! An ordered list of ids: rows by key, rows by value, or words. The caller defines the order.
//!
//! Ids are stored in pages of up to 512, four bytes each, so an insertion moves 1 KiB on average. The number of ids
//! between two positions is a difference of ranks. To find a position, the list calls `is_before`, a function of the
//! caller that returns whether an id precedes the position.
//!
//! 1. No page is empty.
//! 2. `firsts` contains the first id of each page, and `sizes` its number of ids.

use std::ops::Range;

/// The maximum number of ids in a page.
const PAGE_MAX: usize = 512;

#[derive(Debug, Clone, Default)]
pub(super) struct Sorted {
    pages: Vec<Vec<u32>>,
    firsts: Vec<u32>,
    sizes: Vec<u16>,
    len: usize,
}

/// A position between two ids.
#[derive(Debug, Clone, Copy)]
struct PagePosition {
    page: usize,
    offset: usize,
}

impl Sorted {
    /// Creates a list from ordered ids.
    pub fn of(ids: &[u32]) -> Sorted {
        let pages: Vec<Vec<u32>> = ids.chunks(PAGE_MAX).map(<[u32]>::to_vec).collect();
        Sorted {
            firsts: pages.iter().map(|page| page[0]).collect(),
            sizes: pages.iter().map(|page| page.len() as u16).collect(),
            len: ids.len(),
            pages,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn heap_bytes(&self) -> usize {
        let ids: usize = self.pages.iter().map(|page| 4 * page.capacity()).sum();
        ids + self.pages.capacity() * size_of::<Vec<u32>>()
            + self.firsts.capacity() * 4
            + self.sizes.capacity() * 2
    }

    #[inline]
    fn find_position(&self, mut is_before: impl FnMut(u32) -> bool) -> PagePosition {
        let behind = self.firsts.partition_point(|first| is_before(*first));
        let Some(page) = behind.checked_sub(1) else {
            return PagePosition { page: 0, offset: 0 };
        };
        // The first id is known to come before.
        let offset = 1 + self.pages[page][1..].partition_point(|id| is_before(*id));
        PagePosition { page, offset }
    }

    /// Returns the number of ids for which `is_before` is true. They must precede the others.
    pub fn rank(&self, is_before: impl FnMut(u32) -> bool) -> usize {
        let place = self.find_position(is_before);
        let before: usize = self.sizes[..place.page]
            .iter()
            .map(|size| usize::from(*size))
            .sum();
        before + place.offset
    }

    /// Like [`Sorted::rank`], if the rank is known to be within these bounds.
    pub fn rank_within(&self, ranks: Range<usize>, is_before: impl FnMut(u32) -> bool) -> usize {
        if ranks.is_empty() {
            return ranks.start;
        }
        let mut is_before = is_before;
        let PagePosition {
            page: first,
            offset,
        } = self.locate(ranks.start);
        let last = self.locate(ranks.end - 1).page;
        let behind = self.firsts[first + 1..=last].partition_point(|id| is_before(*id));
        let page = first + behind;
        let from = if behind == 0 { offset } else { 0 };
        let sizes = self.sizes[first..page].iter();
        let begin = ranks.start - offset + sizes.map(|it| usize::from(*it)).sum::<usize>() + from;
        let ids = &self.pages[page][from..];
        let ids = &ids[..ids.len().min(ranks.end - begin)];
        begin + ids.partition_point(|id| is_before(*id))
    }

    /// Like [`Sorted::rank`], for a rank that is at least this one and probably close to it, because most ranges have
    /// few rows.
    pub fn rank_from(&self, rank: usize, mut is_before: impl FnMut(u32) -> bool) -> usize {
        let PagePosition { page, offset } = self.locate(rank);
        let ids = self.pages.get(page).map_or(&[][..], |ids| &ids[offset..]);
        let (mut known, mut step) = (0, 4);
        while let Some(ids) = ids.get(known..known + step) {
            if !is_before(ids[step - 1]) {
                return rank + known + ids.partition_point(|id| is_before(*id));
            }
            (known, step) = (known + step, step * 2);
        }
        self.rank(is_before).max(rank)
    }

    /// Returns the first id for which `is_before` is false.
    pub fn first_after(&self, is_before: impl FnMut(u32) -> bool) -> Option<u32> {
        let PagePosition { page, offset } = self.find_position(is_before);
        let first = self.pages.get(page)?.get(offset);
        let next = || self.firsts.get(page + 1);
        first.or_else(next).copied()
    }

    /// Inserts an id after all ids for which `is_before` is true.
    pub fn insert(&mut self, id: u32, is_before: impl FnMut(u32) -> bool) {
        let PagePosition {
            mut page,
            mut offset,
        } = self.find_position(is_before);
        self.len += 1;
        if self.pages.is_empty() {
            self.put_page(0, vec![id]);
            return;
        }
        if self.pages[page].len() == PAGE_MAX {
            if page + 1 == self.pages.len() && offset == PAGE_MAX {
                // Insertions in order leave full pages behind.
                self.put_page(page + 1, vec![id]);
                return;
            }
            let upper = self.pages[page].split_off(PAGE_MAX / 2);
            self.put_page(page + 1, upper);
            if offset > PAGE_MAX / 2 {
                (page, offset) = (page + 1, offset - PAGE_MAX / 2);
            }
        }
        self.pages[page].insert(offset, id);
        self.update_summary(page);
    }

    /// Removes an id, which must be the first one for which `is_before` is false.
    ///
    /// # Panics
    /// Another id is there.
    pub fn remove(&mut self, id: u32, is_before: impl FnMut(u32) -> bool) {
        let PagePosition {
            mut page,
            mut offset,
        } = self.find_position(is_before);
        if self.pages.get(page).is_some_and(|ids| ids.len() == offset) {
            (page, offset) = (page + 1, 0);
        }
        assert_eq!(
            self.pages.get(page).and_then(|ids| ids.get(offset)),
            Some(&id),
            "the id is at its position in the order"
        );
        self.pages[page].remove(offset);
        self.len -= 1;
        if self.pages[page].is_empty() {
            self.drop_page(page);
            return;
        }
        self.update_summary(page);
        let next = page + 1;
        if next < self.pages.len()
            && self.pages[page].len() + self.pages[next].len() <= PAGE_MAX / 2
        {
            let ids = std::mem::take(&mut self.pages[next]);
            self.pages[page].extend(ids);
            self.drop_page(next);
            self.update_summary(page);
        }
    }

    fn put_page(&mut self, at: usize, ids: Vec<u32>) {
        self.firsts.insert(at, ids[0]);
        self.sizes.insert(at, ids.len() as u16);
        self.pages.insert(at, ids);
        if at > 0 {
            self.update_summary(at - 1);
        }
    }

    fn drop_page(&mut self, at: usize) {
        self.pages.remove(at);
        self.firsts.remove(at);
        self.sizes.remove(at);
    }

    /// Restores invariant 2 for a changed page.
    fn update_summary(&mut self, page: usize) {
        self.firsts[page] = self.pages[page][0];
        self.sizes[page] = self.pages[page].len() as u16;
    }

    /// Returns the position of the id with this rank, or the end if there is none.
    fn locate(&self, rank: usize) -> PagePosition {
        const STEP: usize = 64;
        let (mut page, mut offset) = (0, rank);
        while let Some(sizes) = self.sizes.get(page..page + STEP) {
            let sum: usize = sizes.iter().map(|size| usize::from(*size)).sum();
            if offset < sum {
                break;
            }
            (page, offset) = (page + STEP, offset - sum);
        }
        while page < self.sizes.len() && offset >= usize::from(self.sizes[page]) {
            offset -= usize::from(self.sizes[page]);
            page += 1;
        }
        PagePosition { page, offset }
    }

    /// Returns the ids from rank `begin` (inclusive) to `end` (exclusive).
    pub fn between(&self, begin: usize, end: usize) -> impl Iterator<Item = u32> + '_ {
        let PagePosition { page, offset } = self.locate(begin);
        let pages = self.pages.get(page..).unwrap_or_default();
        let ids = pages.iter().flatten().skip(offset);
        ids.take(end.saturating_sub(begin)).copied()
    }

    /// Appends the ids that [`Sorted::between`] yields.
    pub fn copy_between(&self, begin: usize, end: usize, out: &mut Vec<u32>) {
        let PagePosition { page, mut offset } = self.locate(begin);
        let mut left = end.saturating_sub(begin);
        for ids in self.pages.get(page..).unwrap_or_default() {
            if left == 0 {
                break;
            }
            let ids = &ids[offset..];
            let ids = &ids[..ids.len().min(left)];
            out.extend_from_slice(ids);
            (left, offset) = (left - ids.len(), 0);
        }
    }

    /// Returns the id with this rank.
    pub fn at(&self, rank: usize) -> Option<u32> {
        let PagePosition { page, offset } = self.locate(rank);
        self.pages.get(page)?.get(offset).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.pages.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_stay_ordered_after_any_insertions_and_removals(
            changes in proptest::collection::vec((0_u32..3000, any::<bool>()), 0..60), runs in proptest::collection::vec((0_u32..3000, 0_u32..900, any::<bool>()), 0..6),
            begin in 0_usize..2000, width in 0_usize..2000,
        ) {
            let mut sorted = Sorted::default();
            let mut known = std::collections::BTreeSet::new();
            let runs = runs.iter().flat_map(|(from, count, comes)| (*from..from + count).map(|id| (id, *comes)));
            for (id, comes) in runs.chain(changes) {
                if comes && known.insert(id) {
                    sorted.insert(id, |other| other < id);
                } else if !comes && known.remove(&id) {
                    sorted.remove(id, |other| other < id);
                }
            }
            let ids: Vec<u32> = known.iter().copied().collect();
            prop_assert_eq!(sorted.iter().collect::<Vec<_>>(), &ids[..]);
            prop_assert_eq!(sorted.len(), ids.len());
            for (page, ids) in sorted.pages.iter().enumerate() {
                prop_assert_eq!((sorted.firsts[page], usize::from(sorted.sizes[page])), (ids[0], ids.len()));
            }
            for id in [0, 7, 1000, 2999] {
                prop_assert_eq!(sorted.rank(|other| other < id), known.range(..id).count());
                prop_assert_eq!(sorted.first_after(|other| other < id), known.range(id..).next().copied());
                let rank = known.range(..id).count();
                let within = rank.saturating_sub(begin)..(rank + width).min(ids.len());
                prop_assert_eq!(sorted.rank_within(within, |other| other < id), rank);
                prop_assert_eq!(sorted.rank_from(rank.saturating_sub(width), |other| other < id), rank);
                prop_assert_eq!(sorted.rank_from(rank.saturating_sub(width % 8), |other| other < id), rank);
            }
            let end = (begin + width).min(ids.len());
            let expected = ids.get(begin..end).unwrap_or_default();
            prop_assert_eq!(sorted.between(begin, end).collect::<Vec<_>>(), expected);
            let mut copied = Vec::new();
            sorted.copy_between(begin, end, &mut copied);
            prop_assert_eq!(copied, expected);
            prop_assert_eq!(sorted.at(begin), ids.get(begin).copied());
            prop_assert_eq!(Sorted::of(&ids).iter().collect::<Vec<_>>(), ids);
        }
    }
}
