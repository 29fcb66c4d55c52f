//! One value of an Arrow array: what it is, as plain text, and as a nested value.
//!
//! Every type goes through [`value_of`], which knows it by name; [`write_text`] and [`emit_cell`] are its two
//! spellings. What a user is told about them is the table in `larder_protocol::columns`, and a test holds the two together.
//!
//! Invariants:
//! 1. No type passes through another library's idea of showing it: what has no faithful text is refused, by [`Shape::of`]
//!    before the first row where the type alone says so, else with the row.
//! 2. Two values of one column that differ have different texts, and one value has one text, whatever the
//!    encoding (dictionary, run-end, view) and the unit.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::i256;
use arrow_schema::{DataType, Field, IntervalUnit, TimeUnit};

use crate::emit::{Emit, Json, base64};
use crate::time::{
    Interval, Ticks, write_date, write_duration, write_instant, write_interval, write_time_of_day,
};

/// What a column's fields say beyond their Arrow types, level by level.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shape {
    meaning: Meaning,
    /// Of a list its items, of a struct and a union their fields, of a map its keys and its values.
    children: Vec<Shape>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Meaning {
    #[default]
    Plain,
    /// 16 bytes that are a UUID.
    Uuid,
    /// An 8-bit integer that is a boolean.
    Bool,
}

static PLAIN: Shape = Shape {
    meaning: Meaning::Plain,
    children: Vec::new(),
};

/// What a decoder notes on a field of 16 bytes that hold a UUID.
pub(crate) const UUID_NOTE: (&str, &str) = (EXTENSION, "arrow.uuid");
const EXTENSION: &str = "ARROW:extension:name";
/// What a decoder notes on a field that it cannot read faithfully: why, and what to do.
pub(crate) const REFUSED_NOTE: &str = "larder:refused";

/// The field with something noted on it.
pub(crate) fn with_note(field: &Field, (key, value): (&str, &str)) -> Field {
    let mut notes = field.metadata().clone();
    notes.insert(key, value);
    field.clone().with_metadata(notes)
}

impl Shape {
    /// Of a column's field.
    ///
    /// # Errors
    /// For a type that has no faithful form, with what to do instead.
    pub fn of(field: &Field) -> Result<Shape, String> {
        let note = |key: &str| field.metadata().get(key).map(String::as_str);
        if let Some(reason) = note(REFUSED_NOTE) {
            return Err(reason.to_owned());
        }
        let extension = note(EXTENSION);
        if extension == Some("arrow.parquet.variant") {
            return Err(
                "it is of the type Variant, which cannot be read; cast it to text or JSON where it is written".into(),
            );
        }
        let is_uuid = extension == Some(UUID_NOTE.1) || note("logicalType") == Some("uuid");
        let mut shape = Shape::of_type(field.data_type())?;
        match encoded_type(field.data_type()) {
            DataType::FixedSizeBinary(16) if is_uuid => shape.meaning = Meaning::Uuid,
            DataType::Int8 if extension == Some("arrow.bool8") => shape.meaning = Meaning::Bool,
            _ => {}
        }
        Ok(shape)
    }

    fn of_type(data_type: &DataType) -> Result<Shape, String> {
        let children = match data_type {
            DataType::Dictionary(_, values) => return Shape::of_type(values),
            DataType::RunEndEncoded(_, values) => return Shape::of(values),
            DataType::List(item)
            | DataType::LargeList(item)
            | DataType::FixedSizeList(item, _)
            | DataType::ListView(item)
            | DataType::LargeListView(item) => vec![Shape::of(item)?],
            DataType::Struct(fields) => {
                let mut names: Vec<&str> = fields.iter().map(|f| f.name().as_str()).collect();
                names.sort_unstable();
                if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                    return Err(format!(
                        "it is a struct with two fields named {:?}; give each its own name",
                        twice[0]
                    ));
                }
                fields
                    .iter()
                    .map(|field| Shape::of(field))
                    .collect::<Result<_, _>>()?
            }
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(fields) if fields.len() == 2 => {
                    if let Some(what) = nested_name(encoded_type(fields[0].data_type())) {
                        return Err(format!(
                            "it is a map whose keys are {what}; keys of a map must be text, numbers, dates or bytes"
                        ));
                    }
                    vec![Shape::of(&fields[0])?, Shape::of(&fields[1])?]
                }
                _ => return Err("it is a map whose entries are not a key and a value each".into()),
            },
            DataType::Union(fields, _) => fields
                .iter()
                .map(|(_, field)| Shape::of(field))
                .collect::<Result<_, _>>()?,
            _ => Vec::new(),
        };
        Ok(Shape {
            meaning: Meaning::Plain,
            children,
        })
    }

    fn child(&self, index: usize) -> &Shape {
        self.children.get(index).unwrap_or(&PLAIN)
    }
}

