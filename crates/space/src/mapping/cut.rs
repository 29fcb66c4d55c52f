//! One dimension cut into cells.

use std::ops::Bound;

use larder_types::{key_hash, mix};

use super::REGION_BITS_MAX;
use super::contacts::CellSet;

/// What an object has for an attribute, as far as cells go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// The object has no such value.
    Missing,
    /// An unordered value's hash.
    Hash(u64),
    /// An ordered value, encoded so that bytes compare as values do. Values of one attribute are all given in this way, or all by hash.
    Ordered(&'a [u8]),
}

/// What a search asks of an attribute.
#[derive(Debug, Clone, Copy)]
pub enum Constraint<'a> {
    /// Nothing: any value, or none.
    Free,
    Equal(Place<'a>),
    OneOf(&'a [Place<'a>]),
    /// Of ordered values. An object without a value is in no range.
    Range(Bound<&'a [u8]>, Bound<&'a [u8]>),
    /// No object passes.
    Nothing,
}

/// Adjacent cells, both bounds included.
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

/// Values from `from` up to the next interval's, and the cells they have.
///
/// Where `cells` is more than one, each object's key says which of them it is in. That is so for a value that would overfill a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    pub from: Box<[u8]>,
    pub cells: Cells,
}

/// How a dimension is cut into `1 << bits` cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    bits: u8,
    /// Empty: cells are equal parts of the values' hashes. Else the first begins at the empty string, and they ascend in values and in cells.
    intervals: Vec<Interval>,
}

/// Intervals that are no cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutError {
    /// There are more bits than [`REGION_BITS_MAX`].
    TooManyBits(u8),
    /// The interval of this index does not begin behind the one before it; the first must begin at the empty string.
    NotAscending(usize),
    /// The cells of the interval of this index are below those of the one before, the wrong way round, or not of the cut.
    Cells(usize),
}

impl std::fmt::Display for CutError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CutError::TooManyBits(bits) => {
                write!(
                    f,
                    "{bits} bits for one attribute; {REGION_BITS_MAX} are the most"
                )
            }
            CutError::NotAscending(at) => {
                write!(f, "interval {at} does not begin behind the one before it")
            }
            CutError::Cells(at) => {
                write!(
                    f,
                    "the cells of interval {at} do not follow those of the one before it"
                )
            }
        }
    }
}

impl std::error::Error for CutError {}

impl Cut {
    /// Cells that are equal parts of the values' hashes: for unordered values, and for ordered ones of which no sample is there yet.
    ///
    /// # Errors
    /// There are too many bits.
    pub fn by_hash(bits: u8) -> Result<Cut, CutError> {
        Cut::from_intervals(bits, Vec::new())
    }

    /// A cut as it was kept. Without intervals it is by hash.
    ///
    /// # Errors
    /// The intervals are no cut of so many bits.
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

    /// The cell of an object with this value; `key_hash` decides among those of a hot value.
    #[inline]
    pub fn cell(&self, place: Place<'_>, key_hash: u64) -> u16 {
        let Cells { first, last } = self.cells_of(place);
        if first == last {
            return first;
        }
        let spread = u128::from(mix(key_hash)) * u128::from(last - first + 1);
        first + (spread >> 64) as u16
    }

    /// The cells that objects with this value are in.
    pub fn cells_of(&self, place: Place<'_>) -> Cells {
        if self.is_by_hash() {
            let hash = match place {
                Place::Missing => 0,
                Place::Hash(hash) => hash,
                Place::Ordered(value) => key_hash(value),
            };
            let cell = hash.checked_shr(64 - u32::from(self.bits)).unwrap_or(0);
            return Cells::one(cell as u16);
        }
        let bytes;
        let value = match place {
            Place::Missing => &[],
            Place::Hash(hash) => {
                bytes = hash.to_be_bytes();
                &bytes[..]
            }
            Place::Ordered(value) => value,
        };
        self.interval(|from| from <= value).cells
    }

    /// The cells of all objects that a constraint lets through, and perhaps of others.
    pub fn contacts(&self, constraint: &Constraint<'_>) -> CellSet {
        match *constraint {
            Constraint::Free => CellSet::all(self.bits),
            Constraint::Nothing => CellSet::default(),
            Constraint::Equal(place) => CellSet::of([self.cells_of(place)]),
            Constraint::OneOf(places) => {
                CellSet::of(places.iter().map(|&place| self.cells_of(place)))
            }
            Constraint::Range(low, high) => match range_of(low, high) {
                RangeOf::Nothing => CellSet::default(),
                RangeOf::One(value) => CellSet::of([self.cells_of(Place::Ordered(value))]),
                RangeOf::Many if self.is_by_hash() => CellSet::all(self.bits),
                RangeOf::Many => CellSet::of([self.range_cells(low, high)]),
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

    /// The last interval of which this is so; it is so up to some interval.
    fn interval(&self, begins: impl Fn(&[u8]) -> bool) -> &Interval {
        let after = self
            .intervals
            .partition_point(|interval| begins(&interval.from));
        &self.intervals[after.max(1) - 1]
    }
}

enum RangeOf<'a> {
    Nothing,
    One(&'a [u8]),
    Many,
}

fn range_of<'a>(low: Bound<&'a [u8]>, high: Bound<&'a [u8]>) -> RangeOf<'a> {
    match (low, high) {
        (Bound::Included(low), Bound::Included(high)) if low == high => RangeOf::One(low),
        (
            Bound::Included(low) | Bound::Excluded(low),
            Bound::Included(high) | Bound::Excluded(high),
        ) if low >= high => RangeOf::Nothing,
        (Bound::Excluded(low), Bound::Excluded(high)) if is_next(low, high) => RangeOf::Nothing,
        (_, Bound::Excluded([])) => RangeOf::Nothing,
        _ => RangeOf::Many,
    }
}

/// Whether `next` is the least string greater than `value`.
fn is_next(value: &[u8], next: &[u8]) -> bool {
    next.strip_suffix(&[0]) == Some(value)
}
