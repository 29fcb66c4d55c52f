//! The words and tags of a text, folded to lower case.
//!
//! Words are separated by whitespace, including whitespace beyond ASCII, and by ASCII punctuation except `_`. A
//! character after `\` belongs to its word. There is no stemming. Bytes that are not UTF-8 are kept, and ASCII letters
//! among them are folded.

/// The maximum length of a tag. Longer tags are truncated.
pub const TAG_BYTES_MAX: usize = 4096;

/// The default stopwords, which are omitted from texts and queries.
pub const STOPWORDS: [&str; 33] = [
    "a", "is", "the", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into",
    "it", "no", "not", "of", "on", "or", "such", "that", "their", "then", "there", "these", "they",
    "this", "to", "was", "will", "with",
];

/// Folds a text to lower case. A final sigma becomes a regular one, because a prefix of a word may end within the word.
pub fn fold_case(text: &[u8]) -> Vec<u8> {
    if text.is_ascii() {
        text.to_ascii_lowercase()
    } else {
        match std::str::from_utf8(text) {
            Ok(text) => text.to_lowercase().replace('ς', "σ").into_bytes(),
            Err(_) => text.to_ascii_lowercase(),
        }
    }
}

/// Returns whether an ASCII character ends a word.
pub fn is_separator(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f || (byte.is_ascii_punctuation() && byte != b'_' && byte != b'\\')
}

/// Returns the length in bytes of the separator at the start of the text, or 0 if there is none.
fn separator_bytes(text: &[u8]) -> usize {
    match *text {
        [sign, ..] if sign.is_ascii() => usize::from(is_separator(sign)),
        // The whitespace of Unicode, as in `char::is_whitespace`.
        [0xc2, 0x85 | 0xa0, ..] => 2,
        [0xe1, 0x9a, 0x80, ..]
        | [0xe2, 0x80, 0x80..=0x8a | 0xa8 | 0xa9 | 0xaf, ..]
        | [0xe2, 0x81, 0x9f, ..]
        | [0xe3, 0x80, 0x80, ..] => 3,
        _ => 0,
    }
}

/// Returns the words of a text in order, folded and unescaped.
pub fn words(text: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            match separator_bytes(rest) {
                0 => break,
                bytes => rest = &rest[bytes..],
            }
        }
        if rest.is_empty() {
            return None;
        }
        let mut word = Vec::new();
        let mut at = 0;
        while at < rest.len() && separator_bytes(&rest[at..]) == 0 {
            if rest[at] == b'\\' && at + 1 < rest.len() {
                at += 1;
            }
            word.push(rest[at]);
            at += 1;
        }
        rest = &rest[at..];
        Some(fold_case(&word))
    })
}

/// The rules that divide a field into tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TagRule {
    /// `None`: the complete text is one tag.
    pub separator: Option<u8>,
    pub is_case_sensitive: bool,
    /// True if empty tags are kept.
    pub has_empty: bool,
}

/// Appends the tags of a text: split at the separator, trimmed, folded, and truncated to [`TAG_BYTES_MAX`].
pub fn tags_into(text: &[u8], rule: TagRule, out: &mut Vec<Vec<u8>>) {
    let mut add = |part: &[u8]| {
        let tag = tag(part, rule.is_case_sensitive);
        if !tag.is_empty() || rule.has_empty {
            out.push(tag);
        }
    };
    match rule.separator {
        Some(separator) => text.split(|&b| b == separator).for_each(&mut add),
        None => add(text),
    }
}

/// Returns a tag in the form that is stored and searched for.
pub fn tag(text: &[u8], is_case_sensitive: bool) -> Vec<u8> {
    let text = text.trim_ascii();
    let mut tag = if is_case_sensitive {
        text.to_vec()
    } else {
        fold_case(text)
    };
    tag.truncate(TAG_BYTES_MAX);
    tag
}

