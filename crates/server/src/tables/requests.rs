//! What one core asks of another for a connection: commands, how to execute them, and their replies as they go back.

use std::sync::Arc;

use larder_join::LogEntry;
use larder_protocol::commands::Batch;
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;

use crate::clients::Client;

/// How a core executes the requests of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// Each by itself as a client's would be, long ones in several turns.
    OneByOne,
    /// Each to its end, while the cores are paused.
    ToEnd,
    /// As `ToEnd`, and they are all that a transaction has for this core: what they changed comes with the last reply.
    TransactionPart,
    /// As one transaction; one reply.
    Transaction,
    /// One, to its end, only so that what it reads is here when a transaction reads it: the reply is OK, or why that cannot be.
    Prefetch,
}

/// Who made sure that a core has what is asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Who sent it: owners do not change, or the cores are paused.
    Settled,
    /// Nobody: the core executes what it owns of the keys. Of rows that every core has, it executes its own part, if it owns what it owned by the map of this
    /// epoch.
    Core { epoch: u64 },
    /// Nobody: the node executes what its cores own, of ranges its own part, and says [`ReplyPiece::not_done`] if it does not own all keys.
    /// It has the map of this epoch, or a later one.
    Node { epoch: u64 },
}

/// Commands for a core.
pub struct Requests {
    pub batch: Batch,
    pub proto: Proto,
    pub client: Arc<Client>,
    pub ticket: Option<u64>,
    pub execution: Execution,
    /// The shared batch of the journal that their writes belong to; see `crate::tables::Tables::in_shared_batch`.
    pub shared_batch: Option<u64>,
    pub scope: Scope,
    /// The versions of stores, by name, that what asks them has begun with.
    pub versions: Vec<(String, u64)>,
    pub pieces: mpsc::Sender<ReplyPiece>,
}

/// Some of the replies, or a piece of a long one.
#[derive(Default)]
pub struct ReplyPiece {
    pub bytes: Vec<u8>,
    /// Where replies end in it.
    pub ends: Vec<usize>,
    /// When they were executed, if at one moment.
    pub moment: Option<(u64, u64)>,
    /// What a transaction's part changed.
    pub changes: Vec<LogEntry>,
    /// Nothing was executed, and nothing will be: why.
    pub not_done: Option<String>,
}
