//! The loaded ranges of rows with an external source or another owner, each with a mark for the evictor and a pin
//! count.
//!
//! 1. A range that fills were computed from is kept while it is pinned.

use crate::base::key_range::KeyRange;
use crate::base::slab::{Slab, Vacant};
use crate::base::status::Status;

#[derive(Default)]
pub struct SuppliedRanges {
    status: Status,
    ranges: Slab<LoadedRange>,
}

/// A loaded range.
pub struct LoadedRange {
    pub range: KeyRange,
    pub pins: u32,
    pub visited: bool,
    pub serial: u32,
}

impl Vacant for LoadedRange {
    fn vacant() -> Self {
        LoadedRange {
            range: KeyRange::new(&[], &[]),
            pins: 0,
            visited: false,
            serial: 0,
        }
    }

    fn is_vacant(&self) -> bool {
        self.range.hi.is_empty()
    }
}

impl SuppliedRanges {
    pub fn holds(&self, key: &[u8]) -> bool {
        self.status.holds(key)
    }

    /// Marks a range as read. Returns its parts that are not loaded.
    pub fn read(&mut self, range: &KeyRange) -> Vec<KeyRange> {
        for number in self.status.overlapping(&range.lo, &range.hi) {
            self.ranges.get_mut(number).visited = true;
        }
        self.status.gaps(range)
    }

    pub fn pin(&mut self, range: &KeyRange, change: i32) {
        for number in self.status.overlapping(&range.lo, &range.hi) {
            let pins = &mut self.ranges.get_mut(number).pins;
            *pins = pins
                .checked_add_signed(change)
                .expect("invariant: pinned ranges are not dropped");
        }
    }

    /// Returns a range's pin count and its mark for the evictor, or `None` if its number was reused.
    pub fn eviction_state(&mut self, number: u32, serial: u32) -> Option<(u32, &mut bool)> {
        let loaded = self.ranges.at_mut(number)?;
        let is_current = loaded.serial == serial && !loaded.is_vacant();
        is_current.then_some((loaded.pins, &mut loaded.visited))
    }

    /// Returns a range by its number, or `None` if the number was reused.
    pub fn range(&self, number: u32, serial: u32) -> Option<&KeyRange> {
        let loaded = self.ranges.at(number)?;
        (loaded.serial == serial && !loaded.is_vacant()).then_some(&loaded.range)
    }

    pub fn insert(&mut self, range: &KeyRange, serial: u32) -> u32 {
        let loaded = LoadedRange {
            range: range.clone(),
            pins: 0,
            visited: true,
            serial,
        };
        let number = self.ranges.insert(loaded);
        self.status.insert(range, number);
        number
    }

    /// Returns the numbers of the ranges that overlap `range`.
    pub fn overlapping(&self, range: &KeyRange) -> Vec<u32> {
        self.status.overlapping(&range.lo, &range.hi)
    }

    /// Iterates over the ranges with their numbers.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &KeyRange)> {
        self.ranges
            .iter()
            .map(|(number, loaded)| (number, &loaded.range))
    }

    pub fn ranges(&self) -> impl Iterator<Item = &KeyRange> {
        self.ranges.iter().map(|(_, loaded)| &loaded.range)
    }

    pub fn remove(&mut self, number: u32) -> KeyRange {
        let range = self.ranges.remove(number).range;
        self.status.remove(&range);
        range
    }

    pub fn memory_bytes(&self) -> usize {
        self.status.memory_bytes() + self.ranges.memory_bytes()
    }
}
