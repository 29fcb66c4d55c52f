//! Determines which leading bytes of a key name its group.
//!
//! A key is *whole* if it has all the columns (or bytes) that the split requires. Its group is then the bytes through
//! the last of them, and any suffix may follow. A shorter key has a group of its own: the key.
//!
//! 1. No whole key's group is a proper prefix of another whole key's group: both have the same number of separators
//!    and end in one (or both have the same length).
//! 2. Keys of different groups therefore sort in the order of their groups. This is obvious if neither group is a
//!    prefix of the other. Otherwise the shorter group is, by 1, that of a short key, which is a proper prefix of the
//!    other key.

/// The division of a table's keys into groups. Rows of one group are stored together; a range within a group reads no
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// All rows are in one group.
    None,
    /// Through the `n`-th separator (`|` or `:`) after the one that ends the table's name: with `Columns(1)` the
    /// group of `tline|ann|0000000100|bob` is `tline|ann|`.
    Columns(usize),
    /// The first `n` bytes of the key.
    Bytes(usize),
}

impl Split {
    /// Returns the length of the key's group if the key is whole.
    #[inline]
    pub(crate) fn full_group_len(self, key: &[u8]) -> Option<usize> {
        match self {
            Split::None => Some(0),
            Split::Bytes(n) => (key.len() >= n).then_some(n),
            Split::Columns(n) => {
                let mut left = n;
                for (at, &byte) in key.iter().enumerate() {
                    if byte == b'|' || byte == b':' {
                        if left == 0 {
                            return Some(at + 1);
                        }
                        left -= 1;
                    }
                }
                None
            }
        }
    }

    /// Returns the length of the key's group, whole or not.
    #[inline]
    pub(crate) fn group_len(self, key: &[u8]) -> usize {
        self.full_group_len(key).unwrap_or(key.len())
    }
}

#[cfg(test)]
mod tests {
    use super::Split;

    #[test]
    fn a_group_ends_with_its_last_separator() {
        assert_eq!(
            Split::Columns(1).full_group_len(b"tline|ann|0000000100|bob"),
            Some(10)
        );
        assert_eq!(
            Split::Columns(2).full_group_len(b"tline:ann|0000000100|bob"),
            Some(21)
        );
        assert_eq!(Split::Columns(0).full_group_len(b"tline|ann"), Some(6));
        assert_eq!(Split::Columns(1).full_group_len(b"tline|ann"), None);
        assert_eq!(Split::Columns(1).group_len(b"tline|ann"), 9);
        assert_eq!(Split::Bytes(4).full_group_len(b"tline"), Some(4));
        assert_eq!(Split::Bytes(4).full_group_len(b"tli"), None);
        assert_eq!(Split::None.full_group_len(b""), Some(0));
    }
}
