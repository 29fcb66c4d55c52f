//! Errors about insufficient memory state the required amount, which does not depend on the threads.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use larder_ingest::{Error, InputOptions};
use larder_types::ByteSize;

use crate::support::{column, options, rows_of};

const MIB: u64 = 1 << 20;

fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn batch(rows: usize) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows as i64));
    let values: ArrayRef = Arc::new(StringArray::from_iter_values(
        (0..rows).map(|_| "x".repeat(1000)),
    ));
    RecordBatch::try_from_iter([("id", ids), ("v", values)]).unwrap()
}

fn stream(compression: Option<CompressionType>, rows: usize) -> Vec<u8> {
    let batch = batch(rows);
    let options = IpcWriteOptions::default()
        .try_with_compression(compression)
        .unwrap();
    let mut stream =
        StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    stream.write(&batch).unwrap();
    stream.finish().unwrap();
    stream.into_inner().unwrap()
}

/// Checks the minimum memory that the run reports, for any number of threads; the run succeeds with it, and not with
/// much less.
fn check_needs(input: &InputOptions, rows: u64, at_most: u64) {
    let mut input = input.clone();
    input.memory = ByteSize(64 << 10);
    let mut needs = Vec::new();
    for threads in [1, 2, 16] {
        input.threads = threads;
        match rows_of(&input).unwrap_err() {
            Error::Memory {
                needed_bytes: Some(bytes),
                available_bytes,
                ..
            } => {
                assert_eq!(available_bytes, 64 << 10);
                needs.push(bytes);
            }
            other => panic!("{other}"),
        }
    }
    needs.dedup();
    assert_eq!(needs.len(), 1, "{needs:?}");
    assert!(needs[0] <= at_most, "{needs:?}");
    for threads in [1, 16] {
        input.threads = threads;
        input.memory = ByteSize(at_most);
        assert_eq!(rows_of(&input).unwrap().1.rows, rows);
    }
}

#[test]
fn an_arrow_batch_needs_only_its_bytes() {
    let bytes = stream(None, 3000);
    let (_folder, path) = file("t.arrows", &bytes);
    check_needs(&options(&path, "id", column("v")), 3000, bytes.len() as u64);
}

#[test]
fn a_compressed_arrow_batch_needs_its_unpacked_size() {
    let bytes = stream(Some(CompressionType::ZSTD), 3000);
    assert!(bytes.len() < 100_000, "{}", bytes.len());
    let (_folder, path) = file("t.arrows", &bytes);
    let input = options(&path, "id", column("v"));
    let mut little = input.clone();
    little.memory = ByteSize(2 * MIB);
    let error = rows_of(&little).unwrap_err();
    assert!(
        matches!(&error, Error::Memory { needed_bytes: Some(n), .. } if (3_000_000..3_200_000).contains(n)),
        "{error}"
    );
    let mut enough = input;
    enough.memory = ByteSize(4 * MIB);
    assert_eq!(rows_of(&enough).unwrap().1.rows, 3000);
}

#[test]
fn an_avro_block_stays_within_the_memory() {
    let batch = batch(3000);
    let mut writer =
        arrow_avro::writer::AvroWriter::new(Vec::new(), batch.schema().as_ref().clone()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let bytes = writer.into_inner();
    let (_folder, path) = file("t.avro", &bytes);
    check_needs(
        &options(&path, "id", column("v")),
        3000,
        3 * bytes.len() as u64,
    );
}

#[test]
fn a_parquet_page_needs_only_its_bytes() {
    let batch = batch(3000);
    let properties = parquet::file::properties::WriterProperties::builder()
        .set_data_page_size_limit(64 << 20)
        .set_dictionary_enabled(false)
        .build();
    let mut bytes = Vec::new();
    let mut writer =
        parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let (_folder, path) = file("t.parquet", &bytes);
    check_needs(
        &options(&path, "id", column("v")),
        3000,
        bytes.len() as u64 + 4096,
    );
}

#[test]
fn a_line_beyond_the_memory_is_reported() {
    let line = format!("{{\"id\":1,\"v\":\"{}\"}}\n", "x".repeat(5 << 20));
    for (name, content) in [
        ("t.jsonl", line.clone()),
        ("t.csv", format!("id,v\n1,{}\n", "x".repeat(5 << 20))),
    ] {
        let (_folder, path) = file(name, content.as_bytes());
        let mut input = options(&path, "id", column("v"));
        input.memory = ByteSize(2 * MIB);
        let error = rows_of(&input).unwrap_err();
        assert!(
            matches!(&error, Error::Memory { .. }) && error.to_string().contains(name),
            "{error}"
        );
        input.memory = ByteSize(8 * MIB);
        assert_eq!(rows_of(&input).unwrap().1.rows, 1);
    }
}
