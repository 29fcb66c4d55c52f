//! Recovery: reads the rows from the newest snapshot and then from the logs with its number and above.
//!
//! ```text
//!   list ──> snapshot n ──> log n ──> log n+1 ──> ... ──> last log ──(torn tail cut)──> sealed ──> new log
//!            `replay` only reads                          `repair` writes, after everything was read
//! ```
//!
//! 1. Only the last log may have a torn tail.
//! 2. Any other gap or damage is an error, before anything on disk is changed.
//! 3. Everything replayed is durable before the journal opens, because a killed process may have left frames only in
//!    the kernel's memory. A sync is not enough: if one failed in that process, the kernel may show bytes that it no
//!    longer tries to write, and a later sync succeeds without them. Bytes that the log does not mark as durable are
//!    therefore written again before the sync (except under [`Fsync::No`], which guarantees nothing about them).
//! 4. A journal that was closed in order has no torn tail: `newest_log` records that, and the number of the newest log.
//! 5. Nothing is ever appended to a log of an earlier start, so bytes after a cut cannot be mistaken for new ones.

use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile, RealDisk};
use crate::entry::Entry;
use crate::error::Error;
use crate::fault::fault_point;
use crate::folder::{Listing, log_path, snapshot_path};
use crate::format::{FileHeader, FileKind, FrameHeader, FrameKind};
use crate::journal::Fsync;
use crate::newest_log::NewestLog;
use crate::part_assembler::PartAssembler;
use crate::scan::{Ending, LogScan, scan_log, scan_snapshot};

/// The result of reading the journal at a start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Recovery {
    /// True if the folder had no journal.
    pub is_new: bool,
    /// Rows that were read from the snapshot.
    pub snapshot_rows: u64,
    /// Entries that were read from logs.
    pub log_entries: u64,
    /// The size of the snapshot's file.
    pub snapshot_bytes: u64,
    /// The total size of the logs.
    pub log_bytes: u64,
    /// The number of logs that were read.
    pub logs: u64,
    /// The torn tail that was truncated, if there was one.
    pub torn_tail: Option<TornTail>,
}

/// A torn tail: bytes after the last complete frame of a log that was not closed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    pub path: PathBuf,
    pub offset: u64,
    pub bytes: u64,
}

/// The results of a replay that the writer needs to continue.
#[derive(Debug)]
pub(crate) struct ReplayResult {
    pub recovery: Recovery,
    pub journal: Option<u64>,
    pub next_sequence: u64,
    pub snapshot: Option<u64>,
    pub last_log: Option<LogScan>,
    /// Batches that will never be ended.
    pub open_batches: Vec<u64>,
}

