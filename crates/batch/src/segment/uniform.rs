//! Segments whose records all have the same key size and the same value size: an array of records.
//!
//! ```text
//! record      offset  size              a line of the directory    offset  size
//! checksum    0       3                 records before its blocks  0       8
//! key         3       key_size          words of seven blocks      8       7 x 8     see `ranks.rs`
//! value       ...     value_size
//! ```
//!
//! A lookup reads one line of the directory, which is in memory. The line holds the number of records before the
//! block, and the word that yields the candidates. The record's position is therefore known before any data is read,
//! and the record, in two or three cache lines, is the only cache miss. The seed of its checksum is its number.
//!
//! Usually there is one candidate, sometimes two or three. Their number, and which of them is the record, depends on
//! bytes that are still being fetched; a misprediction would discard the speculative work on the next lookup. This
//! code therefore does not branch on them: it prefetches the same number of lines for one candidate as for three, and
//! selects the record by arithmetic.

use super::block::{prefetch, same};
use super::check::{CHECK_SIZE, is_intact, seal};
use super::format::{Footer, HEADER_SIZE};
use super::memory::IndexBytes;
use super::ranks::{self, Candidates, block_and_fraction};
use crate::error::Error;

const LINE_SIZE: usize = 64;
const BLOCKS: usize = 7;
const LINES_AHEAD_MAX: usize = 64;

/// Encodes the directory from the words of all blocks.
pub fn encode(words: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(words.len().div_ceil(BLOCKS) * LINE_SIZE);
    let mut before = 0u64;
    for line in words.chunks(BLOCKS) {
        bytes.extend(before.to_le_bytes());
        for index in 0..BLOCKS {
            let word = line.get(index).copied().unwrap_or(0);
            bytes.extend(word.to_le_bytes());
            before += ranks::count(word);
        }
    }
    bytes
}

/// The directory in memory, and the common sizes of all records.
pub struct Uniform {
    bytes: IndexBytes,
    block_count: u64,
    key_size: usize,
    /// The size of a complete record.
    stride: usize,
    /// The number of cache lines to prefetch for a record.
    lines: usize,
}

/// A candidate record.
pub struct Record<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
}

impl Uniform {
    /// Validates a directory against the footer. The caller has verified the section's checksum.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if they are inconsistent.
    pub fn decode(place: &str, footer: &Footer, bytes: IndexBytes) -> Result<Uniform, Error> {
        let damaged = |detail: &str| Error::corrupted(place, format!("its directory {detail}"));
        let lines = usize::try_from(footer.block_count)
            .ok()
            .map(|count| count.div_ceil(BLOCKS));
        if lines.and_then(|lines| lines.checked_mul(LINE_SIZE)) != Some(bytes.len()) {
            return Err(damaged("has the wrong size"));
        }
        let stride = CHECK_SIZE + footer.key_size as usize + footer.value_size as usize;
        if footer.key_size == 0
            || footer.record_count.checked_mul(stride as u64) != Some(footer.data_size)
        {
            return Err(damaged("is of records that do not fill the data"));
        }
        let uniform = Uniform {
            bytes,
            block_count: footer.block_count,
            key_size: footer.key_size as usize,
            stride,
            lines: stride.div_ceil(LINE_SIZE).min(LINES_AHEAD_MAX),
        };
        let mut before = 0u64;
        for line in uniform.bytes.as_chunks::<LINE_SIZE>().0 {
            let words = words(line);
            if words[0] != before || !words[1..].iter().all(|word| ranks::is_possible(*word)) {
                return Err(damaged("is out of order"));
            }
            let of_line = words[1..]
                .iter()
                .map(|word| ranks::count(*word))
                .sum::<u64>();
            before = before.saturating_add(of_line);
        }
        if before != footer.record_count {
            return Err(damaged("has not as many records as the segment"));
        }
        Ok(uniform)
    }

