//! Cache joins over ordered tables: declare how one table follows from others, then read it, always fresh.
//!
//! ```text
//!  put post|bob|17 ─► engine ─► propagate ─► updater lists ─► output rows of each follower
//!                                  └─ a checked source: a pending entry
//!  range tline|ann| ─► evaluate ─┬─ filled and fresh ─────────────────────────► rows
//!                                ├─ filled: settle (pending entries) ─────────► rows
//!                                └─ a gap: fill: nested scans, nodes, updaters ► rows
//! ```
//!
//! Rooms, each with a `mod.rs` that says what it holds and in which order to read it; what stands higher uses what stands lower:
//!
//! | room | holds |
//! |---|---|
//! | `shard` | rows that other engines or a database keep: how they come and go |
//! | `evaluate` | a read: filling, settling, handing out; subscribing |
//! | `memory` | what goes when memory is short, and how |
//! | `propagate` | a write: what follows from it, at once or later |
//! | `tables` | tables and joins: what there is, their rows, expiry, the log |
//! | `join` | one join's rows and all that keeps them fresh |
//! | `language` | the text of a join, checked and planned |
//! | `operators` | what count, max, top and the others make of rows |
//! | `base` | ranges, patterns, rows, numbers |
//!
//! `engine` owns them all: begin there. `budget` bounds what one operation visits.
//!
//! The crate does no I/O: time comes in as an argument, and what must be logged or fetched goes out as a value.

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
pub use base::owner::{NOBODY, Owner, Shard, SlotOwners, column_group, range_slot};
pub use base::rows::{Value, ValueFile, ValuesOnDisk};
pub use engine::{Engine, Written};
pub use error::{DefinitionError, Error};
pub use evaluate::needs::{Needs, ReadOutcome};
pub use evaluate::reading::Reading;
pub use join::JoinId;
pub use language::grammar;
pub use larder_types::row_slot;
pub use propagate::subscription::RowChange;
pub use shard::adopted::EachBaseRow;
pub use shard::exchange::{EngineMessage, Exchange, Progress};
pub use shard::parts::{NoParts, PartRows, Parts};
pub use tables::catalog::{Admitted, IfDefined, IfRead, JoinInfo};
pub use tables::expiry::ExpirySummary;
pub use tables::info::TableInfo;
pub use tables::log::{Before, LogEntry};
pub use tables::ranking::Ranking;
pub use tables::scan::Limits;
