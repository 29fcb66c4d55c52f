//! Tests the table of column types line by line, and compares with the output of other readers for the same files.

use std::sync::Arc;

use arrow_array::builder::{Int32Builder, MapBuilder, StringBuilder};
use arrow_array::types::*;
use arrow_array::*;
use arrow_buffer::{ScalarBuffer, i256};
use arrow_schema::{DataType, Field, Fields, Schema, UnionFields, UnionMode};
use larder_ingest::ValueSpec;
use larder_protocol::columns::{COLUMNS, Column, Example};

use crate::support::{column, options, rows_of, texts};

/// 2024-02-29T12:30:15 in seconds, and its day.
const NOON: i64 = 1_709_209_815;
const DAY: i32 = 19_782;

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

/// Returns the example in every type that the line names, with the extension name of the field.
fn variants(line: &Column, example: &Example) -> Vec<(&'static str, ArrayRef)> {
    let text = example.text.unwrap_or_default();
    let plain = |arrays: Vec<ArrayRef>| arrays.into_iter().map(|array| ("", array)).collect();
    match line.name {
        "text" => plain(vec![
            array(StringArray::from(vec![text])),
            array(LargeStringArray::from(vec![text])),
            array(StringViewArray::from(vec![text])),
        ]),
        "boolean" => {
            let value: bool = text.parse().unwrap();
            vec![
                ("", array(BooleanArray::from(vec![value]))),
                ("arrow.bool8", array(Int8Array::from(vec![i8::from(value)]))),
            ]
        }
        "whole number" => match text.parse::<i64>() {
            Ok(value) => plain(vec![
                array(Int8Array::from(vec![value as i8])),
                array(Int16Array::from(vec![value as i16])),
                array(Int32Array::from(vec![value as i32])),
                array(Int64Array::from(vec![value])),
            ]),
            Err(_) => plain(vec![array(UInt64Array::from(vec![
                text.parse::<u64>().unwrap(),
            ]))]),
        },
        "floating-point number" => {
            let value: f64 = text.parse().unwrap();
            let mut arrays = vec![array(Float64Array::from(vec![value]))];
            if text != "1e+300" {
                arrays.push(array(Float32Array::from(vec![value as f32])));
            }
            if text != "1e+300" {
                let half = <Float16Type as ArrowPrimitiveType>::Native::from_f64(value);
                arrays.push(array(Float16Array::from(vec![half])));
            }
            plain(arrays)
        }
        "decimal" => {
            let digits: i128 = text.replace('.', "").parse().unwrap();
            plain(vec![
                array(
                    Decimal32Array::from(vec![digits as i32])
                        .with_precision_and_scale(9, 2)
                        .unwrap(),
                ),
                array(
                    Decimal64Array::from(vec![digits as i64])
                        .with_precision_and_scale(9, 2)
                        .unwrap(),
                ),
                array(
                    Decimal128Array::from(vec![digits])
                        .with_precision_and_scale(9, 2)
                        .unwrap(),
                ),
                array(
                    Decimal256Array::from(vec![i256::from_i128(digits)])
                        .with_precision_and_scale(60, 2)
                        .unwrap(),
                ),
            ])
        }
        "date" => plain(vec![
            array(Date32Array::from(vec![DAY])),
            array(Date64Array::from(vec![i64::from(DAY) * 86_400_000])),
        ]),
        "timestamp with a zone" => ["UTC", "Europe/Berlin", "+01:00"]
            .into_iter()
            .flat_map(|zone| instants(text, Some(zone)))
            .map(|array| ("", array))
            .collect(),
        "timestamp without a zone" => plain(instants(text, None)),
        "time of day" => plain(vec![
            array(Time32MillisecondArray::from(vec![45_015_250])),
            array(Time64MicrosecondArray::from(vec![45_015_250_000])),
            array(Time64NanosecondArray::from(vec![45_015_250_000_000])),
        ]),
        "duration" if text == "-PT90.5S" => plain(vec![
            array(DurationMillisecondArray::from(vec![-90_500])),
            array(DurationMicrosecondArray::from(vec![-90_500_000])),
            array(DurationNanosecondArray::from(vec![-90_500_000_000])),
        ]),
        "duration" => plain(vec![array(DurationSecondArray::from(vec![i64::MAX]))]),
        "interval" if text == "PT0S" => plain(vec![
            array(IntervalYearMonthArray::from(vec![0])),
            array(IntervalDayTimeArray::from(vec![
                IntervalDayTimeType::make_value(0, 0),
            ])),
        ]),
        "interval" => plain(vec![array(IntervalMonthDayNanoArray::from(vec![
            IntervalMonthDayNanoType::make_value(14, 3, 14_706_500_000_000),
        ]))]),
        "UUID" => {
            let hex = text.replace('-', "");
            let bytes: Vec<u8> = (0..16)
                .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
                .collect();
            let ids = array(FixedSizeBinaryArray::try_from_iter([bytes].into_iter()).unwrap());
            let keys = Int8Array::from(vec![0]);
            vec![
                ("arrow.uuid", Arc::clone(&ids)),
                ("arrow.uuid", array(DictionaryArray::new(keys, ids))),
            ]
        }
        "bytes" => {
            let bytes = &b"\x00\xff"[..];
            plain(vec![
                array(BinaryArray::from(vec![bytes])),
                array(LargeBinaryArray::from(vec![bytes])),
                array(BinaryViewArray::from(vec![bytes])),
                array(FixedSizeBinaryArray::try_from_iter([bytes].into_iter()).unwrap()),
            ])
        }
        "null" => {
            let no_text = StringArray::from(vec![None::<&str>]);
            plain(vec![
                array(NullArray::new(1)),
                array(no_text.clone()),
                array(Int64Array::from(vec![None])),
                array(DictionaryArray::<Int8Type>::new(
                    Int8Array::from(vec![None]),
                    array(StringArray::from(vec!["x"])),
                )),
                array(DictionaryArray::<Int8Type>::new(
                    Int8Array::from(vec![0]),
                    array(no_text.clone()),
                )),
                array(RunArray::try_new(&Int32Array::from(vec![1]), &no_text).unwrap()),
            ])
        }
        "list" => {
            let items = || vec![Some(vec![Some(1), None])];
            let field = Arc::new(Field::new("item", DataType::Int32, true));
            let values = array(Int32Array::from(vec![Some(1), None]));
            plain(vec![
                array(ListArray::from_iter_primitive::<Int32Type, _, _>(items())),
                array(LargeListArray::from_iter_primitive::<Int32Type, _, _>(
                    items(),
                )),
                array(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
                    items(),
                    2,
                )),
                array(ListViewArray::new(
                    Arc::clone(&field),
                    ScalarBuffer::from(vec![0]),
                    ScalarBuffer::from(vec![2]),
                    Arc::clone(&values),
                    None,
                )),
                array(LargeListViewArray::new(
                    field,
                    ScalarBuffer::from(vec![0]),
                    ScalarBuffer::from(vec![2]),
                    values,
                    None,
                )),
            ])
        }
        "struct" => plain(vec![array(StructArray::new(
            Fields::from(vec![
                Field::new("a", DataType::Int32, true),
                Field::new("b", DataType::Utf8, true),
            ]),
            vec![
                array(Int32Array::from(vec![1])),
                array(StringArray::from(vec!["x"])),
            ],
            None,
        ))]),
        "map" => {
            let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
            for (key, value) in [("k", 1), ("l", 2)] {
                map.keys().append_value(key);
                map.values().append_value(value);
            }
            map.append(true).unwrap();
            plain(vec![array(map.finish())])
        }
        "union" => {
            let fields = || {
                UnionFields::try_new(
                    vec![3, 9],
                    vec![
                        Field::new("text", DataType::Utf8, true),
                        Field::new("number", DataType::Int64, true),
                    ],
                )
                .unwrap()
            };
            let ids = || ScalarBuffer::from(vec![9_i8]);
            let numbers = || array(Int64Array::from(vec![7]));
            let union = |offsets, texts: Vec<&str>| {
                let children = vec![array(StringArray::from(texts)), numbers()];
                array(UnionArray::try_new(fields(), ids(), offsets, children).unwrap())
            };
            let found = vec![
                union(None, vec!["x"]),
                union(Some(ScalarBuffer::from(vec![0])), vec![]),
            ];
            assert!(matches!(
                found[0].data_type(),
                DataType::Union(_, UnionMode::Sparse)
            ));
            plain(found)
        }
        "encoded" => {
            let values = || StringArray::from(vec!["blue", "red"]);
            let dictionary = || array(values());
            plain(vec![
                array(DictionaryArray::new(Int8Array::from(vec![1]), dictionary())),
                array(DictionaryArray::new(
                    Int64Array::from(vec![1]),
                    dictionary(),
                )),
                array(DictionaryArray::new(
                    UInt32Array::from(vec![1]),
                    dictionary(),
                )),
                array(
                    RunArray::try_new(&Int16Array::from(vec![1, 2]), &values())
                        .unwrap()
                        .slice(1, 1),
                ),
                array(
                    RunArray::try_new(&Int32Array::from(vec![1, 2]), &values())
                        .unwrap()
                        .slice(1, 1),
                ),
                array(
                    RunArray::try_new(&Int64Array::from(vec![1, 2]), &values())
                        .unwrap()
                        .slice(1, 1),
                ),
            ])
        }
        other => panic!("the line {other:?} of the table has no test: add its types here"),
    }
}

