//! Bytes that become rows: CSV, JSON lines, and bundles of rows.
//!
//! The first byte is not part of the text: its bits select the options, so that one run covers all of them. Seeds begin
//! with a letter. `@` selects a column as the value, `A` JSON, and `B` MessagePack; the letters 4, 8, 16 and 32 further
//! on select more options.

use std::sync::{Arc, Mutex};

use larder_ingest::{
    At, CellType, Error, Format, InputOptions, NullPolicy, RowSink, SinkError, ValueSpec,
    bundle_of, ingest_text, rows_of_bundle,
};
use serde::de::IgnoredAny;

type Row = (Vec<u8>, Vec<u8>);

/// Any bytes are rows, or are rejected with an existing line number. Small chunks yield the same rows. Rows that are
/// written as CSV and read again are unchanged.
pub fn csv(bytes: &[u8]) {
    let Some((choice, text)) = bytes.split_first() else {
        return;
    };
    let mut options = chosen(*choice);
    if choice & 4 != 0 {
        options.comment = Some(b'#');
    }
    if choice & 8 != 0 {
        options.header = Some(false);
        options.key = vec!["1".into()];
        if let ValueSpec::Column(name) = &mut options.value {
            *name = "2".into();
        }
    }
    if choice & 16 != 0 && choice & 8 == 0 {
        let types = [
            CellType::Int,
            CellType::Float,
            CellType::Bool,
            CellType::Json,
        ];
        let names = ["int", "float", "bool", "json"].map(str::to_owned);
        options.types = names.into_iter().zip(types).collect();
    }
    if choice & 32 != 0 {
        options.escape = Some(b'\\');
    }
    let complete = read(text, Format::Csv, &options, usize::MAX);
    check(text, &options, &complete);
    check_cut(text, Format::Csv, &options, &complete);
    if let Ok(rows) = complete
        && matches!(options.value, ValueSpec::Column(_))
    {
        let again = InputOptions {
            header: Some(false),
            key: vec!["1".into()],
            value: ValueSpec::Column("2".into()),
            delimiter: Some(b','),
            ..InputOptions::default()
        };
        let written = write_csv(&rows);
        if !written.iter().take(1024).any(|byte| *byte == 0) {
            let read = read(&written, Format::Csv, &again, usize::MAX);
            assert_eq!(read.map_err(|error| error.to_string()), Ok(rows));
        }
    }
}

/// Any bytes are rows, or are rejected with an existing line number. Small chunks yield the same rows.
pub fn json_lines(bytes: &[u8]) {
    let Some((choice, text)) = bytes.split_first() else {
        return;
    };
    let mut options = chosen(*choice);
    if choice & 4 != 0 {
        (options.null_key, options.null_value) = (NullPolicy::Skip, NullPolicy::Skip);
    }
    if choice & 8 != 0 {
        options.key.push("w".into());
    }
    let complete = read(text, Format::JsonLines, &options, usize::MAX);
    check(text, &options, &complete);
    check_cut(text, Format::JsonLines, &options, &complete);
}

/// Any bytes are rows up to their end, or rows followed by an error. Encoding the rows yields the same bytes.
pub fn bundle(bytes: &[u8]) {
    let mut read: Vec<_> = rows_of_bundle(bytes).collect();
    let is_damaged = read.last().is_some_and(Result::is_err);
    if is_damaged {
        read.pop();
    }
    let rows = read
        .into_iter()
        .map(|row| row.expect("only the last is an error"));
    let written = bundle_of(rows);
    if is_damaged {
        assert!(bytes.len() > written.len() && bytes.starts_with(&written))
    } else {
        assert_eq!(written, bytes)
    }
}

/// Returns the number of complete rows at the start of the bytes.
pub fn rows_in_bundle(bytes: &[u8]) -> usize {
    rows_of_bundle(bytes).filter(Result::is_ok).count()
}

fn chosen(choice: u8) -> InputOptions {
    InputOptions {
        key: vec!["k".into()],
        value: match choice & 3 {
            0 | 3 => ValueSpec::Column("v".into()),
            1 => ValueSpec::Json,
            _ => ValueSpec::MessagePack,
        },
        threads: 1,
        ..InputOptions::default()
    }
}

/// Checks that values have the selected format, and that an error refers to an existing line.
fn check(text: &[u8], options: &InputOptions, outcome: &Result<Vec<Row>, Error>) {
    match outcome {
        Ok(rows) => {
            for (key, value) in rows {
                assert!(!key.is_empty());
                match options.value {
                    ValueSpec::Column(_) => {}
                    ValueSpec::Json => drop(
                        serde_json::from_slice::<IgnoredAny>(value).expect("the value is JSON"),
                    ),
                    ValueSpec::MessagePack => drop(
                        rmp_serde::from_slice::<IgnoredAny>(value)
                            .expect("the value is MessagePack"),
                    ),
                }
            }
        }
        Err(error) => {
            let lines = text.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            if let Error::Data { at, .. } | Error::Column { at, .. } = error
                && let At::Line(line) = at
            {
                assert!((1..=lines).contains(line), "{error} of {lines} lines");
            }
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}

/// Compares with chunks whose size depends on the first byte.
fn check_cut(
    text: &[u8],
    format: Format,
    options: &InputOptions,
    complete: &Result<Vec<Row>, Error>,
) {
    // Zero bytes are detected per chunk.
    if text.contains(&0) {
        return;
    }
    let chunk_bytes = 4 + usize::from(text.first().copied().unwrap_or_default() % 64);
    let cut = read(text, format, options, chunk_bytes);
    match (complete, &cut) {
        (Ok(complete), Ok(cut)) => assert_eq!(cut, complete, "in chunks of {chunk_bytes}"),
        // A chunk may be too small for all comments at the start of a file. A CR in them is then taken for a line end.
        (Ok(_), Err(error)) => {
            let error = error.to_string();
            let is_head = error.contains("empty lines and comments")
                || options.comment.is_some() && error.contains("carriage return");
            assert!(is_head, "only in chunks of {chunk_bytes}: {error}");
        }
        (Err(error), Ok(_)) => panic!("not in chunks of {chunk_bytes}: {error}"),
        (Err(_), Err(_)) => {}
    }
}

fn read(
    text: &[u8],
    format: Format,
    options: &InputOptions,
    chunk_bytes: usize,
) -> Result<Vec<Row>, Error> {
    let rows = Arc::new(Mutex::new(Vec::new()));
    let sink = Box::new(CollectedRows(Arc::clone(&rows)));
    let chunk_bytes = chunk_bytes.min(text.len() + 1);
    let count = ingest_text(text.to_vec(), format, options, chunk_bytes, sink)?;
    let rows = std::mem::take(&mut *rows.lock().expect("no panic"));
    assert_eq!(rows.len() as u64, count);
    Ok(rows)
}

fn write_csv(rows: &[Row]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in rows {
        for (cell, end) in [(key, b','), (value, b'\n')] {
            out.push(b'"');
            for &byte in cell {
                if byte == b'"' {
                    out.push(b'"');
                }
                out.push(byte);
            }
            out.extend([b'"', end]);
        }
    }
    out
}

struct CollectedRows(Arc<Mutex<Vec<Row>>>);

impl RowSink for CollectedRows {
    fn row(&mut self, _: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        let mut rows = self.0.lock().expect("no panic");
        rows.push((key.to_vec(), value.to_vec()));
        Ok(())
    }
}
