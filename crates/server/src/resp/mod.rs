//! The Redis protocol: sockets, sessions and commands.
//!
//! ```text
//!  listener (one per core, SO_REUSEPORT)
//!     └─ session: bytes in ─► execute: Command ─┬─► dispatch ─► answered ────────────► output ─► one write
//!                                               │      └─► Pending ─► drive ─► answered ─┘
//!                                               └─ place ─► other cores: forwarded, remote
//! ```
//!
//! Each core has a thread with its own runtime. A connection stays on the core that accepted it. The only thing it
//! shares with other cores is the catalog's pointer.
//!
//! Start with `session` (the life of a connection), `execute` (the requests it has received) and `state` (what a
//! command may read and change), then `dispatch`. `handlers` is the table of the functions that execute the commands. A
//! command that must wait becomes a `pending` command, which `drive` completes.
//!
//! A new command is a row in the table of `larder_protocol::commands`, a function in one of the modules below, a row in
//! `handlers`, and a script in `testdata/scripts`. If several cores may have its keys, its row in `handlers` defines how
//! their replies are combined.
//!
//! The modules by area:
//!
//! | area | modules |
//! |---|---|
//! | a connection | `session`, `execute`, `subject` (the kind of keys of a command), `state`, `output`, `command_stats` (statistics and slow log), `stray_http`, `stray_tls`, `tls_connection`, `loading` (before the server is ready) |
//! | the functions of commands | `handlers`, `dispatch` |
//! | commands on the connection and the server | `connection`, `greeting` (AUTH and HELLO), `describe` |
//! | reads of stores | `reads`, `get_run` (batched GETs), `scan`, `mixed_reads` (combined with rows of tables) |
//! | tables and joins | `tables` |
//! | hashes and documents | `objects` |
//! | spaces | `spaces` |
//! | several cores | `place` (chooses the core), `forwarded`, `incoming` (replies of other cores), `reply_decoding`, `remote` (executes requests of other cores) |
//! | other nodes of a cluster | `nodes` (requests to and from them) |
//! | shared by all | `core`, `listen`; data about clients is in `crate::clients` |
//!
//! Invariants:
//! 1. Replies are sent in the order of their requests, even if a read waits for the disk.
//! 2. A request is answered from one snapshot of the catalog, never from a mix of versions.
//! 3. The server stops reading from a connection whose unread replies exceed `server.output_buffer_bytes`.
//! 4. An idle connection holds no buffer.
//! 5. The memory of one client, and of all clients together, is bounded: see `crate::clients`.
//! 6. A request is decoded once, in `execute`. A request that waits, is queued or is sent to another core is kept as a
//!    command (`larder_protocol::commands::OwnedCommand` or `Batch`), never as bytes.

mod cluster;
mod command_stats;
mod connection;
mod core;
mod describe;
mod dispatch;
mod drive;
mod execute;
mod forwarded;
mod get_run;
mod greeting;
mod handlers;
mod incoming;
mod known_scripts;
mod listen;
mod loading;
mod mixed_reads;
mod nodes;
mod objects;
mod output;
mod pending;
mod place;
mod pubsub;
mod reads;
mod remote;
mod reply_decoding;
mod scan;
mod session;
#[cfg(test)]
mod simulation;
mod spaces;
mod state;
mod stray_http;
mod stray_tls;
mod subject;
pub(crate) mod tables;
mod tls_connection;
mod tracking;

pub(crate) use listen::start_loading;
pub use listen::{RespListeners, RespThreads, bind};
pub use reads::set_disk_hook;
