//! CSV: the dialect, its errors, and results that do not depend on the threads.

use std::io::Write;

use larder_ingest::{NullPolicy, ValueSpec};
use larder_types::ByteSize;
use proptest::prelude::*;

use crate::support::{column, options, rows_of, texts};

fn file(name: &str, content: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    (folder, path)
}

#[track_caller]
fn check(content: &str, expected: &[&str]) {
    let (_folder, path) = file("t.csv", content.as_bytes());
    assert_eq!(
        texts(&options(&path, "k", column("v"))).unwrap(),
        expected,
        "{content:?}"
    );
}

#[track_caller]
fn check_error(content: &str, part: &str) {
    let (_folder, path) = file("t.csv", content.as_bytes());
    let error = texts(&options(&path, "k", column("v"))).unwrap_err();
    assert!(
        error.contains(part) && error.contains("t.csv"),
        "{content:?}: {error}"
    );
}

#[test]
fn the_dialect() {
    check("k,v\na,1\nb,2\n", &["a=1", "b=2"]);
    check("k,v\r\na,1\r\nb,2", &["a=1", "b=2"]);
    check("\u{feff}k,v\na,1\n", &["a=1"]);
    check("v,k\n1,a\n\n2,b\n", &["a=1", "b=2"]);
    check("k;v\na;1,5\n", &["a=1,5"]);
    check("k\tv\na\t1\n", &["a=1"]);
    check("k|v\na|\n", &["a="]);
    check(
        "\"k\",\"v\"\n\"a\",\"x\ny\"\nb,\"q\"\"q\"\n",
        &["a=x\ny", "b=q\"q"],
    );
    check(
        "k,v\na,5\" pipe\n\"b\",\"x\r\ny\"\r\n",
        &["a=5\" pipe", "b=x\r\ny"],
    );
    check("k,v\n", &[]);
    check("k,v", &[]);
    check("", &[]);
}

#[test]
fn a_header_may_be_longer_than_a_chunk() {
    // Chunks have 64 KiB if there is little memory.
    let names: Vec<String> = (0..20_000)
        .map(|number| format!("column{number}"))
        .collect();
    let cells = vec!["x"; names.len()];
    let content = format!("{},k,v\n{},a,1\n", names.join(","), cells.join(","));
    let (_folder, path) = file("t.csv", content.as_bytes());
    let mut options = options(&path, "k", column("v"));
    options.memory = ByteSize(1 << 20);
    options.threads = 4;
    assert_eq!(texts(&options).unwrap(), ["a=1"]);
}

#[test]
fn an_error_is_one_line_for_any_header() {
    let (_folder, path) = file("t.csv", b"\"a\nb\",c\n1,2\n");
    let error = texts(&options(&path, "k", column("v"))).unwrap_err();
    assert!(error.ends_with("the columns are a\\nb, c"), "{error}");
}

#[test]
fn errors_name_the_line() {
    check_error("k,v\na,1\nb\n", "line 3");
    check_error("k,v\na,1\nb,2,3\n", "3 fields");
    check_error("k,v\n\"a\nx\",1\nb\n", "line 4");
    check_error("k,v\na,1\nb,\"2\n", "line 3");
    check_error("k,v\n,1\n", "line 2");
    check_error("x,y\na,1\n", "x, y");
    check_error("k,k,v\na,b,1\n", "two columns");
    check_error("k,v\n\0\0\0\0\n", "zero bytes");
}

#[test]
fn text_after_a_closing_quote_is_rejected_with_its_line_and_column() {
    check_error(
        "k,v\n\"a\"x,1\n",
        "line 2: column 1: text follows the closing quote, which is byte 3 of the line",
    );
    check_error(
        "k,v\n\"a\",\"p\nq\" \n",
        "line 3: column 2: text follows the closing quote, which is byte 2",
    );
    check_error("\"k\"x,v\na,1\n", "line 1: column 1: text follows");
    // The default output of Spark.
    check_error("k,v\na,\"x\\\"y\"\n", "escape character \\");
    check_error("k,v\na,\"x\\\"\"\nb,1\n", "escape character \\");
    // The first such field is reported, even if the line has other faults.
    check_error("k,v\n\"a\"x,1,2,\"b\"y\n", "column 1: text follows");
}

