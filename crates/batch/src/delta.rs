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
pub enum Said<'a> {
    Value(&'a [u8]),
    Removed,
}

/// Decodes a marked value; `None` if no builder wrote it.
#[inline]
pub fn said(marked: &[u8]) -> Option<Said<'_>> {
    match marked.split_last()? {
        (&PRESENT, value) => Some(Said::Value(value)),
        (&REMOVED, []) => Some(Said::Removed),
        _ => None,
    }
}

/// Returns the error for a value that [`said`] cannot decode.
#[cold]
pub fn wrong(place: &str) -> Error {
    Error::corrupted(place, "a value of a delta does not end as they do")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_tells_values_from_removals() {
        assert_eq!(said(b"v\0"), Some(Said::Value(b"v")));
        assert_eq!(said(b"\0"), Some(Said::Value(b"")));
        assert_eq!(said(b"\x01"), Some(Said::Removed));
        for wrong in [&b""[..], b"v", b"v\x01", b"\x02"] {
            assert_eq!(said(wrong), None);
        }
    }
}
