//! An open version: every segment mapped, its index in memory, ready for lookups.
//!
//! A lookup: the slot of `<store>:<key>` picks the segment, the hash of the key the block (filter
//! and directory, both in memory), then the block is checked and searched. Where the bytes come
//! from depends on what is known of the page cache:
//!
//! - *resident*: everything was in the page cache when last looked, and no page was lost since: straight from the map;
//! - otherwise one positioned read of the block; [`Version::try_get`] makes it only if it need not
//!   wait for the disk (`RWF_NOWAIT`), so that a serving thread is never held up.
//!
//! A delta has layers below it (`layers.rs`), whose files are in its own folder or, where it was built, in theirs (`below.rs`).
//!
//! Invariants: an open version never changes; all that a lookup reads is checked first; an absent key,
//! a damaged block and a key whose partition is not in the folder (`partitions.rs`) are different answers. A file that is cut while it is open is damage like any other: whoever
//! takes a borrowed [`Value`] out of the map asks [`Version::is_whole`] after the last look at it (`bus_fault.rs`).

mod below;
mod bus_fault;
pub mod files;
mod layers;
mod memory;
mod merged;
mod partitions;
mod publish;
mod segment_file;
mod tools;
mod walk;

use std::borrow::Cow;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_types::{SlotPrefix, StoreName, key_hash};

use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry, partition_of};
use crate::segment::{Footer, IndexArena, IndexBytes};
pub use below::{joined, joined_in_folder};
use bus_fault::MapState;
pub use partitions::Partitions;
pub use publish::StoreDir;
pub use segment_file::Attempt;
use segment_file::{OpenedSegment, SegmentFile};
pub use tools::{Sampled, ScanPage, VerifyReport};
pub use walk::{Record, Walk};

/// A value, borrowed from the map where it can be.
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

    /// Whether the bytes lie in the version's own map, and so live as long as the version does.
    pub fn is_borrowed(&self) -> bool {
        matches!(self.0, Cow::Borrowed(_))
    }

    /// Without its last byte.
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

/// How much of a version is in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Residency {
    pub resident_bytes: u64,
    pub total_bytes: u64,
}

/// See the module. Share it by `Arc`: its files stay readable until the last reader lets go, even
/// when they have been removed meanwhile.
pub struct Version {
    manifest: Manifest,
    path: PathBuf,
    slots: SlotPrefix,
    /// One a partition; none where it is not here. Of the lowest layer.
    segments: Vec<Option<SegmentFile>>,
    /// The layers above it, for each partition, the newest first; nothing of a version without layers.
    deltas: Vec<Vec<SegmentFile>>,
    /// Bytes of the segments that are here.
    size_here_bytes: u64,
    state: Arc<MapState>,
    resident_bytes: AtomicU64,
}

impl Version {
    /// Opens the version in folder `path`: reads and checks the manifest, and of each segment the
    /// header, footer and index. Blocks are checked when they are read.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for damage, missing files included, [`Error::Io`] if a file cannot be read.
    pub fn open(path: &Path) -> Result<Version, Error> {
        Version::open_some(path, None)
    }

    /// As [`Version::open`], of one partition that is in the folder.
    ///
    /// # Errors
    /// As for [`Version::open`].
    pub fn open_partition(path: &Path, partition: u32) -> Result<Version, Error> {
        Version::open_some(path, Some(partition))
    }

