//! Key ranges, names of tables in keys, and callbacks for rows.

use std::ops::ControlFlow;

pub use larder_types::key_range::{KeyRange, common_prefix, is_successor, step_up, successor};

/// Returns the name of a key's table with its separator: the bytes through the first `|` or `:`.
pub fn table_name(key: &[u8]) -> Option<&[u8]> {
    let end = key.iter().position(|&b| b == b'|' || b == b':')?;
    Some(&key[..=end])
}

/// A row callback's result: continue, or stop.
pub type Flow = ControlFlow<()>;

/// A callback that receives a key and a value at a time, until it breaks.
pub type EachRow<'a> = dyn FnMut(&[u8], &[u8]) -> Flow + 'a;
