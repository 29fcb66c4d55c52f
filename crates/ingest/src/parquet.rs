//! Parquet: a task per row group, and only the columns that are needed.
//!
//! Invariants:
//! 1. A row group is decoded only when what its pages say to need fits the memory budget, and
//!    waits for other threads' row groups where it does not yet.
//! 2. A row group gives as many rows as its footer says, or the file is refused.

use std::fs::File;
use std::io::{BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Type as PhysicalType;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::error::{At, Fault, one_line};
use crate::options::InputOptions;
use crate::pages::walk;
use crate::plan::Plan;
use crate::record_batch::push_batch;
use crate::rows::Rows;
use crate::run::{Task, Tasks};

/// A file that threads read at their own offsets.
#[derive(Clone)]
pub(crate) struct FileReader {
    file: Arc<File>,
    size: u64,
}

impl FileReader {
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn read_at(&self, at: u64, length: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }
}

impl Length for FileReader {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for FileReader {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(From {
            file: Arc::clone(&self.file),
            at: start,
        }))
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
        Ok(Bytes::from(self.read_at(start, length)?))
    }
}

/// A file from an offset on.
pub(crate) struct From {
    file: Arc<File>,
    at: u64,
}

impl Read for From {
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
    plan: Plan,
}

impl ParquetFile {
    pub fn open(file: File, options: &InputOptions) -> Result<ParquetFile, Fault> {
        let size = file
            .metadata()
            .map_err(|e| Fault::file(format!("it cannot be read: {e}")))?
            .len();
        let reader = FileReader {
            file: Arc::new(file),
            size,
        };
        check_footer_size(&reader, options.memory.0)?;
        let refused = |e: ParquetError| {
            Fault::file(format!(
                "it is not a Parquet file that can be read: {}",
                one_line(&e)
            ))
        };
        let plain =
            ArrowReaderMetadata::load(&reader, ArrowReaderOptions::new()).map_err(refused)?;
        // Views share the bytes of a page between rows, so that a repeated long value is not copied per row.
        let viewed = ArrowReaderOptions::new().with_schema(viewed_schema(&plain));
        let metadata = ArrowReaderMetadata::try_new(Arc::clone(plain.metadata()), viewed);
        let metadata = metadata.unwrap_or(plain);
        let names = metadata
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        let plan = Plan::new(names, options)?;
        Ok(ParquetFile {
            shared: Arc::new(Shared {
                reader,
                metadata,
                plan,
            }),
            next_group: 0,
            next_row: 0,
        })
    }
}

/// The footer is read in whole: refuse one that alone would not fit, and say what is no Parquet at all.
fn check_footer_size(reader: &FileReader, memory: u64) -> Result<(), Fault> {
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
    // Decoded, a footer takes several times its bytes.
    if length.saturating_mul(4) > memory.max(64 << 20) {
        return Err(Fault::file(format!(
            "its footer of {length} bytes does not fit the memory; raise --memory"
        )));
    }
    Ok(())
}

/// The file's schema with text and bytes as views, dictionaries as their values, and INT96 instants in microseconds, whose
/// range holds every date.
fn viewed_schema(metadata: &ArrowReaderMetadata) -> SchemaRef {
    let descriptor = metadata.parquet_schema();
    let fields = metadata
        .schema()
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let is_int96 = (0..descriptor.num_columns()).any(|leaf| {
                descriptor.get_column_root_idx(leaf) == index
                    && descriptor.column(leaf).path().parts().len() == 1
                    && descriptor.column(leaf).physical_type() == PhysicalType::INT96
            });
            match field.data_type() {
                DataType::Timestamp(TimeUnit::Nanosecond, zone) if is_int96 => Arc::new(
                    field
                        .as_ref()
                        .clone()
                        .with_data_type(DataType::Timestamp(TimeUnit::Microsecond, zone.clone())),
                ),
                _ => viewed_field(field),
            }
        });
    Arc::new(Schema::new_with_metadata(
        fields.collect::<Fields>(),
        metadata.schema().metadata().clone(),
    ))
}

