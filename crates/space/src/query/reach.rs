//! Which values of one attribute a predicate allows: the regions and the parts of an index that a search must look at.
//!
//! 1. An object that the predicate holds for has one value within the spans, or the attribute is missing in it and `missing` is set.
//! 2. The spans are sorted, none is empty, and no two touch.
//! 3. Spans of a conjunction are cut with each other only where an object has one value at most: one with the prices 1 and 9 is both below 2 and above 8.

use std::cmp::Ordering;
use std::ops::Bound;

use crate::base::ordered::Scalar;
use crate::query::predicate::{Leaf, Predicate, Span, Test};
use crate::schema::{Attribute, AttributeId, Kind};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    pub spans: Vec<Span>,
    /// Objects without a value: the field is not there, does not fit, or holds none, such as an empty text.
    pub missing: bool,
}

impl Reach {
    pub fn all() -> Reach {
        Reach {
            spans: vec![Span::all()],
            missing: true,
        }
    }

    fn none() -> Reach {
        Reach {
            spans: Vec::new(),
            missing: false,
        }
    }

    /// Whether every object may be meant.
    pub fn is_all(&self) -> bool {
        self.missing && self.spans == [Span::all()]
    }

    /// Whether an object with this value may be meant; None of one without.
    pub fn contains(&self, value: Option<&Scalar>) -> bool {
        match value {
            Some(value) => self.spans.iter().any(|span| span.contains(value)),
            None => self.missing,
        }
    }

    /// The values, if they are a finite set.
    pub fn points(&self) -> Option<Vec<&Scalar>> {
        match self.missing {
            true => None,
            false => self.spans.iter().map(Span::as_point).collect(),
        }
    }

    /// The union of `parts`, in O(n log n) of their spans.
    fn any_of(parts: impl Iterator<Item = Reach>) -> Reach {
        let mut all = Reach::none();
        for part in parts {
            all.missing |= part.missing;
            all.spans.extend(part.spans);
        }
        Reach {
            spans: merged(all.spans),
            ..all
        }
    }

    /// What all of `parts` allow, in O(n log n) of their spans: halves are intersected before they meet, so that no long list meets each short one.
    fn all_of(mut parts: Vec<Reach>, is_single_valued: bool) -> Reach {
        while parts.len() > 1 {
            let mut halved = Vec::with_capacity(parts.len().div_ceil(2));
            let mut rest = parts.into_iter();
            while let Some(first) = rest.next() {
                halved.push(match rest.next() {
                    Some(second) => first.and(second, is_single_valued),
                    None => first,
                });
            }
            parts = halved;
        }
        parts.pop().unwrap_or_else(Reach::all)
    }

    fn and(self, other: Reach, is_single_valued: bool) -> Reach {
        if self.is_all() {
            return other;
        }
        if other.is_all() {
            return self;
        }
        if !is_single_valued {
            // Either is true of one value of each object: keep the one that allows less.
            return match other.spans.len() < self.spans.len() && !other.missing {
                true => other,
                false => self,
            };
        }
        // Both lists are sorted and their spans are disjoint: of two spans, the one that ends first meets nothing further.
        let (mut left, mut right) = (self.spans.into_iter(), other.spans.into_iter());
        let (mut a, mut b) = (left.next(), right.next());
        let mut spans = Vec::new();
        while let (Some(x), Some(y)) = (&a, &b) {
            let low = match compare_low(&x.low, &y.low).is_ge() {
                true => &x.low,
                false => &y.low,
            };
            let x_ends_first = compare_high(&x.high, &y.high).is_le();
            let high = if x_ends_first { &x.high } else { &y.high };
            let span = Span {
                low: low.clone(),
                high: high.clone(),
            };
            if !span.is_empty() {
                spans.push(span);
            }
            match x_ends_first {
                true => a = left.next(),
                false => b = right.next(),
            }
        }
        Reach {
            spans,
            missing: self.missing && other.missing,
        }
    }

    /// All values beyond the spans.
    fn complement(self) -> Reach {
        let mut spans = Vec::new();
        let mut low = Bound::Unbounded;
        for span in self.spans {
            let high = match span.low {
                Bound::Unbounded => None,
                Bound::Included(value) => Some(Bound::Excluded(value)),
                Bound::Excluded(value) => Some(Bound::Included(value)),
            };
            if let Some(high) = high {
                spans.push(Span { low, high });
            }
            low = match span.high {
                Bound::Unbounded => {
                    return Reach {
                        spans: merged(spans),
                        missing: !self.missing,
                    };
                }
                Bound::Included(value) => Bound::Excluded(value),
                Bound::Excluded(value) => Bound::Included(value),
            };
        }
        spans.push(Span {
            low,
            high: Bound::Unbounded,
        });
        Reach {
            spans: merged(spans),
            missing: !self.missing,
        }
    }
}

