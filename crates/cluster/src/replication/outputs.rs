//! What a place puts out in a turn, for its host to do.

use crate::map::{Epoch, Term};

use super::change::Place;
use super::message::Message;
use super::record::Record;

/// To be emptied by the host at the end of each turn: records to the log, in their order, then messages.
#[derive(Debug, Default)]
pub struct Outputs {
    /// The n-th record that was ever put out here is durable when the host has said `durable(n)`.
    pub records: Vec<Record>,
    pub messages: Vec<(Place, Message)>,
    pub asks: Vec<Ask>,
    pub events: Vec<Event>,
}

/// A change of the map that an owner wants, of one slot, if it still has this term there. Asked again until the map shows what came of
/// it; so it may be made twice, and is then refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    pub slot: u16,
    pub term: Term,
    pub what: Wanted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// This replica is in sync no more: nobody waits for it.
    Out(Place),
    /// This replica, filled since this epoch, has everything. From now on its acknowledgements are waited for.
    Into(Place, Epoch),
    /// The filling is given up.
    EndFill(Place),
    /// This replica in sync becomes the owner, if the map is still that of this epoch: the owner answers nobody of the slot while it goes by it.
    Move(Place, Epoch),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// More changes, or reads that waited to be confirmed, may be answered.
    Progress,
    /// The place owns the slot from now on: its rows are to be where commands find them.
    Opened(u16),
    /// The place owns the slot no more, and keeps a copy, or none. What waits for its tickets is unknown.
    Closed(u16),
    /// The map wants this own slot to be another's: see [`Owner::released`](super::Owner::released).
    Leaving(u16),
    /// The map does not want that any more.
    Stays(u16),
    /// The map makes this place the owner, and it has no whole copy: a person must decide.
    Missing(u16),
    /// A replica knows more than this owner: its disk is an old one. It takes neither reads nor writes of the slot any more.
    Behind(u16),
}
