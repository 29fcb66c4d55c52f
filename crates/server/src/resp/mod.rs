//! The Redis protocol: sockets, sessions and the commands.
//!
//! ```text
//!  listener (one per core, SO_REUSEPORT)
//!     └─ session: bytes in ─► execute: Command ─┬─► dispatch ─► answered ────────────► output ─► one write
//!                                               │      └─► Pending ─► drive ─► answered ─┘
//!                                               └─ place ─► other cores: forwarded, remote
//! ```
//!
//! Each core has a thread with a runtime of its own; a connection stays on the core that accepted it
//! and shares nothing with others but the catalog's pointer.
//!
//! Read first `session` (the life of a connection), `execute` (what it has sent) and `state` (what a command may see and
//! change), then `dispatch` (which function answers). What cannot be answered at once is a `pending` command, whatever
//! it waits for, and `drive` does what is left of it. Rooms, by what they hold:
//!
//! | room | files |
//! |---|---|
//! | a connection | `session`, `execute`, `subject` (what a command is about), `state`, `output`, `count` (statistics and slow log), `stray_http`, `stray_tls`, `secured` (with TLS), `loading` (before the server serves) |
//! | commands of the connection and the server | `dispatch`, `connection`, `greeting` (AUTH and HELLO), `describe` |
//! | reads of stores | `reads`, `get_run` (GETs together), `scan`, `mixed` (with rows of tables) |
//! | tables and joins | `tables` |
//! | hashes and documents | `objects` |
//! | spaces | `spaces` |
//! | several cores | `place` (who executes), `forwarded`, `incoming` (their replies), `replies` (read again), `remote` (executed there) |
//! | other nodes of a cluster | `nodes` (what is asked of them, and what they ask) |
//! | what all share | `core`, `listen`; what is known of the clients is in `crate::clients` |
//!
//! Invariants:
//! 1. Replies leave in the order of their requests, also when a read waits for the disk.
//! 2. A request is answered from one snapshot of the catalog: never from a mix of versions.
//! 3. A connection that does not take its replies is not read from, beyond `server.output_buffer_bytes`.
//! 4. A silent connection holds no buffer.
//! 5. What is kept for one client, and for all together, is bounded: see `crate::clients`.
//! 6. A request is understood once, in `execute`. What waits, is queued or crosses to another core is that command
//!    (`larder_protocol::commands::OwnedCommand` or `Batch`), never its bytes.

mod cluster;
mod connection;
mod core;
mod count;
mod describe;
mod dispatch;
mod drive;
mod execute;
mod forwarded;
mod get_run;
mod greeting;
mod incoming;
mod known_scripts;
mod listen;
mod loading;
mod mixed;
mod nodes;
mod objects;
mod output;
mod pending;
mod place;
mod pubsub;
mod reads;
mod remote;
mod replies;
mod scan;
mod secured;
mod session;
#[cfg(test)]
mod simulation;
mod spaces;
mod state;
mod stray_http;
mod stray_tls;
mod subject;
pub(crate) mod tables;
mod tracking;

pub(crate) use listen::begin;
pub use listen::{RespListeners, RespThreads, bind};
pub use reads::set_disk_hook;
