//! Ordered in-memory tables: byte-string keys to values, owned by one core.
//!
//! ```text
//!  table (what callers use) ── split (which leading bytes of a key name its group)
//!    │                         value (a counted handle: a copied value is stored once)
//!    └── cursor (range reads)
//! ```
//!
//! Read `table` first.

mod cursor;
mod split;
mod table;
#[allow(dead_code)]
mod value;

pub use cursor::Cursor;
pub use split::Split;
pub use table::{GroupId, Put, Table};
pub use value::Value;
