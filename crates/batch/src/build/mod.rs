//! Builds a version from rows in any order, within a memory limit.
//!
//! ```text
//! rows ─ RowWriter (one per thread) ─> chunks per bucket ─> memory, then the spill file
//!                                                              │ finish: partitions in parallel
//!                 segment <─ SegmentWriter <─ duplicates <─ sort one bucket by (hash, key, seq)
//! ```
//!
//! A *bucket* is a range of hashes within a partition. Rows are distributed over buckets as they arrive. Chunks stay
//! in memory until three quarters of it are used; later ones are written to the spill file. Each bucket is then
//! loaded and sorted separately, in hash order, and appended to its partition's segment. A row is therefore copied to
//! memory once and to disk at most twice, and is compared only with rows of its bucket.
//!
//! One key may have more rows than all others together (`heavy.rs`).
//!
//! 1. The output depends only on the rows, their sequence numbers and the options, not on threads, memory or timing.
//! 2. Until `finish` returns `Ok`, the folder has no manifest. On an error or a drop, the written files are removed.

mod bucket;
mod collect;
mod compact;
mod counts;
mod delta_base;
mod heavy;
mod options;
mod out_folder;
mod parts;
mod row_writer;
mod segment;
mod spill;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use larder_types::{ByteSize, PartitionId, SlotPrefix, fault_point};

use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry, layer_file, slots_of};
use crate::profile::{Collector, Shape};
use crate::segment::SegmentSummary;
use crate::version::files;
use bucket::{Bucket, Duplicates, Emit, SortLimits};
pub use collect::CollectAs;
pub use compact::Compaction;
use delta_base::Comparison;
pub use delta_base::{Base, Changes, DeltaBase, OpenPartition};
use options::MEMORY_MIN;
pub use options::{BuildOptions, OnDuplicate};
use out_folder::OutFolder;
pub use out_folder::clear_remains;
pub use parts::BuiltSegment;
pub use row_writer::RowWriter;
use spill::{Chunk, Spill, StoredChunk};

/// The progress of `finish`.
#[derive(Debug, Clone, Copy, Default)]
pub struct BuildProgress {
    pub records_done: u64,
    pub records_total: u64,
    pub bytes_written: u64,
}

/// See the module.
pub struct Builder {
    options: BuildOptions,
    slots: SlotPrefix,
    buckets_per_partition: u32,
    out: OutFolder,
    buckets: Vec<Mutex<Bucket>>,
    spill: Spill,
    memory_used: AtomicU64,
    memory_for_chunks: u64,
    writers: AtomicUsize,
    first_error: Mutex<Option<Error>>,
    /// Receives the differences from the base, if the rows are the complete new version.
    changes: Option<Box<Builder>>,
    /// The division of values into columns, if a profile is requested.
    shape: Option<Shape>,
    /// The merged collectors of the closed writers.
    collector: Mutex<Option<Collector>>,
}

/// Maximum chunk size, except for a chunk with a single longer row.
const CHUNK_BYTES_MAX: u64 = 64 << 10;

impl Builder {
    /// Prepares a build into the folder `out`, and creates the folder if necessary.
    ///
    /// # Errors
    /// For invalid options, and for a folder that is not empty, is in use by another build, or is not writable.
    pub fn new(options: BuildOptions, out: &Path) -> Result<Builder, Error> {
        let options = options.with_base_settings()?;
        Builder::with_folder(options, OutFolder::create(out)?)
    }

    fn with_folder(mut options: BuildOptions, folder: OutFolder) -> Result<Builder, Error> {
        let changes = match options.delta_base.clone().filter(|on| on.is_full) {
            None => None,
            Some(on) => {
                let memory = ByteSize((options.memory.0 / 8).max(MEMORY_MIN));
                let rest = options.memory.0.saturating_sub(memory.0);
                options.memory = ByteSize(rest.max(MEMORY_MIN));
                let of_changes = BuildOptions {
                    delta_base: Some(DeltaBase {
                        is_full: false,
                        ..on
                    }),
                    memory,
                    on_duplicate: OnDuplicate::Error,
                    ..options.clone()
                };
                let changes =
                    Builder::with_folder(of_changes.with_base_settings()?, folder.shared())?;
                Some(Box::new(changes))
            }
        };
        let of_changes = options.delta_base.is_some() && changes.is_none();
        let spill = Spill::create(options.temp_dir.as_deref().unwrap_or(&folder.path))?;
        const BUCKETS: u32 = 512;
        let buckets_per_partition = (BUCKETS / options.partitions).max(1);
        let bucket_count = options.partitions * buckets_per_partition;
        Ok(Builder {
            slots: SlotPrefix::new(format!("{}:", options.store).as_bytes()),
            buckets_per_partition,
            out: folder,
            buckets: (0..bucket_count).map(|_| Mutex::default()).collect(),
            spill,
            memory_used: AtomicU64::new(0),
            memory_for_chunks: options.memory.0 / 4 * 3,
            writers: AtomicUsize::new(0),
            first_error: Mutex::new(None),
            shape: match (&options.built, options.profile) {
                // The rows of a delta are only the changes, so they do not characterize the complete version.
                (Some(built), true) if options.segment_format > 1 && !of_changes => {
                    Shape::from_built(built)
                }
                _ => None,
            },
            collector: Mutex::default(),
            changes,
            options,
        })
    }

