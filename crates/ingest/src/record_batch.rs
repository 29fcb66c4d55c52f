//! Rows of Arrow record batches, for all formats that decode to them.

use std::ops::Deref;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, Fields};

use crate::cell::{FieldShape, TextForm, Value, emit_value, value_of, write_text};
use crate::emit::{Emit, Json, MessagePack};
use crate::error::{At, Fault};
use crate::key::end_part;
use crate::options::InputOptions;
use crate::plan::{Plan, PlanValue};
use crate::rows::{AssembledRow, Rows};

/// The plan of a file whose columns have Arrow types.
pub(crate) struct BatchPlan {
    plan: Plan,
    /// The shapes of the columns to read; the default for others.
    shapes: Vec<FieldShape>,
}

impl Deref for BatchPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl BatchPlan {
    /// # Errors
    /// For missing columns, and for columns whose type cannot be read.
    pub fn new(
        fields: &Fields,
        folder: &crate::plan::FolderColumns,
        options: &InputOptions,
    ) -> Result<BatchPlan, Fault> {
        let names = fields.iter().map(|field| field.name().clone()).collect();
        let plan = Plan::new(names, folder, options)?;
        let mut shapes = vec![FieldShape::default(); fields.len()];
        for column in plan.columns() {
            shapes[column] = shape_of(&fields[column])?;
        }
        Ok(BatchPlan { plan, shapes })
    }
}

fn shape_of(field: &Field) -> Result<FieldShape, Fault> {
    FieldShape::of(field).map_err(|reason| {
        Fault::file(format!(
            "column {:?} cannot be read: {reason}",
            field.name()
        ))
    })
}

/// The columns of one batch, by their indexes in the plan.
struct Columns<'b> {
    plan: &'b BatchPlan,
    /// `None` for columns that are not read, and for those whose value comes from the folder's name.
    arrays: Vec<Option<&'b ArrayRef>>,
}

impl<'b> Columns<'b> {
    fn of(batch: &'b RecordBatch, plan: &'b BatchPlan) -> Result<Columns<'b>, Fault> {
        let read = plan.columns();
        if batch.num_columns() != read.len() {
            return Err(Fault::file(
                "its decoder lost a column; the file is damaged",
            ));
        }
        let arrays = (0..plan.names.len()).map(|column| {
            let place = read.binary_search(&column).ok()?;
            batch.columns().get(place)
        });
        Ok(Columns {
            plan,
            arrays: arrays.collect(),
        })
    }

    fn value(&self, column: usize, row: usize) -> Result<Value<'b>, Fault> {
        if let Some(constant) = self.plan.constants.get(&column) {
            return Ok(constant.as_deref().map_or(Value::Null, Value::Str));
        }
        let array = self.arrays[column].expect("the plan's columns are those that were read");
        value_of(&self.plan.shapes[column], array.as_ref(), row)
            .map_err(|reason| self.named(column, &reason))
    }

    fn named(&self, column: usize, reason: &str) -> Fault {
        Fault::file(format!("column {:?}: {reason}", self.plan.names[column]))
    }
}

/// Passes on the rows. `first_row` is the batch's first row in the file, from 0.
pub(crate) fn push_batch(
    batch: &RecordBatch,
    plan: &BatchPlan,
    file: u64,
    first_row: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    let columns = Columns::of(batch, plan)?;
    let separator = rows.options.key_separator;
    for row in 0..batch.num_rows() {
        let row_in_file = first_row + row as u64;
        rows.assemble((file << 44) | row_in_file, |key, value, bytes_max| {
            assemble_row(&columns, row, separator, key, value, bytes_max)
        })
        .map_err(|fault| fault.or_at(At::Row(row_in_file + 1)))?;
    }
    Ok(())
}

/// Returns the batch with only the plan's columns, in the plan's order, for decoders that always decode all columns.
pub(crate) fn project(batch: &RecordBatch, plan: &Plan) -> Result<RecordBatch, Fault> {
    batch
        .project(&plan.columns())
        .map_err(|e| Fault::file(crate::error::one_line(&e)))
}

fn assemble_row<'b>(
    columns: &Columns<'b>,
    row: usize,
    separator: u8,
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<AssembledRow<'b>, Fault> {
    let plan = columns.plan;
    for (index, &column) in plan.key.iter().enumerate() {
        let begin = key.len();
        match write_text(&columns.value(column, row)?, key) {
            TextForm::Written => {}
            TextForm::Null => {
                return Ok(AssembledRow::NullKey(format!(
                    "key column {:?} is null",
                    plan.names[column]
                )));
            }
            TextForm::Nested(what) => {
                return Err(Fault::file(format!(
                    "key column {:?} is {what}; a key is made of text, numbers, dates or bytes",
                    plan.names[column]
                )));
            }
        }
        if index + 1 < plan.key.len() {
            end_part(key, begin, separator);
        }
    }
    match &plan.value {
        PlanValue::Column(column) => match columns.value(*column, row)? {
            // Text and bytes need no copy.
            Value::Str(text) => return Ok(AssembledRow::Borrowed(text.as_bytes())),
            Value::Bytes(bytes) => return Ok(AssembledRow::Borrowed(bytes)),
            cell => match write_text(&cell, value) {
                TextForm::Written => {}
                TextForm::Null => return Ok(AssembledRow::NullValue(&plan.names[*column])),
                TextForm::Nested(_) => emit_value(&cell, &mut Json::new(value, bytes_max))
                    .map_err(|reason| columns.named(*column, &reason))?,
            },
        },
        PlanValue::Json(others) => {
            emit_others(columns, others, row, &mut Json::new(value, bytes_max))?;
        }
        PlanValue::MessagePack(others) => {
            let mut out = MessagePack::new(value, bytes_max);
            emit_others(columns, others, row, &mut out)?;
        }
    }
    Ok(AssembledRow::Row)
}

fn emit_others<E: Emit>(
    columns: &Columns<'_>,
    others: &[usize],
    row: usize,
    out: &mut E,
) -> Result<(), Fault> {
    out.map(others.len());
    for (index, &column) in others.iter().enumerate() {
        out.name(index, &columns.plan.names[column]);
        emit_value(&columns.value(column, row)?, out)
            .map_err(|reason| columns.named(column, &reason))?;
        if out.is_full() {
            return Ok(());
        }
    }
    out.map_end();
    Ok(())
}
