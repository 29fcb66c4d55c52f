//! Rows that other engines or a database own.
//!
//! In reading order:
//!
//! - `exchange`: the messages between engines; `wire` encodes them.
//! - `parts`: subscriptions to rows by their content.
//! - `replicas`: copies of other engines' rows.
//! - `ownership_change`: changes of ownership; `base_rows` has the base rows that an engine gains and loses then.
//! - `supply`: tables whose rows a database owns.
//!
//! `base::owner` defines which engine owns a key.

pub(crate) mod base_rows;
pub(crate) mod exchange;
pub(crate) mod ownership_change;
pub(crate) mod parts;
pub(crate) mod replicas;
pub(crate) mod supply;
pub(crate) mod wire;

use crate::base::key_range::KeyRange;
use crate::base::owner::Shard;

/// This engine's share of the tables.
#[derive(Default)]
pub struct Sharding {
    /// `None`: this is the only engine.
    pub own: Option<Shard>,
    /// Dropped ranges of other shards' rows, with their owners, from which this engine has yet to unsubscribe.
    pub unsubscribed: Vec<(u16, KeyRange)>,
}
