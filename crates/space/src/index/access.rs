//! The access paths of a predicate: estimates for the planner, and the lists of candidate rows.
//!
//! 1. An access contains every row for which its predicate holds.
//! 2. `count` is an upper bound of the number of these rows. If `is_exact`, it is their number, and the predicate holds
//!    for each listed row.
//! 3. Planning one query takes at most [`PLANNING_MAX`] units of work. A part of the query that exceeds this budget is
//!    assumed to hold for any row.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::{Deref, Range};

use super::SpaceIndex;
use super::attribute::AttributeIndex;
use super::column::Data;
use super::column::points::{boxes, ranges};
use super::column::values::Values;
use crate::query::predicate::{Circle, Leaf, Pattern, Predicate, Span, Test};
use crate::query::{ValueDomain, value_domain};
use crate::schema::{Attribute, AttributeId, AttributeKind};

/// The maximum number of terms looked up for a pattern. A pattern with more terms scans all rows.
const TERMS_MAX: usize = 1024;
/// The maximum number of an attribute's terms that are compared with a pattern without a fixed prefix.
const TERMS_COMPARED_MAX: usize = 4096;
/// The maximum number of composite-index ranges in one search.
const RANGES_MAX: usize = 16;
/// A list with at most this many rows is examined directly, because searching another index for a shorter one costs
/// more.
const SHORT_LIST_MAX: usize = 64;
/// The assumed selectivity of a test without statistics.
const SHARE_UNKNOWN: f64 = 0.5;
/// The budget for planning one query. A unit is an index lookup, or the merge of one condition's bounds with others.
pub(super) const PLANNING_MAX: usize = 1 << 15;
/// The number of compared terms, or of visited conditions, per unit of work.
const VISITS: usize = 16;
/// The maximum number of ranges whose ranks a walk looks up. With more ranges, it follows the complete order.
const WALK_RANGES_MAX: usize = 1024;

/// The state of planning one query: the index, and the remaining budget.
struct Planning<'i> {
    index: &'i SpaceIndex,
    left: Cell<usize>,
}

impl Planning<'_> {
    /// Subtracts `units` from the budget. Returns whether the budget sufficed.
    fn spend(&self, units: usize) -> bool {
        let left = self.left.get().checked_sub(units);
        self.left.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Returns the value domain of `predicate` for `attribute`, if the budget suffices.
    fn value_domain(&self, predicate: &Predicate, attribute: &Attribute) -> Option<ValueDomain> {
        let is_affordable = self.spend(predicate.tests());
        is_affordable.then(|| value_domain(predicate, attribute))
    }
}

impl Deref for Planning<'_> {
    type Target = SpaceIndex;

    fn deref(&self) -> &SpaceIndex {
        self.index
    }
}

#[derive(Debug)]
pub(super) struct Access {
    pub count: usize,
    pub is_exact: bool,
    /// For a conjunction: the part that holds for all listed rows.
    pub decided_part: Option<usize>,
    /// The estimated selectivity: the fraction of all objects for which the predicate holds.
    pub share: f64,
    pub source: Source,
}

#[derive(Debug)]
pub(super) enum Source {
    Nothing,
    /// Every object.
    All,
    /// Ranges of an attribute's order, and the attribute's rows outside the order.
    Ranks(usize, Vec<Range<usize>>),
    /// Ranges of a composite index, and its rows outside the order.
    Composite(usize, Vec<Range<usize>>),
    /// The rows of these terms of an attribute.
    Terms(usize, Vec<u32>),
    /// The rows without a value of the attribute.
    Missing(usize),
    Union(Vec<Access>),
}

impl Access {
    pub fn of(predicate: &Predicate, index: &SpaceIndex) -> Access {
        Access::planned(predicate, index).0
    }

    /// Like [`Access::of`], and also returns the units of work spent on planning.
    pub fn planned(predicate: &Predicate, index: &SpaceIndex) -> (Access, usize) {
        let planning = Planning {
            index,
            left: Cell::new(PLANNING_MAX),
        };
        let access = Access::within(predicate, &planning);
        (access, PLANNING_MAX - planning.left.get())
    }

