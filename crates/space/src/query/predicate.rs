//! Predicates: what an object must be like. Every leaf is about one attribute, but a word may be looked for in several texts.

use std::ops::Bound;
use std::sync::Arc;

use crate::base::ordered::Scalar;
use crate::base::point::Point;
use crate::base::words::fits_wildcard;
use crate::schema::AttributeId;

#[derive(Debug, Clone, PartialEq)]
pub enum Predicate {
    All,
    Nothing,
    And(Vec<Predicate>),
    Or(Vec<Predicate>),
    Not(Box<Predicate>),
    /// What may be, and need not: it holds for every object, since nothing is scored.
    Optional(Box<Predicate>),
    Leaf(Leaf),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// It holds if the test holds for one of them. More than one only of words and phrases.
    pub attributes: Vec<AttributeId>,
    /// The query named none: all texts are meant.
    pub is_everywhere: bool,
    pub test: Test,
}

/// It holds for an attribute of several values if it holds for one of them; not for a missing one, but for [`Test::Missing`].
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// A value lies between the bounds. They are of the attribute's kind.
    Within(Span),
    /// A tag fits one of the patterns.
    Tag(Vec<Pattern>),
    /// A word of the text fits.
    Word(Pattern),
    /// The words stand one behind the other; the stopwords are not there.
    Phrase {
        words: Vec<Vec<u8>>,
        stopwords: Arc<[Vec<u8>]>,
    },
    Near(Circle),
    Missing,
}

impl Test {
    /// How many patterns or words it is made of.
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
    /// In the unit.
    pub radius: f64,
    pub unit: String,
    pub radius_m: f64,
}

/// From one value to another, of one kind.
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

    /// Whether no value lies in it, as far as its bounds tell.
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

    /// The one value in it, if its bounds are equal.
    pub fn as_point(&self) -> Option<&Scalar> {
        match (&self.low, &self.high) {
            (Bound::Included(low), Bound::Included(high)) if low == high => Some(low),
            _ => None,
        }
    }
}

/// Texts and tags, folded as the attribute is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Suffix(Vec<u8>),
    Infix(Vec<u8>),
    /// `?` and `*`, with `\` before what is meant literally.
    Wildcard(Vec<u8>),
}

impl Pattern {
    pub fn fits(&self, text: &[u8]) -> bool {
        match self {
            Pattern::Exact(pattern) => text == pattern,
            Pattern::Prefix(prefix) => text.starts_with(prefix),
            Pattern::Suffix(suffix) => text.ends_with(suffix),
            Pattern::Infix(part) => {
                part.is_empty() || text.windows(part.len()).any(|window| window == part)
            }
            Pattern::Wildcard(pattern) => fits_wildcard(pattern, text),
        }
    }

    /// The span of bytes in which everything lies that fits.
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

/// The first bytes behind all that begin so; None if there are none.
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

    /// All of them; what stands alone stands for itself.
    pub fn and(mut parts: Vec<Predicate>) -> Predicate {
        match parts.len() {
            0 => Predicate::All,
            1 => parts.remove(0),
            _ => Predicate::And(parts),
        }
    }

    /// One of them.
    pub fn or(mut parts: Vec<Predicate>) -> Predicate {
        match parts.len() {
            0 => Predicate::Nothing,
            1 => parts.remove(0),
            _ => Predicate::Or(parts),
        }
    }

    /// How many tests it makes of one object, at most: a measure of what looking at an object takes.
    pub fn tests(&self) -> usize {
        match self {
            Predicate::All | Predicate::Nothing | Predicate::Optional(_) => 0,
            Predicate::And(parts) | Predicate::Or(parts) => parts.iter().map(Self::tests).sum(),
            Predicate::Not(inner) => inner.tests(),
            Predicate::Leaf(leaf) => leaf.attributes.len().max(1) * leaf.test.parts(),
        }
    }

    /// Calls `each` with every leaf, also below a negation.
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
