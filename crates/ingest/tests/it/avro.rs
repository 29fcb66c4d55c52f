//! Avro schemas and their columns. The files are written byte by byte, because other writers reject some of them.

use larder_ingest::ValueSpec;

use crate::support::{column, options, texts};

/// Returns an Avro file with one row, which consists of these bytes.
fn avro_file(schema: &str, row: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let long = |value: usize| {
        let mut rest = 2 * value;
        let mut bytes = Vec::new();
        while rest > 0x7f {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        bytes
    };
    let text = |text: &str| [&long(text.len())[..], text.as_bytes()].concat();
    const SYNC: &[u8] = b"0123456789abcdef";
    let bytes = [
        &b"Obj\x01"[..],
        &long(1),
        &text("avro.schema"),
        &text(schema),
        b"\0",
        SYNC,
        &long(1),
        &long(row.len()),
        row,
        SYNC,
    ]
    .concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.avro");
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn ambiguous_avro_types_are_rejected_when_they_are_read() {
    // 12.50 as Avro's Java library writes it: the bytes of the digits, then the scale.
    let big_decimal = r#"{"type":"bytes","logicalType":"big-decimal"}"#;
    let list = format!(r#"{{"type":"array","items":["null",{big_decimal}]}}"#);
    let fixed = r#"{"type":"fixed","name":"f","size":8,"logicalType":"arrow.uint64"}"#;
    for (field, row, what) in [
        (big_decimal, &b"\x02\x08\x04\x04\xe2\x04"[..], "big-decimal"),
        (&list, b"\x02\x00", "big-decimal"),
        (fixed, b"\x02\x07\0\0\0\0\0\0\0", "arrow.uint64"),
    ] {
        let schema = format!(
            r#"{{"type":"record","name":"r","fields":[{{"name":"k","type":"long"}},{{"name":"v","type":{field}}}]}}"#
        );
        let (_folder, path) = avro_file(&schema, row);
        for input in [
            options(&path, "k", column("v")),
            options(&path, "k", ValueSpec::Json),
        ] {
            let error = texts(&input).unwrap_err();
            assert!(
                error.contains("column \"v\" cannot be read") && error.contains(what),
                "{error}"
            );
        }
        assert_eq!(texts(&options(&path, "k", column("k"))).unwrap(), ["1=1"]);
    }
}

#[test]
fn a_recursive_avro_record_is_rejected_by_name() {
    for (schema, column_name, record) in [
        (
            r#"{"type":"record","name":"LongList","namespace":"org.acme","fields":[
                {"name":"k","type":"long"},{"name":"next","type":["null","LongList"]}]}"#,
            "next",
            "org.acme.LongList",
        ),
        (
            r#"{"type":"record","name":"r","fields":[{"name":"k","type":"long"},{"name":"tree","type":
                {"type":"record","name":"Node","fields":[
                    {"name":"children","type":{"type":"array","items":"Node"}}]}}]}"#,
            "tree",
            "Node",
        ),
    ] {
        let (_folder, path) = avro_file(schema, &[0x02, 0x00]);
        let error = texts(&options(&path, "k", ValueSpec::Json)).unwrap_err();
        let expected = format!(
            "column {column_name:?} cannot be read: its type is the record {record:?}, which holds itself"
        );
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn an_unknown_logical_type_is_ignored() {
    let schema = r#"{"type":"record","name":"r","fields":[{"name":"k","type":"long"},
        {"name":"v","type":{"type":"long","logicalType":"acme-money"}}]}"#;
    let (_folder, path) = avro_file(schema, &[0x02, 0x0e]);
    assert_eq!(texts(&options(&path, "k", column("v"))).unwrap(), ["1=7"]);
}

#[test]
fn a_record_that_is_used_twice_is_not_recursive() {
    let schema = r#"{"type":"record","name":"r","namespace":"org.acme","fields":[
        {"name":"k","type":"long"},
        {"name":"a","type":{"type":"record","name":"P","fields":[{"name":"x","type":"long"}]}},
        {"name":"b","type":["null","P"]}, {"name":"c","type":"org.acme.P"}]}"#;
    let (_folder, path) = avro_file(schema, &[0x02, 0x02, 0x02, 0x04, 0x06]);
    assert_eq!(
        texts(&options(&path, "k", ValueSpec::Json)).unwrap(),
        [r#"1={"a":{"x":1},"b":{"x":2},"c":{"x":3}}"#]
    );
}
