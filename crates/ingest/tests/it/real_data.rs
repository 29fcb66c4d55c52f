//! Real files, valid, unusual and damaged: the valid ones load with their rows, the damaged ones are rejected by
//! name, and none panics.

use std::path::Path;

use larder_ingest::{InputOptions, NullPolicy, ValueSpec};

use crate::support::{options, real_data, rows_of, texts, untar};

/// Keys may repeat or be null in these files: counts the rows by the first column that can be a key.
fn load(path: &Path) -> Result<u64, String> {
    let probe = texts(&options(path, "no such column", ValueSpec::Json)).unwrap_err();
    let Some((_, columns)) = probe.split_once("the columns are ") else {
        return Err(probe);
    };
    let mut last = probe.clone();
    for column in columns.split(", ") {
        let mut input = options(path, column, ValueSpec::Json);
        input.null_key = NullPolicy::Skip;
        match rows_of(&input) {
            Ok((_, summary)) => return Ok(summary.rows + summary.skipped),
            Err(error) => last = error.to_string(),
        }
        if !last.contains("a key is made of") {
            break;
        }
    }
    Err(last)
}

#[test]
fn good_files_load_with_all_their_rows() {
    for (name, rows) in [
        ("parquet-good/alltypes_dictionary.parquet", 2),
        ("parquet-good/alltypes_plain.snappy.parquet", 2),
        ("parquet-good/byte_stream_split.zstd.parquet", 300),
        ("parquet-good/datapage_v2.snappy.parquet", 5),
        ("parquet-good/nested_lists.snappy.parquet", 3),
        ("parquet-good/nested_maps.snappy.parquet", 6),
        ("parquet-good/nullable.impala.parquet", 7),
        ("parquet-good/lz4_raw_compressed.parquet", 4),
        ("parquet-good/concatenated_gzip_members.parquet", 513),
        ("parquet-good/int96_from_spark.parquet", 6),
        ("avro/alltypes_plain.avro", 8),
        ("avro/alltypes_plain.snappy.avro", 8),
        ("avro/alltypes_plain.zstandard.avro", 8),
        ("avro/alltypes_plain.xz.avro", 8),
        ("avro/nullable.impala.avro", 7),
        ("avro/weather-deflate.avro", 5),
        ("csv/aggregate_test_100.csv.gz", 100),
    ] {
        let Some(path) = real_data(name) else { return };
        match load(&path) {
            Ok(found) => assert_eq!(found, rows, "{name}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// These have no column that can be a key, except inside others: they are rejected only for that reason.
#[test]
fn files_with_only_nested_columns_are_reported() {
    for name in [
        "parquet-good/list_columns.parquet",
        "parquet-good/nested_structs.rust.parquet",
        "avro/nested_records.avro",
    ] {
        let Some(path) = real_data(name) else { return };
        if let Err(error) = load(&path) {
            assert!(error.contains("a key is made of"), "{name}: {error}");
        }
    }
}

#[test]
fn bad_files_are_rejected_by_name() {
    for name in [
        "parquet-bad/ARROW-GH-41317.parquet",
        "parquet-bad/ARROW-GH-45185.parquet",
        "parquet-bad/ARROW-RS-GH-6229-DICTHEADER.parquet",
        "parquet-bad/ARROW-RS-GH-6229-LEVELS.parquet",
        "parquet-bad/PARQUET-1481.parquet",
        "parquet-bad/datapage_v1-corrupt-checksum.parquet",
        "parquet-bad/encrypt_columns_and_footer.parquet.encrypted",
        "parquet-bad/large_string_map.brotli.parquet",
        "parquet-bad/fuzz-4656328221196288.parquet",
        "parquet-bad/fuzz-5913005913407488.parquet",
        "avro/bad-avro-1238-truncated.avro",
        "avro/bad-avro-1237-union-discriminant.avro",
        "arrow/fuzz-5186986363846656.arrow",
        "arrow/fuzz-4757582821064704.arrows",
        "csv/fuzz-5308706540814336.csv",
        "csv/truncated-soc-Epinions1.txt.gz",
        "json/twitter.json.zst",
        "json/amazon_cellphones.ndjson.zst",
    ] {
        let Some(path) = real_data(name) else { return };
        let file = name.rsplit('/').next().unwrap();
        match load(&path) {
            Ok(rows) => panic!("{name}: loaded {rows} rows"),
            Err(error) => {
                eprintln!("{error}");
                assert!(error.contains(file), "{name}: {error}");
            }
        }
    }
}

#[test]
fn unusual_files_load_or_are_rejected_without_a_panic() {
    for name in [
        "parquet-bad/ARROW-GH-43605.parquet",
        "parquet-bad/incorrect_map_schema.parquet",
        "parquet-bad/nation.dict-malformed.parquet",
        "parquet-bad/unknown-logical-type.parquet",
        // Two of its columns have no name.
        "csv/fuzz-5003506164760576.csv",
    ] {
        let Some(path) = real_data(name) else { return };
        eprintln!("{name}: {:?}", load(&path));
    }
}

#[test]
fn csv_spectrum_reads_as_expected() {
    let Some(path) = real_data("csv/csv-spectrum.tar.zst") else {
        return;
    };
    let files = untar(&path);
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for (name, expected) in files.iter().filter(|(name, _)| name.ends_with(".json")) {
        let stem = Path::new(name).file_stem().unwrap().to_str().unwrap();
        let csv = files
            .iter()
            .find(|(name, _)| name.ends_with(&format!("/{stem}.csv")))
            .unwrap();
        let file = folder.path().join(format!("{stem}.csv"));
        std::fs::write(&file, &csv.1).unwrap();
        type Record = serde_json::Map<String, serde_json::Value>;
        let one: Result<Record, _> = serde_json::from_slice(expected);
        let expected: Vec<Record> = match one {
            Ok(one) => vec![one],
            Err(_) => serde_json::from_slice(expected).unwrap(),
        };
        let first = expected[0].keys().next().unwrap().clone();
        let (rows, _) = rows_of(&options(&file, &first, ValueSpec::Json)).unwrap();
        assert_eq!(rows.len(), expected.len(), "{stem}");
        checked += 1;
        // Its two halves have different telephone numbers.
        if stem == "location_coordinates" {
            continue;
        }
        for ((_, key, value), mut expected) in rows.into_iter().zip(expected) {
            let key_expected = expected.shift_remove(&first).unwrap();
            assert_eq!(
                String::from_utf8(key).unwrap(),
                key_expected.as_str().unwrap(),
                "{stem}"
            );
            let value: serde_json::Map<_, _> = serde_json::from_slice(&value).unwrap();
            assert_eq!(value, expected, "{stem}");
        }
    }
    assert_eq!(checked, 12);
}

/// Each document is a field of a line, if it is on one line: valid ones load, invalid ones are rejected.
#[test]
fn json_test_suite() {
    let Some(path) = real_data("json/JSONTestSuite-test_parsing.tar.zst") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (mut valid, mut invalid) = (0, 0);
    for (name, content) in untar(&path) {
        let name = name.rsplit('/').next().unwrap().to_owned();
        if content.contains(&b'\n') || content.contains(&0) || content.starts_with(b"\xef\xbb\xbf")
        {
            continue;
        }
        let file = folder.path().join("t.jsonl");
        std::fs::write(
            &file,
            [b"{\"id\":1,\"v\":", content.as_slice(), b"}\n"].concat(),
        )
        .unwrap();
        let json = rows_of(&InputOptions {
            ..options(&file, "id", ValueSpec::Json)
        });
        let packed = rows_of(&options(&file, "id", ValueSpec::MessagePack));
        if name.starts_with("y_") {
            json.unwrap_or_else(|e| panic!("{name}: {e}"));
            // JSON keeps the text unchanged; a MessagePack map cannot have duplicate names.
            if name.starts_with("y_object_duplicated_key") {
                let refused = packed.unwrap_err().to_string();
                assert!(refused.contains("\"a\" twice"), "{name}: {refused}");
            } else {
                packed.unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            valid += 1;
        // A document that is only truncated, or has trailing text, may become valid when it is wrapped: only the rest
        // is checked.
        } else if name.starts_with("n_")
            && serde_json::from_slice::<serde_json::Value>(
                &[b"{\"id\":1,\"v\":", content.as_slice(), b"}"].concat(),
            )
            .is_err()
        {
            assert!(json.is_err() || packed.is_err(), "{name}");
            invalid += 1;
        }
    }
    assert!(
        valid > 80 && invalid > 150,
        "{valid} valid, {invalid} invalid"
    );
}
