//! The index of one attribute: its column, and the structures that find rows by value.
//!
//! 1. `order` contains the rows with an ordered value, by value and then by key.
//! 2. `missing` contains the rows without a value, if the space is declared with searches for them.

use std::ops::Range;

use super::column::sketch::{Blocks, Numbers};
use super::column::{Data, Entry, codes, values};
use super::postings::Postings;
use super::rows::Rows;
use super::sorted::Sorted;
use crate::base::ordered::Scalar;
use crate::query::Span;
use crate::schema::{Attribute, AttributeKind, Definition};

#[derive(Debug)]
pub(super) struct AttributeIndex {
    pub attribute: Attribute,
    pub structures: IndexStructures,
    pub data: Data,
    pub order: Option<Sorted>,
    pub missing: Option<Postings>,
    pub sketch: Sketch,
}

/// The structures that an attribute needs by the definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexStructures {
    /// Postings of tags or words.
    terms: bool,
    order: bool,
    missing: bool,
}

impl IndexStructures {
    pub fn of(definition: &Definition, attribute: &Attribute) -> IndexStructures {
        let is_listed = match &definition.layout.indexes {
            None => true,
            // INDEX cannot name a GEO attribute.
            Some(_) if attribute.kind == AttributeKind::Geo => true,
            Some(lists) => lists.iter().any(|list| list[..] == [attribute.id]),
        };
        let is_indexed = is_listed && !attribute.options.no_index;
        let is_text = matches!(
            attribute.kind,
            AttributeKind::Tag { .. } | AttributeKind::Text { .. }
        );
        IndexStructures {
            terms: is_indexed && is_text,
            order: match attribute.kind {
                AttributeKind::Geo => is_indexed,
                _ => attribute.options.sortable || (is_indexed && !is_text),
            },
            missing: is_listed && attribute.options.index_missing,
        }
    }
}

/// One byte per row that approximates its value.
#[derive(Debug)]
pub(super) enum Sketch {
    /// The data is itself one byte per row, or there are too many values, or the values are points.
    None,
    Numbers(Blocks),
    Values(Numbers),
}

impl Sketch {
    fn of(data: &Data, rows: usize) -> Sketch {
        let mut sketch = match data {
            Data::Numbers(_) | Data::Instants(_) => Sketch::Numbers(Blocks::default()),
            Data::Values(_) => Sketch::Values(Numbers::new(rows)),
            Data::Flags(_) | Data::Points(_) => Sketch::None,
        };
        sketch.grow(rows);
        sketch
    }

    fn grow(&mut self, rows: usize) {
        match self {
            Sketch::None => {}
            Sketch::Numbers(blocks) => blocks.grow(rows),
            Sketch::Values(numbers) => numbers.grow(rows),
        }
    }

    /// Updates the byte of a row.
    fn set(&mut self, row: u32, data: &Data) {
        match (&mut *self, data) {
            (Sketch::Numbers(blocks), Data::Numbers(codes) | Data::Instants(codes)) => {
                blocks.set(row, &codes.codes);
            }
            (Sketch::Values(numbers), Data::Values(values)) => {
                let value = Some(values.id(row)).filter(|id| *id != values::MISSING);
                if !numbers.set(row, value) {
                    *self = Sketch::None;
                }
            }
            _ => {}
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Sketch::None => 0,
            Sketch::Numbers(blocks) => blocks.heap_bytes(),
            Sketch::Values(numbers) => numbers.heap_bytes(),
        }
    }
}

impl AttributeIndex {
    /// Creates the index of an attribute that none of these rows has.
    pub fn new(definition: &Definition, attribute: &Attribute, rows: &Rows) -> AttributeIndex {
        let leads = IndexStructures::of(definition, attribute);
        let mut data = Data::new(attribute, definition.on, leads.terms);
        data.grow(rows.end());
        AttributeIndex {
            attribute: attribute.clone(),
            structures: leads,
            sketch: Sketch::of(&data, rows.end()),
            data,
            order: leads.order.then(Sorted::default),
            missing: leads.missing.then(|| Postings::of(rows.iter().collect())),
        }
    }

    /// Adds a row without a value.
    pub fn add(&mut self, row: u32, rows: &Rows) {
        self.data.grow(rows.end());
        self.sketch.grow(rows.end());
        if let Some(missing) = &mut self.missing {
            missing.insert(row);
        }
    }

    /// Removes a row without a value.
    pub fn remove(&mut self, row: u32) {
        if let Some(missing) = &mut self.missing {
            missing.remove(row);
        }
    }

