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

/// Commands for a core.
pub struct Requests {
    pub batch: Batch,
    pub proto: Proto,
    pub client: Arc<Client>,
    pub ticket: Option<u64>,
    pub execution: Execution,
    /// The shared batch of the journal that their writes belong to; see `crate::tables::Tables::in_shared_batch`.
    pub shared_batch: Option<u64>,
    pub pieces: mpsc::Sender<ReplyPiece>,
}

/// Some of the replies, or a piece of a long one.
pub struct ReplyPiece {
    pub bytes: Vec<u8>,
    /// Where replies end in it.
    pub ends: Vec<usize>,
    /// When they were executed, if at one moment.
    pub moment: Option<(u64, u64)>,
    /// What a transaction's part changed.
    pub changes: Vec<LogEntry>,
}
