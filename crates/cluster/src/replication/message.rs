//! The messages between places about slots. A stream is ordered, and ends with its connection.
//!
//! ```text
//!   owner                                   replica
//!   Begin(slot, term, history) ───────────►  cuts changes that the owner lacks; logs the term
//!                                  ◄───────  Reply: at 17 | rejected: a later term is known | changes are missing | ahead
//!   Changes(18, 19, ...) ─────────────────►  checks the term, logs
//!                                  ◄───────  Acknowledged: everything up to this message is in my log
//!   Rows, Filled ─────────────────────────►  (while filling) stores them, logs
//!   Confirm(slot, term) ──────────────────►  refuses if it knows a later term; acknowledges
//! ```

use crate::map::{Epoch, Term};

use super::change::{LogEntry, Position, Row};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// To a replica. The sequence numbers of a stream are consecutive, from 1.
    Stream { sequence: u64, part: StreamPart },
    /// To an owner: everything in the stream up to this number is in the log.
    Acknowledged { sequence: u64 },
    /// To an owner, about a slot in this term: the result of its `Begin`, or the rejection of something it sent.
    Reply {
        slot: u16,
        term: Term,
        reply: ReplicaReply,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamPart {
    Begin(Begin),
    Changes(Vec<SlotChanges>),
    /// Rows of a slot that is being filled, in key order.
    Rows {
        slot: u16,
        term: Term,
        rows: Vec<Row>,
    },
    /// The replica now has all rows as of this position.
    Filled {
        slot: u16,
        term: Term,
        at: Position,
    },
    /// Queries whether the replica knows a later term of these slots.
    Confirm(Vec<(u16, Term)>),
    /// A heartbeat without content.
    Heartbeat,
}

/// An owner starts replication of a slot to a replica, or continues it in another term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    pub slot: u16,
    pub term: Term,
    pub kind: BeginKind,
    /// The owner no longer has individual changes up to this position. All in-sync replicas have them.
    pub floor: Position,
    /// The last change of each term above the floor, in order. The last element is the owner's last change.
    pub history: Vec<Position>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BeginKind {
    InSync,
    /// A complete transfer: the replica must discard what it has of the slot.
    Fill(Epoch),
    /// Continues the fill of this epoch in another term.
    ResumeFill(Epoch),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotChanges {
    pub slot: u16,
    pub term: Term,
    /// All changes up to this number are permanently acknowledged.
    pub settled: u64,
    /// In order. The numbers have gaps only while the replica is being filled.
    pub entries: Vec<LogEntry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaReply {
    /// The replica has the owner's history up to here, and nothing beyond.
    At(Position),
    /// The replica knows this term and rejects older ones. If the term is not later, the replica does not follow the owner in
    /// this connection.
    Rejected(Term),
    /// The replica lacks changes that the owner no longer has individually, or has no complete copy: it must be filled.
    MissingChanges,
    /// The replica has an acknowledged change that the owner lacks: the owner has an old disk.
    Ahead(Position),
}
