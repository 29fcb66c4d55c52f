//! One block: its records, in (hash, key) order.
//!
//! This is a *sealed* block, under one checksum. Segments of format 1 and compressed segments consist of such blocks.
//! `varied.rs` has the other kind, with a checksum in each record.
//!
//! ```text
//! offset  size  contents
//! 0       4     checksum32 of bytes 4..block_size, seeded with the block's index
//! 4       1     flags, see `FLAG_*`
//! 5       4     block_size, if extents follow; otherwise the block ends where the next begins
//! +       4     size of the contents before compression, if compressed
//! +       ...   contents
//!
//! contents      record count n: 1 byte, or 4 if wide
//!               uniform: key size (1 byte, or 4) and value size (2 bytes, or 4)
//!               n tags: the lowest byte of each key's hash
//!               varied: n - 1 ends of records, 2 bytes each, or 4
//!               n records. Uniform: key, value. Varied: varint (key size * 2 + large), key, value
//! ```
//!
//! A block whose records all have the same key size and the same value size is *uniform*, and needs neither sizes nor
//! ends. A *large* value is not in its record. In its place are 32 bytes: the extent's offset from the end of the
//! block, its stored size, the value's size, and XXH3-64 of the stored bytes, seeded with the block's index. An
//! extent whose stored size is less than the value's size is compressed.
//!
//! A lookup verifies the block, compares 16 tags in one step and proceeds directly to the record. No branch depends
//! on the record's position in the block: a misprediction would discard the speculative work on the next lookup,
//! whose cache misses are most of the cost of a lookup in memory.

mod builder;
mod contents;
mod varied;

pub(crate) use builder::{BLOCK_OVERHEAD, BlockBuilder};
pub use contents::Records;
pub(super) use contents::same;
use contents::{Contents, ValueRef};
pub use varied::Varied;

use std::borrow::Cow;

use larder_types::checksum32;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::compression::Codec;
use crate::error::Error;

const FLAG_EXTENTS: u8 = 1;
const FLAG_COMPRESSED: u8 = 2;
const FLAG_UNIFORM: u8 = 4;
const FLAG_WIDE: u8 = 8;
const LARGE_REF_SIZE: usize = 32;

/// Offset of the tags in the contents.
const NARROW_VARIED: usize = 1;
const NARROW_UNIFORM: usize = 4;
const WIDE_VARIED: usize = 4;
const WIDE_UNIFORM: usize = 12;

/// A block whose checksum has been verified.
pub struct Block<'a> {
    contents: Cow<'a, [u8]>,
    flags: u8,
    /// The offset at which the block ends and its extents begin.
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

/// The position of a large value, relative to the start of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LargeRef {
    pub offset: u64,
    pub stored_size: u64,
    pub size: u64,
    checksum: u64,
}

/// The result of [`Block::find`].
pub enum BlockValue<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
    Large(LargeRef),
}

impl<'a> Block<'a> {
    /// Verifies and opens the block at the front of `bytes`, which may be truncated within its extents.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if any byte of the block differs from what was written.
    #[inline]
    pub fn open(
        place: &str,
        bytes: &'a [u8],
        index: u64,
        codec: &Codec,
    ) -> Result<Block<'a>, Error> {
        let Some((size, start)) = measure(bytes) else {
            return Err(damaged(place, index, "its sizes are impossible"));
        };
        let expected = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let actual = checksum32(&bytes[4..size], index);
        if actual != expected {
            return Err(wrong_checksum(place, index, actual, expected));
        }
        let flags = bytes[4];
        let stored = &bytes[start..size];
        let contents = if flags & FLAG_COMPRESSED == 0 {
            Cow::Borrowed(stored)
        } else {
            let Some((raw_size, packed)) = stored.split_first_chunk::<4>() else {
                return Err(damaged(place, index, "it is too short"));
            };
            Cow::Owned(codec.decompress(place, packed, u32::from_le_bytes(*raw_size) as usize)?)
        };
        Ok(Block {
            contents,
            flags,
            size,
        })
    }

    /// Returns the size of the block that begins `bytes`, if it is in its header; `None` if the block ends where the
    /// next begins.
    pub fn size_needed(bytes: &[u8]) -> Option<usize> {
        (bytes.len() >= 9 && bytes[4] & FLAG_EXTENTS != 0)
            .then(|| u32::from_le_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]) as usize)
    }

    /// Iterates over the records. The iterator ends early at invalid contents; [`Records::is_complete`] is then false.
    pub fn records(&self) -> Records<'_> {
        Records::new(&self.contents, self.flags, self.size as u64)
    }

    /// Returns the value of `key`, whose hash is `hash`, if this block contains it.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the contents are invalid although the checksum matches, which is a fault of the
    /// writer.
    #[inline]
    pub fn find(
        self,
        place: &str,
        index: u64,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<BlockValue<'a>>, Error> {
        let found = Contents::parse(&self.contents, self.flags)
            .and_then(|contents| contents.find(hash as u8, key));
        let value = match found {
            Some(None) => return Ok(None),
            Some(Some(ValueRef::Inline(value))) => value,
            Some(Some(ValueRef::Large(words))) => {
                return match LargeRef::decode(words, self.size as u64) {
                    Some(large) => Ok(Some(BlockValue::Large(large))),
                    None => Err(damaged(place, index, "a large value has no position")),
                };
            }
            None => return Err(damaged(place, index, "its records do not fit in it")),
        };
        let start = value.as_ptr() as usize - self.contents.as_ptr() as usize;
        let at = start..start + value.len();
        Ok(Some(match self.contents {
            Cow::Borrowed(contents) => BlockValue::Borrowed(&contents[at]),
            Cow::Owned(mut contents) => {
                contents.truncate(at.end);
                contents.drain(..at.start);
                BlockValue::Owned(contents)
            }
        }))
    }
}