/// The type of the values, however they are encoded.
fn encoded_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => encoded_type(values),
        DataType::RunEndEncoded(_, values) => encoded_type(values.data_type()),
        other => other,
    }
}

/// What people call values of a type that holds others, in the plural; `None` of other types.
fn nested_name(data_type: &DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Struct(_) => "structs",
        DataType::Map(..) => "maps",
        DataType::Union(..) => "unions",
        nested if nested.is_nested() => "lists",
        _ => return None,
    })
}

/// A value, decoded and not yet written.
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    UInt(u64),
    Float32(f32),
    Float64(f64),
    Str(&'a str),
    Bytes(&'a [u8]),
    Uuid(&'a [u8]),
    Date(i64),
    Instant {
        value: i64,
        ticks: Ticks,
        is_zoned: bool,
    },
    TimeOfDay(i64, Ticks),
    Duration(i64, Ticks),
    Interval(Interval),
    Decimal(Digits, i8),
    List(ArrayRef, &'a Shape),
    Struct(&'a dyn Array, usize, &'a Shape),
    Map(&'a dyn Array, usize, &'a Shape),
}

/// A decimal's number before its point is set.
pub(crate) enum Digits {
    Of128(i128),
    Of256(i256),
}

/// The value at `row`.
///
/// # Errors
/// For a value that its own type does not allow.
pub(crate) fn value_of<'a>(
    shape: &'a Shape,
    array: &'a dyn Array,
    row: usize,
) -> Result<Value<'a>, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    macro_rules! at {
        ($type:ty) => {
            array.as_primitive::<$type>().value(row)
        };
    }
    macro_rules! by_unit {
        ($unit:expr, $second:ty, $milli:ty, $micro:ty, $nano:ty) => {
            match $unit {
                TimeUnit::Second => at!($second),
                TimeUnit::Millisecond => at!($milli),
                TimeUnit::Microsecond => at!($micro),
                TimeUnit::Nanosecond => at!($nano),
            }
        };
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => Value::Bool(array.as_boolean().value(row)),
        DataType::Int8 if shape.meaning == Meaning::Bool => Value::Bool(at!(Int8Type) != 0),
        DataType::Int8 => Value::Int(at!(Int8Type).into()),
        DataType::Int16 => Value::Int(at!(Int16Type).into()),
        DataType::Int32 => Value::Int(at!(Int32Type).into()),
        DataType::Int64 => Value::Int(at!(Int64Type)),
        DataType::UInt8 => Value::UInt(at!(UInt8Type).into()),
        DataType::UInt16 => Value::UInt(at!(UInt16Type).into()),
        DataType::UInt32 => Value::UInt(at!(UInt32Type).into()),
        DataType::UInt64 => Value::UInt(at!(UInt64Type)),
        DataType::Float16 => Value::Float32(at!(Float16Type).to_f32()),
        DataType::Float32 => Value::Float32(at!(Float32Type)),
        DataType::Float64 => Value::Float64(at!(Float64Type)),
        DataType::Utf8 => Value::Str(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Value::Str(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Value::Str(array.as_string_view().value(row)),
        DataType::Binary => Value::Bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => Value::Bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => Value::Bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => {
            let bytes = array.as_fixed_size_binary().value(row);
            match shape.meaning {
                Meaning::Uuid => Value::Uuid(bytes),
                _ => Value::Bytes(bytes),
            }
        }
        DataType::Date32 => Value::Date(at!(Date32Type).into()),
        DataType::Date64 => {
            let millis = at!(Date64Type);
            const DAY_MILLIS: i64 = 86_400_000;
            if millis.rem_euclid(DAY_MILLIS) != 0 {
                return Err(format!(
                    "a date of {millis} ms is within a day; write it as a timestamp"
                ));
            }
            Value::Date(millis.div_euclid(DAY_MILLIS))
        }
        DataType::Timestamp(unit, zone) => Value::Instant {
            value: by_unit!(
                unit,
                TimestampSecondType,
                TimestampMillisecondType,
                TimestampMicrosecondType,
                TimestampNanosecondType
            ),
            ticks: Ticks::of(*unit),
            is_zoned: zone.is_some(),
        },
        DataType::Time32(unit) => {
            let value = match unit {
                TimeUnit::Second => at!(Time32SecondType),
                _ => at!(Time32MillisecondType),
            };
            time_of_day(value.into(), Ticks::of(*unit))?
        }
        DataType::Time64(unit) => {
            let value = match unit {
                TimeUnit::Microsecond => at!(Time64MicrosecondType),
                _ => at!(Time64NanosecondType),
            };
            time_of_day(value, Ticks::of(*unit))?
        }
        DataType::Duration(unit) => Value::Duration(
            by_unit!(
                unit,
                DurationSecondType,
                DurationMillisecondType,
                DurationMicrosecondType,
                DurationNanosecondType
            ),
            Ticks::of(*unit),
        ),
        DataType::Interval(unit) => Value::Interval(match unit {
            IntervalUnit::YearMonth => Interval {
                months: at!(IntervalYearMonthType),
                ..Interval::default()
            },
            IntervalUnit::DayTime => {
                let value = at!(IntervalDayTimeType);
                Interval {
                    days: value.days,
                    nanos: i64::from(value.milliseconds) * 1_000_000,
                    ..Interval::default()
                }
            }
            IntervalUnit::MonthDayNano => {
                let value = at!(IntervalMonthDayNanoType);
                Interval {
                    months: value.months,
                    days: value.days,
                    nanos: value.nanoseconds,
                }
            }
        }),
        DataType::Decimal32(_, scale) => {
            Value::Decimal(Digits::Of128(at!(Decimal32Type).into()), *scale)
        }
        DataType::Decimal64(_, scale) => {
            Value::Decimal(Digits::Of128(at!(Decimal64Type).into()), *scale)
        }
        DataType::Decimal128(_, scale) => {
            Value::Decimal(Digits::Of128(at!(Decimal128Type)), *scale)
        }
        DataType::Decimal256(_, scale) => {
            Value::Decimal(Digits::Of256(at!(Decimal256Type)), *scale)
        }
        DataType::Dictionary(..) => {
            let index = dictionary_index(array, row)?;
            return value_of(shape, array.as_any_dictionary().values().as_ref(), index);
        }
        DataType::RunEndEncoded(ends, _) => {
            let (values, index) = match ends.data_type() {
                DataType::Int16 => run_of::<Int16Type>(array, row),
                DataType::Int32 => run_of::<Int32Type>(array, row),
                _ => run_of::<Int64Type>(array, row),
            };
            return value_of(shape, values.as_ref(), index);
        }
        DataType::Union(fields, _) => {
            let union = array.as_union();
            let type_id = union.type_id(row);
            let place = fields.iter().position(|(id, _)| id == type_id);
            let place = place.ok_or("a union names a type that it does not have")?;
            let child = union.child(type_id).as_ref();
            return value_of(shape.child(place), child, union.value_offset(row));
        }
        DataType::List(_) => Value::List(array.as_list::<i32>().value(row), shape.child(0)),
        DataType::LargeList(_) => Value::List(array.as_list::<i64>().value(row), shape.child(0)),
        DataType::FixedSizeList(..) => {
            Value::List(array.as_fixed_size_list().value(row), shape.child(0))
        }
        DataType::ListView(_) => {
            Value::List(array.as_list_view::<i32>().value(row), shape.child(0))
        }
        DataType::LargeListView(_) => {
            Value::List(array.as_list_view::<i64>().value(row), shape.child(0))
        }
        DataType::Struct(_) => Value::Struct(array, row, shape),
        DataType::Map(..) => Value::Map(array, row, shape),
    })
}

fn time_of_day(value: i64, ticks: Ticks) -> Result<Value<'static>, String> {
    if !(0..86_400 * ticks.0).contains(&value) {
        return Err(format!(
            "a time of day of {value} ticks of 1/{} s is not within a day",
            ticks.0
        ));
    }
    Ok(Value::TimeOfDay(value, ticks))
}