    fn within(predicate: &Predicate, index: &Planning<'_>) -> Access {
        if !index.spend(1) {
            return Access::all(index);
        }
        match predicate {
            Predicate::All | Predicate::Optional(_) => Access {
                is_exact: true,
                share: 1.0,
                ..Access::all(index)
            },
            Predicate::Nothing => Access::nothing(),
            Predicate::Leaf(leaf) => {
                let mut best = of_leaf(leaf, index);
                if best.is_short() || (best.is_list() && best.is_exact) {
                    return best;
                }
                of_composites(predicate, index, |access| {
                    if !best.is_list() || access.count < best.count {
                        let share = best.share.min(access.share);
                        best = Access { share, ..access };
                    }
                });
                best
            }
            Predicate::And(parts) => of_and(predicate, parts, index),
            Predicate::Or(parts) => by_one_attribute(predicate, index).unwrap_or_else(|| {
                union(
                    parts
                        .iter()
                        .map(|part| Access::within(part, index))
                        .collect(),
                    index,
                )
            }),
            Predicate::Not(inner) => {
                by_one_attribute(predicate, index).unwrap_or_else(|| {
                    let inner = Access::within(inner, index);
                    let all = Access::all(index);
                    if inner.is_exact {
                        // The count is known, but the rows cannot be listed.
                        Access {
                            count: index.rows.len() - inner.count,
                            is_exact: true,
                            share: 1.0 - inner.share,
                            ..all
                        }
                    } else {
                        Access {
                            share: 1.0 - inner.share,
                            ..all
                        }
                    }
                })
            }
        }
    }

    fn all(index: &SpaceIndex) -> Access {
        Access {
            count: index.rows.len(),
            is_exact: false,
            decided_part: None,
            share: SHARE_UNKNOWN,
            source: Source::All,
        }
    }

    fn nothing() -> Access {
        Access {
            count: 0,
            is_exact: true,
            decided_part: None,
            share: 0.0,
            source: Source::Nothing,
        }
    }

    fn new(count: usize, is_exact: bool, source: Source, index: &SpaceIndex) -> Access {
        let all = index.rows.len();
        if count >= all && !is_exact {
            return Access {
                share: 1.0,
                ..Access::all(index)
            };
        }
        Access {
            count,
            is_exact,
            decided_part: None,
            share: if all == 0 {
                0.0
            } else {
                count as f64 / all as f64
            },
            source,
        }
    }

    /// Returns whether the rows can be listed.
    pub fn is_list(&self) -> bool {
        !matches!(self.source, Source::All)
    }

    /// Returns whether the list is so short that looking for a shorter one costs more.
    fn is_short(&self) -> bool {
        self.is_list() && self.count <= SHORT_LIST_MAX
    }

    /// Appends the rows, without duplicates.
    pub fn list(&self, index: &SpaceIndex, out: &mut Vec<u32>) {
        let begin = out.len();
        if self.add_rows(index, out) {
            out[begin..].sort_unstable();
            let mut kept = begin;
            for at in begin..out.len() {
                if kept == begin || out[kept - 1] != out[at] {
                    out[kept] = out[at];
                    kept += 1;
                }
            }
            out.truncate(kept);
        }
    }

    /// Appends the rows. Returns whether there may be duplicates.
    fn add_rows(&self, index: &SpaceIndex, out: &mut Vec<u32>) -> bool {
        match &self.source {
            Source::Nothing | Source::All => false,
            Source::Ranks(at, ranges) => {
                let attribute = &index.attributes[*at];
                if let Some(order) = &attribute.order {
                    ranges
                        .iter()
                        .for_each(|it| order.copy_between(it.start, it.end, out));
                }
                out.extend(attribute.data.others().keys());
                false
            }
            Source::Composite(at, ranges) => {
                let composite = &index.composites[*at];
                for range in ranges {
                    composite.order.copy_between(range.start, range.end, out);
                }
                composite.others.copy_to(out);
                false
            }
            Source::Terms(at, terms) => {
                if let Data::Values(values) = &index.attributes[*at].data {
                    terms
                        .iter()
                        .for_each(|term| values.postings(*term).copy_to(out));
                }
                terms.len() > 1
            }
            Source::Missing(at) => {
                if let Some(missing) = &index.attributes[*at].missing {
                    missing.copy_to(out);
                }
                false
            }
            Source::Union(parts) => {
                for part in parts {
                    part.add_rows(index, out);
                }
                true
            }
        }
    }
}

