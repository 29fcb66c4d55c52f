//! The search result of one region. Partial results merge to the same result in any order.
//!
//! The *rank* of an entry is a byte string that sorts in result order. For each sort key it contains 0 and the ordered
//! bytes of the value, inverted if the key is descending, or 1 if the value is missing. The object's key follows. The
//! ranks of two objects are never equal.

use std::collections::HashSet;

use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::request::{SortBy, SortKey};
use super::top_rows::{Entry, OrderedRows, TopRows, infallible};
use crate::base::ordered::Scalar;
use crate::schema::Definition;
use crate::value::Columns;

/// The total, and the first rows in order.
#[derive(Debug, Clone)]
pub struct Partial {
    pub total: u64,
    rows: TopRows,
}

pub fn rank(
    order: &[SortKey],
    definition: &Definition,
    columns: &dyn Columns,
    key: &[u8],
) -> Vec<u8> {
    let mut out = Vec::new();
    for sort_key in order {
        let value = match sort_key.by {
            SortBy::Key => Some(Scalar::Bytes(key.to_vec())),
            SortBy::Attribute(id) => columns.column(id).sort_value(definition.get(id)),
        };
        rank_value(value.as_ref(), sort_key.is_descending, &mut out);
    }
    out.extend_from_slice(key);
    out
}

/// Appends the part of a rank for one sort key.
pub fn rank_value(value: Option<&Scalar>, is_descending: bool, out: &mut Vec<u8>) {
    let Some(value) = value else {
        out.push(1);
        return;
    };
    out.push(0);
    let begin = out.len();
    value.encode(out);
    if is_descending {
        out[begin..].iter_mut().for_each(|byte| *byte = !*byte);
    }
}

/// Returns the value of the first sort key, or `None` if it is missing.
pub fn first_sort_value(rank: &[u8], order: &[SortKey]) -> Option<Scalar> {
    let first = order.first()?;
    let bytes = rank.strip_prefix(&[0])?;
    if first.is_descending {
        let inverted: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
        Some(Scalar::decode(&inverted).ok()?.0)
    } else {
        Some(Scalar::decode(bytes).ok()?.0)
    }
}

/// Formats a sort key for WITHSORTKEYS: `#12` for a number, `$text` for other values.
pub fn print_sort_value(value: &Scalar) -> Vec<u8> {
    match value {
        Scalar::Number(number) => format!("#{}", number.print_exact()).into_bytes(),
        Scalar::Instant(micros) => {
            format!("#{}", crate::base::instant::seconds(*micros).print_exact()).into_bytes()
        }
        Scalar::Boolean(flag) => format!("${flag}").into_bytes(),
        Scalar::Bytes(bytes) => [b"$", &bytes[..]].concat(),
    }
}

impl Partial {
    /// Creates an empty result that keeps the first `keep` rows.
    pub fn new(keep: usize) -> Partial {
        Partial {
            total: 0,
            rows: TopRows::new(keep),
        }
    }

    /// Returns the maximum number of rows.
    pub(crate) fn keep(&self) -> usize {
        self.rows.keep()
    }

    /// Returns the approximate memory use of the rows, in bytes. The caller enforces a limit.
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Returns whether the result would keep a row of this rank.
    pub fn would_keep(&self, rank: &[u8]) -> bool {
        self.rows.would_keep(rank)
    }

    /// Counts a matching object, and keeps its row if it is among the first. `put` appends the content, and is called
    /// only if the row is kept.
    pub fn offer(&mut self, rank: &[u8], key: &[u8], put: impl FnOnce(&mut Vec<u8>)) {
        let Ok(()) = self.try_offer(rank, key, infallible(put));
    }

    /// Like [`Partial::offer`], for content that may be damaged.
    ///
    /// # Errors
    /// `put` failed. The object is not counted.
    pub fn try_offer<E>(
        &mut self,
        rank: &[u8],
        key: &[u8],
        put: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.rows.offer(rank, key, put)?;
        self.total += 1;
        Ok(())
    }

    /// Merges the result of another region. No object may be in both.
    pub fn merge(&mut self, other: Partial) {
        self.total += other.total;
        other
            .rows
            .iter()
            .for_each(|entry| self.rows.offer_entry(entry));
    }

    /// Merges results from copies in several regions. If a concurrent write moved an object, two of them may contain
    /// it; the merged result contains one of its states. The total is corrected for duplicates among the kept rows
    /// only.
    pub fn merge_copies(keep: usize, parts: impl IntoIterator<Item = Partial>) -> Partial {
        let mut parts: Vec<Partial> = parts.into_iter().collect();
        if parts.len() == 1 {
            return parts.remove(0);
        }
        let (mut all, mut seen) = (Partial::new(keep), HashSet::new());
        for part in &parts {
            all.total += part.total;
            for entry in part.rows.iter() {
                if seen.insert(entry.key) {
                    all.rows.offer_entry(entry)
                } else {
                    all.total -= 1
                }
            }
        }
        all
    }

    /// Returns the content of each row, unordered.
    pub fn contents(&self) -> impl Iterator<Item = &[u8]> {
        self.rows.iter().map(|entry| entry.content)
    }

    /// Returns the key of the last kept row.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.rows.last().map(|last| last.key)
    }

    /// Returns the rows from `offset`, in order.
    pub fn finish(self, offset: u64) -> OrderedRows {
        self.rows
            .into_ordered(usize::try_from(offset).unwrap_or(usize::MAX))
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.rows.bytes() + 32);
        out.extend_from_slice(&self.total.to_le_bytes());
        out.extend_from_slice(&(self.rows.keep() as u64).to_le_bytes());
        put_count(&mut out, self.rows.len());
        for entry in self.rows.iter() {
            put_bytes(&mut out, entry.rank);
            put_bytes(&mut out, entry.key);
            put_bytes(&mut out, entry.content);
        }
        out
    }

    /// Decodes a partial result.
    ///
    /// # Errors
    /// The bytes are not an encoded partial result.
    pub fn decode(bytes: &[u8]) -> Result<Partial, Malformed> {
        let mut reader = WireReader::new(bytes);
        let total = reader.u64()?;
        let keep = usize::try_from(reader.u64()?)
            .map_err(|_| Malformed("the result keeps more rows than fit in memory"))?;
        let count = reader.count(12)?;
        if count > keep || count as u64 > total {
            return Err(Malformed("there are more rows than the limit"));
        }
        let mut partial = Partial::new(keep);
        partial.total = total;
        for _ in 0..count {
            partial.rows.offer_entry(Entry {
                rank: reader.bytes()?,
                key: reader.bytes()?,
                content: reader.bytes()?,
            });
        }
        reader.end()?;
        Ok(partial)
    }
}
