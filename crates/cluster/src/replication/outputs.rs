//! The outputs of a place in a turn, for its host to execute.

use crate::map::{Epoch, Term};

use super::change::Place;
use super::message::Message;
use super::record::Record;

/// The host empties these at the end of each turn: records to the log, in order, then messages.
#[derive(Debug, Default)]
pub struct Outputs {
    /// The host calls `durable(n)` when the n-th record ever put out is durable.
    pub records: Vec<Record>,
    pub messages: Vec<(Place, Message)>,
    pub asks: Vec<Ask>,
    pub events: Vec<Event>,
}

/// A change of the map for one slot, requested by its owner, and valid only for this term. It is repeated until the map shows the
/// result, so it may be made twice; the second is then rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub slot: u16,
    pub term: Term,
    pub what: Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// This replica is no longer in sync: no write waits for it.
    Out(Place),
    /// This replica, filled since this epoch, is complete. Its acknowledgements are awaited from now on.
    Into(Place, Epoch),
    /// The fill is aborted.
    EndFill(Place),
    /// This in-sync replica becomes the owner, if the map still has this epoch. Under that map, the owner serves no requests for
    /// the slot.
    Move(Place, Epoch),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Further changes, or reads that waited for confirmation, may be answered.
    Progress,
    /// The place now owns the slot: its rows must become accessible to commands.
    Opened(u16),
    /// The place no longer owns the slot, and keeps a copy or none. The outcome of waiting tickets is unknown.
    Closed(u16),
    /// The map assigns this owned slot to another node: see [`Owner::released`](super::Owner::released).
    Leaving(u16),
    /// The map no longer does so.
    Stays(u16),
    /// The map makes this place the owner, but it has no complete copy: an operator must decide.
    Missing(u16),
    /// A replica has changes that this owner lacks, because the owner has an old disk. It accepts neither reads nor writes of the
    /// slot any more.
    Behind(u16),
}
