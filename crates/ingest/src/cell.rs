//! One value of an Arrow array, as text or as a nested value.

use std::io::Write;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, TimeUnit};

use crate::emit::{Emit, Json};
use crate::error::one_line;
use crate::time::{Ticks, write_date, write_instant, write_time_of_day};

/// A text form was written, or there is none to write.
pub(crate) enum Text {
    Written,
    Null,
    /// A list, map or struct: it has no text form.
    Nested,
}

fn ticks(unit: TimeUnit) -> Ticks {
    Ticks(match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    })
}

/// Appends the value at `row` as plain text: bytes and strings as they are, numbers as JSON writes them, instants in ISO 8601.
pub(crate) fn write_text(array: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<Text, String> {
    if array.is_null(row) {
        return Ok(Text::Null);
    }
    match array.data_type() {
        DataType::Utf8 => out.extend_from_slice(array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => {
            out.extend_from_slice(array.as_string::<i64>().value(row).as_bytes())
        }
        DataType::Utf8View => out.extend_from_slice(array.as_string_view().value(row).as_bytes()),
        DataType::Binary => out.extend_from_slice(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => out.extend_from_slice(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => out.extend_from_slice(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => {
            out.extend_from_slice(array.as_fixed_size_binary().value(row))
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let Some(index) = dictionary_index(array, row)? else {
                return Ok(Text::Null);
            };
            return write_text(dictionary.values().as_ref(), index, out);
        }
        DataType::Null => return Ok(Text::Null),
        DataType::List(_)
        | DataType::LargeList(_)
        | DataType::FixedSizeList(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::Struct(_)
        | DataType::Map(..) => return Ok(Text::Nested),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => write_float(array, row, out),
        _ => write_scalar(array, row, out)?,
    }
    Ok(Text::Written)
}

/// Floats as JSON writes them, with names for those that JSON lacks.
fn write_float(array: &dyn Array, row: usize, out: &mut Vec<u8>) {
    let value = match array.data_type() {
        DataType::Float16 => f64::from(array.as_primitive::<Float16Type>().value(row).to_f32()),
        DataType::Float32 => f64::from(array.as_primitive::<Float32Type>().value(row)),
        _ => array.as_primitive::<Float64Type>().value(row),
    };
    if !value.is_finite() {
        return show(out, value);
    }
    match array.data_type() {
        DataType::Float64 => Json(out).float(value),
        _ => Json(out).float32(value as f32),
    }
}

fn show(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    write!(out, "{value}").expect("memory takes what is written to it");
}

/// Integers, booleans, instants and decimals; whatever else Arrow can show.
fn write_scalar(array: &dyn Array, row: usize, out: &mut Vec<u8>) -> Result<(), String> {
    match array.data_type() {
        DataType::Boolean => Json(out).bool(array.as_boolean().value(row)),
        DataType::Int8 => Json(out).int(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => Json(out).int(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => Json(out).int(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => Json(out).int(array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => Json(out).uint(array.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => Json(out).uint(array.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => Json(out).uint(array.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => Json(out).uint(array.as_primitive::<UInt64Type>().value(row)),
        DataType::Date32 => write_date(out, array.as_primitive::<Date32Type>().value(row).into()),
        DataType::Date64 => {
            write_date(
                out,
                array
                    .as_primitive::<Date64Type>()
                    .value(row)
                    .div_euclid(86_400_000),
            );
        }
        DataType::Timestamp(unit, zone) => {
            let value = match unit {
                TimeUnit::Second => array.as_primitive::<TimestampSecondType>().value(row),
                TimeUnit::Millisecond => {
                    array.as_primitive::<TimestampMillisecondType>().value(row)
                }
                TimeUnit::Microsecond => {
                    array.as_primitive::<TimestampMicrosecondType>().value(row)
                }
                TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().value(row),
            };
            write_instant(out, value, ticks(*unit), zone.is_some());
        }
        DataType::Time32(TimeUnit::Second) => {
            write_time_of_day(
                out,
                array.as_primitive::<Time32SecondType>().value(row).into(),
                Ticks(1),
            );
        }
        DataType::Time32(_) => {
            write_time_of_day(
                out,
                array
                    .as_primitive::<Time32MillisecondType>()
                    .value(row)
                    .into(),
                Ticks(1_000),
            );
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            write_time_of_day(
                out,
                array.as_primitive::<Time64MicrosecondType>().value(row),
                Ticks(1_000_000),
            );
        }
        DataType::Time64(_) => {
            write_time_of_day(
                out,
                array.as_primitive::<Time64NanosecondType>().value(row),
                Ticks(1_000_000_000),
            );
        }
        _ => {
            let options = FormatOptions::default();
            let formatter = ArrayFormatter::try_new(array, &options).map_err(|e| one_line(&e))?;
            let text = formatter
                .value(row)
                .try_to_string()
                .map_err(|e| one_line(&e))?;
            out.extend_from_slice(text.as_bytes());
        }
    }
    Ok(())
}

fn dictionary_index(array: &dyn Array, row: usize) -> Result<Option<usize>, String> {
    let dictionary = array.as_any_dictionary();
    if array.is_null(row) {
        return Ok(None);
    }
    // Normalized keys cost a vector per call, so look at the one key.
    let keys = dictionary.keys();
    let mut text = Vec::new();
    write_scalar(keys, row, &mut text)?;
    let index = std::str::from_utf8(&text)
        .ok()
        .and_then(|text| text.parse::<usize>().ok());
    match index {
        Some(index) if index < dictionary.values().len() => Ok(Some(index)),
        _ => Err("a dictionary index points past its dictionary".into()),
    }
}

/// Writes the value at `row`, nested as it is.
pub(crate) fn emit_cell<E: Emit>(array: &dyn Array, row: usize, out: &mut E) -> Result<(), String> {
    if array.is_null(row) {
        out.null();
        return Ok(());
    }
    match array.data_type() {
        DataType::Null => out.null(),
        DataType::Boolean => out.bool(array.as_boolean().value(row)),
        DataType::Int8 => out.int(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => out.int(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => out.int(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => out.int(array.as_primitive::<Int64Type>().value(row)),
        DataType::UInt8 => out.uint(array.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => out.uint(array.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => out.uint(array.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => out.uint(array.as_primitive::<UInt64Type>().value(row)),
        DataType::Float16 => out.float32(array.as_primitive::<Float16Type>().value(row).to_f32()),
        DataType::Float32 => out.float32(array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => out.float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => out.str(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => out.str(array.as_string::<i64>().value(row)),
        DataType::Utf8View => out.str(array.as_string_view().value(row)),
        DataType::Binary => out.bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => out.bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => out.bytes(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => out.bytes(array.as_fixed_size_binary().value(row)),
        DataType::Dictionary(..) => match dictionary_index(array, row)? {
            Some(index) => emit_cell(array.as_any_dictionary().values().as_ref(), index, out)?,
            None => out.null(),
        },
        DataType::List(_) => emit_items(&array.as_list::<i32>().value(row), out)?,
        DataType::LargeList(_) => emit_items(&array.as_list::<i64>().value(row), out)?,
        DataType::FixedSizeList(..) => emit_items(&array.as_fixed_size_list().value(row), out)?,
        DataType::ListView(_) => emit_items(&array.as_list_view::<i32>().value(row), out)?,
        DataType::LargeListView(_) => emit_items(&array.as_list_view::<i64>().value(row), out)?,
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns();
            out.map(fields.len());
            for (index, (field, column)) in fields.iter().zip(columns).enumerate() {
                out.name(index, field.name());
                emit_cell(column.as_ref(), row, out)?;
            }
            out.map_end();
        }
        DataType::Map(..) => emit_map(array, row, out)?,
        DataType::Union(..) => {
            let union = array.as_union();
            let child = union.child(union.type_id(row));
            emit_cell(child.as_ref(), union.value_offset(row), out)?;
        }
        _ => {
            let mut text = Vec::new();
            write_scalar(array, row, &mut text)?;
            out.str(&String::from_utf8_lossy(&text));
        }
    }
    Ok(())
}

fn emit_items<E: Emit>(items: &ArrayRef, out: &mut E) -> Result<(), String> {
    out.array(items.len());
    for index in 0..items.len() {
        out.item(index);
        emit_cell(items.as_ref(), index, out)?;
    }
    out.array_end();
    Ok(())
}

/// A map becomes an object: its keys as text.
fn emit_map<E: Emit>(array: &dyn Array, row: usize, out: &mut E) -> Result<(), String> {
    let entries = array.as_map().value(row);
    let (names, values) = (entries.column(0), entries.column(1));
    out.map(entries.len());
    for index in 0..entries.len() {
        let mut name = Vec::new();
        if !matches!(write_text(names.as_ref(), index, &mut name)?, Text::Written) {
            return Err("a map has a key that is null or nested".into());
        }
        out.name(index, &String::from_utf8_lossy(&name));
        emit_cell(values.as_ref(), index, out)?;
    }
    out.map_end();
    Ok(())
}
