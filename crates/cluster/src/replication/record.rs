//! The on-disk state of a slot: records in one log, in the order of events.
//!
//! | record | written when | effect on replay |
//! |---|---|---|
//! | `Term` | an owner or a replica enters a term, before it acknowledges anything in it | messages of an older term are rejected |
//! | `Clear` | a fill begins | all rows of the slot are removed; the copy is incomplete |
//! | `Rows` | a chunk of a fill arrives | adds rows; the copy is still incomplete |
//! | `Filled` | the last chunk has arrived, or a new slot starts empty | the copy is complete as of this position |
//! | `Change` | a change was made or received | it is in the tail, above the settled position |
//! | `Settled` | lazily, when changes are permanently acknowledged | the tail up to it becomes rows |
//! | `Cut` | another owner has begun that lacks these changes | the tail above it is discarded |
//! | `Gone` | the map no longer assigns the slot to this node | all rows of the slot are removed |
//!
//! At any time, the log thus contains a slot's term, whether the copy is complete, its rows as of `settled`, and the tail of
//! changes above it: [`SlotCopy`]. A torn or lost end of the log was never acknowledged, if the log is synced first; `recovery`
//! describes the other case.
//!
//! A snapshot of a slot consists of `Clear`, `Rows`, `Filled` at the settled position, `Term`, and a `Change` for each element of
//! the tail. The engine has the rows of an owned slot with the tail applied. Its snapshot must therefore be taken while nothing
//! is unacknowledged, or with the previous values.

use std::collections::VecDeque;

use crate::map::Term;

use super::change::{LogEntry, Position, Row, RowStore};
use super::codec::{DecodeError, Reader, put, put_entry, put_position, put_row};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Term { slot: u16, term: Term },
    Clear { slot: u16 },
    Rows { slot: u16, rows: Vec<Row> },
    Filled { slot: u16, at: Position },
    Change { slot: u16, entry: LogEntry },
    Settled { slot: u16, number: u64 },
    Cut { slot: u16, number: u64 },
    Gone { slot: u16 },
}

impl Record {
    pub fn slot(&self) -> u16 {
        match self {
            Record::Term { slot, .. }
            | Record::Clear { slot }
            | Record::Rows { slot, .. }
            | Record::Filled { slot, .. }
            | Record::Change { slot, .. }
            | Record::Settled { slot, .. }
            | Record::Cut { slot, .. }
            | Record::Gone { slot } => *slot,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let tag = match self {
            Record::Term { .. } => 0,
            Record::Clear { .. } => 1,
            Record::Rows { .. } => 2,
            Record::Filled { .. } => 3,
            Record::Change { .. } => 4,
            Record::Settled { .. } => 5,
            Record::Cut { .. } => 6,
            Record::Gone { .. } => 7,
        };
        out.push(tag);
        put(out, self.slot().into());
        match self {
            Record::Term { term, .. } => put(out, term.0),
            Record::Rows { rows, .. } => {
                put(out, rows.len() as u64);
                rows.iter().for_each(|row| put_row(out, row));
            }
            Record::Filled { at, .. } => put_position(out, *at),
            Record::Change { entry, .. } => put_entry(out, entry),
            Record::Settled { number, .. } | Record::Cut { number, .. } => put(out, *number),
            Record::Clear { .. } | Record::Gone { .. } => {}
        }
    }

    /// # Errors
    /// The bytes are not exactly one record.
    pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
        let mut from = Reader { bytes, at: 0 };
        let tag = from.byte()?;
        let slot = from.number()?;
        if slot >= u64::from(larder_types::SLOTS) {
            return from.wrong("a slot that does not exist");
        }
        let slot = slot as u16;
        let record = match tag {
            0 => Record::Term {
                slot,
                term: Term(from.number()?),
            },
            1 => Record::Clear { slot },
            2 => Record::Rows {
                slot,
                rows: from.list(2, Reader::row)?,
            },
            3 => Record::Filled {
                slot,
                at: from.position()?,
            },
            4 => Record::Change {
                slot,
                entry: from.entry()?,
            },
            5 => Record::Settled {
                slot,
                number: from.number()?,
            },
            6 => Record::Cut {
                slot,
                number: from.number()?,
            },
            7 => Record::Gone { slot },
            _ => return from.wrong("an unknown record kind"),
        };
        from.end()?;
        Ok(record)
    }
}

/// A copy of a slot: rows as of `settled`, which the host stores, and the changes above it.
///
/// 1. The tail's numbers are consecutive, starting after `settled`, except while the copy is being filled.
/// 2. Settled changes are permanently acknowledged: every owner has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SlotCopy {
    /// The latest known term.
    pub term: Term,
    /// All rows as of `settled` are present.
    pub is_complete: bool,
    pub settled: Position,
    pub tail: VecDeque<LogEntry>,
}

impl SlotCopy {
    /// The last change in the copy.
    pub fn last(&self) -> Position {
        self.tail.back().map_or(self.settled, |entry| entry.at)
    }

    /// Moves changes up to a number from the tail into the rows.
    pub fn settle(&mut self, slot: u16, number: u64, rows: &mut impl RowStore) {
        while let Some(entry) = self.tail.front()
            && entry.at.number <= number
        {
            rows.set(slot, entry.row.key(), entry.row.value());
            self.settled = entry.at;
            self.tail.pop_front();
        }
    }

    /// The last change that ends a transaction. The changes after it belong to an incomplete one.
    pub fn last_transaction_end(&self) -> u64 {
        let ends = self.tail.iter().rev().find(|entry| !entry.is_open);
        ends.map_or(self.settled, |entry| entry.at).number
    }

    pub fn cut(&mut self, number: u64) {
        while self.tail.back().is_some_and(|it| it.at.number > number) {
            self.tail.pop_back();
        }
    }

    /// Applies a record during recovery. A `copy` of `None` means that there is none.
    pub fn replay(copy: &mut Option<SlotCopy>, record: &Record, rows: &mut impl RowStore) {
        let slot = record.slot();
        let it = copy.get_or_insert_default();
        match record {
            Record::Term { term, .. } => it.term = *term,
            Record::Clear { .. } => {
                rows.clear(slot);
                *it = SlotCopy {
                    term: it.term,
                    ..SlotCopy::default()
                };
            }
            Record::Rows { rows: chunk, .. } => {
                for row in chunk {
                    rows.set(slot, row.key(), row.value());
                }
            }
            Record::Filled { at, .. } => {
                it.settle(slot, at.number, rows);
                it.settled = *at;
                it.is_complete = true;
            }
            Record::Change { entry, .. } => it.tail.push_back(entry.clone()),
            Record::Settled { number, .. } => it.settle(slot, *number, rows),
            Record::Cut { number, .. } => it.cut(*number),
            Record::Gone { .. } => {
                rows.clear(slot);
                *copy = None;
            }
        }
    }
}
