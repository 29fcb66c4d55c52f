//! Row writers: a thread passes rows to a builder in chunks per bucket.

use std::sync::atomic::Ordering;

use larder_types::{ByteSize, KEY_BYTES_MAX, key_hash};

use super::spill::Chunk;
use super::{BuildOptions, Builder};
use crate::delta;
use crate::error::{Error, show_key};
use crate::manifest::partition_of;
use crate::profile::Collector;
use crate::segment::LARGE_VALUE_BYTES_MIN;

/// A larger buffer is freed after the long value that needed it.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// One thread's writer to a [`Builder`]. It must be closed: dropping it loses its rows, and the build then fails.
pub struct RowWriter<'a> {
    pub(super) builder: &'a Builder,
    pub(super) open: Vec<Chunk>,
    pub(super) chunk_bytes: usize,
    /// Buffer for a value with its delta marker.
    pub(super) marked: Vec<u8>,
    /// The profile collector of this thread's rows, if requested.
    pub(super) collector: Option<Box<Collector>>,
}

impl RowWriter<'_> {
    /// Adds a row. `seq` is its position in the input, which orders duplicates.
    ///
    /// # Errors
    /// A key or value out of bounds, or a full disk.
    pub fn push(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_row(&self.builder.options, key, value)?;
        if let Some(collector) = &mut self.collector {
            collector.add(key, value);
        }
        self.push_checked(seq, key, value)
    }

    /// Removes a key of the base. If several rows have the key, this counts as a row like any other.
    ///
    /// # Errors
    /// Like [`RowWriter::push`]; [`Error::State`] if the builder does not build a delta from changes.
    pub fn push_removed(&mut self, seq: u64, key: &[u8]) -> Result<(), Error> {
        if !self.builder.builds_delta() {
            return Err(Error::state(
                "only a delta built from changes can remove keys",
            ));
        }
        check_row(&self.builder.options, key, &[])?;
        self.add(seq, key, &[delta::REMOVED])
    }

    pub(super) fn push_checked(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if !self.builder.builds_delta() {
            return self.add(seq, key, value);
        }
        let mut marked = std::mem::take(&mut self.marked);
        marked.clear();
        marked.extend_from_slice(value);
        marked.push(delta::PRESENT);
        let added = self.add(seq, key, &marked);
        if marked.capacity() <= KEPT_BYTES_MAX {
            self.marked = marked;
        }
        added
    }

    fn add(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let options = &self.builder.options;
        let slot = if options.partitions == 1 {
            0
        } else {
            self.builder.slots.slot(key)
        };
        let partition = partition_of(slot, options.partitions);
        let hash = key_hash(key);
        let within = (u128::from(hash) * u128::from(self.builder.buckets_per_partition)) >> 64;
        let bucket = (partition * self.builder.buckets_per_partition) as usize + within as usize;
        if key.len() + value.len() > self.chunk_bytes {
            return self.push_large(bucket, seq, key, value);
        }
        let chunk = &mut self.open[bucket];
        if !chunk.has_room(key, value, self.chunk_bytes) {
            let full = std::mem::take(chunk);
            self.builder.accept_chunk(bucket, full)?;
        }
        self.open[bucket].push(seq, key, value, self.chunk_bytes);
        Ok(())
    }

    /// Passes on a row that is longer than a chunk immediately: one such row in each open chunk would take gigabytes.
    #[cold]
    fn push_large(
        &mut self,
        bucket: usize,
        seq: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Error> {
        let mut chunk = Chunk::default();
        chunk.push(seq, key, value, 0);
        self.builder.accept_chunk(bucket, chunk)
    }

    /// Passes on the last rows.
    ///
    /// # Errors
    /// A full disk.
    pub fn close(mut self) -> Result<(), Error> {
        for (bucket, chunk) in std::mem::take(&mut self.open).into_iter().enumerate() {
            if chunk.counts.rows > 0 {
                self.builder.accept_chunk(bucket, chunk)?;
            }
        }
        if let Some(collector) = self.collector.take() {
            self.builder.merge_collector(*collector);
        }
        Ok(())
    }
}

impl Drop for RowWriter<'_> {
    fn drop(&mut self) {
        if self.open.iter().any(|chunk| chunk.counts.rows > 0) {
            self.builder.record_failure(Error::state(
                "the input ended early: a row writer was dropped before it was closed",
            ));
        }
        self.builder.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn check_row(options: &BuildOptions, key: &[u8], value: &[u8]) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::limit(
            "a key",
            "is empty; a key has at least one byte",
        ));
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::limit(
            format!("key {}", show_key(key)),
            format!("has {} bytes, the limit is {KEY_BYTES_MAX}", key.len()),
        ));
    }
    let size = value.len() as u64;
    if size > options.value_bytes_max {
        return Err(Error::limit(
            format!("the value of key {}", show_key(key)),
            format!("has {size} bytes, the limit is {}", options.value_bytes_max),
        ));
    }
    if size > LARGE_VALUE_BYTES_MIN as u64 && size > options.memory.0 / 4 {
        return Err(Error::limit(
            format!("the value of key {}", show_key(key)),
            format!(
                "has {size} bytes, but a quarter of --memory is {}; increase --memory to {} or more",
                options.memory.0 / 4,
                ByteSize(size * 4)
            ),
        ));
    }
    Ok(())
}
