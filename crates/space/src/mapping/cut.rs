//! The division of one dimension into cells.

use std::ops::Bound;

use larder_types::{key_hash, mix};

use super::REGION_BITS_MAX;
use super::contacts::CellSet;

/// The value of an object for one attribute, in the form that determines its cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellValue<'a> {
    /// The object has no value.
    Missing,
    /// The hash of an unordered value.
    Hash(u64),
    /// An ordered value, in an order-preserving encoding. All values of an attribute are in this form, or all are
    /// hashes.
    Ordered(&'a [u8]),
}

/// The constraint of a search on one attribute.
#[derive(Debug, Clone, Copy)]
pub enum Constraint<'a> {
    /// Any value, or none.
    Free,
    Equal(CellValue<'a>),
    OneOf(&'a [CellValue<'a>]),
    /// A range of ordered values. An object without a value is in no range.
    Range(Bound<&'a [u8]>, Bound<&'a [u8]>),
    /// No object satisfies the constraint.
    Nothing,
}

/// A run of adjacent cells, both bounds inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cells {
    pub first: u16,
    pub last: u16,
}

impl Cells {
    pub fn one(cell: u16) -> Cells {
        Cells {
            first: cell,
            last: cell,
        }
    }

    pub fn count(self) -> u32 {
        u32::from(self.last - self.first) + 1
    }
}

/// The values from `from` up to the start of the next interval, and their cells.
///
/// If there are several cells, the key of an object selects one. This is the case for a value that would overfill one
/// cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    pub from: Box<[u8]>,
    pub cells: Cells,
}

/// The division of a dimension into `1 << bits` cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    bits: u8,
    /// Empty: each cell is an equal part of the hash range. Otherwise the first interval starts at the empty string,
    /// and the intervals ascend in values and in cells.
    intervals: Vec<Interval>,
}

/// The reason why intervals are not a valid cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutError {
    /// There are more bits than [`REGION_BITS_MAX`].
    TooManyBits(u8),
    /// The interval at this index does not start after the previous one; the first must start at the empty string.
    NotAscending(usize),
    /// The cells of the interval at this index are below those of the previous one, in the wrong order, or out of
    /// bounds.
    Cells(usize),
}

impl std::fmt::Display for CutError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CutError::TooManyBits(bits) => {
                write!(
                    f,
                    "{bits} bits for one attribute; the maximum is {REGION_BITS_MAX}"
                )
            }
            CutError::NotAscending(at) => {
                write!(f, "interval {at} does not begin after the previous one")
            }
            CutError::Cells(at) => {
                write!(
                    f,
                    "the cells of interval {at} do not follow those of the previous one"
                )
            }
        }
    }
}

impl std::error::Error for CutError {}

impl Cut {
    /// Returns a cut whose cells are equal parts of the hash range. It is used for unordered values, and for ordered
    /// values without a sample.
    ///
    /// # Errors
    /// There are too many bits.
    pub fn by_hash(bits: u8) -> Result<Cut, CutError> {
        Cut::from_intervals(bits, Vec::new())
    }

    /// Returns a cut with stored intervals. Without intervals, it is by hash.
    ///
    /// # Errors
    /// The intervals are not a valid cut with this number of bits.
    pub fn from_intervals(bits: u8, intervals: Vec<Interval>) -> Result<Cut, CutError> {
        if bits > REGION_BITS_MAX {
            return Err(CutError::TooManyBits(bits));
        }
        let first = intervals
            .first()
            .is_some_and(|first| !first.from.is_empty());
        if first {
            return Err(CutError::NotAscending(0));
        }
        for (at, interval) in intervals.iter().enumerate() {
            let Cells { first, last } = interval.cells;
            let before = at.checked_sub(1).map(|before| &intervals[before]);
            if before.is_some_and(|before| before.from >= interval.from) {
                return Err(CutError::NotAscending(at));
            }
            let is_below = before.is_some_and(|before| first < before.cells.last);
            if first > last || u32::from(last) >> bits != 0 || is_below {
                return Err(CutError::Cells(at));
            }
        }
        Ok(Cut { bits, intervals })
    }