fn union(parts: Vec<Access>, index: &Planning<'_>) -> Access {
    let share = 1.0 - parts.iter().map(|part| 1.0 - part.share).product::<f64>();
    let count: usize = parts.iter().map(|part| part.count).sum();
    if count >= index.rows.len() || !parts.iter().all(Access::is_list) {
        return Access {
            share,
            ..Access::all(index)
        };
    }
    Access {
        count,
        is_exact: false,
        decided_part: None,
        share,
        source: Source::Union(parts),
    }
}

fn of_and(predicate: &Predicate, parts: &[Predicate], index: &Planning<'_>) -> Access {
    if let Some(access) = by_one_attribute(predicate, index) {
        return access;
    }
    let mut parts: Vec<(usize, &Predicate)> = parts.iter().enumerate().collect();
    parts.sort_by_cached_key(|(_, part)| rows_of_term(part, index));
    let (mut best, mut share) = (Access::all(index), 1.0);
    for (at, part) in parts {
        let access = Access::within(part, index);
        share *= access.share;
        if access.is_list() && access.count < best.count {
            let decides = access.is_exact.then_some(at);
            best = Access {
                decided_part: decides,
                ..access
            };
        }
        if best.is_short() {
            break;
        }
    }
    if !best.is_short() {
        consider_combinations(predicate, index, &mut best);
    }
    best.is_exact = best.count == 0;
    best.share = share.min(best.share);
    best
}

/// Returns the average number of rows of one term of the tag or word predicate, or `usize::MAX` for other predicates.
fn rows_of_term(predicate: &Predicate, index: &SpaceIndex) -> usize {
    match predicate {
        Predicate::Leaf(leaf) if matches!(leaf.test, Test::Tag(_) | Test::Word(_)) => {
            let data = |id: &AttributeId| index.attribute(*id).map(|it| &it.data);
            match leaf.attributes.iter().filter_map(data).next() {
                Some(Data::Values(values)) => index.rows.len() / values.terms().max(1),
                _ => usize::MAX,
            }
        }
        _ => usize::MAX,
    }
}

/// Considers accesses that combine several parts of a predicate.
fn consider_combinations(predicate: &Predicate, index: &Planning<'_>, best: &mut Access) {
    let mut consider = |access: Access| {
        if access.is_list() && access.count < best.count {
            *best = access;
        }
    };
    // Several bounds of one attribute together are more selective than each of them.
    let (mut once, mut repeated) = (BTreeSet::new(), BTreeSet::new());
    if !index.spend(predicate.tests() / VISITS) {
        return;
    }
    predicate.leaves(&mut |leaf: &Leaf| {
        if let (Test::Within(_), [id]) = (&leaf.test, &leaf.attributes[..])
            && !once.insert(*id)
        {
            repeated.insert(*id);
        }
    });
    for id in repeated {
        if let Some(at) = index.position(id)
            && index.attributes[at].order.is_some()
            && let Some(domain) = index.value_domain(predicate, &index.attributes[at].attribute)
            && let Some(access) = of_domain(at, &domain, false, index)
        {
            consider(access);
        }
    }
    of_composites(predicate, index, consider);
}

/// Returns an exact access for a predicate that only tests spans of one single-valued attribute.
fn by_one_attribute(predicate: &Predicate, index: &Planning<'_>) -> Option<Access> {
    if !index.spend(predicate.tests() / VISITS) {
        return None;
    }
    let (mut only, mut is_one) = (None, true);
    predicate.leaves(&mut |leaf: &Leaf| {
        for id in &leaf.attributes {
            is_one &= *only.get_or_insert(*id) == *id;
        }
    });
    let id = only.filter(|_| is_one)?;
    let at = index.position(id)?;
    let attribute = &index.attributes[at];
    let is_ordered = matches!(
        attribute.data,
        Data::Numbers(_) | Data::Instants(_) | Data::Flags(_)
    );
    if !is_ordered || !attribute.data.others().is_empty() || !is_of_spans(predicate) {
        return None;
    }
    // Objects have at most one value of it.
    if !attribute.attribute.is_single_valued() || attribute.order.is_none() {
        return None;
    }
    let domain = index.value_domain(predicate, &attribute.attribute)?;
    of_domain(at, &domain, true, index)
}

