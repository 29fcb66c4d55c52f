//! Primary and backups of the slots of tables: sans-IO state machines for each place.
//!
//! ```text
//!   host: commands, log, connections, map               another place
//!      │ change, durable, assign, tick                        ▲
//!      ▼                                                      │ messages
//!   place::Replication ── owner::Owner ── streams ────────────┤
//!                      └─ replica::Replica ── answers ────────┘
//! ```
//!
//! A write, file by file: the host executes it and tells [`Replication::change`] (`place`); `owner/mod` gives it a number, puts it into the slot's log
//! (`owner/slot`) and hands out a [`Ticket`]; `owner/send` sends it at the end of the turn (`message`, `codec`) through `owner/peer`; the
//! other place's `replica` checks the term, has it logged (`record`) and acknowledges it once that is durable; `owner/receive` takes
//! that in, and when everybody in sync has it, [`Owner::outcome`] says that the reply may leave.
//!
//! What a node may keep when it returns is in `recovery`, until when it may act in `lease`. The map decides who is what (`crate::map`); here is only
//! what follows from it.

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

pub use change::{Assignment, Changed, Entry, Place, Position, Row, Rows};
pub use codec::Corrupted;
pub use in_memory::RowsInMemory;
pub use lease::Lease;
pub use message::{Answer, Begin, Kind, Message, Part, SlotChanges};
pub use outputs::{Ask, Event, Outputs, Wanted};
pub use owner::{Admission, Confirmation, Figures, Outcome, Owner, ReadWait, Ticket, Uncommitted};
pub use place::Replication;
pub use record::{Copy, Record};
pub use replica::Replica;

/// How much may be under way, and how long is too long.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes on their way to one place.
    pub window_bytes: usize,
    /// Bytes of changes that are not acknowledged, of all slots of a place; beyond it writes wait.
    pub unacknowledged_bytes_max: usize,
    /// Rows of one message of a filling, and of all that are sent in one turn.
    pub chunk_bytes: usize,
    /// Of fillings among what is on its way to one place: changes are behind it.
    pub fill_window_bytes: usize,
    /// All fillings of a place together.
    pub fill_bytes_per_second: u64,
    /// A replica that owes an acknowledgement for longer is asked out. Of what lies between two looks at the time no more than a fifth of it counts.
    pub silent_ms: u64,
    /// What is acknowledged may take longer by as much as it weighs: one large row is no silence.
    pub slowest_bytes_per_second: u64,
    /// What the map has not answered is asked again after so long.
    pub ask_again_ms: u64,
    /// A connection on which nothing else is said carries a beat so often.
    pub beat_ms: u64,
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
            ask_again_ms: 500,
            beat_ms: 250,
        }
    }
}

/// Mistakes that others have made, for the simulation to find. All off outside tests.
#[derive(Debug, Clone, Copy, Default)]
#[doc(hidden)]
pub struct Bugs {
    /// A change is committed when one replica has it.
    pub acknowledges_before_all: bool,
    /// A replica acknowledges what is not in its log.
    pub acknowledges_before_its_log: bool,
    /// The owner's own log is not waited for.
    pub ignores_its_own_log: bool,
    /// A replica takes changes of older terms.
    pub ignores_terms: bool,
    /// A replica does not cut what the new owner has not.
    pub keeps_its_tail: bool,
    /// A new owner takes for committed what it has.
    pub promotes_without_reconciling: bool,
    /// Reads do not wait for changes of their keys.
    pub reads_what_is_uncommitted: bool,
}