    pub fn bits(&self) -> u8 {
        self.bits
    }

    pub fn cells(&self) -> u32 {
        1 << self.bits
    }

    pub fn is_by_hash(&self) -> bool {
        self.intervals.is_empty()
    }

    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Returns the cell of an object with this value. `key_hash` selects one if the value has several cells.
    #[inline]
    pub fn cell(&self, place: CellValue<'_>, key_hash: u64) -> u16 {
        let Cells { first, last } = self.cells_of(place);
        if first == last {
            return first;
        }
        let spread = u128::from(mix(key_hash)) * u128::from(last - first + 1);
        first + (spread >> 64) as u16
    }

    /// Returns all cells of objects with this value.
    pub fn cells_of(&self, place: CellValue<'_>) -> Cells {
        if self.is_by_hash() {
            let hash = match place {
                CellValue::Missing => 0,
                CellValue::Hash(hash) => hash,
                CellValue::Ordered(value) => key_hash(value),
            };
            let cell = hash.checked_shr(64 - u32::from(self.bits)).unwrap_or(0);
            return Cells::one(cell as u16);
        }
        let bytes;
        let value = match place {
            CellValue::Missing => &[],
            CellValue::Hash(hash) => {
                bytes = hash.to_be_bytes();
                &bytes[..]
            }
            CellValue::Ordered(value) => value,
        };
        self.interval(|from| from <= value).cells
    }

    /// Returns the cells of all objects that satisfy a constraint, and possibly further cells.
    pub fn contacts(&self, constraint: &Constraint<'_>) -> CellSet {
        match *constraint {
            Constraint::Free => CellSet::all(self.bits),
            Constraint::Nothing => CellSet::default(),
            Constraint::Equal(place) => CellSet::of([self.cells_of(place)]),
            Constraint::OneOf(places) => {
                CellSet::of(places.iter().map(|&place| self.cells_of(place)))
            }
            Constraint::Range(low, high) => match range_of(low, high) {
                RangeContent::Nothing => CellSet::default(),
                RangeContent::One(value) => CellSet::of([self.cells_of(CellValue::Ordered(value))]),
                RangeContent::Many if self.is_by_hash() => CellSet::all(self.bits),
                RangeContent::Many => CellSet::of([self.range_cells(low, high)]),
            },
        }
    }

    fn range_cells(&self, low: Bound<&[u8]>, high: Bound<&[u8]>) -> Cells {
        let first = match low {
            Bound::Unbounded => 0,
            Bound::Included(low) => self.interval(|from| from <= low).cells.first,
            Bound::Excluded(low) => {
                let begins = |from: &[u8]| from <= low || is_next(low, from);
                self.interval(begins).cells.first
            }
        };
        let last = match high {
            Bound::Unbounded => (self.cells() - 1) as u16,
            Bound::Included(high) => self.interval(|from| from <= high).cells.last,
            Bound::Excluded(high) => self.interval(|from| from < high).cells.last,
        };
        Cells { first, last }
    }

    /// Returns the last interval for which `begins` is true. It must be true for a prefix of the intervals.
    fn interval(&self, begins: impl Fn(&[u8]) -> bool) -> &Interval {
        let after = self
            .intervals
            .partition_point(|interval| begins(&interval.from));
        &self.intervals[after.max(1) - 1]
    }
}

enum RangeContent<'a> {
    Nothing,
    One(&'a [u8]),
    Many,
}

fn range_of<'a>(low: Bound<&'a [u8]>, high: Bound<&'a [u8]>) -> RangeContent<'a> {
    match (low, high) {
        (Bound::Included(low), Bound::Included(high)) if low == high => RangeContent::One(low),
        (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) if low >= high => RangeContent::Nothing,
        (Bound::Excluded(low), Bound::Excluded(high)) if is_next(low, high) => {
            RangeContent::Nothing
        }
        (_, Bound::Excluded([])) => RangeContent::Nothing,
        _ => RangeContent::Many,
    }
}

/// Returns whether `next` is the immediate successor of `value` in byte order.
fn is_next(value: &[u8], next: &[u8]) -> bool {
    next.strip_suffix(&[0]) == Some(value)
}
