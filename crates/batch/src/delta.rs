//! What a delta says of a key: the byte at the end of each value.
//!
//! | last byte | before it | the key |
//! |---|---|---|
//! | 0 | the value | has this value |
//! | 1 | nothing | is removed |
//!
//! So a delta's segment is a segment like any other, and its footer says that its values are to be read this way. The byte is
//! the last, not the first: a value is given out without it by making it one byte shorter.

use crate::error::Error;

pub const PRESENT: u8 = 0;
pub const REMOVED: u8 = 1;

/// Of a value as a delta has it, what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said<'a> {
    Value(&'a [u8]),
    Removed,
}

/// `None` for what no builder wrote.
#[inline]
pub fn said(marked: &[u8]) -> Option<Said<'_>> {
    match marked.split_last()? {
        (&PRESENT, value) => Some(Said::Value(value)),
        (&REMOVED, []) => Some(Said::Removed),
        _ => None,
    }
}

/// For what [`said`] does not understand.
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
