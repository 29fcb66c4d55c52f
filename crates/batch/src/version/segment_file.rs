//! One segment on disk: mapped for reads from memory, and read by position otherwise.
//!
//! Only lookups use the map, and it is watched: a truncated or unreadable file costs them one check (`bus_fault.rs`).
//! Reads of more than a block are positioned reads.

use std::borrow::Cow;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Advice, Mmap, MmapOptions};

use super::Value;
use super::bus_fault::{MapState, MapWatch, watch};
use super::files::open_regular;
use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry};
use crate::segment::block::{Block, BlockValue, LargeRef, Varied, find_plain};
use crate::segment::format::{FOOTER_SIZE, HEADER_SIZE, check_header};
use crate::segment::{
    BlockRange, Codec, Footer, FoundValue, IndexBytes, RecordLocation, Records, SegmentIndex,
};

/// The result of a lookup that must not block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attempt<'a> {
    Ready(Option<Value<'a>>),
    /// A disk read is necessary.
    WouldBlock,
}

pub struct SegmentFile {
    pub index: SegmentIndex,
    /// The file's path, for messages.
    pub place: String,
    path: PathBuf,
    file: File,
    /// Declared before the map, so that it is dropped first.
    _watched: MapWatch,
    map: Mmap,
}

/// Fills a buffer from an offset; returns false if that would block and must not.
type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> Result<bool, Error> + 'a;

/// A block with its extents up to this size is read in one step; of a larger one, the block is read first.
const WHOLE_READ_BYTES_MAX: u64 = 256 << 10;
/// The step size of operations on the complete map: a huge page.
const PIECE_BYTES: usize = 2 << 20;
/// The step size of releasing memory.
const RELEASED_BYTES: usize = 8 << 20;

/// A segment whose header and footer have been verified, and whose index is not loaded yet.
pub struct OpenedSegment {
    pub footer: Footer,
    place: String,
    path: PathBuf,
    file: File,
}

impl OpenedSegment {
    pub fn open(
        folder: &Path,
        manifest: &Manifest,
        entry: &SegmentEntry,
        layer: usize,
    ) -> Result<OpenedSegment, Error> {
        let path = folder.join(&entry.file);
        let place = format!("segment {}", path.display());
        let file = open_regular(&path).map_err(Error::of_part(&place, "open", &path))?;
        let size = file.metadata().map_err(Error::io("read", &path))?.len();
        if size != entry.size_bytes {
            let detail = format!(
                "it has {size} bytes, the manifest lists {}",
                entry.size_bytes
            );
            return Err(Error::corrupted(place, detail));
        }
        if size < (HEADER_SIZE + FOOTER_SIZE) as u64 {
            return Err(Error::corrupted(place, "it is too short to be a segment"));
        }
        let (mut header, mut footer) = ([0; HEADER_SIZE], [0; FOOTER_SIZE]);
        file.read_exact_at(&mut header, 0)
            .map_err(|error| read_error(&place, &path, error))?;
        let format = check_header(&place, &header)?;
        file.read_exact_at(&mut footer, size - FOOTER_SIZE as u64)
            .map_err(|error| read_error(&place, &path, error))?;
        let footer = Footer::decode(&place, &footer, size, format)?;
        let expected = (entry.partition.0, manifest.partitions, entry.record_count);
        if (footer.partition, footer.partitions, footer.record_count) != expected {
            let detail =
                "it is not the segment that the manifest means: partition or record count differ";
            return Err(Error::corrupted(place, detail));
        }
        if footer.is_delta != (layer > 0) || (footer.is_delta && footer.filter_size == 0) {
            let detail = "it is not the segment that the manifest means: one of a delta, with a filter, is above the lowest layer, and only there";
            return Err(Error::corrupted(place, detail));
        }
        Ok(OpenedSegment {
            footer,
            place,
            path,
            file,
        })
    }

    pub fn sections_size(&self) -> usize {
        (self.footer.dictionary_size + self.footer.filter_size + self.footer.directory_size)
            as usize
    }