fn instants(text: &str, zone: Option<&str>) -> Vec<ArrayRef> {
    let half = i64::from(text.contains(".5"));
    let zone = zone.map(Arc::<str>::from);
    macro_rules! of {
        ($array:ty, $ticks:expr) => {
            array(
                <$array>::from(vec![NOON * $ticks + half * $ticks / 2])
                    .with_timezone_opt(zone.clone()),
            )
        };
    }
    let mut arrays = vec![
        of!(TimestampMillisecondArray, 1_000),
        of!(TimestampMicrosecondArray, 1_000_000),
        of!(TimestampNanosecondArray, 1_000_000_000),
    ];
    if half == 0 {
        arrays.push(of!(TimestampSecondArray, 1));
    }
    arrays
}

/// Returns an Arrow file with one row: `k` is 1, `v` is the array.
fn arrow_file(extension: &str, values: &ArrayRef) -> (tempfile::TempDir, std::path::PathBuf) {
    let mut field = Field::new("v", values.data_type().clone(), true);
    if !extension.is_empty() {
        let note = [("ARROW:extension:name".to_owned(), extension.to_owned())];
        field = field.with_metadata(
            note.into_iter()
                .collect::<std::collections::HashMap<_, _>>(),
        );
    }
    let schema = Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, false),
        field,
    ]));
    let columns = vec![array(Int64Array::from(vec![1])), Arc::clone(values)];
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let mut file = arrow_ipc::writer::FileWriter::try_new(Vec::new(), &schema).unwrap();
    file.write(&batch).unwrap();
    file.finish().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.arrow");
    std::fs::write(&path, file.into_inner().unwrap()).unwrap();
    (folder, path)
}

