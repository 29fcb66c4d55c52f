//! Corrects and annotates a Parquet file's schema and footer before decoding.
//!
//! The leaves of the Arrow schema, in order, are the file's columns: this maps annotations of a column to its field.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::errors::ParquetError;
use parquet::file::metadata::{FileMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor, Type};

use crate::cell::{REFUSED_NOTE, UUID_NOTE, with_note};

/// A file's metadata, prepared for reading.
pub(crate) struct FileSchema {
    pub metadata: ArrowReaderMetadata,
    /// The columns, annotated with what the file declares beyond their Arrow types.
    pub fields: Fields,
    /// True if text and bytes are read as views, so that rows share the bytes of a page or a dictionary.
    pub is_viewed: bool,
}

impl FileSchema {
    pub fn of(loaded: &ArrowReaderMetadata) -> Result<FileSchema, ParquetError> {
        let file = with_corrected_row_count(with_corrected_offsets(loaded.metadata()));
        let plain = ArrowReaderMetadata::try_new(Arc::clone(&file), ArrowReaderOptions::new())?;
        let viewed = ArrowReaderOptions::new().with_schema(viewed_schema(&plain));
        let viewed = ArrowReaderMetadata::try_new(file, viewed);
        let (metadata, is_viewed) = match viewed {
            Ok(viewed) => (viewed, true),
            Err(_) => (plain, false),
        };
        Ok(FileSchema {
            fields: annotate_fields(&metadata),
            metadata,
            is_viewed,
        })
    }
}

/// Corrects dictionary offsets. Some writers declare that a column's dictionary begins at byte 0, which is
/// impossible: the column then begins with its first page, as in other readers.
fn with_corrected_offsets(file: &Arc<ParquetMetaData>) -> Arc<ParquetMetaData> {
    let is_sound = |group: &RowGroupMetaData| {
        group.columns().iter().all(|column| {
            column
                .dictionary_page_offset()
                .is_none_or(|at| 0 < at && at < column.data_page_offset())
        })
    };
    if file.row_groups().iter().all(is_sound) {
        return Arc::clone(file);
    }
    let groups = file.row_groups().iter().map(|group| {
        let columns = group.columns().iter().map(|column| {
            let offset = column
                .dictionary_page_offset()
                .filter(|at| 0 < *at && *at < column.data_page_offset());
            column
                .clone()
                .into_builder()
                .set_dictionary_page_offset(offset)
                .build()
        });
        let columns = columns.collect::<Result<Vec<_>, _>>().ok()?;
        group
            .clone()
            .into_builder()
            .set_column_metadata(columns)
            .build()
            .ok()
    });
    match groups.collect::<Option<Vec<_>>>() {
        Some(groups) => Arc::new(
            file.as_ref()
                .clone()
                .into_builder()
                .set_row_groups(groups)
                .build(),
        ),
        None => Arc::clone(file),
    }
}

/// Replaces the row count of the footer by that of its row groups. Early writers in Rust left it 0, and the decoder
/// returns no more rows in a batch than it declares.
fn with_corrected_row_count(file: Arc<ParquetMetaData>) -> Arc<ParquetMetaData> {
    let counts = file
        .row_groups()
        .iter()
        .map(|group| group.num_rows().max(0));
    let rows = counts.fold(0, i64::saturating_add);
    let old = file.file_metadata();
    if old.num_rows() == rows {
        return file;
    }
    let new = FileMetaData::new(
        old.version(),
        rows,
        old.created_by().map(str::to_owned),
        old.key_value_metadata().cloned(),
        old.schema_descr_ptr(),
        old.column_orders().cloned(),
    );
    Arc::new(ParquetMetaData::new(new, file.row_groups().to_vec()))
}

/// Iterates over the leaves of fields together with the file's columns.
struct Leaves<'s> {
    columns: &'s SchemaDescriptor,
    next: usize,
}

impl Leaves<'_> {
    /// Rebuilds a field and applies `change` to every leaf.
    fn map(&mut self, field: &Field, change: &dyn Fn(&Field, &ColumnDescriptor) -> Field) -> Field {
        let mut inner = |item: &FieldRef| Arc::new(self.map(item, change));
        let data_type = match field.data_type() {
            DataType::List(item) => DataType::List(inner(item)),
            DataType::LargeList(item) => DataType::LargeList(inner(item)),
            DataType::FixedSizeList(item, size) => DataType::FixedSizeList(inner(item), *size),
            DataType::ListView(item) => DataType::ListView(inner(item)),
            DataType::LargeListView(item) => DataType::LargeListView(inner(item)),
            DataType::Map(entries, is_sorted) => DataType::Map(inner(entries), *is_sorted),
            DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
            _ => {
                let place = self.next;
                self.next += 1;
                if place >= self.columns.num_columns() {
                    return field.clone();
                }
                return change(field, &self.columns.column(place));
            }
        };
        field.clone().with_data_type(data_type)
    }
}

/// Returns the file's schema with text and bytes as views, dictionaries as their values, and INT96 instants in
/// microseconds, whose range includes every date.
fn viewed_schema(metadata: &ArrowReaderMetadata) -> SchemaRef {
    let mut leaves = Leaves {
        columns: metadata.parquet_schema(),
        next: 0,
    };
    let change = |field: &Field, column: &ColumnDescriptor| {
        let data_type = match field.data_type() {
            DataType::Timestamp(TimeUnit::Nanosecond, zone)
                if column.physical_type() == PhysicalType::INT96 =>
            {
                DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            other => viewed_type(other),
        };
        field.clone().with_data_type(data_type)
    };
    let fields = metadata.schema().fields().iter();
    let fields = fields.map(|field| leaves.map(field, &change));
    Arc::new(Schema::new_with_metadata(
        fields.collect::<Vec<_>>(),
        metadata.schema().metadata().clone(),
    ))
}

fn viewed_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, values) => viewed_type(values),
        DataType::RunEndEncoded(_, values) => viewed_type(values.data_type()),
        other => other.clone(),
    }
}

fn annotate_fields(metadata: &ArrowReaderMetadata) -> Fields {
    let mut leaves = Leaves {
        columns: metadata.parquet_schema(),
        next: 0,
    };
    let roots = metadata.parquet_schema().root_schema().get_fields();
    let fields = metadata.schema().fields().iter().enumerate();
    let fields = fields.map(|(index, field)| {
        let field = leaves.map(field, &annotate);
        match roots.get(index) {
            Some(root) if holds_variant(root) => with_note(
                &field,
                (
                    REFUSED_NOTE,
                    "it contains values of the type Variant; cast them to text or JSON when writing the file",
                ),
            ),
            _ => field,
        }
    });
    fields.collect()
}

/// Annotates a leaf with what its Arrow type does not express.
fn annotate(field: &Field, column: &ColumnDescriptor) -> Field {
    let is_uuid = matches!(column.logical_type_ref(), Some(LogicalType::Uuid));
    if is_uuid {
        return with_note(field, UUID_NOTE);
    }
    if column.converted_type() == ConvertedType::INTERVAL {
        // The decoder returns its days without its months, or its months without its days.
        return with_note(
            field,
            (
                REFUSED_NOTE,
                "it is a Parquet INTERVAL, whose months would be lost; cast it to text where the file is written",
            ),
        );
    }
    field.clone()
}

fn holds_variant(node: &Type) -> bool {
    let info = node.get_basic_info();
    matches!(info.logical_type_ref(), Some(LogicalType::Variant { .. }))
        || (node.is_group() && node.get_fields().iter().any(|field| holds_variant(field)))
}
