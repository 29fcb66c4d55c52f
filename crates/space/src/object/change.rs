//! Atomic changes of one object: all changes are applied, or none and an error is returned.
//!
//! These are the atomic operations and microtransactions of HyperDex. A target is a field of a hash, a path in the JSON
//! value of a field, or a path in a document.
//!
//! - Lists are JSON arrays, sets are arrays without equal elements, and maps are JSON objects. In a field of a hash,
//!   they are stored as text.
//! - An absent value counts as zero: 0, an empty text, `[]` or `{}`. Missing objects along a path are created. Only
//!   [`Change::Put`] creates an object that does not exist.
//! - If both operands are written as integers, the arithmetic is that of 64-bit integers: overflow is an error, and
//!   division rounds toward zero.
//! - Sums and differences of other numbers are exact decimals (see [`larder_types::decimal`]), and `MIN` and `MAX` keep
//!   the text of the operand. All other results are doubles, and a result that is not finite is an error.

use std::fmt;

use larder_types::decimal;
use serde_json::Value;

use super::document;
use super::{Document, Hash, Object, ObjectKind, Path};
use crate::base::number::Number;
use crate::error::{Refusal, printable};

#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// The field of a hash.
    pub field: Option<Vec<u8>>,
    /// The path in a document, or in the JSON value of the field. It consists of names and indexes only, and so selects
    /// at most one value.
    pub path: Option<Path>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Sets a value: the bytes of a field, or JSON otherwise.
    Put(Vec<u8>),
    Unset,
    /// Renames a field, or a member of a JSON object. Replaces an existing one with the new name.
    Rename(Vec<u8>),
    /// Applies an arithmetic operation with the operand, which is the text of a number.
    Number(Arithmetic, Vec<u8>),
    Append(Vec<u8>),
    Prepend(Vec<u8>),
    /// Removes this many bytes from the start, or all if there are fewer.
    TrimLeft(usize),
    TrimRight(usize),
    PushLeft(Value),
    PushRight(Value),
    SetAdd(Value),
    SetRemove(Value),
    SetIntersect(Vec<Value>),
    SetUnion(Vec<Value>),
    MapAdd(String, Value),
    MapRemove(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    Min,
    Max,
}

/// The reason why no change was applied.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ChangeError {
    /// The object does not exist.
    NotFound,
    /// The command expects a hash and the object is a document, or the other way round.
    WrongKind,
    /// The current value does not have the type that the operation needs.
    WrongType {
        target: String,
        expected: &'static str,
    },
    Overflow {
        target: String,
    },
    DivisionByZero {
        target: String,
    },
    /// The target's path selects nothing, or could select several values.
    BadTarget {
        target: String,
        why: &'static str,
    },
    /// The operand is not JSON, or not text.
    BadValue(Refusal),
    HashValueNotInteger,
    HashValueNotFloat,
    IncrementOverflow,
    IncrementNotFinite,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::NotFound => f.write_str("no such object: put it first"),
            ChangeError::WrongKind => {
                f.write_str("Operation against a key holding the wrong kind of value")
            }
            ChangeError::WrongType { target, expected } => {
                write!(f, "{target} is not {expected}: nothing was changed")
            }
            ChangeError::Overflow { target } => {
                write!(
                    f,
                    "{target} would overflow 64 bits, or be infinite: nothing was changed"
                )
            }
            ChangeError::DivisionByZero { target } => {
                write!(f, "{target} would be divided by zero: nothing was changed")
            }
            ChangeError::BadTarget { target, why } => {
                write!(f, "{target}: {why}; nothing was changed")
            }
            ChangeError::BadValue(refusal) => write!(f, "{refusal}"),
            ChangeError::HashValueNotInteger => f.write_str("hash value is not an integer"),
            ChangeError::HashValueNotFloat => f.write_str("hash value is not a float"),
            ChangeError::IncrementOverflow => f.write_str("increment or decrement would overflow"),
            ChangeError::IncrementNotFinite => {
                f.write_str("increment would produce NaN or Infinity")
            }
        }
    }
}

impl std::error::Error for ChangeError {}

type Result<T> = std::result::Result<T, ChangeError>;

/// Returns the object after all changes, applied in order. If there is no object, `kind` is the kind of the new one.
///
/// # Errors
/// A change cannot be applied. Then none is.
pub fn apply(
    object: Option<&Object>,
    kind: ObjectKind,
    changes: &[(Target, Change)],
) -> Result<Object> {
    let mut object = match object {
        Some(object) if object.kind() != kind => return Err(ChangeError::WrongKind),
        Some(object) => object.clone(),
        None if !changes
            .iter()
            .any(|(_, change)| matches!(change, Change::Put(_))) =>
        {
            return Err(ChangeError::NotFound);
        }
        None => match kind {
            ObjectKind::Hash => Object::Hash(Hash::default()),
            ObjectKind::Json => Object::Json(Document { root: Value::Null }),
        },
    };
    for (target, change) in changes {
        apply_one(&mut object, target, change)?;
    }
    Ok(object)
}

