//! An open version: every segment is mapped, and its index is in memory.
//!
//! The slot of `<store>:<key>` selects the segment, and the hash of the key selects the block (filter and directory,
//! both in memory). The lookup then verifies and searches the block. The source of the bytes depends on the page
//! cache:
//!
//! - If the version is *resident* (everything was in the page cache at the last check, and no page was lost since),
//!   they come directly from the map.
//! - Otherwise the lookup makes one positioned read of the block. [`Version::try_get`] makes it only if it does not
//!   wait for the disk (`RWF_NOWAIT`), so that a serving thread never blocks.
//!
//! A delta has layers below it (`layers.rs`). Their files are in its own folder or, where it was built, in theirs
//! (`lower_layers.rs`).
//!
//! Invariants:
//!
//! 1. An open version never changes.
//! 2. A lookup verifies everything that it reads.
//! 3. An absent key, a damaged block and a key whose partition is not in the folder (`partitions.rs`) yield different
//!    results.
//! 4. A file that is truncated while it is open is damage like any other: a caller that takes a borrowed [`Value`]
//!    from the map checks [`Version::is_intact`] after it last used the value (`bus_fault.rs`).

mod bus_fault;
pub mod files;
mod layers;
mod lower_layers;
mod memory;
mod merged;
mod partitions;
mod publish;
mod segment_file;
mod tools;
mod walk;

use std::borrow::Cow;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_types::{SlotPrefix, StoreName, key_hash};

use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry, partition_of};
use crate::segment::{Footer, IndexArena, IndexBytes};
use bus_fault::MapState;
pub use lower_layers::{resolve_in_folder, resolve_place};
pub use partitions::Partitions;
pub use publish::StoreDir;
pub use segment_file::Attempt;
use segment_file::{OpenedSegment, SegmentFile};
pub use tools::{Sampled, ScanPage, VerifyReport};
pub use walk::{Record, Walk};

/// A value, borrowed from the map where possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value<'a>(Cow<'a, [u8]>);

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> Value<'a> {
    pub fn into_vec(self) -> Vec<u8> {
        self.0.into_owned()
    }

    /// Returns whether the bytes are in the version's map, and therefore live as long as the version.
    pub fn is_borrowed(&self) -> bool {
        matches!(self.0, Cow::Borrowed(_))
    }

    /// Returns the value without its last byte.
    fn without_last(self) -> Value<'a> {
        Value(match self.0 {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[..bytes.len().saturating_sub(1)]),
            Cow::Owned(mut bytes) => {
                bytes.pop();
                Cow::Owned(bytes)
            }
        })
    }
}

/// The part of a version that is in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residency {
    pub resident_bytes: u64,
    pub total_bytes: u64,
}

/// See the module. Share it in an `Arc`: its files stay readable until the last reader drops it, even after they were
/// removed.
pub struct Version {
    manifest: Manifest,
    path: PathBuf,
    slots: SlotPrefix,
    /// The lowest layer's segment of each partition; `None` if it is not present.
    segments: Vec<Option<SegmentFile>>,
    /// The layers above it for each partition, newest first; empty for a version without layers.
    deltas: Vec<Vec<SegmentFile>>,
    /// The total size of the segments that are present.
    local_size_bytes: u64,
    state: Arc<MapState>,
    resident_bytes: AtomicU64,
}

impl Version {
    /// Opens the version in folder `path`: reads and verifies the manifest, and the header, footer and index of each
    /// segment. Blocks are verified when they are read.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for damage, including missing files; [`Error::Io`] if a file cannot be read.
    pub fn open(path: &Path) -> Result<Version, Error> {
        Version::open_selected(path, None)
    }

    /// Like [`Version::open`], restricted to one partition that is in the folder.
    ///
    /// # Errors
    /// Like [`Version::open`].
    pub fn open_partition(path: &Path, partition: u32) -> Result<Version, Error> {
        Version::open_selected(path, Some(partition))
    }

