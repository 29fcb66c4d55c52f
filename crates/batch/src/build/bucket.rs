//! One bucket: loads its chunks, sorts the rows by (hash, key, seq) and resolves duplicates.
//!
//! A bucket that exceeds its share of the memory is read several times, each time for a narrower range of hashes. At
//! most twice that share is then in memory. `heavy.rs` handles a single hash whose rows exceed it.

use std::sync::Mutex;

use larder_types::key_hash;

use super::collect::{ArrayBuilder, CollectAs};
use super::counts::RowCounts;
use super::spill::{Chunk, ChunkLocation, Row, Rows, Spill, StoredChunk};
use super::{OnDuplicate, heavy};
use crate::delta::{MarkedValue, PRESENT, decode};
use crate::error::{Error, show_key};

#[derive(Default)]
pub struct Bucket {
    chunks: Vec<StoredChunk>,
    pub counts: RowCounts,
}

/// The treatment of rows that share a key.
#[derive(Clone, Copy)]
pub struct Duplicates {
    pub policy: OnDuplicate,
    pub collect_as: CollectAs,
    /// True if values end with the delta marker (see `delta.rs`).
    pub is_marked: bool,
    /// Maximum length of a collected value.
    pub value_bytes_max: u64,
    /// Maximum memory for collecting the values of one key.
    pub collect_bytes_max: u64,
}

/// The memory limits for sorting a bucket.
#[derive(Clone, Copy)]
pub struct SortLimits<'a> {
    /// A bucket of up to this size is loaded completely.
    pub bytes_max: u64,
    /// Held by the thread that processes a key whose rows do not fit.
    pub heavy_key_lock: &'a Mutex<()>,
}

/// Receives the resulting records, in (hash, key) order.
pub type Emit<'a> = dyn FnMut(u64, &[u8], &[u8]) -> Result<(), Error> + 'a;

/// The position and sort key of a row. Sorting moves these 32 bytes, never the rows.
#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    seq: u64,
    chunk: u32,
    /// The offset of the key in its chunk; the value follows it.
    offset: u32,
    key_size: u32,
    value_size: u32,
}

impl Bucket {
    pub fn add(&mut self, held: StoredChunk) {
        self.counts.add(held.counts);
        self.chunks.push(held);
    }

    pub fn memory_bytes(&self) -> u64 {
        let in_memory = |held: &StoredChunk| match &held.place {
            ChunkLocation::Memory(bytes) => bytes.len() as u64,
            ChunkLocation::File { .. } => 0,
        };
        self.chunks.iter().map(in_memory).sum()
    }

    pub fn emit(
        self,
        spill: &Spill,
        duplicates: Duplicates,
        room: SortLimits<'_>,
        emit: &mut Emit<'_>,
    ) -> Result<(), Error> {
        let size = |held: &StoredChunk| match &held.place {
            ChunkLocation::Memory(bytes) => bytes.len() as u64,
            ChunkLocation::File { size, .. } => *size as u64,
        };
        let total: u64 = self.chunks.iter().map(size).sum();
        if total <= room.bytes_max {
            let mut chunks = Vec::with_capacity(self.chunks.len());
            for held in self.chunks {
                chunks.push(match held.place {
                    ChunkLocation::Memory(bytes) => bytes,
                    ChunkLocation::File { offset, size } => spill.read(offset, size)?,
                });
            }
            return emit_sorted(&chunks, duplicates, emit);
        }
        let passes = total.div_ceil(room.bytes_max);
        self.emit_in_passes(spill, duplicates, passes, room, emit)
    }

    fn emit_in_passes(
        &self,
        spill: &Spill,
        duplicates: Duplicates,
        passes: u64,
        room: SortLimits<'_>,
        emit: &mut Emit<'_>,
    ) -> Result<(), Error> {
        let (first, last) = self.hash_bounds(spill)?;
        let step = ((last - first) / passes).saturating_add(1);
        for pass in 0..passes {
            let Some(low) = first
                .checked_add(pass.saturating_mul(step))
                .filter(|low| *low <= last)
            else {
                break;
            };
            let high = low.saturating_add(step - 1).min(last);
            self.emit_range(spill, duplicates, (low, high), room, emit)?;
        }
        Ok(())
    }

