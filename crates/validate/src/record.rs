//! The trace: one record of fixed size per call, and a footer that distinguishes a complete file from a truncated
//! one.
//!
//! ```text
//!   offset size  header               record                                        footer
//!        0    8  "LARDTRC1"           item                                          "LARDTEND"
//!        8    8  format: 1            start, nanoseconds                            records
//!       16    8  zero                 end, nanoseconds                              checksum
//!       24   16  zero                 number, element, content, or keys of a list   zero
//!       40    4  zero                 elements of a list, else zero                 zero
//!       44    4  zero                 session                                       zero
//!       48    1  zero                 what: 1 to 8, in the order of `RecordKind`          zero
//!       49    1  zero                 outcome: 0 done, 1 not done, 2 unknown        zero
//!       50    1  zero                 action, numbered by the client                zero
//!       51   13  zero                 zero                                          zero
//! ```
//!
//! Integers are little-endian; signed numbers are sign-extended to 16 bytes. The checksum is chained: that of each
//! record (`larder_types::checksum32`) is seeded with its index and the previous checksum.
//!
//! Invariants:
//!
//! 1. [`decode`] never panics, and returns either all records of an intact trace or an error. Tests damage traces at
//!    random.
//! 2. A truncation, a flipped bit, a swapped or a missing record is an error, never a shorter trace.

use std::fmt;

use larder_types::checksum32;

use crate::Span;
use crate::set::Sketch;

/// The size of a header, of a record and of a footer, in bytes.
pub const RECORD_SIZE: usize = 64;

const HEAD: &[u8; 8] = b"LARDTRC1";
const FOOT: &[u8; 8] = b"LARDTEND";
const FORMAT: u64 = 1;

/// The action of reads of the end state after a run. They are validated like others and reported separately.
pub const END_STATE: u8 = 255;

/// The effect or the result of one call on one item. The records of one call have the same span, session and action,
/// and are consecutive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub item: u64,
    pub span: Span,
    pub session: u32,
    /// The client's number for the kind of call; copied into reports.
    pub action: u8,
    pub outcome: Outcome,
    pub what: RecordKind,
}

/// For a read, any outcome but `Done` means that it returned nothing to validate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    NotDone,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    ReadCount(i64),
    AddCount(i32),
    SetCount(i32),
    ReadSet(Sketch),
    PutElement(u64),
    RemoveElement(u64),
    ReadContent(u64),
    WriteContent(u64),
}

/// The reason why bytes are not a valid trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupted {
    /// The size is not that of a header, records and a footer.
    Size {
        bytes: usize,
    },
    Header,
    /// The file is truncated, or its writer died.
    Footer,
    Count {
        records: u64,
        footer: u64,
    },
    Checksum {
        records: u64,
        footer: u64,
    },
    /// A record that the encoder never writes, although the checksum matches.
    Record {
        index: u64,
    },
}

impl fmt::Display for Corrupted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corrupted::Size { bytes } => write!(
                out,
                "a trace of {bytes} bytes is cut short: it is no multiple of 64 from 128 on"
            ),
            Corrupted::Header => write!(out, "the file is not a trace of format 1"),
            Corrupted::Footer => write!(out, "the trace has no footer: its writer did not finish"),
            Corrupted::Count { records, footer } => write!(
                out,
                "the trace has {records} records, its footer states {footer}"
            ),
            Corrupted::Checksum { records, footer } => write!(
                out,
                "the checksum is {records:08x}, the footer states {footer:08x}"
            ),
            Corrupted::Record { index } => {
                write!(out, "record {index} is invalid")
            }
        }
    }
}

impl std::error::Error for Corrupted {}

/// Encodes a trace piece by piece: [`Encoder::header`], one piece per record, [`Encoder::footer`].
#[derive(Default)]
pub struct Encoder {
    records: u64,
    checksum: u32,
}

impl Encoder {
    pub fn header() -> [u8; RECORD_SIZE] {
        let mut bytes = [0; RECORD_SIZE];
        bytes[..8].copy_from_slice(HEAD);
        bytes[8..16].copy_from_slice(&FORMAT.to_le_bytes());
        bytes
    }

    pub fn record(&mut self, record: &Record) -> [u8; RECORD_SIZE] {
        let bytes = encode(record);
        self.absorb(&bytes);
        bytes
    }

    pub fn footer(self) -> [u8; RECORD_SIZE] {
        let mut bytes = [0; RECORD_SIZE];
        bytes[..8].copy_from_slice(FOOT);
        bytes[8..16].copy_from_slice(&self.records.to_le_bytes());
        bytes[16..24].copy_from_slice(&u64::from(self.checksum).to_le_bytes());
        bytes
    }

    fn absorb(&mut self, bytes: &[u8]) {
        let seed = u64::from(self.checksum) << 32 ^ self.records;
        self.checksum = checksum32(bytes, seed);
        self.records += 1;
    }
}

/// Decodes a trace piece by piece: the header, one piece per record, the footer. The records are not trustworthy
/// before [`Decoder::finish`] succeeds.
pub struct Decoder {
    check: Encoder,
    expected: u64,
}

impl Decoder {
    /// Decodes the header of a trace of this total size.
    ///
    /// # Errors
    ///
    /// [`Corrupted::Size`] and [`Corrupted::Header`].
    pub fn start(bytes: u64, header: &[u8; RECORD_SIZE]) -> Result<Decoder, Corrupted> {
        let size = RECORD_SIZE as u64;
        if *header != Encoder::header() {
            return Err(Corrupted::Header);
        }
        match (bytes / size).checked_sub(2) {
            Some(expected) if bytes.is_multiple_of(size) => Ok(Decoder {
                check: Encoder::default(),
                expected,
            }),
            _ => Err(Corrupted::Size {
                bytes: bytes as usize,
            }),
        }
    }

