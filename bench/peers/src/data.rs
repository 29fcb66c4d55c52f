//! The data: a seeded CSV of distinct integer keys in random order, and a fast way to read it.
//!
//! Keys are 8 to 19 digit integers, all equally long (RocksDB's cuckoo table wants that): key `i` of `n` is
//! `BASE + 2 i`, and the odd numbers between are keys that are absent. Values are random over 64 letters, which no
//! engine can compress by more than a quarter and none tries to.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The smallest key.
const BASE: u64 = 10_000_000;
const SEED: u64 = 0x6c61_7264_6572;

/// A data set: its dimensions, and the path of its CSV.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DataSet {
    pub name: String,
    pub keys: u64,
    pub value_bytes: u64,
    pub csv: PathBuf,
}

impl DataSet {
    /// Key bytes and value bytes, without any overhead.
    pub fn raw_bytes(&self) -> u64 {
        self.keys * (self.key(0).bytes().len() as u64 + self.value_bytes)
    }

    /// The `i`th key.
    pub fn key(&self, i: u64) -> Key {
        Key::of(BASE + 2 * i)
    }

    /// A key that is absent, between the `i`th and the next.
    pub fn absent_key(&self, i: u64) -> Key {
        Key::of(BASE + 2 * i + 1)
    }

    /// Writes the CSV, unless it is there already.
    pub fn generate(&self) -> std::io::Result<()> {
        let temp = self.csv.with_extension("csv.tmp");
        if self.csv.exists() {
            return Ok(());
        }
        let mut random = Random::new(SEED ^ self.keys);
        let mut order: Vec<u32> = (0..self.keys as u32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&temp)?);
        out.write_all(b"key,value\n")?;
        let mut line = Vec::new();
        for i in order {
            line.clear();
            line.extend_from_slice(self.key(u64::from(i)).bytes());
            line.push(b',');
            let value_end = line.len() + self.value_bytes as usize;
            while line.len() < value_end {
                let mut bits = random.next();
                for _ in 0..10.min(value_end - line.len()) {
                    line.push(LETTERS[(bits & 63) as usize]);
                    bits >>= 6;
                }
            }
            line.push(b'\n');
            out.write_all(&line)?;
        }
        out.into_inner()?.sync_all()?;
        std::fs::rename(temp, &self.csv)
    }
}

const LETTERS: &[u8; 64] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";

/// A key in place, so that a list of keys is read in order and costs the lookups nothing.
#[derive(Clone, Copy)]
pub struct Key {
    bytes: [u8; 15],
    len: u8,
}

impl Key {
    fn of(number: u64) -> Key {
        let mut key = Key {
            bytes: [0; 15],
            len: 0,
        };
        let mut room = &mut key.bytes[..];
        let before = room.len();
        // 15 digits hold every key that fits a benchmark.
        let written = write!(room, "{}", number);
        assert!(written.is_ok(), "at most 10^14 keys");
        key.len = (before - room.len()) as u8;
        key
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// The kind of keys that a series of lookups reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    Present,
    Absent,
}

/// `count` random keys.
pub fn keys(data: &DataSet, kind: KeyKind, count: usize, seed: u64) -> Vec<Key> {
    let mut random = Random::new(seed);
    (0..count)
        .map(|_| match kind {
            KeyKind::Present => data.key(random.below(data.keys)),
            KeyKind::Absent => data.absent_key(random.below(data.keys)),
        })
        .collect()
}

/// Reads the CSV through once: a chunk in memory at a time. The parser of all peers.
pub fn for_each_row(csv: &Path, mut each: impl FnMut(&[u8], &[u8])) -> std::io::Result<()> {
    let mut file = File::open(csv)?;
    let mut buffer = vec![0; 4 << 20];
    let mut held = 0;
    let mut skip_header = true;
    loop {
        let read = file.read(&mut buffer[held..])?;
        held += read;
        if read == 0 {
            return Ok(());
        }
        let end = memchr::memrchr(b'\n', &buffer[..held]).map_or(0, |at| at + 1);
        let rows = if skip_header {
            after_header(&buffer[..end])
        } else {
            &buffer[..end]
        };
        skip_header = false;
        split_rows(rows, &mut each);
        buffer.copy_within(end..held, 0);
        held -= end;
        if held == buffer.len() {
            buffer.resize(held * 2, 0);
        }
    }
}

/// The whole CSV in memory, without its header: for engines that sort.
pub fn read_rows(csv: &Path) -> std::io::Result<Vec<u8>> {
    let bytes = std::fs::read(csv)?;
    Ok(bytes)
}

pub fn after_header(bytes: &[u8]) -> &[u8] {
    memchr::memchr(b'\n', bytes).map_or(&[], |at| &bytes[at + 1..])
}

/// Calls `each` for the rows of `bytes`, which ends with a newline.
pub fn split_rows<'a>(mut bytes: &'a [u8], mut each: impl FnMut(&'a [u8], &'a [u8])) {
    while let Some(end) = memchr::memchr(b'\n', bytes) {
        let row = &bytes[..end];
        if let Some(comma) = memchr::memchr(b',', row) {
            each(&row[..comma], &row[comma + 1..]);
        }
        bytes = &bytes[end + 1..];
    }
}

/// A row to be sorted by key: the key's first bytes decide most comparisons.
#[derive(Clone, Copy)]
pub struct SortRow<'a> {
    pub prefix: u64,
    pub key: &'a [u8],
    pub value: &'a [u8],
}

/// All rows in key order, sorted on all cores.
pub fn sorted_rows(bytes: &[u8]) -> Vec<SortRow<'_>> {
    use rayon::slice::ParallelSliceMut;
    let mut rows = Vec::new();
    split_rows(after_header(bytes), |key, value| {
        let mut prefix = [0; 8];
        let len = key.len().min(8);
        prefix[..len].copy_from_slice(&key[..len]);
        rows.push(SortRow {
            prefix: u64::from_be_bytes(prefix),
            key,
            value,
        });
    });
    rows.par_sort_unstable_by(|a, b| a.prefix.cmp(&b.prefix).then_with(|| a.key.cmp(b.key)));
    rows
}

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_round_trip_through_the_file() {
        let folder = std::env::temp_dir().join(format!("larder-peers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let data = DataSet {
            name: "t".into(),
            keys: 50_000,
            value_bytes: 100,
            csv: folder.join("t.csv"),
        };
        data.generate().expect("written");
        let mut seen = vec![false; 50_000];
        for_each_row(&data.csv, |key, value| {
            let number: u64 = std::str::from_utf8(key)
                .expect("digits")
                .parse()
                .expect("a number");
            assert_eq!(value.len(), 100);
            assert!(!std::mem::replace(
                &mut seen[((number - BASE) / 2) as usize],
                true
            ));
        })
        .expect("read");
        assert!(seen.iter().all(|seen| *seen));
        let bytes = read_rows(&data.csv).expect("read");
        let rows = sorted_rows(&bytes);
        assert_eq!(rows.len(), 50_000);
        assert!(rows.is_sorted_by(|a, b| a.key < b.key));
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
