//! JSON lines, Parquet, Arrow and Avro: small files that are generated here.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BinaryArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use larder_ingest::{NullPolicy, ValueSpec};
use larder_types::ByteSize;
use parquet::arrow::ArrowWriter;

use crate::support::{column, options, rows_of, texts};

fn write(name: &str, content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

#[test]
fn json_lines() {
    let content = "{\"id\":1,\"v\":\"x\\n\",\"n\":null,\"big\":123456789012345678901234567890}\r\n\n{\"id\":\"b\",\"v\":[1,{\"c\":2}]}";
    let (_folder, path) = write("t.jsonl", content.as_bytes());
    assert_eq!(
        texts(&options(&path, "id", column("v"))).unwrap(),
        ["1=x\n", "b=[1,{\"c\":2}]"]
    );
    assert_eq!(
        texts(&options(&path, "id", ValueSpec::Json)).unwrap()[0],
        "1={\"v\":\"x\\n\",\"n\":null,\"big\":123456789012345678901234567890}"
    );
    let error = texts(&options(&path, "id", column("n"))).unwrap_err();
    assert!(
        error.contains("line 1") && error.contains("null"),
        "{error}"
    );
    let mut skipping = options(&path, "id", column("n"));
    skipping.null_value = NullPolicy::Skip;
    let summary = rows_of(&skipping).unwrap().1;
    assert_eq!(
        (summary.rows, summary.skipped, summary.skipped_missing),
        (0, 2, 1)
    );
    for (content, part) in [
        ("[1,2]\n", "array"),
        ("{\n \"a\": 1\n}\n", "one JSON document"),
        ("{\"id\":1}\n{\"id\":}\n", "line 2"),
        ("{\"id\":1}\r{\"id\":2}\r", "carriage return (CR)"),
        ("{\"id\":null}", "null"),
        ("{\"id\":[1]}", "array or object"),
        ("{\"x\":1}", "the columns are x"),
        ("{\"id\":1,\"v\":2,\"v\":2}", "the field \"v\" twice"),
    ] {
        let (_folder, path) = write("t.jsonl", content.as_bytes());
        let error = texts(&options(&path, "id", ValueSpec::Json)).unwrap_err();
        assert!(
            error.contains(part) && error.contains("t.jsonl"),
            "{content}: {error}"
        );
    }
}

fn batch() -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("c\"")]));
    let scores: ArrayRef = Arc::new(Float64Array::from(vec![1.5, 2.0, f64::NAN]));
    let blobs: ArrayRef = Arc::new(BinaryArray::from(vec![&b"\x00\xff"[..], b"", b"z"]));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<
        arrow_array::types::Int32Type,
        _,
        _,
    >(vec![Some(vec![Some(1), None]), None, Some(vec![])]));
    RecordBatch::try_from_iter_with_nullable([
        ("id", ids, false),
        ("name", names, true),
        ("score", scores, true),
        ("blob", blobs, true),
        ("list", lists, true),
    ])
    .unwrap()
}

const JSON: [&str; 3] = [
    "1={\"name\":\"a\",\"score\":1.5,\"blob\":\"AP8=\",\"list\":[1,null]}",
    "2={\"name\":null,\"score\":2.0,\"blob\":\"\",\"list\":null}",
    "3={\"name\":\"c\\\"\",\"score\":\"NaN\",\"blob\":\"eg==\",\"list\":[]}",
];

#[track_caller]
fn check_batch(path: &std::path::Path) {
    assert_eq!(texts(&options(path, "id", ValueSpec::Json)).unwrap(), JSON);
    assert_eq!(
        rows_of(&options(path, "id", column("blob"))).unwrap().0[0].2,
        b"\x00\xff"
    );
    assert!(
        texts(&options(path, "id", column("list")))
            .unwrap_err()
            .contains("row 2")
    );
    let error = texts(&options(path, "name", column("score"))).unwrap_err();
    assert!(error.contains("row 2") && error.contains("name"), "{error}");
    let error = texts(&options(path, "list", column("score"))).unwrap_err();
    assert!(error.contains("row 1") && error.contains("key"), "{error}");
    let error = texts(&options(path, "nope", column("score"))).unwrap_err();
    assert!(error.contains("id, name, score, blob, list"), "{error}");
    let packed = rows_of(&options(path, "id", ValueSpec::MessagePack))
        .unwrap()
        .0;
    assert_eq!(packed[0].2[..8], *b"\x84\xa4name\xa1a");
}

#[test]
fn parquet_files() {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch().schema(), None).unwrap();
    writer.write(&batch()).unwrap();
    writer.close().unwrap();
    let (_folder, path) = write("t.parquet", &bytes);
    check_batch(&path);
    for cut in [3, 20, bytes.len() / 2, bytes.len() - 1] {
        let (_folder, path) = write("cut.parquet", &bytes[..cut]);
        let error = texts(&options(&path, "id", ValueSpec::Json)).unwrap_err();
        assert!(error.contains("cut.parquet"), "{error}");
    }
    for at in (4..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        let (_folder, path) = write("damaged.parquet", &damaged);
        // Rejected or read: never a panic, and never more or fewer rows.
        if let Ok((rows, _)) = rows_of(&options(&path, "id", ValueSpec::Json)) {
            assert_eq!(rows.len(), 3);
        }
    }
}

#[test]
fn pages_larger_than_the_memory_are_rejected_before_they_are_unpacked() {
    let long: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(8 << 20)]));
    let batch = RecordBatch::try_from_iter([("id", long)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let (_folder, path) = write("t.parquet", &bytes);
    let mut input = options(&path, "id", ValueSpec::Json);
    input.memory = ByteSize(1 << 20);
    let error = texts(&input).unwrap_err();
    assert!(
        error.contains("memory") && error.contains("row group 1"),
        "{error}"
    );
}

#[test]
fn arrow_files_and_streams() {
    let mut stream =
        arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch().schema()).unwrap();
    stream.write(&batch()).unwrap();
    stream.finish().unwrap();
    let stream = stream.into_inner().unwrap();
    let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &batch().schema()).unwrap();
    file.write(&batch()).unwrap();
    file.finish().unwrap();
    let file = file.into_inner().unwrap();
    for (name, bytes) in [("t.arrows", stream), ("t.arrow", file)] {
        let (_folder, path) = write(name, &bytes);
        check_batch(&path);
        let (_folder, path) = write(name, &bytes[..bytes.len() * 2 / 3]);
        assert!(
            texts(&options(&path, "id", ValueSpec::Json))
                .unwrap_err()
                .contains(name)
        );
    }
}

#[test]
fn avro_files() {
    let columns = batch().project(&[0, 1, 2, 3]).unwrap();
    let mut writer =
        arrow_avro::writer::AvroWriter::new(Vec::new(), columns.schema().as_ref().clone()).unwrap();
    writer.write(&columns).unwrap();
    writer.finish().unwrap();
    let bytes = writer.into_inner();
    let (_folder, path) = write("t.avro", &bytes);
    let found = texts(&options(&path, "id", ValueSpec::Json)).unwrap();
    assert_eq!(
        found[0],
        "1={\"name\":\"a\",\"score\":1.5,\"blob\":\"AP8=\"}"
    );
    assert_eq!(found.len(), 3);
    for cut in (1..bytes.len()).step_by(5) {
        let (_folder, path) = write("cut.avro", &bytes[..cut]);
        match rows_of(&options(&path, "id", ValueSpec::Json)) {
            // The header alone is a valid file without rows.
            Ok((rows, _)) => assert!(rows.is_empty()),
            Err(error) => assert!(error.to_string().contains("cut.avro"), "{error}"),
        }
    }
}
