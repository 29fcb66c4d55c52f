//! Reads one file of a journal: its frames in order, and the state of its end.
//!
//! A log that was cut short by a crash ends in a *torn tail*: frames of which not all bytes reached the disk. Nothing
//! in a torn tail was ever acknowledged as durable. *Damage* is different: bytes that were durable and have changed.
//! These rules distinguish the two:
//!
//! 1. A frame records how many bytes of its file were durable when it was written. If any complete frame after a
//!    broken one records that the start of the broken one was durable, the break is damage.
//! 2. A log with an end frame or a successor has no torn tail; neither has a snapshot.
//!
//! Damage to the very last frames of a log that was not closed cannot be distinguished: it looks like a torn tail and
//! is reported as one, with its size.

use std::io;
use std::path::Path;

use crate::disk::DiskFile;
use crate::entry::Entry;
use crate::error::Error;
use crate::format::{
    FILE_HEADER_SIZE, FRAME_HEADER_SIZE, FileHeader, FileKind, FrameHeader, FrameKind, Totals,
};

/// The contents of a log that is complete, possibly except for a torn tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogScan {
    pub header: FileHeader,
    pub entries: u64,
    /// The sequence number of the entry that follows this log's last one.
    pub next_sequence: u64,
    /// The end of the last complete frame.
    pub end: u64,
    /// The number of bytes that were durable when that frame was written.
    pub synced: u64,
    pub ending: Ending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// With an end frame.
    Sealed,
    /// After a complete frame, without an end frame: the writer did not close it.
    Open,
    /// With this number of bytes that are not a complete frame.
    Torn { bytes: u64 },
}

