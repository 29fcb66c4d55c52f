//! Primary-backup replication of the slots of tables: sans-IO state machines for each place.
//!
//! ```text
//!   host: commands, log, connections, map               another place
//!      │ change, durable, assign, tick                        ▲
//!      ▼                                                      │ messages
//!   place::Replication ── owner::Owner ── streams ────────────┤
//!                      └─ replica::Replica ── answers ────────┘
//! ```
//!
//! The path of a write, file by file. The host executes it and calls [`Replication::change`] (`place`). `owner/mod` assigns a
//! number, appends the change to the slot's log (`owner/slot`) and returns a [`Ticket`]. At the end of the turn, `owner/send`
//! sends it (`message`, `codec`) through `owner/peer`. At the other place, `replica` checks the term, logs the change (`record`)
//! and acknowledges it once it is durable. `owner/receive` handles the acknowledgement. When all in-sync replicas have the
//! change, [`Owner::outcome`] reports that the reply may be sent.
//!
//! `recovery` decides what a returning node may keep, and `lease` until when it may serve. The map assigns the roles
//! (`crate::map`); this module only executes them.

mod change;
mod codec;
mod in_memory;
mod lease;
mod message;
mod outputs;
mod owner;
mod place;
mod record;
pub mod recovery;
mod replica;

pub use change::{Assignment, ExecutedChange, LogEntry, Place, Position, Row, RowStore};
pub use codec::DecodeError;
pub use in_memory::InMemoryRows;
pub use lease::RenewalLease;
pub use message::{Begin, BeginKind, Message, ReplicaReply, SlotChanges, StreamPart};
pub use outputs::{MapRequest, Outputs, ReplicationEvent, SlotMapChange};
pub use owner::{
    Admission, Confirmation, Outcome, Owner, ReadWait, ReplicationStats, Ticket, Uncommitted,
};
pub use place::Replication;
pub use record::{Record, SlotCopy};
pub use replica::Replica;

/// Limits on data in flight, and timeouts.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum bytes in flight to one place.
    pub window_bytes: usize,
    /// Maximum bytes of unacknowledged changes of all slots of a place. Above it, writes wait.
    pub unacknowledged_bytes_max: usize,
    /// Bytes of rows per message of a fill, and per turn.
    pub chunk_bytes: usize,
    /// Maximum bytes of fills in flight to one place: changes queue behind them.
    pub fill_window_bytes: usize,
    /// The rate of all fills of a place together.
    pub fill_bytes_per_second: u64,
    /// A replica that owes an acknowledgement for longer is removed from the in-sync set. Of the time between two ticks, at most
    /// a fifth of this limit counts.
    pub silent_ms: u64,
    /// The allowance for large messages: an acknowledgement may take longer in proportion to the size, so that one large row does
    /// not count as silence.
    pub slowest_bytes_per_second: u64,
    /// The interval after which an unanswered request to the map is repeated.
    pub request_retry_ms: u64,
    /// The interval of heartbeats on an idle connection.
    pub heartbeat_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            window_bytes: 4 << 20,
            unacknowledged_bytes_max: 64 << 20,
            chunk_bytes: 8 << 10,
            fill_window_bytes: 256 << 10,
            fill_bytes_per_second: 4 << 20,
            silent_ms: 1_500,
            slowest_bytes_per_second: 8 << 20,
            request_retry_ms: 500,
            heartbeat_ms: 250,
        }
    }
}

/// Known bugs of other systems, for the simulation to find. All are off outside tests.
#[derive(Debug, Clone, Copy, Default)]
#[doc(hidden)]
pub struct Bugs {
    /// A change is committed when one replica has it.
    pub acknowledges_before_all: bool,
    /// A replica acknowledges changes that are not in its log.
    pub acknowledges_before_logging: bool,
    /// The owner does not wait for its own log.
    pub ignores_own_log: bool,
    /// A replica accepts changes of older terms.
    pub ignores_terms: bool,
    /// A replica does not cut changes that the new owner lacks.
    pub keeps_tail: bool,
    /// A new owner treats everything that it has as committed.
    pub promotes_without_reconciling: bool,
    /// Reads do not wait for changes of their keys.
    pub reads_uncommitted: bool,
}