    fn open_some(path: &Path, partition: Option<u32>) -> Result<Version, Error> {
        let manifest_path = path.join(Manifest::FILE);
        let shown = manifest_path.display().to_string();
        let place = format!("manifest {shown}");
        let bytes =
            fs::read(&manifest_path).map_err(Error::of_part(&place, "read", &manifest_path))?;
        let manifest = Manifest::decode(&shown, &bytes)?;
        let mut here = Partitions::read(path, &manifest)?;
        if let Some(partition) = partition {
            let one = Partitions::from_iter([partition]);
            if !here.includes(&one) {
                return Err(Error::state(format!(
                    "partition {partition} of the version in {} is not there",
                    path.display()
                )));
            }
            here = one;
        }
        let folders = below::folders(path, &manifest, &here)?;
        let entries = here
            .iter()
            .flat_map(|partition| manifest.entries_of(partition));
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
        let size_here_bytes = entries.iter().map(|entry| entry.size_bytes).sum();
        Ok(Version {
            slots: SlotPrefix::new(format!("{}:", manifest.store).as_bytes()),
            manifest,
            path: path.to_owned(),
            segments,
            deltas,
            size_here_bytes,
            state,
            resident_bytes: AtomicU64::new(0),
        })
    }

    /// One that has none of its partitions here, and no folder. Where its manifest is not known, it says of itself only whose it is.
    pub fn elsewhere(store: &StoreName, manifest: Option<&Manifest>) -> Version {
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
            size_here_bytes: 0,
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

    /// Bytes of memory that the version's indexes hold.
    pub fn index_memory_bytes(&self) -> usize {
        self.here()
            .map(|segment| segment.index.memory_bytes())
            .sum()
    }

    /// Bytes of records that a block of the lowest layer was to hold, if any partition is here.
    pub(crate) fn block_size(&self) -> Option<u32> {
        let segment = self.segments.iter().flatten().next();
        segment.map(|segment| segment.index.footer.block_size)
    }

    /// Of the lowest layer's segment of a partition.
    pub(crate) fn base_footer(&self, partition: usize) -> Result<&Footer, Error> {
        let segment = self.segments[partition].as_ref();
        let segment = segment.ok_or_else(|| self.partition_not_here(partition))?;
        Ok(&segment.index.footer)
    }

    /// Bytes of memory of the directories alone.
    pub fn directory_bytes(&self) -> usize {
        self.here()
            .map(|segment| segment.index.directory_bytes())
            .sum()
    }

    /// The value of `key`, or `None` if it is absent. May wait for the disk.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if the block that would hold the key is damaged, [`Error::NotHere`] if its partition is elsewhere.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'_>>, Error> {
        if self.has_layers() {
            return self.get_layered(key);
        }
        let hash = key_hash(key);
        let Some(segment) = self.segment(key) else {
            return Err(self.not_here(key));
        };
        if let Some(found) = self.find_mapped(segment, hash, key) {
            return found;
        }
        match segment.index.locate(hash) {
            None => Ok(None),
            Some(range) => segment.read(range, hash, key),
        }
    }

