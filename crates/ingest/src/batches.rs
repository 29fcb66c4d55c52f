//! Reads rows from Arrow record batches that the caller has, such as a data frame or an engine's partition.
//!
//! ```text
//!  batches ── lock ─ next() ─ unlock ──► rows of one batch ──► sink      (one sink per thread, as for files)
//!                                        as columns (`ingest_batches`) or as bundles (`ingest_bundles`)
//! ```

use std::sync::{Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_schema::{ArrowError, Schema, SchemaRef};

use crate::assemble::BUNDLE_COLUMN;
use crate::bundle::rows_of_bundle;
use crate::cell::{FieldShape, Value, value_of};
use crate::error::{Error, Fault, one_line};
use crate::guard::guarded;
use crate::options::{InputOptions, RowSink, SinkError, Summary};
use crate::record_batch::{BatchPlan, project, push_batch};
use crate::rows::Rows;
use crate::run::{Budget, check_columns, sink_fault};

/// The name in error messages, in place of a file.
pub(crate) const NAME: &str = "the frame";

/// Record batches with a common schema.
pub struct Batches {
    schema: SchemaRef,
    reader: Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>,
}

impl Batches {
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Batches {
        Batches {
            schema,
            reader: Box::new(batches.into_iter().map(Ok)),
        }
    }

    /// Imports a stream from another library through the Arrow C stream interface.
    ///
    /// # Errors
    /// If its schema cannot be read.
    ///
    /// # Safety
    /// `stream` must point to a stream that is valid by the interface's specification. It is moved out; what remains
    /// is a released stream.
    pub unsafe fn from_c_stream(stream: *mut FFI_ArrowArrayStream) -> Result<Batches, Error> {
        // SAFETY: guaranteed by the caller.
        let reader = unsafe { RecordBatchStreamReader::from_raw(stream) };
        let reader = reader.map_err(|error| to_error(&error))?;
        Ok(Batches {
            schema: arrow_array::RecordBatchReader::schema(&reader),
            reader: Box::new(reader),
        })
    }

    pub fn schema(&self) -> &Schema {
        &self.schema
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.reader.next()?;
        Some(next.map_err(|error| to_error(&error)))
    }
}

fn to_error(error: &ArrowError) -> Error {
    Fault::file(one_line(error)).into_error(NAME)
}

/// Passes the rows of batches to the sinks, one sink per thread, in no particular order but with their numbers: the
/// first row is 0. Uses only the options about columns, limits and threads. Blocks until everything is read.
///
/// # Errors
/// Like [`crate::ingest`]; a run that returns an error has passed on only some of the rows.
pub fn ingest_batches<'s>(
    batches: Batches,
    options: &InputOptions,
    make_sink: &(dyn Fn() -> Result<Box<dyn RowSink + 's>, SinkError> + Sync),
) -> Result<Summary, Error> {
    check_columns(options)?;
    let fault = |fault: Fault| fault.into_error(NAME);
    let plan = BatchPlan::new(batches.schema().fields(), &Vec::new(), options).map_err(fault)?;
    let budget = Budget::new(options.memory.0);
    run_on_threads(batches, options.threads, &|source| {
        let made = make_sink().map_err(|source| (0, sink_fault(source)))?;
        let mut rows = Rows::new(options, &budget, made);
        while let Some((first_row, batch)) = lock(source).take() {
            let pushed = guarded(|| {
                let batch = project(&batch, &plan)?;
                push_batch(&batch, &plan, 0, first_row, &mut rows)
            });
            pushed.map_err(|fault| (first_row, fault))?;
        }
        let (count, skipped) = (rows.count, rows.skipped);
        let finished = rows.sink.finish();
        finished.map_err(|source| (u64::MAX, sink_fault(source)))?;
        Ok((count, skipped))
    })
}

/// Passes the rows of the bundles of [`crate::assemble`] to the sinks, one sink per thread, in no particular order.
/// Blocks until everything is read.
///
/// # Errors
/// Like [`ingest_batches`]; also for a damaged bundle.
pub fn ingest_bundles<'s>(
    batches: Batches,
    threads: usize,
    make_sink: &(dyn Fn() -> Result<Box<dyn RowSink + 's>, SinkError> + Sync),
) -> Result<Summary, Error> {
    let damaged = |what: &str| Fault::file(format!("a bundle of rows is damaged: {what}"));
    run_on_threads(batches, threads, &|source| {
        let mut sink = make_sink().map_err(|source| (0, sink_fault(source)))?;
        let mut count = 0;
        while let Some((first, batch)) = lock(source).take() {
            let pushed = guarded(|| {
                let column = batch.column_by_name(BUNDLE_COLUMN);
                let column = column.ok_or_else(|| damaged("there is no column of bundles"))?;
                let shape = FieldShape::default();
                for row in 0..batch.num_rows() {
                    let bundle = match value_of(&shape, column, row) {
                        Ok(Value::Bytes(bundle)) => bundle,
                        _ => return Err(damaged("it is no string of bytes")),
                    };
                    // A row has at least eight bytes, so no bundle has 2^32 rows.
                    let first_seq = (first + row as u64) << 32;
                    for (seq, row) in (first_seq..).zip(rows_of_bundle(bundle)) {
                        let (key, value) = row.map_err(|error| damaged(error.0))?;
                        sink.row(seq, key, value).map_err(sink_fault)?;
                        count += 1;
                    }
                    sink.check().map_err(sink_fault)?;
                }
                Ok(())
            });
            pushed.map_err(|fault| (first, fault))?;
        }
        let finished = sink.finish();
        finished.map_err(|source| (u64::MAX, sink_fault(source)))?;
        Ok((count, 0))
    })
}

/// The work of one thread on its batches: returns the numbers of rows passed on and skipped, or a fault and its
/// position.
type Work<'w> = dyn Fn(&Mutex<Source>) -> Result<(u64, u64), (u64, Fault)> + Sync + 'w;

fn run_on_threads(batches: Batches, threads: usize, work: &Work<'_>) -> Result<Summary, Error> {
    let source = Mutex::new(Source {
        batches,
        first_row: 0,
        first_error: None,
    });
    let stopping = || match work(&source) {
        Ok(counts) => counts,
        Err((at, fault)) => {
            lock(&source).fail(at, fault.into_error(NAME));
            (0, 0)
        }
    };
    let done: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(stopping)).collect();
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    });
    if let Some((_, error)) = lock(&source).first_error.take() {
        return Err(error);
    }
    Ok(Summary {
        files: 1,
        rows: done.iter().map(|(rows, _)| rows).sum(),
        skipped: done.iter().map(|(_, skipped)| skipped).sum(),
        ..Summary::default()
    })
}

/// The remaining batches, and the first fault.
struct Source {
    batches: Batches,
    first_row: u64,
    first_error: Option<(u64, Error)>,
}

impl Source {
    /// Returns the next batch and the number of its first row; `None` after a fault.
    fn take(&mut self) -> Option<(u64, RecordBatch)> {
        if self.first_error.is_some() {
            return None;
        }
        match self.batches.next()? {
            Ok(batch) => {
                let first_row = self.first_row;
                self.first_row += batch.num_rows() as u64;
                Some((first_row, batch))
            }
            Err(error) => {
                self.fail(self.first_row, error);
                None
            }
        }
    }

    /// Keeps the fault that is first in row order.
    fn fail(&mut self, at: u64, error: Error) {
        if self
            .first_error
            .as_ref()
            .is_none_or(|(first, _)| at < *first)
        {
            self.first_error = Some((at, error));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
