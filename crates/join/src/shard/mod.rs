//! Rows that other engines or a database own.
//!
//! Read `exchange` for the messages between engines, `parts` for subscriptions to rows by their content, `replicas` for
//! copies of other engines' rows, `moved` for changes of ownership, `adopted` for base rows that an engine gains and
//! loses then, `wire` for the encoding of messages, and `supply` for tables whose rows a database owns. `base::owner`
//! defines which engine owns a key.

pub(crate) mod adopted;
pub(crate) mod exchange;
pub(crate) mod moved;
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