    /// Reads the index into `sections`, which must have [`OpenedSegment::sections_size`] bytes.
    pub fn read_sections(&self, sections: &mut [u8]) -> Result<(), Error> {
        let start = HEADER_SIZE as u64 + self.footer.data_size;
        self.file
            .read_exact_at(sections, start)
            .map_err(|error| read_error(&self.place, &self.path, error))
    }

    /// Verifies the index and maps the file. `state` records lost pages.
    pub fn map(self, sections: IndexBytes, state: &Arc<MapState>) -> Result<SegmentFile, Error> {
        let OpenedSegment {
            footer,
            place,
            path,
            file,
        } = self;
        let index = SegmentIndex::decode(&place, footer, sections)?;
        // Random reads do not benefit from read-ahead. SAFETY: the descriptor is open; the call is only advice.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        // SAFETY: larder never modifies a published segment. All bytes of the map are untrusted and verified by
        // checksums, and lost pages are replaced with zeros: see `watch` below.
        let map = unsafe { MmapOptions::new().map(&file) }.map_err(Error::io("map", &path))?;
        map.advise(Advice::Random)
            .map_err(Error::io("map", &path))?;
        // SAFETY: the map lives next to the result, which is dropped first. Its readers verify what they read, and
        // then check the state.
        let watched = unsafe { watch(map.as_ptr(), map.len(), state.clone()) };
        Ok(SegmentFile {
            index,
            place,
            path,
            file,
            _watched: watched,
            map,
        })
    }
}

impl SegmentFile {
    /// Returns the block and its extents in the map. Accessing them may block on the disk. Data read there is
    /// valid only if the version's [`MapState`] is whole afterwards.
    #[inline]
    pub fn mapped(&self, range: BlockRange) -> &[u8] {
        &self.map[range.start as usize..range.end as usize]
    }

