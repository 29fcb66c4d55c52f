//! What places say to one another about slots. A stream has an order, and ends with its connection.
//!
//! ```text
//!   owner                                   replica
//!   Begin(slot, term, what I have) ───────►  cuts what is not the owner's; logs the term
//!                                  ◄───────  Answer: I am at 17 | refused: I know a later term | I lack | I have more
//!   Changes(18, 19, ...) ─────────────────►  checks the term, logs
//!                                  ◄───────  Acknowledged: all up to this message is in my log
//!   Rows, Filled ─────────────────────────►  (a filling replica) keeps them, logs
//!   Confirm(slot, term) ──────────────────►  refuses if it knows a later term; acknowledges
//! ```

use crate::map::{Epoch, Term};

use super::change::{Entry, Position, Row};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// To a replica. Numbers of a stream go up by one, from 1 on.
    Stream { sequence: u64, part: Part },
    /// To an owner: all of the stream up to this is in the log.
    Acknowledged { sequence: u64 },
    /// To an owner, of a slot in this term: what its begin came to, or that what it sent was not taken.
    Answer {
        slot: u16,
        term: Term,
        answer: Answer,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Begin(Begin),
    Changes(Vec<SlotChanges>),
    /// Rows of a slot that is filled, in the order of their keys.
    Rows {
        slot: u16,
        term: Term,
        rows: Vec<Row>,
    },
    /// The replica has all rows, as they were at this position.
    Filled {
        slot: u16,
        term: Term,
        at: Position,
    },
    /// Whether the replica knows a later term of these slots.
    Confirm(Vec<(u16, Term)>),
    /// Nothing: to hear of each other.
    Beat,
}

/// An owner begins with a replica, or goes on in another term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    pub slot: u16,
    pub term: Term,
    pub kind: Kind,
    /// All that is below this the owner has no more as single changes; everybody in sync has it.
    pub floor: Position,
    /// Of the changes above it: the last of each term, in order. The last of all is the owner's own.
    pub history: Vec<Position>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    InSync,
    /// All rows come anew: what the replica has of the slot is to be thrown away.
    Fill(Epoch),
    /// The filling of this epoch goes on, in another term.
    FillOn(Epoch),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotChanges {
    pub slot: u16,
    pub term: Term,
    /// All changes up to this number are acknowledged for good.
    pub settled: u64,
    /// In order. Their numbers have gaps only while the replica is filled.
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The replica has the owner's history up to here, and nothing beyond.
    At(Position),
    /// The replica knows this term, and takes nothing of an older one; or, if it is not later, does not follow the owner in this connection.
    Refused(Term),
    /// The replica lacks what the owner has no more as single changes, or has no whole copy: it must be filled.
    Lacks,
    /// The replica knows that a change is acknowledged that the owner does not have: the owner has an old disk.
    Ahead(Position),
}
