//! Values on disk: long values are in a memory-mapped file, and the page cache keeps the used ones in memory.
//!
//! ```text
//!  a row ─► head, in memory: counts, length ─► cell, in the file: the bytes
//!
//!  file     extents, each mapped completely     at least 64 MiB each; they never move, nor do values
//!  extent   chunks of 256 KiB                   all cells of a chunk have one size
//!  cell     eight sizes per power of two        at most an eighth larger than the value
//! ```
//!
//! The file is never the only copy of a value: it has no name and ends with the process. The journal holds what must
//! survive the process.
//!
//! Read `cells` (allocation, without I/O) and then `file`.

mod cells;
mod file;

use std::sync::Arc;

pub(crate) use cells::Cell;
pub use file::ValueFile;

use crate::value::{SMALL, Shared, Value};

/// The file for long values, and the length from which values are stored in it.
#[derive(Debug, Clone)]
pub struct ValuesOnDisk {
    pub file: Arc<ValueFile>,
    /// Values of at least this many bytes are stored in the file. Values of up to 16 bytes never are.
    pub min_bytes: usize,
}

impl ValuesOnDisk {
    /// Stores a value in the file if it is long enough and the disk is not full; else in memory.
    pub fn value(&self, bytes: &[u8]) -> Value {
        self.shared(bytes)
            .map_or_else(|| Value::new(bytes), Value::from_shared)
    }

    #[inline]
    pub(crate) fn shared(&self, bytes: &[u8]) -> Option<Shared> {
        if bytes.len() < self.min_bytes || bytes.len() <= SMALL {
            return None;
        }
        Shared::on_disk(&self.file, bytes)
    }
}
