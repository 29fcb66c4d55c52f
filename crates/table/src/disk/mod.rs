//! Values on disk: long values in a file that is mapped, so that the system keeps in memory what of them is used.
//!
//! ```text
//!  a row ─► head, in memory: counts, length ─► cell, in the file: the bytes
//!
//!  file     extents, each mapped whole          grow by 64 MiB; they never move, so neither does a value
//!  extent   chunks of 256 KiB                   all cells of a chunk are of one size
//!  cell     the next of eight sizes a doubling  at most an eighth more than the value
//! ```
//!
//! The file is nobody's only copy: it has no name from the moment that it is there, and ends with the process. What must outlast the process is in
//! the journal.
//!
//! Read `cells` (which parts of the file are in use; knows no file) and then `file`.

mod cells;
mod file;

use std::sync::Arc;

pub(crate) use cells::Cell;
pub use file::ValueFile;

use crate::value::{SMALL, Shared, Value};

/// Which values are kept in which file.
#[derive(Debug, Clone)]
pub struct ValuesOnDisk {
    pub file: Arc<ValueFile>,
    /// Values of at least so many bytes, and of more than 16.
    pub from: usize,
}

impl ValuesOnDisk {
    /// A value in the file, if it is long enough and the disk has room; else in memory.
    pub fn value(&self, bytes: &[u8]) -> Value {
        self.shared(bytes)
            .map_or_else(|| Value::new(bytes), Value::from_shared)
    }

    #[inline]
    pub(crate) fn shared(&self, bytes: &[u8]) -> Option<Shared> {
        if bytes.len() < self.from || bytes.len() <= SMALL {
            return None;
        }
        Shared::on_disk(&self.file, bytes)
    }
}
