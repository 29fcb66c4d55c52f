//! The encoding of messages and records: numbers as base-128 varints, byte strings with a size prefix. Decoding checks all input.

use std::fmt;

use crate::map::{Epoch, Term};

use super::change::{Entry, Position, Row};
use super::message::{Answer, Begin, Kind, Message, Part, SlotChanges};

/// Upper bound of change numbers, so that incrementing one never overflows.
const CHANGES_MAX: u64 = 1 << 63;

/// The reason why bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupted {
    /// The offset at which decoding stopped.
    pub offset: usize,
    pub what: &'static str,
}

impl fmt::Display for Corrupted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "these bytes are no message of replication: {} at offset {}",
            self.what, self.offset
        )
    }
}

impl std::error::Error for Corrupted {}

impl Message {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Stream { sequence, part } => {
                let tag = match part {
                    Part::Begin(_) => 0,
                    Part::Changes(_) => 1,
                    Part::Rows { .. } => 2,
                    Part::Filled { .. } => 3,
                    Part::Confirm(_) => 4,
                    Part::Beat => 5,
                };
                out.push(tag);
                put(out, *sequence);
                put_part(out, part);
            }
            Message::Acknowledged { sequence } => {
                out.push(6);
                put(out, *sequence);
            }
            Message::Answer { slot, term, answer } => {
                out.push(7);
                put_slot(out, *slot, *term);
                match answer {
                    Answer::At(at) => {
                        out.push(0);
                        put_position(out, *at);
                    }
                    Answer::Refused(known) => {
                        out.push(1);
                        put(out, known.0);
                    }
                    Answer::Lacks => out.push(2),
                    Answer::Ahead(at) => {
                        out.push(3);
                        put_position(out, *at);
                    }
                }
            }
        }
    }

    /// # Errors
    /// The bytes are not exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Message, Corrupted> {
        let mut from = Reader { bytes, at: 0 };
        let message = from.message()?;
        from.end()?;
        Ok(message)
    }
}

fn put_part(out: &mut Vec<u8>, part: &Part) {
    match part {
        Part::Begin(begin) => {
            put_slot(out, begin.slot, begin.term);
            match begin.kind {
                Kind::InSync => out.push(0),
                Kind::Fill(epoch) => {
                    out.push(1);
                    put(out, epoch.0);
                }
                Kind::FillOn(epoch) => {
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
        Part::Changes(slots) => {
            put(out, slots.len() as u64);
            for changes in slots {
                put_slot(out, changes.slot, changes.term);
                put(out, changes.settled);
                put(out, changes.entries.len() as u64);
                changes.entries.iter().for_each(|it| put_entry(out, it));
            }
        }
        Part::Rows { slot, term, rows } => {
            put_slot(out, *slot, *term);
            put(out, rows.len() as u64);
            for row in rows {
                put_row(out, row);
            }
        }
        Part::Filled { slot, term, at } => {
            put_slot(out, *slot, *term);
            put_position(out, *at);
        }
        Part::Confirm(slots) => {
            put(out, slots.len() as u64);
            for (slot, term) in slots {
                put_slot(out, *slot, *term);
            }
        }
        Part::Beat => {}
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

pub(super) fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
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
    pub fn wrong<T>(&self, what: &'static str) -> Result<T, Corrupted> {
        Err(Corrupted {
            offset: self.at,
            what,
        })
    }

    pub fn end(&self) -> Result<(), Corrupted> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            self.wrong("more bytes than the message has")
        }
    }

    pub fn byte(&mut self) -> Result<u8, Corrupted> {
        let Some(byte) = self.bytes.get(self.at) else {
            return self.wrong("the end");
        };
        self.at += 1;
        Ok(*byte)
    }

    pub fn number(&mut self) -> Result<u64, Corrupted> {
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

    fn take(&mut self, size: u64) -> Result<&'a [u8], Corrupted> {
        let left = &self.bytes[self.at..];
        if size > left.len() as u64 {
            return self.wrong("a size beyond the end");
        }
        let taken = &left[..size as usize];
        self.at += taken.len();
        Ok(taken)
    }

    pub fn slot(&mut self) -> Result<(u16, Term), Corrupted> {
        let slot = self.number()?;
        if slot >= u64::from(larder_types::SLOTS) {
            return self.wrong("a slot that does not exist");
        }
        Ok((slot as u16, Term(self.number()?)))
    }

    pub fn position(&mut self) -> Result<Position, Corrupted> {
        let (term, number) = (Term(self.number()?), self.number()?);
        if number < CHANGES_MAX {
            Ok(Position { term, number })
        } else {
            self.wrong("a number that no change ever has")
        }
    }

    pub fn entry(&mut self) -> Result<Entry, Corrupted> {
        let at = self.position()?;
        let is_open = match self.byte()? {
            0 => false,
            1 => true,
            _ => return self.wrong("a flag that is neither 0 nor 1"),
        };
        let row = self.row()?;
        Ok(Entry { at, row, is_open })
    }

    pub fn row(&mut self) -> Result<Row, Corrupted> {
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
        mut one: impl FnMut(&mut Self) -> Result<T, Corrupted>,
    ) -> Result<Vec<T>, Corrupted> {
        let count = self.number()?;
        if count > (self.bytes.len() - self.at) as u64 / size as u64 {
            return self.wrong("more in a list than there are bytes for");
        }
        (0..count).map(|_| one(self)).collect()
    }

    fn message(&mut self) -> Result<Message, Corrupted> {
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
                    0 => Answer::At(self.position()?),
                    1 => Answer::Refused(Term(self.number()?)),
                    2 => Answer::Lacks,
                    3 => Answer::Ahead(self.position()?),
                    _ => return self.wrong("an unknown answer"),
                };
                Ok(Message::Answer { slot, term, answer })
            }
            _ => self.wrong("an unknown message"),
        }
    }

    fn part(&mut self, tag: u8) -> Result<Part, Corrupted> {
        Ok(match tag {
            0 => {
                let (slot, term) = self.slot()?;
                let kind = match self.byte()? {
                    0 => Kind::InSync,
                    1 => Kind::Fill(Epoch(self.number()?)),
                    2 => Kind::FillOn(Epoch(self.number()?)),
                    _ => return self.wrong("an unknown beginning"),
                };
                Part::Begin(Begin {
                    slot,
                    term,
                    kind,
                    floor: self.position()?,
                    history: self.list(2, Reader::position)?,
                })
            }
            1 => Part::Changes(self.list(4, |from| {
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
                Part::Rows { slot, term, rows }
            }
            3 => {
                let (slot, term) = self.slot()?;
                let at = self.position()?;
                Part::Filled { slot, term, at }
            }
            4 => Part::Confirm(self.list(2, Reader::slot)?),
            _ => Part::Beat,
        })
    }
}
