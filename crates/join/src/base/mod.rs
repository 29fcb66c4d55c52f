//! The foundations: key ranges, patterns of keys, rows in memory, numbers. Nothing here depends on joins.
//!
//! Read `key_range`, `pattern`, then `rows`, the only module that accesses `larder_table`. `status` is a set of
//! numbered ranges, `range_set` one of ranges without numbers. `row_buffer` holds the rows of one read, `read_snapshot`
//! the former rows that a long read needs. `owner` maps keys to the engines that own them. `hash`, `slab` and `number`
//! are small utilities.

pub(crate) mod hash;
pub(crate) mod key_range;
pub(crate) mod number;
pub(crate) mod owner;
pub(crate) mod pattern;
pub(crate) mod range_set;
pub(crate) mod read_snapshot;
pub(crate) mod row_buffer;
pub(crate) mod rows;
pub(crate) mod slab;
pub(crate) mod status;
