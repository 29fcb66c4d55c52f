//! Converts rows to bundles before a foreign engine shuffles them by partition. Keys and values are computed only
//! once.
//!
//! ```text
//!  batches ──► a row's key and value ──► the open bundle of its partition ──► batches of two columns: target, bundle
//! ```
//!
//! 1. Every row is in a bundle with its partition's target, and a bundle has rows of only one partition.
//! 2. Open bundles together take at most [`BundleOptions::open_bytes_max`], independent of the partitions and rows.
//!    Each has an equal share, and a longer row becomes a bundle of its own, which is emitted immediately.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, Int32Builder};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use crate::batches::{Batches, NAME};
use crate::bundle::{ROW_OVERHEAD_BYTES, push_row};
use crate::error::{Error, Fault};
use crate::guard::guarded;
use crate::options::{InputOptions, RowSink, SinkError};
use crate::record_batch::{BatchPlan, project, push_batch};
use crate::rows::Rows;
use crate::run::{Budget, check_columns, sink_fault};

/// The columns of the output of [`assemble`].
pub const TARGET_COLUMN: &str = "target";
pub const BUNDLE_COLUMN: &str = "bundle";

/// The size at which a batch is emitted.
const BATCH_BYTES: usize = 4 << 20;

/// Returns the partition of a key.
pub type PartitionOf = Box<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// Writes the encoding of a row's value in a bundle.
pub type WriteValue = Box<dyn Fn(&[u8], &mut Vec<u8>) + Send + Sync>;

/// Options for assembling rows into bundles.
pub struct BundleOptions {
    pub partition_of: PartitionOf,
    pub write_value: WriteValue,
    /// The value in the target column for each partition; the engine shuffles bundles by it.
    pub targets: Vec<i32>,
    /// Maximum size of a bundle with several rows.
    pub bundle_bytes_max: usize,
    /// Maximum total size of all open bundles.
    pub open_bytes_max: usize,
}

/// Returns batches of two columns: the target of a partition, and a bundle of its rows.
///
/// # Errors
/// For invalid options or columns. Errors of rows are returned with the batches.
pub fn assemble(
    batches: Batches,
    options: InputOptions,
    bundling: BundleOptions,
) -> Result<impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send, Error> {
    check_columns(&options)?;
    let plan = BatchPlan::new(batches.schema().fields(), &Vec::new(), &options);
    Ok(AssembledBatches {
        plan: plan.map_err(|fault| fault.into_error(NAME))?,
        budget: Budget::new(options.memory.0),
        batches,
        options,
        first_row: 0,
        bundles: Bundles::new(bundling),
        is_at_end: false,
    })
}

/// Like [`assemble`], for consumers of the Arrow C stream interface.
///
/// # Errors
/// Like [`assemble`].
pub fn assemble_c_stream(
    batches: Batches,
    options: InputOptions,
    bundling: BundleOptions,
) -> Result<FFI_ArrowArrayStream, Error> {
    let assembled = assemble(batches, options, bundling)?;
    let reader = RecordBatchIterator::new(assembled, schema());
    Ok(FFI_ArrowArrayStream::new(Box::new(reader)))
}

fn schema() -> SchemaRef {
    let column = |name: &str, data_type| Field::new(name, data_type, false);
    Arc::new(Schema::new(vec![
        column(TARGET_COLUMN, DataType::Int32),
        column(BUNDLE_COLUMN, DataType::Binary),
    ]))
}

struct AssembledBatches {
    batches: Batches,
    plan: BatchPlan,
    options: InputOptions,
    budget: Budget,
    first_row: u64,
    bundles: Bundles,
    is_at_end: bool,
}

impl AssembledBatches {
    fn add(&mut self, batch: &RecordBatch) -> Result<(), Fault> {
        let first_row = self.first_row;
        self.first_row += batch.num_rows() as u64;
        let (plan, options, budget) = (&self.plan, &self.options, &self.budget);
        let sink = Box::new(BatchSink(&mut self.bundles));
        guarded(|| {
            let batch = project(batch, plan)?;
            let mut rows = Rows::new(options, budget, sink);
            push_batch(&batch, plan, 0, first_row, &mut rows)
        })
    }