#[test]
fn an_escape_character_escapes_quotes_and_itself() {
    let texts_with = |content: &str, escape| {
        let (_folder, path) = file("t.csv", content.as_bytes());
        let mut input = options(&path, "k", column("v"));
        input.escape = escape;
        texts(&input)
    };
    let spark = "k,v\na,\"x\\\"y\"\nb,\"\\\"\\\\\"\nc,C:\\x\nd,\"1,\\n\"\ne,\"\"\nf,\"p\\\"\nq\"\n";
    assert_eq!(
        texts_with(spark, Some(b'\\')).unwrap(),
        ["a=x\"y", "b=\"\\", "c=C:\\x", "d=1,\\n", "e=", "f=p\"\nq"]
    );
    assert_eq!(
        texts_with("k,v\na,\"x\"\"y\"\n", Some(b'"')).unwrap(),
        ["a=x\"y"]
    );
    let error = texts_with("k,v\na,\"x\"\"y\"\n", Some(b'\\')).unwrap_err();
    assert!(error.contains("line 2: column 2: text follows"), "{error}");
    let error = texts_with("k|v\na|1\n", Some(b'|')).unwrap_err();
    assert!(error.contains("the escape character"), "{error}");
}

#[test]
fn lines_that_end_with_cr_alone_are_rejected() {
    for content in [
        "k,v\ra,1\rb,2\r",
        "k,v\r\ra,1",
        "\"k\",\"v\"\r\"a\",\"1\"\r",
        "\n\nk,v\r\r\na,1\r\r\n",
    ] {
        check_error(content, "carriage return (CR)");
    }
    // The first line has another line ending.
    check_error("k,v\na,1\rb,2\r", "line 2: it has 3 fields");
    check_error("k,v\na,1\rb,2\r", "carriage return (CR)");
    // In quotes a CR is text; at the end of the file it is a line ending.
    check("\"k\",v\r\na,\"x\ry\"\r\nb,2\r", &["a=x\ry", "b=2"]);
    let with = |change: &dyn Fn(&mut larder_ingest::InputOptions)| {
        let (_folder, path) = file("t.csv", b"#made by hand\rk,v\ra,1\r");
        let mut input = options(&path, "k", column("v"));
        change(&mut input);
        texts(&input).unwrap_err()
    };
    for error in [
        with(&|input| input.skip_lines = 1),
        with(&|input| input.comment = Some(b'#')),
    ] {
        assert!(error.contains("carriage return (CR)"), "{error}");
    }
}

#[test]
fn keys_values_and_nulls() {
    let (_folder, path) = file("t.csv", b"a,b,c\n1,2,3\n,,4\n5,,\"q\"\"\n\"\n");
    let mut input = options(&path, "a,b", ValueSpec::Json);
    assert!(texts(&input).unwrap_err().contains("line 3"));
    // An empty text is not null.
    input.null_key = NullPolicy::Skip;
    assert!(texts(&input).unwrap_err().contains("line 3"));
    let (_folder, path) = file("t.csv", b"a,b,c\n1,2,3\n5,,\"q\"\"\n\"\n");
    input.inputs = options(&path, "a,b", ValueSpec::Json).inputs;
    assert_eq!(
        texts(&input).unwrap(),
        ["1:2={\"c\":\"3\"}", "5:={\"c\":\"q\\\"\\n\"}"]
    );
    input.key_separator = b'|';
    input.value = ValueSpec::MessagePack;
    assert_eq!(rows_of(&input).unwrap().0[0].2, b"\x81\xa1c\xa13");
    input.header = Some(false);
    input.key = vec!["1".into()];
    input.value = column("3");
    assert_eq!(texts(&input).unwrap()[0], "a=c");
    input.value_bytes_max = 0;
    assert!(texts(&input).unwrap_err().contains("line 1"));
}

