//! Journal entries and their encoding.
//!
//! 1. Entries are idempotent: replaying one that the rows already reflect does not change the final result. (An
//!    increment is logged as its resulting value.) Snapshots rely on that. [`Entry::Slot`] is an exception: its
//!    writer records in the log and in the snapshot from where on records count.
//! 2. Every entry has exactly one encoding: decoding and encoding reproduces the bytes.
//! 3. If several cores write a batch concurrently, each logs its changes in its own order as [`Entry::Part`]s, and an
//!    [`Entry::Commit`] follows all of them. Once that is present, the batch is complete. `part_assembler` reads them.
//!
//! An entry consists of a kind (1 byte), the varint sizes of its one or two strings, its deadline (8 bytes) if the
//! kind has one, and the strings.

use larder_types::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::error::Error;

/// One change. Keys of rows have 1 to [`KEY_BYTES_MAX`] bytes, values up to [`VALUE_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Sets the value and the deadline of a row.
    Put {
        key: &'a [u8],
        value: &'a [u8],
        /// Milliseconds since 1970 at which the row expires.
        deadline_ms: Option<u64>,
    },
    /// Sets the deadline of a row, if it exists; its value is unchanged.
    Expire {
        key: &'a [u8],
        deadline_ms: Option<u64>,
    },
    Remove {
        key: &'a [u8],
    },
    /// Removes all rows from `lo` up to, but not including, `hi`; without `hi`, to the end of all keys.
    RemoveRange {
        lo: &'a [u8],
        hi: Option<&'a [u8]>,
    },
    /// Creates a join, with the text of its definition.
    Define {
        name: &'a [u8],
        text: &'a [u8],
    },
    Drop {
        name: &'a [u8],
    },
    /// The position up to which a source (a database) has been processed. The source defines the bytes.
    Position {
        source: &'a [u8],
        position: &'a [u8],
    },
    /// A change that takes effect only if a later [`Entry::Commit`] has the same batch: several cores wrote it
    /// concurrently and it is atomic. `change` has the encoding of one of the entries above.
    Part {
        batch: u64,
        change: &'a [u8],
    },
    /// All parts of this batch precede this entry and take effect, each at its own position.
    Commit {
        batch: u64,
    },
    /// The batch ends without taking effect.
    Abort {
        batch: u64,
    },
    /// The definition of a space's name or alias, encoded by the owner of spaces. An empty record removes it.
    Space {
        name: &'a [u8],
        record: &'a [u8],
    },
    /// A change of a cluster slot, encoded by the owner of its rows. These are not idempotent: each builds on those
    /// before.
    Slot {
        slot: u16,
        record: &'a [u8],
    },
}

const PUT: u8 = 1;
const PUT_DEADLINE: u8 = 2;
const REMOVE: u8 = 3;
const REMOVE_RANGE: u8 = 4;
const REMOVE_FROM: u8 = 5;
const DEFINE: u8 = 6;
const DROP: u8 = 7;
const POSITION: u8 = 8;
const EXPIRE: u8 = 9;
const PERSIST: u8 = 10;
const PART: u8 = 11;
const COMMIT: u8 = 12;
const ABORT: u8 = 13;
const SLOT: u8 = 14;
const SPACE: u8 = 15;

/// A record of a slot may contain one row of any size and some metadata, or a chunk of rows.
const RECORD_BYTES_MAX: u64 = VALUE_BYTES_MAX + (1 << 20);

/// A kind, two varints and a deadline.
const HEAD_MAX: usize = 1 + 2 * VARINT_MAX + 8;
const VARINT_MAX: usize = 5;

