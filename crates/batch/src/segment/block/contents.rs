//! The contents of a block: looking up a key, and iterating over the records.
//!
//! The bytes come from disk. Every position in them is checked before it is used, so the worst result for arbitrary
//! bytes is "impossible".

use super::{
    FLAG_UNIFORM, FLAG_WIDE, FoundValue, LARGE_REF_SIZE, LargeRef, NARROW_UNIFORM, NARROW_VARIED,
    RecordRef, WIDE_UNIFORM, WIDE_VARIED,
};
use crate::segment::format::take_varint;

/// The decoded header of a block's contents.
pub(super) struct Contents<'a> {
    bytes: &'a [u8],
    flags: u8,
    count: usize,
    /// The offset of the tags.
    tags: usize,
    /// The sizes of all keys and values, if they are uniform.
    key_size: usize,
    value_size: usize,
}

/// A value in the contents, or the reference to a large one.
pub(super) enum ValueRef<'a> {
    Inline(&'a [u8]),
    Large(&'a [u8]),
}

/// The number of tags compared in one step.
pub(super) const GROUP: usize = 16;

// The code below waits for the block's bytes. It therefore has few operations, and their addresses depend on as few
// of these bytes as possible.
impl<'a> Contents<'a> {
    /// Returns `None` if the parts do not fit into `bytes`.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8], flags: u8) -> Option<Contents<'a>> {
        if flags & FLAG_WIDE != 0 {
            return Contents::parse_wide(bytes, flags);
        }
        // Even a narrow block with one record of one byte has four bytes.
        let &[count, key_size, low, high] = bytes.first_chunk()?;
        let tags = if flags & FLAG_UNIFORM != 0 {
            NARROW_UNIFORM
        } else {
            NARROW_VARIED
        };
        Some(Contents {
            bytes,
            flags,
            count: usize::from(count),
            tags,
            key_size: usize::from(key_size),
            value_size: usize::from(u16::from_le_bytes([low, high])),
        })
    }

    #[inline(never)]
    fn parse_wide(bytes: &'a [u8], flags: u8) -> Option<Contents<'a>> {
        let uniform = flags & FLAG_UNIFORM != 0;
        let tags = if uniform { WIDE_UNIFORM } else { WIDE_VARIED };
        let words = bytes.get(..tags)?.as_chunks::<4>().0;
        let word = |at: usize| words.get(at).map_or(0, |word| u32::from_le_bytes(*word)) as usize;
        Some(Contents {
            bytes,
            flags,
            count: word(0),
            tags,
            key_size: word(1),
            value_size: word(2),
        })
    }

    /// Returns the value of `key`: `Some(None)` if it is absent, `None` if the contents are invalid.
    #[inline(always)]
    pub fn find(&self, tag: u8, key: &[u8]) -> Option<Option<ValueRef<'a>>> {
        let mut first = 0;
        while first < self.count {
            let present = u32::MAX.unbounded_shl((self.count - first) as u32);
            let mut matches = self.equal_tags(first, tag)? & !present;
            while matches != 0 {
                let index = first + matches.trailing_zeros() as usize;
                let (found, place) = self.record(index)?;
                if same(found, key) {
                    return Some(Some(place));
                }
                matches &= matches - 1;
            }
            first += GROUP;
        }
        Some(None)
    }

    /// Returns a mask with one bit for each of the [`GROUP`] bytes from tag `first` on that equals `tag`.
    #[inline(always)]
    fn equal_tags(&self, first: usize, tag: u8) -> Option<u32> {
        let at = self.tags + first;
        match self.bytes.get(at..at + GROUP) {
            Some(group) => Some(equal_bytes(group.first_chunk()?, tag)),
            None => {
                let rest = self.bytes.get(at..)?;
                let mut group = [0; GROUP];
                group[..rest.len()].copy_from_slice(rest);
                Some(equal_bytes(&group, tag))
            }
        }
    }

    #[inline(always)]
    fn record(&self, index: usize) -> Option<(&'a [u8], ValueRef<'a>)> {
        if self.flags & FLAG_UNIFORM == 0 {
            return self.varied(index);
        }
        let stride = self.key_size + self.value_size;
        let start = self.tags + self.count + index.checked_mul(stride)?;
        let record = self.bytes.get(start..start.checked_add(stride)?)?;
        let (key, value) = record.split_at(self.key_size);
        Some((key, ValueRef::Inline(value)))
    }

    #[inline]
    fn varied(&self, index: usize) -> Option<(&'a [u8], ValueRef<'a>)> {
        let ends = self.tags + self.count;
        let end_size = if self.flags & FLAG_WIDE == 0 { 2 } else { 4 };
        let records = ends.checked_add((self.count - 1).checked_mul(end_size)?)?;
        let end_of = |index: usize| {
            let at = ends + index * end_size;
            let end = match self.bytes.get(at..at + end_size)? {
                [low, high] => usize::from(u16::from_le_bytes([*low, *high])),
                bytes => u32::from_le_bytes(*bytes.first_chunk()?) as usize,
            };
            records.checked_add(end)
        };
        let start = match index {
            0 => records,
            _ => end_of(index - 1)?,
        };
        let end = if index + 1 == self.count {
            self.bytes.len()
        } else {
            end_of(index)?
        };
        let mut record = self.bytes.get(start..end)?;
        let sizes = take_varint(&mut record)?;
        let (key, value) = record.split_at_checked(usize::try_from(sizes >> 1).ok()?)?;
        match sizes & 1 {
            0 => Some((key, ValueRef::Inline(value))),
            _ if value.len() == LARGE_REF_SIZE => Some((key, ValueRef::Large(value))),
            _ => None,
        }
    }

    /// Returns whether the records end where the contents end.
    fn is_filled(&self) -> bool {
        let stride = self.key_size + self.value_size;
        let Some(size) = stride.checked_mul(self.count) else {
            return false;
        };
        self.flags & FLAG_UNIFORM == 0
            || (self.tags + self.count).checked_add(size) == Some(self.bytes.len())
    }
}

