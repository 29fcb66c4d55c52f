//! Ordered in-memory tables: byte-string keys to values, owned by one core.
//!
//! ```text
//!  key    tline|ann|0000000100|bob          split: the leading bytes that name the group
//!           group     suffix
//!
//!  Table ──> groups ──> index   (hash of a group's prefix -> its record)
//!    │         │    └─> tree    (the groups in order, for ranges that cross them)
//!    │         └─ one tree per group: suffix -> value
//!    │                  tree ──> page: a packed, sorted block, sized to its rows
//!    └─ cursor ──> spans (which groups a range touches)
//! ```
//!
//! Read `table` first: the operations and the memory that each one touches. Then `split` (why groups and keys have
//! the same order), `groups`, `tree` and `page`; `lookups` interleaves several lookups. `value` contains
//! reference-counted values, and `disk` the file for long ones.

mod cursor;
mod disk;
mod groups;
mod index;
mod key_buffer;
mod lookups;
mod page;
mod short;
mod spans;
mod split;
mod table;
mod tree;
mod value;

pub use cursor::Cursor;
pub use disk::{ValueFile, ValuesOnDisk};
pub use groups::{GroupId, GroupLookup};
pub use split::Split;
pub use table::{Put, Table};
pub use value::Value;