    /// Straight from the map; `None` if it is not all in memory, or what was found there does not count.
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
        self.is_whole().then_some(found)
    }

    /// As [`Version::get`], but never waits for the disk: then it answers
    /// [`Attempt::WouldBlock`], and the caller asks again with `get` where waiting does no harm.
    ///
    /// # Errors
    /// As [`Version::get`].
    #[inline]
    pub fn try_get(&self, key: &[u8]) -> Result<Attempt<'_>, Error> {
        if self.has_layers() {
            return self.try_get_layered(key);
        }
        let hash = key_hash(key);
        let Some(segment) = self.segment(key) else {
            return Err(self.not_here(key));
        };
        if let Some(found) = self.find_mapped(segment, hash, key) {
            return found.map(Attempt::Ready);
        }
        match segment.index.locate(hash) {
            None => Ok(Attempt::Ready(None)),
            Some(range) => segment.try_read(range, hash, key),
        }
    }

    /// Looks up many keys, appending an answer for each, in order. Memory is fetched ahead, so that
    /// lookups overlap. May wait for the disk.
    pub fn get_many<'a>(&'a self, keys: &[&[u8]], out: &mut Vec<Result<Option<Value<'a>>, Error>>) {
        if self.has_layers() {
            return self.get_many_layered(keys, out);
        }
        let Some(some) = self.here().next().filter(|_| self.is_resident()) else {
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
            if !self.is_whole() {
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

    /// Whether lookups ask several layers.
    #[inline]
    fn has_layers(&self) -> bool {
        !self.deltas.is_empty()
    }

    /// The segments that are here: of the lowest layer in the order of their partitions, then those above.
    fn here(&self) -> impl Iterator<Item = &SegmentFile> {
        let above = self.deltas.iter().flatten();
        self.segments.iter().flatten().chain(above)
    }

    /// The segments of a partition, the newest layer first.
    ///
    /// # Errors
    /// [`Error::NotHere`].
    fn layers_of(&self, partition: usize) -> Result<impl Iterator<Item = &SegmentFile>, Error> {
        let base = self.segments[partition].as_ref();
        let base = base.ok_or_else(|| self.partition_not_here(partition))?;
        let above = self.deltas.get(partition).into_iter().flatten();
        Ok(above.chain(std::iter::once(base)))
    }

    /// The partitions that are in the folder.
    pub fn partitions_here(&self) -> Partitions {
        let all = (0..).zip(&self.segments);
        let here = all.filter_map(|(partition, segment)| segment.as_ref().map(|_| partition));
        here.collect()
    }

    pub fn has_any_partition(&self) -> bool {
        self.here().next().is_some()
    }

    /// The cluster slot of a key of the store.
    pub fn slot_of(&self, key: &[u8]) -> u16 {
        self.slots.slot(key)
    }

    /// Whether no partition is missing.
    pub fn has_all_partitions(&self) -> bool {
        self.segments.iter().all(Option::is_some)
    }

    /// Whether the partition of `key` is here: whoever has another answer for keys that are elsewhere asks first.
    #[inline]
    pub fn holds(&self, key: &[u8]) -> bool {
        self.segment(key).is_some()
    }

    /// Bytes of the segments that are here.
    pub fn size_here_bytes(&self) -> u64 {
        self.size_here_bytes
    }

    #[cold]
    fn not_here(&self, key: &[u8]) -> Error {
        self.partition_not_here(self.segment_index(key))
    }

    #[cold]
    fn partition_not_here(&self, partition: usize) -> Error {
        Error::NotHere {
            place: self.path.display().to_string(),
            partition: partition as u32,
        }
    }

    /// Whether all of it was in the page cache when last looked, and nothing was lost since: then `get` will not wait.
    #[inline]
    pub fn is_resident(&self) -> bool {
        self.state.is_resident()
    }

    /// False once a mapped file was found cut or unreadable. From then on lookups read by position, where sound blocks
    /// are answered and others are damaged. A borrowed value that was looked at before does not count then: look it up
    /// again.
    ///
    /// The system tells of lost pages, not of bytes: of a file that is cut in the middle of a page, what lay behind the cut in
    /// that page reads as zeros. A value there that was checked just before the cut, and read just after it, is not found out.
    #[inline]
    pub fn is_whole(&self) -> bool {
        self.state.is_whole()
    }

    /// What to answer for a borrowed value that was given out before its version lost pages.
    #[cold]
    pub fn lost(&self) -> Error {
        Error::corrupted(
            format!("version {}", self.path.display()),
            "a file was cut, or could not be read, while a value was taken from it",
        )
    }

    /// What [`Version::refresh_residency`] found last.
    pub fn residency(&self) -> Residency {
        let resident_bytes = self.resident_bytes.load(Ordering::Relaxed);
        Residency {
            resident_bytes,
            total_bytes: self.size_here_bytes,
        }
    }

    /// Asks the kernel what is in the page cache. It takes some 4 ms a GB: call it now and then, off
    /// the serving threads.
    pub fn refresh_residency(&self) -> Residency {
        let resident_bytes = self.here().map(SegmentFile::resident_bytes).sum();
        self.resident_bytes.store(resident_bytes, Ordering::Relaxed);
        self.state
            .set_resident(resident_bytes == self.size_here_bytes);
        self.residency()
    }
}
