//! What everything else stands on: ranges of keys, how keys are made of slots, rows in memory, numbers. Nothing here knows of joins.
//!
//! Read `key_range`, `pattern`, then `rows`, the one place that spells out `larder_table`. `status` and `spans` are sets of ranges, with and
//! without numbers; `gathered` holds the rows of one read; `moment` keeps rows as they were for a read that takes long. `owner` says which of
//! several engines has a key. `hash`, `slab` and `number` are what their names say.

pub(crate) mod gathered;
pub(crate) mod hash;
pub(crate) mod key_range;
pub(crate) mod moment;
pub(crate) mod number;
pub(crate) mod owner;
pub(crate) mod pattern;
pub(crate) mod rows;
pub(crate) mod slab;
pub(crate) mod spans;
pub(crate) mod status;