/// Returns whether [`value_domain`] describes exactly the values for which the predicate holds.
fn is_of_spans(predicate: &Predicate) -> bool {
    match predicate {
        Predicate::And(parts) | Predicate::Or(parts) => parts.iter().all(is_of_spans),
        Predicate::Not(inner) => match &**inner {
            Predicate::Not(inner) => is_of_spans(inner),
            inner @ Predicate::Leaf(_) => is_of_spans(inner),
            _ => false,
        },
        Predicate::Leaf(leaf) => leaf.attributes.len() == 1 && matches!(leaf.test, Test::Within(_)),
        Predicate::All | Predicate::Nothing | Predicate::Optional(_) => false,
    }
}

/// Returns the rows whose value of an ordered attribute is in the value domain.
fn of_domain(
    at: usize,
    domain: &ValueDomain,
    is_exact: bool,
    index: &Planning<'_>,
) -> Option<Access> {
    let attribute = &index.attributes[at];
    let order = attribute.order.as_ref()?;
    if !matches!(
        attribute.data,
        Data::Numbers(_) | Data::Instants(_) | Data::Flags(_)
    ) || !index.spend(2 * domain.spans.len())
    {
        return None;
    }
    let ranges: Vec<Range<usize>> = domain
        .spans
        .iter()
        .map(|span| attribute.ranks(order, span))
        .filter(|range| !range.is_empty())
        .collect();
    let others = attribute.data.others().len();
    let count = ranges.iter().map(Range::len).sum::<usize>() + others;
    if domain.missing {
        // Rows without a value are counted, but cannot be listed.
        let missing = index.rows.len() - order.len() - others;
        let access = Access::new(count + missing, is_exact, Source::All, index);
        return Some(Access {
            source: Source::All,
            ..access
        });
    }
    Some(Access::new(
        count,
        is_exact,
        Source::Ranks(at, ranges),
        index,
    ))
}

/// Considers each composite index whose first attribute the predicate restricts.
fn of_composites(predicate: &Predicate, index: &Planning<'_>, mut consider: impl FnMut(Access)) {
    for (at, composite) in index.composites.iter().enumerate() {
        if let Some(ranges) = composite_ranges(predicate, composite, index) {
            let count = ranges.iter().map(Range::len).sum::<usize>() + composite.others.len();
            let source = Source::Composite(at, ranges);
            consider(Access::new(count, false, source, index));
        }
    }
}

fn composite_ranges(
    predicate: &Predicate,
    composite: &super::composite::Composite,
    index: &Planning<'_>,
) -> Option<Vec<Range<usize>>> {
    let domains: Vec<ValueDomain> = composite
        .attributes
        .iter()
        .map(|at| index.value_domain(predicate, &index.attributes[*at].attribute))
        .collect::<Option<_>>()?;
    let mut tuples: Vec<Vec<&Span>> = vec![Vec::new()];
    for domain in &domains {
        if domain.missing || domain.spans == [Span::all()] {
            break;
        }
        if tuples.len() * domain.spans.len() > RANGES_MAX {
            break;
        }
        tuples = tuples
            .iter()
            .flat_map(|tuple| {
                domain.spans.iter().map(move |span| {
                    let mut longer = tuple.clone();
                    longer.push(span);
                    longer
                })
            })
            .collect();
        if !domain.spans.iter().all(|span| span.as_point().is_some()) {
            break;
        }
    }
    // The predicate does not restrict the first attribute.
    if tuples.iter().any(Vec::is_empty) {
        return None;
    }
    let ranges = tuples
        .iter()
        .map(|spans| composite.ranks(spans, &index.attributes));
    Some(ranges.filter(|range| !range.is_empty()).collect())
}