/// Returns whether a text matches a pattern. `?` matches one byte, `*` any number of bytes, and `\` escapes the next
/// byte.
///
/// The worst-case time is proportional to the product of both lengths.
pub fn matches_wildcard(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The position for backtracking if the part after the last `*` does not match: after the `*` in the pattern, one
    // byte further in the text.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
                continue;
            }
            None if t == text.len() => return true,
            Some(b'?') if t < text.len() => {
                (p, t) = (p + 1, t + 1);
                continue;
            }
            Some(&sign) if t < text.len() => {
                let escaped = (sign == b'\\').then(|| pattern.get(p + 1)).flatten();
                let (sign, width) = escaped.map_or((sign, 1), |&sign| (sign, 2));
                if sign == text[t] {
                    (p, t) = (p + width, t + 1);
                    continue;
                }
            }
            _ => {}
        }
        match retry {
            Some((behind, from)) if from < text.len() => {
                retry = Some((behind, from + 1));
                (p, t) = (behind, from + 1);
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words_of(text: &str) -> Vec<String> {
        words(text.as_bytes())
            .map(|word| String::from_utf8(word).unwrap())
            .collect()
    }

    fn tags_of(text: &str, rule: TagRule) -> Vec<String> {
        let mut out = Vec::new();
        tags_into(text.as_bytes(), rule, &mut out);
        out.into_iter()
            .map(|tag| String::from_utf8(tag).unwrap())
            .collect()
    }

    #[test]
    fn texts_are_cut_at_blanks_and_punctuation() {
        assert_eq!(
            words_of("Hello, World! snake_case e-mail"),
            ["hello", "world", "snake_case", "e", "mail"]
        );
        assert_eq!(words_of(r"e\-mail a\ b"), ["e-mail", "a b"]);
        assert_eq!(words_of("ÄRGER Straße"), ["ärger", "straße"]);
        assert_eq!(
            words_of("ΟΔΟΣ οδός Οδοσήμανση"),
            ["οδοσ", "οδόσ", "οδοσήμανση"]
        );
        assert_eq!(words_of(" .,- "), [""; 0]);
        let broken: Vec<_> = words(b"Caf\xe9 NOIR").collect();
        assert_eq!(broken, [b"caf\xe9".to_vec(), b"noir".to_vec()]);
    }

    #[test]
    fn texts_and_queries_are_split_at_the_same_whitespace() {
        for sign in (0x80..=0x10_ffff).filter_map(char::from_u32) {
            let expected = if sign.is_whitespace() { 2 } else { 1 };
            assert_eq!(words_of(&format!("a{sign}b")).len(), expected, "{sign:?}");
        }
        assert_eq!(words_of("a\\\u{3000}b\u{a0}\u{3000}"), ["a\u{3000}b"]);
    }

    #[test]
    fn tags_are_cut_trimmed_and_folded() {
        let comma = TagRule {
            separator: Some(b','),
            is_case_sensitive: false,
            has_empty: false,
        };
        assert_eq!(tags_of(" Red , Dark Blue,,", comma), ["red", "dark blue"]);
        let cased = TagRule {
            is_case_sensitive: true,
            has_empty: true,
            ..comma
        };
        assert_eq!(tags_of("Red,,", cased), ["Red", "", ""]);
        assert_eq!(
            tags_of(
                "a,b",
                TagRule {
                    separator: None,
                    ..comma
                }
            ),
            ["a,b"]
        );
        assert_eq!(tag(&[b'x'; 5000], false).len(), TAG_BYTES_MAX);
    }

    /// Tries every possible match of a `*`.
    fn matches_naively(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|at| matches_naively(rest, &text[at..])),
            [b'?', rest @ ..] => !text.is_empty() && matches_naively(rest, &text[1..]),
            [b'\\', sign, rest @ ..] => {
                text.first() == Some(sign) && matches_naively(rest, &text[1..])
            }
            [sign, rest @ ..] => text.first() == Some(sign) && matches_naively(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn wildcards_agree_with_an_exhaustive_match(pattern in r"[ab*?\\]{0,8}", text in r"[ab*\\]{0,8}") {
            prop_assert_eq!(
                matches_wildcard(pattern.as_bytes(), text.as_bytes()),
                matches_naively(pattern.as_bytes(), text.as_bytes())
            );
        }
    }
}
