//! Converts fields and JSON values to columns.
//!
//! The field of a hash is parsed by the attribute's type. In JSON:
//!
//! - Strings are tags, texts, points and instants.
//! - Numbers are numbers and instants.
//! - `true` and `false` are booleans and tags.
//! - An array stands for all its elements.
//! - Null, also in an array, is ignored.
//!
//! Any other combination is a fault.

use serde_json::Value;

use super::column::Column;
use super::row::Row;
use crate::base::instant;
use crate::base::number::Number;
use crate::base::point::Point;
use crate::base::words::tags_into;
use crate::error::printable;
use crate::object::Object;
use crate::object::document;
use crate::schema::{Attribute, AttributeId, AttributeKind, Definition};

/// A field that does not match the type of its attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub attribute: AttributeId,
    pub message: String,
}

impl Row {
    /// Returns the columns of an object that the space covers, and its faults.
    pub fn of(definition: &Definition, object: &Object) -> (Row, Vec<Fault>) {
        let mut row = Row {
            columns: vec![Column::Missing; definition.columns()],
        };
        let mut faults = Vec::new();
        for attribute in &definition.attributes {
            match column(attribute, object) {
                Ok(column) => row.columns[attribute.id.index()] = column,
                Err(message) => faults.push(Fault {
                    attribute: attribute.id,
                    message,
                }),
            }
        }
        (row, faults)
    }
}

/// Returns the column of one attribute.
///
/// # Errors
/// The field does not match the attribute's type.
pub fn column(attribute: &Attribute, object: &Object) -> Result<Column, String> {
    match (object, &attribute.path) {
        (Object::Hash(hash), None) => match hash.get(attribute.identifier.as_bytes()) {
            None => Ok(Column::Missing),
            Some(value) => of_bytes(attribute, value),
        },
        (Object::Json(document), Some(path)) => of_json(attribute, &path.select(&document.root)),
        // The space does not cover objects of the other kind.
        _ => Ok(Column::Missing),
    }
}

/// Converts the field of a hash.
///
/// # Errors
/// The field does not match the attribute's type.
pub fn of_bytes(attribute: &Attribute, value: &[u8]) -> Result<Column, String> {
    Ok(match attribute.kind {
        AttributeKind::Tag { .. } => {
            let mut tags = Vec::new();
            tags_into(value, attribute.tag_rule(), &mut tags);
            Column::Tags(tags)
        }
        AttributeKind::Text { .. } if value.is_empty() && !attribute.options.index_empty => {
            Column::Texts(Vec::new())
        }
        AttributeKind::Text { .. } => Column::Texts(vec![value.to_vec()]),
        AttributeKind::Numeric => Column::Numbers(vec![number(value)?]),
        AttributeKind::Geo => Column::Points(vec![point(value)?]),
        AttributeKind::Timestamp => Column::Instants(vec![instant_micros(value)?]),
        AttributeKind::Boolean => Column::Flags(vec![flag(value)?]),
    })
}

fn number(value: &[u8]) -> Result<Number, String> {
    Number::parse(value).ok_or_else(|| format!("Invalid numeric value: '{}'", printable(value)))
}

fn point(value: &[u8]) -> Result<Point, String> {
    let bad = || {
        format!(
            "Invalid geo coordinates: '{}' is not lon,lat with a latitude within 85.05",
            printable(value)
        )
    };
    Point::parse(value).ok_or_else(bad)
}

fn instant_micros(value: &[u8]) -> Result<i64, String> {
    let bad = || {
        format!(
            "Invalid timestamp: '{}' is neither seconds since 1970 nor a date such as 2024-02-29T12:30Z",
            printable(value)
        )
    };
    instant::parse(value).ok_or_else(bad)
}

/// Parses a boolean: true, false, 1 or 0, in any case.
///
/// # Errors
/// The text is none of these.
pub fn flag(value: &[u8]) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_slice() {
        b"true" | b"1" => Ok(true),
        b"false" | b"0" => Ok(false),
        _ => Err(format!(
            "Invalid boolean value: '{}' is none of true, false, 1 and 0",
            printable(value)
        )),
    }
}

fn of_json(attribute: &Attribute, found: &[&Value]) -> Result<Column, String> {
    let mut values: Vec<&Value> = Vec::new();
    for value in found {
        match value {
            Value::Array(elements) => values.extend(elements.iter().filter(|it| !it.is_null())),
            Value::Null => {}
            value => values.push(value),
        }
    }
    // An empty array is present. Null, and an empty selection, are missing.
    if found.iter().all(|value| value.is_null()) {
        return Ok(Column::Missing);
    }
    let bad = |value: &Value| {
        format!(
            "Invalid JSON type: {} is not {}",
            printable(&document::print(value)),
            attribute.kind.name()
        )
    };
    fn collect<T>(
        values: &[&Value],
        one: impl Fn(&Value) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        values.iter().map(|value| one(value)).collect()
    }
    Ok(match attribute.kind {
        AttributeKind::Tag { .. } => {
            let mut tags = Vec::new();
            for value in &values {
                match value {
                    Value::String(text) => {
                        tags_into(text.as_bytes(), attribute.tag_rule(), &mut tags)
                    }
                    Value::Bool(flag) => tags.push(flag.to_string().into_bytes()),
                    value => return Err(bad(value)),
                }
            }
            Column::Tags(tags)
        }
        AttributeKind::Text { .. } => {
            let texts = collect(&values, |value| {
                Ok(value
                    .as_str()
                    .ok_or_else(|| bad(value))?
                    .as_bytes()
                    .to_vec())
            })?;
            let keeps = |text: &Vec<u8>| !text.is_empty() || attribute.options.index_empty;
            Column::Texts(texts.into_iter().filter(keeps).collect())
        }
        AttributeKind::Numeric => Column::Numbers(collect(&values, |value| match value {
            Value::Number(number) => Ok(document::number(number)),
            value => Err(bad(value)),
        })?),
        AttributeKind::Geo => Column::Points(collect(&values, |value| match value {
            Value::String(text) => point(text.as_bytes()),
            value => Err(bad(value)),
        })?),
        AttributeKind::Timestamp => Column::Instants(collect(&values, |value| match value {
            Value::String(text) => instant_micros(text.as_bytes()),
            Value::Number(number) => {
                instant::from_seconds(document::number(number)).ok_or_else(|| bad(value))
            }
            value => Err(bad(value)),
        })?),
        AttributeKind::Boolean => Column::Flags(collect(&values, |value| match value {
            Value::Bool(flag) => Ok(*flag),
            Value::String(text) => flag(text.as_bytes()),
            Value::Number(number) => flag(number.to_string().as_bytes()),
            value => Err(bad(value)),
        })?),
    })
}
