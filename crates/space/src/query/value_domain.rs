//! The values of one attribute that a predicate allows. They determine the regions and the index ranges that a search
//! must visit.
//!
//! 1. If the predicate holds for an object, one of its values is within the spans, or the attribute is missing and
//!    `missing` is set.
//! 2. The spans are sorted and not empty, and no two of them touch.
//! 3. The spans of a conjunction are intersected only if an object has at most one value. An object with the prices 1
//!    and 9 is both below 2 and above 8.

use std::cmp::Ordering;
use std::ops::Bound;

use crate::base::ordered::Scalar;
use crate::query::predicate::{Leaf, Predicate, Span, Test};
use crate::schema::{Attribute, AttributeId, AttributeKind};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueDomain {
    pub spans: Vec<Span>,
    /// Includes objects without a value: the field is absent, has the wrong type, or holds no value, such as an empty
    /// text.
    pub missing: bool,
}

impl ValueDomain {
    pub fn all() -> ValueDomain {
        ValueDomain {
            spans: vec![Span::all()],
            missing: true,
        }
    }

    fn none() -> ValueDomain {
        ValueDomain {
            spans: Vec::new(),
            missing: false,
        }
    }

    /// Returns whether the domain allows every object.
    pub fn is_all(&self) -> bool {
        self.missing && self.spans == [Span::all()]
    }

    /// Returns whether the domain allows an object with this value, or, for `None`, without a value.
    pub fn contains(&self, value: Option<&Scalar>) -> bool {
        match value {
            Some(value) => self.spans.iter().any(|span| span.contains(value)),
            None => self.missing,
        }
    }

    /// Returns the allowed values, if they are a finite set.
    pub fn points(&self) -> Option<Vec<&Scalar>> {
        if self.missing {
            None
        } else {
            self.spans.iter().map(Span::as_point).collect()
        }
    }

    /// Returns the union of `parts`, in O(n log n) of their spans.
    fn any_of(parts: impl Iterator<Item = ValueDomain>) -> ValueDomain {
        let mut all = ValueDomain::none();
        for part in parts {
            all.missing |= part.missing;
            all.spans.extend(part.spans);
        }
        ValueDomain {
            spans: merged(all.spans),
            ..all
        }
    }

    /// Returns the intersection of `parts`, in O(n log n) of their spans. It intersects pairs, then pairs of the
    /// results, so that a long list is not scanned once for each short one.
    fn all_of(mut parts: Vec<ValueDomain>, is_single_valued: bool) -> ValueDomain {
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
        parts.pop().unwrap_or_else(ValueDomain::all)
    }

    fn and(self, other: ValueDomain, is_single_valued: bool) -> ValueDomain {
        if self.is_all() {
            return other;
        }
        if other.is_all() {
            return self;
        }
        if !is_single_valued {
            // Each of the two holds for one value of an object, not necessarily the same. Keep the more restrictive
            // one.
            return if other.spans.len() < self.spans.len() && !other.missing {
                other
            } else {
                self
            };
        }
        // Both lists are sorted and their spans are disjoint, so the span that ends first cannot intersect any later
        // span.
        let (mut left, mut right) = (self.spans.into_iter(), other.spans.into_iter());
        let (mut a, mut b) = (left.next(), right.next());
        let mut spans = Vec::new();
        while let (Some(x), Some(y)) = (&a, &b) {
            let low = if compare_low(&x.low, &y.low).is_ge() {
                &x.low
            } else {
                &y.low
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
            if x_ends_first {
                a = left.next()
            } else {
                b = right.next()
            }
        }
        ValueDomain {
            spans,
            missing: self.missing && other.missing,
        }
    }

    /// Returns all values outside the spans.
    fn complement(self) -> ValueDomain {
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
                    return ValueDomain {
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
        ValueDomain {
            spans: merged(spans),
            missing: !self.missing,
        }
    }
}

/// Returns true if a cheap check shows that the predicate allows every value of the attribute: it is a conjunction of
/// tests of other attributes.
pub fn is_unconstrained(predicate: &Predicate, id: AttributeId) -> bool {
    match predicate {
        Predicate::All | Predicate::Optional(_) => true,
        Predicate::Leaf(leaf) => leaf.attributes != [id],
        Predicate::And(parts) => parts.iter().all(|part| is_unconstrained(part, id)),
        _ => false,
    }
}

/// Returns the values of the attribute that the predicate allows. Takes O(n log n) of its leaves, times the number of
/// levels at which AND and OR alternate.
pub fn value_domain(predicate: &Predicate, attribute: &Attribute) -> ValueDomain {
    match predicate {
        Predicate::All | Predicate::Optional(_) => ValueDomain::all(),
        Predicate::Nothing => ValueDomain::none(),
        Predicate::And(parts) => {
            let single = attribute.is_single_valued();
            let parts = parts.iter().map(|part| value_domain(part, attribute));
            let parts = parts.filter(|part| !part.is_all()).collect();
            ValueDomain::all_of(parts, single)
        }
        Predicate::Or(parts) => {
            ValueDomain::any_of(parts.iter().map(|part| value_domain(part, attribute)))
        }
        Predicate::Not(inner) => match &**inner {
            Predicate::Leaf(leaf) if is_exact(leaf, attribute) => {
                value_domain(inner, attribute).complement()
            }
            Predicate::Not(inner) => value_domain(inner, attribute),
            Predicate::All | Predicate::Optional(_) => ValueDomain::none(),
            _ => ValueDomain::all(),
        },
        Predicate::Leaf(leaf) if leaf.attributes == [attribute.id] => of_test(&leaf.test),
        Predicate::Leaf(_) => ValueDomain::all(),
    }
}

/// Returns whether the leaf holds for exactly the values in its value domain.
fn is_exact(leaf: &Leaf, attribute: &Attribute) -> bool {
    let is_ordered = matches!(
        attribute.kind,
        AttributeKind::Numeric | AttributeKind::Timestamp | AttributeKind::Boolean
    );
    let is_range = matches!(leaf.test, Test::Within(_));
    leaf.attributes == [attribute.id] && attribute.is_single_valued() && is_ordered && is_range
}

fn of_test(test: &Test) -> ValueDomain {
    let spans = match test {
        Test::Within(span) => vec![span.clone()],
        Test::Tag(patterns) => patterns.iter().map(|pattern| pattern.span()).collect(),
        // A complete text is one value. A test of one of its words does not restrict it.
        Test::Word(_) | Test::Phrase { .. } | Test::Near(_) => {
            return ValueDomain {
                spans: vec![Span::all()],
                missing: matches!(test, Test::Near(_)),
            };
        }
        Test::Missing => {
            return ValueDomain {
                spans: Vec::new(),
                missing: true,
            };
        }
    };
    ValueDomain {
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

/// Sorts spans, removes empty ones, and merges those that overlap or touch (invariant 2).
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

/// Returns whether no value is between a high bound and the following low bound.
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