fn of_leaf(leaf: &Leaf, index: &Planning<'_>) -> Access {
    let mut parts: Vec<Access> = leaf
        .attributes
        .iter()
        .map(|id| of_test(*id, &leaf.test, index))
        .collect();
    match parts.len() {
        0 => Access::nothing(),
        1 => parts.remove(0),
        _ => union(parts, index),
    }
}

fn of_test(id: AttributeId, test: &Test, index: &Planning<'_>) -> Access {
    let Some(at) = index.position(id) else {
        // The attribute was dropped, so no object has it.
        return match test {
            Test::Missing => Access {
                is_exact: true,
                share: 1.0,
                ..Access::all(index)
            },
            _ => Access::nothing(),
        };
    };
    let attribute = &index.attributes[at];
    let access = match (test, &attribute.data) {
        (Test::Missing, _) => attribute
            .missing
            .as_ref()
            .map(|missing| Access::new(missing.len(), true, Source::Missing(at), index)),
        (Test::Within(span), Data::Numbers(_) | Data::Instants(_) | Data::Flags(_)) => {
            let domain = ValueDomain {
                spans: vec![span.clone()],
                missing: false,
            };
            of_domain(at, &domain, attribute.data.others().is_empty(), index)
        }
        (Test::Within(span), Data::Values(values)) => {
            of_value_span(at, attribute, values, span, index)
        }
        (Test::Tag(patterns), Data::Values(values)) => of_patterns(at, values, patterns, index),
        (Test::Word(Pattern::Exact(word)), _) if word.is_empty() => None,
        (Test::Word(pattern), Data::Values(values)) => {
            of_patterns(at, values, std::slice::from_ref(pattern), index)
        }
        (Test::Phrase { words, .. }, Data::Values(values)) => of_phrase(at, values, words, index),
        (Test::Near(circle), Data::Points(_)) => of_circle(at, attribute, circle, index),
        _ => None,
    };
    access.unwrap_or_else(|| Access::all(index))
}

fn of_value_span(
    at: usize,
    attribute: &AttributeIndex,
    values: &Values,
    span: &Span,
    index: &Planning<'_>,
) -> Option<Access> {
    if matches!(attribute.attribute.kind, AttributeKind::Tag { .. }) {
        let (mut terms, mut count) = (Vec::new(), 0);
        add_terms_within(values, span, &|_| true, &mut terms, &mut count)?;
        return Some(of_terms(at, values, terms, index));
    }
    // A range refers to the folded text, but the order may be that of the unfolded text.
    let order = attribute.order.as_ref()?;
    if attribute.attribute.sorts_unfolded() || values.multi_valued > 0 {
        return None;
    }
    let range = attribute.ranks(order, span);
    Some(Access::new(
        range.len(),
        true,
        Source::Ranks(at, vec![range]),
        index,
    ))
}

/// Returns `None` if the patterns match too many terms.
fn of_patterns(
    at: usize,
    values: &Values,
    patterns: &[Pattern],
    index: &Planning<'_>,
) -> Option<Access> {
    if !values.has_terms {
        return None;
    }
    if !index.spend(patterns.len()) {
        return None;
    }
    let (mut terms, mut count) = (Vec::new(), 0);
    for pattern in patterns {
        match pattern {
            Pattern::Exact(text) => terms.extend(values.term(text)),
            pattern => {
                let fits = |bytes: &[u8]| pattern.matches(bytes);
                add_terms_within(values, &pattern.span(), &fits, &mut terms, &mut count)?;
            }
        }
    }
    terms.sort_unstable();
    terms.dedup();
    if !index.spend(terms.len() + count / VISITS) {
        return None;
    }
    Some(of_terms(at, values, terms, index))
}