    /// Returns the number of a block's first record, and the number of its records.
    pub fn block(&self, index: u64) -> (u64, u64) {
        let (line, within) = self.line(index);
        let words = words(line);
        let before = words[1..=within].iter().map(|word| ranks::count(*word));
        (
            words[0] + before.sum::<u64>(),
            ranks::count(words[within + 1]),
        )
    }

    /// Returns the number of the first candidate for this hash, and the number of candidates.
    #[inline]
    pub fn candidates(&self, hash: u64) -> (u64, u32) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt") {
            // SAFETY: detection found the processor features that the function is compiled for.
            return unsafe { self.candidates_fast(hash) };
        }
        self.candidates_by(hash, ranks::select_portable)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,popcnt")]
    fn candidates_fast(&self, hash: u64) -> (u64, u32) {
        self.candidates_by(hash, |word, number| ranks::select_bmi2(word, number))
    }

    #[inline(always)]
    fn candidates_by(&self, hash: u64, select: impl Fn(u64, u32) -> u32) -> (u64, u32) {
        let (index, fraction) = block_and_fraction(hash, self.block_count);
        let (line, within) = self.line(index);
        let words = words(line);
        let mut before = words[0];
        if words[1..].iter().any(|word| ranks::is_crowded(*word)) {
            let each = words[1..=within].iter().map(|word| ranks::count(*word));
            before += each.sum::<u64>();
        } else {
            for (at, word) in words[1..BLOCKS].iter().enumerate() {
                let counts = if at < within { u64::MAX } else { 0 };
                before += ranks::count_plain(word & counts);
            }
        }
        let Candidates { first, count } = ranks::candidates(words[within + 1], fraction, select);
        (before + u64::from(first), count)
    }

    #[inline(always)]
    fn line(&self, index: u64) -> (&[u8; LINE_SIZE], usize) {
        let at = index as usize / BLOCKS * LINE_SIZE;
        let line = self.bytes[at..at + LINE_SIZE].first_chunk();
        (line.expect("a line's size"), index as usize % BLOCKS)
    }

    /// Prefetches the directory line that a lookup of this hash reads.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let (index, _) = block_and_fraction(hash, self.block_count);
        prefetch(
            self.bytes
                .as_ptr()
                .wrapping_add(index as usize / BLOCKS * LINE_SIZE),
        );
    }

    /// Returns the range in the file of `count` records from `first` on.
    #[inline]
    pub fn range(&self, first: u64, count: u64) -> (u64, u64) {
        let at = |number: u64| HEADER_SIZE as u64 + number * self.stride as u64;
        (at(first), at(first + count))
    }

    #[inline(always)]
    pub fn key_size(&self) -> usize {
        self.key_size
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the value of `key` in `file`, the bytes of the complete file: the fast path. `None` on any error.
    #[inline]
    pub fn find<'a>(&self, file: &'a [u8], hash: u64, key: &[u8]) -> Option<Option<&'a [u8]>> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt") {
            // SAFETY: detection found the processor features that the function is compiled for.
            return unsafe { self.find_fast(file, hash, key) };
        }
        self.find_by(file, hash, key, ranks::select_portable)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2,popcnt")]
    fn find_fast<'a>(&self, file: &'a [u8], hash: u64, key: &[u8]) -> Option<Option<&'a [u8]>> {
        self.find_by(file, hash, key, |word, number| {
            ranks::select_bmi2(word, number)
        })
    }

    #[inline(always)]
    fn find_by<'a>(
        &self,
        file: &'a [u8],
        hash: u64,
        key: &[u8],
        select: impl Fn(u64, u32) -> u32,
    ) -> Option<Option<&'a [u8]>> {
        if key.len() != self.key_size {
            return Some(None);
        }
        let (number, count) = self.candidates_by(hash, select);
        if count == 0 {
            return Some(None);
        }
        let (start, end) = self.range(number, u64::from(count));
        let records = file.get(start as usize..end as usize)?;
        self.prefetch_records(records);
        self.choose(records, number, count, key)
    }

    /// Returns the value of `key`, which has the segment's key size, among `count` records from number `first` on.
    /// `None` on any error.
    #[inline(always)]
    pub fn choose<'a>(
        &self,
        records: &'a [u8],
        first: u64,
        count: u32,
        key: &[u8],
    ) -> Option<Option<&'a [u8]>> {
        if key.len() != self.key_size {
            return Some(None);
        }
        let at = |number: u32| usize::from(number < count) * number as usize * self.stride;
        let key_at = |at: usize| records.get(at + CHECK_SIZE..at + CHECK_SIZE + key.len());
        let is_first = same(key_at(0)?, key);
        let is_second = same(key_at(at(1))?, key);
        let number = u32::from(!is_first) * (2 - u32::from(is_second));
        let record = records.get(at(number)..at(number) + self.stride)?;
        let (found, value) = record[CHECK_SIZE..].split_at(key.len());
        if same(found, key) && is_intact(record, first + u64::from(number)) {
            return Some(Some(value));
        }
        self.find_among(records, first, key)
    }

    /// Prefetches what [`Uniform::choose`] reads: the first record and the start of the second. The number of lines
    /// does not depend on the number of candidates.
    #[inline(always)]
    pub fn prefetch_records(&self, records: &[u8]) {
        let last = records.len() - 1;
        let line = |at: usize| prefetch(records.as_ptr().wrapping_add(at.min(last)));
        (0..self.lines).for_each(|at| line(at * 64));
        line(self.stride);
        line(self.stride + 64);
    }

    /// Like [`Uniform::choose`], for any number of records. A record is verified before its value is returned, and
    /// all of them before the key is reported absent.
    #[inline(never)]
    pub fn find_among<'a>(
        &self,
        records: &'a [u8],
        first: u64,
        key: &[u8],
    ) -> Option<Option<&'a [u8]>> {
        let key_at = CHECK_SIZE..CHECK_SIZE + self.key_size;
        for (number, bytes) in self.each(records, first) {
            if same(bytes.get(key_at.clone())?, key) {
                return self.record(bytes, number).map(|record| Some(record.value));
            }
        }
        let mut records = self.each(records, first);
        records
            .all(|(number, bytes)| self.record(bytes, number).is_some())
            .then_some(None)
    }

    /// Decodes a record; `None` if its checksum does not match.
    pub fn record<'a>(&self, bytes: &'a [u8], number: u64) -> Option<Record<'a>> {
        if bytes.len() != self.stride || !is_intact(bytes, number) {
            return None;
        }
        let (key, value) = bytes[CHECK_SIZE..].split_at(self.key_size);
        Some(Record { key, value })
    }

    /// Iterates over the records of a block: their numbers and bytes.
    #[inline]
    pub fn each<'a>(
        &self,
        records: &'a [u8],
        first: u64,
    ) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        (first..).zip(records.chunks(self.stride))
    }

    /// Recomputes all checksums, for fuzzing.
    pub fn reseal(&self, records: &mut [u8], first: u64) {
        for (number, record) in (first..).zip(records.chunks_exact_mut(self.stride)) {
            seal(record, number);
        }
    }

    /// Returns the number of the record that starts at this position of the file.
    pub fn number_at(&self, start: u64) -> u64 {
        (start - HEADER_SIZE as u64) / self.stride as u64
    }

    #[cold]
    pub fn damaged(&self, place: &str, first: u64, records: &[u8]) -> Error {
        let wrong = |(number, bytes): &(u64, &[u8])| self.record(bytes, *number).is_none();
        let number = self
            .each(records, first)
            .find(wrong)
            .map_or(first, |it| it.0);
        Error::corrupted(
            format!("{place}, record {number}"),
            "its check does not fit",
        )
    }
}

#[inline(always)]
fn words(line: &[u8; LINE_SIZE]) -> [u64; BLOCKS + 1] {
    let words = line.as_chunks::<8>().0;
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}
