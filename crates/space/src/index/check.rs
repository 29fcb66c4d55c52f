//! A predicate compiled for tests on rows. It reads columns, and decodes nothing if the column's primary representation
//! holds the row's value.
//!
//! It returns the same result as [`crate::query::matches`], for one row or for 64 rows at a time.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use super::SpaceIndex;
use super::attribute::{AttributeIndex, Sketch};
use super::column::Data;
use super::column::codes::{self, Code, Codes, Others};
use super::column::points::Points;
use super::column::sketch::{self, Blocks, add_within};
use super::column::values::{self, Values};
use crate::query::predicate::{Circle, Leaf, Pattern, Predicate, Span, Test};
use crate::schema::AttributeId;
use crate::value::Column;

pub(super) enum Check<'a> {
    Constant(bool),
    And(Vec<Check<'a>>),
    Or(Vec<Check<'a>>),
    Not(Box<Check<'a>>),
    Codes(Range<'a, u64>),
    Flags(Range<'a, u8>),
    Values(ValueCheck<'a>),
    /// A prefilter by one byte per row. Most rows never reach the inner check.
    Sketched(Box<SketchFilter<'a>>),
    Near(&'a Points, &'a Circle, &'a Test),
    /// The test for missing values, or a test that no column of this type passes.
    Missing(&'a Data),
}

/// The expected number of rows to test, which determines the preparation of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScanSize {
    Few,
    /// Terms are looked up, and numbers are tested by their sketches.
    Some,
    /// Results of tests are also cached per value.
    Many,
    /// In addition, the rows at the edges of a range are determined.
    All,
}

impl ScanSize {
    /// Returns the extent for a list of this many rows.
    pub fn of(rows: usize) -> ScanSize {
        match rows {
            0..TERM_LOOKUP_ROWS_MIN => ScanSize::Few,
            TERM_LOOKUP_ROWS_MIN..CACHE_ROWS_MIN => ScanSize::Some,
            _ => ScanSize::Many,
        }
    }
}

/// The number of rows for which comparing terms takes as long as looking up one term.
const TERM_LOOKUP_ROWS_MIN: usize = 32;
/// The number of rows for which repeated lookups take as long as allocating the cache.
const CACHE_ROWS_MIN: usize = 256;

/// A prefilter by one byte per row.
pub(super) struct SketchFilter<'a> {
    bytes: &'a [u8],
    /// The test holds for rows with these bytes.
    sure: Vec<RangeInclusive<u8>>,
    /// The test may hold for rows with these bytes, unless they are in `sure`.
    maybe: Vec<RangeInclusive<u8>>,
    exact: Check<'a>,
    /// A bit for each row that matches in addition. Empty, or as long as the number of rows.
    edges: Vec<u64>,
}

/// The rows with codes in an interval, and those among `others` for which the test holds.
pub(super) struct Range<'a, C> {
    codes: &'a [C],
    others: &'a Others,
    low: C,
    high: C,
    test: &'a Test,
}

/// The rows whose values match.
pub(super) struct ValueCheck<'a> {
    values: &'a Values,
    matcher: ValueMatcher<'a>,
    /// A cache by value, used for many rows: 0 is unknown, 1 does not match, 2 matches.
    cache: RefCell<Vec<u8>>,
}

enum ValueMatcher<'a> {
    /// The value has one of these terms, which are ascending.
    Terms(Vec<u32>),
    /// One of the value's terms matches one of the patterns.
    Patterns(&'a [Pattern]),
    Test(&'a Test),
}

/// The maximum size of the cache. The cache is rebuilt for each step, so with more distinct values each row is tested
/// again.
const CACHE_MAX: usize = 1 << 13;

/// Returns whether the predicate can be decided for most rows by their sketch bytes.
pub(super) fn is_decided_by_sketches(predicate: &Predicate, index: &SpaceIndex) -> bool {
    match predicate {
        Predicate::All | Predicate::Nothing | Predicate::Optional(_) => true,
        Predicate::And(parts) | Predicate::Or(parts) => {
            parts.iter().all(|part| is_decided_by_sketches(part, index))
        }
        Predicate::Not(inner) => is_decided_by_sketches(inner, index),
        Predicate::Leaf(leaf) => leaf.attributes.iter().all(|id| {
            index.attribute(*id).is_none_or(|attribute| {
                match (&leaf.test, &attribute.data, &attribute.sketch) {
                    (Test::Within(_), Data::Flags(_), _) => true,
                    (Test::Within(_), _, Sketch::Numbers(_)) => true,
                    (test, _, Sketch::Values(_)) => *test != Test::Missing,
                    _ => false,
                }
            })
        }),
    }
}

impl<'a> Check<'a> {
    pub fn new(predicate: &'a Predicate, index: &'a SpaceIndex, extent: ScanSize) -> Check<'a> {
        match predicate {
            Predicate::All | Predicate::Optional(_) => Check::Constant(true),
            Predicate::Nothing => Check::Constant(false),
            Predicate::And(parts) => {
                let mut checks: Vec<_> = parts
                    .iter()
                    .map(|it| Check::new(it, index, extent))
                    .collect();
                checks.sort_by_key(Check::cost);
                Check::And(checks)
            }
            Predicate::Or(parts) => {
                let mut checks: Vec<_> = parts
                    .iter()
                    .map(|it| Check::new(it, index, extent))
                    .collect();
                checks.sort_by_key(Check::cost);
                Check::Or(checks)
            }
            Predicate::Not(inner) => Check::Not(Box::new(Check::new(inner, index, extent))),
            Predicate::Leaf(leaf) => Check::of_leaf(leaf, index, extent),
        }
    }

    /// Creates a check of all parts of a conjunction but one.
    pub fn without_part(
        predicate: &'a Predicate,
        part: usize,
        index: &'a SpaceIndex,
        extent: ScanSize,
    ) -> Check<'a> {
        let Predicate::And(parts) = predicate else {
            return Check::new(predicate, index, extent);
        };
        let others = parts.iter().enumerate().filter(|(at, _)| *at != part);
        let others = others.map(|(_, it)| Check::new(it, index, extent));
        let mut checks: Vec<_> = others.collect();
        checks.sort_by_key(Check::cost);
        Check::And(checks)
    }

    fn of_leaf(leaf: &'a Leaf, index: &'a SpaceIndex, extent: ScanSize) -> Check<'a> {
        let mut checks: Vec<_> = leaf
            .attributes
            .iter()
            .map(|id| Check::of_test(*id, &leaf.test, index, extent))
            .collect();
        match checks.len() {
            1 => checks.remove(0),
            _ => Check::Or(checks),
        }
    }

    fn of_test(
        id: AttributeId,
        test: &'a Test,
        index: &'a SpaceIndex,
        extent: ScanSize,
    ) -> Check<'a> {
        let Some(attribute) = index.attribute(id) else {
            return Check::Constant(test.holds(&Column::Missing));
        };
        let data = &attribute.data;
        match (test, data) {
            (Test::Missing, data) => Check::Missing(data),
            (Test::Within(span), Data::Numbers(codes) | Data::Instants(codes)) => {
                let (low, high) = codes::range(span).unwrap_or((1, 0));
                let exact = Check::Codes(Range::new(codes, low, high, test));
                match &attribute.sketch {
                    Sketch::Numbers(blocks) if extent >= ScanSize::Some => {
                        let within = blocks.within(low, high);
                        let mut maybe = vec![within.maybe];
                        let edges = match extent {
                            ScanSize::All => edges(attribute, blocks, span, &within.sure, index),
                            _ => Vec::new(),
                        };
                        if !edges.is_empty() {
                            maybe.clear();
                        }
                        if !codes.others.is_empty() {
                            maybe.push(sketch::OTHER..=sketch::OTHER);
                        }
                        let sure = vec![within.sure];
                        SketchFilter::check(blocks.bytes(), sure, maybe, exact, edges)
                    }
                    _ => exact,
                }
            }
            (Test::Within(span), Data::Flags(flags)) => {
                let (low, high) = codes::range(span).unwrap_or((1, 0));
                // There are two values.
                let (low, high) = (low.min(2) as u8, high.min(1) as u8);
                let exact = Check::Flags(Range::new(flags, low, high, test));
                if extent != ScanSize::All {
                    return exact;
                }
                let sure = if low <= high {
                    vec![low..=high]
                } else {
                    vec![]
                };
                let maybe = if flags.others.is_empty() {
                    Vec::new()
                } else {
                    vec![sketch::OTHER..=sketch::OTHER]
                };
                SketchFilter::check(&flags.codes, sure, maybe, exact, Vec::new())
            }
            (Test::Near(circle), Data::Points(points)) => Check::Near(points, circle, test),
            (test, Data::Values(values)) => {
                let of = ValueCheck {
                    matcher: ValueMatcher::new(test, values, extent),
                    cache: RefCell::new(if extent >= ScanSize::Many && values.end() <= CACHE_MAX {
                        vec![0; values.end()]
                    } else {
                        Vec::new()
                    }),
                    values,
                };
                match &attribute.sketch {
                    Sketch::Values(numbers) if extent == ScanSize::All => {
                        let fitting = of.matching_ids();
                        if fitting.len() <= SPANS_MAX {
                            let (exact, bytes) = (Check::Values(of), numbers.bytes());
                            SketchFilter::check(bytes, fitting, Vec::new(), exact, Vec::new())
                        } else {
                            Check::Values(of)
                        }
                    }
                    _ => Check::Values(of),
                }
            }
            _ => Check::Constant(false),
        }
    }

    /// Returns whether testing 64 rows takes at most as long as testing one row individually.
    pub fn is_quick(&self) -> bool {
        match self {
            Check::Constant(_) | Check::Sketched(_) => true,
            Check::And(parts) | Check::Or(parts) => parts.iter().all(Check::is_quick),
            Check::Not(inner) => inner.is_quick(),
            _ => false,
        }
    }

    /// Returns the relative cost of a test. Cheaper parts are tested first.
    fn cost(&self) -> u8 {
        match self {
            Check::Constant(_) | Check::Sketched(_) => 0,
            Check::Flags(_) | Check::Codes(_) | Check::Missing(_) => 1,
            Check::Values(it) => match it.matcher {
                ValueMatcher::Terms(_) => 2,
                ValueMatcher::Patterns(_) => 4,
                ValueMatcher::Test(_) => 5,
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
            Check::Sketched(sketched) => sketched.exact.holds(row),
            Check::Near(points, circle, test) => is_near(points, circle, test, row),
            Check::Missing(data) => data.is_missing(row),
        }
    }

    /// Retains the rows for which the check holds, in order.
    pub fn retain(&self, rows: &mut Vec<u32>) {
        match self {
            Check::Constant(true) => {}
            Check::Constant(false) => rows.clear(),
            // Test one part after the other, because the data of each part is contiguous.
            Check::And(parts) => parts.iter().for_each(|part| part.retain(rows)),
            Check::Codes(range) => range.keep(rows),
            Check::Flags(range) => range.keep(rows),
            Check::Sketched(sketched) => sketched.keep(rows),
            check => rows.retain(|row| check.holds(*row)),
        }
    }

    /// Retains the bits of rows for which the check holds. The first mask is that of the 64 rows from 64 times `word`.
    pub fn filter_masks(&self, word: usize, masks: &mut [u64]) {
        match self {
            Check::Constant(true) => {}
            Check::Constant(false) => masks.fill(0),
            Check::And(parts) => parts.iter().for_each(|part| part.filter_masks(word, masks)),
            Check::Or(parts) => {
                let (mut found, mut left) = ([0; MASKS_MAX], [0; MASKS_MAX]);
                let (found, left) = (&mut found[..masks.len()], &mut left[..masks.len()]);
                for part in parts {
                    let others = masks.iter().zip(&*found).map(|(mask, found)| mask & !found);
                    left.iter_mut()
                        .zip(others)
                        .for_each(|(left, other)| *left = other);
                    part.filter_masks(word, left);
                    found
                        .iter_mut()
                        .zip(&*left)
                        .for_each(|(found, left)| *found |= left);
                }
                masks.copy_from_slice(found);
            }
            Check::Not(inner) => {
                let mut held = [0; MASKS_MAX];
                let held = &mut held[..masks.len()];
                held.copy_from_slice(masks);
                inner.filter_masks(word, held);
                masks
                    .iter_mut()
                    .zip(held)
                    .for_each(|(mask, held)| *mask &= !*held);
            }
            Check::Sketched(sketched) => sketched.sift(word, masks),
            Check::Codes(range) => range.sift(word, masks),
            Check::Flags(range) => range.sift(word, masks),
            part => {
                for (at, mask) in masks.iter_mut().enumerate() {
                    *mask = part.test_each((word + at) as u32 * 64, *mask);
                }
            }
        }
    }

    /// Returns the bits of `mask` for which the check holds, testing each row individually. Bit 0 is the row `base`.
    fn test_each(&self, base: u32, mask: u64) -> u64 {
        let (mut found, mut left) = (0, mask);
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            found |= u64::from(self.holds(base + bit)) << bit;
        }
        found
    }
}

/// The maximum number of masks in one call of `sift`.
pub(super) const MASKS_MAX: usize = 64;
/// The maximum number of byte ranges to compare with.
const SPANS_MAX: usize = 8;

impl<'a> SketchFilter<'a> {
    fn check(
        bytes: &'a [u8],
        sure: Vec<RangeInclusive<u8>>,
        maybe: Vec<RangeInclusive<u8>>,
        exact: Check<'a>,
        edges: Vec<u64>,
    ) -> Check<'a> {
        let maybe = maybe.into_iter().filter(|it| !sure.contains(it)).collect();
        Check::Sketched(Box::new(SketchFilter {
            bytes,
            sure,
            maybe,
            exact,
            edges,
        }))
    }

    /// See [`Check::keep`]. The byte of a row is more likely to be cached than its number.
    fn keep(&self, rows: &mut Vec<u32>) {
        const MAYBE: u8 = 1;
        const SURE: u8 = 2;
        let mut known = [0; 256];
        for (ranges, what) in [(&self.maybe, MAYBE), (&self.sure, SURE)] {
            for range in ranges {
                known[usize::from(*range.start())..=usize::from(*range.end())].fill(what);
            }
        }
        let mut kept = 0;
        for at in 0..rows.len() {
            let row = rows[at];
            let what = known[usize::from(self.bytes[row as usize])];
            rows[kept] = row;
            kept += usize::from(what == SURE || (what == MAYBE && self.exact.holds(row)));
        }
        rows.truncate(kept);
    }

    fn sift(&self, word: usize, masks: &mut [u64]) {
        let mut sure = self.found(&self.sure, word, masks.len());
        if let Some(edges) = self.edges.get(word..) {
            let edges = edges.iter().zip(&mut sure);
            edges.for_each(|(edge, sure)| *sure |= edge);
        }
        if self.maybe.is_empty() {
            let sifted = masks.iter_mut().zip(sure);
            return sifted.for_each(|(mask, sure)| *mask &= sure);
        }
        let maybe = self.found(&self.maybe, word, masks.len());
        for (at, (mask, (sure, maybe))) in masks.iter_mut().zip(sure.iter().zip(maybe)).enumerate()
        {
            let (sure, maybe) = (sure & *mask, maybe & !sure & *mask);
            *mask = match maybe {
                0 => sure,
                maybe => sure | self.exact.test_each((word + at) as u32 * 64, maybe),
            };
        }
    }

    /// Returns a bit for each row of `words` times 64 rows whose byte is in the ranges.
    #[inline]
    fn found(&self, ranges: &[RangeInclusive<u8>], word: usize, words: usize) -> [u64; MASKS_MAX] {
        let bytes = self.bytes.get(word * 64..).unwrap_or_default();
        let (blocks, rest) = bytes.as_chunks::<64>();
        let blocks = &blocks[..blocks.len().min(words)];
        let mut found = [0; MASKS_MAX];
        for range in ranges {
            add_within(blocks, range, &mut found);
        }
        if blocks.len() < words {
            let mut padded = [0; 64];
            padded[..rest.len()].copy_from_slice(rest);
            for range in ranges {
                add_within(&[padded], range, &mut found[blocks.len()..]);
            }
        }
        found
    }
}

