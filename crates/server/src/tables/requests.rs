//! Requests of one core to another on behalf of a connection: commands, how to execute them, and their replies.

use std::sync::Arc;

use larder_join::LogEntry;
use larder_protocol::commands::Batch;
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;

use crate::clients::Client;

/// The mode in which a core executes the requests of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// Each command separately, like a client's; long ones in several turns.
    OneByOne,
    /// Each command completely, while the cores are paused.
    Uninterrupted,
    /// Like `Uninterrupted`, and as a transaction's complete part for this core: the last reply carries the changes.
    TransactionPart,
    /// As one transaction, with one reply.
    Transaction,
    /// One command, completely, only to make the rows that it reads available to a transaction. The reply is OK, or the
    /// reason of failure.
    Prefetch,
}

/// The owner of the keys of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The sender has verified it: owners do not change, or the cores are paused.
    Verified,
    /// Not verified: the core executes the part of the keys that it owns. For rows that every core has, it executes its
    /// own part, provided that it owns the slots that it owned in the map of this epoch.
    Core { epoch: u64 },
    /// Not verified: the node executes the part that its cores own, for ranges its own part, and returns
    /// [`ReplyPiece::not_done`] if it does not own all keys. It must have the map of this epoch or a later one.
    Node { epoch: u64 },
}

/// Commands for a core.
pub struct Requests {
    pub batch: Batch,
    pub proto: Proto,
    pub client: Arc<Client>,
    pub ticket: Option<u64>,
    pub execution: Execution,
    /// The journal's shared batch that the writes belong to; see `crate::tables::Tables::in_shared_batch`.
    pub shared_batch: Option<u64>,
    pub scope: Scope,
    /// The versions of stores, by name, that the requesting command started with.
    pub versions: Vec<(String, u64)>,
    pub pieces: mpsc::Sender<ReplyPiece>,
}

/// Some of the replies, or a piece of a long one.
#[derive(Default)]
pub struct ReplyPiece {
    pub bytes: Vec<u8>,
    /// End offsets of replies in `bytes`.
    pub ends: Vec<usize>,
    /// When they were executed, if at one moment.
    pub moment: Option<(u64, u64)>,
    /// The changes of a transaction's part.
    pub changes: Vec<LogEntry>,
    /// Set if nothing was and will be executed: the reason.
    pub not_done: Option<String>,
}
