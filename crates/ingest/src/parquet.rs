//! Parquet: one task per row group; only the required columns are read.
//!
//! Invariants:
//! 1. A row group is decoded only when the memory that its pages declare fits the budget; until then it waits for the
//!    row groups of other threads. The batch size keeps the pages of a batch, and the values to copy, within the
//!    budget. For lists in pages that do not declare their rows, it is estimated from the average.
//! 2. A row group must yield as many rows as its footer declares, or the file is rejected.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_remote::Location;
use larder_types::ByteSize;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use parquet::schema::types::ColumnDescriptor;

use crate::error::{At, Fault, decode_fault};
use crate::options::InputOptions;
use crate::pages::{BATCH_ROWS, ChunkNeeds, measure_chunk};
use crate::parquet_footer::known_fields;
use crate::parquet_remote::RemoteFile;
use crate::parquet_schema::FileSchema;
use crate::plan::FolderColumns;
use crate::record_batch::{BatchPlan, push_batch};
use crate::rows::Rows;
use crate::run::{Task, Tasks};

/// A file that threads read at independent offsets.
#[derive(Clone)]
pub(crate) struct FileReader {
    file: Arc<File>,
    size: u64,
    /// The counter for bytes of a file that was not copied.
    bytes_read: Option<Arc<AtomicU64>>,
}

impl FileReader {
    pub fn new(file: File) -> Result<FileReader, Fault> {
        let meta = file.metadata();
        let meta = meta.map_err(|e| Fault::file(format!("it cannot be read: {e}")))?;
        Ok(FileReader {
            file: Arc::new(file),
            size: meta.len(),
            bytes_read: None,
        })
    }

    /// Makes [`FileReader::count`] add to `bytes_read`.
    pub fn counted(self, bytes_read: &Arc<AtomicU64>) -> FileReader {
        FileReader {
            bytes_read: Some(Arc::clone(bytes_read)),
            ..self
        }
    }