impl<'a> Entry<'a> {
    /// Returns the size of its strings: nearly all of its encoded size.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Entry::Put { key, value, .. } => key.len() + value.len(),
            Entry::Expire { key, .. } | Entry::Remove { key } => key.len(),
            Entry::RemoveRange { lo, hi } => lo.len() + hi.map_or(0, <[u8]>::len),
            Entry::Define { name, text } => name.len() + text.len(),
            Entry::Drop { name } => name.len(),
            Entry::Position { source, position } => source.len() + position.len(),
            Entry::Part { change, .. } => change.len(),
            Entry::Commit { .. } | Entry::Abort { .. } => 0,
            Entry::Space { name, record } => name.len() + record.len(),
            Entry::Slot { record, .. } => record.len(),
        }
    }

    /// # Errors
    /// [`Error::Limit`].
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (first, second, first_min) = match *self {
            Entry::Put { key, value, .. } => (key, value, 1),
            Entry::Expire { key, .. } | Entry::Remove { key } => (key, &b""[..], 1),
            Entry::RemoveRange { lo, hi } => (lo, hi.unwrap_or_default(), 0),
            Entry::Define { name, text } => (name, text, 1),
            Entry::Space { name, record } => (name, record, 1),
            Entry::Drop { name } => (name, &b""[..], 1),
            Entry::Position { source, position } => (source, position, 1),
            Entry::Part { change, .. } => {
                // Checks the kind first: parts must not be nested, to bound the recursion.
                let is_change = matches!(change.first(), Some(PUT..=PERSIST));
                return match is_change.then(|| Entry::decode(change)) {
                    Some(Ok((_, []))) => Ok(()),
                    _ => Err(Error::Limit {
                        what: "part of a batch",
                        detail: "it must be one change".to_owned(),
                    }),
                };
            }
            Entry::Commit { .. } | Entry::Abort { .. } => return Ok(()),
            Entry::Slot { record, .. } => {
                return if (1..=RECORD_BYTES_MAX).contains(&(record.len() as u64)) {
                    Ok(())
                } else {
                    Err(limit_error(1, record.len()))
                };
            }
        };
        if (first_min..=KEY_BYTES_MAX).contains(&first.len())
            && second.len() as u64 <= VALUE_BYTES_MAX
        {
            return Ok(());
        }
        Err(limit_error(first.len(), second.len()))
    }

    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Entry::Put {
                key,
                value,
                deadline_ms: None,
            } => push(out, PUT, key, Some(value), None),
            Entry::Put {
                key,
                value,
                deadline_ms,
            } => push(out, PUT_DEADLINE, key, Some(value), deadline_ms),
            Entry::Expire {
                key,
                deadline_ms: None,
            } => push(out, PERSIST, key, None, None),
            Entry::Expire { key, deadline_ms } => push(out, EXPIRE, key, None, deadline_ms),
            Entry::Remove { key } => push(out, REMOVE, key, None, None),
            Entry::RemoveRange { lo, hi: None } => push(out, REMOVE_FROM, lo, None, None),
            Entry::RemoveRange { lo, hi } => push(out, REMOVE_RANGE, lo, hi, None),
            Entry::Define { name, text } => push(out, DEFINE, name, Some(text), None),
            Entry::Drop { name } => push(out, DROP, name, None, None),
            Entry::Position { source, position } => {
                push(out, POSITION, source, Some(position), None);
            }
            Entry::Part { batch, change } => {
                push(out, PART, &batch.to_le_bytes(), Some(change), None);
            }
            Entry::Commit { batch } => push(out, COMMIT, &batch.to_le_bytes(), None, None),
            Entry::Abort { batch } => push(out, ABORT, &batch.to_le_bytes(), None, None),
            Entry::Space { name, record } => push(out, SPACE, name, Some(record), None),
            Entry::Slot { slot, record } => {
                push(out, SLOT, &slot.to_le_bytes(), Some(record), None)
            }
        }
    }

    /// Decodes the entry at the start of `bytes`, and returns it with the rest.
    ///
    /// # Errors
    /// A description of the problem.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<(Entry<'a>, &'a [u8]), &'static str> {
        const SHORT: &str = "an entry extends past the end of its frame";
        let (&kind, rest) = bytes.split_first().ok_or(SHORT)?;
        let two = matches!(
            kind,
            PUT | PUT_DEADLINE | REMOVE_RANGE | DEFINE | POSITION | PART | SLOT | SPACE
        );
        let (first_size, rest) = varint(rest)?;
        let (second_size, rest) = if two { varint(rest)? } else { (0, rest) };
        let (deadline, rest) = if matches!(kind, PUT_DEADLINE | EXPIRE) {
            let (bytes, rest) = rest.split_first_chunk::<8>().ok_or(SHORT)?;
            (Some(u64::from_le_bytes(*bytes)), rest)
        } else {
            (None, rest)
        };
        let (first, rest) = rest.split_at_checked(first_size).ok_or(SHORT)?;
        let (second, rest) = rest.split_at_checked(second_size).ok_or(SHORT)?;
        let entry = match kind {
            PUT | PUT_DEADLINE => Entry::Put {
                key: first,
                value: second,
                deadline_ms: deadline,
            },
            EXPIRE | PERSIST => Entry::Expire {
                key: first,
                deadline_ms: deadline,
            },
            REMOVE => Entry::Remove { key: first },
            REMOVE_RANGE => Entry::RemoveRange {
                lo: first,
                hi: Some(second),
            },
            REMOVE_FROM => Entry::RemoveRange {
                lo: first,
                hi: None,
            },
            DEFINE => Entry::Define {
                name: first,
                text: second,
            },
            DROP => Entry::Drop { name: first },
            SPACE => Entry::Space {
                name: first,
                record: second,
            },
            POSITION => Entry::Position {
                source: first,
                position: second,
            },
            PART | COMMIT | ABORT => {
                let batch = first
                    .try_into()
                    .map_err(|_| "the number of a batch has 8 bytes")?;
                let batch = u64::from_le_bytes(batch);
                match kind {
                    PART => Entry::Part {
                        batch,
                        change: second,
                    },
                    COMMIT => Entry::Commit { batch },
                    _ => Entry::Abort { batch },
                }
            }
            SLOT => {
                let slot = first
                    .try_into()
                    .map_err(|_| "the number of a slot has 2 bytes")?;
                Entry::Slot {
                    slot: u16::from_le_bytes(slot),
                    record: second,
                }
            }
            _ => return Err("an entry has a kind that this version of larder does not know"),
        };
        entry
            .check()
            .map_err(|_| "an entry's key or value is outside its limits")?;
        Ok((entry, rest))
    }
}

