//! The marker of a delta: the last byte of each value.
//!
//! | last byte | bytes before it | the key |
//! |---|---|---|
//! | 0 | the value | has this value |
//! | 1 | none | is removed |
//!
//! A delta's segment therefore has the format of any other segment, and its footer states that values have a marker.
//! The marker is last, not first, so that removing it only shortens the value by one byte.

use crate::error::Error;

pub const PRESENT: u8 = 0;
pub const REMOVED: u8 = 1;

/// The decoded form of a marked value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkedValue<'a> {
    Value(&'a [u8]),
    Removed,
}

/// Decodes a marked value; `None` if no builder wrote it.
#[inline]
pub fn decode(marked: &[u8]) -> Option<MarkedValue<'_>> {
    match marked.split_last()? {
        (&PRESENT, value) => Some(MarkedValue::Value(value)),
        (&REMOVED, []) => Some(MarkedValue::Removed),
        _ => None,
    }
}

/// Returns the error for a value that [`decode`] cannot decode.
#[cold]
pub fn invalid_marker(place: &str) -> Error {
    Error::corrupted(place, "a value of a delta does not end with a valid marker")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_distinguishes_values_from_removals() {
        assert_eq!(decode(b"v\0"), Some(MarkedValue::Value(b"v")));
        assert_eq!(decode(b"\0"), Some(MarkedValue::Value(b"")));
        assert_eq!(decode(b"\x01"), Some(MarkedValue::Removed));
        for wrong in [&b""[..], b"v", b"v\x01", b"\x02"] {
            assert_eq!(decode(wrong), None);
        }
    }
}
