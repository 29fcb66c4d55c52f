//! Inputs of `larder build`, and the errors of those that it rejects.

use std::path::Path;

use crate::support::{larder, run_ok, spawn_server};

fn write(folder: &Path, name: &str, content: &str) -> String {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the error message of a build that must fail.
#[track_caller]
fn refusal(folder: &Path, words: &[&str]) -> String {
    let output = larder()
        .args(["build", "--store", "s", "--out"])
        .arg(folder.join("out"))
        .args(words)
        .output()
        .unwrap();
    assert!(!output.status.success(), "{words:?} succeeded");
    assert!(!folder.join("out").exists(), "nothing is left behind");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn duplicates_are_reported_with_both_files_and_lines() {
    let temp = tempfile::tempdir().unwrap();
    let csv = write(temp.path(), "a.csv", "id,v\n1,x\n\n\"2\",\"y\nz\"\n3,x\n");
    let jsonl = write(temp.path(), "b.jsonl", "{\"id\":7}\n\n{\"id\":3}\n");
    let output = refusal(temp.path(), &["--key", "id", &csv, &jsonl]);
    assert!(
        output.contains("two rows have the key \"3\"")
            && output.contains("a.csv, line 6 and ")
            && output.contains("b.jsonl, line 3)"),
        "{output}"
    );
    let many: String = (0..300_000).map(|n| format!("{n},{n}\n")).collect();
    let big = write(
        temp.path(),
        "big.csv",
        &format!("id,v\n{many}299999,again\n"),
    );
    let output = refusal(temp.path(), &["--key", "id", &big]);
    assert!(
        output.contains("big.csv, line 300001 and ") && output.contains("big.csv, line 300002)"),
        "{output}"
    );
    // Skipped lines count in the line numbers, also in a file whose data is a single line.
    let skipped = write(temp.path(), "skipped.csv", "made by\na tool\n#c\n7,x\n");
    let single = write(temp.path(), "single.csv", "a\nb\n7,y");
    let named = ["--columns", "id,v", "--comment", "#", "--skip-lines", "2"];
    let words = [&["--key", "id", &skipped, &single][..], &named[..]].concat();
    let output = refusal(temp.path(), &words);
    assert!(
        output.contains("skipped.csv, line 4 and ") && output.contains("single.csv, line 3)"),
        "{output}"
    );
}

#[test]
fn irregular_csv_loads_with_names_and_types() {
    let temp = tempfile::tempdir().unwrap();
    let server = spawn_server(&temp.path().join("data"));
    let messy = write(
        temp.path(),
        "messy.csv",
        "made by a tool\n# \"it\n# says, so\n7,1.50,true,\"{\"\"a\"\": [1]}\",\n# \"end\n8,,f,,x\n",
    );
    run_ok([
        "push",
        &messy,
        "--store",
        "s",
        "--key",
        "id",
        "--columns",
        "id,price,is:new,tags,note",
        "--skip-lines",
        "1",
        "--comment",
        "#",
        "--schema",
        "price:float,is:new:bool,tags:json",
        "--server",
        &server.http,
    ]);
    let client = server.resp();
    assert_eq!(
        client.get("s:7").unwrap().unwrap(),
        br#"{"price":1.5,"is:new":true,"tags":{"a": [1]},"note":""}"#
    );
    assert_eq!(
        client.get("s:8").unwrap().unwrap(),
        br#"{"price":null,"is:new":false,"tags":null,"note":"x"}"#
    );
    let tables = temp.path().join("events");
    write(&tables, "day=2024-01-02/part-0.csv", "id,v\na:b,1\n");
    write(&tables, "_SUCCESS", "");
    let tables = tables.to_str().unwrap();
    let words = [
        "push", tables, "--store", "e", "--key", "id,day", "--server",
    ];
    run_ok(words.into_iter().chain([server.http.as_str()]));
    assert_eq!(
        client.get("e:a%3Ab:2024-01-02").unwrap().unwrap(),
        br#"{"v":"1"}"#
    );
}

#[test]
fn a_row_that_exceeds_the_memory_is_reported_with_the_needed_amount() {
    let temp = tempfile::tempdir().unwrap();
    let long = format!("id,v\n1,{}\n", "x".repeat(17 << 20));
    let csv = write(temp.path(), "long.csv", &long);
    let output = refusal(temp.path(), &["--key", "id", "--memory", "64MiB", &csv]);
    assert!(
        output.contains("long.csv")
            && output.contains("--memory is 64MiB")
            && output.contains("a fifth"),
        "{output}"
    );
    let long = format!("id,v\n1,{}\n", "x".repeat(15 << 20));
    let csv = write(temp.path(), "long.csv", &long);
    let words = ["--key", "id", "--value", "v", "--memory", "64MiB", &csv];
    let output = refusal(temp.path(), &words);
    assert!(
        output.contains("the value of key \"1\" has 15728640 bytes")
            && output.contains("give --memory 75MiB or more"),
        "{output}"
    );
    let words = ["--key", "id", "--schema", "v:number", &csv];
    assert!(refusal(temp.path(), &words).contains("no type of a CSV column"));
}