    fn open_selected(path: &Path, partition: Option<u32>) -> Result<Version, Error> {
        let manifest_path = path.join(Manifest::FILE);
        let shown = manifest_path.display().to_string();
        let place = format!("manifest {shown}");
        let bytes = files::read_regular(&manifest_path).map_err(Error::of_part(
            &place,
            "read",
            &manifest_path,
        ))?;
        let manifest = Manifest::decode(&shown, &bytes)?;
        let mut here = Partitions::read(path, &manifest)?;
        if let Some(partition) = partition {
            let one = Partitions::from_iter([partition]);
            if !here.includes(&one) {
                return Err(Error::state(format!(
                    "partition {partition} of the version in {} does not exist",
                    path.display()
                )));
            }
            here = one;
        }
        let folders = lower_layers::layer_folders(path, &manifest, &here)?;
        let entries = here
            .iter()
            .flat_map(|partition| manifest.partition_entries(partition));
        let entries: Vec<&SegmentEntry> = entries.collect();
        let layers = (0..manifest.layer_count()).cycle();
        let opened = (entries.iter().zip(layers.clone()))
            .map(|(entry, layer)| OpenedSegment::open(&folders[layer], &manifest, entry, layer));
        let opened = opened.collect::<Result<Vec<_>, Error>>()?;
        let mut arena = IndexArena::for_sections(opened.iter().map(OpenedSegment::sections_size));
        let mut ranges = Vec::with_capacity(opened.len());
        for segment in &opened {
            let range = arena.take(segment.sections_size());
            segment.read_sections(arena.bytes_mut(range.clone()))?;
            ranges.push(range);
        }
        let arena = arena.share();
        let state = Arc::new(MapState::default());
        let mut segments = Vec::new();
        segments.resize_with(manifest.segments.len(), || None);
        let mut deltas = Vec::new();
        if manifest.is_delta() {
            deltas.resize_with(manifest.segments.len(), Vec::new);
        }
        for (((segment, range), entry), layer) in
            opened.into_iter().zip(ranges).zip(&entries).zip(layers)
        {
            let mapped = segment.map(IndexBytes::new(&arena, range), &state)?;
            let partition = entry.partition.0 as usize;
            match layer {
                0 => segments[partition] = Some(mapped),
                _ => deltas[partition].insert(0, mapped),
            }
        }
        let local_size_bytes = entries.iter().map(|entry| entry.size_bytes).sum();
        Ok(Version {
            slots: SlotPrefix::new(format!("{}:", manifest.store).as_bytes()),
            manifest,
            path: path.to_owned(),
            segments,
            deltas,
            local_size_bytes,
            state,
            resident_bytes: AtomicU64::new(0),
        })
    }

    /// Returns a version with no partitions and no folder here. If its manifest is not known, it only names its
    /// store.
    pub fn without_partitions(store: &StoreName, manifest: Option<&Manifest>) -> Version {
        let manifest = manifest.cloned();
        let manifest = manifest.unwrap_or_else(|| Manifest::unknown(store.clone()));
        let mut segments = Vec::new();
        segments.resize_with(manifest.segments.len(), || None);
        Version {
            slots: SlotPrefix::new(format!("{store}:").as_bytes()),
            manifest,
            path: PathBuf::new(),
            segments,
            deltas: Vec::new(),
            local_size_bytes: 0,
            state: Arc::new(MapState::default()),
            resident_bytes: AtomicU64::new(0),
        }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the memory that the version's indexes use, in bytes.
    pub fn index_memory_bytes(&self) -> usize {
        self.local_segments()
            .map(|segment| segment.index.memory_bytes())
            .sum()
    }

    /// Returns the target block size of the lowest layer, if any partition is present.
    pub(crate) fn block_size(&self) -> Option<u32> {
        let segment = self.segments.iter().flatten().next();
        segment.map(|segment| segment.index.footer.block_size)
    }

    /// Returns the footer of a partition's segment in the lowest layer.
    pub(crate) fn base_footer(&self, partition: usize) -> Result<&Footer, Error> {
        let segment = self.segments[partition].as_ref();
        let segment = segment.ok_or_else(|| self.partition_not_local(partition))?;
        Ok(&segment.index.footer)
    }

    /// Returns the memory that the directories use, in bytes.
    pub fn directory_bytes(&self) -> usize {
        self.local_segments()
            .map(|segment| segment.index.directory_bytes())
            .sum()
    }

    /// Returns the value of `key`, or `None` if it is absent. May block on disk reads.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the block of the key is damaged, [`Error::NotHere`] if its partition is not present.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'_>>, Error> {
        if self.has_layers() {
            return self.get_layered(key);
        }
        let hash = key_hash(key);
        let Some(segment) = self.segment(key) else {
            return Err(self.key_not_local(key));
        };
        if let Some(found) = self.find_mapped(segment, hash, key) {
            return found;
        }
        match segment.index.locate(hash) {
            None => Ok(None),
            Some(range) => segment.read(range, hash, key),
        }
    }

