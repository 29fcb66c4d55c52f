//! Writes one cell of a column to an [`Emit`] (JSON or MessagePack): lists become arrays, structs and maps become
//! objects, at any depth.

use arrow_array::Array;
use arrow_array::cast::AsArray;

use super::shape::FieldShape;
use super::text::{TextForm, write_text};
use super::value::{Value, value_of};
use crate::emit::{Emit, base64};

/// Writes the value at `row` with its nesting. Stops when `out` is full.
pub(crate) fn emit_cell<E: Emit>(
    shape: &FieldShape,
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
        Value::Float16(value) => out.float16(*value),
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

/// Writes a map as an object with its keys as text; keys that are bytes are in base64.
fn emit_map<E: Emit>(
    array: &dyn Array,
    row: usize,
    shape: &FieldShape,
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
                TextForm::Written => {}
                TextForm::Null => return Err("a map has a key that is null".into()),
                TextForm::Nested(what) => return Err(format!("a map has a key that is {what}")),
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
