//! Cache joins over ordered tables: a join declares how one table is derived from others, and its output is kept fresh.
//!
//! ```text
//!  put post|bob|17 ─► engine ─► propagate ─► updater lists ─► output rows of each follower
//!                                  └─ a checked source: a pending entry
//!  range tline|ann| ─► evaluate ─┬─ filled and fresh ─────────────────────────► rows
//!                                ├─ filled: settle (pending entries) ─────────► rows
//!                                └─ a gap: fill: nested scans, nodes, updaters ► rows
//! ```
//!
//! The modules, from the highest layer to the lowest. Each may use the modules below it, and its `mod.rs` lists its
//! files in reading order.
//! | module | contents |
//! |---|---|
//! | `shard` | rows that other engines or a database hold: subscription, supply, removal |
//! | `evaluate` | reads: fills, settling, output of rows; subscriptions |
//! | `memory` | eviction |
//! | `propagate` | writes: maintenance of outputs, immediate or deferred |
//! | `tables` | tables and joins: the catalog, rows, expiry, the log |
//! | `join` | the state of one join: its rows and its updaters |
//! | `language` | parsing, checking and planning of join definitions |
//! | `operators` | `count`, `max`, `top` and the other operators |
//! | `base` | ranges, patterns, rows, numbers |
//!
//! `engine` owns all of them; start there. `budget` bounds the work of one operation.
//!
//! The crate does no I/O: time is an argument, and log entries and requests for rows are return values.

mod base;
mod budget;
mod engine;
mod error;
mod evaluate;
mod join;
mod language;
mod memory;
mod operators;
mod propagate;
mod shard;
mod tables;

pub use base::key_range::{EachRow, KeyRange};
pub use base::owner::{NO_OWNER, Owner, Shard, SlotOwners, column_group, range_slot};
pub use base::rows::{Value, ValueFile, ValuesOnDisk};
pub use engine::{Engine, WriteOutcome};
pub use error::{DefinitionError, Error};
pub use evaluate::needs::{Needs, ReadOutcome};
pub use evaluate::range_reader::RangeReader;
pub use join::JoinId;
pub use language::grammar;
pub use larder_types::row_slot;
pub use propagate::subscription::RowChange;
pub use shard::base_rows::EachBaseRow;
pub use shard::exchange::{EngineMessage, Exchange, Progress};
pub use shard::parts::{NoParts, PartRows, Parts};
pub use tables::catalog::{CreateBehavior, DefinitionEffect, DropBehavior, JoinInfo};
pub use tables::expiry::ExpirySummary;
pub use tables::info::TableInfo;
pub use tables::log::{BeforeImage, LogEntry};
pub use tables::ranking::Ranking;
pub use tables::scan::Limits;
