//! A composite index: rows ordered by the values of several attributes, then by key.
//!
//! 1. A row with at most one value of each attribute is in `order`. A missing value sorts after all values.
//! 2. Other rows, such as one with two tags, are in `others`.

use std::cmp::Ordering;
use std::ops::Range;

use super::attribute::{AttributeIndex, byte_bounds};
use super::column::{Data, codes, values};
use super::postings::Postings;
use super::rows::Rows;
use super::sorted::Sorted;
use crate::query::Span;

#[derive(Debug)]
pub(super) struct Composite {
    /// The positions of the attributes in the index; at least two.
    pub attributes: Vec<usize>,
    pub order: Sorted,
    pub others: Postings,
}

impl Composite {
    pub fn new(attributes: Vec<usize>) -> Composite {
        Composite {
            attributes,
            order: Sorted::default(),
            others: Postings::default(),
        }
    }

    fn is_regular(&self, row: u32, all: &[AttributeIndex]) -> bool {
        self.attributes.iter().all(|at| match &all[*at].data {
            Data::Values(values) => match values.id(row) {
                values::MISSING => true,
                id => !values.is_multi_valued(id),
            },
            data => data.has_order(row) || data.is_missing(row),
        })
    }

    fn compare(&self, a: u32, b: u32, all: &[AttributeIndex]) -> Ordering {
        let by_value = |at: &usize| {
            let data = &all[*at].data;
            match (data.has_order(a), data.has_order(b)) {
                (true, true) => data.compare(a, b),
                (true, false) => Ordering::Less,
                (false, true) => Ordering::Greater,
                (false, false) => Ordering::Equal,
            }
        };
        let orders = self.attributes.iter().map(by_value);
        orders.fold(Ordering::Equal, Ordering::then)
    }

    pub fn insert(&mut self, row: u32, all: &[AttributeIndex], rows: &Rows) {
        if !self.is_regular(row, all) {
            return self.others.insert(row);
        }
        let mut order = std::mem::take(&mut self.order);
        order.insert(row, |other| self.is_before(other, row, all, rows));
        self.order = order;
    }

    /// Removes a row, whose values must be the same as when it was inserted.
    pub fn remove(&mut self, row: u32, all: &[AttributeIndex], rows: &Rows) {
        if !self.is_regular(row, all) {
            return self.others.remove(row);
        }
        let mut order = std::mem::take(&mut self.order);
        order.remove(row, |other| self.is_before(other, row, all, rows));
        self.order = order;
    }

    fn is_before(&self, other: u32, row: u32, all: &[AttributeIndex], rows: &Rows) -> bool {
        let order = self.compare(other, row, all);
        order
            .then_with(|| rows.key(other).cmp(rows.key(row)))
            .is_lt()
    }

    /// Returns the ranks of the rows with a value in each span, where the spans belong to the first attributes in
    /// order. All spans but the last must be single values.
    pub fn ranks(&self, spans: &[&Span], all: &[AttributeIndex]) -> Range<usize> {
        let side = |row: u32, is_end: bool| {
            for (at, span) in self.attributes.iter().zip(spans) {
                match place(&all[*at].data, row, span) {
                    Ordering::Less => return true,
                    Ordering::Greater => return false,
                    Ordering::Equal => {}
                }
            }
            is_end
        };
        let begin = self.order.rank(|row| side(row, false));
        begin..self.order.rank_from(begin, |row| side(row, true))
    }

    pub fn heap_bytes(&self) -> usize {
        self.order.heap_bytes() + self.others.heap_bytes()
    }
}

/// Compares the row's value with the span. A missing value is above it.
fn place(data: &Data, row: u32, span: &Span) -> Ordering {
    if !data.has_order(row) {
        return Ordering::Greater;
    }
    let of_code = |code: u64| match codes::range(span) {
        None => Ordering::Greater,
        Some((low, _)) if code < low => Ordering::Less,
        Some((_, high)) if code > high => Ordering::Greater,
        Some(_) => Ordering::Equal,
    };
    match data {
        Data::Numbers(codes) | Data::Instants(codes) => of_code(codes.get(row)),
        Data::Flags(flags) => of_code(u64::from(flags.get(row))),
        Data::Values(values) => {
            let bytes = values.sort_bytes(row).unwrap_or_default();
            let (low, high) = byte_bounds(span);
            match (low.is_below(bytes), high.is_below(bytes)) {
                (true, _) => Ordering::Less,
                (false, true) => Ordering::Equal,
                (false, false) => Ordering::Greater,
            }
        }
        Data::Points(_) => Ordering::Equal,
    }
}
