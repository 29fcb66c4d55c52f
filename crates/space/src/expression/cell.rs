//! The value of an expression, and of a column of a result.

use std::cmp::Ordering;

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use crate::base::number::{Number, print_general};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Cell {
    /// No value.
    Null,
    /// Not a number: the mean of no values, or the logarithm of -1.
    Nan,
    Number(Number),
    Text(Vec<u8>),
    List(Vec<Cell>),
}

/// The maximum nesting of lists in decoded bytes.
const DEPTH_MAX: usize = 16;

impl Cell {
    pub fn text(text: impl Into<Vec<u8>>) -> Cell {
        Cell::Text(text.into())
    }

    pub fn int(value: i64) -> Cell {
        Cell::Number(Number::Int(value))
    }

    pub fn from_f64(value: f64) -> Cell {
        Number::from_f64(value).map_or(Cell::Nan, Cell::Number)
    }

    pub fn from_bool(value: bool) -> Cell {
        Cell::int(i64::from(value))
    }

    /// Returns whether the cell counts as true: a number other than 0, or a text or list that is not empty.
    pub fn is_true(&self) -> bool {
        match self {
            Cell::Null | Cell::Nan => false,
            Cell::Number(number) => !number.is_zero(),
            Cell::Text(text) => !text.is_empty(),
            Cell::List(list) => !list.is_empty(),
        }
    }

    /// Returns the number, or the number that a text represents.
    pub fn as_number(&self) -> Option<Number> {
        match self {
            Cell::Number(number) => Some(*number),
            Cell::Text(text) => Number::parse(text),
            Cell::Null | Cell::Nan | Cell::List(_) => None,
        }
    }

    /// Formats the cell for a client. The elements of a list are separated by spaces.
    pub fn print(&self) -> Vec<u8> {
        match self {
            Cell::Null => Vec::new(),
            Cell::Nan => print_general(f64::NAN, 12).into_bytes(),
            Cell::Number(number) => number.print().into_bytes(),
            Cell::Text(text) => text.clone(),
            Cell::List(list) => list.iter().map(Cell::print).collect::<Vec<_>>().join(&b' '),
        }
    }

    /// Compares two cells by a total order: NaN, numbers, texts, lists, then null.
    ///
    /// A text that represents a number is ordered among the texts. Otherwise `2 < "10" < "1x" < 2` would hold, which is
    /// not an order.
    pub fn order(&self, other: &Cell) -> Ordering {
        let rank = |cell: &Cell| match cell {
            Cell::Nan => 0,
            Cell::Number(_) => 1,
            Cell::Text(_) => 2,
            Cell::List(_) => 3,
            Cell::Null => 4,
        };
        match (self, other) {
            (Cell::Number(a), Cell::Number(b)) => a.cmp(b),
            (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
            (Cell::List(a), Cell::List(b)) => {
                let pairs = a.iter().zip(b).map(|(a, b)| a.order(b));
                pairs
                    .fold(Ordering::Equal, Ordering::then)
                    .then(a.len().cmp(&b.len()))
            }
            _ => rank(self).cmp(&rank(other)),
        }
    }

    /// Returns the approximate memory use, in bytes.
    pub fn size_bytes(&self) -> usize {
        const CELL: usize = size_of::<Cell>();
        match self {
            Cell::Text(text) => CELL + text.len(),
            Cell::List(list) => CELL + list.iter().map(Cell::size_bytes).sum::<usize>(),
            _ => CELL,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Cell::Null => out.push(0),
            Cell::Nan => out.push(1),
            Cell::Number(Number::Int(value)) => {
                out.push(2);
                out.extend_from_slice(&value.to_le_bytes());
            }
            Cell::Number(Number::Float(value)) => {
                out.push(3);
                out.extend_from_slice(&value.to_bits().to_le_bytes());
            }
            Cell::Text(text) => {
                out.push(4);
                put_bytes(out, text);
            }
            Cell::List(list) => {
                out.push(5);
                put_count(out, list.len());
                list.iter().for_each(|cell| cell.encode(out));
            }
        }
    }

    /// Decodes a cell.
    ///
    /// # Errors
    /// The bytes are not an encoded cell.
    pub fn decode(reader: &mut WireReader<'_>) -> Result<Cell, Malformed> {
        Cell::decode_within(reader, DEPTH_MAX)
    }

    fn decode_within(reader: &mut WireReader<'_>, depth: usize) -> Result<Cell, Malformed> {
        if depth == 0 {
            return Err(Malformed("lists are nested too deeply"));
        }
        match reader.u8()? {
            0 => Ok(Cell::Null),
            1 => Ok(Cell::Nan),
            2 => Ok(Cell::int(reader.u64()? as i64)),
            3 => match Number::from_f64(f64::from_bits(reader.u64()?)) {
                Some(number @ Number::Float(_)) => Ok(Cell::Number(number)),
                _ => Err(Malformed("a double is NaN, or an integer")),
            },
            4 => Ok(Cell::Text(reader.bytes()?.to_vec())),
            5 => {
                let count = reader.count(1)?;
                let cells = (0..count).map(|_| Cell::decode_within(reader, depth - 1));
                Ok(Cell::List(cells.collect::<Result<_, _>>()?))
            }
            _ => Err(Malformed("a cell has an unknown kind")),
        }
    }
}

/// Generates cells for the tests of other modules.
#[cfg(test)]
pub(crate) fn any_cell() -> impl proptest::strategy::Strategy<Value = Cell> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Cell::Null),
        Just(Cell::Nan),
        any::<i64>().prop_map(Cell::int),
        (-3_i64..3).prop_map(Cell::int),
        any::<f64>().prop_map(Cell::from_f64),
        "[a-c1-3]{0,3}".prop_map(|text| Cell::text(text.as_bytes())),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        proptest::collection::vec(inner, 0..3).prop_map(Cell::List)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_order_is_total_and_bytes_decode(a in any_cell(), b in any_cell(), c in any_cell()) {
            prop_assert_eq!(a.order(&b), b.order(&a).reverse());
            if a.order(&b).is_le() && b.order(&c).is_le() {
                prop_assert!(a.order(&c).is_le());
            }
            prop_assert_eq!(a.order(&b).is_eq(), a == b);
            let mut out = Vec::new();
            a.encode(&mut out);
            prop_assert_eq!(Cell::decode(&mut WireReader::new(&out)), Ok(a));
        }

        #[test]
        fn arbitrary_bytes_are_cells_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Cell::decode(&mut WireReader::new(&bytes));
        }
    }
}
