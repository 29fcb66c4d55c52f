//! The serialized form of a collector, for builders in several processes: each collects its own rows, and one process
//! merges them.
//!
//! | bytes | contents |
//! |---|---|
//! | 8, 8 | rows; rows without columns |
//! | *counts* | of the key |
//! | 1 | 1 if there were too many columns |
//! | 4 | number of columns; for each its name (4 bytes of length, the name) and its *counts* |
//! | 4 | number of sampled rows, in ascending order of hashes; for each 8 bytes of hash, 4 bytes of cell count, and the *cells* |
//!
//! *Counts* are six numbers of 8 bytes, a flag, the minimum and maximum if the flag is 1, and the 1,024 registers of
//! a sketch. A *cell* is its column number (4 bytes; the key has the greatest number), a kind, and the contents of
//! that kind. Numbers are little-endian. Both sides run the same release, and the bytes live only as long as a job,
//! so there is no format number.

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::collect::{Collector, ColumnCounts, Columns, KEY, Shape};
use super::distinct::{DistinctSketch, RANK_MAX, REGISTERS};
use super::sample::{Sample, Sampled, SampledRow, TEXT_MAX};
use crate::error::Error;

/// Minimum size of a column: its name's length and its counts.
const COLUMN_BYTES_MIN: usize = 4 + 49 + REGISTERS;
const COUNT_MAX: u64 = 1 << 48;
const ROW_BYTES_MIN: usize = 12;
const CELL_BYTES_MIN: usize = 5;

impl Collector {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_u64(&mut out, self.rows);
        put_u64(&mut out, self.rows_without_columns);
        put_counts(&mut out, &self.key);
        out.push(u8::from(self.columns.are_too_many));
        put_count(&mut out, self.columns.all.len());
        for (name, counts) in &self.columns.all {
            put_bytes(&mut out, name);
            put_counts(&mut out, counts);
        }
        let rows = self.sample.rows_by_hash();
        put_count(&mut out, rows.len());
        for row in rows {
            put_u64(&mut out, row.hash);
            put_count(&mut out, row.cells.len());
            for (column, cell) in &row.cells {
                out.extend_from_slice(&column.to_le_bytes());
                put_cell(&mut out, cell);
            }
        }
        out
    }

    /// Decodes the output of [`Collector::encode`], for rows of this shape.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for any other bytes.
    pub fn decode(shape: Shape, bytes: &[u8]) -> Result<Collector, Error> {
        let read = read(shape, bytes);
        read.map_err(|error| Error::corrupted("the statistics of a part's rows", error.0))
    }
}

fn read(shape: Shape, bytes: &[u8]) -> Result<Collector, Malformed> {
    let mut from = WireReader::new(bytes);
    let mut collector = Collector::new(shape);
    collector.rows = read_count(&mut from)?;
    collector.rows_without_columns = read_count(&mut from)?;
    collector.key = read_counts(&mut from)?;
    let are_too_many = from.flag()?;
    let mut columns = Columns::default();
    let count = from.count(COLUMN_BYTES_MIN)?;
    for at in 0..count {
        let name = from.bytes()?;
        match columns.find(name) {
            Some((found, counts)) if found == at => *counts = read_counts(&mut from)?,
            _ => {
                return Err(Malformed(
                    "a column is duplicated, or there are too many columns",
                ));
            }
        }
    }
    columns.are_too_many = are_too_many;
    collector.sample.set_columns(count.max(1));
    collector.columns = columns;
    read_sample(&mut from, count, &mut collector.sample)?;
    from.end()?;
    Ok(collector)
}

