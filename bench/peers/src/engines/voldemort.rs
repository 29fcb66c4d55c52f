//! Voldemort's read-only layout, `replica-chunks-with-keys`, in as many chunks as keep each below 2 GiB.
//!
//! Index: 12-byte entries, the first 8 bytes of the key's md5 and a 4-byte offset, sorted. Data: i16 count, then
//! per record i32 key length, i32 value length, key, value; keys whose md5 begins alike share an entry. All big-endian.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use md5::{Digest, Md5};
use memmap2::{Advice, Mmap};
use rayon::slice::ParallelSliceMut;

use crate::data::{self, DataSet};
use crate::engine::{Engine, Reader, Result, touch};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Search {
    Binary,
    Interpolation,
}

pub struct Voldemort {
    pub search: Search,
}

const ENTRY_BYTES: usize = 12;
/// Of rows; a chunk ends at 2 GiB.
const CHUNK_BYTES: usize = 3 << 29;

fn prefix_of(key: &[u8]) -> u64 {
    let digest = Md5::digest(key);
    let mut prefix = [0; 8];
    prefix.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(prefix)
}

impl Engine for Voldemort {
    fn build(&self, data: &DataSet, out: &Path) -> Result<()> {
        let bytes = data::read_rows(&data.csv)?;
        let mut rows = Vec::new();
        data::split_rows(data::after_header(&bytes), |key, value| {
            rows.push((prefix_of(key), key, value))
        });
        let chunks = bytes.len().div_ceil(CHUNK_BYTES).max(1);
        // By chunk and then by prefix.
        rows.par_sort_unstable_by_key(|row| (chunk_of(row.0, chunks), row.0));
        for (number, rows) in
            (0..).zip(rows.chunk_by(|a, b| chunk_of(a.0, chunks) == chunk_of(b.0, chunks)))
        {
            write_chunk(out, number, rows)?;
        }
        File::open(out)?.sync_all()?;
        Ok(())
    }

    fn open(&self, out: &Path) -> Result<Box<dyn Reader>> {
        let map = |name: &str| -> Result<Mmap> {
            // SAFETY: nothing changes the file while it is mapped.
            let map = unsafe { Mmap::map(&File::open(out.join(name))?)? };
            map.advise(Advice::Random)?;
            Ok(map)
        };
        let mut chunks = Vec::new();
        while out.join(format!("0_0_{}.index", chunks.len())).exists() {
            let number = chunks.len();
            chunks.push(Chunk {
                search: self.search,
                index: map(&format!("0_0_{number}.index"))?,
                records: map(&format!("0_0_{number}.data"))?,
            });
        }
        Ok(Box::new(VoldemortReader(chunks)))
    }
}

/// A prefix's chunk, by its last bits: the first order the chunk.
fn chunk_of(prefix: u64, chunks: usize) -> usize {
    (prefix & 0xffff_ffff) as usize % chunks
}

fn write_chunk(out: &Path, number: u32, rows: &[(u64, &[u8], &[u8])]) -> Result<()> {
    let create = |name: &str| -> Result<BufWriter<File>> {
        Ok(BufWriter::with_capacity(
            1 << 20,
            File::create_new(out.join(name))?,
        ))
    };
    let (mut index, mut records) = (
        create(&format!("0_0_{number}.index"))?,
        create(&format!("0_0_{number}.data"))?,
    );
    let mut at = 0u64;
    for group in rows.chunk_by(|a, b| a.0 == b.0) {
        let offset = i32::try_from(at).map_err(|_| "a chunk of this layout ends at 2 GiB")?;
        index.write_all(&group[0].0.to_be_bytes())?;
        index.write_all(&offset.to_be_bytes())?;
        records.write_all(&(group.len() as i16).to_be_bytes())?;
        at += 2;
        for (_, key, value) in group {
            records.write_all(&(key.len() as i32).to_be_bytes())?;
            records.write_all(&(value.len() as i32).to_be_bytes())?;
            records.write_all(key)?;
            records.write_all(value)?;
            at += 8 + (key.len() + value.len()) as u64;
        }
    }
    index.into_inner()?.sync_all()?;
    records.into_inner()?.sync_all()?;
    Ok(())
}

struct VoldemortReader(Vec<Chunk>);

impl Reader for VoldemortReader {
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        let prefix = prefix_of(key);
        let chunk = chunk_of(prefix, self.0.len());
        self.0[chunk].get(prefix, key)
    }
}

struct Chunk {
    search: Search,
    index: Mmap,
    records: Mmap,
}

impl Chunk {
    fn prefix_at(&self, entry: usize) -> u64 {
        let at = entry * ENTRY_BYTES;
        self.index[at..]
            .first_chunk()
            .map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// The entry of `prefix`, looked for between `low` and `high`, whose place `guess` proposes.
    fn find(&self, prefix: u64, guess: impl Fn(usize, usize, u64) -> usize) -> Option<usize> {
        let (mut low, mut high) = (0, self.index.len() / ENTRY_BYTES);
        while low < high {
            let middle = guess(low, high, prefix);
            match self.prefix_at(middle).cmp(&prefix) {
                Ordering::Equal => return Some(middle),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Interpolates between the prefixes that bound the range so far, as they become known.
    fn find_by_interpolation(&self, prefix: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.index.len() / ENTRY_BYTES);
        let (mut low_prefix, mut high_prefix) = (0u64, u64::MAX);
        while low < high {
            let span = u128::from(high_prefix - low_prefix).max(1);
            let share = u128::from(prefix.saturating_sub(low_prefix)) * (high - low) as u128 / span;
            let middle = (low + share as usize).min(high - 1);
            let found = self.prefix_at(middle);
            match found.cmp(&prefix) {
                Ordering::Equal => return Some(middle),
                Ordering::Less => (low, low_prefix) = (middle + 1, found),
                Ordering::Greater => (high, high_prefix) = (middle, found),
            }
        }
        None
    }

    fn get(&self, prefix: u64, key: &[u8]) -> Option<u64> {
        let entry = match self.search {
            Search::Binary => self.find(prefix, |low, high, _| low + (high - low) / 2)?,
            Search::Interpolation => self.find_by_interpolation(prefix)?,
        };
        let offset = self.index[entry * ENTRY_BYTES + 8..]
            .first_chunk()
            .map(|bytes| u32::from_be_bytes(*bytes))?;
        let mut rest = self.records.get(offset as usize..)?;
        let (count, after) = rest.split_first_chunk::<2>()?;
        rest = after;
        for _ in 0..i16::from_be_bytes(*count) {
            let (key_len, after) = rest.split_first_chunk::<4>()?;
            let (value_len, after) = after.split_first_chunk::<4>()?;
            let (found, after) = after.split_at_checked(u32::from_be_bytes(*key_len) as usize)?;
            let (value, after) = after.split_at_checked(u32::from_be_bytes(*value_len) as usize)?;
            if found == key {
                return Some(touch(value));
            }
            rest = after;
        }
        None
    }
}
