//! The record of the newest log: identifies the last log, and records whether the journal was closed in order.
//!
//! A truncated or removed log looks like one whose last frames were lost in a crash. The record distinguishes them:
//! after an orderly close the last log must be present and sealed, with the recorded size.
//!
//! ```text
//! newest-log    0  64  record of the current log; written by each start and each rotation
//!             512  64  record of the last log of a closed journal, with its size; zero before
//! ```
//!
//! 1. A record is written only after its log has its final name, and that of a closed journal only after its log is
//!    sealed and durable. A record may therefore be older than the newest log, but never newer.
//! 2. Records are overwritten in place, which needs no space on a full disk. A record with an invalid checksum is
//!    ignored: a crash may have interrupted its write.
//! 3. The file is optional: without it, as in journals of earlier versions, nothing is checked.

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
/// In a different sector.
const CLOSED_AT: u64 = 512;
const FILE_SIZE: usize = 1024;

/// One record.
///
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
    pub fn new(header: &FileHeader, closed_size: Option<u64>) -> NewestLog {
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
        let is_valid = bytes.len() == RECORD_SIZE
            && &bytes[..8] == MAGIC
            && u64_at(bytes, 56) == xxh3_64(&bytes[..56]);
        is_valid.then(|| NewestLog {
            journal: u64_at(bytes, 16),
            number: u64_at(bytes, 24),
            file: u64_at(bytes, 32),
            closed_size: (u32_at(bytes, 8) == 1).then(|| u64_at(bytes, 40)),
        })
    }

    /// Returns the newest record in a journal's folder, if there is one.
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
        // Of two records of the same log, that of the close is newer.
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
                        "the journal was closed in order when this log had {size} bytes, and it has no complete frame there now"
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Creates the file with the record of a log before that log is written.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(&self, disk: &dyn Disk, folder: &Path) -> Result<(), Error> {
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