    /// Processes a part of the remaining input; returns true if nothing is left.
    fn step(&mut self) -> Result<bool, Error> {
        if self.is_at_end {
            return Ok(true);
        }
        let done = match self.batches.next() {
            Some(batch) => self.add(&batch?),
            None => {
                self.is_at_end = true;
                self.bundles.finish().map_err(sink_fault)
            }
        };
        done.map_err(|fault| fault.into_error(NAME))?;
        Ok(false)
    }
}

impl Iterator for AssembledBatches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.bundles.full.batches.pop_front() {
                return Some(Ok(batch));
            }
            match self.step() {
                Ok(true) => return None,
                Ok(false) => {}
                Err(error) => return Some(Err(ArrowError::ExternalError(Box::new(error)))),
            }
        }
    }
}

struct Bundles {
    options: BundleOptions,
    /// The open bundle of each partition. Its memory is allocated once, with the first row.
    open: Vec<Vec<u8>>,
    room_bytes: usize,
    full: EmittedBundles,
}

impl Bundles {
    fn new(options: BundleOptions) -> Bundles {
        let partitions = options.targets.len();
        let share = options.open_bytes_max / partitions.max(1);
        Bundles {
            open: vec![Vec::new(); partitions],
            room_bytes: options.bundle_bytes_max.min(share),
            options,
            full: EmittedBundles::default(),
        }
    }

    fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        let partition = (self.options.partition_of)(key) as usize;
        let target = self.options.targets[partition];
        let written = |out: &mut Vec<u8>| (self.options.write_value)(value, out);
        // The encoding of a value is at most one byte longer than the value.
        let row_bytes = ROW_OVERHEAD_BYTES + key.len() + value.len() + 1;
        if row_bytes > self.room_bytes {
            let mut alone = Vec::with_capacity(row_bytes);
            push_row(&mut alone, key, written);
            return self.full.add(target, &alone);
        }
        let bundle = &mut self.open[partition];
        if bundle.len() + row_bytes > self.room_bytes {
            self.full.add(target, bundle)?;
            bundle.clear();
        }
        if bundle.capacity() == 0 {
            bundle.reserve_exact(self.room_bytes);
        }
        push_row(bundle, key, written);
        Ok(())
    }

    /// Emits the open bundles.
    fn finish(&mut self) -> Result<(), SinkError> {
        for (bundle, target) in self.open.iter_mut().zip(&self.options.targets) {
            let bundle = std::mem::take(bundle);
            if !bundle.is_empty() {
                self.full.add(*target, &bundle)?;
            }
        }
        self.full.make_batch()
    }
}

/// Emitted bundles, as batches.
#[derive(Default)]
struct EmittedBundles {
    targets: Int32Builder,
    bundles: BinaryBuilder,
    bytes: usize,
    batches: VecDeque<RecordBatch>,
}

impl EmittedBundles {
    fn add(&mut self, target: i32, bundle: &[u8]) -> Result<(), SinkError> {
        self.targets.append_value(target);
        self.bundles.append_value(bundle);
        self.bytes += bundle.len();
        if self.bytes >= BATCH_BYTES {
            self.make_batch()
        } else {
            Ok(())
        }
    }

    fn make_batch(&mut self) -> Result<(), SinkError> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.bytes = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.targets.finish()),
            Arc::new(self.bundles.finish()),
        ];
        let batch = RecordBatch::try_new(schema(), columns)?;
        self.batches.push_back(batch);
        Ok(())
    }
}

/// Receives the rows of one batch.
struct BatchSink<'a>(&'a mut Bundles);

impl RowSink for BatchSink<'_> {
    fn row(&mut self, _: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        self.0.push(key, value)
    }
}
