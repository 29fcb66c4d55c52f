//! The Redis protocol: sockets, sessions and the commands.
//!
//! ```text
//!  listener (one per core, SO_REUSEPORT)
//!     └─ session: bytes in ─► decode ─► dispatch ─► output ─► one write
//!                                          │ reads: from memory at once
//!                                          └ reads: by a disk thread, while others go on
//! ```
//!
//! Each core has a thread with a runtime of its own; a connection stays on the core that accepted it
//! and shares nothing with others but the catalog's pointer. A request goes through `session` (what
//! a connection does), `dispatch` (which function answers), `reads` (lookups) and `output` (what is
//! to be sent). `clients` knows all connections; `core` holds what the sessions of a thread share. `foreign` ends
//! connections that bring HTTP.
//!
//! Invariants:
//! 1. Replies leave in the order of their requests, also when a read waits for the disk.
//! 2. A request is answered from one snapshot of the catalog: never from a mix of versions.
//! 3. A connection that does not take its replies is not read from, beyond `server.output_buffer_bytes`.
//! 4. A silent connection holds no buffer.
//! 5. What is kept for one client, and for all together, is bounded: see `memory`.

mod clients;
mod connection;
mod core;
mod describe;
mod dispatch;
mod drive;
mod execute;
mod finish;
mod foreign;
mod gathered;
mod get_run;
mod listen;
mod memory;
mod mixed;
mod output;
mod pending;
mod placed;
mod reads;
mod registration;
mod remote;
mod requests;
mod scan;
mod session;
mod state;
pub(crate) mod tables;
mod unsent;

pub use listen::{RespListeners, RespThreads, bind, spawn};
pub use reads::set_disk_hook;
pub use requests::Requests;
pub(crate) use scan::matches;
pub use tables::Cursors;