fn read_sample(
    from: &mut WireReader<'_>,
    columns: usize,
    sample: &mut Sample,
) -> Result<(), Malformed> {
    let mut last = 0;
    for _ in 0..from.count(ROW_BYTES_MIN)? {
        let hash = from.u64()?;
        if hash < last || !sample.accepts(hash) {
            return Err(Malformed("the rows of a sample are inconsistent"));
        }
        last = hash;
        let mut cells = Vec::new();
        for _ in 0..from.count(CELL_BYTES_MIN)? {
            let column = from.u32()?;
            if column != KEY && column as usize >= columns {
                return Err(Malformed("a cell refers to an unknown column"));
            }
            cells.push((column, read_cell(from)?));
        }
        sample.add(SampledRow { hash, cells });
    }
    Ok(())
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_counts(out: &mut Vec<u8>, counts: &ColumnCounts) {
    let ColumnCounts {
        present,
        empty,
        numbers,
        texts,
        booleans,
        nested,
        range,
        distinct,
    } = counts;
    for number in [present, empty, numbers, texts, booleans, nested] {
        put_u64(out, *number);
    }
    out.push(u8::from(range.is_some()));
    if let Some((least, most)) = range {
        put_u64(out, least.to_bits());
        put_u64(out, most.to_bits());
    }
    out.extend_from_slice(distinct.registers());
}

/// Reads a number of rows or values. It is bounded, so that the sum over all parts cannot overflow.
fn read_count(from: &mut WireReader<'_>) -> Result<u64, Malformed> {
    match from.u64()? {
        count if count <= COUNT_MAX => Ok(count),
        _ => Err(Malformed("a count exceeds the number of rows")),
    }
}

fn read_counts(from: &mut WireReader<'_>) -> Result<ColumnCounts, Malformed> {
    let [present, empty, numbers, texts, booleans, nested] = {
        let mut six = [0; 6];
        for number in &mut six {
            *number = read_count(from)?;
        }
        six
    };
    let range = if from.flag()? {
        Some((f64::from_bits(from.u64()?), f64::from_bits(from.u64()?)))
    } else {
        None
    };
    let registers = from.array::<REGISTERS>()?;
    if registers.iter().any(|rank| *rank > RANK_MAX) {
        return Err(Malformed("a sketch has a rank that no hash has"));
    }
    Ok(ColumnCounts {
        present,
        empty,
        numbers,
        texts,
        booleans,
        nested,
        range,
        distinct: DistinctSketch::of(registers),
    })
}

fn put_cell(out: &mut Vec<u8>, cell: &Sampled) {
    match cell {
        Sampled::Number(value) => {
            out.push(0);
            put_u64(out, value.to_bits());
        }
        Sampled::Boolean(value) => out.extend([1, u8::from(*value)]),
        Sampled::Empty => out.push(2),
        Sampled::Text { front, bytes, hash } => {
            out.push(3);
            put_bytes(out, front);
            put_u64(out, *bytes);
            put_u64(out, *hash);
        }
        Sampled::Nested { bytes, hash } => {
            out.push(4);
            put_u64(out, *bytes);
            put_u64(out, *hash);
        }
    }
}

fn read_cell(from: &mut WireReader<'_>) -> Result<Sampled, Malformed> {
    Ok(match from.u8()? {
        0 => Sampled::Number(f64::from_bits(from.u64()?)),
        1 => Sampled::Boolean(from.flag()?),
        2 => Sampled::Empty,
        3 => {
            let front = from.bytes()?;
            let bytes = from.u64()?;
            if front.len() > TEXT_MAX || bytes < front.len() as u64 {
                return Err(Malformed("the front of a text is longer than it may be"));
            }
            Sampled::Text {
                front: front.into(),
                bytes,
                hash: from.u64()?,
            }
        }
        4 => Sampled::Nested {
            bytes: from.u64()?,
            hash: from.u64()?,
        },
        _ => return Err(Malformed("a cell has an unknown kind")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected(shape: &Shape, rows: std::ops::Range<u32>) -> Collector {
        let mut collector = Collector::new(shape.clone());
        for row in rows {
            let value = match row % 5 {
                0 => format!(r#"{{"price":{}.5,"city":"rome"}}"#, row % 90),
                1 => format!(r#"{{"city":"","flag":true,"tags":[{row}]}}"#),
                2 => format!(r#"{{"price":null,"note":"{}"}}"#, "long ".repeat(20)),
                3 => r#"{"price":"NaN"}"#.to_owned(),
                _ => "no object".to_owned(),
            };
            collector.add(format!("k{row}").as_bytes(), value.as_bytes());
        }
        collector
    }

    #[test]
    fn transferred_collectors_merge_into_the_profile_of_all_rows() {
        let key = ["id".to_owned()];
        let shape = Shape::Json;
        let alone = collected(&shape, 0..30_000).finish(&key);
        let mut all = Collector::new(shape.clone());
        for part in [20_000..30_000, 0..1, 1..20_000, 0..0] {
            let bytes = collected(&shape, part).encode();
            let sent = Collector::decode(shape.clone(), &bytes).expect("as written");
            assert_eq!(sent.encode(), bytes);
            all.merge(sent);
        }
        assert_eq!(all.finish(&key), alone);
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        let bytes = collected(&Shape::Json, 0..40).encode();
        for size in 0..bytes.len() {
            assert!(Collector::decode(Shape::Json, &bytes[..size]).is_err());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Collector::decode(Shape::Json, &longer).is_err());
    }
}
