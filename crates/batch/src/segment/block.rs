//! One block: its records, in (hash, key) order, under one checksum.
//!
//! ```text
//! offset  size  what
//! 0       4     checksum32 of bytes 4..block_size, seeded with the block's index
//! 4       1     flags: 1 = extents follow the block, 2 = the records are compressed
//! 5       4     block_size, when extents follow; else the block ends where the next begins
//! +       4     size of the records before compression, when compressed
//! +       ...   records: varint key size, varint (value size * 2 + large), key, value
//! ```
//!
//! A *large* value is not in its record. In its place stand 24 bytes: the extent's offset from the
//! end of the block, its stored size, and its XXH3-64 seeded with the block's index. An extent
//! whose stored size is less than the value's size is compressed.
//!
//! There are no offsets and no tags: a lookup has checked the whole block before it looks for the
//! record, so all of it is in the nearest cache, and stepping over some eight records costs less
//! than reading a table would.

use std::borrow::Cow;

use larder_types::checksum32;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::compression::{Codec, Encoder};
use super::format::{LARGE_VALUE_BYTES_MIN, put_varint, take_varint};
use crate::error::Error;

const FLAG_EXTENTS: u8 = 1;
const FLAG_COMPRESSED: u8 = 2;
const LARGE_REF_SIZE: usize = 24;

/// Records of a block that is being written.
#[derive(Default)]
pub(crate) struct BlockBuilder {
    records: Vec<u8>,
    extents: Vec<Extent>,
}

struct Extent {
    /// Where in `records` the 24 bytes of this extent stand.
    slot: usize,
    value: Vec<u8>,
}

impl BlockBuilder {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn records(&self) -> &[u8] {
        &self.records
    }

    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let large = value.len() > LARGE_VALUE_BYTES_MIN;
        put_varint(&mut self.records, key.len() as u64);
        put_varint(
            &mut self.records,
            (value.len() as u64) << 1 | u64::from(large),
        );
        self.records.extend_from_slice(key);
        if large {
            self.extents.push(Extent {
                slot: self.records.len(),
                value: value.to_vec(),
            });
            self.records.extend_from_slice(&[0; LARGE_REF_SIZE]);
        } else {
            self.records.extend_from_slice(value);
        }
    }

    /// Appends the finished block and its extents to `out`, and empties the builder.
    pub fn finish(&mut self, index: u64, encoder: &mut Encoder, out: &mut Vec<u8>) {
        let mut behind = 0u64;
        for extent in &mut self.extents {
            if let Some(packed) = encoder.compress(&extent.value) {
                extent.value = packed;
            }
            let stored = extent.value.len() as u64;
            let words = [behind, stored, xxh3_64_with_seed(&extent.value, index)];
            for (position, word) in words.into_iter().enumerate() {
                let at = extent.slot + position * 8;
                self.records[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            behind += stored;
        }
        let start = out.len();
        let packed = encoder.compress(&self.records);
        let flags = if self.extents.is_empty() {
            0
        } else {
            FLAG_EXTENTS
        } | if packed.is_some() { FLAG_COMPRESSED } else { 0 };
        out.extend_from_slice(&[0, 0, 0, 0, flags]);
        if !self.extents.is_empty() {
            out.extend_from_slice(&[0; 4]);
        }
        match &packed {
            Some(packed) => {
                out.extend_from_slice(&(self.records.len() as u32).to_le_bytes());
                out.extend_from_slice(packed);
            }
            None => out.extend_from_slice(&self.records),
        }
        let size = (out.len() - start) as u32;
        if !self.extents.is_empty() {
            out[start + 5..start + 9].copy_from_slice(&size.to_le_bytes());
        }
        let checksum = checksum32(&out[start + 4..], index);
        out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
        for extent in self.extents.drain(..) {
            out.extend_from_slice(&extent.value);
        }
        self.records.clear();
    }
}

/// Bytes that a block adds to its records, at most.
pub(crate) const BLOCK_OVERHEAD: u64 = 13;

/// A block whose checksum has been found right.
pub struct Block<'a> {
    records: Cow<'a, [u8]>,
    /// Where in the bytes given the block ends and its extents begin.
    size: usize,
}

/// One record of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    pub key: &'a [u8],
    pub value: FoundValue<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundValue<'a> {
    Inline(&'a [u8]),
    Large(LargeRef),
}

/// Where a large value is, relative to the start of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeRef {
    pub offset: u64,
    pub stored_size: u64,
    pub size: u64,
    checksum: u64,
}