#[test]
fn every_line_of_the_column_table_holds_for_every_type_it_names() {
    for line in COLUMNS {
        for example in line.examples {
            for (extension, values) in variants(line, example) {
                let (_folder, path) = arrow_file(extension, &values);
                let story = format!("{}, {}", line.name, values.data_type());
                check_json(&path, example, &story);
                check_message_pack(&path, line, example, &story);
                check_text(&path, line, example, &story);
            }
        }
    }
}

fn check_json(path: &std::path::Path, example: &Example, story: &str) {
    let rows = texts(&options(path, "k", ValueSpec::Json)).unwrap();
    assert_eq!(rows, [format!("1={{\"v\":{}}}", example.json)], "{story}");
}

fn check_message_pack(path: &std::path::Path, line: &Column, example: &Example, story: &str) {
    let (rows, _) = rows_of(&options(path, "k", ValueSpec::MessagePack)).unwrap();
    let packed = rows[0].2.strip_prefix(b"\x81\xa1v").unwrap();
    let parsed = || serde_json::from_str::<serde_json::Value>(example.json).unwrap();
    match line.message_pack {
        "float" => {
            let text = example.text.unwrap();
            let (found, expected) = match packed[0] {
                0xca => {
                    let mut expected = text.parse::<f32>().unwrap();
                    if story.contains("Float16") {
                        // MessagePack has no half precision: it has the exact value.
                        type Half = <Float16Type as ArrowPrimitiveType>::Native;
                        expected = Half::from_f32(expected).to_f32();
                    }
                    let found = rmp_serde::from_slice::<f32>(packed).unwrap();
                    (f64::from(found), f64::from(expected))
                }
                _ => (
                    rmp_serde::from_slice(packed).unwrap(),
                    text.parse().unwrap(),
                ),
            };
            let is_same =
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(is_same, "{story}: {found}");
        }
        "bin" => assert_eq!(packed, b"\xc4\x02\x00\xff", "{story}"),
        "nil" => assert_eq!(packed, b"\xc0", "{story}"),
        _ => {
            let found: serde_json::Value = rmp_serde::from_slice(packed).unwrap();
            assert_eq!(found, parsed(), "{story}");
        }
    }
}