    /// Returns a writer for one thread. Up to 16 threads may each have one.
    pub fn writer(&self) -> RowWriter<'_> {
        self.writers.fetch_add(1, Ordering::Relaxed);
        let share = self.options.memory.0
            / 8
            / (self.buckets.len() as u64 * self.options.threads.max(2) as u64);
        RowWriter {
            builder: self,
            open: self.buckets.iter().map(|_| Chunk::default()).collect(),
            chunk_bytes: share.clamp(512, CHUNK_BYTES_MAX) as usize,
            marked: Vec::new(),
            collector: self
                .shape
                .as_ref()
                .map(|shape| Box::new(Collector::new(shape.clone()))),
        }
    }

    /// Returns whether the rows are changes to a base.
    fn builds_delta(&self) -> bool {
        self.options.delta_base.is_some() && self.changes.is_none()
    }

    /// Writes the segments of the partitions that have rows, but no manifest. Other builders write the other
    /// partitions, and [`Manifest::from_parts`] combines all parts. Also returns the collected data for the version's
    /// profile, if requested.
    ///
    /// # Errors
    /// Like [`Builder::finish`].
    pub fn finish_parts(
        mut self,
        progress: &(dyn Fn(BuildProgress) + Sync),
    ) -> Result<(Vec<BuiltSegment>, Option<Collector>), Error> {
        self.check_writers()?;
        let has_rows: Vec<bool> = (self.buckets.chunks_mut(self.buckets_per_partition as usize))
            .map(|buckets| {
                let mut buckets = buckets.iter_mut();
                buckets.any(|bucket| bucket.get_mut().expect("no writer panicked").counts.rows > 0)
            })
            .collect();
        let parts = self.write_parts(&|partition| has_rows[partition], progress)?;
        let collected = self.collector.get_mut().expect("no writer panicked").take();
        self.spill.remove();
        self.out.keep();
        Ok((parts, collected))
    }

    /// Like [`Builder::finish_parts`], for the partitions that `is_wanted` selects, even if they have no rows.
    /// Returns only the parts.
    ///
    /// # Errors
    /// Like [`Builder::finish`].
    pub fn finish_selected_parts(
        mut self,
        is_wanted: &(dyn Fn(usize) -> bool + Sync),
        progress: &(dyn Fn(BuildProgress) + Sync),
    ) -> Result<Vec<BuiltSegment>, Error> {
        self.check_writers()?;
        let parts = self.write_parts(is_wanted, progress)?;
        self.spill.remove();
        self.out.keep();
        Ok(parts)
    }

    fn check_writers(&mut self) -> Result<(), Error> {
        assert_eq!(
            self.writers.load(Ordering::SeqCst),
            0,
            "every RowWriter is closed before finish"
        );
        match self
            .first_error
            .get_mut()
            .expect("no writer panicked")
            .take()
        {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Sorts, writes the segments and the manifest, and makes them durable.
    ///
    /// # Errors
    /// A duplicate key, a full disk, or an earlier error of a writer. Nothing is left in `out`.
    pub fn finish(self, progress: &(dyn Fn(BuildProgress) + Sync)) -> Result<Manifest, Error> {
        self.finish_checked(progress, &|_| Ok(()))
    }

    /// Like [`Builder::finish`], but calls `judge` before writing the manifest, and fails if it returns an error.
    ///
    /// # Errors
    /// Those of [`Builder::finish`] and those of `judge`. Nothing is left in `out`.
    pub fn finish_checked(
        mut self,
        progress: &(dyn Fn(BuildProgress) + Sync),
        judge: &dyn Fn(&Manifest) -> Result<(), Error>,
    ) -> Result<Manifest, Error> {
        self.check_writers()?;
        fault_point("build.sorted");
        let parts = self.write_parts(&|_| true, progress)?;
        fault_point("build.segments");
        let mut built = self.options.built.take();
        if let (Some(built), Some(shape)) = (&mut built, self.shape.take()) {
            let collected = self.collector.get_mut().expect("no writer panicked").take();
            let collector = collected.unwrap_or_else(|| Collector::new(shape));
            built.profile = Some(collector.finish(&built.key));
        }
        let manifest = Manifest::from_parts(&self.options, built, parts)?;
        judge(&manifest)?;
        let bytes = manifest.encode();
        self.spill.remove();
        fault_point("build.manifest");
        files::write_durably(&self.out.path.join(Manifest::FILE), &bytes)?;
        self.out.keep();
        fault_point("build.done");
        Manifest::decode("just written", &bytes)
    }

    fn layer(&self) -> usize {
        let on = self.options.delta_base.as_ref();
        on.map_or(0, |on| on.base.manifest().layer_count())
    }

    fn part(&self, partition: u32, (summary, changes): WrittenSegment) -> BuiltSegment {
        BuiltSegment {
            changes: self.builds_delta().then_some(changes),
            key_bytes: summary.key_bytes,
            value_bytes: summary.value_bytes,
            entry: SegmentEntry {
                file: layer_file(partition, self.layer()),
                partition: PartitionId(partition),
                slots: slots_of(partition, self.options.partitions),
                size_bytes: summary.size_bytes,
                record_count: summary.record_count,
                digest: summary.digest,
            },
        }
    }

    /// Writes the segments of the selected partitions and returns them in order.
    fn write_parts(
        &self,
        is_wanted: &(dyn Fn(usize) -> bool + Sync),
        progress: &(dyn Fn(BuildProgress) + Sync),
    ) -> Result<Vec<BuiltSegment>, Error> {
        if let Some(changes) = &self.changes {
            let compare = |partition, work: &WriteState<'_>| self.compare(partition, changes, work);
            self.for_each_partition(is_wanted, progress, &compare)?;
            self.spill.remove();
            return changes.write_parts(is_wanted, progress);
        }
        let write = |partition, work: &WriteState<'_>| self.write_segment(partition, work);
        let done = self.for_each_partition(is_wanted, progress, &write)?;
        let done = done.into_iter();
        Ok(done.map(|(at, written)| self.part(at, written)).collect())
    }

    /// Runs `one` for each selected partition on several threads, and returns the results in order.
    fn for_each_partition<T: Send>(
        &self,
        is_wanted: &(dyn Fn(usize) -> bool + Sync),
        progress: &(dyn Fn(BuildProgress) + Sync),
        one: &(dyn Fn(u32, &WriteState<'_>) -> Result<T, Error> + Sync),
    ) -> Result<Vec<(u32, T)>, Error> {
        let partitions = self.options.partitions;
        let threads = self.options.threads.min(partitions as usize);
        let work = WriteState {
            next: AtomicUsize::new(0),
            records_done: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            records_total: self
                .buckets
                .iter()
                .map(|bucket| bucket.lock().expect("no writer panicked").counts.rows)
                .sum(),
            // An eighth of the memory is for sorting buckets. A row's index entry and the output's buffers add to its
            // bytes.
            bucket_bytes_max: (self.options.memory.0 / 8 / threads as u64).max(1 << 20),
            heavy_key_lock: Mutex::new(()),
            progress,
        };
        let made: Vec<Mutex<Option<T>>> = (0..partitions).map(|_| Mutex::new(None)).collect();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let partition = work.next.fetch_add(1, Ordering::Relaxed);
                        if partition >= partitions as usize || self.has_failed() {
                            return;
                        }
                        if !is_wanted(partition) {
                            continue;
                        }
                        match one(partition as u32, &work) {
                            Ok(done) => *made[partition].lock().expect("ours alone") = Some(done),
                            Err(error) => self.record_failure(error),
                        }
                    }
                });
            }
        });
        if let Some(error) = self.first_error.lock().expect("no thread panicked").take() {
            return Err(error);
        }
        let made = (0..).zip(made).filter_map(|(partition, done)| {
            Some((partition, done.into_inner().expect("no thread panicked")?))
        });
        Ok(made.collect())
    }

    fn compare(
        &self,
        partition: u32,
        changes: &Builder,
        work: &WriteState<'_>,
    ) -> Result<(), Error> {
        let on = self
            .options
            .delta_base
            .as_ref()
            .expect("there is a base to compare with");
        let mut comparison = Comparison::new(&on.base, partition, changes.writer())?;
        self.emit(partition, work, &mut |hash, key, value| {
            comparison.push(hash, key, value)
        })?;
        comparison.finish()
    }

    fn buckets_of(&self, partition: u32) -> &[Mutex<Bucket>] {
        let first = (partition * self.buckets_per_partition) as usize;
        &self.buckets[first..first + self.buckets_per_partition as usize]
    }

    /// Emits the records of a partition in order, with duplicates resolved.
    fn emit(
        &self,
        partition: u32,
        work: &WriteState<'_>,
        each: &mut Emit<'_>,
    ) -> Result<(), Error> {
        let duplicates = Duplicates {
            policy: self.options.on_duplicate,
            collect_as: self.options.collect_as,
            is_marked: self.builds_delta(),
            value_bytes_max: self.options.value_bytes_max,
            // The array needs as much again, and twice that while it is written.
            collect_bytes_max: self.options.memory.0 / 8,
        };
        let room = SortLimits {
            bytes_max: work.bucket_bytes_max,
            heavy_key_lock: &work.heavy_key_lock,
        };
        let mut records_since_check = 0;
        for bucket in self.buckets_of(partition) {
            let bucket = std::mem::take(&mut *bucket.lock().expect("no writer panicked"));
            let (rows, chunk_bytes) = (bucket.counts.rows, bucket.memory_bytes());
            bucket.emit(&self.spill, duplicates, room, &mut |hash, key, value| {
                records_since_check += 1 + value.len() / 1024;
                if records_since_check >= 4096 {
                    records_since_check = 0;
                    if (self.options.is_cancelled)() {
                        return Err(Error::Cancelled);
                    }
                }
                each(hash, key, value)
            })?;
            self.memory_used.fetch_sub(chunk_bytes, Ordering::Relaxed);
            let records_done = work.records_done.fetch_add(rows, Ordering::Relaxed) + rows;
            (work.progress)(BuildProgress {
                records_done,
                records_total: work.records_total,
                bytes_written: work.bytes_written.load(Ordering::Relaxed),
            });
            if self.has_failed() {
                return Err(Error::Cancelled);
            }
        }
        Ok(())
    }

    /// Merges the statistics of a closed writer.
    fn merge_collector(&self, collector: Collector) {
        let mut all = self.collector.lock().expect("no thread panicked");
        match &mut *all {
            Some(all) => all.merge(collector),
            None => *all = Some(collector),
        }
    }

    /// Stores a full chunk: in memory while there is room, else in the spill file.
    fn accept_chunk(&self, bucket: usize, chunk: Chunk) -> Result<(), Error> {
        let held = self.store_chunk(chunk)?;
        self.buckets[bucket]
            .lock()
            .expect("no writer panicked")
            .add(held);
        Ok(())
    }

    fn store_chunk(&self, chunk: Chunk) -> Result<StoredChunk, Error> {
        let bytes = chunk.bytes.len() as u64;
        let used = self.memory_used.fetch_add(bytes, Ordering::Relaxed);
        // More values of this size may be in memory: one that is being read, and one in each open chunk.
        let limit = match bytes {
            0..=CHUNK_BYTES_MAX => self.memory_for_chunks,
            _ => self.memory_for_chunks / 2,
        };
        if used + bytes <= limit {
            return Ok(chunk.into_memory());
        }
        self.memory_used.fetch_sub(bytes, Ordering::Relaxed);
        self.spill.write(chunk)
    }

    fn has_failed(&self) -> bool {
        self.first_error
            .lock()
            .expect("no thread panicked")
            .is_some()
    }

    /// Records the first failure; later ones are its consequences.
    fn record_failure(&self, error: Error) {
        self.first_error
            .lock()
            .expect("no thread panicked")
            .get_or_insert(error);
    }
}

/// A written segment, and its changes if it belongs to a delta.
type WrittenSegment = (SegmentSummary, Changes);

struct WriteState<'a> {
    next: AtomicUsize,
    records_done: AtomicU64,
    bytes_written: AtomicU64,
    records_total: u64,
    bucket_bytes_max: u64,
    heavy_key_lock: Mutex<()>,
    progress: &'a (dyn Fn(BuildProgress) + Sync),
}
