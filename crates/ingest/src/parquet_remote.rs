//! A Parquet file in an object store or in HDFS: copies only its footer and the required columns to a sparse
//! temporary file.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_remote::Location;
use parquet::arrow::ProjectionMask;
use parquet::file::metadata::ParquetMetaData;

use crate::error::Fault;

/// The size of the first copy: most footers fit.
const TAIL_BYTES: u64 = 64 << 10;

/// Ranges closer than this are requested together.
const GAP_BYTES: u64 = 256 << 10;

pub(crate) struct RemoteFile<'a> {
    location: &'a Location,
    size: u64,
    file: File,
    bytes_read: &'a AtomicU64,
}

impl<'a> RemoteFile<'a> {
    /// Copies the end of the file.
    pub fn new(location: &'a Location, bytes_read: &'a AtomicU64) -> Result<Self, Fault> {
        let refused = |e| Fault::file(format!("it cannot be opened: {}", reason(&e)));
        let size = location.size_blocking().map_err(refused)?;
        let file = larder_remote::temp_file().and_then(|file| file.set_len(size).map(|()| file));
        let file = file.map_err(|e| Fault::file(format!("it cannot be copied: {e}")))?;
        let elsewhere = RemoteFile {
            location,
            size,
            file,
            bytes_read,
        };
        elsewhere.copy(slice::from_ref(&(size.saturating_sub(TAIL_BYTES)..size)))?;
        Ok(elsewhere)
    }

    pub fn file(&self) -> Result<File, Fault> {
        self.file
            .try_clone()
            .map_err(|e| Fault::file(format!("it cannot be read: {e}")))
    }

    /// Copies a footer of this size, except for what was copied with the end of the file.
    pub fn copy_footer(&self, length: u64) -> Result<(), Fault> {
        let begin = self.size.saturating_sub(length.saturating_add(8));
        let tail = self.size.saturating_sub(TAIL_BYTES);
        if begin >= tail {
            return Ok(());
        }
        self.copy(slice::from_ref(&(begin..tail)))
    }

    /// Copies the columns of all row groups.
    pub fn copy_columns(&self, metadata: &ParquetMetaData, roots: &[usize]) -> Result<(), Fault> {
        let schema = metadata.file_metadata().schema_descr();
        let mask = ProjectionMask::roots(schema, roots.iter().copied());
        let mut ranges = Vec::new();
        for group in metadata.row_groups() {
            if group.num_rows() == 0 {
                continue;
            }
            for (at, column) in group.columns().iter().enumerate() {
                let (begin, length) = column.byte_range();
                let end = begin.checked_add(length).filter(|end| *end <= self.size);
                let end = end.ok_or_else(|| {
                    Fault::file("it is damaged: a column chunk is outside the file")
                })?;
                if mask.leaf_included(at) {
                    ranges.push(begin..end);
                }
            }
        }
        self.copy(&join_ranges(ranges))
    }

    fn copy(&self, ranges: &[Range<u64>]) -> Result<(), Fault> {
        let copied = self.location.read_ranges(self.size, ranges, |at, bytes| {
            self.bytes_read
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.file.write_all_at(bytes, at)
        });
        copied.map_err(|e| Fault::file(format!("it cannot be read: {}", reason(&e))))
    }
}

/// Returns only the reason: the caller adds the location.
fn reason(error: &larder_remote::Error) -> String {
    crate::input::without_name(error)
}

/// Sorts ranges and joins close ones.
fn join_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut all: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match all.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(GAP_BYTES) => {
                last.end = last.end.max(range.end);
            }
            _ => all.push(range),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{GAP_BYTES, join_ranges};

    #[test]
    fn nearby_ranges_are_requested_together() {
        let far = 20 + GAP_BYTES + 1;
        let ranges = vec![far..far + 1, 0..10, 15..20, 4..6];
        assert_eq!(join_ranges(ranges), [0..20, far..far + 1]);
    }
}
