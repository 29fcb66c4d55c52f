//! The encoding of messages and records: numbers as base-128 varints, byte strings with a size prefix. Decoding checks all input.

use std::fmt;

use crate::map::{Epoch, Term};

use super::change::{LogEntry, Position, Row};
use super::message::{Begin, BeginKind, Message, ReplicaReply, SlotChanges, StreamPart};

/// Upper bound of change numbers, so that incrementing one never overflows.
const CHANGES_MAX: u64 = 1 << 63;

/// The reason why bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeError {
    /// The offset at which decoding stopped.
    pub offset: usize,
    pub what: &'static str,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "invalid replication message: {} at offset {}",
            self.what, self.offset
        )
    }
}

impl std::error::Error for DecodeError {}

impl Message {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Stream { sequence, part } => {
                let tag = match part {
                    StreamPart::Begin(_) => 0,
                    StreamPart::Changes(_) => 1,
                    StreamPart::Rows { .. } => 2,
                    StreamPart::Filled { .. } => 3,
                    StreamPart::Confirm(_) => 4,
                    StreamPart::Heartbeat => 5,
                };
                out.push(tag);
                put(out, *sequence);
                put_part(out, part);
            }
            Message::Acknowledged { sequence } => {
                out.push(6);
                put(out, *sequence);
            }
            Message::Reply {
                slot,
                term,
                reply: answer,
            } => {
                out.push(7);
                put_slot(out, *slot, *term);
                match answer {
                    ReplicaReply::At(at) => {
                        out.push(0);
                        put_position(out, *at);
                    }
                    ReplicaReply::Rejected(known) => {
                        out.push(1);
                        put(out, known.0);
                    }
                    ReplicaReply::MissingChanges => out.push(2),
                    ReplicaReply::Ahead(at) => {
                        out.push(3);
                        put_position(out, *at);
                    }
                }
            }
        }
    }

    /// # Errors
    /// The bytes are not exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
        let mut from = Reader { bytes, at: 0 };
        let message = from.message()?;
        from.end()?;
        Ok(message)
    }
}

fn put_part(out: &mut Vec<u8>, part: &StreamPart) {
    match part {
        StreamPart::Begin(begin) => {
            put_slot(out, begin.slot, begin.term);
            match begin.kind {
                BeginKind::InSync => out.push(0),
                BeginKind::Fill(epoch) => {
                    out.push(1);
                    put(out, epoch.0);
                }
                BeginKind::ResumeFill(epoch) => {
                    out.push(2);
                    put(out, epoch.0);
                }
            }
            put_position(out, begin.floor);
            put(out, begin.history.len() as u64);
            for at in &begin.history {
                put_position(out, *at);
            }
        }
        StreamPart::Changes(slots) => {
            put(out, slots.len() as u64);
            for changes in slots {
                put_slot(out, changes.slot, changes.term);
                put(out, changes.settled);
                put(out, changes.entries.len() as u64);
                changes.entries.iter().for_each(|it| put_entry(out, it));
            }
        }
        StreamPart::Rows { slot, term, rows } => {
            put_slot(out, *slot, *term);
            put(out, rows.len() as u64);
            for row in rows {
                put_row(out, row);
            }
        }
        StreamPart::Filled { slot, term, at } => {
            put_slot(out, *slot, *term);
            put_position(out, *at);
        }
        StreamPart::Confirm(slots) => {
            put(out, slots.len() as u64);
            for (slot, term) in slots {
                put_slot(out, *slot, *term);
            }
        }
        StreamPart::Heartbeat => {}
    }
}

pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_slot(out: &mut Vec<u8>, slot: u16, term: Term) {
    put(out, slot.into());
    put(out, term.0);
}

pub(super) fn put_position(out: &mut Vec<u8>, at: Position) {
    put(out, at.term.0);
    put(out, at.number);
}

pub(super) fn put_entry(out: &mut Vec<u8>, entry: &LogEntry) {
    put_position(out, entry.at);
    out.push(u8::from(entry.is_open));
    put_row(out, &entry.row);
}

/// The value is preceded by its size plus one; 0 means no value.
pub(super) fn put_row(out: &mut Vec<u8>, row: &Row) {
    put(out, row.key().len() as u64);
    out.extend_from_slice(row.key());
    match row.value() {
        Some(value) => {
            put(out, value.len() as u64 + 1);
            out.extend_from_slice(value);
        }
        None => out.push(0),
    }
}

