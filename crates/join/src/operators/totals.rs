//! Counts, sums and averages: their state is the output row itself, written as fixed fields and spelled out when read.
//!
//! A row holds how many source rows there are, how many of them have no value and how many no number, and the sum of the
//! others. A count holds the first alone. A row whose count falls to zero is removed.
//!
//! An empty value is none, as NULL is in SQL: what is added up passes over it, and what has nothing else to add up is empty.

use crate::base::number::{self, Billionths};
use crate::language::grammar::Operator;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    pub rows: u64,
    pub empties: u32,
    pub texts: u32,
    pub sum: Billionths,
}

impl Totals {
    pub fn decode(bytes: &[u8]) -> Self {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if bytes.len() == 8 {
            return Totals {
                rows: word(0),
                ..Totals::default()
            };
        }
        let sum = i128::from_le_bytes(bytes[16..32].try_into().expect("sixteen bytes"));
        let others = word(8);
        Totals {
            rows: word(0),
            empties: (others >> 32) as u32,
            texts: others as u32,
            sum,
        }
    }

    pub fn encode(&self, operator: Operator, out: &mut [u8; 32]) -> usize {
        out[..8].copy_from_slice(&self.rows.to_le_bytes());
        if !is_added(operator) {
            return 8;
        }
        let others = u64::from(self.empties) << 32 | u64::from(self.texts);
        out[8..16].copy_from_slice(&others.to_le_bytes());
        out[16..].copy_from_slice(&self.sum.to_le_bytes());
        32
    }

    pub fn add(&mut self, operator: Operator, value: &[u8]) {
        self.rows += 1;
        if is_added(operator) {
            match number::parse(value) {
                Some(number) => self.sum += number,
                None if value.is_empty() => self.empties += 1,
                None => self.texts += 1,
            }
        }
    }

    pub fn subtract(&mut self, operator: Operator, value: &[u8]) {
        self.rows -= 1;
        if is_added(operator) {
            match number::parse(value) {
                Some(number) => self.sum -= number,
                None if value.is_empty() => self.empties -= 1,
                None => self.texts -= 1,
            }
        }
    }

    /// Spells the row out.
    ///
    /// # Errors
    /// How many of the values do not add up.
    pub fn print(&self, operator: Operator, out: &mut Vec<u8>) -> Result<(), u64> {
        if self.texts > 0 {
            return Err(u64::from(self.texts));
        }
        let values = self.rows - u64::from(self.empties);
        match operator {
            Operator::Sum | Operator::Avg if values == 0 => {}
            Operator::Sum => number::print(self.sum, out),
            Operator::Avg => number::print(number::mean(self.sum, values), out),
            _ => {
                let mut digits = [0; 20];
                let mut at = digits.len();
                let mut left = self.rows;
                loop {
                    at -= 1;
                    digits[at] = b'0' + (left % 10) as u8;
                    left /= 10;
                    if left == 0 {
                        break;
                    }
                }
                out.extend_from_slice(&digits[at..]);
            }
        }
        Ok(())
    }
}

fn is_added(operator: Operator) -> bool {
    matches!(operator, Operator::Sum | Operator::Avg)
}

/// Whether totals can be spelled out whatever was added up: they count.
pub fn always_adds_up(operator: Operator) -> bool {
    is_totals(operator) && !is_added(operator)
}

/// Whether the rows of the output are totals.
pub fn is_totals(operator: Operator) -> bool {
    matches!(
        operator,
        Operator::Count | Operator::Sum | Operator::Avg | Operator::Distinct
    )
}
