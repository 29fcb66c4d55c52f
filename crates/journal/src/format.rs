//! The encoding of logs and snapshots: a header, then frames. `docs/formats/journal.md` has the tables.
//!
//! 1. A checksum covers every byte of a file: the header's own, a frame header's, or a body's.
//! 2. A frame's checksums depend on its file's id and its offset. Bytes of an older file that used the same disk
//!    blocks, or bytes at a different offset, are therefore not a valid frame.
//! 3. A frame is the unit of atomicity: no batch spans two frames.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;

pub const FORMAT: u32 = 1;
pub const FILE_HEADER_SIZE: usize = 64;
pub const FRAME_HEADER_SIZE: usize = 40;
/// The size of the body of a snapshot's last frame.
pub const TOTALS_SIZE: usize = 48;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    Log,
    Snapshot,
}

impl FileKind {
    fn magic(self) -> &'static [u8; 8] {
        match self {
            FileKind::Log => b"LARDLOG1",
            FileKind::Snapshot => b"LARDSNP1",
        }
    }
}

/// The header of a file.
///
/// ```text
///  0  8  LARDLOG1 or LARDSNP1          24  8  number of the file
///  8  4  format                        32  8  log: sequence of its first entry; snapshot: 0
/// 12  4  zero                          40  8  unique id of the file
/// 16  8  id of the journal             48  8  zero
///                                      56  8  XXH3-64 of bytes 0 to 56
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    pub kind: FileKind,
    pub journal: u64,
    pub number: u64,
    pub first_sequence: u64,
    pub id: u64,
}