fn run_of<K: RunEndIndexType>(array: &dyn Array, row: usize) -> (&ArrayRef, usize) {
    let runs = array.as_run::<K>();
    (runs.values(), runs.get_physical_index(row))
}

fn dictionary_index(array: &dyn Array, row: usize) -> Result<usize, String> {
    let dictionary = array.as_any_dictionary();
    let keys = dictionary.keys();
    // Normalized keys cost a vector per call, so look at the one key.
    let key = match value_of(&PLAIN, keys, row)? {
        Value::Int(key) => usize::try_from(key).ok(),
        Value::UInt(key) => usize::try_from(key).ok(),
        _ => None,
    };
    key.filter(|key| *key < dictionary.values().len())
        .ok_or_else(|| "a dictionary index points past its dictionary".into())
}

/// A text form was written, or there is none to write.
pub(crate) enum Text {
    Written,
    Null,
    /// A list, map or struct, as it is called: it has no text form.
    Nested(&'static str),
}

/// Appends a value as plain text: bytes and strings as they are, numbers as JSON writes them, instants in ISO 8601.
pub(crate) fn write_text(value: &Value<'_>, out: &mut Vec<u8>) -> Text {
    match value {
        Value::Null => return Text::Null,
        Value::List(..) => return Text::Nested("a list"),
        Value::Struct(..) => return Text::Nested("a struct"),
        Value::Map(..) => return Text::Nested("a map"),
        Value::Bool(value) => Json::scalar(out).bool(*value),
        Value::Int(value) => Json::scalar(out).int(*value),
        Value::UInt(value) => Json::scalar(out).uint(*value),
        Value::Float32(value) => match non_finite(f64::from(*value)) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => Json::scalar(out).float32(*value),
        },
        Value::Float64(value) => match non_finite(*value) {
            Some(name) => out.extend_from_slice(name.as_bytes()),
            None => Json::scalar(out).float(*value),
        },
        Value::Str(text) => out.extend_from_slice(text.as_bytes()),
        Value::Bytes(bytes) => out.extend_from_slice(bytes),
        Value::Uuid(bytes) => write_uuid(out, bytes),
        Value::Date(days) => write_date(out, *days),
        Value::Instant {
            value,
            ticks,
            is_zoned,
        } => write_instant(out, *value, *ticks, *is_zoned),
        Value::TimeOfDay(value, ticks) => write_time_of_day(out, *value, *ticks),
        Value::Duration(value, ticks) => write_duration(out, *value, *ticks),
        Value::Interval(interval) => write_interval(out, *interval),
        Value::Decimal(Digits::Of128(digits), scale) => {
            write_decimal(out, &digits.to_string(), *scale);
        }
        Value::Decimal(Digits::Of256(digits), scale) => {
            write_decimal(out, &digits.to_string(), *scale);
        }
    }
    Text::Written
}