/// Adds the matching terms of a span. Returns `None` if too many match, or if too many would have to be compared.
fn add_terms_within(
    values: &Values,
    span: &Span,
    fits: &dyn Fn(&[u8]) -> bool,
    terms: &mut Vec<u32>,
    compared: &mut usize,
) -> Option<()> {
    if !values.has_terms {
        return None;
    }
    let (low, high) = super::attribute::byte_bounds(span);
    let rank = |edge: super::attribute::Edge<'_>| {
        let order = values.by_bytes();
        order.rank(|term| edge.is_below(values.term_bytes(term)))
    };
    let (begin, end) = (rank(low), rank(high));
    *compared += end.saturating_sub(begin);
    if *compared > TERMS_COMPARED_MAX {
        return None;
    }
    let found = values.by_bytes().between(begin, end);
    terms.extend(found.filter(|term| fits(values.term_bytes(*term))));
    (terms.len() <= TERMS_MAX).then_some(())
}

fn of_terms(at: usize, values: &Values, terms: Vec<u32>, index: &Planning<'_>) -> Access {
    let count = terms.iter().map(|term| values.postings(*term).len()).sum();
    let is_exact = terms.len() <= 1 || (values.multi_valued == 0 && is_tag(at, index));
    Access::new(count, is_exact, Source::Terms(at, terms), index)
}

fn is_tag(at: usize, index: &Planning<'_>) -> bool {
    matches!(
        index.attributes[at].attribute.kind,
        AttributeKind::Tag { .. }
    )
}

/// Returns the rows of the rarest word.
fn of_phrase(
    at: usize,
    values: &Values,
    words: &[Vec<u8>],
    index: &Planning<'_>,
) -> Option<Access> {
    if !values.has_terms || words.is_empty() {
        return None;
    }
    let mut rarest: Option<u32> = None;
    for word in words {
        let Some(term) = values.term(word) else {
            return Some(Access::nothing());
        };
        let len = |term: u32| values.postings(term).len();
        if rarest.is_none_or(|rarest| len(term) < len(rarest)) {
            rarest = Some(term);
        }
    }
    let term = rarest?;
    let count = values.postings(term).len();
    Some(Access::new(
        count,
        false,
        Source::Terms(at, vec![term]),
        index,
    ))
}

fn of_circle(
    at: usize,
    attribute: &AttributeIndex,
    circle: &Circle,
    index: &Planning<'_>,
) -> Option<Access> {
    let order = attribute.order.as_ref()?;
    let Data::Points(points) = &attribute.data else {
        return None;
    };
    let mut cells: Vec<(u64, u64)> = boxes(circle).into_iter().flat_map(ranges).collect();
    if !index.spend(2 * cells.len()) {
        return None;
    }
    // Two rectangles may share a square.
    cells.sort_unstable();
    let mut ranks: Vec<Range<usize>> = Vec::new();
    for (low, high) in cells {
        let begin = order.rank(|row| points.cell(row) < low);
        let begin = ranks.last().map_or(begin, |last| begin.max(last.end));
        let end = order.rank(|row| points.cell(row) <= high);
        if begin < end {
            ranks.push(begin..end);
        }
    }
    let count = ranks.iter().map(Range::len).sum::<usize>() + points.others.len();
    Some(Access::new(count, false, Source::Ranks(at, ranks), index))
}

/// Returns the ranks of an attribute's order that a predicate allows, and whether the predicate excludes all rows
/// outside the order. `all` is the number of rows.
pub(super) fn walk_ranks(
    predicate: &Predicate,
    attribute: &AttributeIndex,
    all: usize,
) -> (Vec<Range<usize>>, bool) {
    let Some(order) = &attribute.order else {
        return (Vec::new(), false);
    };
    let is_code = matches!(
        attribute.data,
        Data::Numbers(_) | Data::Instants(_) | Data::Flags(_)
    );
    let has_all = order.len() == all;
    if !is_code {
        let all_ranks = 0..order.len();
        return (vec![all_ranks; usize::from(!order.is_empty())], has_all);
    }
    let domain = value_domain(predicate, &attribute.attribute);
    if domain.spans.len() > WALK_RANGES_MAX {
        let all_ranks = 0..order.len();
        return (vec![all_ranks], has_all || !domain.missing);
    }
    let ranks = domain.spans.iter().map(|span| attribute.ranks(order, span));
    let ranks = ranks.filter(|range| !range.is_empty()).collect();
    (ranks, has_all || !domain.missing)
}
