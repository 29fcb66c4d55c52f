//! A set of keys, stored as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::base::key_range::KeyRange;

#[derive(Debug, Default)]
pub struct RangeSet {
    /// Maps the start of each range to its end.
    ends: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

impl RangeSet {
    pub fn contains(&self, key: &[u8]) -> bool {
        let at_or_before = (Bound::Unbounded, Bound::Included(key));
        let before = self.ends.range::<[u8], _>(at_or_before).next_back();
        before.is_some_and(|(_, hi)| *key < **hi)
    }

    /// Returns the starts of the ranges that overlap `range`; with `touching`, also of those adjacent to it.
    fn find_starts(&self, range: &KeyRange, touching: bool) -> Vec<Box<[u8]>> {
        if range.is_empty() {
            return Vec::new();
        }
        let upto = if touching {
            Bound::Included(&*range.hi)
        } else {
            Bound::Excluded(&*range.hi)
        };
        let reaches = |hi: &[u8]| {
            if touching {
                *hi >= *range.lo
            } else {
                *hi > *range.lo
            }
        };
        let all = self.ends.range::<[u8], _>((Bound::Unbounded, upto));
        let mut found: Vec<Box<[u8]>> = all
            .rev()
            .take_while(|(_, hi)| reaches(hi))
            .map(|(lo, _)| lo.clone())
            .collect();
        found.reverse();
        found
    }

    pub fn overlaps(&self, range: &KeyRange) -> bool {
        !self.find_starts(range, false).is_empty()
    }

    pub fn insert(&mut self, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        let (mut lo, mut hi) = (range.lo.clone(), range.hi.clone());
        for start in self.find_starts(range, true) {
            let end = self.ends.remove(&start).expect("found");
            lo = lo.min(start);
            hi = hi.max(end);
        }
        self.ends.insert(lo, hi);
    }

    pub fn remove(&mut self, range: &KeyRange) {
        for start in self.find_starts(range, false) {
            let end = self.ends.remove(&start).expect("found");
            if end > range.hi {
                self.ends.insert(range.hi.clone(), end);
            }
            if start < range.lo {
                self.ends.insert(start, range.lo.clone());
            }
        }
    }

    pub fn ranges(&self) -> impl Iterator<Item = KeyRange> + '_ {
        self.ends.iter().map(|(lo, hi)| KeyRange::new(lo, hi))
    }

    /// Returns the parts of `range` that are not in the set, in order.
    pub fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        let mut gaps = Vec::new();
        let mut at = range.lo.clone();
        for start in self.find_starts(range, false) {
            if at < start {
                gaps.push(KeyRange::new(&at, &start));
            }
            at = self.ends[&start].clone();
        }
        if at < range.hi {
            gaps.push(KeyRange::new(&at, &range.hi));
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_sets_agree_with_a_set_of_keys() {
        let mut random = 7_u64;
        let mut next = |n: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % n
        };
        let mut spans = RangeSet::default();
        let mut set = [false; 40];
        for _ in 0..5000 {
            let (a, b) = (next(40) as u8, next(40) as u8);
            let range = KeyRange::new(&[a.min(b)], &[a.max(b)]);
            let puts = next(2) == 0;
            if puts {
                spans.insert(&range)
            } else {
                spans.remove(&range)
            }
            (a.min(b)..a.max(b)).for_each(|key| set[usize::from(key)] = puts);
            let (a, b) = (next(40) as u8, next(40) as u8);
            let range = KeyRange::new(&[a.min(b)], &[a.max(b)]);
            let gaps = spans.gaps(&range);
            for key in 0..40 {
                assert_eq!(spans.contains(&[key]), set[usize::from(key)]);
                let is_gap = range.contains(&[key]) && !set[usize::from(key)];
                assert_eq!(gaps.iter().any(|gap| gap.contains(&[key])), is_gap);
            }
            let shares = (0..40).any(|key| range.contains(&[key]) && set[usize::from(key)]);
            assert_eq!(spans.overlaps(&range), shares);
        }
    }
}