    /// Emits the rows of a range of hashes (both ends inclusive). A range whose rows do not fit, for example because
    /// many share a key, is split at the median of its bytes as far as they were read.
    fn emit_range(
        &self,
        spill: &Spill,
        duplicates: Duplicates,
        range: (u64, u64),
        room: SortLimits<'_>,
        emit: &mut Emit<'_>,
    ) -> Result<(), Error> {
        // A stack: the lowest range is last.
        let mut ranges = vec![range];
        while let Some((low, high)) = ranges.pop() {
            let (rows, is_complete) = self.gather(spill, (low, high), 2 * room.bytes_max)?;
            if is_complete {
                emit_sorted(&[rows.bytes], duplicates, emit)?;
            } else if low == high {
                drop(rows);
                heavy::emit_hash(self, spill, low, duplicates, room, emit)?;
            } else {
                let middle = middle_hash(&rows.bytes);
                if middle < high {
                    ranges.push((middle + 1, high));
                }
                ranges.push((middle, middle));
                if low < middle {
                    ranges.push((low, middle - 1));
                }
            }
        }
        Ok(())
    }

    /// Returns the rows of a range of hashes, and whether they are complete. They are not if they exceed `bytes_max`.
    fn gather(
        &self,
        spill: &Spill,
        (low, high): (u64, u64),
        bytes_max: u64,
    ) -> Result<(Chunk, bool), Error> {
        let mut rows = Chunk::default();
        let is_complete = self.each_row(spill, &mut |row, hash| {
            if !(low..=high).contains(&hash) {
                return true;
            }
            let bytes = rows.bytes.len() + row.key.len() + row.value.len();
            let fits = rows.counts.rows == 0 || bytes as u64 <= bytes_max;
            if fits {
                rows.push(row.seq, row.key, row.value, 0);
            }
            fits
        })?;
        Ok((rows, is_complete))
    }

    fn hash_bounds(&self, spill: &Spill) -> Result<(u64, u64), Error> {
        let mut bounds = (u64::MAX, 0);
        self.each_row(spill, &mut |_, hash| {
            bounds = (bounds.0.min(hash), bounds.1.max(hash));
            true
        })?;
        Ok(bounds)
    }