impl<'a> Block<'a> {
    /// Checks and opens the block at the front of `bytes`, which may be cut off within its extents.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if any byte of the block is not what was written.
    #[inline]
    pub fn open(
        place: &str,
        bytes: &'a [u8],
        index: u64,
        codec: &Codec,
    ) -> Result<Block<'a>, Error> {
        let Some((size, records_start)) = measure(bytes) else {
            return Err(damaged(place, index, "its sizes are impossible"));
        };
        let expected = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let actual = checksum32(&bytes[4..size], index);
        if actual != expected {
            return Err(damaged(
                place,
                index,
                &format!("its checksum is {actual:08x}, {expected:08x} was written"),
            ));
        }
        let stored = &bytes[records_start..size];
        let records = if bytes[4] & FLAG_COMPRESSED == 0 {
            Cow::Borrowed(stored)
        } else {
            let Some((raw_size, packed)) = stored.split_first_chunk::<4>() else {
                return Err(damaged(place, index, "it is too short"));
            };
            Cow::Owned(codec.decompress(place, packed, u32::from_le_bytes(*raw_size) as usize)?)
        };
        Ok(Block { records, size })
    }

    /// Whether the block's end lies within `bytes`, which begin with it; if not, how many are needed.
    pub fn size_needed(bytes: &[u8]) -> Option<usize> {
        (bytes.len() >= 9 && bytes[4] & FLAG_EXTENTS != 0)
            .then(|| u32::from_le_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]) as usize)
    }

    pub fn records(&self) -> Records<'_> {
        Records {
            rest: &self.records,
            block_size: self.size as u64,
        }
    }

    /// The value of `key`, if this block holds it.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if a record runs over the block's end (a writer's fault: the checksum
    /// was right).
    #[inline]
    pub fn find(
        self,
        place: &str,
        index: u64,
        key: &[u8],
    ) -> Result<Option<BlockValue<'a>>, Error> {
        let mut records = self.records();
        for record in &mut records {
            if record.key == key {
                return Ok(Some(match record.value {
                    FoundValue::Large(large) => BlockValue::Large(large),
                    FoundValue::Inline(value) => {
                        let end =
                            value.as_ptr() as usize - self.records.as_ptr() as usize + value.len();
                        let range = end - value.len()..end;
                        match self.records {
                            Cow::Borrowed(records) => BlockValue::Borrowed(&records[range]),
                            Cow::Owned(mut records) => {
                                records.truncate(range.end);
                                records.drain(..range.start);
                                BlockValue::Owned(records)
                            }
                        }
                    }
                }));
            }
        }
        if records.rest.is_empty() {
            Ok(None)
        } else {
            Err(damaged(place, index, "a record runs over its end"))
        }
    }
}

/// A value as [`Block::find`] gives it.
pub enum BlockValue<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
    Large(LargeRef),
}

impl LargeRef {
    /// Checks an extent's stored bytes and gives the value.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the bytes are not what was written.
    pub fn decode<'a>(
        &self,
        place: &str,
        index: u64,
        stored: &'a [u8],
        codec: &Codec,
    ) -> Result<Cow<'a, [u8]>, Error> {
        if stored.len() as u64 != self.stored_size
            || xxh3_64_with_seed(stored, index) != self.checksum
        {
            return Err(damaged(
                place,
                index,
                "the checksum of a large value does not fit",
            ));
        }
        if self.stored_size == self.size {
            Ok(Cow::Borrowed(stored))
        } else {
            codec
                .decompress(place, stored, self.size as usize)
                .map(Cow::Owned)
        }
    }
}

/// Steps over a block's records. It ends early at a record that runs over the end; then
/// [`Records::is_whole`] is false.
pub struct Records<'a> {
    rest: &'a [u8],
    block_size: u64,
}

impl Records<'_> {
    pub fn is_whole(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = RecordRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<RecordRef<'a>> {
        let mut rest = self.rest;
        let key_size = usize::try_from(take_varint(&mut rest)?).ok()?;
        let tagged = take_varint(&mut rest)?;
        let (key, behind) = rest.split_at_checked(key_size)?;
        let size = tagged >> 1;
        let (value, behind) = if tagged & 1 == 0 {
            let (value, behind) = behind.split_at_checked(usize::try_from(size).ok()?)?;
            (FoundValue::Inline(value), behind)
        } else {
            let (words, behind) = behind.split_first_chunk::<LARGE_REF_SIZE>()?;
            let word =
                |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("8 bytes"));
            let offset = self.block_size.checked_add(word(0))?;
            (
                FoundValue::Large(LargeRef {
                    offset,
                    stored_size: word(8),
                    size,
                    checksum: word(16),
                }),
                behind,
            )
        };
        self.rest = behind;
        Some(RecordRef { key, value })
    }
}

/// The block's size and where its records begin; `None` if `bytes` cannot hold it.
#[inline]
fn measure(bytes: &[u8]) -> Option<(usize, usize)> {
    if bytes.len() < 5 {
        return None;
    }
    if bytes[4] & FLAG_EXTENTS == 0 {
        return Some((bytes.len(), 5));
    }
    let size = Block::size_needed(bytes)?;
    (9..=bytes.len()).contains(&size).then_some((size, 9))
}

#[cold]
fn damaged(place: &str, index: u64, detail: &str) -> Error {
    Error::corrupted(format!("{place}, block {index}"), detail)
}

/// Asks the processor to fetch the cache line at `address`, which need not be valid.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch is a hint; it never faults, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch(address.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
