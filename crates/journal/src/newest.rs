//! The record of the newest log: which log is the last one, and whether the journal was closed in order.
//!
//! A log that was cut, or removed, looks like one whose last frames a crash tore off. The record tells them apart: after an orderly
//! close the last log must be there, sealed, with the size that the record has.
//!
//! ```text
//! newest-log    0  64  record of the log that is being written; written by each start and each rotation
//!             512  64  record of the last log of a journal that was closed, with its size; zero before
//! ```
//!
//! 1. A record is written only after its log has its name, and that of a closed journal after its log is sealed and durable. So a
//!    record may be older than the newest log, and never newer.
//! 2. Records are overwritten in place, which needs no room on a full disk. One whose checksum does not fit counts as none: a
//!    crash may have cut its writing short.
//! 3. The file is not needed: without it, as in journals of earlier builds, nothing is checked.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::disk::{Disk, DiskFile};
use crate::error::Error;
use crate::folder::{log_path, temporary};
use crate::format::{FileHeader, u32_at, u64_at};
use crate::scan::{Ending, LogScan};

const NAME: &str = "newest-log";
const MAGIC: &[u8; 8] = b"LARDNEW1";
const RECORD_SIZE: usize = 64;
/// In a sector of its own.
const CLOSED_AT: u64 = 512;
const FILE_SIZE: usize = 1024;

/// ```text
///  0  8  LARDNEW1                      24  8  number of the log
///  8  4  1 if the journal was closed   32  8  id of the log's file
/// 12  4  zero                          40  8  size of the log, if it was closed; else 0
/// 16  8  id of the journal             48  8  zero
///                                      56  8  XXH3-64 of bytes 0 to 56
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewestLog {
    journal: u64,
    number: u64,
    file: u64,
    /// The log's size when the journal was closed in order; `None` while it is being written.
    closed_size: Option<u64>,
}

impl NewestLog {
    pub fn of(header: &FileHeader, closed_size: Option<u64>) -> NewestLog {
        NewestLog {
            journal: header.journal,
            number: header.number,
            file: header.id,
            closed_size,
        }
    }

    fn encode(&self) -> [u8; RECORD_SIZE] {
        let mut bytes = [0; RECORD_SIZE];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&u32::from(self.closed_size.is_some()).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.journal.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.file.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.closed_size.unwrap_or(0).to_le_bytes());
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<NewestLog> {
        let is_whole = bytes.len() == RECORD_SIZE
            && &bytes[..8] == MAGIC
            && u64_at(bytes, 56) == xxh3_64(&bytes[..56]);
        is_whole.then(|| NewestLog {
            journal: u64_at(bytes, 16),
            number: u64_at(bytes, 24),
            file: u64_at(bytes, 32),
            closed_size: (u32_at(bytes, 8) == 1).then(|| u64_at(bytes, 40)),
        })
    }

    /// The newest record in a journal's folder, if there is one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(disk: &dyn Disk, folder: &Path) -> Result<Option<NewestLog>, Error> {
        let path = path(folder);
        let file = match disk.open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("open", &path)(error)),
        };
        let record = |at: u64| {
            let mut bytes = [0; RECORD_SIZE];
            let read = file.read_at(at, &mut bytes);
            let read = read.map_err(Error::io("read", &path))?;
            Ok(NewestLog::decode(&bytes[..read]))
        };
        let (written, closed) = (record(0)?, record(CLOSED_AT)?);
        // Of the same log the one of the close is the later one.
        Ok([written, closed]
            .into_iter()
            .flatten()
            .max_by_key(|record| record.number))
    }

    /// Compares the record with the logs that a start found; `last` is the last one of them.
    ///
    /// # Errors
    /// [`Error::Corrupted`]: the newest log is missing, or was changed after the journal was closed.
    pub fn check(&self, folder: &Path, last: Option<&LogScan>) -> Result<(), Error> {
        let path = log_path(folder, self.number);
        let last = last.filter(|last| last.header.number >= self.number);
        let Some(last) = last else {
            return Err(Error::corrupted(
                &path,
                0,
                "the file is missing, and it was the newest log",
            ));
        };
        let is_same = (last.header.journal, last.header.number, last.header.id)
            == (self.journal, self.number, self.file);
        match self.closed_size {
            Some(size) if is_same && (last.ending != Ending::Sealed || last.end != size) => {
                Err(Error::corrupted(
                    &path,
                    last.end,
                    format!(
                        "the journal was closed in order when this log had {size} bytes, and no whole frame is there now"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Writes the record of a log that is about to be written, in a new file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin(&self, disk: &dyn Disk, folder: &Path) -> Result<(), Error> {
        let path = path(folder);
        let temporary = temporary(&path);
        let mut bytes = [0; FILE_SIZE];
        bytes[..RECORD_SIZE].copy_from_slice(&self.encode());
        let write = || {
            let file = disk.create(&temporary)?;
            file.write_at(0, &[&bytes])?;
            file.sync()?;
            disk.rename(&temporary, &path)?;
            disk.sync_folder(folder)
        };
        write().map_err(Error::io("write", &path))
    }

    /// Overwrites the record in place and makes it durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, disk: &dyn Disk, folder: &Path) -> Result<(), Error> {
        let at = match self.closed_size {
            None => 0,
            Some(_) => CLOSED_AT,
        };
        let path = path(folder);
        let write = || {
            let file: Box<dyn DiskFile> = disk.open(&path)?;
            file.write_at(at, &[&self.encode()])?;
            file.sync()
        };
        write().map_err(Error::io("write", &path))
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}
