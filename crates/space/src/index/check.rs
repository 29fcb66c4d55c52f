//! A predicate made ready to be tested on rows: it looks at columns, and decodes nothing where a row has what its column holds.
//!
//! It answers as [`crate::query::matches`] does, of one row or of 64 in one go.

use std::cell::RefCell;

use super::SpaceIndex;
use super::column::Data;
use super::column::codes::{self, Code, Codes, Others};
use super::column::points::Points;
use super::column::values::{self, Values};
use crate::query::predicate::{Circle, Leaf, Pattern, Predicate, Test};
use crate::schema::AttributeId;
use crate::value::Column;

pub(super) enum Check<'a> {
    Constant(bool),
    And(Vec<Check<'a>>),
    Or(Vec<Check<'a>>),
    Not(Box<Check<'a>>),
    Codes(Range<'a, u64>),
    Flags(Range<'a, u8>),
    Values(OfValues<'a>),
    Near(&'a Points, &'a Circle, &'a Test),
    /// The test of what is missing, or of what no column of this kind fits.
    Missing(&'a Data),
}

/// Rows whose codes lie within, and others that the test holds for.
pub(super) struct Range<'a, C> {
    codes: &'a [C],
    others: &'a Others,
    low: C,
    high: C,
    test: &'a Test,
}

/// Rows whose values fit.
pub(super) struct OfValues<'a> {
    values: &'a Values,
    fit: Fit<'a>,
    /// By value, where many rows are tested: 0 if it has not been, 1 if it does not fit, 2 if it does.
    known: RefCell<Vec<u8>>,
}

enum Fit<'a> {
    /// It has one of the terms.
    Terms(Vec<u32>),
    /// One of its terms fits one of the patterns.
    Patterns(&'a [Pattern]),
    Test(&'a Test),
}

/// More distinct values than these are tested again for each row: what is known is of one step, and made ready for each.
const KNOWN_MAX: usize = 1 << 13;

impl<'a> Check<'a> {
    /// `is_wide`: most rows will be tested.
    pub fn new(predicate: &'a Predicate, index: &'a SpaceIndex, is_wide: bool) -> Check<'a> {
        match predicate {
            Predicate::All | Predicate::Optional(_) => Check::Constant(true),
            Predicate::Nothing => Check::Constant(false),
            Predicate::And(parts) => {
                let mut checks: Vec<_> = parts
                    .iter()
                    .map(|it| Check::new(it, index, is_wide))
                    .collect();
                checks.sort_by_key(Check::cost);
                Check::And(checks)
            }
            Predicate::Or(parts) => {
                let mut checks: Vec<_> = parts
                    .iter()
                    .map(|it| Check::new(it, index, is_wide))
                    .collect();
                checks.sort_by_key(Check::cost);
                Check::Or(checks)
            }
            Predicate::Not(inner) => Check::Not(Box::new(Check::new(inner, index, is_wide))),
            Predicate::Leaf(leaf) => Check::of_leaf(leaf, index, is_wide),
        }
    }

    fn of_leaf(leaf: &'a Leaf, index: &'a SpaceIndex, is_wide: bool) -> Check<'a> {
        let mut checks: Vec<_> = leaf
            .attributes
            .iter()
            .map(|id| Check::of_test(*id, &leaf.test, index, is_wide))
            .collect();
        match checks.len() {
            1 => checks.remove(0),
            _ => Check::Or(checks),
        }
    }

    fn of_test(id: AttributeId, test: &'a Test, index: &'a SpaceIndex, is_wide: bool) -> Check<'a> {
        let Some(attribute) = index.attribute(id) else {
            return Check::Constant(test.holds(&Column::Missing));
        };
        let data = &attribute.data;
        match (test, data) {
            (Test::Missing, data) => Check::Missing(data),
            (Test::Within(span), Data::Numbers(codes) | Data::Instants(codes)) => {
                let (low, high) = codes::range(span).unwrap_or((1, 0));
                Check::Codes(Range::new(codes, low, high, test))
            }
            (Test::Within(span), Data::Flags(flags)) => {
                let (low, high) = codes::range(span).unwrap_or((1, 0));
                // There are two values.
                let (low, high) = (low.min(2) as u8, high.min(1) as u8);
                Check::Flags(Range::new(flags, low, high, test))
            }
            (Test::Near(circle), Data::Points(points)) => Check::Near(points, circle, test),
            (test, Data::Values(values)) => Check::Values(OfValues {
                fit: Fit::new(test, values),
                known: RefCell::new(match is_wide && values.end() <= KNOWN_MAX {
                    true => vec![0; values.end()],
                    false => Vec::new(),
                }),
                values,
            }),
            _ => Check::Constant(false),
        }
    }

    /// What is tested first of several.
    fn cost(&self) -> u8 {
        match self {
            Check::Constant(_) => 0,
            Check::Flags(_) | Check::Codes(_) | Check::Missing(_) => 1,
            Check::Values(it) => match it.fit {
                Fit::Terms(_) => 2,
                Fit::Patterns(_) => 4,
                Fit::Test(_) => 5,
            },
            Check::Near(..) => 3,
            Check::Not(inner) => inner.cost(),
            Check::And(parts) | Check::Or(parts) => {
                parts.iter().map(Check::cost).max().unwrap_or(0)
            }
        }
    }

    #[inline]
    pub fn holds(&self, row: u32) -> bool {
        match self {
            Check::Constant(holds) => *holds,
            Check::And(parts) => parts.iter().all(|part| part.holds(row)),
            Check::Or(parts) => parts.iter().any(|part| part.holds(row)),
            Check::Not(inner) => !inner.holds(row),
            Check::Codes(range) => range.holds(row),
            Check::Flags(range) => range.holds(row),
            Check::Values(of) => of.holds(row),
            Check::Near(points, circle, test) => is_near(points, circle, test, row),
            Check::Missing(data) => data.is_missing(row),
        }
    }

    /// Of the rows from `base` on that `mask` has a bit for, those that it holds for.
    pub fn block(&self, base: u32, mask: u64) -> u64 {
        match self {
            Check::Constant(true) => mask,
            Check::Constant(false) => 0,
            Check::And(parts) => {
                let mut left = mask;
                for part in parts {
                    if left == 0 {
                        break;
                    }
                    left = part.block(base, left);
                }
                left
            }
            Check::Or(parts) => {
                let mut found = 0;
                for part in parts {
                    if found == mask {
                        break;
                    }
                    found |= part.block(base, mask & !found);
                }
                found
            }
            Check::Not(inner) => mask & !inner.block(base, mask),
            Check::Codes(range) => range.block(base, mask),
            Check::Flags(range) => range.block(base, mask),
            part => {
                let (mut found, mut left) = (0, mask);
                while left != 0 {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    found |= u64::from(part.holds(base + bit)) << bit;
                }
                found
            }
        }
    }
}

impl<'a, C: Code> Range<'a, C> {
    fn new(codes: &'a Codes<C>, low: C, high: C, test: &'a Test) -> Range<'a, C> {
        Range {
            codes: &codes.codes,
            others: &codes.others,
            low,
            high,
            test,
        }
    }

    #[inline]
    fn holds(&self, row: u32) -> bool {
        let code = self.codes[row as usize];
        if code == C::OTHER {
            return self
                .others
                .get(&row)
                .is_some_and(|column| self.test.holds(column));
        }
        self.low <= code && code <= self.high
    }

    fn block(&self, base: u32, mask: u64) -> u64 {
        let begin = base as usize;
        let codes = &self.codes[begin..self.codes.len().min(begin + 64)];
        let mut fits = [0_u8; 64];
        for (fits, code) in fits.iter_mut().zip(codes) {
            *fits = u8::from((self.low <= *code) & (*code <= self.high));
        }
        let mut found = bits_of(&fits);
        if !self.others.is_empty() {
            for (row, column) in self.others.range(base..base.saturating_add(64)) {
                found |= u64::from(self.test.holds(column)) << (row - base);
            }
        }
        found & mask
    }
}

/// A bit for each byte, which is 0 or 1.
fn bits_of(bytes: &[u8; 64]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let eights = words.iter().enumerate().map(|(at, word)| {
        // Each byte's bit is moved to a place of its own in the highest byte.
        let bits = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits << (8 * at)
    });
    eights.fold(0, |all, bits| all | bits)
}

impl<'a> Fit<'a> {
    fn new(test: &'a Test, values: &Values) -> Fit<'a> {
        let exact = |patterns: &[Pattern]| -> Option<Vec<u32>> {
            let mut terms = Vec::new();
            for pattern in patterns {
                let Pattern::Exact(text) = pattern else {
                    return None;
                };
                terms.extend(values.term(text));
            }
            Some(terms)
        };
        match test {
            Test::Tag(patterns) if values.has_terms => match exact(patterns) {
                Some(terms) => Fit::Terms(terms),
                None => Fit::Patterns(patterns),
            },
            // An empty word is an empty text.
            Test::Word(Pattern::Exact(word)) if word.is_empty() => Fit::Test(test),
            Test::Word(pattern) if values.has_terms => {
                let patterns = std::slice::from_ref(pattern);
                match exact(patterns) {
                    Some(terms) => Fit::Terms(terms),
                    None => Fit::Patterns(patterns),
                }
            }
            test => Fit::Test(test),
        }
    }
}

impl OfValues<'_> {
    #[inline]
    fn holds(&self, row: u32) -> bool {
        let id = self.values.id(row);
        if id == values::MISSING {
            return false;
        }
        let mut known = self.known.borrow_mut();
        match known.get_mut(id as usize) {
            None => self.fits(id),
            Some(known) => {
                if *known == 0 {
                    *known = 1 + u8::from(self.fits(id));
                }
                *known == 2
            }
        }
    }

    fn fits(&self, id: u32) -> bool {
        let terms = self.values.terms_of(id);
        match &self.fit {
            Fit::Terms(asked) => asked.iter().any(|term| terms.contains(term)),
            Fit::Patterns(patterns) => terms.iter().any(|term| {
                let bytes = self.values.term_bytes(*term);
                patterns.iter().any(|pattern| pattern.fits(bytes))
            }),
            Fit::Test(test) => test.holds(&self.values.column(id)),
        }
    }
}

fn is_near(points: &Points, circle: &Circle, test: &Test, row: u32) -> bool {
    match points.get(row) {
        Some(point) => point.distance_m(circle.center) <= circle.radius_m,
        None => points
            .others
            .get(&row)
            .is_some_and(|column| test.holds(column)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_its_bit() {
        for pattern in [
            0,
            1,
            1 << 63,
            0x8000_0001_0000_0180,
            u64::MAX,
            0x0123_4567_89ab_cdef,
        ] {
            let bytes = std::array::from_fn(|at| (pattern >> at & 1) as u8);
            assert_eq!(bits_of(&bytes), pattern, "{pattern:x}");
        }
    }
}
