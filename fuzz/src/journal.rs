//! Logs and snapshots: files that a crash truncates at any position, on disks that may damage them.

use std::io;
use std::path::Path;

use larder_journal::format::{
    FILE_HEADER_SIZE, FRAME_HEADER_SIZE, FileHeader, FileKind, FrameHeader, FrameKind, TOTALS_SIZE,
    Totals,
};
use larder_journal::{DiskFile, Ending, Entry, Error, scan_log, scan_snapshot};

/// Any bytes yield entries, a torn tail or `Corrupted`, but no panic.
pub fn journal(bytes: &[u8]) {
    check_log(bytes);
    check_snapshot(bytes);
    for kind in [FileKind::Log, FileKind::Snapshot] {
        if let Some(sealed) = reseal_journal(bytes, kind) {
            match kind {
                FileKind::Log => check_log(&sealed),
                FileKind::Snapshot => check_snapshot(&sealed),
            }
        }
    }
}

fn check_log(bytes: &[u8]) {
    let mut entries = Vec::new();
    let Ok(scan) = scan_log(path(), &Bytes(bytes), &mut |entry| {
        keep(entry, &mut entries)
    }) else {
        return;
    };
    assert_eq!(scan.entries, entries.len() as u64);
    assert_eq!(
        scan.next_sequence,
        scan.header.first_sequence + scan.entries
    );
    let torn = match scan.ending {
        Ending::Sealed | Ending::Open => 0,
        Ending::Torn { bytes } => bytes,
    };
    assert_eq!(
        scan.end + torn,
        bytes.len() as u64,
        "every byte is in a frame or cut"
    );

    // The part before the cut is complete and contains the same entries.
    let mut again = Vec::new();
    let cut = scan_log(path(), &Bytes(&bytes[..scan.end as usize]), &mut |entry| {
        keep(entry, &mut again);
    });
    let cut = cut.expect("a log is readable up to its cut");
    assert!(!matches!(cut.ending, Ending::Torn { .. }));
    assert_eq!(again, entries);
}

fn check_snapshot(bytes: &[u8]) {
    let mut entries = Vec::new();
    let read = scan_snapshot(path(), &Bytes(bytes), &mut |entry| {
        keep(entry, &mut entries)
    });
    if let Ok((_, totals)) = read {
        assert_eq!(totals.entries, entries.len() as u64);
        assert!(totals.rows <= totals.entries);
    }
}

/// Returns the number of entries in a file of this kind.
///
/// # Errors
/// The errors of the journal's own code.
pub fn read_journal(bytes: &[u8], kind: FileKind) -> Result<u64, Error> {
    match kind {
        FileKind::Log => Ok(scan_log(path(), &Bytes(bytes), &mut |_| ())?.entries),
        FileKind::Snapshot => Ok(scan_snapshot(path(), &Bytes(bytes), &mut |_| ())?.1.entries),
    }
}

/// An accepted entry has only one encoding.
fn keep(entry: Entry<'_>, entries: &mut Vec<Vec<u8>>) {
    let mut bytes = Vec::new();
    entry.encode(&mut bytes);
    assert_eq!(Entry::decode(&bytes), Ok((entry, &b""[..])));
    entries.push(bytes);
}

/// Returns the same bytes with matching checksums, counts and sequence numbers, as far as the sizes are plausible.
pub fn reseal_journal(bytes: &[u8], kind: FileKind) -> Option<Vec<u8>> {
    let header = FileHeader {
        kind,
        journal: u64_at(bytes, 16)?,
        number: u64_at(bytes, 24)?,
        // Small enough to be incremented.
        first_sequence: u64_at(bytes, 32)? >> 1,
        id: u64_at(bytes, 40)?,
    };
    let mut frames = Vec::new();
    let mut rest = bytes.get(FILE_HEADER_SIZE..)?;
    while let Some((head, after)) = rest.split_first_chunk::<FRAME_HEADER_SIZE>() {
        let size = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
        let (body, after) = after.split_at(size.min(after.len()));
        let end = head[20] & 1 == 1;
        let synced = u64::from_le_bytes(head[24..32].try_into().expect("eight bytes"));
        frames.push((end, synced, body));
        rest = after;
    }
    Some(journal_file(&header, &frames))
}

/// Encodes a file of frames. A frame is a triple: true for an end frame, the size that it declares durable, and the body.
pub fn journal_file(header: &FileHeader, frames: &[(bool, u64, &[u8])]) -> Vec<u8> {
    let mut file = header.encode().to_vec();
    let mut sequence = header.first_sequence;
    let mut totals = Totals::default();
    if header.kind == FileKind::Snapshot {
        sequence = 0;
    }
    for &(end, synced, body) in frames {
        let (mut entries, mut rest) = (0, body);
        while let Ok((entry, after)) = Entry::decode(rest) {
            if let (Entry::Put { key, value, .. }, false) = (entry, end) {
                totals.rows += 1;
                totals.key_bytes += key.len() as u64;
                totals.value_bytes += value.len() as u64;
            }
            entries += 1;
            rest = after;
        }
        let mut body = body.to_vec();
        if end {
            entries = 0;
            if header.kind == FileKind::Snapshot && body.len() == TOTALS_SIZE {
                body[..32].copy_from_slice(&totals.encode()[..32]);
            }
        }
        let kind = if end {
            FrameKind::End
        } else {
            FrameKind::Entries
        };
        let at = file.len() as u64;
        let frame = FrameHeader::new(kind, sequence, entries, synced, &body, header.id, at);
        file.extend_from_slice(&frame.encode(header.id, at));
        file.extend_from_slice(&body);
        sequence += u64::from(entries);
        totals.entries += u64::from(entries);
    }
    file
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

fn path() -> &'static Path {
    Path::new("fuzz")
}

/// A read-only file.
struct Bytes<'a>(&'a [u8]);

impl DiskFile for Bytes<'_> {
    fn write_at(&self, _: u64, _: &[&[u8]]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let from = self.0.get(offset as usize..).unwrap_or_default();
        let size = from.len().min(into.len());
        into[..size].copy_from_slice(&from[..size]);
        Ok(size)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