/// Applies one change. After an error, `object` may be partially changed; the caller works on a copy and discards it.
fn apply_one(object: &mut Object, target: &Target, change: &Change) -> Result<()> {
    let bad = |why| ChangeError::BadTarget {
        target: target.to_string(),
        why,
    };
    match (object, &target.field, &target.path) {
        (Object::Hash(hash), Some(field), None) => change_field(hash, field, target, change),
        (Object::Hash(hash), Some(field), Some(path)) => {
            let mut root = match hash.get(field) {
                None => Value::Object(serde_json::Map::new()),
                Some(text) => require_type(document::parse(text).ok(), target, "valid JSON")?,
            };
            change_path(&mut root, path, target, change)?;
            hash.set_value(field, document::print(&root));
            Ok(())
        }
        (Object::Json(document), None, Some(path)) => {
            change_path(&mut document.root, path, target, change)
        }
        (Object::Hash(_), None, _) => Err(bad("a change of a hash needs a field")),
        (Object::Json(_), _, _) => Err(bad("a change of a document needs a path")),
    }
}

fn require_type<T>(value: Option<T>, target: &Target, expected: &'static str) -> Result<T> {
    value.ok_or_else(|| ChangeError::WrongType {
        target: target.to_string(),
        expected,
    })
}

fn change_field(hash: &mut Hash, name: &[u8], target: &Target, change: &Change) -> Result<()> {
    let before = hash.get(name);
    let after = match change {
        Change::Put(value) => {
            hash.set(name, value.clone());
            return Ok(());
        }
        Change::Unset => {
            hash.remove(name);
            return Ok(());
        }
        Change::Rename(new) => {
            let mut field = require_type(hash.field(name).cloned(), target, "an existing field")?;
            hash.remove(name);
            hash.remove(new);
            field.name = new.clone();
            hash.fields.push(field);
            return Ok(());
        }
        Change::Number(operation, operand) => {
            let text = arithmetic(*operation, before.unwrap_or(b"0"), operand, target)?;
            text.into_bytes()
        }
        Change::Append(text) => [before.unwrap_or_default(), text].concat(),
        Change::Prepend(text) => [text, before.unwrap_or_default()].concat(),
        Change::TrimLeft(bytes) => {
            let before = before.unwrap_or_default();
            before[(*bytes).min(before.len())..].to_vec()
        }
        Change::TrimRight(bytes) => {
            let before = before.unwrap_or_default();
            before[..before.len().saturating_sub(*bytes)].to_vec()
        }
        change => {
            let mut value = match before {
                None => Value::Null,
                Some(text) => {
                    require_type(document::parse(text).ok(), target, "a list, set or map")?
                }
            };
            change_container(&mut value, target, change)?;
            document::check_depth(&value).map_err(ChangeError::BadValue)?;
            document::print(&value)
        }
    };
    hash.set_value(name, after);
    Ok(())
}

fn change_path(root: &mut Value, path: &Path, target: &Target, change: &Change) -> Result<()> {
    let bad = |why| ChangeError::BadTarget {
        target: target.to_string(),
        why,
    };
    if !path.is_single() {
        return Err(bad("it may select several values"));
    }
    match change {
        Change::Unset => {
            document::remove(root, path);
            return Ok(());
        }
        Change::Rename(new) => {
            let new = std::str::from_utf8(new).map_err(|_| bad("the new name is not UTF-8"))?;
            return document::rename(root, path, new)
                .ok_or_else(|| bad("there is no member of this name"));
        }
        _ => {}
    }
    let value = path.get_or_create(root).ok_or_else(|| {
        bad("it leads through a value that is not an object, or to an absent element")
    })?;
    match change {
        Change::Put(text) => *value = document::parse(text).map_err(ChangeError::BadValue)?,
        Change::Number(operation, operand) => {
            let before = match value {
                Value::Null => "0".to_string(),
                Value::Number(number) => number.to_string(),
                _ => return require_type(None, target, "a number"),
            };
            let after = arithmetic(*operation, before.as_bytes(), operand, target)?;
            *value = serde_json::from_str(&after).map_err(|_| ChangeError::Overflow {
                target: target.to_string(),
            })?;
        }
        Change::Append(_) | Change::Prepend(_) | Change::TrimLeft(_) | Change::TrimRight(_) => {
            let before = match value {
                Value::Null => "",
                Value::String(text) => text.as_str(),
                _ => return require_type(None, target, "a string"),
            };
            let bytes = match change {
                Change::Append(text) => [before.as_bytes(), text].concat(),
                Change::Prepend(text) => [text, before.as_bytes()].concat(),
                Change::TrimLeft(bytes) => before.as_bytes()[(*bytes).min(before.len())..].to_vec(),
                Change::TrimRight(bytes) => {
                    before.as_bytes()[..before.len().saturating_sub(*bytes)].to_vec()
                }
                _ => unreachable!("the others are matched above"),
            };
            let text = String::from_utf8(bytes).map_err(|_| bad("the text would not be UTF-8"))?;
            *value = Value::String(text);
        }
        change => change_container(value, target, change)?,
    }
    document::check_depth(root).map_err(ChangeError::BadValue)
}