/// The maximum number of rows at the edges of a range that are listed.
const EDGES_MAX: usize = 1 << 13;

/// Returns a bit for each row whose number is in the span, but not in a block that is completely in it. Empty if there
/// is no order in which to find them, or if there are too many.
fn edges(
    attribute: &AttributeIndex,
    blocks: &Blocks,
    span: &Span,
    sure: &RangeInclusive<u8>,
    index: &SpaceIndex,
) -> Vec<u64> {
    let Some(order) = &attribute.order else {
        return Vec::new();
    };
    let (all, sure) = (attribute.ranks(order, span), blocks.ranks(sure));
    let sure = if sure.is_empty() {
        all.end..all.end
    } else {
        sure
    };
    if all.len() - sure.len() > EDGES_MAX {
        return Vec::new();
    }
    let mut rows = Vec::with_capacity(all.len() - sure.len());
    order.copy_between(all.start, sure.start, &mut rows);
    order.copy_between(sure.end, all.end, &mut rows);
    let mut bits = vec![0; index.rows.end().div_ceil(64)];
    for row in rows {
        bits[row as usize / 64] |= 1 << (row % 64);
    }
    bits
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

    fn keep(&self, rows: &mut Vec<u32>) {
        if !self.others.is_empty() {
            return rows.retain(|row| self.holds(*row));
        }
        let mut kept = 0;
        for at in 0..rows.len() {
            let row = rows[at];
            let code = self.codes[row as usize];
            rows[kept] = row;
            kept += usize::from((self.low <= code) & (code <= self.high));
        }
        rows.truncate(kept);
    }

    fn sift(&self, word: usize, masks: &mut [u64]) {
        for (at, mask) in masks.iter_mut().enumerate() {
            if *mask != 0 {
                *mask = self.block((word + at) as u32 * 64, *mask);
            }
        }
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

/// Converts 64 bytes, each 0 or 1, to bits.
fn bits_of(bytes: &[u8; 64]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let eights = words.iter().enumerate().map(|(at, word)| {
        // The multiplication moves the bit of each byte to a separate position in the highest byte.
        let bits = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits << (8 * at)
    });
    eights.fold(0, |all, bits| all | bits)
}

impl<'a> ValueMatcher<'a> {
    fn new(test: &'a Test, values: &Values, extent: ScanSize) -> ValueMatcher<'a> {
        // Looking up terms costs more than comparing those of a few rows.
        let exact = |patterns: &[Pattern]| -> Option<Vec<u32>> {
            if extent == ScanSize::Few {
                return None;
            }
            let mut terms = Vec::new();
            for pattern in patterns {
                let Pattern::Exact(text) = pattern else {
                    return None;
                };
                terms.extend(values.term(text));
            }
            terms.sort_unstable();
            Some(terms)
        };
        match test {
            Test::Tag(patterns) if values.has_terms => match exact(patterns) {
                Some(terms) => ValueMatcher::Terms(terms),
                None => ValueMatcher::Patterns(patterns),
            },
            // An empty word matches an empty text.
            Test::Word(Pattern::Exact(word)) if word.is_empty() => ValueMatcher::Test(test),
            Test::Word(pattern) if values.has_terms => {
                let patterns = std::slice::from_ref(pattern);
                match exact(patterns) {
                    Some(terms) => ValueMatcher::Terms(terms),
                    None => ValueMatcher::Patterns(patterns),
                }
            }
            test => ValueMatcher::Test(test),
        }
    }
}

impl ValueCheck<'_> {
    #[inline]
    fn holds(&self, row: u32) -> bool {
        let id = self.values.id(row);
        if id == values::MISSING {
            return false;
        }
        let mut known = self.cache.borrow_mut();
        match known.get_mut(id as usize) {
            None => self.matches(id),
            Some(known) => {
                if *known == 0 {
                    *known = 1 + u8::from(self.matches(id));
                }
                *known == 2
            }
        }
    }

    /// Returns the matching values among the first 256, as ranges.
    fn matching_ids(&self) -> Vec<RangeInclusive<u8>> {
        let mut ranges: Vec<RangeInclusive<u8>> = Vec::new();
        for id in (0..self.values.end().min(256) as u32).filter(|id| self.matches(*id)) {
            match ranges.last_mut() {
                Some(last) if u32::from(*last.end()) + 1 == id => *last = *last.start()..=id as u8,
                _ => ranges.push(id as u8..=id as u8),
            }
        }
        ranges
    }

    fn matches(&self, id: u32) -> bool {
        let terms = self.values.terms_of(id);
        match &self.matcher {
            ValueMatcher::Terms(wanted) => {
                terms.iter().any(|term| wanted.binary_search(term).is_ok())
            }
            ValueMatcher::Patterns(patterns) => terms.iter().any(|term| {
                let bytes = self.values.term_bytes(*term);
                patterns.iter().any(|pattern| pattern.matches(bytes))
            }),
            ValueMatcher::Test(test) => test.holds(&self.values.column(id)),
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
