//! Keys of several columns: their texts with a separator between them. Different column values yield different keys.
//!
//! In every part but the last, `%` becomes `%25` and the separator `%3A` (percent-encoding). The last part is
//! unchanged: splitting the key at its first separators, one fewer than there are columns, yields the parts. A key of
//! one column is its text.

/// Ends the part that begins at `begin`, before further parts.
#[inline]
pub(crate) fn end_part(key: &mut Vec<u8>, begin: usize, separator: u8) {
    if memchr::memchr2(b'%', separator, &key[begin..]).is_some() {
        escape(key, begin, separator);
    }
    key.push(separator);
}

#[cold]
fn escape(key: &mut Vec<u8>, begin: usize, separator: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let part = key.split_off(begin);
    for byte in part {
        if byte == b'%' || byte == separator {
            key.extend([
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]);
        } else {
            key.push(byte);
        }
    }
}

/// Returns whether a byte can be a separator: it must not be ambiguous with an escape sequence.
pub(crate) fn is_separator(byte: u8) -> bool {
    byte != b'%' && !byte.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(parts: &[&str]) -> String {
        let mut key = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let begin = key.len();
            key.extend_from_slice(part.as_bytes());
            if index + 1 < parts.len() {
                end_part(&mut key, begin, b':');
            }
        }
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn parts_without_a_separator_are_unchanged() {
        assert_eq!(key_of(&["de", "42"]), "de:42");
        assert_eq!(key_of(&["10%:x"]), "10%:x");
        assert_eq!(
            key_of(&["ann", "2024-01-02T03:04:05Z"]),
            "ann:2024-01-02T03:04:05Z"
        );
    }

    #[test]
    fn different_parts_yield_different_keys() {
        let texts = ["", "a", ":", "%", "a:b", "%3A", "%25", "b:", ":a", "%3A:"];
        let mut keys = std::collections::HashSet::new();
        for first in texts {
            for second in texts {
                for third in texts {
                    assert!(keys.insert(key_of(&[first, second, third])));
                }
            }
        }
        assert_eq!(key_of(&["a:b", "c"]), "a%3Ab:c");
        assert_eq!(key_of(&["a", "b:c"]), "a:b:c");
    }
}