fn change_container(value: &mut Value, target: &Target, change: &Change) -> Result<()> {
    let is_map = matches!(change, Change::MapAdd(..) | Change::MapRemove(_));
    if value.is_null() {
        *value = if is_map {
            Value::Object(serde_json::Map::new())
        } else {
            Value::Array(Vec::new())
        };
    }
    if is_map {
        let map = require_type(value.as_object_mut(), target, "a map")?;
        match change {
            Change::MapAdd(name, value) => drop(map.insert(name.clone(), value.clone())),
            Change::MapRemove(name) => drop(map.shift_remove(name)),
            _ => {}
        }
        return Ok(());
    }
    let list = require_type(value.as_array_mut(), target, "a list or set")?;
    let union = |list: &mut Vec<Value>, value: &Value| {
        if !list.contains(value) {
            list.push(value.clone());
        }
    };
    match change {
        Change::PushLeft(value) => list.insert(0, value.clone()),
        Change::PushRight(value) => list.push(value.clone()),
        Change::SetAdd(value) => union(list, value),
        Change::SetRemove(value) => list.retain(|element| element != value),
        Change::SetIntersect(values) => list.retain(|element| values.contains(element)),
        Change::SetUnion(values) => values.iter().for_each(|value| union(list, value)),
        _ => {}
    }
    Ok(())
}

/// Parses a number that is written as an integer.
fn int(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn arithmetic(
    operation: Arithmetic,
    before: &[u8],
    operand: &[u8],
    target: &Target,
) -> Result<String> {
    let name = || target.to_string();
    let overflow = || ChangeError::Overflow { target: name() };
    let number = |text: &[u8]| require_type(Number::parse(text), target, "a number");
    if let (Some(a), Some(b)) = (int(before), int(operand)) {
        if b == 0 && matches!(operation, Arithmetic::Divide | Arithmetic::Remainder) {
            return Err(ChangeError::DivisionByZero { target: name() });
        }
        let result = match operation {
            Arithmetic::Add => a.checked_add(b),
            Arithmetic::Subtract => a.checked_sub(b),
            Arithmetic::Multiply => a.checked_mul(b),
            Arithmetic::Divide => a.checked_div(b),
            Arithmetic::Remainder => a.checked_rem(b),
            Arithmetic::And => Some(a & b),
            Arithmetic::Or => Some(a | b),
            Arithmetic::Xor => Some(a ^ b),
            Arithmetic::Min => Some(a.min(b)),
            Arithmetic::Max => Some(a.max(b)),
        };
        return result.map(|result| result.to_string()).ok_or_else(overflow);
    }
    let (a, b) = (number(before)?, number(operand)?);
    let own = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
    match operation {
        // MIN and MAX return the text of the operand, however many digits it has.
        Arithmetic::Min => return Ok(own(if b < a { operand } else { before })),
        Arithmetic::Max => return Ok(own(if b > a { operand } else { before })),
        Arithmetic::Add | Arithmetic::Subtract => {
            let subtract = operation == Arithmetic::Subtract;
            if let Some(sum) = decimal::add_exact(before, operand, subtract) {
                return Ok(with_point(sum));
            }
        }
        _ => {}
    }
    let (a, b) = (a.as_f64(), b.as_f64());
    let result = match operation {
        Arithmetic::Add => a + b,
        Arithmetic::Subtract => a - b,
        Arithmetic::Multiply => a * b,
        Arithmetic::Divide | Arithmetic::Remainder if b == 0.0 => {
            return Err(ChangeError::DivisionByZero { target: name() });
        }
        Arithmetic::Divide => a / b,
        Arithmetic::Remainder => a % b,
        _ => return require_type(None, target, "an integer"),
    };
    let result = Number::from_f64(result).filter(|result| result.as_f64().is_finite());
    result
        .map(|result| match result {
            Number::Int(value) => with_point(value.to_string()),
            result => result.print_exact(),
        })
        .ok_or_else(overflow)
}

/// Appends `.0` to a non-integer result without a point. Otherwise later operations would treat it as an integer.
fn with_point(mut text: String) -> String {
    if !text.contains('.') {
        text.push_str(".0");
    }
    text
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.field, &self.path) {
            (Some(field), None) => write!(f, "field {:?}", printable(field)),
            (Some(field), Some(path)) => {
                write!(f, "field {:?} at {}", printable(field), path.text())
            }
            (None, Some(path)) => write!(f, "path {}", path.text()),
            (None, None) => f.write_str("the whole object"),
        }
    }
}
