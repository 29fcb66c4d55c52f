//! Patterns of keys and names, as in Redis: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before a literal character.
//!
//! A pattern is compiled into segments, which its stars separate. The first segment is compared with the beginning of a text and the
//! last segment with its end. The text between is searched for the other segments in order; the leftmost match of each leaves the
//! most text for the next.
//!
//! 1. Compiling takes time proportional to the pattern's length: a character class is a set of 256 bits.
//! 2. Matching a text takes at most the text's length times [`Glob::weight`], which is 1 for most patterns. Commands that match
//!    many texts examine fewer of them if the pattern is heavy, so that their work is bounded: [`Glob::texts_max`].
//! 3. The sum of the [`Glob::cost`] of all patterns that are matched with one text is bounded.

use std::fmt;

use larder_protocol::errors::Code;
use memchr::{memchr, memmem};

use crate::error::Refusal;

/// Longer patterns are rejected.
const PATTERN_BYTES_MAX: usize = 4096;
/// The work limit of a command that matches many texts, in byte comparisons.
const WORK_MAX: usize = 1 << 24;
/// The cost of searching a text for a segment.
const SEARCH_COST: usize = 16;
/// The assumed length of a text.
const TEXT_BYTES: usize = 64;

/// A compiled pattern.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    pattern: Vec<u8>,
    /// The segment before the first star.
    first: Segment,
    /// The segment after each star. Only the last one may be empty.
    others: Vec<Segment>,
}

/// A part of a pattern without stars.
#[derive(Clone, PartialEq, Eq)]
enum Segment {
    Text(Vec<u8>),
    /// At least one element is not a literal byte.
    Mixed(Vec<Element>),
}

#[derive(Clone, PartialEq, Eq)]
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
    fn matches(&self, byte: u8) -> bool {
        match self {
            Element::Star => false,
            Element::Any => true,
            Element::Byte(own) => *own == byte,
            Element::Set(set) => set[usize::from(byte) / 64] >> (byte % 64) & 1 == 1,
        }
    }
}