/// Passes every entry of a log to `visit`, each after its frame was verified.
///
/// # Errors
/// [`Error::Corrupted`] for anything but a complete log with or without a torn tail; [`Error::Io`].
pub fn scan_log(
    path: &Path,
    file: &dyn DiskFile,
    visit: &mut dyn FnMut(Entry<'_>),
) -> Result<LogScan, Error> {
    let mut window = Window::open(path, file)?;
    let header = window.file_header(FileKind::Log)?;
    let mut scan = LogScan {
        header,
        entries: 0,
        next_sequence: header.first_sequence,
        end: FILE_HEADER_SIZE as u64,
        synced: FILE_HEADER_SIZE as u64,
        ending: Ending::Open,
    };
    while scan.end < window.size {
        let at = scan.end;
        let Some((frame, body)) = window.frame(header.id, at)? else {
            if let Some(proof) = window.proof_of_durability(&scan)? {
                return Err(Error::corrupted(
                    path,
                    at,
                    format!(
                        "the frame is invalid, and the frame at byte {proof} records that it was durable"
                    ),
                ));
            }
            scan.ending = Ending::Torn {
                bytes: window.size - at,
            };
            return Ok(scan);
        };
        if frame.first_sequence != scan.next_sequence {
            return Err(Error::corrupted(
                path,
                at,
                format!(
                    "the entry has sequence {}, and {} was expected",
                    frame.first_sequence, scan.next_sequence
                ),
            ));
        }
        // Never beyond the frame itself, whatever its header states.
        scan.synced = scan.synced.max(frame.synced.min(at));
        match frame.kind {
            FrameKind::Entries => {
                visit_entries(path, at, &frame, body, visit)?;
                scan.entries += u64::from(frame.entries);
                scan.next_sequence = scan
                    .next_sequence
                    .checked_add(u64::from(frame.entries))
                    .ok_or_else(|| Error::corrupted(path, at, "its sequences overflow"))?;
                scan.end += frame.frame_size();
            }
            FrameKind::End => {
                scan.end += frame.frame_size();
                if frame.body_size != 0 || frame.entries != 0 || scan.end != window.size {
                    return Err(Error::corrupted(
                        path,
                        at,
                        "there are bytes after the log's end",
                    ));
                }
                scan.ending = Ending::Sealed;
            }
        }
    }
    Ok(scan)
}

/// Passes every entry of a snapshot to `visit`, each after its frame was verified.
///
/// # Errors
/// [`Error::Corrupted`] for anything but a complete snapshot, possibly after some entries were passed; [`Error::Io`].
pub fn scan_snapshot(
    path: &Path,
    file: &dyn DiskFile,
    visit: &mut dyn FnMut(Entry<'_>),
) -> Result<(FileHeader, Totals), Error> {
    let mut window = Window::open(path, file)?;
    let header = window.file_header(FileKind::Snapshot)?;
    let mut seen = Totals::default();
    let mut at = FILE_HEADER_SIZE as u64;
    loop {
        let Some((frame, body)) = window.frame(header.id, at)? else {
            return Err(Error::corrupted(path, at, "there is no complete frame"));
        };
        if frame.first_sequence != seen.entries {
            return Err(Error::corrupted(path, at, "a frame is missing before it"));
        }
        if frame.kind == FrameKind::End {
            let totals = Totals::decode(body)
                .filter(|totals| {
                    (
                        totals.entries,
                        totals.rows,
                        totals.key_bytes,
                        totals.value_bytes,
                    ) == (seen.entries, seen.rows, seen.key_bytes, seen.value_bytes)
                })
                .ok_or_else(|| {
                    Error::corrupted(path, at, "its totals are not those of its rows")
                })?;
            if at + frame.frame_size() != window.size || frame.entries != 0 {
                return Err(Error::corrupted(path, at, "there are bytes after its end"));
            }
            return Ok((header, totals));
        }
        visit_entries(path, at, &frame, body, &mut |entry| {
            if let Entry::Put { key, value, .. } = entry {
                seen.rows += 1;
                seen.key_bytes += key.len() as u64;
                seen.value_bytes += value.len() as u64;
            }
            visit(entry);
        })?;
        seen.entries += u64::from(frame.entries);
        at += frame.frame_size();
    }
}

fn visit_entries(
    path: &Path,
    at: u64,
    frame: &FrameHeader,
    body: &[u8],
    visit: &mut dyn FnMut(Entry<'_>),
) -> Result<(), Error> {
    let mut rest = body;
    let mut count = 0u32;
    while !rest.is_empty() {
        let (entry, after) =
            Entry::decode(rest).map_err(|detail| Error::corrupted(path, at, detail))?;
        visit(entry);
        rest = after;
        // At most the number of bytes in the body, which fits 32 bits.
        count += 1;
    }
    if count != frame.entries || count == 0 {
        return Err(Error::corrupted(
            path,
            at,
            format!(
                "the frame has {count} entries, and its header states {}",
                frame.entries
            ),
        ));
    }
    Ok(())
}

/// A buffered view of a file, so that reading it does not take memory of its size.
struct Window<'a> {
    path: &'a Path,
    file: &'a dyn DiskFile,
    size: u64,
    start: u64,
    buffer: Vec<u8>,
}

const WINDOW_BYTES: usize = 1 << 20;

impl<'a> Window<'a> {
    fn open(path: &'a Path, file: &'a dyn DiskFile) -> Result<Window<'a>, Error> {
        let size = file.size().map_err(Error::io("read", path))?;
        Ok(Window {
            path,
            file,
            size,
            start: 0,
            buffer: Vec::new(),
        })
    }

    fn file_header(&mut self, kind: FileKind) -> Result<FileHeader, Error> {
        let size = self.size.min(FILE_HEADER_SIZE as u64) as usize;
        let path = self.path;
        let bytes = self.bytes(0, size)?.unwrap_or_default();
        FileHeader::decode(path, kind, bytes)
    }

    /// Returns the complete frame at `at`, or `None` if there is none.
    fn frame(&mut self, file: u64, at: u64) -> Result<Option<(FrameHeader, &[u8])>, Error> {
        let Some(bytes) = self.bytes(at, FRAME_HEADER_SIZE)? else {
            return Ok(None);
        };
        let Some(frame) = FrameHeader::decode(bytes, file, at) else {
            return Ok(None);
        };
        let body_at = at + FRAME_HEADER_SIZE as u64;
        let Some(body) = self.bytes(body_at, frame.body_size as usize)? else {
            return Ok(None);
        };
        Ok(frame.matches(body, file, at).then_some((frame, body)))
    }

    /// Returns the position of a complete frame after the broken one at `scan.end` that records the broken one as
    /// durable, if there is one.
    fn proof_of_durability(&mut self, scan: &LogScan) -> Result<Option<u64>, Error> {
        let broken = scan.end;
        for at in broken + 1..self.size.saturating_sub(FRAME_HEADER_SIZE as u64 - 1) {
            let Some(bytes) = self.bytes(at, FRAME_HEADER_SIZE)? else {
                return Ok(None);
            };
            // A cheap check first: almost every position fails here.
            let synced = crate::format::u64_at(bytes, 24);
            if synced <= broken || synced > at {
                continue;
            }
            let plausible = FrameHeader::decode(bytes, scan.header.id, at)
                .is_some_and(|frame| frame.first_sequence >= scan.next_sequence);
            if plausible && self.frame(scan.header.id, at)?.is_some() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Returns `size` bytes from `at` on, or `None` if the file is shorter.
    #[inline]
    fn bytes(&mut self, at: u64, size: usize) -> Result<Option<&[u8]>, Error> {
        let held = at >= self.start && at + size as u64 <= self.start + self.buffer.len() as u64;
        if !held {
            if at
                .checked_add(size as u64)
                .is_none_or(|end| end > self.size)
            {
                return Ok(None);
            }
            self.fill(at, size)?;
        }
        let from = (at - self.start) as usize;
        Ok(Some(&self.buffer[from..from + size]))
    }

    #[cold]
    fn fill(&mut self, at: u64, size: usize) -> Result<(), Error> {
        let target_len = (size.max(WINDOW_BYTES) as u64).min(self.size - at) as usize;
        self.start = at;
        self.buffer.resize(target_len, 0);
        let got = self
            .file
            .read_at(at, &mut self.buffer)
            .map_err(Error::io("read", self.path))?;
        if got < target_len {
            self.buffer.clear();
            return Err(Error::io("read", self.path)(
                io::ErrorKind::UnexpectedEof.into(),
            ));
        }
        Ok(())
    }
}