/// Returns the value of `key`, whose hash is `hash`, from the complete block `bytes`. This is the fast path for
/// blocks that are neither compressed nor followed by extents. Returns `None` in all other cases and on any error:
/// the caller then uses [`Block::open`] and [`Block::find`].
#[inline(always)]
pub fn find_plain<'a>(
    bytes: &'a [u8],
    index: u64,
    hash: u64,
    key: &[u8],
) -> Option<Option<&'a [u8]>> {
    match bytes.get(4) {
        Some(&FLAG_UNIFORM) => find_uniform(bytes, index, hash, key),
        _ => find_varied(bytes, index, hash, key),
    }
}

/// Looks up a key in a uniform block: the fast path, with as few operations as possible that wait for the block's
/// bytes.
#[inline(always)]
fn find_uniform<'a>(
    bytes: &'a [u8],
    index: u64,
    hash: u64,
    key: &[u8],
) -> Option<Option<&'a [u8]>> {
    const TAGS: usize = 5 + NARROW_UNIFORM;
    let header: &[u8; TAGS] = bytes.first_chunk()?;
    let [c0, c1, c2, c3, _flags, count, key_size, v0, v1] = *header;
    if checksum32(&bytes[4..], index) != u32::from_le_bytes([c0, c1, c2, c3]) {
        return None;
    }
    let (count, key_size) = (usize::from(count), usize::from(key_size));
    let stride = key_size + usize::from(u16::from_le_bytes([v0, v1]));
    if count > contents::GROUP || key_size != key.len() || bytes.len() < TAGS + contents::GROUP {
        return find_varied(bytes, index, hash, key);
    }
    let group = bytes[TAGS..TAGS + contents::GROUP].first_chunk()?;
    let mut matches = contents::equal_bytes(group, hash as u8) & !(u32::MAX << count);
    while matches != 0 {
        let start = TAGS + count + matches.trailing_zeros() as usize * stride;
        let record = bytes.get(start..start + stride)?;
        let (found, value) = record.split_at_checked(key.len())?;
        if contents::same(found, key) {
            return Some(Some(value));
        }
        matches &= matches - 1;
    }
    Some(None)
}

#[inline(never)]
fn find_varied<'a>(bytes: &'a [u8], index: u64, hash: u64, key: &[u8]) -> Option<Option<&'a [u8]>> {
    let (checksum, covered) = bytes.split_first_chunk::<4>()?;
    let (&flags, contents) = covered.split_first()?;
    if flags & (FLAG_EXTENTS | FLAG_COMPRESSED) != 0
        || checksum32(covered, index) != u32::from_le_bytes(*checksum)
    {
        return None;
    }
    match Contents::parse(contents, flags)?.find(hash as u8, key)? {
        None => Some(None),
        Some(ValueRef::Inline(value)) => Some(Some(value)),
        Some(ValueRef::Large(_)) => None,
    }
}

impl LargeRef {
    /// Decodes the reference in a record of a block of `block_size` bytes; `None` if it is invalid.
    fn decode(bytes: &[u8], block_size: u64) -> Option<LargeRef> {
        let words = bytes.first_chunk::<LARGE_REF_SIZE>()?;
        let word = |at: usize| u64::from_le_bytes(words[at..at + 8].try_into().expect("8 bytes"));
        Some(LargeRef {
            offset: block_size.checked_add(word(0))?,
            stored_size: word(8),
            size: word(16),
            checksum: word(24),
        })
    }

