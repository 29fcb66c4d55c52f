//! PostgreSQL as the truth of tables: ranges are loaded by query when they are read, and stay fresh by logical
//! replication.
//!
//! ```text
//!   a read misses ─► Database::load ─► session ─► work::load ── SELECT ──► PostgreSQL
//!                                       │            │ rows, snapshot, position  │
//!                                     merge ◄────────┘                          │ pgoutput
//!                                       ▲                                        ▼
//!                                       └── changes ◄── pgoutput ◄── session ◄───┘
//!                                       │
//!                                       └─► Event::Supply, Event::Apply ─► whoever keeps the rows
//! ```
//!
//! Begin with `merge`: why a load and the stream together apply every commit exactly once. Then `database` (a connection's
//! life), `session` (what goes on while it lasts), `mapping` (rows as keys), `conditions` (ranges as SQL), `verify` (what
//! the database must offer) and `catalog` (how it is seen that this changed, if only for a moment).
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
mod range;
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
pub use range::Range;
pub use snapshot::show_lsn;
pub use sql::{When, Write};
pub use stats::{Credit, GAUGES, Stats};
pub use work::Written;
