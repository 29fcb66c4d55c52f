//! One table, written by other programs in every format and with all of their options; see `tests/golden/writers.py`.

use std::path::Path;

use larder_ingest::ValueSpec;
use serde_json::{Value, json};

use crate::support::{column, options, rows_of, texts, untar};

/// Returns the rows by key. A file may lack columns that its format or its writer does not support.
fn rows() -> [(&'static str, Value); 3] {
    [
        (
            "1",
            json!({
                "text": "a \"quoted\", text\nof two lines", "number": 1.5, "single": 0.25, "flag": true, "day": "2024-02-29",
                "at": "2024-02-29T12:30:15.5", "price": "12.50", "bytes": "AP8=", "list": [1, null, 3], "struct": {"a": 1, "b": "x"},
            }),
        ),
        (
            "2",
            json!({
                "text": null, "number": null, "single": null, "flag": null, "day": null, "at": null, "price": null, "bytes": null,
                "list": null, "struct": null,
            }),
        ),
        (
            "3",
            json!({
                "text": "C:\\dir\\", "number": -2.0, "single": 1e10, "flag": false, "day": "1969-12-31", "at": "1969-12-31T23:59:59",
                "price": "-0.05", "bytes": "", "list": [], "struct": {"a": null, "b": "né, so long that no view holds it"},
            }),
        ),
    ]
}

const TEXTS: [&str; 6] = [
    "1=a \"quoted\", text\nof two lines",
    "2=né; x|y",
    "3=C:\\dir\\",
    "4=ends with a backslash and a quote\\\"",
    "5=\"",
    "6=a,\\b",
];

/// Returns the number of columns of a file, without the key.
fn width(name: &str) -> usize {
    match name {
        _ if name.contains("fastparquet") => 4,
        _ if name.ends_with(".avro") || name.ends_with(".jsonl") => 5,
        _ => 10,
    }
}

fn check(path: &Path, name: &str) -> Result<(), String> {
    if name.contains(".csv") {
        let mut input = options(path, "id", column("text"));
        input.escape = name.contains("escape").then_some(b'\\');
        let found = texts(&input)?;
        return if found == TEXTS {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        };
    }
    let found = rows_of(&options(path, "id", ValueSpec::Json)).map_err(|e| e.to_string())?;
    if found.0.len() != rows().len() {
        return Err(format!("{} rows", found.0.len()));
    }
    for ((_, key, value), (expected_key, expected)) in found.0.iter().zip(rows()) {
        let value: serde_json::Map<String, Value> = serde_json::from_slice(value).unwrap();
        let is_same = |(name, cell): (&String, &Value)| expected.get(name) == Some(cell);
        let is_complete = value.len() == width(name) && value.iter().all(is_same);
        if key != expected_key.as_bytes() || !is_complete {
            return Err(format!("{} is {value:?}", String::from_utf8_lossy(key)));
        }
    }
    Ok(())
}

#[test]
fn a_table_reads_the_same_from_every_writer_and_option() {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/writers.tar.zst");
    let files = untar(&archive);
    assert!(files.len() > 180, "{} files", files.len());
    let folder = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    for (name, content) in files {
        let name = name.trim_start_matches("./");
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        if let Err(error) = check(&path, name) {
            faults.push(format!("{name}: {error}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
