//! A block of format 2 whose records may differ in size: a header with the end of each record, and a checksum in each
//! record.
//!
//! ```text
//! offset  size    contents
//! 0       4       checksum32 of the rest of the header
//! 4       1       1 if wide
//! 5       1 | 4   record count n
//! +       n * 2|4 end of each record, relative to the start of the first
//!                 n records: checksum (3), varint (key size * 2 + large), key, value
//! ```
//!
//! A lookup knows the record's number (`ranks.rs`), so it reads two ends of the header: one cache line, however long
//! the header is. It does not verify the header. The record's checksum is seeded with its block and number and covers
//! its size, so a damaged end leads to a record whose checksum does not match. Extents follow as in a sealed block.

use larder_types::checksum32;

use super::contents::same;
use super::{BlockBuilder, FoundValue, LARGE_REF_SIZE, LargeRef, RecordRef, prefetch};
use crate::segment::check::{CHECK_SIZE, is_intact, seal};
use crate::segment::compression::Encoder;
use crate::segment::format::{put_varint, take_varint};
use crate::segment::ranks::Candidates;

const WIDE: u8 = 1;
const NARROW_ENDS: usize = 6;
const WIDE_ENDS: usize = 9;

/// Returns the checksum seed of a record, which identifies its position.
#[inline(always)]
fn seed(index: u64, number: u32) -> u64 {
    index.rotate_left(32) ^ u64::from(number)
}

/// Returns the checksum seed of a header: no record has this number.
fn head_seed(index: u64) -> u64 {
    seed(index, u32::MAX)
}

impl BlockBuilder {
    /// Appends the finished block and its extents to `out`, and clears the builder.
    pub fn finish_varied(&mut self, index: u64, out: &mut Vec<u8>) {
        self.place_extents(index, &mut Encoder::None);
        let mut records =
            Vec::with_capacity(self.bytes.len() + self.records.len() * (CHECK_SIZE + 3));
        let mut ends = Vec::with_capacity(self.records.len());
        let mut rest = &self.bytes[..];
        for (number, record) in (0..).zip(&self.records) {
            let (bytes, tail) = rest.split_at(record.size());
            rest = tail;
            let start = records.len();
            records.extend([0; CHECK_SIZE]);
            put_varint(
                &mut records,
                u64::from(record.key_size) * 2 + u64::from(record.large),
            );
            records.extend_from_slice(bytes);
            seal(&mut records[start..], seed(index, number));
            ends.push(records.len() as u32);
        }
        let is_wide = ends.len() > 255 || records.len() > usize::from(u16::MAX);
        let start = out.len();
        out.extend([0, 0, 0, 0, u8::from(is_wide)]);
        if is_wide {
            out.extend((ends.len() as u32).to_le_bytes());
            out.extend(ends.iter().flat_map(|end| end.to_le_bytes()));
        } else {
            out.push(ends.len() as u8);
            out.extend(ends.iter().flat_map(|end| (*end as u16).to_le_bytes()));
        }
        let check = checksum32(&out[start + 4..], head_seed(index));
        out[start..start + 4].copy_from_slice(&check.to_le_bytes());
        out.extend(records);
        out.extend(self.extents.drain(..).flatten());
        self.records.clear();
        self.bytes.clear();
    }
}

/// The untrusted bytes of a block. Its methods return `None` for invalid or damaged bytes.
#[derive(Clone, Copy)]
pub struct Varied<'a> {
    bytes: &'a [u8],
    index: u64,
    count: usize,
    ends: usize,
    end_size: usize,
}

