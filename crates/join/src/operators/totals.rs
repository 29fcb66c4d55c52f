//! `count`, `sum` and `avg`: the output row holds the state in fixed fields, and is formatted when it is read.
//!
//! A row holds the number of source rows, the number of empty values, the number of values that are not numbers, and
//! the sum of the others. A count holds only the first. A row whose count becomes zero is removed.
//!
//! Empty values are treated like NULL in SQL: they are not added up, and if all values are empty, the result is empty.
//!
//! ```text
//!  count   rows: 8
//!  others  rows: 8 │ empties and texts: 8 │ sum: 16, in billionths          little-endian
//! ```

use super::{Argument, OperatorKind, OperatorRow, RowState, STATE_BYTES};
use crate::base::number::{self, Billionths};

pub const COUNT: OperatorRow = in_row("count", &Count);
pub const SUM: OperatorRow = in_row(
    "sum",
    &Total {
        finish: |sum, _| sum,
    },
);
pub const AVG: OperatorRow = in_row(
    "avg",
    &Total {
        finish: number::mean,
    },
);

const fn in_row(name: &'static str, state: &'static dyn RowState) -> OperatorRow {
    OperatorRow {
        name,
        argument: Argument::None,
        kind: OperatorKind::InRow(state),
        may_have_else: true,
    }
}

#[derive(Debug)]
struct Count;

#[derive(Debug)]
struct Total {
    /// Computes the visible value from the sum and the number of values.
    finish: fn(Billionths, u64) -> Billionths,
}

impl RowState for Count {
    fn update_state(
        &self,
        before: Option<&[u8]>,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        after: &mut [u8; STATE_BYTES],
    ) -> usize {
        let rows = before.map_or(0, |state| word(state, 0));
        let rows = rows + u64::from(new.is_some()) - u64::from(old.is_some());
        after[..8].copy_from_slice(&rows.to_le_bytes());
        if rows == 0 { 0 } else { 8 }
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn format(&self, state: &[u8], out: &mut Vec<u8>) -> Result<(), u64> {
        number::print_count(word(state, 0), out);
        Ok(())
    }

    fn always_formats(&self) -> bool {
        true
    }
}

impl RowState for Total {
    fn update_state(
        &self,
        before: Option<&[u8]>,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        after: &mut [u8; STATE_BYTES],
    ) -> usize {
        Totals::follow(before, old, new, after)
    }

    fn format(&self, state: &[u8], out: &mut Vec<u8>) -> Result<(), u64> {
        let totals = Totals::decode(state);
        let values = totals.values()?;
        if values > 0 {
            number::print((self.finish)(totals.sum, values), out);
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    rows: u64,
    empties: u32,
    texts: u32,
    sum: Billionths,
}

impl Totals {
    fn follow(
        before: Option<&[u8]>,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        after: &mut [u8; STATE_BYTES],
    ) -> usize {
        let mut totals = before.map_or(Totals::default(), Totals::decode);
        if let Some(value) = new {
            totals.add(value);
        }
        if let Some(value) = old {
            totals.subtract(value);
        }
        totals.encode(after);
        if totals.rows == 0 { 0 } else { STATE_BYTES }
    }

    fn decode(state: &[u8]) -> Totals {
        let others = word(state, 8);
        let sum = state[16..].try_into().expect("sixteen bytes");
        Totals {
            rows: word(state, 0),
            empties: (others >> 32) as u32,
            texts: others as u32,
            sum: i128::from_le_bytes(sum),
        }
    }

    fn encode(&self, state: &mut [u8; STATE_BYTES]) {
        let others = u64::from(self.empties) << 32 | u64::from(self.texts);
        state[..8].copy_from_slice(&self.rows.to_le_bytes());
        state[8..16].copy_from_slice(&others.to_le_bytes());
        state[16..].copy_from_slice(&self.sum.to_le_bytes());
    }

    fn add(&mut self, value: &[u8]) {
        self.rows += 1;
        match number::parse(value) {
            Some(number) => self.sum += number,
            None if value.is_empty() => self.empties += 1,
            None => self.texts += 1,
        }
    }

    fn subtract(&mut self, value: &[u8]) {
        self.rows -= 1;
        match number::parse(value) {
            Some(number) => self.sum -= number,
            None if value.is_empty() => self.empties -= 1,
            None => self.texts -= 1,
        }
    }

    /// Returns the number of values in the sum.
    ///
    /// # Errors
    /// The number of values that are not numbers.
    fn values(&self) -> Result<u64, u64> {
        match self.texts {
            0 => Ok(self.rows - u64::from(self.empties)),
            texts => Err(texts.into()),
        }
    }
}

fn word(state: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(state[at..at + 8].try_into().expect("eight bytes"))
}
