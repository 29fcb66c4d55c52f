//! Cache joins over ordered tables: declare how one table follows from others, then read it, always fresh.
//!
//! ```text
//!  put post|bob|17 ─► engine ─► maintain ─► updater lists ─► output rows of each follower
//!                                  └─ a checked source: a pending entry
//!  range tline|ann| ─► reads ─┬─ filled and fresh, found by its group, or by those of a page (pages) ─► rows
//!                             └─► view ─► status ─┬─ filled: settle (pending entries) ─► rows
//!                                                 └─ a gap: fill ─► nested scans, nodes, updaters ─► rows
//! ```
//!
//! Read `grammar` for what can be said, `definition`, `pattern` and `plan` for what becomes of it. Then `engine`, and
//! along the arrows: `maintain`, `updater` and `steps` for a write; `reads`, `view`, `status`, `fill`, `run`, `node` and `settle` for a
//! read (`tree` has what a fill leaves behind, `unread` and `put_off` what a large one has yet to do, `passing` what is large and not kept, `partial` how far a read with a limit is filled; `pairs`, `gathered` and
//! `merge` read what is pulled; `reading` and `moment` hand out a long answer some rows at a time); `output` with
//! `aggregate` and `ranked` for what the operators keep; `evict` for what goes when memory is short, and `forget` for how.
//!
//! The crate does no I/O: time comes in as an argument, and what must be logged or fetched goes out as a value.

mod aggregate;
mod auto;
mod catalog;
mod definition;
mod engine;
mod error;
mod evict;
mod exchange;
mod expiry;
mod explain;
mod fill;
mod forget;
mod gathered;
pub mod grammar;
mod guests;
mod hash;
mod join;
mod keyrange;
mod listen;
mod log;
mod maintain;
mod merge;
mod moment;
mod node;
mod number;
mod output;
mod pages;
mod pairs;
mod partial;
mod passing;
mod pattern;
mod plan;
mod put_off;
mod ranked;
mod reading;
mod reads;
mod rows;
mod run;
mod settle;
mod shard;
mod slab;
mod spans;
mod status;
mod steps;
mod supply;
mod tables;
mod target;
mod tree;
mod unread;
mod updater;
mod view;
mod words;

pub use catalog::JoinInfo;
pub use engine::{Engine, Written};
pub use error::{DefinitionError, Error};
pub use exchange::{Exchange, Message, Progress};
pub use join::JoinId;
pub use keyrange::{EachRow, KeyRange};
pub use listen::Heard;
pub use log::LogEntry;
pub use reading::Reading;
pub use reads::{Limits, Outcome};
pub use shard::{Owner, Shard};
pub use tables::TableInfo;