    pub fn set(&mut self, row: u32, entry: Entry<'_>, rows: &Rows) {
        let AttributeIndex {
            data,
            order,
            missing,
            sketch,
            ..
        } = self;
        if let Some(order) = order
            && data.has_order(row)
        {
            move_row(order, data, row, rows, false);
        }
        let was_missing = data.is_missing(row);
        data.set(row, entry);
        sketch.set(row, data);
        if let Some(order) = order
            && data.has_order(row)
        {
            move_row(order, data, row, rows, true);
        }
        if let Some(missing) = missing {
            match (was_missing, data.is_missing(row)) {
                (true, false) => missing.remove(row),
                (false, true) => missing.insert(row),
                _ => {}
            }
        }
    }

    /// Returns whether `order` is the order of results sorted by this attribute, except for rows without a value.
    pub fn can_walk(&self) -> bool {
        self.order.is_some() && self.data.sorts() && self.data.others().is_empty()
    }

    /// Returns the ranks of the rows whose sort value is in the span.
    pub fn ranks(&self, order: &Sorted, span: &Span) -> Range<usize> {
        let of_codes = |rank: &dyn Fn(u64) -> usize| match codes::range(span) {
            None => 0..0,
            Some((low, high)) => {
                let begin = rank(low);
                begin..rank(high + 1).max(begin)
            }
        };
        match &self.data {
            // Each comparison is a cache miss, because the codes are scattered over the column. The sketch narrows the
            // binary search.
            Data::Numbers(codes) | Data::Instants(codes) => of_codes(&|code| match &self.sketch {
                Sketch::Numbers(blocks) => {
                    order.rank_within(blocks.around(code), |row| codes.get(row) < code)
                }
                _ => order.rank(|row| codes.get(row) < code),
            }),
            Data::Flags(flags) => {
                of_codes(&|code| order.rank(|row| u64::from(flags.get(row)) < code))
            }
            Data::Values(values) => {
                let bytes = |row| values.sort_bytes(row).unwrap_or_default();
                let (low, high) = byte_bounds(span);
                let begin = order.rank(|row| low.is_below(bytes(row)));
                begin..order.rank_from(begin, |row| high.is_below(bytes(row)))
            }
            Data::Points(_) => 0..order.len(),
        }
    }

    /// See [`super::SpaceIndex::free_some`].
    pub fn free_some(&mut self, pieces: &mut usize) {
        if let Data::Values(values) = &mut self.data {
            values.free_some(pieces);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.data.heap_bytes()
            + self.order.as_ref().map_or(0, Sorted::heap_bytes)
            + self.missing.as_ref().map_or(0, Postings::heap_bytes)
            + self.sketch.heap_bytes()
    }
}

/// Inserts a row into the order of its value, or removes it.
fn move_row(order: &mut Sorted, data: &Data, row: u32, rows: &Rows, enters: bool) {
    fn go(order: &mut Sorted, row: u32, enters: bool, is_before: impl FnMut(u32) -> bool) {
        if enters {
            order.insert(row, is_before)
        } else {
            order.remove(row, is_before)
        }
    }
    let key = rows.key(row);
    match data {
        Data::Numbers(codes) | Data::Instants(codes) => {
            let code = codes.get(row);
            go(order, row, enters, |other| {
                let it = codes.get(other);
                it < code || (it == code && rows.key(other) < key)
            });
        }
        data => go(order, row, enters, |other| {
            let by_value = data.compare(other, row);
            by_value.then_with(|| rows.key(other).cmp(key)).is_lt()
        }),
    }
}

/// A boundary: the start or the end of all byte strings, or the position directly before or after one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Edge<'a> {
    Begin,
    Before(&'a [u8]),
    After(&'a [u8]),
    End,
}

impl Edge<'_> {
    #[inline]
    pub fn is_below(self, bytes: &[u8]) -> bool {
        match self {
            Edge::Begin => false,
            Edge::Before(edge) => bytes < edge,
            Edge::After(edge) => bytes <= edge,
            Edge::End => true,
        }
    }
}

/// Returns the boundaries of a span of bytes. For a span of other values, nothing is between them.
pub(super) fn byte_bounds(span: &Span) -> (Edge<'_>, Edge<'_>) {
    use std::ops::Bound;
    let low = match &span.low {
        Bound::Unbounded => Edge::Begin,
        Bound::Included(Scalar::Bytes(low)) => Edge::Before(low),
        Bound::Excluded(Scalar::Bytes(low)) => Edge::After(low),
        _ => Edge::End,
    };
    let high = match &span.high {
        Bound::Unbounded => Edge::End,
        Bound::Included(Scalar::Bytes(high)) => Edge::After(high),
        Bound::Excluded(Scalar::Bytes(high)) => Edge::Before(high),
        _ => Edge::Begin,
    };
    (low, high)
}