/// The names of floats that JSON has no number for.
pub(crate) fn non_finite(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some("NaN")
    } else if value == f64::INFINITY {
        Some("Infinity")
    } else if value == f64::NEG_INFINITY {
        Some("-Infinity")
    } else {
        None
    }
}

/// 8-4-4-4-12 digits, lower case.
fn write_uuid(out: &mut Vec<u8>, bytes: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        out.push(HEX[usize::from(byte >> 4)]);
        out.push(HEX[usize::from(byte & 15)]);
    }
}

/// Sets the point in a whole number: `scale` digits stand behind it, and all of them are shown.
fn write_decimal(out: &mut Vec<u8>, digits: &str, scale: i8) {
    let digits = match digits.strip_prefix('-') {
        Some(digits) => {
            out.push(b'-');
            digits
        }
        None => digits,
    };
    let behind = usize::try_from(scale).unwrap_or(0);
    let whole = digits.len().saturating_sub(behind);
    if whole == 0 {
        out.push(b'0');
    }
    out.extend_from_slice(&digits.as_bytes()[..whole]);
    if scale < 0 && digits != "0" {
        out.resize(out.len() + usize::from(scale.unsigned_abs()), b'0');
    }
    if behind > 0 {
        out.push(b'.');
        out.resize(out.len() + behind - (digits.len() - whole), b'0');
        out.extend_from_slice(&digits.as_bytes()[whole..]);
    }
}

