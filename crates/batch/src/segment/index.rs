//! What a reader keeps in memory of a segment: directory, filter, dictionary.

use xxhash_rust::xxh3::xxh3_64;

use super::block::prefetch;
use super::compression::Codec;
use super::directory::Directory;
use super::filter::Filter;
use super::format::{Footer, HEADER_SIZE};
use super::memory::IndexBytes;
use crate::error::Error;

/// The checked index of one segment. A lookup begins with [`SegmentIndex::locate`].
pub struct SegmentIndex {
    pub footer: Footer,
    pub codec: Codec,
    directory: Directory,
    filter: Option<Filter>,
}

/// Where in the file a block and its extents are. Never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    pub index: u64,
    pub start: u64,
    pub end: u64,
}

impl SegmentIndex {
    /// Decodes the sections behind the data: `sections` are the file's bytes from the end of the
    /// data to the footer.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if any of them is not what was written.
    pub fn decode(
        place: &str,
        footer: Footer,
        sections: IndexBytes,
    ) -> Result<SegmentIndex, Error> {
        let damaged =
            |what: &str| Error::corrupted(place, format!("the {what}'s checksum does not fit"));
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
        let start = HEADER_SIZE as u64;
        let directory = Directory::decode(
            place,
            footer.directory_kind,
            directory,
            footer.block_count,
            start,
            footer.data_size,
        )?;
        Ok(SegmentIndex {
            footer,
            codec,
            directory,
            filter,
        })
    }

    /// The block that would hold a key of this hash; `None` if the key is certainly absent.
    #[inline]
    pub fn locate(&self, hash: u64) -> Option<BlockRange> {
        if !self.may_contain(hash) {
            return None;
        }
        self.block(self.block_index(hash))
    }

    /// False only if no key of this hash is in the segment.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| filter.may_contain(hash))
    }

    /// Block `index`, or `None` if it has no records.
    #[inline(always)]
    pub fn block(&self, index: u64) -> Option<BlockRange> {
        let (start, end) = self.directory.range(index as usize);
        (start < end).then_some(BlockRange { index, start, end })
    }

    /// Which of the equal ranges of the hash space `hash` falls in.
    #[inline(always)]
    pub fn block_index(&self, hash: u64) -> u64 {
        block_index(hash, self.footer.block_count)
    }

    /// Asks the processor to fetch what [`SegmentIndex::may_contain`] will read.
    #[inline]
    pub fn prefetch_filter(&self, hash: u64) {
        if let Some(filter) = &self.filter {
            filter.prefetch(hash);
        }
    }

    /// Asks the processor to fetch what [`SegmentIndex::block`] will read.
    #[inline]
    pub fn prefetch_directory(&self, hash: u64) {
        self.directory.prefetch(self.block_index(hash) as usize);
    }

    /// Bytes of memory that the index holds.
    pub fn memory_bytes(&self) -> usize {
        self.directory_bytes() + self.filter.as_ref().map_or(0, Filter::memory_bytes)
    }

    pub fn directory_bytes(&self) -> usize {
        self.directory.memory_bytes()
    }
}

#[inline]
pub(crate) fn block_index(hash: u64, block_count: u64) -> u64 {
    ((u128::from(hash) * u128::from(block_count)) >> 64) as u64
}

/// Fetches the cache lines of a block ahead of its use, up to a bound.
#[inline]
pub fn prefetch_block(bytes: &[u8]) {
    const LINES_MAX: usize = 32;
    for line in bytes.chunks(64).take(LINES_MAX) {
        prefetch(line.as_ptr());
    }
}
