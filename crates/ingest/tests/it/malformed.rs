//! Records that cannot be parsed: skipped on request, each with its position.

use std::sync::Mutex;

use larder_ingest::{Format, InputOptions, RowSink, SinkError, ingest_text};

#[derive(Default)]
struct Collected {
    rows: Vec<String>,
    malformed: Vec<(u64, String)>,
}

struct Sink<'a>(&'a Mutex<Collected>);

impl RowSink for Sink<'_> {
    fn row(&mut self, _seq: u64, _key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        let value = String::from_utf8_lossy(value).into_owned();
        self.0.lock().unwrap().rows.push(value);
        Ok(())
    }

    fn malformed(&mut self, seq: u64, reason: String) -> Result<(), SinkError> {
        self.0.lock().unwrap().malformed.push((seq, reason));
        Ok(())
    }
}

#[track_caller]
fn check(format: Format, text: &str, rows: &[&str], malformed: &[(u64, &str)]) {
    let options = InputOptions {
        whole_rows: true,
        skip_malformed: true,
        ..InputOptions::default()
    };
    let seen = Mutex::default();
    let text = text.as_bytes().to_vec();
    let count = ingest_text(text, format, &options, 1 << 20, Box::new(Sink(&seen))).unwrap();
    let seen = seen.into_inner().unwrap();
    assert_eq!(
        (seen.rows.as_slice(), count),
        (
            &rows.iter().map(|it| it.to_string()).collect::<Vec<_>>()[..],
            rows.len() as u64
        )
    );
    assert_eq!(
        seen.malformed.len(),
        malformed.len(),
        "{:?}",
        seen.malformed
    );
    for ((seq, reason), (line, part)) in seen.malformed.iter().zip(malformed) {
        assert!(seq + 1 == *line && reason.contains(part), "{seq}: {reason}");
        assert!(
            !reason.contains("line 1"),
            "the place is told beside the reason: {reason}"
        );
    }
}

#[test]
fn malformed_lines_are_skipped_and_each_is_reported_once() {
    let rows = [r#"{"a":"1","b":"2"}"#, r#"{"a":"5","b":"6"}"#];
    check(Format::Csv, "a,b\n1,2\n3\n5,6\n", &rows, &[(3, "1 field")]);
    check(
        Format::Csv,
        "a,b\n1,2\n\"x\"y,3\n\"p\nq\"r,4\n5,6\n",
        &rows,
        &[(3, "text follows"), (5, "text follows")],
    );
    check(
        Format::JsonLines,
        "{\"a\":1}\n{\"a\":}\nno\n{\"a\":2}\n",
        &[r#"{"a":1}"#, r#"{"a":2}"#],
        &[(2, "at column 6"), (3, "no object")],
    );
}

#[test]
fn an_unclosed_quote_is_an_error_even_when_malformed_lines_are_skipped() {
    let options = InputOptions {
        whole_rows: true,
        skip_malformed: true,
        ..InputOptions::default()
    };
    let seen = Mutex::default();
    let text = b"a,b\n1,\"2\n3,4\n".to_vec();
    let loaded = ingest_text(text, Format::Csv, &options, 1 << 20, Box::new(Sink(&seen)));
    let error = loaded.unwrap_err().to_string();
    assert!(
        error.contains("line 2") && error.contains("later rows cannot be recognized"),
        "{error}"
    );
}