#[inline]
fn push(out: &mut Vec<u8>, kind: u8, first: &[u8], second: Option<&[u8]>, deadline: Option<u64>) {
    let mut head = [0; HEAD_MAX];
    head[0] = kind;
    let mut size = put_varint(&mut head, 1, first.len());
    if let Some(second) = second {
        size = put_varint(&mut head, size, second.len());
    }
    if let Some(deadline) = deadline {
        head[size..size + 8].copy_from_slice(&deadline.to_le_bytes());
        size += 8;
    }
    let second = second.unwrap_or_default();
    out.reserve(HEAD_MAX + first.len() + second.len());
    out.extend_from_slice(&head[..size]);
    out.extend_from_slice(first);
    out.extend_from_slice(second);
}

/// Writes a LEB128 varint. The limits keep sizes below 2^35.
#[inline]
fn put_varint(head: &mut [u8; HEAD_MAX], mut at: usize, mut value: usize) -> usize {
    while value >= 0x80 {
        head[at] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    head[at] = value as u8;
    at + 1
}

#[inline]
fn varint(bytes: &[u8]) -> Result<(usize, &[u8]), &'static str> {
    let mut value = 0usize;
    for (index, &byte) in bytes.iter().take(VARINT_MAX).enumerate() {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            if byte == 0 && index > 0 {
                return Err("a size is not encoded in its shortest form");
            }
            return Ok((value, &bytes[index + 1..]));
        }
    }
    Err("a size is too long or truncated")
}

#[cold]
fn limit_error(first: usize, second: usize) -> Error {
    if first == 0 || first > KEY_BYTES_MAX {
        Error::Limit {
            what: "key",
            detail: format!("it has {first} bytes; a key or name has 1 to {KEY_BYTES_MAX}"),
        }
    } else {
        Error::Limit {
            what: "value",
            detail: format!("it has {second} bytes; a value has up to {VALUE_BYTES_MAX}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_decodes_to_itself() {
        let long = vec![b'x'; 300];
        let mut change = Vec::new();
        Entry::Remove { key: &long }.encode(&mut change);
        let entries = [
            Entry::Put {
                key: b"k",
                value: b"",
                deadline_ms: None,
            },
            Entry::Put {
                key: &long,
                value: &long,
                deadline_ms: Some(u64::MAX),
            },
            Entry::Expire {
                key: b"k",
                deadline_ms: Some(1),
            },
            Entry::Expire {
                key: b"k",
                deadline_ms: None,
            },
            Entry::Remove { key: &long },
            Entry::RemoveRange { lo: b"", hi: None },
            Entry::RemoveRange {
                lo: b"a",
                hi: Some(b"b"),
            },
            Entry::Define {
                name: b"n",
                text: b"t = copy s",
            },
            Entry::Drop { name: b"n" },
            Entry::Position {
                source: b"pg",
                position: b"\0\x01",
            },
            Entry::Part {
                batch: 7,
                change: &change,
            },
            Entry::Commit { batch: u64::MAX },
            Entry::Abort { batch: 0 },
            Entry::Slot {
                slot: 0x0201,
                record: &long,
            },
            Entry::Space {
                name: b"hotels",
                record: &long,
            },
            Entry::Space {
                name: b"inns",
                record: b"",
            },
        ];
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        let mut rest = &bytes[..];
        for entry in entries {
            let (decoded, after) = Entry::decode(rest).expect("decodes");
            assert_eq!(decoded, entry);
            rest = after;
        }
        assert!(rest.is_empty());
        for cut in 0..bytes.len() {
            let mut rest = &bytes[..cut];
            while !rest.is_empty() {
                match Entry::decode(rest) {
                    Ok((_, after)) => rest = after,
                    Err(_) => break,
                }
            }
        }
    }

    #[test]
    fn a_part_is_one_change_and_no_part() {
        let mut bytes = Vec::new();
        Entry::Remove { key: b"k" }.encode(&mut bytes);
        let two = [&bytes[..], &bytes].concat();
        let mut part = Vec::new();
        let change = &bytes;
        Entry::Part { batch: 1, change }.encode(&mut part);
        let mut deep = bytes.clone();
        for _ in 0..1000 {
            let mut outer = Vec::new();
            let change = &deep;
            Entry::Part { batch: 1, change }.encode(&mut outer);
            deep = outer;
        }
        assert!(
            Entry::Part {
                batch: 1,
                change: &bytes
            }
            .check()
            .is_ok()
        );
        for change in [&b""[..], &two, &part, &deep] {
            let entry = Entry::Part { batch: 1, change };
            assert!(entry.check().is_err());
            let mut bytes = Vec::new();
            entry.encode(&mut bytes);
            assert!(Entry::decode(&bytes).is_err());
        }
    }

    #[test]
    fn keys_and_values_have_limits() {
        let long = vec![0; KEY_BYTES_MAX + 1];
        assert!(Entry::Remove { key: b"" }.check().is_err());
        assert!(Entry::Remove { key: &long }.check().is_err());
        assert!(Entry::RemoveRange { lo: b"", hi: None }.check().is_ok());
    }
}
