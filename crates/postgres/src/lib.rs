//! PostgreSQL as the source of truth of tables. Ranges are loaded by query when they are read, and kept up to date by
//! logical replication.
//!
//! ```text
//!   a read misses ─► Database::load ─► session ─► work::load ── SELECT ──► PostgreSQL
//!                                       │            │ rows, snapshot, position  │
//!                                     merge ◄────────┘                          │ pgoutput
//!                                       ▲                                        ▼
//!                                       └── changes ◄── pgoutput ◄── session ◄───┘
//!                                       │
//!                                       └─► Event::Supply, Event::Apply ─► the tables
//! ```
//!
//! Start with `merge`, which explains why loads and the stream together apply every commit exactly once. Continue with
//! `database` (the life of a connection), `session` (the work on one connection), `mapping` (rows as keys),
//! `conditions` (ranges as SQL), `verify` (the required setup of the database) and `catalog` (how a temporary change of
//! the setup is detected).
//!
//! `merge`, `changes`, `pgoutput`, `mapping`, `conditions` and `snapshot` do no I/O.

mod array;
mod catalog;
mod changes;
mod conditions;
mod connect;
mod database;
mod error;
mod mapping;
mod merge;
#[cfg(test)]
mod merge_tests;
pub mod pgoutput;
mod relay;
mod session;
mod slot;
mod snapshot;
mod sql;
mod stats;
mod tls;
mod verify;
mod work;

pub use changes::{Altered, Change, Patch, Translator};
pub use connect::Address;
pub use database::{Database, Event, Options, Reply, Sink};
pub use error::Error;
pub use mapping::{Mapping, Misfit, SlotKind, ValueKind};
pub use snapshot::show_lsn;
pub use sql::{When, Write};
pub use stats::{Credit, GAUGES, Stats};
pub use work::Written;