impl<'a> Varied<'a> {
    /// Parses the block at the front of `bytes`, which may be longer than the block.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8], index: u64) -> Option<Varied<'a>> {
        let head: &[u8; NARROW_ENDS] = bytes.first_chunk()?;
        let (count, ends, end_size) = match head[4] & WIDE {
            0 => (usize::from(head[5]), NARROW_ENDS, 2),
            _ => {
                let count: &[u8; 4] = bytes.get(5..WIDE_ENDS)?.first_chunk()?;
                (u32::from_le_bytes(*count) as usize, WIDE_ENDS, 4)
            }
        };
        Some(Varied {
            bytes,
            index,
            count,
            ends,
            end_size,
        })
    }

    /// Returns the offset of the records.
    #[inline(always)]
    fn records(&self) -> usize {
        self.ends + self.count * self.end_size
    }

    /// Returns the end of a record, relative to the first one's start.
    #[inline(always)]
    fn end(&self, number: usize) -> Option<usize> {
        let at = self.ends + number * self.end_size;
        let &[low, high] = self.bytes.get(at..at + 2)?.first_chunk()?;
        let low = usize::from(u16::from_le_bytes([low, high]));
        if self.end_size == 2 {
            return Some(low);
        }
        let &[third, fourth] = self.bytes.get(at + 2..at + 4)?.first_chunk()?;
        Some(low | usize::from(u16::from_le_bytes([third, fourth])) << 16)
    }

    /// Returns the bytes from the start of one record to the end of another.
    #[inline(always)]
    fn span(&self, first: usize, last: usize) -> Option<&'a [u8]> {
        if last >= self.count {
            return None;
        }
        let start = match first {
            0 => 0,
            _ => self.end(first - 1)?,
        };
        let records = self.records();
        self.bytes.get(records + start..records + self.end(last)?)
    }

    /// Returns the bytes of the records that a lookup of these candidates reads.
    #[inline]
    pub fn candidates(&self, candidates: Candidates) -> Option<&'a [u8]> {
        let last = candidates.first as usize + (candidates.count as usize).checked_sub(1)?;
        self.span(candidates.first as usize, last)
    }

    /// Returns a record if its checksum matches.
    pub fn record(&self, number: u32) -> Option<RecordRef<'a>> {
        let bytes = self.span(number as usize, number as usize)?;
        if !is_intact(bytes, seed(self.index, number)) {
            return None;
        }
        let (key, value, is_large) = parts(bytes)?;
        let value = match is_large {
            false => FoundValue::Inline(value),
            true if value.len() != LARGE_REF_SIZE => return None,
            true => FoundValue::Large(LargeRef::decode(value, self.size()? as u64)?),
        };
        Some(RecordRef { key, value })
    }

    /// Returns the value of `key`, which can only be among these candidates; `None` on any error. A record is
    /// verified before its value is returned, and all candidates are verified before the key is reported absent.
    #[inline]
    pub fn find(&self, candidates: Candidates, key: &[u8]) -> Option<Option<FoundValue<'a>>> {
        let end = candidates.first.checked_add(candidates.count)?;
        for number in candidates.first..end {
            let bytes = self.span(number as usize, number as usize)?;
            if same(parts(bytes)?.0, key) {
                return self.record(number).map(|record| Some(record.value));
            }
        }
        let mut all = candidates.first..end;
        all.all(|number| self.record(number).is_some())
            .then_some(None)
    }

    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the size of the block without its extents, according to its header.
    pub fn size(&self) -> Option<usize> {
        let last = self.count.checked_sub(1)?;
        self.records().checked_add(self.end(last)?)
    }

    /// Like [`Varied::size`], for a block of which only the front was read; `None` if even that is too short.
    pub fn size_needed(bytes: &[u8]) -> Option<usize> {
        let block = Varied::parse(bytes, 0)?;
        block.size().or_else(|| Some(block.records()))
    }

    /// Verifies the header.
    pub fn has_intact_head(&self) -> bool {
        let expected = self
            .bytes
            .first_chunk()
            .map(|check| u32::from_le_bytes(*check));
        let head = self.bytes.get(4..self.records());
        head.is_some_and(|head| Some(checksum32(head, head_seed(self.index))) == expected)
    }

    /// Prefetches the part of the header that a lookup of these candidates reads.
    #[inline]
    pub fn prefetch_ends(bytes: &[u8], candidates: Candidates) {
        // Assumes a narrow block; in a wide one this prefetches the wrong line, which is harmless.
        let at = NARROW_ENDS + (candidates.first as usize).saturating_sub(1) * 2;
        prefetch(bytes.as_ptr());
        prefetch(bytes.as_ptr().wrapping_add(at));
    }

    /// Recomputes all checksums, for fuzzing.
    pub fn reseal(bytes: &mut [u8], index: u64) -> Option<()> {
        let block = Varied::parse(bytes, index)?;
        let (records, count) = (block.records(), block.count.min(4096));
        let mut start = records;
        let ends: Vec<usize> = (0..count).map_while(|number| block.end(number)).collect();
        for (number, end) in (0..).zip(ends) {
            if let Some(record) = bytes
                .get_mut(start..records + end)
                .filter(|it| it.len() > CHECK_SIZE)
            {
                seal(record, seed(index, number));
            }
            start = records + end;
        }
        let check = checksum32(bytes.get(4..records)?, head_seed(index));
        bytes[..4].copy_from_slice(&check.to_le_bytes());
        Some(())
    }
}

/// Splits a record into its key and its value or reference, and returns whether it is a reference.
#[inline(always)]
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8], bool)> {
    let mut record = bytes.get(CHECK_SIZE..)?;
    let sizes = take_varint(&mut record)?;
    let (key, value) = record.split_at_checked(usize::try_from(sizes >> 1).ok()?)?;
    Some((key, value, sizes & 1 == 1))
}