    /// Verifies an extent's stored bytes and returns the value.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the bytes differ from what was written.
    pub fn open<'a>(
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

/// Returns the block's size and the offset of its contents; `None` if `bytes` is too short.
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
fn wrong_checksum(place: &str, index: u64, actual: u32, expected: u32) -> Error {
    let detail = format!("its checksum is {actual:08x}, {expected:08x} was written");
    damaged(place, index, &detail)
}

#[cold]
fn damaged(place: &str, index: u64, detail: &str) -> Error {
    Error::corrupted(format!("{place}, block {index}"), detail)
}

/// Prefetches the cache line at `address`, which need not be valid.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Compression;
    use crate::segment::compression::Encoder;
    use larder_types::key_hash;

    type Records = Vec<(Vec<u8>, Vec<u8>)>;

    fn uniform(count: u32, key_size: usize, value_size: usize) -> Records {
        let key = |i: u32| [&i.to_be_bytes()[..], &vec![7; key_size - 4]].concat();
        (0..count)
            .map(|i| (key(i), vec![i as u8; value_size]))
            .collect()
    }

    fn varied(count: u32, value_size_max: u32) -> Records {
        let value = |i: u32| vec![i as u8; (i * 7919 % (value_size_max + 1)) as usize];
        let key = |i: u32| format!("{i}-{}", "k".repeat(i as usize % 90));
        (0..count)
            .map(|i| (key(i).into_bytes(), value(i)))
            .collect()
    }

    /// Checks that every record is found, that an absent key is not, that a flipped bit is an error, and that the
    /// block has the expected flags.
    fn check(records: Records, flags: u8) {
        let (mut builder, mut bytes) = (BlockBuilder::default(), Vec::new());
        for (key, value) in &records {
            builder.push(key_hash(key), key, value);
        }
        let mut encoder = Encoder::new(Compression::None, &[]).expect("encoder");
        builder.finish(3, &mut encoder, &mut bytes);
        assert_eq!(bytes[4], flags);
        let codec = Codec::new("s", 0, &[]).expect("codec");
        let find = |bytes: &[u8], key: &[u8]| -> Result<Option<Vec<u8>>, Error> {
            let block = Block::open("s", bytes, 3, &codec)?;
            let found = match block.find("s", 3, key_hash(key), key)? {
                None => None,
                Some(BlockValue::Borrowed(value)) => Some(value.to_vec()),
                Some(BlockValue::Owned(value)) => Some(value),
                Some(BlockValue::Large(large)) => {
                    let at = large.offset as usize..(large.offset + large.stored_size) as usize;
                    Some(large.open("s", 3, &bytes[at], &codec)?.into_owned())
                }
            };
            if flags & FLAG_EXTENTS == 0 {
                let plain = find_plain(bytes, 3, key_hash(key), key).expect("a plain block");
                assert_eq!(plain, found.as_deref());
            }
            Ok(found)
        };
        for (key, value) in &records {
            assert!(find(&bytes, key).expect("intact").as_deref() == Some(value));
        }
        assert_eq!(find(&bytes, b"stranger").expect("intact"), None);
        let block = Block::open("s", &bytes, 3, &codec).expect("intact");
        let mut stepped = block.records();
        assert_eq!(stepped.by_ref().count(), records.len());
        assert!(stepped.is_complete());
        let size = block.size;
        for bit in (0..size * 8).step_by(size * 8 / 500 + 1) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Block::open("s", &damaged, 3, &codec).is_err(), "bit {bit}");
            assert!(find_plain(&damaged, 3, 0, b"stranger").is_none());
        }
    }

    #[test]
    fn blocks_of_every_layout_round_trip() {
        check(uniform(1, 4, 0), FLAG_UNIFORM);
        check(uniform(5, 8, 100), FLAG_UNIFORM);
        check(uniform(255, 255, 3), FLAG_UNIFORM);
        check(uniform(256, 4, 1), FLAG_UNIFORM | FLAG_WIDE);
        check(uniform(2, 256, 10), FLAG_UNIFORM | FLAG_WIDE);
        check(uniform(2, 4, 65_536), FLAG_UNIFORM | FLAG_WIDE);
        check(varied(2, 50), 0);
        check(varied(40, 300), 0);
        check(varied(300, 20), FLAG_WIDE);
        check(varied(9, 60_000), FLAG_WIDE);
        check(varied(40, 200_000), FLAG_EXTENTS | FLAG_WIDE);
        check(uniform(2, 4, 65_537), FLAG_EXTENTS);
    }
}
