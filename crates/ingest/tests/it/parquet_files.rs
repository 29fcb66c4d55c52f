//! Parquet files in the style of other and older writers, written column by column.

use std::sync::Arc;

use larder_ingest::ValueSpec;
use larder_types::ByteSize;
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use crate::support::{column, options, rows_of, texts};

fn file(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

/// Returns people with phones, in a repeated group without a list annotation: the output of parquet-mr's object
/// model.
fn phones() -> Vec<u8> {
    let schema = "message user {
        required int32 id;
        optional group phoneNumbers {
            repeated group phone { required int64 number; optional binary kind (UTF8); }
        }
    }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(
        &mut bytes,
        schema,
        Arc::new(WriterProperties::builder().build()),
    )
    .unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut next = group.next_column().unwrap().unwrap();
    let typed = next.typed::<Int32Type>();
    typed.write_batch(&[1, 2, 3, 4], None, None).unwrap();
    next.close().unwrap();
    // No list; an empty one; one number; three, of which one has no kind.
    let repeated = [0, 0, 0, 0, 1, 1];
    let mut next = group.next_column().unwrap().unwrap();
    let typed = next.typed::<Int64Type>();
    let numbers = [5_555, 1_111, 2_222, 3_333];
    typed
        .write_batch(&numbers, Some(&[0, 1, 2, 2, 2, 2]), Some(&repeated))
        .unwrap();
    next.close().unwrap();
    let mut next = group.next_column().unwrap().unwrap();
    let typed = next.typed::<ByteArrayType>();
    let kinds = ["home", "mobile"].map(ByteArray::from);
    typed
        .write_batch(
            &kinds,
            Some(&[0, 1, 2, 3, 2, 3].map(|l: i16| if l == 2 { 2 } else { l })),
            Some(&repeated),
        )
        .unwrap();
    next.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

const PHONES: [&str; 4] = [
    r#"1={"phoneNumbers":null}"#,
    r#"2={"phoneNumbers":{"phone":[]}}"#,
    r#"3={"phoneNumbers":{"phone":[{"number":5555,"kind":null}]}}"#,
    r#"4={"phoneNumbers":{"phone":[{"number":1111,"kind":"home"},{"number":2222,"kind":null},{"number":3333,"kind":"mobile"}]}}"#,
];

#[test]
fn a_repeated_group_without_an_annotation_is_a_list() {
    let (_folder, path) = file(&phones());
    assert_eq!(
        texts(&options(&path, "id", ValueSpec::Json)).unwrap(),
        PHONES
    );
}

/// Returns the file with a new footer in which every column's dictionary begins at byte 0: parquet-mr did so for
/// years.
fn with_dictionaries_at_zero(bytes: &[u8]) -> Vec<u8> {
    let old = ParquetMetaDataReader::new()
        .parse_and_finish(&bytes::Bytes::copy_from_slice(bytes))
        .unwrap();
    let groups = old.row_groups().iter().map(|group| {
        let columns = group.columns().iter().map(|column| {
            let begin = column.byte_range().0 as i64;
            let builder = column.clone().into_builder();
            builder
                .set_data_page_offset(begin)
                .set_dictionary_page_offset(Some(0))
                .build()
                .unwrap()
        });
        let columns = columns.collect();
        group
            .clone()
            .into_builder()
            .set_column_metadata(columns)
            .build()
            .unwrap()
    });
    let new = ParquetMetaData::new(old.file_metadata().clone(), groups.collect());
    let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let mut out = bytes[..bytes.len() - 8 - footer].to_vec();
    let mut written = Vec::new();
    ParquetMetaDataWriter::new(&mut written, &new)
        .finish()
        .unwrap();
    out.extend(written);
    out
}

#[test]
fn a_dictionary_offset_of_0_is_replaced_by_the_columns_start() {
    let (_folder, path) = file(&with_dictionaries_at_zero(&phones()));
    assert_eq!(
        texts(&options(&path, "id", ValueSpec::Json)).unwrap(),
        PHONES
    );
}

fn golden(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// Dremio 3.2 wrote such footers.
#[test]
fn footer_fields_of_unexpected_types_are_ignored() {
    let path = golden("dremio.parquet");
    let rows = texts(&options(&path, "l_partkey", column("l_partkey"))).unwrap();
    assert_eq!(rows, ["1552=1552"; 39]);
}

/// Rust's parquet crate left the count 0 before version 0.4.
#[test]
fn a_row_count_of_0_in_the_footer_is_replaced_by_that_of_the_row_groups() {
    let rows = texts(&options(golden("no_row_count.parquet"), "id", column("id"))).unwrap();
    assert_eq!(rows, ["1=1", "2=2", "3=3", "4=4", "5=5", "6=6"]);
    let rows = options(golden("no_row_count.parquet"), "id", ValueSpec::Json);
    let rows = texts(&rows).unwrap();
    assert_eq!(rows[2], r#"3={"phoneNumbers":{"phone":[]}}"#);
    assert_eq!(
        rows[5],
        r#"6={"phoneNumbers":{"phone":[{"number":1111111111,"kind":"home"},{"number":2222222222,"kind":null},{"number":3333333333,"kind":"mobile"}]}}"#
    );
}

/// Returns a file in which every row shares one long text through a dictionary.
fn one_value_many_rows(value_bytes: usize, rows: usize) -> Vec<u8> {
    let schema = "message t { required int32 id; required binary v (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_page_size_limit(value_bytes * 2)
        .build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut next = group.next_column().unwrap().unwrap();
    let ids: Vec<i32> = (0..rows as i32).collect();
    next.typed::<Int32Type>()
        .write_batch(&ids, None, None)
        .unwrap();
    next.close().unwrap();
    let mut next = group.next_column().unwrap().unwrap();
    let value = ByteArray::from(vec![b'x'; value_bytes]);
    for _ in 0..rows {
        let typed = next.typed::<ByteArrayType>();
        typed
            .write_batch(std::slice::from_ref(&value), None, None)
            .unwrap();
    }
    next.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn rows_share_the_value_of_a_dictionary() {
    let bytes = one_value_many_rows(1 << 20, 3000);
    assert!(bytes.len() < 1 << 20);
    let (_folder, path) = file(&bytes);
    let mut input = options(&path, "id", column("v"));
    input.memory = ByteSize(8 << 20);
    let sums = std::sync::Mutex::new((0, 0));
    struct Count<'s>(&'s std::sync::Mutex<(u64, u64)>);
    impl larder_ingest::RowSink for Count<'_> {
        fn row(&mut self, _: u64, _: &[u8], value: &[u8]) -> Result<(), larder_ingest::SinkError> {
            let mut sums = self.0.lock().unwrap();
            sums.0 += 1;
            sums.1 += value.len() as u64;
            Ok(())
        }
    }
    larder_ingest::ingest(&input, &|| Ok(Box::new(Count(&sums))), &|_| {}).unwrap();
    assert_eq!(*sums.lock().unwrap(), (3000, 3000 << 20));
}

#[test]
fn a_run_ends_within_a_batch_when_its_sink_fails() {
    let (_folder, path) = file(&one_value_many_rows(1 << 20, 3000));
    let rows = std::sync::atomic::AtomicU64::new(0);
    struct Stop<'s>(&'s std::sync::atomic::AtomicU64);
    impl larder_ingest::RowSink for Stop<'_> {
        fn row(&mut self, _: u64, _: &[u8], _: &[u8]) -> Result<(), larder_ingest::SinkError> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        }
        fn check(&mut self) -> Result<(), larder_ingest::SinkError> {
            Err("enough".into())
        }
    }
    let input = options(&path, "id", column("v"));
    let error = larder_ingest::ingest(&input, &|| Ok(Box::new(Stop(&rows))), &|_| {});
    assert!(error.unwrap_err().to_string().contains("enough"));
    // A megabyte each: four of them are passed on between two calls of `check`.
    assert_eq!(rows.load(std::sync::atomic::Ordering::Relaxed), 4);
}

#[test]
fn a_value_that_exceeds_the_memory_is_rejected_before_it_is_built() {
    let (_folder, path) = file(&one_value_many_rows(1 << 20, 2));
    let mut input = options(&path, "id", ValueSpec::Json);
    input.value_bytes_max = 1 << 20;
    let error = rows_of(&input).unwrap_err();
    assert!(
        matches!(&error, larder_ingest::Error::Memory { available_bytes, .. } if *available_bytes == 1 << 20),
        "{error}"
    );
    assert!(error.to_string().contains("row 1"), "{error}");
}
