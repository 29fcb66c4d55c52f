//! Encodes one block.

use larder_types::checksum32;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{FLAG_COMPRESSED, FLAG_EXTENTS, FLAG_UNIFORM, FLAG_WIDE, LARGE_REF_SIZE};
use crate::segment::compression::Encoder;
use crate::segment::format::{LARGE_VALUE_BYTES_MIN, put_varint};

/// The records of a block under construction.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    pub(super) records: Vec<Record>,
    /// Each record's key and value, concatenated.
    pub(super) bytes: Vec<u8>,
    /// The large values, in the order of their records.
    pub(super) extents: Vec<Vec<u8>>,
}

pub(super) struct Record {
    tag: u8,
    pub(super) large: bool,
    pub(super) key_size: u32,
    value_size: u64,
}

impl Record {
    /// Returns the number of bytes that the record takes in `bytes`.
    pub(super) fn size(&self) -> usize {
        let value_size = if self.large {
            LARGE_REF_SIZE
        } else {
            self.value_size as usize
        };
        self.key_size as usize + value_size
    }
}

/// Maximum number of bytes that a block adds to its records.
pub(crate) const BLOCK_OVERHEAD: u64 = 13 + 10;

impl BlockBuilder {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns keys and values, as training data for a dictionary.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn push(&mut self, hash: u64, key: &[u8], value: &[u8]) {
        let large = value.len() > LARGE_VALUE_BYTES_MIN;
        self.records.push(Record {
            tag: hash as u8,
            large,
            key_size: key.len() as u32,
            value_size: value.len() as u64,
        });
        self.bytes.extend_from_slice(key);
        if large {
            self.extents.push(value.to_vec());
            self.bytes.extend_from_slice(&[0; LARGE_REF_SIZE]);
        } else {
            self.bytes.extend_from_slice(value);
        }
    }

    /// Appends the finished block and its extents to `out`, and clears the builder.
    pub fn finish(&mut self, index: u64, encoder: &mut Encoder, out: &mut Vec<u8>) {
        self.place_extents(index, encoder);
        let (mut flags, contents) = self.contents();
        let packed = encoder.compress(&contents);
        if !self.extents.is_empty() {
            flags |= FLAG_EXTENTS;
        }
        if packed.is_some() {
            flags |= FLAG_COMPRESSED;
        }
        let start = out.len();
        out.extend_from_slice(&[0, 0, 0, 0, flags]);
        if !self.extents.is_empty() {
            out.extend_from_slice(&[0; 4]);
        }
        match &packed {
            Some(packed) => {
                out.extend_from_slice(&(contents.len() as u32).to_le_bytes());
                out.extend_from_slice(packed);
            }
            None => out.extend_from_slice(&contents),
        }
        let size = (out.len() - start) as u32;
        if !self.extents.is_empty() {
            out[start + 5..start + 9].copy_from_slice(&size.to_le_bytes());
        }
        let checksum = checksum32(&out[start + 4..], index);
        out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        for extent in self.extents.drain(..) {
            out.extend_from_slice(&extent);
        }
        self.records.clear();
        self.bytes.clear();
    }

    /// Compresses the large values and writes the position of each into its record.
    pub(super) fn place_extents(&mut self, index: u64, encoder: &mut Encoder) {
        let (mut end, mut behind) = (0, 0u64);
        let mut extents = self.extents.iter_mut();
        for record in &self.records {
            end += record.size();
            if !record.large {
                continue;
            }
            let extent = extents.next().expect("each large value has its extent");
            if let Some(packed) = encoder.compress(extent) {
                *extent = packed;
            }
            let stored = extent.len() as u64;
            let words = [
                behind,
                stored,
                record.value_size,
                xxh3_64_with_seed(extent, index),
            ];
            for (position, word) in words.into_iter().enumerate() {
                let at = end - LARGE_REF_SIZE + position * 8;
                self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            behind += stored;
        }
    }

    /// Returns the flags that describe the encoding of the contents, and the contents.
    fn contents(&self) -> (u8, Vec<u8>) {
        let sizes = |record: &Record| (record.large, record.key_size, record.value_size);
        let first = &self.records[0];
        let count = self.records.len() as u32;
        let mut out = Vec::with_capacity(self.bytes.len() + self.records.len() * 8 + 16);
        let tags = self.records.iter().map(|record| record.tag);
        if !first.large && self.records.iter().all(|r| sizes(r) == sizes(first)) {
            let (key_size, value_size) = (first.key_size, first.value_size as u32);
            let wide = count > 255 || key_size > 255 || value_size > u32::from(u16::MAX);
            put(&mut out, wide, 1, count);
            put(&mut out, wide, 1, key_size);
            put(&mut out, wide, 2, value_size);
            out.extend(tags);
            out.extend_from_slice(&self.bytes);
            return (FLAG_UNIFORM | if wide { FLAG_WIDE } else { 0 }, out);
        }
        let (records, ends) = self.varied();
        let last = ends.last().copied().unwrap_or(0);
        let wide = count > 255 || last > u32::from(u16::MAX);
        put(&mut out, wide, 1, count);
        out.extend(tags);
        for end in ends {
            put(&mut out, wide, 2, end);
        }
        out.extend_from_slice(&records);
        (if wide { FLAG_WIDE } else { 0 }, out)
    }

    /// Returns the records with their sizes, and the end of each one but the last.
    fn varied(&self) -> (Vec<u8>, Vec<u32>) {
        let mut records = Vec::with_capacity(self.bytes.len() + self.records.len() * 3);
        let mut ends = Vec::with_capacity(self.records.len());
        let mut rest = &self.bytes[..];
        for record in &self.records {
            let (bytes, tail) = rest.split_at(record.size());
            rest = tail;
            let sizes = u64::from(record.key_size) * 2 + u64::from(record.large);
            put_varint(&mut records, sizes);
            records.extend_from_slice(bytes);
            ends.push(records.len() as u32);
        }
        ends.pop();
        (records, ends)
    }
}

/// Appends `number` in `narrow_size` bytes, or in 4 if wide.
fn put(out: &mut Vec<u8>, wide: bool, narrow_size: usize, number: u32) {
    let size = if wide { 4 } else { narrow_size };
    out.extend_from_slice(&number.to_le_bytes()[..size]);
}