    /// Returns the number of records between the header and the footer.
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// # Errors
    ///
    /// [`Corrupted::Record`].
    pub fn record(&mut self, piece: &[u8; RECORD_SIZE]) -> Result<Record, Corrupted> {
        let index = self.check.records;
        self.check.absorb(piece);
        decode_record(piece).ok_or(Corrupted::Record { index })
    }

    /// Verifies the footer.
    ///
    /// # Errors
    ///
    /// If the records differ from those that were written.
    pub fn finish(self, footer: &[u8; RECORD_SIZE]) -> Result<(), Corrupted> {
        if footer[..8] != *FOOT || footer[24..].iter().any(|byte| *byte != 0) {
            return Err(Corrupted::Footer);
        }
        let (records, checksum) = (word(footer, 8), word(footer, 16));
        if records != self.check.records {
            return Err(Corrupted::Count {
                records: self.check.records,
                footer: records,
            });
        }
        if checksum != u64::from(self.check.checksum) {
            return Err(Corrupted::Checksum {
                records: u64::from(self.check.checksum),
                footer: checksum,
            });
        }
        Ok(())
    }
}

/// Decodes all records of a trace.
///
/// # Errors
///
/// [`Corrupted`]: the trace must not be validated, because missing records would look like writes that never
/// happened.
pub fn decode(bytes: &[u8]) -> Result<Vec<Record>, Corrupted> {
    let (pieces, rest) = bytes.as_chunks::<RECORD_SIZE>();
    let [head, records @ .., foot] = pieces else {
        return Err(Corrupted::Size { bytes: bytes.len() });
    };
    if *head != Encoder::header() {
        return Err(Corrupted::Header);
    }
    if !rest.is_empty() {
        return Err(Corrupted::Size { bytes: bytes.len() });
    }
    if foot[..8] != *FOOT || foot[24..].iter().any(|byte| *byte != 0) {
        return Err(Corrupted::Footer);
    }
    let count = word(foot, 8);
    if count != records.len() as u64 {
        return Err(Corrupted::Count {
            records: records.len() as u64,
            footer: count,
        });
    }
    let mut check = Encoder::default();
    records.iter().for_each(|record| check.absorb(record));
    let checksum = word(foot, 16);
    if u64::from(check.checksum) != checksum {
        return Err(Corrupted::Checksum {
            records: u64::from(check.checksum),
            footer: checksum,
        });
    }
    records
        .iter()
        .enumerate()
        .map(|(index, record)| {
            decode_record(record).ok_or(Corrupted::Record {
                index: index as u64,
            })
        })
        .collect()
}

fn encode(record: &Record) -> [u8; RECORD_SIZE] {
    let signed = |number: i64| i128::from(number) as u128;
    let (what, payload, count) = match record.what {
        RecordKind::ReadCount(value) => (1, signed(value), 0),
        RecordKind::AddCount(delta) => (2, signed(delta.into()), 0),
        RecordKind::SetCount(value) => (3, signed(value.into()), 0),
        RecordKind::ReadSet(sketch) => (4, sketch.keys, sketch.count),
        RecordKind::PutElement(element) => (5, element.into(), 0),
        RecordKind::RemoveElement(element) => (6, element.into(), 0),
        RecordKind::ReadContent(content) => (7, content.into(), 0),
        RecordKind::WriteContent(content) => (8, content.into(), 0),
    };
    let mut bytes = [0; RECORD_SIZE];
    bytes[..8].copy_from_slice(&record.item.to_le_bytes());
    bytes[8..16].copy_from_slice(&record.span.start().to_le_bytes());
    bytes[16..24].copy_from_slice(&record.span.end().to_le_bytes());
    bytes[24..40].copy_from_slice(&payload.to_le_bytes());
    bytes[40..44].copy_from_slice(&count.to_le_bytes());
    bytes[44..48].copy_from_slice(&record.session.to_le_bytes());
    bytes[48] = what;
    bytes[49] = record.outcome as u8;
    bytes[50] = record.action;
    bytes
}

/// Returns `None` for bytes that the encoder does not write.
fn decode_record(bytes: &[u8; RECORD_SIZE]) -> Option<Record> {
    let span = Span::new(word(bytes, 8), word(bytes, 16))?;
    let payload = u128::from(word(bytes, 24)) | u128::from(word(bytes, 32)) << 64;
    let small = u64::try_from(payload);
    let count = word(bytes, 40) as u32;
    let what = match bytes[48] {
        1 => RecordKind::ReadCount(i64::try_from(payload as i128).ok()?),
        2 => RecordKind::AddCount(i32::try_from(payload as i128).ok()?),
        3 => RecordKind::SetCount(i32::try_from(payload as i128).ok()?),
        4 => RecordKind::ReadSet(Sketch {
            count,
            keys: payload,
        }),
        5 => RecordKind::PutElement(small.ok()?),
        6 => RecordKind::RemoveElement(small.ok()?),
        7 => RecordKind::ReadContent(small.ok()?),
        8 => RecordKind::WriteContent(small.ok()?),
        _ => return None,
    };
    let outcome = match bytes[49] {
        0 => Outcome::Done,
        1 => Outcome::NotDone,
        2 => Outcome::Unknown,
        _ => return None,
    };
    let counted = matches!(what, RecordKind::ReadSet(_));
    let zero = bytes[51..].iter().all(|byte| *byte == 0) && (counted || count == 0);
    let session = (word(bytes, 40) >> 32) as u32;
    zero.then_some(Record {
        item: word(bytes, 0),
        span,
        session,
        action: bytes[50],
        outcome,
        what,
    })
}

fn word(bytes: &[u8; RECORD_SIZE], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
