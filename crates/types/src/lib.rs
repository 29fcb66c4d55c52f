//! Common types of all other crates: names, ids, slots, hashes, units and limits.
//!
//! The crate performs no I/O. Only [`fault_point`] reads the environment, in debug builds.
//!
//! See `slot` for how a key maps to its partition, and `hash` for how it maps to a block within one.

mod by_slot;
mod checksum;
mod date;
pub mod decimal;
mod fault;
mod fetch;
pub mod figures;
mod hash;
mod integer;
pub mod key_range;
mod names;
mod object_row;
mod random;
mod slot;
mod slot_set;
mod units;
mod version_selector;
pub mod wire;

pub use by_slot::BySlot;
pub use checksum::checksum32;
pub use date::civil_date;
pub use fault::fault_point;
pub use fetch::{fetch, prefetch};
pub use hash::key_hash;
pub use integer::integer;
pub use key_range::KeyRange;
pub use names::{NameError, PartitionId, StoreName, VersionId};
pub use object_row::{
    CLIENT_KEY_BYTES_MAX, NAMELESS, OBJECT_MARK, PLAIN_TEXT, is_plain, object_key, object_row,
    object_rows, put_object_row, row_key, text_row, with_object_row, with_text_row,
};
pub use random::{Random, mix};
pub use slot::{SLOTS, SlotPrefix, leading_column, row_slot, slot_of};
pub use slot_set::{SlotSet, SlotSetError};
pub use units::{ByteSize, ByteSizeError};
pub use version_selector::VersionSelector;

/// Maximum key length in bytes. The minimum is one byte.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// Maximum value length in bytes. A value may be empty.
pub const VALUE_BYTES_MAX: u64 = 1 << 30;
