//! Reducers: the mergeable state that GROUPBY keeps for each group. Merged states yield the same result as one state
//! that received all rows.
//!
//! Sums of integers are exact. Quantiles and distinct counts are exact too: their values are all kept, within the
//! memory limit of the aggregation. A sample is chosen by a hash of the row keys, so it does not depend on the regions.

use std::collections::{BTreeMap, BTreeSet};

use larder_types::key_hash;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use crate::base::number::Number;
use crate::error::{Refusal, Result, printable};
use crate::expression::Cell;
use crate::search::partial::rank_value;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reducer {
    kind: ReducerKind,
    /// The column that the reducer reads; unused by COUNT.
    column: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ReducerKind {
    Count,
    CountDistinct,
    Sum,
    Min,
    Max,
    Average,
    Deviation,
    Quantile(f64),
    ToList,
    /// The first value in the order of a column (true: descending), or by key if there is none.
    First(Option<(usize, bool)>),
    Sample(usize),
}

const SAMPLE_MAX: f64 = 1000.0;

impl Reducer {
    /// Parses a reducer.
    ///
    /// # Errors
    /// The reducer does not exist, or its arguments are invalid.
    pub fn parse(
        function: &str,
        list: &[&[u8]],
        property: &mut dyn FnMut(&[u8]) -> Result<usize>,
    ) -> Result<Reducer> {
        let name = function.to_uppercase();
        let counts = |min: usize, max: usize| {
            if (min..=max).contains(&list.len()) {
                Ok(())
            } else {
                Err(Refusal::new(format!(
                    "Bad arguments for {name}: it takes {min} to {max}, here are {}",
                    list.len()
                )))
            }
        };
        let number = |text: &[u8]| {
            let number = Number::parse(text).ok_or_else(|| {
                Refusal::new(format!(
                    "Bad arguments for {name}: {:?} is not a number",
                    printable(text)
                ))
            });
            Ok::<_, Refusal>(number?.as_f64())
        };
        let kind = match name.as_str() {
            "COUNT" => {
                counts(0, 0)?;
                return Ok(Reducer {
                    kind: ReducerKind::Count,
                    column: 0,
                });
            }
            "COUNT_DISTINCT" | "COUNT_DISTINCTISH" => ReducerKind::CountDistinct,
            "SUM" => ReducerKind::Sum,
            "MIN" => ReducerKind::Min,
            "MAX" => ReducerKind::Max,
            "AVG" => ReducerKind::Average,
            "STDDEV" => ReducerKind::Deviation,
            "TOLIST" => ReducerKind::ToList,
            "QUANTILE" => {
                counts(2, 2)?;
                let quantile = number(list[1])?;
                if !(0.0..=1.0).contains(&quantile) {
                    return Err(Refusal::new("Percentage must be between 0.0 and 1.0"));
                }
                ReducerKind::Quantile(quantile)
            }
            "RANDOM_SAMPLE" => {
                counts(2, 2)?;
                let size = number(list[1])?;
                if !(0.0..=SAMPLE_MAX).contains(&size) {
                    return Err(Refusal::new(format!(
                        "Sample size too large: it is 0 to {SAMPLE_MAX}"
                    )));
                }
                ReducerKind::Sample(size as usize)
            }
            "FIRST_VALUE" => {
                counts(1, 4)?;
                let by = match &list[1..] {
                    [] => None,
                    [by, column, direction @ ..] if by.eq_ignore_ascii_case(b"BY") => {
                        let is_descending = direction
                            .first()
                            .is_some_and(|it| it.eq_ignore_ascii_case(b"DESC"));
                        Some((property(column)?, is_descending))
                    }
                    _ => {
                        return Err(Refusal::new(
                            "Bad arguments for FIRST_VALUE: write FIRST_VALUE 4 @name BY @other DESC",
                        ));
                    }
                };
                return Ok(Reducer {
                    kind: ReducerKind::First(by),
                    column: property(list[0])?,
                });
            }
            "HLL" | "HLL_SUM" | "COLLECT" => {
                return Err(Refusal::new(format!(
                    "{name} is not supported: COUNT_DISTINCT counts exactly, TOLIST lists the distinct values"
                )));
            }
            _ => return Err(Refusal::new(format!("No such reducer: {function}"))),
        };
        if !matches!(kind, ReducerKind::Quantile(_) | ReducerKind::Sample(_)) {
            counts(1, 1)?;
        }
        Ok(Reducer {
            kind,
            column: property(list[0])?,
        })
    }

    pub fn start(&self) -> Accumulator {
        match self.kind {
            ReducerKind::Count => Accumulator::Count(0),
            ReducerKind::CountDistinct | ReducerKind::ToList => {
                Accumulator::Distinct(BTreeSet::new())
            }
            ReducerKind::Sum | ReducerKind::Average => Accumulator::Sum {
                ints: 0,
                floats: 0.0,
                count: 0,
            },
            ReducerKind::Min | ReducerKind::Max => Accumulator::Extreme(None),
            ReducerKind::Deviation => Accumulator::Spread {
                count: 0,
                mean: 0.0,
                squares: 0.0,
            },
            ReducerKind::Quantile(_) => Accumulator::Numbers(Vec::new()),
            ReducerKind::First(_) => Accumulator::First(None),
            ReducerKind::Sample(_) => Accumulator::Sample(BTreeMap::new()),
        }
    }

    /// Adds a row. Returns the approximate number of additional bytes.
    pub fn add(&self, to: &mut Accumulator, cells: &[Option<Cell>], identity: &[u8]) -> usize {
        if let Accumulator::Count(count) = to {
            *count += 1;
            return 0;
        }
        let nothing = Cell::Null;
        let cell = cells[self.column].as_ref().unwrap_or(&nothing);
        match (self.kind, to) {
            (ReducerKind::First(by), Accumulator::First(first)) => {
                let mut rank = Vec::new();
                if let Some((column, is_descending)) = by {
                    rank_cell(cells[column].as_ref(), is_descending, &mut rank);
                }
                rank.extend_from_slice(identity);
                // Null is not a first value if other rows have one.
                if *cell != Cell::Null && first.as_ref().is_none_or(|(before, _)| rank < *before) {
                    let bytes = rank.len() + cell.size_bytes();
                    *first = Some((rank, cell.clone()));
                    return bytes;
                }
                0
            }
            (ReducerKind::Sample(size), Accumulator::Sample(sample)) if *cell != Cell::Null => {
                let bytes = identity.len() + cell.size_bytes() + 64;
                sample.insert((key_hash(identity), identity.to_vec()), cell.clone());
                if sample.len() > size {
                    sample.pop_last();
                    0
                } else {
                    bytes
                }
            }
            (_, to) => match cell {
                Cell::List(list) => list.iter().map(|cell| self.add_value(to, cell)).sum(),
                cell => self.add_value(to, cell),
            },
        }
    }

    fn add_value(&self, to: &mut Accumulator, cell: &Cell) -> usize {
        if let Accumulator::Distinct(set) = to {
            if *cell == Cell::Null {
                return 0;
            }
            let mut bytes = Vec::new();
            cell.encode(&mut bytes);
            let size = bytes.len() + 64;
            return if set.insert(bytes) { size } else { 0 };
        }
        let Some(number) = cell.as_number() else {
            return 0;
        };
        match to {
            Accumulator::Sum {
                ints,
                floats,
                count,
            } => {
                *count += 1;
                match number {
                    Number::Int(value) => *ints += i128::from(value),
                    Number::Float(value) => *floats += value,
                }
                0
            }
            Accumulator::Extreme(extreme) => {
                *extreme = Some(extreme.map_or(number, |before| self.extreme(before, number)));
                0
            }
            Accumulator::Spread {
                count,
                mean,
                squares,
            } => {
                let value = number.as_f64();
                *count += 1;
                let before = value - *mean;
                *mean += before / *count as f64;
                *squares += before * (value - *mean);
                0
            }
            Accumulator::Numbers(numbers) => {
                numbers.push(number);
                size_of::<Number>()
            }
            _ => 0,
        }
    }

    fn extreme(&self, a: Number, b: Number) -> Number {
        if self.kind == ReducerKind::Min {
            a.min(b)
        } else {
            a.max(b)
        }
    }

    /// Merges the state of another region. Returns the maximum number of additional bytes.
    pub fn merge(&self, to: &mut Accumulator, other: Accumulator) -> usize {
        let bytes = other.size_bytes();
        match (to, other) {
            (Accumulator::Count(a), Accumulator::Count(b)) => *a = a.saturating_add(b),
            (Accumulator::Distinct(a), Accumulator::Distinct(b)) => a.extend(b),
            (
                Accumulator::Sum {
                    ints,
                    floats,
                    count,
                },
                Accumulator::Sum {
                    ints: i,
                    floats: f,
                    count: c,
                },
            ) => {
                *ints = ints.saturating_add(i);
                *floats += f;
                *count = count.saturating_add(c);
            }
            (Accumulator::Extreme(a), Accumulator::Extreme(b)) => {
                *a = match (*a, b) {
                    (Some(a), Some(b)) => Some(self.extreme(a, b)),
                    (a, b) => a.or(b),
                };
            }
            // Chan, Golub, LeVeque: "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
            (
                Accumulator::Spread {
                    count,
                    mean,
                    squares,
                },
                Accumulator::Spread {
                    count: c,
                    mean: m,
                    squares: s,
                },
            ) if c > 0 => {
                let (a, b) = (*count as f64, c as f64);
                let apart = m - *mean;
                *mean += apart * b / (a + b);
                *squares += s + apart * apart * a * b / (a + b);
                *count = count.saturating_add(c);
            }
            (Accumulator::Numbers(a), Accumulator::Numbers(b)) => a.extend(b),
            (Accumulator::First(a), Accumulator::First(Some(b)))
                if a.as_ref().is_none_or(|a| b.0 < a.0) =>
            {
                *a = Some(b)
            }
            (Accumulator::Sample(a), Accumulator::Sample(b)) => {
                a.extend(b);
                while let ReducerKind::Sample(size) = self.kind
                    && a.len() > size
                {
                    a.pop_last();
                }
            }
            _ => {}
        }
        bytes
    }

    pub fn finish(&self, of: Accumulator) -> Cell {
        match (self.kind, of) {
            (_, Accumulator::Count(count)) => Cell::int(count as i64),
            (ReducerKind::CountDistinct, Accumulator::Distinct(set)) => Cell::int(set.len() as i64),
            (_, Accumulator::Distinct(set)) => {
                let cells = set
                    .iter()
                    .filter_map(|bytes| Cell::decode(&mut WireReader::new(bytes)).ok());
                let mut cells: Vec<_> = cells.collect();
                cells.sort_by(Cell::order);
                Cell::List(cells)
            }
            (_, Accumulator::Sum { count: 0, .. }) => Cell::Nan,
            (
                ReducerKind::Average,
                Accumulator::Sum {
                    ints,
                    floats,
                    count,
                },
            ) => Cell::from_f64((ints as f64 + floats) / count as f64),
            (
                _,
                Accumulator::Sum {
                    ints, floats: 0.0, ..
                },
            ) => Cell::Number(Number::from_i128(ints)),
            (_, Accumulator::Sum { ints, floats, .. }) => Cell::from_f64(ints as f64 + floats),
            (ReducerKind::Min, Accumulator::Extreme(None)) => Cell::Number(Number::INFINITY),
            (_, Accumulator::Extreme(None)) => Cell::Number(Number::NEG_INFINITY),
            (_, Accumulator::Extreme(Some(number))) => Cell::Number(number),
            (_, Accumulator::Spread { count, squares, .. }) => match count {
                0 | 1 => Cell::int(0),
                count => Cell::from_f64((squares / (count - 1) as f64).sqrt()),
            },
            (ReducerKind::Quantile(quantile), Accumulator::Numbers(mut numbers)) => {
                numbers.sort_unstable();
                // The nearest-rank method.
                let rank = (quantile * numbers.len() as f64).ceil() as usize;
                numbers
                    .get(rank.saturating_sub(1))
                    .map_or(Cell::Nan, |number| Cell::Number(*number))
            }
            (_, Accumulator::Numbers(_)) => Cell::Nan,
            (_, Accumulator::First(first)) => first.map_or(Cell::Null, |(_, cell)| cell),
            (_, Accumulator::Sample(sample)) => Cell::List(sample.into_values().collect()),
        }
    }

    /// Decodes the state of this reducer.
    ///
    /// # Errors
    /// The bytes are not an encoded state of this reducer.
    pub fn decode(&self, reader: &mut WireReader<'_>) -> Result<Accumulator, Malformed> {
        let double =
            |reader: &mut WireReader<'_>| Ok::<_, Malformed>(f64::from_bits(reader.u64()?));
        let number = |reader: &mut WireReader<'_>| {
            Number::decode_ordered(reader.array()?)
                .ok_or(Malformed("a group has an invalid number"))
        };
        Ok(match self.start() {
            Accumulator::Count(_) => Accumulator::Count(reader.u64()?),
            Accumulator::Distinct(mut set) => {
                for _ in 0..reader.count(4)? {
                    set.insert(reader.bytes()?.to_vec());
                }
                Accumulator::Distinct(set)
            }
            Accumulator::Sum { .. } => {
                let ints = i128::from_le_bytes(reader.array()?);
                // A valid sum cannot reach this bound: it would need more integers than can be added.
                if ints.unsigned_abs() >= 1 << 120 {
                    return Err(Malformed("a group has a sum that is too large"));
                }
                Accumulator::Sum {
                    ints,
                    floats: double(reader)?,
                    count: reader.u64()?,
                }
            }
            Accumulator::Extreme(_) => Accumulator::Extreme(if reader.flag()? {
                Some(number(reader)?)
            } else {
                None
            }),
            Accumulator::Spread { .. } => Accumulator::Spread {
                count: reader.u64()?,
                mean: double(reader)?,
                squares: double(reader)?,
            },
            Accumulator::Numbers(mut numbers) => {
                for _ in 0..reader.count(10)? {
                    numbers.push(number(reader)?);
                }
                Accumulator::Numbers(numbers)
            }
            Accumulator::First(_) => Accumulator::First(if reader.flag()? {
                Some((reader.bytes()?.to_vec(), Cell::decode(reader)?))
            } else {
                None
            }),
            Accumulator::Sample(mut sample) => {
                for _ in 0..reader.count(13)? {
                    let key = (reader.u64()?, reader.bytes()?.to_vec());
                    sample.insert(key, Cell::decode(reader)?);
                }
                Accumulator::Sample(sample)
            }
        })
    }
}