    /// Looks `key` up in the map, without the filter.
    #[inline]
    pub fn find_mapped(&self, hash: u64, key: &[u8]) -> Result<Option<Value<'_>>, Error> {
        if let Records::Uniform(uniform) = &self.index.records
            && let Some(found) = uniform.find(&self.map, hash, key)
        {
            return Ok(found.map(|value| Value(Cow::Borrowed(value))));
        }
        match self.index.locate_unfiltered(hash) {
            None => Ok(None),
            Some(located) => self.find_located(located, hash, key),
        }
    }

    /// Like [`SegmentFile::find_mapped`], for a key whose position is known.
    #[inline]
    pub fn find_located(
        &self,
        located: RecordLocation,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Value<'_>>, Error> {
        let range = located.range;
        let bytes = self.mapped(range);
        let found = match &self.index.records {
            Records::Sealed(_) => find_plain(bytes, range.index, hash, key),
            Records::Uniform(uniform) => {
                uniform.choose(bytes, range.index, located.candidates.count, key)
            }
            Records::Varied(_) => {
                let block = Varied::parse(bytes, range.index);
                match block.and_then(|block| block.find(located.candidates, key)) {
                    Some(None) => Some(None),
                    Some(Some(FoundValue::Inline(value))) => Some(Some(value)),
                    Some(Some(FoundValue::Large(large))) => {
                        return self.large(range, bytes, large).map(Some);
                    }
                    None => None,
                }
            }
        };
        match found {
            Some(found) => Ok(found.map(|value| Value(Cow::Borrowed(value)))),
            None => self.find_any(located, hash, key),
        }
    }

    /// Returns a large value from the bytes of its block and extents.
    fn large<'a>(
        &self,
        range: BlockRange,
        bytes: &'a [u8],
        large: LargeRef,
    ) -> Result<Value<'a>, Error> {
        let stored =
            extent(bytes, large.offset, large.stored_size).ok_or_else(|| self.truncated(range))?;
        large
            .open(&self.place, range.index, stored, &self.index.codec)
            .map(Value)
    }

    /// Returns the error for a checksum that does not match.
    #[cold]
    pub fn damaged(&self, located: RecordLocation, bytes: &[u8]) -> Error {
        match &self.index.records {
            Records::Uniform(uniform) => uniform.damaged(&self.place, located.range.index, bytes),
            _ => self.damaged_block(located.range, "a record's checksum does not match"),
        }
    }

    #[cold]
    pub fn damaged_block(&self, range: BlockRange, detail: &str) -> Error {
        Error::corrupted(format!("{}, block {}", self.place, range.index), detail)
    }

    /// Like `find_located`, for all kinds of sealed blocks, and for blocks with an error.
    #[inline(never)]
    fn find_any(
        &self,
        located: RecordLocation,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Value<'_>>, Error> {
        let range = located.range;
        let bytes = self.mapped(range);
        if !matches!(self.index.records, Records::Sealed(_)) {
            return Err(self.damaged(located, bytes));
        }
        let block = Block::open(&self.place, bytes, range.index, &self.index.codec)?;
        Ok(match block.find(&self.place, range.index, hash, key)? {
            None => None,
            Some(BlockValue::Borrowed(value)) => Some(Value(Cow::Borrowed(value))),
            Some(BlockValue::Owned(value)) => Some(Value(Cow::Owned(value))),
            Some(BlockValue::Large(large)) => Some(self.large(range, bytes, large)?),
        })
    }

    /// Looks `key` up with one positioned read of its block or its records, which may block on the disk.
    pub fn read(
        &self,
        located: RecordLocation,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Value<'static>>, Error> {
        match self.find_by(located, hash, key, &|offset, bytes| {
            self.read_at(offset, bytes).map(|()| true)
        })? {
            Attempt::Ready(value) => Ok(value),
            Attempt::WouldBlock => unreachable!("a plain read waits"),
        }
    }

    /// Looks `key` up if that does not block.
    pub fn try_read(
        &self,
        located: RecordLocation,
        hash: u64,
        key: &[u8],
    ) -> Result<Attempt<'static>, Error> {
        self.find_by(located, hash, key, &|offset, bytes| {
            self.read_cached(offset, bytes)
        })
    }

    fn find_by(
        &self,
        located: RecordLocation,
        hash: u64,
        key: &[u8],
        read: &ReadAt<'_>,
    ) -> Result<Attempt<'static>, Error> {
        let range = located.range;
        let Some(bytes) = self.read_block(range, read)? else {
            return Ok(Attempt::WouldBlock);
        };
        let found = match &self.index.records {
            Records::Sealed(_) => {
                let block = Block::open(&self.place, &bytes, range.index, &self.index.codec)?;
                block.find(&self.place, range.index, hash, key)?
            }
            Records::Uniform(uniform) => uniform
                .find_among(&bytes, range.index, key)
                .ok_or_else(|| self.damaged(located, &bytes))?
                .map(BlockValue::Borrowed),
            Records::Varied(_) => Varied::parse(&bytes, range.index)
                .and_then(|block| block.find(located.candidates, key))
                .ok_or_else(|| self.damaged(located, &bytes))?
                .map(|value| match value {
                    FoundValue::Inline(value) => BlockValue::Borrowed(value),
                    FoundValue::Large(large) => BlockValue::Large(large),
                }),
        };
        let value = match found {
            None => return Ok(Attempt::Ready(None)),
            Some(BlockValue::Borrowed(value)) => value.to_vec(),
            Some(BlockValue::Owned(value)) => value,
            Some(BlockValue::Large(large))
                if large.offset.saturating_add(large.stored_size) <= bytes.len() as u64 =>
            {
                self.large(range, &bytes, large)?.into_vec()
            }
            Some(BlockValue::Large(large)) => {
                let end = large.offset.checked_add(large.stored_size);
                if end.is_none_or(|end| end > range.end - range.start) {
                    return Err(self.truncated(range));
                }
                let mut stored = vec![0; large.stored_size as usize];
                if !read(range.start + large.offset, &mut stored)? {
                    return Ok(Attempt::WouldBlock);
                }
                match large.open(&self.place, range.index, &stored, &self.index.codec)? {
                    Cow::Owned(value) => value,
                    Cow::Borrowed(_) => stored,
                }
            }
        };
        Ok(Attempt::Ready(Some(Value(Cow::Owned(value)))))
    }

    /// Returns the bytes of a block and the part of its extents that was read with it; `None` if that would block and
    /// must not.
    fn read_block(&self, range: BlockRange, read: &ReadAt<'_>) -> Result<Option<Vec<u8>>, Error> {
        let complete = range.end - range.start;
        let mut bytes = vec![0; complete.min(WHOLE_READ_BYTES_MAX) as usize];
        loop {
            if !read(range.start, &mut bytes)? {
                return Ok(None);
            }
            let needed = self.size_needed(&bytes, complete);
            if needed <= bytes.len() as u64 {
                return Ok(Some(bytes));
            }
            if needed > complete {
                return Err(self.truncated(range));
            }
            bytes.resize(needed as usize, 0);
        }
    }

    /// Returns the size of a block without its extents, or of its header if not even that is known, from the bytes at
    /// its front.
    pub fn size_needed(&self, front: &[u8], complete: u64) -> u64 {
        let needed = match &self.index.records {
            Records::Sealed(_) => Block::size_needed(front),
            Records::Varied(_) => Varied::size_needed(front),
            Records::Uniform(_) => None,
        };
        needed.map_or(complete, |needed| needed as u64)
    }

    /// Fills `bytes` from `offset` on; may block on the disk.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the file ends earlier; [`Error::Io`].
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.file
            .read_exact_at(bytes, offset)
            .map_err(|error| read_error(&self.place, &self.path, error))
    }

    /// Reads only from the page cache; returns false if not all bytes are there.
    fn read_cached(&self, offset: u64, bytes: &mut [u8]) -> Result<bool, Error> {
        let part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the iovec describes `bytes`, which is exclusively borrowed for the call.
        let count = unsafe {
            libc::preadv2(
                self.file.as_raw_fd(),
                &part,
                1,
                offset as libc::off_t,
                libc::RWF_NOWAIT,
            )
        };
        if count >= 0 {
            return Ok(count as usize == bytes.len());
        }
        match std::io::Error::last_os_error() {
            error
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::EOPNOTSUPP | libc::EINTR)
                ) =>
            {
                Ok(false)
            }
            error => Err(Error::io("read", &self.path)(error)),
        }
    }

    /// Returns the number of bytes of the file that are in the page cache.
    pub fn resident_bytes(&self) -> u64 {
        const PAGE: usize = 4096;
        const PAGES_AT_ONCE: usize = 64 << 10;
        let mut flags = vec![0u8; PAGES_AT_ONCE];
        let mut resident = 0;
        for start in (0..self.map.len()).step_by(PAGES_AT_ONCE * PAGE) {
            let length = (self.map.len() - start).min(PAGES_AT_ONCE * PAGE);
            // SAFETY: the range lies within the map and starts at a page; `flags` has a byte for each of its pages.
            let failed = unsafe {
                libc::mincore(
                    self.map.as_ptr().add(start).cast_mut().cast(),
                    length,
                    flags.as_mut_ptr(),
                )
            };
            if failed != 0 {
                continue;
            }
            for (page, flag) in flags[..length.div_ceil(PAGE)].iter().enumerate() {
                if flag & 1 != 0 {
                    resident += (length - page * PAGE).min(PAGE) as u64;
                }
            }
        }
        resident
    }

    pub fn size(&self) -> u64 {
        self.map.len() as u64
    }

    /// Loads the file into the page cache, in huge pages where the kernel and the file system support them.
    /// `progress` is called with the size of each piece; if it returns false, loading stops and returns false. Errors
    /// are left to the lookups that meet them.
    pub fn load(&self, progress: &mut dyn FnMut(u64) -> bool) -> bool {
        // A separate map: the one for lookups must not request 2 MiB when it misses one block. SAFETY: as for the map
        // of lookups; its bytes are not accessed.
        let Ok(map) = (unsafe { MmapOptions::new().map(&self.file) }) else {
            return true;
        };
        let _ = map.advise(Advice::HugePage);
        for start in (0..map.len()).step_by(PIECE_BYTES) {
            let size = (map.len() - start).min(PIECE_BYTES);
            if map.advise_range(Advice::PopulateRead, start, size).is_err() {
                // Kernels before 5.14 do not support it.
                let _ = self.file.read_exact_at(&mut vec![0; size], start as u64);
            }
            if !progress(size as u64) {
                return false;
            }
        }
        true
    }

    /// Enters the map into the process's page table, in huge pages where possible. `go_on` is called after each
    /// piece; if it returns false, this stops and returns false. Failures are ignored: pages are then entered when
    /// they are accessed.
    pub fn populate(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        const MADV_COLLAPSE: libc::c_int = 25;
        for (start, size) in pieces(&self.map, PIECE_BYTES) {
            // SAFETY: the range lies within the map and starts at a page; the advice changes no bytes.
            unsafe {
                let begin = self.map.as_ptr().add(start).cast_mut().cast();
                libc::madvise(begin, size, MADV_COLLAPSE)
            };
            let _ = self.map.advise_range(Advice::PopulateRead, start, size);
            if !go_on() {
                return false;
            }
        }
        true
    }

    /// Removes the map from the page table, piece by piece, and the bytes of an unlinked file from the page cache.
    /// Other readers of the file are not affected; they may read from the disk.
    pub(super) fn release(&self, step: &dyn Fn()) {
        let is_unnamed = self.file.metadata().is_ok_and(|it| it.nlink() == 0);
        for (start, size) in pieces(&self.map, RELEASED_BYTES) {
            // SAFETY: the range lies within the map and starts at a page. It is a shared map of a file, so no data is
            // lost.
            unsafe {
                let begin = self.map.as_ptr().add(start).cast_mut().cast();
                libc::madvise(begin, size, libc::MADV_DONTNEED)
            };
            if is_unnamed {
                // SAFETY: the descriptor is open; the call is only advice.
                unsafe {
                    libc::posix_fadvise(
                        self.file.as_raw_fd(),
                        start as libc::off_t,
                        size as libc::off_t,
                        libc::POSIX_FADV_DONTNEED,
                    )
                };
            }
            step();
        }
    }

    pub fn codec(&self) -> &Codec {
        &self.index.codec
    }

    #[cold]
    fn truncated(&self, range: BlockRange) -> Error {
        Error::corrupted(
            format!("{}, block {}", self.place, range.index),
            "a record points outside of its block's place",
        )
    }
}