/// Passes all entries of the journal to `visit`, in order, and changes nothing.
///
/// After an error, the passed entries must be discarded.
///
/// # Errors
/// [`Error::Corrupted`] with the file and offset; [`Error::Io`].
pub fn replay(
    disk: &dyn Disk,
    folder: &Path,
    visit: &mut dyn FnMut(Entry<'_>),
) -> Result<Recovery, Error> {
    Ok(read_journal(disk, folder, visit)?.recovery)
}

/// Returns the total size of the files that a start reads from a journal's folder, as far as it is accessible: for
/// progress reports.
pub fn size_on_disk(folder: &Path) -> u64 {
    let Ok(listing) = Listing::read(&RealDisk, folder) else {
        return 0;
    };
    let snapshot = listing.snapshots.last().copied();
    let logs = listing.logs.iter().filter(|log| Some(**log) >= snapshot);
    let paths = snapshot.map(|number| snapshot_path(folder, number));
    let paths = paths
        .into_iter()
        .chain(logs.map(|number| log_path(folder, *number)));
    paths
        .map(|path| std::fs::metadata(path).map_or(0, |file| file.len()))
        .sum()
}

pub(crate) fn read_journal(
    disk: &dyn Disk,
    folder: &Path,
    visit: &mut dyn FnMut(Entry<'_>),
) -> Result<ReplayResult, Error> {
    let listing = Listing::read(disk, folder)?;
    let snapshot = listing.snapshots.last().copied();
    let first_log = snapshot.unwrap_or(1);
    let logs: Vec<u64> = listing
        .logs
        .iter()
        .copied()
        .filter(|number| *number >= first_log)
        .collect();
    let newest = NewestLog::read(disk, folder)?;
    let mut found = ReplayResult {
        recovery: Recovery::default(),
        journal: None,
        next_sequence: 1,
        snapshot,
        last_log: None,
        open_batches: Vec::new(),
    };
    if logs.is_empty() && snapshot.is_none() {
        if let Some(newest) = newest {
            newest.check(folder, None)?;
        }
        found.recovery.is_new = true;
        return Ok(found);
    }
    for (expected, number) in (first_log..).zip(&logs) {
        if *number != expected {
            return Err(missing_log(folder, expected));
        }
    }
    if logs.is_empty() {
        return Err(missing_log(folder, first_log));
    }

    let mut parts = PartAssembler::default();
    let mut seen_sequence = 0;
    if let Some(number) = snapshot {
        let path = snapshot_path(folder, number);
        let file = disk.open(&path).map_err(Error::io("open", &path))?;
        let (header, totals) = scan_snapshot(&path, file.as_ref(), visit)
            .map_err(|error| add_advice(error, &listing, number))?;
        found.check_file(&path, &header, number)?;
        found.recovery.snapshot_rows = totals.rows;
        found.recovery.snapshot_bytes = file.size().map_err(Error::io("read", &path))?;
        found.next_sequence = totals.log_first_sequence;
        seen_sequence = totals.seen_sequence;
    }
    for (index, number) in logs.iter().enumerate() {
        let path = log_path(folder, *number);
        let file = disk.open(&path).map_err(Error::io("open", &path))?;
        let scan = scan_log(&path, file.as_ref(), &mut |entry| parts.push(entry, visit))?;
        found.check_file(&path, &scan.header, *number)?;
        if scan.header.first_sequence != found.next_sequence {
            return Err(Error::corrupted(
                &path,
                32,
                format!(
                    "it begins with sequence {}, and {} was expected",
                    scan.header.first_sequence, found.next_sequence
                ),
            ));
        }
        let last = index + 1 == logs.len();
        match scan.ending {
            Ending::Sealed => {}
            _ if !last => {
                return Err(Error::corrupted(
                    &path,
                    scan.end,
                    "its end is missing, though another log follows",
                ));
            }
            Ending::Open => {}
            Ending::Torn { bytes } => {
                found.recovery.torn_tail = Some(TornTail {
                    path: path.clone(),
                    offset: scan.end,
                    bytes,
                });
            }
        }
        found.recovery.logs += 1;
        found.recovery.log_bytes += scan.end;
        found.recovery.log_entries += scan.entries;
        found.next_sequence = scan.next_sequence;
        found.last_log = Some(scan);
    }
    if let Some(newest) = newest {
        newest.check(folder, found.last_log.as_ref())?;
    }
    found.open_batches = parts.finish(visit);
    if found.next_sequence <= seen_sequence {
        let last = found.last_log.expect("there is a log");
        return Err(Error::corrupted(
            &log_path(folder, last.header.number),
            last.end,
            format!(
                "the log ends before sequence {}, and the snapshot was made when {seen_sequence} was durable",
                found.next_sequence
            ),
        ));
    }
    Ok(found)
}

impl ReplayResult {
    fn check_file(&mut self, path: &Path, header: &FileHeader, number: u64) -> Result<(), Error> {
        if header.number != number {
            return Err(Error::corrupted(
                path,
                24,
                format!(
                    "it has number {} and the name of another file",
                    header.number
                ),
            ));
        }
        if *self.journal.get_or_insert(header.journal) != header.journal {
            return Err(Error::corrupted(path, 16, "it belongs to another journal"));
        }
        Ok(())
    }

    /// Truncates the last log after its last complete frame, and makes it durable (invariants 3 and 5). Returns the
    /// number of the next log.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn repair(
        &self,
        disk: &dyn Disk,
        folder: &Path,
        fsync: Fsync,
    ) -> Result<u64, Error> {
        // Makes names durable that a killed process left in the kernel's memory, before any of them is relied on.
        disk.sync_folder(folder)
            .map_err(Error::io("sync folder", folder))?;
        let Some(last) = &self.last_log else {
            return Ok(1);
        };
        let number = last.header.number;
        if last.entries == 0 {
            // It is replaced, so that starts without writes do not accumulate logs.
            return Ok(number);
        }
        let path = log_path(folder, number);
        let file = disk.open(&path).map_err(Error::io("open", &path))?;
        if matches!(last.ending, Ending::Torn { .. }) {
            file.truncate(last.end)
                .map_err(Error::io("truncate the torn tail of", &path))?;
        }
        if last.ending != Ending::Sealed && fsync != Fsync::No {
            rewrite(&path, file.as_ref(), last.synced, last.end)?;
        }
        // Before the end frame is written: otherwise, after a crash, the end frame might precede bytes of the tail.
        file.sync().map_err(Error::io("sync", &path))?;
        fault_point("journal.recovery_cut");
        if last.ending != Ending::Sealed {
            let end = end_frame(&last.header, self.next_sequence, last.end);
            file.write_at(last.end, &[&end])
                .and_then(|()| file.sync())
                .map_err(Error::io("write", &path))?;
            fault_point("journal.recovery_sealed");
        }
        Ok(number + 1)
    }
}

/// Writes the bytes of a file from `from` up to, but not including, `to` again, unchanged.
fn rewrite(path: &Path, file: &dyn DiskFile, from: u64, to: u64) -> Result<(), Error> {
    const PIECE_BYTES: u64 = 1 << 20;
    let mut buffer = Vec::new();
    let mut at = from;
    while at < to {
        buffer.resize((to - at).min(PIECE_BYTES) as usize, 0);
        let read = file.read_at(at, &mut buffer);
        if read.map_err(Error::io("read", path))? < buffer.len() {
            return Err(Error::corrupted(path, at, "it has become shorter"));
        }
        file.write_at(at, &[&buffer])
            .map_err(Error::io("write", path))?;
        at += buffer.len() as u64;
    }
    Ok(())
}

/// Returns the frame that seals a log whose bytes before `at` are durable.
pub(crate) fn end_frame(
    header: &FileHeader,
    next_sequence: u64,
    at: u64,
) -> [u8; crate::format::FRAME_HEADER_SIZE] {
    debug_assert_eq!(header.kind, FileKind::Log);
    FrameHeader::new(FrameKind::End, next_sequence, 0, at, b"", header.id, at).encode(header.id, at)
}

fn missing_log(folder: &Path, number: u64) -> Error {
    Error::corrupted(&log_path(folder, number), 0, "the file is missing")
}

/// Adds advice to the error if an older snapshot and all logs since then still contain the same rows.
fn add_advice(error: Error, listing: &Listing, damaged: u64) -> Error {
    let Error::Corrupted {
        path,
        offset,
        detail,
    } = error
    else {
        return error;
    };
    let older = listing.snapshots.iter().rev().nth(1).copied();
    let from = older.unwrap_or(1);
    let is_complete = (from..=damaged).all(|number| listing.logs.binary_search(&number).is_ok());
    let detail = if is_complete {
        format!(
            "{detail}; the logs from {from} on{} are still here and hold the same rows: move this \
             file away and start again",
            if older.is_some() {
                " and the snapshot before them"
            } else {
                ""
            }
        )
    } else {
        detail
    };
    Error::Corrupted {
        path,
        offset,
        detail,
    }
}
