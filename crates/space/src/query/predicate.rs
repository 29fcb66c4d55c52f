//! Predicates over objects. Each leaf tests one attribute, except that a word may be searched in several text
//! attributes.

use std::ops::Bound;
use std::sync::Arc;

use crate::base::ordered::Scalar;
use crate::base::point::Point;
use crate::base::words::matches_wildcard;
use crate::schema::AttributeId;

#[derive(Debug, Clone, PartialEq)]
pub enum Predicate {
    All,
    Nothing,
    And(Vec<Predicate>),
    Or(Vec<Predicate>),
    Not(Box<Predicate>),
    /// An optional clause. It holds for every object, because searches do not score.
    Optional(Box<Predicate>),
    Leaf(Leaf),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// The leaf holds if the test holds for one of these attributes. Only words and phrases have more than one.
    pub attributes: Vec<AttributeId>,
    /// The query named no field, so all text attributes are searched.
    pub is_everywhere: bool,
    pub test: Test,
}

/// A test of an attribute. It holds if one of the values passes. Only [`Test::Missing`] holds for a missing attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// A value is within the bounds, which have the attribute's type.
    Within(Span),
    /// A tag matches one of the patterns.
    Tag(Vec<Pattern>),
    /// A word of the text matches.
    Word(Pattern),
    /// The words are consecutive in the text, after the stopwords are removed.
    Phrase {
        words: Vec<Vec<u8>>,
        stopwords: Arc<[Vec<u8>]>,
    },
    Near(Circle),
    Missing,
}

impl Test {
    /// Returns the number of patterns or words.
    fn parts(&self) -> usize {
        match self {
            Test::Tag(patterns) => patterns.len(),
            Test::Phrase { words, .. } => words.len(),
            Test::Within(_) | Test::Word(_) | Test::Near(_) | Test::Missing => 1,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Circle {
    pub center: Point,
    /// In `unit`.
    pub radius: f64,
    pub unit: String,
    pub radius_m: f64,
}

/// An interval of values of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub low: Bound<Scalar>,
    pub high: Bound<Scalar>,
}

impl Span {
    pub fn all() -> Span {
        Span {
            low: Bound::Unbounded,
            high: Bound::Unbounded,
        }
    }

    pub fn point(value: Scalar) -> Span {
        Span {
            low: Bound::Included(value.clone()),
            high: Bound::Included(value),
        }
    }

    pub fn contains(&self, value: &Scalar) -> bool {
        let above = match &self.low {
            Bound::Unbounded => true,
            Bound::Included(low) => value >= low,
            Bound::Excluded(low) => value > low,
        };
        let below = match &self.high {
            Bound::Unbounded => true,
            Bound::Included(high) => value <= high,
            Bound::Excluded(high) => value < high,
        };
        above && below
    }

    /// Returns true if the bounds alone show that the span contains no value.
    pub fn is_empty(&self) -> bool {
        match (&self.low, &self.high) {
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
            (Bound::Included(low), Bound::Included(high)) => low > high,
            (
                Bound::Included(low) | Bound::Excluded(low),
                Bound::Included(high) | Bound::Excluded(high),
            ) => low >= high,
        }
    }

    /// Returns the only value of the span, if both bounds are equal and inclusive.
    pub fn as_point(&self) -> Option<&Scalar> {
        match (&self.low, &self.high) {
            (Bound::Included(low), Bound::Included(high)) if low == high => Some(low),
            _ => None,
        }
    }
}

/// A pattern for texts and tags, folded like the values of the attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    Infix(Vec<u8>),
    /// `?` and `*` are wildcards, and `\` escapes the next character.
    Wildcard(Vec<u8>),
}

impl Pattern {
    pub fn matches(&self, text: &[u8]) -> bool {
        match self {
            Pattern::Exact(pattern) => text == pattern,
            Pattern::Prefix(prefix) => text.starts_with(prefix),
            Pattern::Suffix(suffix) => text.ends_with(suffix),
            Pattern::Infix(part) => {
                part.is_empty() || text.windows(part.len()).any(|window| window == part)
            }
            Pattern::Wildcard(pattern) => matches_wildcard(pattern, text),
        }
    }

    /// Returns a span that contains every matching text.
    pub fn span(&self) -> Span {
        let from = |prefix: &[u8]| Span {
            low: Bound::Included(Scalar::Bytes(prefix.to_vec())),
            high: after(prefix).map_or(Bound::Unbounded, |end| Bound::Excluded(Scalar::Bytes(end))),
        };
        match self {
            Pattern::Exact(text) => Span::point(Scalar::Bytes(text.clone())),
            Pattern::Prefix(prefix) => from(prefix),
            Pattern::Suffix(_) | Pattern::Infix(_) => Span::all(),
            Pattern::Wildcard(pattern) => {
                let literal = pattern.iter().position(|sign| b"?*\\".contains(sign));
                from(&pattern[..literal.unwrap_or(pattern.len())])
            }
        }
    }
}

/// Returns the smallest bytes greater than all bytes with this prefix, or `None` if there are none.
fn after(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 255)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

impl Predicate {
    pub fn leaf(attribute: AttributeId, test: Test) -> Predicate {
        Predicate::Leaf(Leaf {
            attributes: vec![attribute],
            is_everywhere: false,
            test,
        })
    }

    /// Returns the conjunction. A single part is returned unchanged.
    pub fn and(mut parts: Vec<Predicate>) -> Predicate {
        match parts.len() {
            0 => Predicate::All,
            1 => parts.remove(0),
            _ => Predicate::And(parts),
        }
    }

    /// Returns the disjunction. A single part is returned unchanged.
    pub fn or(mut parts: Vec<Predicate>) -> Predicate {
        match parts.len() {
            0 => Predicate::Nothing,
            1 => parts.remove(0),
            _ => Predicate::Or(parts),
        }
    }

    /// Returns the maximum number of tests on one object, a measure of the cost of examining it.
    pub fn tests(&self) -> usize {
        match self {
            Predicate::All | Predicate::Nothing | Predicate::Optional(_) => 0,
            Predicate::And(parts) | Predicate::Or(parts) => parts.iter().map(Self::tests).sum(),
            Predicate::Not(inner) => inner.tests(),
            Predicate::Leaf(leaf) => leaf.attributes.len().max(1) * leaf.test.parts(),
        }
    }

    /// Calls `each` for every leaf, including those under a negation.
    pub fn leaves<'a>(&'a self, each: &mut impl FnMut(&'a Leaf)) {
        match self {
            Predicate::All | Predicate::Nothing => {}
            Predicate::And(parts) | Predicate::Or(parts) => {
                parts.iter().for_each(|part| part.leaves(each))
            }
            Predicate::Not(inner) | Predicate::Optional(inner) => inner.leaves(each),
            Predicate::Leaf(leaf) => each(leaf),
        }
    }
}
