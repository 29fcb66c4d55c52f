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
    pub requests: Vec<MapRequest>,
    pub events: Vec<ReplicationEvent>,
}

/// A change of the map for one slot, requested by its owner, and valid only for this term. It is repeated until the map shows the
/// result, so it may be made twice; the second is then rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapRequest {
    pub slot: u16,
    pub term: Term,
    pub change: SlotMapChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotMapChange {
    /// This replica is no longer in sync: no write waits for it.
    RemoveReplica(Place),
    /// This replica, filled since this epoch, is complete. Its acknowledgements are awaited from now on.
    AddReplica(Place, Epoch),
    /// The fill is aborted.
    AbortFill(Place),
    /// This in-sync replica becomes the owner, if the map still has this epoch. Under that map, the owner serves no requests for
    /// the slot.
    MoveOwnership(Place, Epoch),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationEvent {
    /// Further changes, or reads that waited for confirmation, may be answered.
    Progress,
    /// The place now owns the slot: its rows must become accessible to commands.
    Opened(u16),
    /// The place no longer owns the slot, and keeps a copy or none. The outcome of waiting tickets is unknown.
    Closed(u16),
    /// The map assigns this owned slot to another node: see [`Owner::complete_release`](super::Owner::complete_release).
    MoveRequested(u16),
    /// The map no longer does so.
    MoveCancelled(u16),
    /// The map makes this place the owner, but it has no complete copy: an operator must decide.
    CopyMissing(u16),
    /// A replica has changes that this owner lacks, because the owner has an old disk. It accepts neither reads nor writes of the
    /// slot any more.
    OwnerBehind(u16),
}
