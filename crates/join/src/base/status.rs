//! Status ranges: the filled parts of a table. Other parts are unknown.
//!
//! Ranges do not overlap. Each has the number of its fill.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::base::key_range::KeyRange;

#[derive(Debug, Default)]
pub struct Status {
    /// Maps the start of each range to its end and number.
    ranges: BTreeMap<Box<[u8]>, End>,
    bytes: usize,
}

type End = (Box<[u8]>, u32);

/// Memory of a range in the map, besides its bytes.
const RANGE_BYTES: usize = 48;

impl Status {
    /// Returns the number of the range that covers all of `lo..hi`, if there is one.
    pub fn covering(&self, lo: &[u8], hi: &[u8]) -> Option<u32> {
        let (_, (end, number)) = self
            .ranges
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(lo)))
            .next_back()?;
        (**end >= *hi).then_some(*number)
    }

    /// Returns whether a range holds a key.
    pub fn holds(&self, key: &[u8]) -> bool {
        let up_to_key = (Bound::Unbounded, Bound::Included(key));
        let last = self.ranges.range::<[u8], _>(up_to_key).next_back();
        last.is_some_and(|(_, (end, _))| **end > *key)
    }

    /// Iterates over the numbers of the ranges, in order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.values().map(|(_, number)| *number)
    }

    /// Returns the number of the first range.
    pub fn first(&self) -> Option<u32> {
        self.ranges
            .first_key_value()
            .map(|(_, (_, number))| *number)
    }

    /// Returns the end of the filled part at the start of `range`, or, in reverse, the start of the filled part at its
    /// end.
    pub fn edge(&self, range: &KeyRange, reverse: bool) -> Box<[u8]> {
        let mut at: &[u8] = if reverse { &range.hi } else { &range.lo };
        if reverse {
            while *at > *range.lo
                && let Some((start, (end, _))) = self
                    .ranges
                    .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(at)))
                    .next_back()
                && **end >= *at
            {
                at = start;
            }
            return at.max(&range.lo).into();
        }
        while *at < *range.hi
            && let Some((_, (end, _))) = self
                .ranges
                .range::<[u8], _>((Bound::Unbounded, Bound::Included(at)))
                .next_back()
            && **end > *at
        {
            at = end;
        }
        at.min(&range.hi).into()
    }

    /// Returns the numbers of the ranges that overlap `lo..hi`, in order.
    pub fn overlapping(&self, lo: &[u8], hi: &[u8]) -> Vec<u32> {
        if lo >= hi {
            return Vec::new();
        }
        let first = self
            .ranges
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(lo)))
            .next_back();
        let first = first
            .filter(|(_, (end, _))| **end > *lo)
            .map(|(_, (_, n))| *n);
        let rest = self
            .ranges
            .range::<[u8], _>((Bound::Included(lo), Bound::Excluded(hi)))
            .map(|(_, (_, n))| *n);
        first.into_iter().chain(rest).collect()
    }

    /// Returns the parts of `range` that no range covers, in order.
    pub fn gaps(&self, range: &KeyRange) -> Vec<KeyRange> {
        let mut gaps = Vec::new();
        let mut at: &[u8] = &range.lo;
        let before = self
            .ranges
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(at)))
            .next_back();
        if let Some((_, (end, _))) = before
            && **end > *at
        {
            at = end;
        }
        if at < &*range.hi {
            for (lo, (hi, _)) in self
                .ranges
                .range::<[u8], _>((Bound::Included(at), Bound::Excluded(&*range.hi)))
            {
                if *at < **lo {
                    gaps.push(KeyRange::new(at, lo));
                }
                at = hi;
            }
        }
        if at < &*range.hi {
            gaps.push(KeyRange::new(at, &range.hi));
        }
        gaps
    }

    pub fn insert(&mut self, range: &KeyRange, number: u32) {
        self.bytes += range.lo.len() + range.hi.len() + RANGE_BYTES;
        let end = (range.hi.clone(), number);
        let before = self.ranges.insert(range.lo.clone(), end);
        assert!(before.is_none(), "ranges do not overlap");
    }

    pub fn remove(&mut self, range: &KeyRange) {
        if self.ranges.remove(&range.lo).is_some() {
            self.bytes -= range.lo.len() + range.hi.len() + RANGE_BYTES;
        }
    }

    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(ranges: &[(&str, &str)]) -> Status {
        let mut status = Status::default();
        for (n, (lo, hi)) in ranges.iter().enumerate() {
            status.insert(&KeyRange::new(lo.as_bytes(), hi.as_bytes()), n as u32);
        }
        status
    }

    fn gaps(status: &Status, lo: &str, hi: &str) -> Vec<String> {
        let gaps = status.gaps(&KeyRange::new(lo.as_bytes(), hi.as_bytes()));
        gaps.iter()
            .map(|g| {
                format!(
                    "{}-{}",
                    crate::error::text(&g.lo),
                    crate::error::text(&g.hi)
                )
            })
            .collect()
    }

    #[test]
    fn gaps_are_the_uncovered_ranges() {
        let filled = status(&[("c", "e"), ("e", "g"), ("k", "m")]);
        assert_eq!(gaps(&filled, "a", "z"), ["a-c", "g-k", "m-z"]);
        assert_eq!(gaps(&filled, "d", "f"), [""; 0]);
        assert_eq!(gaps(&filled, "d", "l"), ["g-k"]);
        assert_eq!(gaps(&filled, "m", "n"), ["m-n"]);
        assert_eq!(gaps(&filled, "b", "c"), ["b-c"]);
        assert_eq!(filled.overlapping(b"d", b"l"), [0, 1, 2]);
        assert_eq!(filled.overlapping(b"g", b"k"), [0; 0]);
        assert_eq!(filled.overlapping(b"l", b"d"), [0; 0]);
        assert_eq!(filled.covering(b"c", b"d"), Some(0));
        assert_eq!(filled.covering(b"d", b"f"), None);
        let held =
            ["b", "c", "d\0", "e", "f~", "g", "k", "m", ""].map(|key| filled.holds(key.as_bytes()));
        assert_eq!(
            held,
            [false, true, true, true, true, false, true, false, false]
        );
        let edge = |lo: &str, hi: &str, reverse| {
            let range = KeyRange::new(lo.as_bytes(), hi.as_bytes());
            crate::error::text(&filled.edge(&range, reverse))
        };
        assert_eq!(edge("d", "z", false), "g");
        assert_eq!(edge("d", "f", false), "f");
        assert_eq!(edge("a", "z", false), "a");
        assert_eq!(edge("a", "f", true), "c");
        assert_eq!(edge("d", "f", true), "d");
        assert_eq!(edge("a", "h", true), "h");
    }
}
