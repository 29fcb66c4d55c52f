//! The column of one attribute: its value in each row.
//!
//! - `codes`: numbers, instants and booleans, as integers that sort like them.
//! - `points`: points on the earth.
//! - `values`: tags and texts, each distinct one stored once.
//! - `sketch`: one byte per row, for numbers and for attributes with few distinct tags or texts. It decides most tests
//!   of searches.
//!
//! Values that do not fit the representation, such as several numbers or a number that is not a double, are in a
//! separate list of *others*.

pub(super) mod codes;
mod ids;
pub(super) mod points;
pub(super) mod sketch;
pub(super) mod values;

use std::borrow::Cow;
use std::cmp::Ordering;

use codes::Codes;
use points::Points;
use values::Values;

use crate::base::number::Number;
use crate::base::ordered::Scalar;
use crate::base::point::Point;
use crate::object::{Object, ObjectKind};
use crate::schema::{Attribute, AttributeKind};
use crate::value::{Column, read_column};

#[derive(Debug)]
pub(super) enum Data {
    Numbers(Codes<u64>),
    Instants(Codes<u64>),
    Flags(Codes<u8>),
    Points(Points),
    Values(Box<Values>),
}

/// The stored value of one object.
#[derive(Debug)]
pub(super) enum Entry<'a> {
    Missing,
    Code(u64),
    Point(Point),
    /// The field of a hash, or an encoded column.
    Raw(Cow<'a, [u8]>),
    Other(Column),
}

impl<'a> Entry<'a> {
    /// Reads the value of an attribute.
    ///
    /// # Errors
    /// The field does not match the attribute's type.
    pub fn read(attribute: &Attribute, object: &'a Object) -> Result<Entry<'a>, String> {
        let has_bytes = matches!(
            attribute.kind,
            AttributeKind::Tag { .. } | AttributeKind::Text { .. }
        );
        if let (Object::Hash(hash), true) = (object, has_bytes) {
            let field = hash.get(attribute.identifier.as_bytes());
            return Ok(field.map_or(Entry::Missing, |value| Entry::Raw(value.into())));
        }
        let column = read_column(attribute, object)?;
        Ok(match &column {
            Column::Missing => Entry::Missing,
            Column::Numbers(list) => match list[..] {
                [number] => match number.ordered_code() {
                    (code, 0) => Entry::Code(code),
                    _ => Entry::Other(column),
                },
                _ => Entry::Other(column),
            },
            Column::Instants(list) => match list[..] {
                [micros] if codes::of_instant(micros) < codes::OTHER => {
                    Entry::Code(codes::of_instant(micros))
                }
                _ => Entry::Other(column),
            },
            Column::Flags(list) => match list[..] {
                [flag] => Entry::Code(u64::from(flag)),
                _ => Entry::Other(column),
            },
            Column::Points(list) => match list[..] {
                [point] => Entry::Point(point),
                _ => Entry::Other(column),
            },
            Column::Tags(_) | Column::Texts(_) => {
                let mut bytes = Vec::new();
                column.encode(&mut bytes);
                Entry::Raw(bytes.into())
            }
        })
    }
}

impl Data {
    /// Creates the column of an attribute that no object has. With `has_terms`, rows are found by tags and words.
    pub fn new(attribute: &Attribute, on: ObjectKind, has_terms: bool) -> Data {
        match attribute.kind {
            AttributeKind::Numeric => Data::Numbers(Codes::default()),
            AttributeKind::Timestamp => Data::Instants(Codes::default()),
            AttributeKind::Boolean => Data::Flags(Codes::default()),
            AttributeKind::Geo => Data::Points(Points::default()),
            AttributeKind::Tag { .. } | AttributeKind::Text { .. } => {
                Data::Values(Box::new(Values::new(attribute.clone(), on, has_terms)))
            }
        }
    }

    /// Returns the value of a row in the form that [`Data::set`] takes.
    pub fn entry(&self, row: u32) -> Entry<'_> {
        let entry = match self {
            Data::Numbers(codes) | Data::Instants(codes) if codes.get(row) < codes::OTHER => {
                Some(Entry::Code(codes.get(row)))
            }
            Data::Flags(flags) if flags.get(row) < 2 => Some(Entry::Code(flags.get(row).into())),
            Data::Points(points) => points.get(row).map(Entry::Point),
            Data::Values(values) => values.raw(row).map(|raw| Entry::Raw(raw.into())),
            _ => None,
        };
        let other = || self.others().get(&row).cloned();
        let entry = entry.or_else(|| other().map(Entry::Other));
        entry.unwrap_or(Entry::Missing)
    }

    /// Makes room for rows, whose values are missing.
    pub fn grow(&mut self, rows: usize) {
        match self {
            Data::Numbers(codes) | Data::Instants(codes) => codes.grow(rows),
            Data::Flags(flags) => flags.grow(rows),
            Data::Points(points) => points.grow(rows),
            Data::Values(values) => values.grow(rows),
        }
    }

    /// Returns whether this is the value of the row.
    pub fn has_value(&self, row: u32, entry: &Entry<'_>) -> bool {
        match (self, entry) {
            (data, Entry::Missing) => data.is_missing(row),
            (Data::Numbers(codes) | Data::Instants(codes), Entry::Code(code)) => {
                codes.get(row) == *code
            }
            (Data::Flags(flags), Entry::Code(code)) => u64::from(flags.get(row)) == *code,
            (Data::Points(points), Entry::Point(point)) => points.get(row) == Some(*point),
            (Data::Values(values), Entry::Raw(raw)) => values.raw(row) == Some(raw),
            (data, Entry::Other(column)) => data.others().get(&row) == Some(column),
            _ => false,
        }
    }