impl FileHeader {
    pub fn encode(&self) -> [u8; FILE_HEADER_SIZE] {
        let mut bytes = [0; FILE_HEADER_SIZE];
        bytes[..8].copy_from_slice(self.kind.magic());
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.journal.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.id.to_le_bytes());
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`Error::Corrupted`]; [`Error::State`] for a valid header of another format.
    pub fn decode(path: &Path, kind: FileKind, bytes: &[u8]) -> Result<FileHeader, Error> {
        let refuse = |detail: String| Err(Error::corrupted(path, 0, detail));
        if bytes.len() < FILE_HEADER_SIZE {
            return refuse(format!("it has {} bytes, less than a header", bytes.len()));
        }
        if u64_at(bytes, 56) != xxh3_64(&bytes[..56]) {
            return refuse("the header's checksum does not match".into());
        }
        if &bytes[..8] != kind.magic() {
            return refuse(format!("it is not a {kind:?} of a journal"));
        }
        let format = u32_at(bytes, 8);
        if format != FORMAT {
            return Err(Error::state(format!(
                "{} has format {format}, and this version of larder reads {FORMAT}; start the version that wrote it, or a newer one",
                path.display()
            )));
        }
        if u32_at(bytes, 12) != 0 || u64_at(bytes, 48) != 0 {
            return refuse("bytes that must be zero are not".into());
        }
        Ok(FileHeader {
            kind,
            journal: u64_at(bytes, 16),
            number: u64_at(bytes, 24),
            first_sequence: u64_at(bytes, 32),
            id: u64_at(bytes, 40),
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    Entries,
    /// The last frame of the file. In a log its body is empty; in a snapshot it is [`Totals`].
    End,
}

/// The header of a frame.
///
/// ```text
///  0  4  checksum of bytes 4 to 40    20  4  kind: 0 entries, 1 end
///  4  4  size of the body             24  8  number of durable bytes of the file when this was written
///  8  8  sequence of the first entry  32  8  checksum of the body
/// 16  4  entries
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: FrameKind,
    pub body_size: u32,
    pub first_sequence: u64,
    pub entries: u32,
    pub synced: u64,
    pub body_checksum: u64,
}

impl FrameHeader {
    /// Returns the header of a frame with `body` at `offset` of the file with the id `file`.
    pub fn new(
        kind: FrameKind,
        first_sequence: u64,
        entries: u32,
        synced: u64,
        body: &[u8],
        file: u64,
        offset: u64,
    ) -> FrameHeader {
        FrameHeader {
            kind,
            body_size: u32::try_from(body.len()).expect("a batch has a limit below this"),
            first_sequence,
            entries,
            synced,
            body_checksum: xxh3_64(body) ^ position_mask(file, offset),
        }
    }

    pub fn encode(&self, file: u64, offset: u64) -> [u8; FRAME_HEADER_SIZE] {
        let mut bytes = [0; FRAME_HEADER_SIZE];
        let kind: u32 = match self.kind {
            FrameKind::Entries => 0,
            FrameKind::End => 1,
        };
        bytes[4..8].copy_from_slice(&self.body_size.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first_sequence.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.entries.to_le_bytes());
        bytes[20..24].copy_from_slice(&kind.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced.to_le_bytes());
        bytes[32..].copy_from_slice(&self.body_checksum.to_le_bytes());
        let sum = (xxh3_64(&bytes[4..]) ^ position_mask(file, offset)) as u32;
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if `bytes` do not start with a valid one.
    pub fn decode(bytes: &[u8], file: u64, offset: u64) -> Option<FrameHeader> {
        let bytes = bytes.get(..FRAME_HEADER_SIZE)?;
        let kind = match u32_at(bytes, 20) {
            0 => FrameKind::Entries,
            1 => FrameKind::End,
            _ => return None,
        };
        if u32_at(bytes, 0) != (xxh3_64(&bytes[4..]) ^ position_mask(file, offset)) as u32 {
            return None;
        }
        Some(FrameHeader {
            kind,
            body_size: u32_at(bytes, 4),
            first_sequence: u64_at(bytes, 8),
            entries: u32_at(bytes, 16),
            synced: u64_at(bytes, 24),
            body_checksum: u64_at(bytes, 32),
        })
    }

    /// Returns whether `body` matches this header's checksum.
    pub fn matches(&self, body: &[u8], file: u64, offset: u64) -> bool {
        body.len() == self.body_size as usize
            && self.body_checksum == xxh3_64(body) ^ position_mask(file, offset)
    }

    /// Returns the size of header and body.
    pub fn frame_size(&self) -> u64 {
        FRAME_HEADER_SIZE as u64 + u64::from(self.body_size)
    }
}

/// The body of a snapshot's last frame.
///
/// ```text
///  0  8  entries              24  8  bytes of values
///  8  8  rows among them      32  8  sequence of the first entry of the log that follows
/// 16  8  bytes of keys        40  8  the last sequence that the rows may reflect
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    pub entries: u64,
    pub rows: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    pub log_first_sequence: u64,
    pub seen_sequence: u64,
}

impl Totals {
    pub fn encode(&self) -> [u8; TOTALS_SIZE] {
        let mut bytes = [0; TOTALS_SIZE];
        let fields = [
            self.entries,
            self.rows,
            self.key_bytes,
            self.value_bytes,
            self.log_first_sequence,
            self.seen_sequence,
        ];
        for (place, field) in bytes.chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<Totals> {
        (bytes.len() == TOTALS_SIZE).then(|| Totals {
            entries: u64_at(bytes, 0),
            rows: u64_at(bytes, 8),
            key_bytes: u64_at(bytes, 16),
            value_bytes: u64_at(bytes, 24),
            log_first_sequence: u64_at(bytes, 32),
            seen_sequence: u64_at(bytes, 40),
        })
    }
}

/// Returns the value that binds a checksum to a position. It is combined by xor, because a seed for XXH3 would
/// require deriving a secret in each call.
fn position_mask(file: u64, offset: u64) -> u64 {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    file ^ offset.wrapping_mul(SPREAD).rotate_left(32)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_valid_only_in_its_own_file_and_position() {
        let body = b"body";
        let header = FrameHeader::new(FrameKind::Entries, 7, 1, 64, body, 11, 640);
        let bytes = header.encode(11, 640);
        assert_eq!(FrameHeader::decode(&bytes, 11, 640), Some(header));
        assert!(header.matches(body, 11, 640));
        for (file, offset) in [(12, 640), (11, 641)] {
            assert_eq!(FrameHeader::decode(&bytes, file, offset), None);
            assert!(!header.matches(body, file, offset));
        }
    }

    #[test]
    fn a_file_of_a_later_format_is_distinguished_from_a_damaged_one() {
        let path = Path::new("log");
        let mut bytes = FileHeader {
            kind: FileKind::Log,
            journal: 1,
            number: 2,
            first_sequence: 3,
            id: 4,
        }
        .encode();
        FileHeader::decode(path, FileKind::Log, &bytes).expect("as it was written");
        bytes[8] = 2;
        let damaged = FileHeader::decode(path, FileKind::Log, &bytes);
        assert!(matches!(damaged, Err(Error::Corrupted { .. })));
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        match FileHeader::decode(path, FileKind::Log, &bytes) {
            Err(error @ Error::State { .. }) => {
                assert!(error.to_string().contains("has format 2"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn zeros_are_no_frame() {
        assert_eq!(FrameHeader::decode(&[0; FRAME_HEADER_SIZE], 5, 64), None);
    }
}