fn viewed_field(field: &Arc<Field>) -> Arc<Field> {
    Arc::new(
        field
            .as_ref()
            .clone()
            .with_data_type(viewed_type(field.data_type())),
    )
}

fn viewed_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, value) => viewed_type(value),
        DataType::List(item) => DataType::List(viewed_field(item)),
        DataType::LargeList(item) => DataType::LargeList(viewed_field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(viewed_field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(viewed_field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(viewed_field).collect()),
        other => other.clone(),
    }
}

impl Tasks for ParquetFile {
    fn next(&mut self, _buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        let metadata = self.shared.metadata.metadata();
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

const BATCH_ROWS: usize = 1024;
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
        } = self.shared.as_ref();
        let (bytes, batch_rows) = self.needs(rows.budget.total()).map_err(Fault::file)?;
        let budget = rows.budget;
        let _claim = budget.claim(bytes).ok_or_else(|| {
            Fault::file(format!(
                "its pages unpack to about {bytes} bytes at once and the memory is {}; raise --memory, or write the file with smaller pages",
                budget.total()
            ))
        })?;
        let mask = ProjectionMask::roots(metadata.parquet_schema(), plan.columns());
        let batches =
            ParquetRecordBatchReaderBuilder::new_with_metadata(reader.clone(), metadata.clone())
                .with_row_groups(vec![self.group])
                .with_projection(mask)
                .with_batch_size(batch_rows)
                .build()
                .map_err(|e| damaged(&e))?;
        let mut done = 0;
        for batch in batches {
            let batch = batch.map_err(|e| damaged(&e))?;
            push_batch(&batch, plan, file, self.first_row + done, rows)?;
            done += batch.num_rows() as u64;
        }
        if done != self.row_count {
            return Err(Fault::file(format!(
                "it gave {done} rows where its footer says {}; the file is damaged, write it again",
                self.row_count
            )));
        }
        Ok(())
    }

    /// The bytes that decoding holds at once, and a number of rows per batch that keeps fixed-size values small.
    fn needs(&self, budget: u64) -> Result<(u64, usize), String> {
        let Shared {
            reader,
            metadata,
            plan,
        } = self.shared.as_ref();
        let schema = metadata.parquet_schema();
        let group = metadata.metadata().row_group(self.group);
        let wanted = plan.columns();
        let (mut bytes, mut row_bytes) = (0_u64, 0_u64);
        for (leaf, chunk) in group.columns().iter().enumerate() {
            if !wanted.contains(&schema.get_column_root_idx(leaf)) {
                continue;
            }
            let column = schema.column(leaf);
            let (begin, length) = chunk.byte_range();
            let values = u64::try_from(chunk.num_values())
                .map_err(|_| "it has a negative number of values")?;
            let named = |reason: String| format!("column {:?}: {reason}", column.path().string());
            let needs = walk(reader, begin, length, values).map_err(named)?;
            // A page and its successor may live at once, since a batch may span both.
            let mut here =
                needs.packed_bytes_max + 2 * needs.page_bytes_max + needs.dictionary_bytes;
            if column.max_rep_level() > 0 {
                // A row of a list may hold a whole page's values, however few bytes encode them.
                here = here.saturating_add(needs.page_values_max.saturating_mul(16));
            }
            if here > budget {
                return Err(named(format!(
                    "a page unpacks to {} bytes and the memory is {budget}; raise --memory, or write the file with smaller pages",
                    needs.page_bytes_max.max(needs.dictionary_bytes)
                )));
            }
            bytes = bytes.saturating_add(here);
            row_bytes += match column.physical_type() {
                PhysicalType::FIXED_LEN_BYTE_ARRAY => {
                    u64::try_from(column.type_length()).unwrap_or(0)
                }
                _ => 16,
            };
        }
        let rows = (BATCH_BYTES / row_bytes.max(1)).clamp(1, BATCH_ROWS as u64);
        Ok((bytes, rows as usize))
    }
}

fn damaged(error: &dyn std::fmt::Display) -> Fault {
    Fault::file(format!(
        "it cannot be decoded: {}; the file is damaged, write it again",
        one_line(error)
    ))
}