/// Appends the part of a rank for one cell. Null sorts last, NaN before all numbers, and texts are folded.
pub(super) fn rank_cell(cell: Option<&Cell>, is_descending: bool, out: &mut Vec<u8>) {
    use crate::base::ordered::Scalar;
    use crate::base::words::fold_case;
    let value = match cell {
        None | Some(Cell::Null) => None,
        Some(Cell::Nan) => Some(Scalar::Boolean(false)),
        Some(Cell::Number(number)) => Some(Scalar::Number(*number)),
        Some(cell) => Some(Scalar::Bytes(fold_case(&cell.print()))),
    };
    rank_value(value.as_ref(), is_descending, out);
}

/// The state of one reducer in one group.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Accumulator {
    Count(u64),
    /// Encoded cells.
    Distinct(BTreeSet<Vec<u8>>),
    Sum {
        ints: i128,
        floats: f64,
        count: u64,
    },
    Extreme(Option<Number>),
    Spread {
        count: u64,
        mean: f64,
        squares: f64,
    },
    Numbers(Vec<Number>),
    /// With the rank of its row.
    First(Option<(Vec<u8>, Cell)>),
    /// The rows with the smallest hashes.
    Sample(BTreeMap<(u64, Vec<u8>), Cell>),
}

impl Accumulator {
    fn size_bytes(&self) -> usize {
        match self {
            Accumulator::Distinct(set) => set.iter().map(|bytes| bytes.len() + 64).sum(),
            Accumulator::Numbers(numbers) => numbers.len() * size_of::<Number>(),
            Accumulator::First(Some((rank, cell))) => rank.len() + cell.size_bytes(),
            Accumulator::Sample(sample) => sample
                .iter()
                .map(|(key, cell)| key.1.len() + cell.size_bytes() + 64)
                .sum(),
            _ => 0,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Accumulator::Count(count) => out.extend_from_slice(&count.to_le_bytes()),
            Accumulator::Distinct(set) => {
                put_count(out, set.len());
                set.iter().for_each(|bytes| put_bytes(out, bytes));
            }
            Accumulator::Sum {
                ints,
                floats,
                count,
            } => {
                out.extend_from_slice(&ints.to_le_bytes());
                out.extend_from_slice(&floats.to_bits().to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
            Accumulator::Extreme(extreme) => {
                out.push(u8::from(extreme.is_some()));
                extreme.iter().for_each(|number| number.encode_ordered(out));
            }
            Accumulator::Spread {
                count,
                mean,
                squares,
            } => {
                for word in [*count, mean.to_bits(), squares.to_bits()] {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            }
            Accumulator::Numbers(numbers) => {
                put_count(out, numbers.len());
                numbers.iter().for_each(|number| number.encode_ordered(out));
            }
            Accumulator::First(first) => {
                out.push(u8::from(first.is_some()));
                if let Some((rank, cell)) = first {
                    put_bytes(out, rank);
                    cell.encode(out);
                }
            }
            Accumulator::Sample(sample) => {
                put_count(out, sample.len());
                for ((hash, identity), cell) in sample {
                    out.extend_from_slice(&hash.to_le_bytes());
                    put_bytes(out, identity);
                    cell.encode(out);
                }
            }
        }
    }
}