#[test]
fn skipped_lines_and_comments_count_in_the_lines_of_errors() {
    let content = b"junk\n\"more junk\n\n#c\nk,v\na,1\n# \"x\nb\n";
    let (_folder, path) = file("t.csv", content);
    let mut input = options(&path, "k", column("v"));
    (input.skip_lines, input.comment) = (2, Some(b'#'));
    let error = texts(&input).unwrap_err();
    assert!(
        error.contains("line 8") && error.contains("1 field"),
        "{error}"
    );
    let (_folder, path) = file("t.csv", &content[..content.len() - 2]);
    input.inputs = options(&path, "k", column("v")).inputs;
    assert_eq!(texts(&input).unwrap(), ["a=1"]);

    // Errors for an open quote, and for a header that is not UTF-8, also have the file's line numbers.
    for (content, line) in [
        (&b"junk\njunk\n#c\nk,v\na,\"1\n"[..], "line 5"),
        (b"junk\njunk\n#c\n\nk,\xff\na,1\n", "line 5"),
    ] {
        let (_folder, path) = file("t.csv", content);
        input.inputs = options(&path, "k", column("v")).inputs;
        let error = texts(&input).unwrap_err();
        assert!(error.contains(line), "{error}");
    }

    let (_folder, path) = file("t.csv", b"a,1\n");
    let mut named = options(&path, "k", column("v"));
    named.columns = Some(vec!["k".into(), "v".into()]);
    assert_eq!(texts(&named).unwrap(), ["a=1"]);
    named.columns = Some(vec!["k".into()]);
    let error = texts(&named).unwrap_err();
    assert!(
        error.contains("1 columns are named") && error.contains("2 fields"),
        "{error}"
    );
    named.format = Some(larder_ingest::Format::JsonLines);
    let error = texts(&named).unwrap_err();
    assert!(
        error.contains("names of columns apply only to CSV, and this file is jsonl"),
        "{error}"
    );
}

#[test]
fn a_cell_of_the_wrong_type_is_rejected_with_its_column_and_line() {
    use larder_ingest::CellType;
    for (cell_type, cell) in [
        (CellType::Int, "1.5"),
        (CellType::Int, "18446744073709551616"),
        (CellType::Float, "1,5"),
        (CellType::Float, "1e999"),
        (CellType::Bool, "maybe"),
        (CellType::Json, "{"),
    ] {
        let (_folder, path) = file("t.csv", format!("k;v\na;\nb;{cell}\n").as_bytes());
        let mut input = options(&path, "k", ValueSpec::Json);
        input.types = vec![("v".into(), cell_type)];
        let error = texts(&input).unwrap_err();
        assert!(
            error.contains("line 3") && error.contains("\"v\""),
            "{cell}: {error}"
        );
    }
    let (_folder, path) = file("t.csv", b"k,v\na,007\n");
    let mut input = options(&path, "k", ValueSpec::MessagePack);
    input.types = vec![("v".into(), CellType::Int)];
    assert_eq!(rows_of(&input).unwrap().0[0].2, b"\x81\xa1v\x07");
    input.types = vec![("w".into(), CellType::Int)];
    assert!(
        texts(&input)
            .unwrap_err()
            .contains("there is no column \"w\"")
    );
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(content).unwrap();
    out.finish().unwrap()
}

#[test]
fn compressed_files_load_completely_or_fail() {
    let content: String = (0..20_000).map(|i| format!("k{i},value {i}\n")).collect();
    let (first, second) = content.split_at(content.len() / 2);
    let members = [
        gzip(format!("k,v\n{first}").as_bytes()),
        gzip(second.as_bytes()),
    ]
    .concat();
    let zstd = zstd::encode_all(format!("k,v\n{content}").as_bytes(), 1).unwrap();
    for (name, packed) in [("t.csv.gz", members), ("t.csv.zst", zstd)] {
        let (_folder, path) = file(name, &packed);
        assert_eq!(
            rows_of(&options(&path, "k", column("v"))).unwrap().1.rows,
            20_000
        );
        let (_folder, path) = file(name, &packed[..packed.len() - 9]);
        let error = texts(&options(&path, "k", column("v"))).unwrap_err();
        assert!(error.contains(name) && error.contains("cut off"), "{error}");
    }
    let (_folder, path) = file("t.csv.gz", b"k,v\na,1\n");
    assert!(
        texts(&options(&path, "k", column("v")))
            .unwrap_err()
            .contains("gzip")
    );
}