/// Divides a map at the addresses that are multiples of `bytes`, like huge pages; returns starts and sizes.
fn pieces(map: &[u8], bytes: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (base, length) = (map.as_ptr().addr(), map.len());
    let mut start = 0;
    std::iter::from_fn(move || {
        let size = (bytes - (base + start) % bytes).min(length - start);
        let piece = (size > 0).then_some((start, size));
        start += size;
        piece
    })
}

/// Converts a read error. A file that ends early was truncated after it was opened: that is damage, not a disk error.
#[cold]
fn read_error(place: &str, path: &Path, error: std::io::Error) -> Error {
    if error.kind() == ErrorKind::UnexpectedEof {
        return Error::corrupted(place, "the file was cut while it was open");
    }
    Error::io("read", path)(error)
}

/// Returns the stored bytes of a large value from the bytes of its block; `None` if they are out of range.
fn extent(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(size).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_the_whole_map_and_end_where_huge_pages_do() {
        let bytes = vec![0u8; 100_000];
        for length in [0, 1, 4095, 4096, 100_000] {
            let map = &bytes[..length];
            let mut next = 0;
            for (start, size) in pieces(map, 4096) {
                assert_eq!(start, next);
                next += size;
                let end = map.as_ptr().addr() + next;
                assert!(end.is_multiple_of(4096) || next == length);
            }
            assert_eq!(next, length);
        }
    }
}
