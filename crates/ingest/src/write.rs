//! Writes Parquet: nullable text columns, row by row.
//!
//! Rows are buffered up to a number and size, and then encoded; a row group is written when it is large enough. The
//! memory does not depend on the number of rows.

use std::io::Write;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

/// Limits for rows that are encoded together.
const BATCH_ROWS: usize = 4096;
const BATCH_BYTES: usize = 4 << 20;
/// The encoded size at which a row group ends.
const GROUP_BYTES: usize = 32 << 20;

/// A Parquet file under construction. It is valid only after [`ParquetWriter::finish`].
pub struct ParquetWriter<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: Arc<Schema>,
    columns: Vec<StringBuilder>,
    rows: usize,
    bytes: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// # Errors
    /// If `out` fails, or two columns have the same name.
    pub fn new(out: W, columns: &[String]) -> Result<ParquetWriter<W>, String> {
        let mut names: Vec<&String> = columns.iter().collect();
        names.sort();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two columns are named {:?}", twice[0]));
        }
        let fields: Vec<Field> = columns
            .iter()
            .map(|name| Field::new(name, DataType::Utf8, true))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let level = ZstdLevel::try_new(3).map_err(format_error)?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(level))
            .build();
        let writer =
            ArrowWriter::try_new(out, schema.clone(), Some(properties)).map_err(format_error)?;
        Ok(ParquetWriter {
            writer,
            schema,
            columns: columns.iter().map(|_| StringBuilder::new()).collect(),
            rows: 0,
            bytes: 0,
        })
    }

    /// Adds a row: one cell per column.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn row<'a>(
        &mut self,
        cells: impl ExactSizeIterator<Item = Option<&'a str>>,
    ) -> Result<(), String> {
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            self.bytes += cell.map_or(1, str::len);
            column.append_option(cell);
        }
        self.rows += 1;
        if self.rows >= BATCH_ROWS || self.bytes >= BATCH_BYTES {
            self.encode()
        } else {
            Ok(())
        }
    }

    fn encode(&mut self) -> Result<(), String> {
        if self.rows == 0 {
            return Ok(());
        }
        let arrays: Vec<ArrayRef> = self
            .columns
            .iter_mut()
            .map(|column| Arc::new(column.finish()) as ArrayRef)
            .collect();
        let batch = RecordBatch::try_new(self.schema.clone(), arrays);
        let batch = batch.map_err(|error| error.to_string())?;
        self.writer.write(&batch).map_err(format_error)?;
        (self.rows, self.bytes) = (0, 0);
        if self.writer.in_progress_size() >= GROUP_BYTES {
            self.writer.flush().map_err(format_error)?;
        }
        Ok(())
    }

    /// Writes the rest and the footer; returns `out`.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn finish(mut self) -> Result<W, String> {
        self.encode()?;
        self.writer.into_inner().map_err(format_error)
    }
}

fn format_error(error: ParquetError) -> String {
    match error {
        ParquetError::External(source) => source.to_string(),
        other => other.to_string(),
    }
}
