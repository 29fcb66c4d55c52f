//! Integers in Redis's canonical form: one text per number.

/// Parses a 64-bit integer in the form in which [`i64`] is printed: no spaces, no plus sign, no leading zeros, no
/// `-0`.
pub fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [first, ..] => (b'1'..=b'9').contains(first),
        [] => false,
    };
    // `parse` checks the digits after the first.
    is_canonical
        .then(|| std::str::from_utf8(text).ok()?.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_integers_are_parsed() {
        for number in [0, 7, -7, 10, i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Some(number));
        }
        let refused = [
            "",
            "-",
            "+1",
            "010",
            "007",
            "-0",
            "-01",
            " 1",
            "1 ",
            "1.0",
            "1e3",
            "0x10",
            "١",
            "--1",
            "9223372036854775808",
            "-9223372036854775809",
        ];
        for text in refused {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(integer(b"1\xff"), None);
    }
}