fn check_text(path: &std::path::Path, line: &Column, example: &Example, story: &str) {
    let as_key = rows_of(&options(path, "v", column("k")));
    let as_value = rows_of(&options(path, "k", column("v")));
    let refused = |what: &str| {
        let error = as_key.as_ref().unwrap_err().to_string();
        assert!(
            error.contains(what) && error.contains("\"v\""),
            "{story}: {error}"
        );
    };
    let expected = match (line.name, example.text) {
        ("null", _) => {
            refused("null");
            let error = as_value.unwrap_err().to_string();
            assert!(
                error.contains("null") && error.contains("\"v\""),
                "{story}: {error}"
            );
            return;
        }
        ("list" | "struct" | "map", _) => {
            refused("a key is made of");
            let rows = as_value.unwrap().0;
            assert_eq!(rows[0].2, example.json.as_bytes(), "{story}");
            return;
        }
        ("bytes", _) => &b"\x00\xff"[..],
        (_, text) => text.unwrap().as_bytes(),
    };
    assert_eq!(as_key.unwrap().0[0].1, expected, "{story}");
    assert_eq!(as_value.unwrap().0[0].2, expected, "{story}");
}

/// Checks the values of single columns in a golden file with one row; golden/make.py created it.
#[track_caller]
fn check_golden(file: &str, key: &str, expected: &[(&str, &str)]) {
    let path = golden(file);
    for (name, text) in expected {
        let rows = rows_of(&options(&path, key, column(name)));
        let value = rows.map(|(rows, _)| String::from_utf8_lossy(&rows[0].2).into_owned());
        let value = value.unwrap_or_else(|error| panic!("{file}, {name}: {error}"));
        assert_eq!(value, *text, "{file}, column {name}");
    }
}

fn golden(file: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file)
}

const ID: &str = "00112233-4455-6677-8899-aabbccddeeff";

