//! The loaded ranges of rows with an external source or another owner, each with a mark for the evictor and a pin
//! count.
//!
//! 1. A range that fills were computed from is kept while it is pinned.

use crate::base::key_range::KeyRange;
use crate::base::slab::{Slab, Vacant};
use crate::base::status::Status;

#[derive(Default)]
pub struct Supplied {
    status: Status,
    ranges: Slab<Here>,
}

/// A loaded range.
pub struct Here {
    pub range: KeyRange,
    pub pins: u32,
    pub visited: bool,
    pub serial: u32,
}

impl Vacant for Here {
    fn vacant() -> Self {
        Here {
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

impl Supplied {
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
                .expect("invariant: what is pinned stays");
        }
    }

    /// Returns a range's pin count and its mark for the evictor, or `None` if its number was reused.
    pub fn marks(&mut self, number: u32, serial: u32) -> Option<(u32, &mut bool)> {
        let here = self.ranges.at_mut(number)?;
        let is_there = here.serial == serial && !here.is_vacant();
        is_there.then_some((here.pins, &mut here.visited))
    }

    /// Returns a range by its number, or `None` if the number was reused.
    pub fn range(&self, number: u32, serial: u32) -> Option<&KeyRange> {
        let here = self.ranges.at(number)?;
        (here.serial == serial && !here.is_vacant()).then_some(&here.range)
    }

    pub fn insert(&mut self, range: &KeyRange, serial: u32) -> u32 {
        let here = Here {
            range: range.clone(),
            pins: 0,
            visited: true,
            serial,
        };
        let number = self.ranges.insert(here);
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
            .map(|(number, here)| (number, &here.range))
    }

    pub fn ranges(&self) -> impl Iterator<Item = &KeyRange> {
        self.ranges.iter().map(|(_, here)| &here.range)
    }

    pub fn forget(&mut self, number: u32) -> KeyRange {
        let range = self.ranges.remove(number).range;
        self.status.remove(&range);
        range
    }

    pub fn memory_bytes(&self) -> usize {
        self.status.memory_bytes() + self.ranges.memory_bytes()
    }
}