#[test]
fn threads_and_chunks_do_not_change_the_rows() {
    let mut content = String::from("k,v\n");
    for i in 0..60_000 {
        let value = if i % 7 == 0 { "\"a\nb\"\"c\"" } else { "plain" };
        content.push_str(&format!("{i},{value}\n"));
    }
    let (_folder, path) = file("t.csv", content.as_bytes());
    let mut input = options(&path, "k", column("v"));
    input.memory = ByteSize(64 << 10);
    input.threads = 1;
    let (alone, _) = rows_of(&input).unwrap();
    assert_eq!(alone.len(), 60_000);
    assert!(alone.windows(2).all(|pair| {
        let number =
            |row: &crate::support::Row| String::from_utf8_lossy(&row.1).parse::<u64>().unwrap();
        number(&pair[0]) + 1 == number(&pair[1])
    }));
    input.threads = 4;
    assert_eq!(rows_of(&input).unwrap().0, alone);
    // An error in a late chunk still has the right line: each multiple of 7 takes two lines.
    content.push_str("bad\n");
    std::fs::write(&path, &content).unwrap();
    let line = content.lines().count();
    let error = texts(&input).unwrap_err();
    assert!(
        error.contains(&format!("line {line}:")),
        "{error}, not line {line}"
    );
}

#[test]
fn many_files_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..20 {
        std::fs::write(
            folder.path().join(format!("p{i:02}.csv")),
            format!("k,v\nk{i:02},{i}\n"),
        )
        .unwrap();
    }
    std::fs::write(folder.path().join("_SUCCESS"), "").unwrap();
    let expected: Vec<String> = (0..20).map(|i| format!("k{i:02}={i}")).collect();
    assert_eq!(
        texts(&options(folder.path(), "k", column("v"))).unwrap(),
        expected
    );
    let glob = folder.path().join("p*.csv");
    assert_eq!(texts(&options(&glob, "k", column("v"))).unwrap(), expected);
    let error = texts(&options(folder.path().join("q*.csv"), "k", column("v"))).unwrap_err();
    assert!(error.contains("q*.csv"), "{error}");
}

/// Returns the records that csv-core parses from a text, without empty lines.
fn oracle(text: &[u8], escape: Option<u8>) -> Vec<Vec<Vec<u8>>> {
    let mut reader = csv_core::ReaderBuilder::new()
        .escape(escape)
        .double_quote(escape.is_none())
        .build();
    let (mut records, mut record, mut field) = (Vec::new(), Vec::new(), Vec::new());
    let mut at = 0;
    loop {
        let mut out = [0; 64];
        let (result, read, written) = reader.read_field(&text[at..], &mut out);
        at += read;
        field.extend_from_slice(&out[..written]);
        match result {
            csv_core::ReadFieldResult::InputEmpty | csv_core::ReadFieldResult::OutputFull => {}
            csv_core::ReadFieldResult::Field { record_end } => {
                record.push(std::mem::take(&mut field));
                if record_end {
                    records.push(std::mem::take(&mut record));
                }
            }
            csv_core::ReadFieldResult::End => return records,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_those_of_csv_core(
        rows in proptest::collection::vec((0..3_u8, "[ab\",\n \\\\]{0,6}", "[ab\" \\\\]{0,5}"), 1..40),
        escape in proptest::option::of(Just(b'\\')),
        crlf in any::<bool>(),
        last_newline in any::<bool>(),
    ) {
        let end = if crlf { "\r\n" } else { "\n" };
        let mut text = format!("k,v,w{end}");
        for (index, (style, quoted, plain)) in rows.iter().enumerate() {
            let quoted = match escape {
                None => quoted.replace('"', "\"\""),
                Some(_) => quoted.replace('\\', r"\\").replace('"', r#"\""#),
            };
            // A plain field must not begin with a quote, which would make it quoted.
            let plain = format!("p{plain}");
            match style {
                0 => text.push_str(&format!("{index},\"{quoted}\",{plain}")),
                1 => text.push_str(&format!("{index},{plain},\"{quoted}\"")),
                _ => text.push_str(&format!("{index},,\"{quoted}\"")),
            }
            if last_newline || index + 1 < rows.len() {
                text.push_str(end);
            }
        }
        let (_folder, path) = file("t.csv", text.as_bytes());
        let mut input = options(&path, "k", column("v"));
        input.escape = escape;
        for column_index in [1, 2] {
            input.value = column(["k", "v", "w"][column_index]);
            let (found, _) = rows_of(&input).unwrap();
            let expected = &oracle(text.as_bytes(), escape)[1..];
            prop_assert_eq!(found.len(), expected.len());
            for (row, record) in found.iter().zip(expected) {
                prop_assert_eq!(&row.1, &record[0]);
                prop_assert_eq!(&row.2, &record[column_index], "{:?}", text);
            }
        }
    }
}