/// Whether it is seen at once that the predicate allows everything of an attribute: it is a conjunction of what is said of others.
pub fn says_nothing_of(predicate: &Predicate, id: AttributeId) -> bool {
    match predicate {
        Predicate::All | Predicate::Optional(_) => true,
        Predicate::Leaf(leaf) => leaf.attributes != [id],
        Predicate::And(parts) => parts.iter().all(|part| says_nothing_of(part, id)),
        _ => false,
    }
}

/// What the predicate allows of this attribute. Takes O(n log n) of its leaves, times the levels at which AND and OR alternate.
pub fn reach(predicate: &Predicate, attribute: &Attribute) -> Reach {
    match predicate {
        Predicate::All | Predicate::Optional(_) => Reach::all(),
        Predicate::Nothing => Reach::none(),
        Predicate::And(parts) => {
            let single = attribute.is_single_valued();
            let parts = parts.iter().map(|part| reach(part, attribute));
            let parts = parts.filter(|part| !part.is_all()).collect();
            Reach::all_of(parts, single)
        }
        Predicate::Or(parts) => Reach::any_of(parts.iter().map(|part| reach(part, attribute))),
        Predicate::Not(inner) => match &**inner {
            Predicate::Leaf(leaf) if is_exact(leaf, attribute) => {
                reach(inner, attribute).complement()
            }
            Predicate::Not(inner) => reach(inner, attribute),
            Predicate::All | Predicate::Optional(_) => Reach::none(),
            _ => Reach::all(),
        },
        Predicate::Leaf(leaf) if leaf.attributes == [attribute.id] => of_test(&leaf.test),
        Predicate::Leaf(_) => Reach::all(),
    }
}

/// Whether the leaf holds for exactly the values that it reaches.
fn is_exact(leaf: &Leaf, attribute: &Attribute) -> bool {
    let is_ordered = matches!(
        attribute.kind,
        Kind::Numeric | Kind::Timestamp | Kind::Boolean
    );
    let is_range = matches!(leaf.test, Test::Within(_));
    leaf.attributes == [attribute.id] && attribute.is_single_valued() && is_ordered && is_range
}

fn of_test(test: &Test) -> Reach {
    let spans = match test {
        Test::Within(span) => vec![span.clone()],
        Test::Tag(patterns) => patterns.iter().map(|pattern| pattern.span()).collect(),
        // A text is one value, of which a word tells nothing.
        Test::Word(_) | Test::Phrase { .. } | Test::Near(_) => {
            return Reach {
                spans: vec![Span::all()],
                missing: matches!(test, Test::Near(_)),
            };
        }
        Test::Missing => {
            return Reach {
                spans: Vec::new(),
                missing: true,
            };
        }
    };
    Reach {
        spans: merged(spans),
        missing: false,
    }
}

fn compare_low(a: &Bound<Scalar>, b: &Bound<Scalar>) -> Ordering {
    match (a, b) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Less,
        (_, Bound::Unbounded) => Ordering::Greater,
        (Bound::Included(x), Bound::Included(y)) | (Bound::Excluded(x), Bound::Excluded(y)) => {
            x.cmp(y)
        }
        (Bound::Included(x), Bound::Excluded(y)) => x.cmp(y).then(Ordering::Less),
        (Bound::Excluded(x), Bound::Included(y)) => x.cmp(y).then(Ordering::Greater),
    }
}

fn compare_high(a: &Bound<Scalar>, b: &Bound<Scalar>) -> Ordering {
    match (a, b) {
        (Bound::Unbounded, Bound::Unbounded) => Ordering::Equal,
        (Bound::Unbounded, _) => Ordering::Greater,
        (_, Bound::Unbounded) => Ordering::Less,
        (Bound::Included(x), Bound::Included(y)) | (Bound::Excluded(x), Bound::Excluded(y)) => {
            x.cmp(y)
        }
        (Bound::Included(x), Bound::Excluded(y)) => x.cmp(y).then(Ordering::Greater),
        (Bound::Excluded(x), Bound::Included(y)) => x.cmp(y).then(Ordering::Less),
    }
}

/// Sorted, without empty ones, those that overlap or touch made one (invariant 2).
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|span| !span.is_empty());
    spans.sort_by(|a, b| compare_low(&a.low, &b.low));
    let mut out: Vec<Span> = Vec::new();
    for span in spans {
        match out.last_mut() {
            Some(last) if touches(&last.high, &span.low) => {
                if compare_high(&span.high, &last.high).is_gt() {
                    last.high = span.high;
                }
            }
            _ => out.push(span),
        }
    }
    out
}

/// Whether nothing lies between an end and a beginning.
fn touches(high: &Bound<Scalar>, low: &Bound<Scalar>) -> bool {
    match (high, low) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Excluded(high), Bound::Excluded(low)) => low < high,
        (
            Bound::Included(high) | Bound::Excluded(high),
            Bound::Included(low) | Bound::Excluded(low),
        ) => low <= high,
    }
}