    /// Calls `each` with every row and its hash, until it returns false. Returns whether all rows were visited.
    pub fn each_row(
        &self,
        spill: &Spill,
        each: &mut dyn FnMut(Row<'_>, u64) -> bool,
    ) -> Result<bool, Error> {
        for held in &self.chunks {
            let loaded;
            let bytes = match &held.place {
                ChunkLocation::Memory(bytes) => bytes,
                ChunkLocation::File { offset, size } => {
                    loaded = spill.read(*offset, *size)?;
                    &loaded
                }
            };
            for row in Rows::new(bytes) {
                let hash = key_hash(row.key);
                if !each(row, hash) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Returns the hash at or below which half of the rows' bytes lie. There is at least one row.
fn middle_hash(rows: &[u8]) -> u64 {
    let size = |row: &Row<'_>| (row.key.len() + row.value.len()) as u64;
    let mut sizes: Vec<(u64, u64)> = Rows::new(rows)
        .map(|row| (key_hash(row.key), size(&row)))
        .collect();
    sizes.sort_unstable();
    let total: u64 = sizes.iter().map(|(_, size)| size).sum();
    let mut sum = 0;
    let middle = sizes.iter().find(|(_, size)| {
        sum += size;
        sum >= total.div_ceil(2)
    });
    middle.expect("a range that does not fit has a row").0
}

fn emit_sorted(
    chunks: &[Vec<u8>],
    duplicates: Duplicates,
    emit: &mut Emit<'_>,
) -> Result<(), Error> {
    let mut entries = Vec::new();
    for (chunk, bytes) in (0..).zip(chunks) {
        if u32::try_from(bytes.len()).is_err() {
            return Err(Error::limit(
                "--memory",
                "one chunk of rows exceeds 4 GiB; increase --partitions",
            ));
        }
        entries.extend(Rows::new(bytes).map(|row| Entry {
            hash: key_hash(row.key),
            seq: row.seq,
            chunk,
            offset: (row.key.as_ptr() as usize - bytes.as_ptr() as usize) as u32,
            key_size: row.key.len() as u32,
            value_size: row.value.len() as u32,
        }));
    }
    entries.sort_unstable_by_key(|entry| entry.hash);
    let row = |entry: &Entry| {
        let bytes = &chunks[entry.chunk as usize][entry.offset as usize..];
        let (key, rest) = bytes.split_at(entry.key_size as usize);
        (key, entry.seq, &rest[..entry.value_size as usize])
    };
    let mut start = 0;
    while start < entries.len() {
        let hash = entries[start].hash;
        let run = entries[start..]
            .iter()
            .take_while(|entry| entry.hash == hash)
            .count();
        let run = &mut entries[start..start + run];
        start += run.len();
        if run.len() > 1 {
            run.sort_unstable_by(|a, b| {
                let (a, b) = (row(a), row(b));
                (a.0, a.1).cmp(&(b.0, b.1))
            });
        }
        for same in run.chunk_by(|a, b| row(a).0 == row(b).0) {
            resolve_duplicates(same.iter().map(&row), same.len(), duplicates, hash, emit)?;
        }
    }
    Ok(())
}

/// Applies the duplicate policy to the rows of one key, in input order, and emits the result.
fn resolve_duplicates<'a>(
    mut rows: impl DoubleEndedIterator<Item = (&'a [u8], u64, &'a [u8])>,
    count: usize,
    duplicates: Duplicates,
    hash: u64,
    emit: &mut Emit<'_>,
) -> Result<(), Error> {
    let first = rows.next().expect("a run has a row");
    let (key, first_seq, value) = first;
    match duplicates.policy {
        OnDuplicate::Collect => {
            let all = std::iter::once(first)
                .chain(rows)
                .map(|(_, _, value)| value);
            emit(hash, key, &collect(duplicates, key, all, count)?)
        }
        OnDuplicate::Error if count > 1 => {
            let second_seq = rows.next().map_or(first_seq, |(_, seq, _)| seq);
            Err(Error::DuplicateKey {
                key: key.to_vec(),
                rows: [first_seq, second_seq],
            })
        }
        OnDuplicate::Last => emit(hash, key, rows.next_back().unwrap_or(first).2),
        OnDuplicate::Error | OnDuplicate::First => emit(hash, key, value),
    }
}

/// Returns the array of the values of one key.
pub fn collect<'a>(
    duplicates: Duplicates,
    key: &[u8],
    values: impl Iterator<Item = &'a [u8]>,
    count: usize,
) -> Result<Vec<u8>, Error> {
    let mut collected = ArrayBuilder::new(duplicates.collect_as, count);
    for marked in values {
        let value = match (duplicates.is_marked, decode(marked)) {
            (false, _) => marked,
            (true, Some(MarkedValue::Value(value))) => value,
            (true, _) if count == 1 => return Ok(marked.to_vec()),
            (true, _) => {
                return Err(Error::state(format!(
                    "key {} has both values to collect and a removal; omit one of them",
                    show_key(key)
                )));
            }
        };
        collected.push(value).map_err(|reason| {
            let what = format!("a value of key {}", show_key(key));
            Error::limit(what, reason)
        })?;
        let bytes = collected.len() as u64;
        if bytes > duplicates.collect_bytes_max && bytes <= duplicates.value_bytes_max {
            return Err(Error::KeyMemory {
                key: key.to_vec(),
                values: count as u64,
                needed_bytes: None,
                available_bytes: duplicates.collect_bytes_max,
            });
        }
        if bytes > duplicates.value_bytes_max {
            return Err(Error::limit(
                format!("the {count} values of key {}", show_key(key)),
                format!(
                    "have more than {} bytes together; choose a longer key, or first or last instead of collect",
                    duplicates.value_bytes_max
                ),
            ));
        }
    }
    let mut array = collected.finish();
    if duplicates.is_marked {
        array.push(PRESENT);
    }
    Ok(array)
}