impl Segment {
    fn of(elements: &[Element]) -> Segment {
        let byte = |element: &Element| match element {
            Element::Byte(byte) => Some(*byte),
            _ => None,
        };
        match elements.iter().map(byte).collect() {
            Some(text) => Segment::Text(text),
            None => Segment::Mixed(elements.to_vec()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Segment::Text(text) => text.len(),
            Segment::Mixed(elements) => elements.len(),
        }
    }

    /// Returns whether a text of the segment's length matches.
    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Segment::Text(own) => own.as_slice() == text,
            Segment::Mixed(elements) => elements
                .iter()
                .zip(text)
                .all(|(one, byte)| one.matches(*byte)),
        }
    }

    /// Returns the position of the first match in a text.
    fn find(&self, text: &[u8]) -> Option<usize> {
        match self {
            Segment::Text(own) => match own[..] {
                [byte] => memchr(byte, text),
                _ => memmem::find(text, own),
            },
            Segment::Mixed(elements) => {
                let mut parts = text.windows(elements.len());
                parts.position(|part| self.matches(part))
            }
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
            let (element, length) = parse_element(rest);
            rest = &rest[length.min(rest.len())..];
            // Consecutive stars are equivalent to one.
            if element != Element::Star || elements.last() != Some(&Element::Star) {
                elements.push(element);
            }
        }
        let mut segments = elements.split(|it| *it == Element::Star).map(Segment::of);
        Ok(Glob {
            pattern: pattern.to_vec(),
            first: segments.next().expect("a slice has a first part"),
            others: segments.collect(),
        })
    }

    /// The pattern as given.
    pub fn pattern(&self) -> &[u8] {
        &self.pattern
    }

    pub fn matches(&self, text: &[u8]) -> bool {
        let Some((begin, mut rest)) = text.split_at_checked(self.first.len()) else {
            return false;
        };
        if !self.first.matches(begin) {
            return false;
        }
        let Some((last, between)) = self.others.split_last() else {
            return rest.is_empty();
        };
        for segment in between {
            let Some(at) = segment.find(rest) else {
                return false;
            };
            rest = &rest[at + segment.len()..];
        }
        let end = rest.len().checked_sub(last.len());
        end.is_some_and(|end| last.matches(&rest[end..]))
    }

    /// The segments that a text is searched for.
    fn inner_segments(&self) -> &[Segment] {
        self.others.split_last().map_or(&[], |(_, between)| between)
    }

    /// Maximum number of comparisons per byte of a text: 1 for literal segments, and the number of elements of a mixed segment that
    /// is searched.
    fn weight(&self) -> usize {
        let mixed = self
            .inner_segments()
            .iter()
            .filter_map(|segment| match segment {
                Segment::Text(_) => None,
                Segment::Mixed(elements) => Some(elements.len()),
            });
        mixed.max().unwrap_or(1)
    }

    /// The cost of matching one text, relative to a pattern that is only compared with the beginning and the end of the text.
    pub fn cost(&self) -> usize {
        match self.inner_segments() {
            [] => 1,
            _ => SEARCH_COST * self.weight(),
        }
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
fn parse_element(pattern: &[u8]) -> (Element, usize) {
    match pattern {
        [b'*', ..] => (Element::Star, 1),
        [b'?', ..] => (Element::Any, 1),
        [b'\\', escaped, ..] => (Element::Byte(*escaped), 2),
        [b'[', class @ ..] => {
            let (set, length) = parse_class(class);
            (Element::Set(Box::new(set)), 1 + length)
        }
        [plain, ..] => (Element::Byte(*plain), 1),
        [] => (Element::Star, 0),
    }
}

/// Parses a class, and returns its bytes and its length including the closing bracket. An unclosed class ends with the pattern.
fn parse_class(class: &[u8]) -> ([u64; 4], usize) {
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
    fn patterns_match_as_in_redis() {
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
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("*[0-9]?*x", "a12x", true),
            ("*[0-9]?*x", "ab1x", false),
            ("*?a", "a", false),
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

    /// The definition of a match: a star stands for each beginning of the text in turn.
    fn matches_by_definition(elements: &[Element], text: &[u8]) -> bool {
        match elements {
            [] => text.is_empty(),
            [Element::Star, rest @ ..] => {
                (0..=text.len()).any(|from| matches_by_definition(rest, &text[from..]))
            }
            [one, rest @ ..] => {
                let byte = text.first().filter(|byte| one.matches(**byte));
                byte.is_some() && matches_by_definition(rest, &text[1..])
            }
        }
    }

    #[test]
    fn random_patterns_match_by_definition() {
        let mut random = larder_types::Random::new(7);
        let mut matched = 0;
        for _ in 0..20_000 {
            let mut word = |letters: &[u8], most: usize| -> Vec<u8> {
                let length = random.index(most);
                (0..length)
                    .map(|_| letters[random.index(letters.len())])
                    .collect()
            };
            let (pattern, text) = (word(b"aab*?", 9), word(b"aab", 9));
            let (mut elements, mut rest) = (Vec::new(), &pattern[..]);
            while !rest.is_empty() {
                let (element, length) = parse_element(rest);
                elements.push(element);
                rest = &rest[length..];
            }
            let expected = matches_by_definition(&elements, &text);
            assert_eq!(
                glob(&pattern).matches(&text),
                expected,
                "{pattern:?} {text:?}"
            );
            matched += usize::from(expected);
        }
        assert!(matched > 1000, "{matched}");
    }

    #[test]
    fn a_long_class_is_one_element() {
        let class = [b"t|*[", &b"z".repeat(4000)[..], b"]"].concat();
        let glob = glob(&class);
        assert_eq!((glob.others[0].len(), glob.weight()), (1, 1));
        assert!(glob.matches(b"t|1z") && !glob.matches(b"t|1y"));
    }

    #[test]
    fn a_pattern_that_searches_the_text_costs_more_than_one_of_its_ends() {
        for (pattern, cost) in [
            ("", 1),
            ("*", 1),
            ("user:1:*", 1),
            ("user:?:[a-z]", 1),
            ("a*:x", 1),
            ("*bcd*", SEARCH_COST),
            ("a*b?d*", 3 * SEARCH_COST),
        ] {
            assert_eq!(glob(pattern.as_bytes()).cost(), cost, "{pattern}");
        }
    }

    #[test]
    fn a_heavy_pattern_matches_fewer_texts_and_a_long_one_is_refused() {
        assert!(glob(b"t|*ab*").texts_max() > 100_000);
        assert!(glob(&b"*a".repeat(2000)).texts_max() > 100_000);
        let heavy = [b"*", &b"a?".repeat(2000)[..], b"*"].concat();
        assert!(glob(&heavy).texts_max() < 100);
        let (code, why) = Glob::parse(&[b'a'; 4097]).unwrap_err();
        assert!(
            code == Code::BadRequest && why.contains("at most 4096"),
            "{why}"
        );
    }
}
