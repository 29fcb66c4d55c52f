//! Which ranges of rows are here that are kept elsewhere, each with a mark for the evictor and how often it is pinned.
//!
//! 1. A range that something was computed from stays while its pins do.

use crate::base::key_range::KeyRange;
use crate::base::slab::{Slab, Vacant};
use crate::base::status::Status;

#[derive(Default)]
pub struct Supplied {
    status: Status,
    ranges: Slab<Here>,
}

/// A range that was supplied.
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

    /// The parts of a range that are not here.
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

    /// How often a range is pinned, and its mark for the evictor. Nothing if another has its number by now.
    pub fn marks(&mut self, number: u32, serial: u32) -> Option<(u32, &mut bool)> {
        let here = self.ranges.at_mut(number)?;
        let is_there = here.serial == serial && !here.is_vacant();
        is_there.then_some((here.pins, &mut here.visited))
    }

    /// A range by its number. `None` if another range has the number by now.
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

    /// The numbers of the ranges that share keys with one.
    pub fn overlapping(&self, range: &KeyRange) -> Vec<u32> {
        self.status.overlapping(&range.lo, &range.hi)
    }

    /// The ranges, each with its number.
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
