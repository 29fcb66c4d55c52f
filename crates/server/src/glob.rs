//! Patterns of keys and names, as in Redis: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before a literal character.
//!
//! 1. A pattern is compiled once, in time proportional to its length: a character class is a set of 256 bits.
//! 2. Matching a text takes at most the text's length times [`Glob::weight`], which is 1 for most patterns. Commands that match
//!    many texts examine fewer of them if the pattern is heavy, so that their work is bounded: [`Glob::texts_max`].

use std::fmt;

use larder_protocol::errors::Code;

use crate::error::Refusal;

/// Longer patterns are rejected.
const PATTERN_BYTES_MAX: usize = 4096;
/// The work limit of a command that matches many texts, in byte comparisons.
const WORK_MAX: usize = 1 << 24;
/// The assumed length of a text.
const TEXT_BYTES: usize = 64;

/// A compiled pattern.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    pattern: Vec<u8>,
    elements: Vec<Element>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Element {
    /// Any text.
    Star,
    /// Any byte.
    Any,
    Byte(u8),
    /// A byte whose bit is set.
    Set(Box<[u64; 4]>),
}

impl Element {
    fn fits(&self, byte: u8) -> bool {
        match self {
            Element::Star => false,
            Element::Any => true,
            Element::Byte(own) => *own == byte,
            Element::Set(set) => set[usize::from(byte) / 64] >> (byte % 64) & 1 == 1,
        }
    }
}

impl Glob {
    /// # Errors
    /// The pattern exceeds the maximum length.
    pub fn parse(pattern: &[u8]) -> Result<Glob, Refusal> {
        if pattern.len() > PATTERN_BYTES_MAX {
            let message = format!(
                "a pattern has at most {PATTERN_BYTES_MAX} bytes, this one {}",
                pattern.len()
            );
            return Err((Code::BadRequest, message));
        }
        let (mut elements, mut rest) = (Vec::new(), pattern);
        while !rest.is_empty() {
            let (element, length) = first(rest);
            rest = &rest[length.min(rest.len())..];
            // Consecutive stars are equivalent to one.
            if element != Element::Star || elements.last() != Some(&Element::Star) {
                elements.push(element);
            }
        }
        Ok(Glob {
            pattern: pattern.to_vec(),
            elements,
        })
    }

    /// The pattern as given.
    pub fn pattern(&self) -> &[u8] {
        &self.pattern
    }

    pub fn matches(&self, text: &[u8]) -> bool {
        let (mut at, mut taken) = (0, 0);
        // The position to retry from when the elements after the last star do not match: one byte further.
        let mut star: Option<(usize, usize)> = None;
        loop {
            match (self.elements.get(at), text.get(taken)) {
                (Some(Element::Star), _) => {
                    at += 1;
                    star = Some((at, taken));
                    continue;
                }
                (None, None) => return true,
                (Some(element), Some(byte)) if element.fits(*byte) => {
                    (at, taken) = (at + 1, taken + 1);
                    continue;
                }
                _ => {}
            }
            match star {
                Some((after, from)) if from < text.len() => {
                    star = Some((after, from + 1));
                    (at, taken) = (after, from + 1);
                }
                _ => return false,
            }
        }
    }

    /// Maximum number of comparisons per byte of a text: the number of elements between a star and the next one.
    fn weight(&self) -> usize {
        let behind_stars = self.elements.split(|it| *it == Element::Star).skip(1);
        behind_stars.map(<[Element]>::len).max().unwrap_or(1).max(1)
    }

    /// Maximum number of texts that one command may match.
    pub fn texts_max(&self) -> usize {
        WORK_MAX / (TEXT_BYTES * self.weight())
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.pattern.escape_ascii().to_string())
    }
}

/// Parses the first element of a non-empty pattern, and returns its length.
fn first(pattern: &[u8]) -> (Element, usize) {
    match pattern {
        [b'*', ..] => (Element::Star, 1),
        [b'?', ..] => (Element::Any, 1),
        [b'\\', escaped, ..] => (Element::Byte(*escaped), 2),
        [b'[', class @ ..] => {
            let (set, length) = class_of(class);
            (Element::Set(Box::new(set)), 1 + length)
        }
        [plain, ..] => (Element::Byte(*plain), 1),
        [] => (Element::Star, 0),
    }
}

/// Parses a class, and returns its bytes and its length including the closing bracket. An unclosed class ends with the pattern.
fn class_of(class: &[u8]) -> ([u64; 4], usize) {
    let is_negated = class.first() == Some(&b'^');
    let (mut set, mut at) = ([0_u64; 4], usize::from(is_negated));
    let mut add = |low: u8, high: u8| {
        for byte in low.min(high)..=low.max(high) {
            set[usize::from(byte) / 64] |= 1 << (byte % 64);
        }
    };
    loop {
        match &class[at.min(class.len())..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                add(*escaped, *escaped);
                at += 2;
            }
            [from, b'-', to, ..] => {
                add(*from, *to);
                at += 3;
            }
            [single, ..] => {
                add(*single, *single);
                at += 1;
            }
        }
    }
    if is_negated {
        set.iter_mut().for_each(|bits| *bits = !*bits);
    }
    (set, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glob(pattern: &[u8]) -> Glob {
        Glob::parse(pattern).expect("a pattern")
    }

    #[test]
    fn patterns_mean_what_they_mean_in_redis() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a:*", "a:1", true),
            ("a:*", "b:1", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hbllo", true),
            ("h[\\]x]llo", "h]llo", true),
            ("h[", "h", false),
            ("h[a", "ha", true),
            ("h[^", "ha", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "xxbxxa", false),
            ("**", "x", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a\\", "a\\", true),
            ("", "a", false),
        ] {
            assert_eq!(
                glob(pattern.as_bytes()).matches(text.as_bytes()),
                fits,
                "{pattern} {text}"
            );
        }
        assert!(!glob(&b"*a".repeat(50)).matches(&[b'b'; 10_000]));
    }

    #[test]
    fn a_long_class_is_one_element() {
        let class = [b"t|*[", &b"z".repeat(4000)[..], b"]"].concat();
        let glob = glob(&class);
        assert_eq!((glob.elements.len(), glob.weight()), (4, 1));
        assert!(glob.matches(b"t|1z") && !glob.matches(b"t|1y"));
    }

    #[test]
    fn a_heavy_pattern_matches_fewer_texts_and_a_long_one_is_refused() {
        assert!(glob(b"t|*ab*").texts_max() > 100_000);
        let heavy = [b"*", &b"a".repeat(4000)[..]].concat();
        assert!(glob(&heavy).texts_max() < 100);
        let (code, why) = Glob::parse(&[b'a'; 4097]).unwrap_err();
        assert!(
            code == Code::BadRequest && why.contains("at most 4096"),
            "{why}"
        );
    }
}
