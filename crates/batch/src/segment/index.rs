//! The in-memory parts of a segment: directory, filter and dictionary.

use xxhash_rust::xxh3::xxh3_64;

use super::block::prefetch;
use super::compression::Codec;
use super::directory::Directory;
use super::filter::{Filter, Mask};
use super::format::{Footer, HEADER_SIZE, Layout};
use super::memory::IndexBytes;
use super::ranks::{self, Candidates, block_and_fraction};
use super::uniform::Uniform;
use crate::error::Error;

/// The verified index of one segment. A lookup starts with [`SegmentIndex::locate`].
pub struct SegmentIndex {
    pub footer: Footer,
    pub codec: Codec,
    pub records: Records,
    filter: Option<Filter>,
}

/// The directory, according to the layout.
pub enum Records {
    Sealed(Directory),
    Uniform(Uniform),
    Varied(Blocks),
}

/// The position of each block of a varied segment, and the word that maps a hash to the candidate records of the
/// block.
pub struct Blocks {
    words: IndexBytes,
    directory: Directory,
}

/// The possible position of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLocation {
    /// The block. In a uniform segment: only the candidates, with the number of the first one as the index.
    pub range: BlockRange,
    /// The records of the block that can have the key; unused for sealed blocks.
    pub candidates: Candidates,
}

/// The position of a block and its extents in the file. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    pub index: u64,
    pub start: u64,
    pub end: u64,
}

impl SegmentIndex {
    /// Decodes the sections after the data: `sections` are the file's bytes from the end of the data to the footer.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if a section differs from what was written.
    pub fn decode(
        place: &str,
        footer: Footer,
        sections: IndexBytes,
    ) -> Result<SegmentIndex, Error> {
        let damaged = |what: &str| {
            Error::corrupted(place, format!("the checksum of the {what} does not match"))
        };
        let total = footer.dictionary_size + footer.filter_size + footer.directory_size;
        if sections.len() as u64 != total {
            return Err(Error::corrupted(place, "its sections are cut short"));
        }
        let filter_start = footer.dictionary_size as usize;
        let directory_start = filter_start + footer.filter_size as usize;
        let dictionary = sections.part(0..filter_start);
        let filter = sections.part(filter_start..directory_start);
        let directory = sections.part(directory_start..sections.len());
        for (what, bytes, check) in [
            ("dictionary", &dictionary, footer.dictionary_check),
            ("filter", &filter, footer.filter_check),
            ("directory", &directory, footer.directory_check),
        ] {
            if xxh3_64(bytes) != check {
                return Err(damaged(what));
            }
        }
        let codec = Codec::new(place, footer.compression, &dictionary)?;
        let filter = if filter.is_empty() {
            None
        } else {
            Some(Filter::decode(filter).ok_or_else(|| damaged("filter"))?)
        };
        let positions = |bytes| {
            let start = HEADER_SIZE as u64;
            let (kind, blocks, size) =
                (footer.directory_kind, footer.block_count, footer.data_size);
            Directory::decode(place, kind, bytes, blocks, start, size)
        };
        let records = match footer.layout {
            Layout::Sealed => Records::Sealed(positions(directory)?),
            Layout::Uniform => Records::Uniform(Uniform::decode(place, &footer, directory)?),
            Layout::Varied => {
                let size = footer
                    .block_count
                    .saturating_mul(8)
                    .min(directory.len() as u64) as usize;
                let words = directory.part(0..size);
                let directory = positions(directory.part(size..directory.len()))?;
                Records::Varied(Blocks::new(place, words, directory)?)
            }
        };
        Ok(SegmentIndex {
            footer,
            codec,
            records,
            filter,
        })
    }

    /// Returns the possible position of a key with this hash; `None` if it is certainly absent.
    #[inline]
    pub fn locate(&self, hash: u64) -> Option<RecordLocation> {
        if !self.may_contain(hash) {
            return None;
        }
        self.locate_unfiltered(hash)
    }

    /// Like [`SegmentIndex::locate`], without the filter.
    #[inline]
    pub fn locate_unfiltered(&self, hash: u64) -> Option<RecordLocation> {
        match &self.records {
            Records::Sealed(_) => Some(RecordLocation {
                range: self.block(self.block_index(hash))?,
                candidates: Candidates { first: 0, count: 0 },
            }),
            Records::Uniform(uniform) => {
                let (first, count) = uniform.candidates(hash);
                let (start, end) = uniform.range(first, u64::from(count));
                let range = BlockRange {
                    index: first,
                    start,
                    end,
                };
                (count > 0).then_some(RecordLocation {
                    range,
                    candidates: Candidates { first: 0, count },
                })
            }
            Records::Varied(blocks) => blocks.locate(hash, self.footer.block_count),
        }
    }