#[test]
fn a_parquet_file_of_duckdb_reads_like_duckdbs_output() {
    // The output of DuckDB 2.0.0 with CAST(... AS VARCHAR), and larder's form of the same values.
    let spelled = |shown: &str| shown.replace(' ', "T").replace("+00", "Z");
    for (name, duckdb, ours) in [
        ("text", "né\"x", "né\"x"),
        ("yes", "true", "true"),
        ("tiny", "-128", "-128"),
        ("most", "18446744073709551615", "18446744073709551615"),
        ("single", "0.1", "0.1"),
        ("price", "12.50", "12.50"),
        ("loss", "-0.05", "-0.05"),
        ("day", "2024-02-29", "2024-02-29"),
        ("at", "2024-02-29 12:30:15.5", "2024-02-29T12:30:15.5"),
        ("at_s", "2024-02-29 12:30:15", "2024-02-29T12:30:15"),
        ("at_ms", "2024-02-29 12:30:15.5", "2024-02-29T12:30:15.5"),
        (
            "at_ns",
            "2024-02-29 12:30:15.500000001",
            "2024-02-29T12:30:15.500000001",
        ),
        (
            "at_utc",
            "2024-02-29 12:30:15.5+00",
            "2024-02-29T12:30:15.5Z",
        ),
        ("clock", "12:30:15.25", "12:30:15.25"),
        ("id", ID, ID),
    ] {
        assert_eq!(spelled(duckdb), ours);
        check_golden("duckdb.parquet", "text", &[(name, ours)]);
    }
    // DuckDB writes all of these but the first differently: nan, -inf, [1, NULL, 3], {'a': 1, 'b': x}, {k=1, l=2}.
    check_golden(
        "duckdb.parquet",
        "id",
        &[
            ("double", "1e+300"),
            ("nan", "NaN"),
            ("low", "-Infinity"),
            ("list", "[1,null,3]"),
            ("struct", r#"{"a":1,"b":"x"}"#),
            ("map", r#"{"k":1,"l":2}"#),
            ("ids", &format!("[\"{ID}\"]")),
        ],
    );
    let bytes = rows_of(&options(golden("duckdb.parquet"), "id", column("bytes"))).unwrap();
    assert_eq!(bytes.0[0].1, ID.as_bytes());
    assert_eq!(bytes.0[0].2, b"\x00\xff");
    check_golden("pyarrow_uuid.parquet", "n", &[("id", ID)]);
}

#[test]
fn an_arrow_file_of_pyarrow_reads_like_pyarrows_output() {
    check_golden(
        "pyarrow.arrow",
        "large",
        &[
            ("large", "x"),
            ("view", "a view that is longer than twelve bytes"),
            ("half", "1.5"),
            ("u64", "18446744073709551615"),
            ("d32", "1.5"),
            ("d256", "-123456789012345678901234567890123456789012345.67"),
            ("date64", "2024-02-29"),
            ("s", "2024-02-29T12:30:15"),
            ("ms", "2024-02-29T12:30:15.5"),
            ("us", "2024-02-29T12:30:15.5"),
            ("ns", "2024-02-29T12:30:15.5"),
            // 13:30:15.5 in Berlin.
            ("zoned", "2024-02-29T12:30:15.5Z"),
            ("time32", "12:30:15"),
            ("time64", "12:30:15.25"),
            ("duration", "-PT90.5S"),
            ("far", "PT9223372036854775807S"),
            ("interval", "P1Y2M3DT4H5M6.5S"),
            ("runs", "5"),
            ("dictionary", "red"),
            ("fixed_list", "[1,2]"),
            ("list_view", "[1,null]"),
            ("large_list", "[\"a\"]"),
            ("map", "{\"AA==\":1}"),
            ("union", "7"),
            ("id", ID),
            ("ids", &format!("[\"{ID}\"]")),
            ("flag", "true"),
        ],
    );
    let path = golden("pyarrow.arrow");
    for name in ["no_run", "nothing"] {
        let error = rows_of(&options(&path, "id", column(name)))
            .unwrap_err()
            .to_string();
        assert!(error.contains("is null") && error.contains(name), "{error}");
    }
    let json = texts(&options(&path, "id", ValueSpec::Json)).unwrap();
    assert!(
        json[0].contains("\"runs\":5,\"no_run\":null"),
        "{}",
        json[0]
    );
}

#[test]
fn local_arrow_and_parquet_files_are_counted_in_bytes_read() {
    for (file, key) in [("pyarrow.arrow", "id"), ("duckdb.parquet", "id")] {
        let path = golden(file);
        let (_, summary) = rows_of(&options(&path, key, ValueSpec::Json)).unwrap();
        let size = std::fs::metadata(&path).unwrap().len();
        // The bytes that are read to detect the format are read again.
        let bytes = size / 2..=size + 512;
        assert!(bytes.contains(&summary.bytes_read), "{file}: {summary:?}");
        assert!(summary.bytes_read > 512, "{file}: more than its begin");
    }
}

#[test]
fn an_avro_file_of_fastavro_reads_like_fastavros_output() {
    check_golden(
        "fastavro.avro",
        "text",
        &[
            ("id", ID),
            ("fixed_id", ID),
            ("price", "12.50"),
            ("day", "2024-02-29"),
            ("clock", "12:30:15.25"),
            ("ms", "2024-02-29T12:30:15.5Z"),
            ("us", "2024-02-29T12:30:15.5Z"),
            ("local", "2024-02-29T12:30:15.5"),
            ("color", "blue"),
            ("list", "[1,2]"),
            ("map", "{\"k\":1}"),
            ("either", "7"),
            ("ids", &format!("[\"{ID}\"]")),
        ],
    );
    let error = texts(&options(golden("fastavro.avro"), "id", column("maybe"))).unwrap_err();
    assert!(error.contains("is null"), "{error}");
}

#[test]
fn columns_that_cannot_be_read_without_loss_are_rejected_by_name() {
    for (file, key, parts) in [
        (
            "big_endian.arrows",
            "n",
            ["big_endian.arrows", "big-endian"],
        ),
        ("interval.parquet", "id", ["\"span\"", "INTERVAL"]),
        (
            "strings.avro",
            "text",
            ["strings.avro", "not a record but \"string\""],
        ),
    ] {
        let error = texts(&options(golden(file), key, ValueSpec::Json)).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{file}: {error}");
        }
    }
    // A column that is not read causes no error.
    check_golden("interval.parquet", "id", &[("id", "1")]);

    let keys = StringArray::from(vec!["a", "a"]);
    let entries = StructArray::from(vec![
        (
            Arc::new(Field::new("key", DataType::Utf8, false)),
            array(keys),
        ),
        (
            Arc::new(Field::new("value", DataType::Int32, true)),
            array(Int32Array::from(vec![1, 2])),
        ),
    ]);
    let entries_field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    let offsets = arrow_buffer::OffsetBuffer::new(ScalarBuffer::from(vec![0, 2]));
    let twice = MapArray::new(entries_field, offsets, entries, None, false);
    for (values, part) in [
        (array(twice), "twice"),
        (array(Date64Array::from(vec![1])), "within a day"),
        (array(Time32SecondArray::from(vec![-1])), "within a day"),
        // 24:00:00 is the start of the next day.
        (array(Time32SecondArray::from(vec![86_400])), "within a day"),
        (
            array(Time64NanosecondArray::from(vec![i64::MAX])),
            "within a day",
        ),
    ] {
        let (_folder, path) = arrow_file("", &values);
        let error = texts(&options(&path, "k", ValueSpec::Json)).unwrap_err();
        assert!(
            error.contains(part) && error.contains("\"v\"") && error.contains("row 1"),
            "{error}"
        );
    }
}

#[test]
fn a_nested_key_is_rejected_with_its_type() {
    for (line, what) in [("list", "a list"), ("struct", "a struct"), ("map", "a map")] {
        let line = COLUMNS.iter().find(|column| column.name == line).unwrap();
        for (extension, values) in variants(line, &line.examples[0]) {
            let (_folder, path) = arrow_file(extension, &values);
            let error = texts(&options(&path, "v", column("k"))).unwrap_err();
            let expected = format!("key column \"v\" is {what}; a key is made of");
            assert!(error.contains(&expected), "{error}");
        }
    }
}

#[test]
fn an_unknown_extension_type_is_ignored() {
    let (_folder, path) = arrow_file("acme.money", &array(Int64Array::from(vec![7])));
    assert_eq!(texts(&options(&path, "k", column("v"))).unwrap(), ["1=7"]);
}

#[test]
fn an_arrow_file_with_a_schema_and_no_batch_is_valid() {
    for file in ["empty.arrow", "empty.arrows"] {
        let path = golden(file);
        let (rows, summary) = rows_of(&options(&path, "id", column("u64"))).unwrap();
        assert!(rows.is_empty() && summary.rows == 0, "{file}");
        let error = texts(&options(&path, "nope", column("u64"))).unwrap_err();
        assert!(error.contains("there is no column \"nope\""), "{error}");
        let complete = std::fs::read(&path).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cut = folder.path().join(file);
        std::fs::write(&cut, &complete[..complete.len() / 3]).unwrap();
        let error = texts(&options(&cut, "id", column("u64"))).unwrap_err();
        assert!(error.contains("cut off"), "{error}");
    }
}

#[test]
fn rows_with_only_nulls_are_read_from_a_batch_without_bytes() {
    let (_folder, path) = {
        let schema = Arc::new(Schema::new(vec![Field::new("v", DataType::Null, true)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![array(NullArray::new(3))]);
        let mut stream = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &schema).unwrap();
        stream.write(&batch.unwrap()).unwrap();
        stream.finish().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nulls.arrows");
        std::fs::write(&path, stream.into_inner().unwrap()).unwrap();
        (folder, path)
    };
    let mut input = options(&path, "v", column("v"));
    input.null_key = larder_ingest::NullPolicy::Skip;
    assert_eq!(rows_of(&input).unwrap().1.skipped, 3);
}