/// Returns a mask with one bit for each byte that equals `byte`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn equal_bytes(bytes: &[u8; GROUP], byte: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_set1_epi8};
    // SAFETY: the load reads the 16 bytes of `bytes` and needs no alignment; every x86-64 has SSE2.
    unsafe {
        let group = _mm_loadu_si128(bytes.as_ptr().cast());
        _mm_movemask_epi8(_mm_cmpeq_epi8(group, _mm_set1_epi8(byte as i8))) as u32
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(super) fn equal_bytes(bytes: &[u8; GROUP], byte: u8) -> u32 {
    let bits = bytes.iter().enumerate();
    bits.fold(0, |bits, (at, other)| {
        bits | u32::from(*other == byte) << at
    })
}

/// Compares two keys. Most are short, so that a call would cost more than the comparison.
#[inline(always)]
pub(in crate::segment) fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    if (8..=16).contains(&a.len()) {
        let ends = |bytes: &[u8]| {
            let first = u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes"));
            let last = u64::from_le_bytes(*bytes.last_chunk().expect("8 bytes"));
            (first, last)
        };
        let ((a, b), (c, d)) = (ends(a), ends(b));
        return (a ^ c) | (b ^ d) == 0;
    }
    a == b
}

/// Iterates over a block's records.
pub struct Records<'a> {
    contents: Option<Contents<'a>>,
    next: usize,
    block_size: u64,
}

impl<'a> Records<'a> {
    pub(super) fn new(bytes: &'a [u8], flags: u8, block_size: u64) -> Records<'a> {
        Records {
            contents: Contents::parse(bytes, flags),
            next: 0,
            block_size,
        }
    }

    /// Returns the tag of the record that was last returned.
    pub fn last_tag(&self) -> Option<u8> {
        let contents = self.contents.as_ref()?;
        let tag = contents.tags + self.next.checked_sub(1)?;
        contents.bytes.get(tag).copied()
    }

    /// Returns whether all records have been returned and are valid.
    pub fn is_complete(&self) -> bool {
        self.contents
            .as_ref()
            .is_some_and(|contents| self.next == contents.count && contents.is_filled())
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = RecordRef<'a>;

    #[inline]
    fn next(&mut self) -> Option<RecordRef<'a>> {
        let contents = self.contents.as_ref()?;
        if self.next == contents.count {
            return None;
        }
        let (key, place) = contents.record(self.next)?;
        let value = match place {
            ValueRef::Inline(value) => FoundValue::Inline(value),
            ValueRef::Large(words) => FoundValue::Large(LargeRef::decode(words, self.block_size)?),
        };
        self.next += 1;
        Some(RecordRef { key, value })
    }
}