    /// Counts bytes that were actually read, not only inspected.
    pub fn count(&self, bytes: u64) {
        if let Some(all) = &self.bytes_read {
            all.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn read_at(&self, at: u64, length: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    /// Returns a reader from `at` to the end.
    pub fn read_from(&self, at: u64) -> FileCursor {
        FileCursor {
            file: Arc::clone(&self.file),
            at,
        }
    }
}

impl Length for FileReader {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for FileReader {
    type T = BufReader<FileCursor>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(self.read_from(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if start
            .checked_add(length as u64)
            .is_none_or(|end| end > self.size)
        {
            return Err(ParquetError::EOF(format!(
                "it ends before byte {start} + {length}"
            )));
        }
        let bytes = self.read_at(start, length)?;
        self.count(length as u64);
        Ok(Bytes::from(bytes))
    }
}

/// A file from an offset on.
pub(crate) struct FileCursor {
    file: Arc<File>,
    at: u64,
}

impl Read for FileCursor {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read_at(out, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

pub(crate) struct ParquetFile {
    shared: Arc<Shared>,
    next_group: usize,
    next_row: u64,
}

struct Shared {
    reader: FileReader,
    metadata: ArrowReaderMetadata,
    is_viewed: bool,
    plan: BatchPlan,
}

impl ParquetFile {
    pub fn open(
        reader: FileReader,
        folder: &FolderColumns,
        options: &InputOptions,
    ) -> Result<ParquetFile, Fault> {
        let footer_size = check_footer_size(&reader, options.memory.0)?;
        ParquetFile::of(reader, footer_size, folder, options)
    }

    /// Opens a remote file, of which only the required parts are copied.
    pub fn open_remote(
        location: &Location,
        bytes_read: &AtomicU64,
        folder: &FolderColumns,
        options: &InputOptions,
    ) -> Result<ParquetFile, Fault> {
        let elsewhere = RemoteFile::new(location, bytes_read)?;
        let reader = FileReader::new(elsewhere.file()?)?;
        let footer_size = check_footer_size(&reader, options.memory.0)?;
        elsewhere.copy_footer(footer_size)?;
        let file = ParquetFile::of(reader, footer_size, folder, options)?;
        let Shared { metadata, plan, .. } = file.shared.as_ref();
        elsewhere.copy_columns(metadata.metadata(), &plan.columns())?;
        Ok(file)
    }

    fn of(
        reader: FileReader,
        footer_size: u64,
        folder: &FolderColumns,
        options: &InputOptions,
    ) -> Result<ParquetFile, Fault> {
        let refused = |e: ParquetError| decode_fault(&e);
        let loaded = load(&reader, footer_size).map_err(refused)?;
        let schema = FileSchema::of(&loaded).map_err(refused)?;
        let plan = BatchPlan::new(&schema.fields, folder, options)?;
        Ok(ParquetFile {
            shared: Arc::new(Shared {
                reader,
                metadata: schema.metadata,
                is_viewed: schema.is_viewed,
                plan,
            }),
            next_group: 0,
            next_row: 0,
        })
    }
}

/// Decodes the footer; if that fails, retries without the fields that the format does not define.
fn load(reader: &FileReader, footer_size: u64) -> Result<ArrowReaderMetadata, ParquetError> {
    let error = match ArrowReaderMetadata::load(reader, ArrowReaderOptions::new()) {
        Ok(loaded) => return Ok(loaded),
        Err(error) => error,
    };
    let read = || {
        let begin = reader.size.checked_sub(footer_size.checked_add(8)?)?;
        let footer = reader.read_at(begin, footer_size as usize).ok()?;
        let known = known_fields(&footer)?;
        let metadata = ParquetMetaDataReader::decode_metadata(&known).ok()?;
        ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new()).ok()
    };
    read().ok_or(error)
}

/// Returns the footer's size. The footer is read completely, so one that exceeds the memory is rejected, and so is a
/// file that is not Parquet.
fn check_footer_size(reader: &FileReader, memory: u64) -> Result<u64, Fault> {
    let not_parquet =
        || Fault::file("it does not end as a Parquet file does; is it cut off, or another format?");
    if reader.size < 12 {
        return Err(not_parquet());
    }
    let tail = reader
        .read_at(reader.size - 8, 8)
        .map_err(|e| Fault::file(format!("it cannot be read: {e}")))?;
    let (length, magic) = tail.split_at(4);
    if magic == b"PARE" {
        return Err(Fault::file("it is encrypted; decrypt it first"));
    }
    if magic != b"PAR1" {
        return Err(not_parquet());
    }
    let length = u64::from(u32::from_le_bytes([
        length[0], length[1], length[2], length[3],
    ]));
    // A decoded footer takes several times its size.
    if length.saturating_mul(4) > memory.max(64 << 20) {
        return Err(Fault::memory(
            format!("its footer of {length} bytes takes four times as much"),
            Some(length.saturating_mul(4)),
            memory.max(64 << 20),
        ));
    }
    Ok(length)
}

impl Tasks for ParquetFile {
    fn next(&mut self, _buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        let metadata = self.shared.metadata.metadata();
        // A row group without rows may have columns without pages, which decoders treat as damage.
        while metadata
            .row_groups()
            .get(self.next_group)
            .is_some_and(|group| group.num_rows() == 0)
        {
            self.next_group += 1;
        }
        if self.next_group >= metadata.num_row_groups() {
            return Ok(None);
        }
        let group = self.next_group;
        let row_count = metadata.row_group(group).num_rows();
        let at = At::RowGroup(group as u64 + 1);
        let row_count = u64::try_from(row_count)
            .map_err(|_| Fault::data(at, "it has a negative number of rows"))?;
        let task = RowGroupTask {
            shared: Arc::clone(&self.shared),
            group,
            first_row: self.next_row,
            row_count,
        };
        self.next_group += 1;
        self.next_row += row_count;
        Ok(Some((group as u64, Box::new(task))))
    }
}

struct RowGroupTask {
    shared: Arc<Shared>,
    group: usize,
    first_row: u64,
    row_count: u64,
}

/// The limit for the fixed-size values of a batch, and for its pages in addition to the unavoidable ones.
const BATCH_BYTES: u64 = 16 << 20;

impl Task for RowGroupTask {
    fn run(self: Box<Self>, file: u64, _data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let at = At::RowGroup(self.group as u64 + 1);
        self.read(file, rows).map_err(|fault| fault.or_at(at))
    }
}

impl RowGroupTask {
    fn read(&self, file: u64, rows: &mut Rows<'_>) -> Result<(), Fault> {
        let Shared {
            reader,
            metadata,
            plan,
            ..
        } = self.shared.as_ref();
        let budget = rows.budget;
        let BatchNeeds { bytes, batch_rows } = self.needs(budget.total())?;
        let _claim = budget.claim(bytes).ok_or_else(|| {
            Fault::memory(
                format!(
                    "its pages have an unpacked size of about {}, which are needed together",
                    ByteSize(bytes)
                ),
                Some(bytes),
                budget.total(),
            )
        })?;
        let mask = ProjectionMask::roots(metadata.parquet_schema(), plan.columns());
        let batches =
            ParquetRecordBatchReaderBuilder::new_with_metadata(reader.clone(), metadata.clone())
                .with_row_groups(vec![self.group])
                .with_projection(mask)
                .with_batch_size(batch_rows)
                .build()
                .map_err(|e| decode_fault(&e))?;
        let mut done = 0;
        for batch in batches {
            let batch = batch.map_err(|e| decode_fault(&e))?;
            push_batch(&batch, plan, file, self.first_row + done, rows)?;
            done += batch.num_rows() as u64;
        }
        if done != self.row_count {
            return Err(Fault::file(format!(
                "it contains {done} rows, but its footer declares {}; the file is damaged, write it again",
                self.row_count
            )));
        }
        Ok(())
    }

    /// Returns the memory for decoding, with batches as large as memory permits and speed requires.
    fn needs(&self, budget: u64) -> Result<BatchNeeds, Fault> {
        let Shared {
            reader,
            metadata,
            plan,
            is_viewed,
        } = self.shared.as_ref();
        let schema = metadata.parquet_schema();
        let group = metadata.metadata().row_group(self.group);
        let wanted = plan.columns();
        let mut columns = Vec::new();
        for (leaf, chunk) in group.columns().iter().enumerate() {
            if !wanted.contains(&schema.get_column_root_idx(leaf)) {
                continue;
            }
            let descriptor = schema.column(leaf);
            let named = |reason: &str| {
                Fault::file(format!("column {:?}: {reason}", descriptor.path().string()))
            };
            let values = u64::try_from(chunk.num_values())
                .map_err(|_| named("it has a negative number of values"))?;
            let is_flat = descriptor.max_rep_level() == 0;
            let needs = measure_chunk(reader, chunk.byte_range(), values, is_flat)
                .map_err(|reason| named(&reason))?;
            let column = ColumnNeeds::of(&descriptor, chunk, needs, *is_viewed, self.row_count);
            let (unpacked, _) = column.bytes(BATCH_SIZES - 1, budget);
            let least = unpacked.saturating_add(column.packed_bytes());
            if least > budget {
                return Err(Fault::memory(
                    format!(
                        "column {:?}: its pages have an unpacked size of about {}, which are needed together",
                        descriptor.path().string(),
                        ByteSize(least)
                    ),
                    Some(least),
                    budget,
                ));
            }
            columns.push(column);
        }
        let least = total(&columns, BATCH_SIZES - 1, budget).bytes;
        let enough = least
            .saturating_mul(2)
            .saturating_add(BATCH_BYTES)
            .min(budget);
        let sizes = (0..BATCH_SIZES).map(|size| total(&columns, size, budget));
        let mut sizes = sizes.filter(|needs| needs.bytes <= enough);
        Ok(sizes
            .next()
            .unwrap_or_else(|| total(&columns, BATCH_SIZES - 1, budget)))
    }
}

const BATCH_SIZES: usize = BATCH_ROWS.len();

struct BatchNeeds {
    bytes: u64,
    batch_rows: usize,
}

/// Returns the memory of batches of `BATCH_ROWS[size]` rows, or fewer if values are large, over all columns.
fn total(columns: &[ColumnNeeds], size: usize, budget: u64) -> BatchNeeds {
    let row_bytes = columns.iter().map(|column| column.row_bytes).sum::<u64>();
    let mut batch_rows = (BATCH_BYTES / row_bytes.max(1)).clamp(1, BATCH_ROWS[size]);
    // Columns are decoded one after another, so there is one packed page at a time.
    let mut bytes = columns
        .iter()
        .map(ColumnNeeds::packed_bytes)
        .max()
        .unwrap_or(0);
    for column in columns {
        let (column_bytes, rows_max) = column.bytes(size, budget);
        bytes = bytes.saturating_add(column_bytes);
        batch_rows = batch_rows.min(rows_max);
    }
    BatchNeeds {
        bytes,
        batch_rows: batch_rows as usize,
    }
}

struct ColumnNeeds {
    needs: ChunkNeeds,
    /// True if the column has no lists. To find the end of a row with a list, the next page is read too.
    is_flat: bool,
    is_packed: bool,
    /// The size of one value in an array, if it is known.
    value_bytes: u64,
    /// The same for a row of a flat column.
    row_bytes: u64,
    /// The maximum length of a copied value; 0 if values are views.
    copied_bytes_max: u64,
    row_count: u64,
}

impl ColumnNeeds {
    fn of(
        descriptor: &ColumnDescriptor,
        chunk: &ColumnChunkMetaData,
        needs: ChunkNeeds,
        is_viewed: bool,
        row_count: u64,
    ) -> ColumnNeeds {
        let value_bytes = match descriptor.physical_type() {
            PhysicalType::FIXED_LEN_BYTE_ARRAY => {
                u64::try_from(descriptor.type_length()).unwrap_or(0).max(16)
            }
            _ => 16,
        };
        let is_bytes = descriptor.physical_type() == PhysicalType::BYTE_ARRAY;
        let copied_bytes_max = match is_bytes {
            true if !is_viewed => needs.page_bytes_max.max(needs.dictionary_bytes),
            true if needs.has_shared_prefixes => needs.page_bytes_max,
            _ => 0,
        };
        ColumnNeeds {
            is_flat: descriptor.max_rep_level() == 0,
            is_packed: chunk.compression() != Compression::UNCOMPRESSED,
            value_bytes,
            row_bytes: value_bytes,
            copied_bytes_max,
            needs,
            row_count,
        }
    }

    /// Returns the size of a packed page while it is unpacked.
    fn packed_bytes(&self) -> u64 {
        if self.is_packed {
            self.needs.packed_bytes_max
        } else {
            0
        }
    }

    /// Returns the unpacked size of this column in batches of a size, and the maximum number of rows in a batch.
    fn bytes(&self, size: usize, budget: u64) -> (u64, u64) {
        let needs = &self.needs;
        let mut rows_max = BATCH_ROWS[size];
        let pages = match &needs.windows {
            Some(windows) => windows.bytes_max(size),
            // Rows of lists, in pages that do not declare their rows: as many rows as take about the size of a batch.
            None => {
                let share = BATCH_BYTES.max(needs.page_bytes_max).min(needs.pages_bytes);
                let rows = u128::from(self.row_count) * u128::from(share)
                    / u128::from(needs.pages_bytes.max(1));
                rows_max = rows_max.min((rows as u64).max(1));
                share
            }
        };
        let mut bytes = pages.saturating_add(needs.dictionary_bytes);
        if !self.is_flat {
            // A row of a list may have all values of a page, however few bytes encode them.
            let values = needs.page_values_max.saturating_mul(self.value_bytes);
            bytes = bytes
                .saturating_add(needs.page_bytes_max)
                .saturating_add(values);
        }
        if let Some(rows) = (budget / 8).checked_div(self.copied_bytes_max) {
            rows_max = rows.clamp(1, rows_max);
            bytes = bytes.saturating_add(rows_max.saturating_mul(self.copied_bytes_max));
        }
        (bytes, rows_max)
    }
}