    /// Looks the key up in the map; `None` if the version is not resident, or if the result is invalid because pages
    /// were lost.
    #[inline]
    fn find_mapped<'a>(
        &'a self,
        segment: &'a SegmentFile,
        hash: u64,
        key: &[u8],
    ) -> Option<Result<Option<Value<'a>>, Error>> {
        if !self.is_resident() {
            return None;
        }
        let found = memory::find(segment, hash, key);
        self.is_intact().then_some(found)
    }

    /// Like [`Version::get`], but never blocks: it returns [`Attempt::WouldBlock`] instead, and the caller repeats
    /// the lookup with `get` on a thread that may block.
    ///
    /// # Errors
    /// Like [`Version::get`].
    #[inline]
    pub fn try_get(&self, key: &[u8]) -> Result<Attempt<'_>, Error> {
        if self.has_layers() {
            return self.try_get_layered(key);
        }
        let hash = key_hash(key);
        let Some(segment) = self.segment(key) else {
            return Err(self.key_not_local(key));
        };
        if let Some(found) = self.find_mapped(segment, hash, key) {
            return found.map(Attempt::Ready);
        }
        match segment.index.locate(hash) {
            None => Ok(Attempt::Ready(None)),
            Some(range) => segment.try_read(range, hash, key),
        }
    }

    /// Looks up many keys and appends their results in order. Memory is prefetched, so that the cache misses of
    /// several lookups overlap. May block on disk reads.
    pub fn get_many<'a>(&'a self, keys: &[&[u8]], out: &mut Vec<Result<Option<Value<'a>>, Error>>) {
        if self.has_layers() {
            return self.get_many_layered(keys, out);
        }
        let Some(some) = self.local_segments().next().filter(|_| self.is_resident()) else {
            out.extend(keys.iter().map(|key| self.get(key)));
            return;
        };
        for batch in keys.chunks(memory::BATCH) {
            let mut segments = [some; memory::BATCH];
            let mut are_here = true;
            for (place, key) in segments.iter_mut().zip(batch) {
                match self.segment(key) {
                    Some(segment) => *place = segment,
                    None => are_here = false,
                }
            }
            if !are_here {
                out.extend(batch.iter().map(|key| self.get(key)));
                continue;
            }
            let before = out.len();
            memory::find_batch(&segments[..batch.len()], batch, out);
            if !self.is_intact() {
                out.truncate(before);
                out.extend(batch.iter().map(|key| self.get(key)));
            }
        }
    }

    #[inline]
    fn segment_index(&self, key: &[u8]) -> usize {
        if self.segments.len() == 1 {
            return 0;
        }
        partition_of(self.slots.slot(key), self.segments.len() as u32) as usize
    }

    #[inline]
    fn segment(&self, key: &[u8]) -> Option<&SegmentFile> {
        self.segments[self.segment_index(key)].as_ref()
    }

    /// Returns whether lookups read several layers.
    #[inline]
    fn has_layers(&self) -> bool {
        !self.deltas.is_empty()
    }

    /// Iterates over the segments that are present: those of the lowest layer in partition order, then the others.
    fn local_segments(&self) -> impl Iterator<Item = &SegmentFile> {
        let above = self.deltas.iter().flatten();
        self.segments.iter().flatten().chain(above)
    }

    /// Returns the segments of a partition, newest layer first.
    ///
    /// # Errors
    /// [`Error::NotHere`].
    fn layers_of(&self, partition: usize) -> Result<impl Iterator<Item = &SegmentFile>, Error> {
        let base = self.segments[partition].as_ref();
        let base = base.ok_or_else(|| self.partition_not_local(partition))?;
        let above = self.deltas.get(partition).into_iter().flatten();
        Ok(above.chain(std::iter::once(base)))
    }

    /// Returns the partitions that are in the folder.
    pub fn local_partitions(&self) -> Partitions {
        let all = (0..).zip(&self.segments);
        let here = all.filter_map(|(partition, segment)| segment.as_ref().map(|_| partition));
        here.collect()
    }

    pub fn has_any_partition(&self) -> bool {
        self.local_segments().next().is_some()
    }

    /// Returns the hash slot of a key of the store.
    pub fn slot_of(&self, key: &[u8]) -> u16 {
        self.slots.slot(key)
    }

    /// Returns whether all partitions are present.
    pub fn has_all_partitions(&self) -> bool {
        self.segments.iter().all(Option::is_some)
    }

    /// Returns whether the partition of `key` is present. Callers that handle other keys differently check this
    /// first.
    #[inline]
    pub fn has_partition_of(&self, key: &[u8]) -> bool {
        self.segment(key).is_some()
    }

    /// Returns the total size of the segments that are present, in bytes.
    pub fn local_size_bytes(&self) -> u64 {
        self.local_size_bytes
    }

    #[cold]
    fn key_not_local(&self, key: &[u8]) -> Error {
        self.partition_not_local(self.segment_index(key))
    }

    #[cold]
    fn partition_not_local(&self, partition: usize) -> Error {
        Error::NotHere {
            place: self.path.display().to_string(),
            partition: partition as u32,
        }
    }

    /// Returns whether all of the version was in the page cache at the last check and no page was lost since: `get`
    /// then does not block.
    #[inline]
    pub fn is_resident(&self) -> bool {
        self.state.is_resident()
    }

    /// Returns false after a mapped file was found truncated or unreadable. From then on lookups use positioned
    /// reads, which return intact blocks and report the others as damaged. A value borrowed before the call is then
    /// invalid: look it up again.
    ///
    /// The kernel reports lost pages, not lost bytes. If a file is truncated in the middle of a page, the rest of
    /// that page reads as zeros. A value there that was verified just before the truncation and read just after it is
    /// not detected.
    #[inline]
    pub fn is_intact(&self) -> bool {
        self.state.is_intact()
    }

    /// Returns the error for a borrowed value that was returned before its version lost pages.
    #[cold]
    pub fn lost_pages_error(&self) -> Error {
        Error::corrupted(
            format!("version {}", self.path.display()),
            "a file was cut, or could not be read, while a value was taken from it",
        )
    }

    /// Returns the last result of [`Version::refresh_residency`].
    pub fn residency(&self) -> Residency {
        let resident_bytes = self.resident_bytes.load(Ordering::Relaxed);
        Residency {
            resident_bytes,
            total_bytes: self.local_size_bytes,
        }
    }

    /// Queries the kernel for the pages in the page cache. Takes about 4 ms per GB: call it periodically, off the
    /// serving threads.
    pub fn refresh_residency(&self) -> Residency {
        let resident_bytes = self.local_segments().map(SegmentFile::resident_bytes).sum();
        self.resident_bytes.store(resident_bytes, Ordering::Relaxed);
        self.state
            .set_resident(resident_bytes == self.local_size_bytes);
        self.residency()
    }
}