/// Writes the value at `row`, nested as it is. Stops where `out` is full.
pub(crate) fn emit_cell<E: Emit>(
    shape: &Shape,
    array: &dyn Array,
    row: usize,
    out: &mut E,
) -> Result<(), String> {
    emit_value(&value_of(shape, array, row)?, out)
}

pub(crate) fn emit_value<E: Emit>(value: &Value<'_>, out: &mut E) -> Result<(), String> {
    match value {
        Value::Null => out.null(),
        Value::Bool(value) => out.bool(*value),
        Value::Int(value) => out.int(*value),
        Value::UInt(value) => out.uint(*value),
        Value::Float32(value) => out.float32(*value),
        Value::Float64(value) => out.float(*value),
        Value::Str(text) => out.str(text),
        Value::Bytes(bytes) => out.bytes(bytes),
        Value::List(items, shape) => {
            out.array(items.len());
            for index in 0..items.len() {
                if out.is_full() {
                    return Ok(());
                }
                out.item(index);
                emit_cell(shape, items.as_ref(), index, out)?;
            }
            out.array_end();
        }
        Value::Struct(array, row, shape) => {
            let array = array.as_struct();
            out.map(array.columns().len());
            for (index, (field, column)) in array.fields().iter().zip(array.columns()).enumerate() {
                if out.is_full() {
                    return Ok(());
                }
                out.name(index, field.name());
                emit_cell(shape.child(index), column.as_ref(), *row, out)?;
            }
            out.map_end();
        }
        Value::Map(array, row, shape) => emit_map(*array, *row, shape, out)?,
        texts => {
            let mut text = Vec::with_capacity(40);
            write_text(texts, &mut text);
            out.str(std::str::from_utf8(&text).expect("the texts of dates and numbers are ASCII"));
        }
    }
    Ok(())
}

/// A map becomes an object: its keys as text, bytes among them in base64.
fn emit_map<E: Emit>(
    array: &dyn Array,
    row: usize,
    shape: &Shape,
    out: &mut E,
) -> Result<(), String> {
    let entries = array.as_map().value(row);
    let (names, values) = (entries.column(0), entries.column(1));
    let mut seen = std::collections::HashSet::new();
    out.map(entries.len());
    for index in 0..entries.len() {
        if out.is_full() {
            return Ok(());
        }
        let mut name = Vec::new();
        match value_of(shape.child(0), names.as_ref(), index)? {
            Value::Bytes(bytes) => base64(&mut name, bytes),
            value => match write_text(&value, &mut name) {
                Text::Written => {}
                Text::Null => return Err("a map has a key that is null".into()),
                Text::Nested(what) => return Err(format!("a map has a key that is {what}")),
            },
        }
        let name = String::from_utf8(name).expect("bytes were written in base64");
        out.name(index, &name);
        emit_cell(shape.child(1), values.as_ref(), index, out)?;
        if entries.len() > 1 && !seen.insert(name) {
            return Err("a map has a key twice".into());
        }
    }
    out.map_end();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_show_every_digit_of_their_scale() {
        let shown = |digits: &str, scale| {
            let mut out = Vec::new();
            write_decimal(&mut out, digits, scale);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown("1250", 2), "12.50");
        assert_eq!(shown("-5", 2), "-0.05");
        assert_eq!(shown("0", 2), "0.00");
        assert_eq!(shown("7", 0), "7");
        assert_eq!(shown("7", -2), "700");
        assert_eq!(shown("0", -2), "0");
        assert_eq!(shown("-123456", 6), "-0.123456");
    }
}