    pub fn set(&mut self, row: u32, entry: Entry<'_>) {
        match self {
            Data::Numbers(codes) | Data::Instants(codes) => codes.set(row, entry),
            Data::Flags(flags) => flags.set(row, entry),
            Data::Points(points) => points.set(row, entry),
            Data::Values(values) => values.set(row, entry),
        }
    }

    pub fn is_missing(&self, row: u32) -> bool {
        match self {
            Data::Numbers(codes) | Data::Instants(codes) => codes.is_missing(row),
            Data::Flags(flags) => flags.is_missing(row),
            Data::Points(points) => points.is_missing(row),
            Data::Values(values) => values.raw(row).is_none(),
        }
    }

    /// Returns the value of a row as a column.
    pub fn column(&self, row: u32) -> Cow<'_, Column> {
        let column = match self {
            _ if self.is_missing(row) => Some(Column::Missing),
            Data::Numbers(codes) if codes.get(row) < codes::OTHER => {
                Number::from_ordered_code(codes.get(row)).map(|it| Column::Numbers(vec![it]))
            }
            Data::Instants(codes) if codes.get(row) < codes::OTHER => {
                Some(Column::Instants(vec![codes::instant(codes.get(row))]))
            }
            Data::Flags(flags) if flags.get(row) < 2 => {
                Some(Column::Flags(vec![flags.get(row) == 1]))
            }
            Data::Points(points) => points.get(row).map(|it| Column::Points(vec![it])),
            Data::Values(values) => Some(values.column(values.id(row))),
            _ => None,
        };
        match column {
            Some(column) => Cow::Owned(column),
            None => match self.others().get(&row) {
                Some(column) => Cow::Borrowed(column),
                None => Cow::Owned(Column::Missing),
            },
        }
    }

    /// Returns the rows whose values do not fit the representation.
    pub fn others(&self) -> &codes::Others {
        const NONE: &codes::Others = &codes::Others::new();
        match self {
            Data::Numbers(codes) | Data::Instants(codes) => &codes.others,
            Data::Flags(flags) => &flags.others,
            Data::Points(points) => &points.others,
            Data::Values(_) => NONE,
        }
    }

    /// Returns whether the row has a position in the order of the attribute's values. Points are ordered by cell.
    #[inline]
    pub fn has_order(&self, row: u32) -> bool {
        match self {
            Data::Numbers(codes) | Data::Instants(codes) => codes.get(row) < codes::OTHER,
            Data::Flags(flags) => flags.get(row) < <u8 as codes::Code>::OTHER,
            Data::Points(points) => points.get(row).is_some(),
            Data::Values(values) => values.sort_bytes(row).is_some(),
        }
    }

    /// Compares two rows that have a position in the order.
    #[inline]
    pub fn compare(&self, a: u32, b: u32) -> Ordering {
        match self {
            Data::Numbers(codes) | Data::Instants(codes) => codes.get(a).cmp(&codes.get(b)),
            Data::Flags(flags) => flags.get(a).cmp(&flags.get(b)),
            Data::Points(points) => points.cell(a).cmp(&points.cell(b)),
            Data::Values(values) => {
                if values.id(a) == values.id(b) {
                    Ordering::Equal
                } else {
                    values.sort_bytes(a).cmp(&values.sort_bytes(b))
                }
            }
        }
    }

    /// Returns whether the attribute's order is the sort order of results.
    pub fn sorts(&self) -> bool {
        !matches!(self, Data::Points(_))
    }

    /// Returns the sort value of a row. `None` sorts last.
    pub fn sort_value(&self, row: u32, attribute: &Attribute) -> Option<Scalar> {
        match self {
            Data::Numbers(codes) if codes.get(row) < codes::OTHER => {
                Some(Scalar::Number(Number::from_ordered_code(codes.get(row))?))
            }
            Data::Instants(codes) if codes.get(row) < codes::OTHER => {
                Some(Scalar::Instant(codes::instant(codes.get(row))))
            }
            Data::Flags(flags) if flags.get(row) < 2 => Some(Scalar::Boolean(flags.get(row) == 1)),
            Data::Values(values) => values.sort_bytes(row).map(|it| Scalar::Bytes(it.to_vec())),
            Data::Points(points) if points.get(row).is_some() => {
                Column::Points(points.get(row).into_iter().collect()).sort_value(attribute)
            }
            data => data.others().get(&row)?.sort_value(attribute),
        }
    }

    /// Compares the sort values of two rows. A missing one is last in both directions.
    pub fn compare_sort(
        &self,
        a: u32,
        b: u32,
        is_descending: bool,
        attribute: &Attribute,
    ) -> Ordering {
        if self.sorts() && self.has_order(a) && self.has_order(b) {
            let order = self.compare(a, b);
            return if is_descending {
                order.reverse()
            } else {
                order
            };
        }
        match (self.sort_value(a, attribute), self.sort_value(b, attribute)) {
            (Some(a), Some(b)) if is_descending => b.cmp(&a),
            (Some(a), Some(b)) => a.cmp(&b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Data::Numbers(codes) | Data::Instants(codes) => codes.heap_bytes(),
            Data::Flags(flags) => flags.heap_bytes(),
            Data::Points(points) => points.heap_bytes(),
            Data::Values(values) => values.heap_bytes(),
        }
    }
}
