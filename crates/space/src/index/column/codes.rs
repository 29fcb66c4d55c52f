//! Numbers, instants and booleans, encoded as integers that sort like them.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Entry;
use crate::base::ordered::Scalar;
use crate::query::Span;
use crate::value::Column;

/// Columns by row.
pub(in crate::index) type Others = BTreeMap<u32, Column>;

/// The integer type of a code. Its two greatest values are reserved.
pub(in crate::index) trait Code: Copy + Ord {
    const MISSING: Self;
    /// The object's value has no code.
    const OTHER: Self;

    fn of(code: u64) -> Self;
}

pub(in crate::index) const OTHER: u64 = u64::MAX - 1;

impl Code for u64 {
    const MISSING: u64 = u64::MAX;
    const OTHER: u64 = OTHER;

    fn of(code: u64) -> u64 {
        code
    }
}

impl Code for u8 {
    const MISSING: u8 = u8::MAX;
    const OTHER: u8 = u8::MAX - 1;

    fn of(code: u64) -> u8 {
        code as u8
    }
}

#[derive(Debug, Default)]
pub(in crate::index) struct Codes<C> {
    pub codes: Vec<C>,
    pub others: Others,
}

impl<C: Code> Codes<C> {
    pub fn grow(&mut self, rows: usize) {
        self.codes.resize(rows.max(self.codes.len()), C::MISSING);
    }

    #[inline]
    pub fn get(&self, row: u32) -> C {
        self.codes[row as usize]
    }

    pub fn is_missing(&self, row: u32) -> bool {
        self.get(row) == C::MISSING
    }

    pub fn set(&mut self, row: u32, entry: Entry<'_>) {
        if self.get(row) == C::OTHER {
            self.others.remove(&row);
        }
        self.codes[row as usize] = match entry {
            Entry::Code(code) => C::of(code),
            Entry::Other(column) => {
                self.others.insert(row, column);
                C::OTHER
            }
            _ => C::MISSING,
        };
    }

    pub fn heap_bytes(&self) -> usize {
        let other = size_of::<(u32, Column)>() + 32;
        self.codes.capacity() * size_of::<C>() + self.others.len() * other
    }
}

pub(in crate::index) fn of_instant(micros: i64) -> u64 {
    micros as u64 ^ 1 << 63
}

pub(in crate::index) fn instant(code: u64) -> i64 {
    (code ^ 1 << 63) as i64
}

/// Returns the codes of the values in a span, both bounds inclusive, or `None` if there are none. The span must have
/// the attribute's type.
pub(in crate::index) fn range(span: &Span) -> Option<(u64, u64)> {
    let low = match &span.low {
        Bound::Unbounded => 0,
        Bound::Included(value) => match code(value)? {
            (code, 0) => code,
            (below, _) => below + 1,
        },
        Bound::Excluded(value) => code(value)?.0.checked_add(1)?,
    };
    let high = match &span.high {
        Bound::Unbounded => OTHER - 1,
        Bound::Included(value) => code(value)?.0,
        Bound::Excluded(value) => match code(value)? {
            (code, 0) => code.checked_sub(1)?,
            (below, _) => below,
        },
    };
    let high = high.min(OTHER - 1);
    (low <= high).then_some((low, high))
}

/// Returns the code of a value, and the remainder that the code does not represent.
fn code(value: &Scalar) -> Option<(u64, u16)> {
    match value {
        Scalar::Boolean(flag) => Some((u64::from(*flag), 0)),
        Scalar::Number(number) => Some(number.ordered_code()),
        Scalar::Instant(micros) => Some((of_instant(*micros), 0)),
        Scalar::Bytes(_) => None,
    }
}
