//! Writes the segment of one partition: first determines the layout from the contents, then writes the records in
//! order.
//!
//! The contents of a delta are known only after the rows have been looked up in the base, because rows that change
//! nothing are omitted. The remaining rows are held in chunks until then; a delta is small.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use larder_types::fault_point;

use super::bucket::Bucket;
use super::counts::RowCounts;
use super::delta_base::{Base, Changes};
use super::spill::Chunk;
use super::{Builder, CHUNK_BYTES_MAX, OnDuplicate, WriteState, WrittenSegment};
use crate::error::Error;
use crate::manifest::layer_file;
use crate::segment::{SegmentOptions, SegmentSummary, SegmentWriter};
use crate::version::files;

/// A segment under construction.
struct Open {
    path: PathBuf,
    writer: SegmentWriter<files::StreamingFile>,
}

impl Open {
    fn push(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let pushed = self.writer.push(hash, key, value);
        pushed.map_err(Error::io("write", &self.path))
    }
}

impl Builder {
    pub(super) fn write_segment(
        &self,
        partition: u32,
        work: &WriteState<'_>,
    ) -> Result<WrittenSegment, Error> {
        let (summary, changes) = match &self.options.delta_base {
            Some(on) => self.write_changes(partition, &on.base, work)?,
            None => (self.write_all(partition, work)?, Changes::default()),
        };
        work.bytes_written
            .fetch_add(summary.size_bytes, Ordering::Relaxed);
        fault_point("build.segment");
        Ok((summary, changes))
    }

    fn write_all(&self, partition: u32, work: &WriteState<'_>) -> Result<SegmentSummary, Error> {
        let mut counts = RowCounts::new(self.options.on_duplicate == OnDuplicate::Collect);
        for bucket in self.buckets_of(partition) {
            counts.add(bucket.lock().expect("no writer panicked").counts);
        }
        let mut segment = self.open(partition, counts)?;
        self.emit(partition, work, &mut |hash, key, value| {
            segment.push(hash, key, value)
        })?;
        finish(segment)
    }

    fn write_changes(
        &self,
        partition: u32,
        base: &Base,
        work: &WriteState<'_>,
    ) -> Result<WrittenSegment, Error> {
        let mut changes = Changes::default();
        let (mut held, mut open) = (Bucket::default(), Chunk::default());
        // The base's partition is not opened if the partition has no changes.
        let mut before = None;
        self.emit(partition, work, &mut |_, key, value| {
            let before = match &before {
                Some(before) => before,
                None => &*before.insert(base.partition(partition)?),
            };
            if !changes.count(before, key, value)? {
                return Ok(());
            }
            if !open.has_room(key, value, CHUNK_BYTES_MAX as usize) {
                held.add(self.store_chunk(std::mem::take(&mut open))?);
            }
            open.push(0, key, value, CHUNK_BYTES_MAX as usize);
            Ok(())
        })?;
        held.add(self.store_chunk(open)?);
        let mut segment = self.open(partition, held.counts)?;
        let mut failed = None;
        held.each_row(&self.spill, &mut |row, hash| {
            failed = segment.push(hash, row.key, row.value).err();
            failed.is_none()
        })?;
        self.memory_used
            .fetch_sub(held.memory_bytes(), Ordering::Relaxed);
        match failed {
            Some(error) => Err(error),
            None => Ok((finish(segment)?, changes)),
        }
    }

    fn open(&self, partition: u32, counts: RowCounts) -> Result<Open, Error> {
        let block_size = match &self.options.delta_base {
            Some(on) => on.base.block_size(partition)?.or(self.options.block_size),
            None => self.options.block_size,
        };
        let options = SegmentOptions {
            compression: self.options.compression,
            block_size: block_size.unwrap_or(
                self.options
                    .compression
                    .block_size(self.options.segment_format),
            ),
            filter: self.options.filter,
            format: self.options.segment_format,
            is_delta: self.builds_delta(),
        };
        let plan = counts.plan(partition, self.options.partitions);
        let path = self.out.path.join(layer_file(partition, self.layer()));
        let file = files::StreamingFile::create(&path)?;
        let writer = SegmentWriter::new(file, options, plan).map_err(Error::io("write", &path))?;
        Ok(Open { path, writer })
    }
}

fn finish(segment: Open) -> Result<SegmentSummary, Error> {
    let written = segment.writer.finish();
    let (file, summary) = written.map_err(Error::io("write", &segment.path))?;
    file.finish(&segment.path)?;
    Ok(summary)
}