pub(super) struct Reader<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Reader<'a> {
    pub fn wrong<T>(&self, what: &'static str) -> Result<T, DecodeError> {
        Err(DecodeError {
            offset: self.at,
            what,
        })
    }

    pub fn end(&self) -> Result<(), DecodeError> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            self.wrong("trailing bytes")
        }
    }

    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        let Some(byte) = self.bytes.get(self.at) else {
            return self.wrong("unexpected end of input");
        };
        self.at += 1;
        Ok(*byte)
    }

    pub fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return self.wrong("a number of more than 64 bits");
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        self.wrong("a number of more than 64 bits")
    }

    fn take(&mut self, size: u64) -> Result<&'a [u8], DecodeError> {
        let left = &self.bytes[self.at..];
        if size > left.len() as u64 {
            return self.wrong("a size beyond the end of the input");
        }
        let taken = &left[..size as usize];
        self.at += taken.len();
        Ok(taken)
    }

    pub fn slot(&mut self) -> Result<(u16, Term), DecodeError> {
        let slot = self.number()?;
        if slot >= u64::from(larder_types::SLOTS) {
            return self.wrong("a slot that does not exist");
        }
        Ok((slot as u16, Term(self.number()?)))
    }

    pub fn position(&mut self) -> Result<Position, DecodeError> {
        let (term, number) = (Term(self.number()?), self.number()?);
        if number < CHANGES_MAX {
            Ok(Position { term, number })
        } else {
            self.wrong("a change number above the maximum")
        }
    }

    pub fn entry(&mut self) -> Result<LogEntry, DecodeError> {
        let at = self.position()?;
        let is_open = match self.byte()? {
            0 => false,
            1 => true,
            _ => return self.wrong("a flag that is neither 0 nor 1"),
        };
        let row = self.row()?;
        Ok(LogEntry { at, row, is_open })
    }

    pub fn row(&mut self) -> Result<Row, DecodeError> {
        let size = self.number()?;
        let key = self.take(size)?;
        let value = match self.number()? {
            0 => None,
            size => Some(self.take(size - 1)?),
        };
        Ok(Row::new(key, value))
    }

    /// Decodes a list whose elements have at least `size` bytes each, so that the count can be checked before memory is reserved.
    pub fn list<T>(
        &mut self,
        size: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.number()?;
        if count > (self.bytes.len() - self.at) as u64 / size as u64 {
            return self.wrong("a list length beyond the end of the input");
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn message(&mut self) -> Result<Message, DecodeError> {
        let tag = self.byte()?;
        match tag {
            0..=5 => {
                let sequence = self.number()?;
                let part = self.part(tag)?;
                Ok(Message::Stream { sequence, part })
            }
            6 => Ok(Message::Acknowledged {
                sequence: self.number()?,
            }),
            7 => {
                let (slot, term) = self.slot()?;
                let answer = match self.byte()? {
                    0 => ReplicaReply::At(self.position()?),
                    1 => ReplicaReply::Rejected(Term(self.number()?)),
                    2 => ReplicaReply::MissingChanges,
                    3 => ReplicaReply::Ahead(self.position()?),
                    _ => return self.wrong("an unknown reply kind"),
                };
                Ok(Message::Reply {
                    slot,
                    term,
                    reply: answer,
                })
            }
            _ => self.wrong("an unknown message kind"),
        }
    }

    fn part(&mut self, tag: u8) -> Result<StreamPart, DecodeError> {
        Ok(match tag {
            0 => {
                let (slot, term) = self.slot()?;
                let kind = match self.byte()? {
                    0 => BeginKind::InSync,
                    1 => BeginKind::Fill(Epoch(self.number()?)),
                    2 => BeginKind::ResumeFill(Epoch(self.number()?)),
                    _ => return self.wrong("an unknown kind of Begin"),
                };
                StreamPart::Begin(Begin {
                    slot,
                    term,
                    kind,
                    floor: self.position()?,
                    history: self.list(2, Reader::position)?,
                })
            }
            1 => StreamPart::Changes(self.list(4, |from| {
                let (slot, term) = from.slot()?;
                Ok(SlotChanges {
                    slot,
                    term,
                    settled: from.number()?,
                    entries: from.list(5, Reader::entry)?,
                })
            })?),
            2 => {
                let (slot, term) = self.slot()?;
                let rows = self.list(2, Reader::row)?;
                StreamPart::Rows { slot, term, rows }
            }
            3 => {
                let (slot, term) = self.slot()?;
                let at = self.position()?;
                StreamPart::Filled { slot, term, at }
            }
            4 => StreamPart::Confirm(self.list(2, Reader::slot)?),
            _ => StreamPart::Heartbeat,
        })
    }
}
