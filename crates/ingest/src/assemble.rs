//! Keys and values as two columns of bytes: rows are made once, before an engine that is not ours brings those of a partition together.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, Int32Builder};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use crate::batches::{Batches, NAME};
use crate::error::{Error, Fault};
use crate::guard::guarded;
use crate::options::{InputOptions, RowSink, SinkError};
use crate::record_batch::{BatchPlan, project, push_batch};
use crate::rows::Rows;
use crate::run::{Budget, check_columns};

/// The columns of what [`assemble`] makes.
pub const PARTITION_COLUMN: &str = "partition";
pub const KEY_COLUMN: &str = "key";
pub const VALUE_COLUMN: &str = "value";

/// A batch is handed on when it has so many bytes.
const BATCH_BYTES: usize = 16 << 20;

/// Of a key, the partition that its row is of.
pub type PartitionOf = Box<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// Of a row's value, the bytes that stand in the column.
pub type Written = Box<dyn Fn(&[u8], &mut Vec<u8>) + Send + Sync>;

/// Batches of three columns: the partition, the key and the value of each row, as `written` writes it.
///
/// # Errors
/// Of the options or the columns; those of rows come with the batches.
pub fn assemble(
    batches: Batches,
    options: InputOptions,
    partition_of: PartitionOf,
    written: Written,
) -> Result<impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send, Error> {
    check_columns(&options)?;
    let plan = BatchPlan::new(batches.schema().fields(), &Vec::new(), &options);
    Ok(Assembled {
        plan: plan.map_err(|fault| fault.into_error(NAME))?,
        budget: Budget::new(options.memory.0),
        batches,
        options,
        partition_of,
        written,
        first_row: 0,
        ready: VecDeque::new(),
    })
}

/// As [`assemble`], for who takes the Arrow C stream interface.
///
/// # Errors
/// As [`assemble`].
pub fn assemble_c_stream(
    batches: Batches,
    options: InputOptions,
    partition_of: PartitionOf,
    written: Written,
) -> Result<FFI_ArrowArrayStream, Error> {
    let assembled = assemble(batches, options, partition_of, written)?;
    let reader = RecordBatchIterator::new(assembled, schema());
    Ok(FFI_ArrowArrayStream::new(Box::new(reader)))
}

fn schema() -> SchemaRef {
    let column = |name: &str, data_type| Field::new(name, data_type, false);
    Arc::new(Schema::new(vec![
        column(PARTITION_COLUMN, DataType::Int32),
        column(KEY_COLUMN, DataType::Binary),
        column(VALUE_COLUMN, DataType::Binary),
    ]))
}

struct Assembled {
    batches: Batches,
    plan: BatchPlan,
    options: InputOptions,
    budget: Budget,
    partition_of: PartitionOf,
    written: Written,
    first_row: u64,
    ready: VecDeque<RecordBatch>,
}

impl Assembled {
    fn add(&mut self, batch: &RecordBatch) -> Result<(), Fault> {
        let first_row = self.first_row;
        self.first_row += batch.num_rows() as u64;
        let (plan, options, budget) = (&self.plan, &self.options, &self.budget);
        let sink = Columns {
            partition_of: &self.partition_of,
            written: &self.written,
            value: Vec::new(),
            partitions: Int32Builder::new(),
            keys: BinaryBuilder::new(),
            values: BinaryBuilder::new(),
            bytes: 0,
            ready: &mut self.ready,
        };
        guarded(|| {
            let batch = project(batch, plan)?;
            let mut rows = Rows::new(options, budget, Box::new(sink));
            push_batch(&batch, plan, 0, first_row, &mut rows)?;
            rows.sink.finish().map_err(crate::run::sink_fault)
        })
    }
}

impl Iterator for Assembled {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            let added = match self.batches.next()? {
                Ok(batch) => self.add(&batch).map_err(|fault| fault.into_error(NAME)),
                Err(error) => Err(error),
            };
            if let Err(error) = added {
                return Some(Err(ArrowError::ExternalError(Box::new(error))));
            }
        }
    }
}

/// Rows in the making.
struct Columns<'a> {
    partition_of: &'a PartitionOf,
    written: &'a Written,
    /// Room for one.
    value: Vec<u8>,
    partitions: Int32Builder,
    keys: BinaryBuilder,
    values: BinaryBuilder,
    bytes: usize,
    ready: &'a mut VecDeque<RecordBatch>,
}

impl Columns<'_> {
    fn flush(&mut self) -> Result<(), SinkError> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.bytes = 0;
        let batch = RecordBatch::try_new(
            schema(),
            vec![
                Arc::new(self.partitions.finish()),
                Arc::new(self.keys.finish()),
                Arc::new(self.values.finish()),
            ],
        );
        self.ready.push_back(batch?);
        Ok(())
    }
}

impl RowSink for Columns<'_> {
    fn row(&mut self, _: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        self.partitions
            .append_value((self.partition_of)(key) as i32);
        self.keys.append_value(key);
        self.value.clear();
        (self.written)(value, &mut self.value);
        self.values.append_value(&self.value);
        self.bytes += key.len() + self.value.len();
        match self.bytes >= BATCH_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>) -> Result<(), SinkError> {
        self.flush()
    }
}