    /// Returns whether a lookup of this hash would read the record with this number in this block.
    pub fn would_read(&self, hash: u64, block: BlockRange, number: u64) -> bool {
        let Some(RecordLocation { range, candidates }) = self.locate(hash) else {
            return false;
        };
        let among = |first: u64| (first..first + u64::from(candidates.count)).contains(&number);
        match &self.records {
            Records::Sealed(_) => range == block,
            Records::Varied(_) => range == block && among(u64::from(candidates.first)),
            Records::Uniform(uniform) => {
                let first = uniform.number_at(block.start);
                range.index.checked_sub(first).is_some_and(among)
            }
        }
    }

    /// Returns false only if the segment has no key with this hash.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| filter.may_contain(hash))
    }

    /// Like [`SegmentIndex::may_contain`], with the precomputed mask of the hash.
    #[inline]
    pub fn may_contain_mask(&self, hash: u64, mask: &Mask) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| filter.may_contain_mask(hash, mask))
    }

    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    /// Returns block `index`, or `None` if it has no records.
    #[inline(always)]
    pub fn block(&self, index: u64) -> Option<BlockRange> {
        let (start, end) = match &self.records {
            Records::Sealed(directory) => directory.range(index as usize),
            Records::Varied(blocks) => blocks.directory.range(index as usize),
            Records::Uniform(uniform) => {
                let (first, count) = uniform.block(index);
                uniform.range(first, count)
            }
        };
        (start < end).then_some(BlockRange { index, start, end })
    }

    /// Returns the index of the equal range of the hash space that contains `hash`.
    #[inline(always)]
    pub fn block_index(&self, hash: u64) -> u64 {
        block_index(hash, self.footer.block_count)
    }

    /// Prefetches the memory that [`SegmentIndex::may_contain`] reads.
    #[inline]
    pub fn prefetch_filter(&self, hash: u64) {
        if let Some(filter) = &self.filter {
            filter.prefetch(hash);
        }
    }

    /// Prefetches the part of the directory that [`SegmentIndex::locate`] reads.
    #[inline]
    pub fn prefetch_directory(&self, hash: u64) {
        let index = self.block_index(hash) as usize;
        match &self.records {
            Records::Sealed(directory) => directory.prefetch(index),
            Records::Uniform(uniform) => uniform.prefetch(hash),
            Records::Varied(blocks) => blocks.prefetch(index),
        }
    }

    /// Returns the memory that the index uses, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.directory_bytes() + self.filter.as_ref().map_or(0, Filter::memory_bytes)
    }

    pub fn directory_bytes(&self) -> usize {
        match &self.records {
            Records::Sealed(directory) => directory.memory_bytes(),
            Records::Uniform(uniform) => uniform.memory_bytes(),
            Records::Varied(blocks) => blocks.words.len() + blocks.directory.memory_bytes(),
        }
    }
}

impl Blocks {
    fn new(place: &str, words: IndexBytes, directory: Directory) -> Result<Blocks, Error> {
        let blocks = Blocks { words, directory };
        for (index, word) in blocks.words.as_chunks::<8>().0.iter().enumerate() {
            let (word, (start, end)) = (u64::from_le_bytes(*word), blocks.directory.range(index));
            if !ranks::is_possible(word) || (ranks::count(word) == 0) != (start == end) {
                return Err(Error::corrupted(
                    place,
                    "the directory's words are out of order",
                ));
            }
        }
        Ok(blocks)
    }

    #[inline(always)]
    pub fn locate(&self, hash: u64, block_count: u64) -> Option<RecordLocation> {
        let (index, fraction) = block_and_fraction(hash, block_count);
        let candidates = self.candidates(index as usize, fraction);
        if candidates.count == 0 {
            return None;
        }
        let (start, end) = self.directory.range(index as usize);
        let range = BlockRange { index, start, end };
        Some(RecordLocation { range, candidates })
    }

    /// Returns the number of records in a block.
    pub fn count(&self, index: u64) -> u64 {
        ranks::count(self.word(index as usize))
    }

    #[inline(always)]
    fn candidates(&self, index: usize, fraction: u64) -> Candidates {
        let word = self.word(index);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("bmi2") {
            // SAFETY: detection found the processor features that the function is compiled for.
            return ranks::candidates(word, fraction, |word, number| unsafe {
                ranks::select_bmi2(word, number)
            });
        }
        ranks::candidates(word, fraction, ranks::select_portable)
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        let word = self.words[index * 8..index * 8 + 8].first_chunk();
        u64::from_le_bytes(*word.expect("8 bytes"))
    }

    #[inline]
    fn prefetch(&self, index: usize) {
        self.directory.prefetch(index);
        prefetch(self.words.as_ptr().wrapping_add(index * 8));
    }
}

#[inline(always)]
pub(crate) fn block_index(hash: u64, block_count: u64) -> u64 {
    block_and_fraction(hash, block_count).0
}

/// Prefetches the cache lines of a block, at most 32.
#[inline]
pub fn prefetch_block(bytes: &[u8]) {
    const LINES_MAX: usize = 32;
    for line in bytes.chunks(64).take(LINES_MAX) {
        prefetch(line.as_ptr());
    }
}
