//! Rows that are kept elsewhere: by another engine of this server, or in a database.
//!
//! Read `exchange` for what engines say to one another, `parts` for rows that are wanted by what is in them, `replicas` for copies of other engines' rows, `moved` for what happens when
//! others own some, `adopted` for own rows that come and go then, `wire` for messages as bytes, and `supply` for tables whose rows a database keeps. Who has a key is said in `base::owner`.

pub(crate) mod adopted;
pub(crate) mod exchange;
pub(crate) mod moved;
pub(crate) mod parts;
pub(crate) mod replicas;
pub(crate) mod supply;
pub(crate) mod wire;

use crate::base::key_range::KeyRange;
use crate::base::owner::Shard;

/// Which part is this engine's.
#[derive(Default)]
pub struct Sharding {
    /// `None`: it is the only one.
    pub own: Option<Shard>,
    /// Ranges of other shards that were forgotten, by owner, which need not tell of them any more.
    pub unsubscribed: Vec<(u16, KeyRange)>,
}
