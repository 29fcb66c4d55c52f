//! Rows of Arrow record batches, from whatever format they were decoded.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;

use crate::cell::{Text, emit_cell, write_text};
use crate::emit::{Emit, Json, MessagePack};
use crate::error::{At, Fault};
use crate::plan::{Plan, PlanValue};
use crate::rows::Rows;

/// Sends the rows on. `columns` maps a column of the plan to its array: a projection leaves some out.
/// `first_row` is the batch's first row in the file, from 0.
pub(crate) fn push_batch(
    batch: &RecordBatch,
    plan: &Plan,
    file: u64,
    first_row: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    let read = plan.columns();
    let arrays: Vec<Option<&ArrayRef>> = (0..plan.names.len())
        .map(|column| {
            let place = read.binary_search(&column).ok()?;
            batch.columns().get(place)
        })
        .collect();
    if batch.num_columns() != read.len() {
        return Err(Fault::file(
            "its decoder lost a column; the file is damaged",
        ));
    }
    let array =
        |column: usize| arrays[column].expect("the plan's columns are those that were read");
    for row in 0..batch.num_rows() {
        let row_in_file = first_row + row as u64;
        let (mut key, mut value) = (
            std::mem::take(&mut rows.key),
            std::mem::take(&mut rows.value),
        );
        let made = make(plan, &array, row, rows, &mut key, &mut value);
        let pushed = match made {
            Ok(Made::Row) => rows.push((file << 44) | row_in_file, &key, &value),
            Ok(Made::Borrowed(value)) => rows.push((file << 44) | row_in_file, &key, value),
            Ok(Made::NullKey(name)) => rows.null_key(&format!("key column {name:?} is null")),
            Ok(Made::NullValue(name)) => rows.null_value(name),
            Err(reason) => Err(Fault::file(reason)),
        };
        (rows.key, rows.value) = (key, value);
        pushed.map_err(|fault| fault.or_at(At::Row(row_in_file + 1)))?;
    }
    Ok(())
}

/// The batch with only the plan's columns, in the plan's order, for decoders that cannot leave columns out.
pub(crate) fn project(batch: &RecordBatch, plan: &Plan) -> Result<RecordBatch, Fault> {
    batch
        .project(&plan.columns())
        .map_err(|e| Fault::file(crate::error::one_line(&e)))
}

enum Made<'a> {
    Row,
    Borrowed(&'a [u8]),
    NullKey(&'a str),
    NullValue(&'a str),
}

fn make<'a>(
    plan: &'a Plan,
    array: &impl Fn(usize) -> &'a ArrayRef,
    row: usize,
    rows: &Rows<'_>,
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
) -> Result<Made<'a>, String> {
    key.clear();
    value.clear();
    for (index, &column) in plan.key.iter().enumerate() {
        if index > 0 {
            key.extend_from_slice(rows.options.key_separator.as_bytes());
        }
        let array = array(column);
        match write_text(array.as_ref(), row, key)? {
            Text::Written => {}
            Text::Null => return Ok(Made::NullKey(&plan.names[column])),
            Text::Nested => {
                return Err(format!(
                    "key column {:?} is {}; a key is made of text, numbers, dates or bytes",
                    plan.names[column],
                    array.data_type()
                ));
            }
        }
    }
    let value_bytes_max = rows.options.value_bytes_max;
    match &plan.value {
        PlanValue::Column(column) => {
            let array = array(*column);
            if let Some(bytes) = borrowed(array, row) {
                return Ok(Made::Borrowed(bytes));
            }
            match write_text(array.as_ref(), row, value)? {
                Text::Written => {}
                Text::Null => return Ok(Made::NullValue(&plan.names[*column])),
                Text::Nested => emit_cell(array.as_ref(), row, &mut Json(value))?,
            }
        }
        PlanValue::Json(others) => {
            emit_others(plan, others, array, row, value_bytes_max, &mut Json(value))?;
        }
        PlanValue::MessagePack(others) => {
            emit_others(
                plan,
                others,
                array,
                row,
                value_bytes_max,
                &mut MessagePack(value),
            )?;
        }
    }
    Ok(Made::Row)
}

/// Text and bytes need no copy.
fn borrowed(array: &ArrayRef, row: usize) -> Option<&[u8]> {
    if array.is_null(row) {
        return None;
    }
    Some(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row).as_bytes(),
        DataType::Utf8View => array.as_string_view().value(row).as_bytes(),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        _ => return None,
    })
}

fn emit_others<'a, E: Emit>(
    plan: &Plan,
    others: &[usize],
    array: &impl Fn(usize) -> &'a ArrayRef,
    row: usize,
    value_bytes_max: u64,
    out: &mut E,
) -> Result<(), String> {
    out.map(others.len());
    for (index, &column) in others.iter().enumerate() {
        out.name(index, &plan.names[column]);
        emit_cell(array(column).as_ref(), row, out)
            .map_err(|reason| format!("column {:?}: {reason}", plan.names[column]))?;
        if out.written() as u64 > value_bytes_max {
            return Err(format!(
                "the value has more than {value_bytes_max} bytes; raise the limit or choose fewer columns"
            ));
        }
    }
    out.map_end();
    Ok(())
}
