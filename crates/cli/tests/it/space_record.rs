//! `larder space record`: records the workload of a space.

use std::process::Stdio;

use crate::support::{larder, run_failing, run_ok, spawn_server, text};

#[test]
fn recorded_operations_are_a_workload_for_planning() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(folder.path());
    let resp = server.resp();
    let command = |line: &str| {
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        resp.command(&parts).unwrap();
    };
    command("FT.CREATE hotels PREFIX 1 hotel: SCHEMA city TAG price NUMERIC");
    for number in 0..100 {
        command(&format!(
            "HSET hotel:{number} city c{} price {number}",
            number % 10
        ));
    }
    let file = folder.path().join("hotels.toml");
    let file = file.to_str().unwrap();
    let recording = larder()
        .args(["space", "record", "--space", "hotels", "--seconds", "600"])
        .args(["-o", file, "--server", &server.http])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let is_on = || {
        let parts: [&[u8]; 3] = [b"SPACE.RECORD", b"GET", b"hotels"];
        resp.command(&parts).is_ok()
    };
    while !is_on() {
        std::thread::yield_now();
    }
    for number in 0..10 {
        command(&format!("FT.SEARCH hotels @city:{{c{number}}}"));
        command("FT.SEARCH hotels @price<=24");
        command(&format!("HSET hotel:{number} price 200"));
    }
    let again = ["space", "record", "--space", "hotels", "--seconds", "1"];
    let error = run_failing(4, [&again[..], &["--server", &server.http]].concat());
    assert!(
        error.contains("hotels is being recorded already"),
        "{error}"
    );
    // A recording in progress can already be used for a plan.
    let arguments = ["--space", "hotels", "--server", &server.http, "--json"];
    let plan = run_ok([&["space", "plan", "--workload", "recorded"], &arguments[..]].concat());
    assert!(plan.contains("\"name\": \"by city\""), "{plan}");
    // Ctrl-C ends the recording and keeps what was recorded.
    let pid = recording.id().to_string();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(killed.unwrap().success());
    let done = recording.wait_with_output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let output = text(&done.stdout);
    assert!(
        output.starts_with("20 searches in 2 classes, 10 modifications in 1, 0 reads by key, in "),
        "{output}"
    );
    let workload = std::fs::read_to_string(file).unwrap();
    assert!(workload.contains("objects = 100\n"), "{workload}");
    assert!(
        workload.contains("[query.range]\nprice = 0.25"),
        "{workload}"
    );
    assert!(!is_on(), "it is ended at the server, too");
    let table = run_ok(["space", "plan", "--workload", file]);
    assert!(
        table.contains("by city") && table.contains("price changes"),
        "{table}"
    );
}

#[test]
fn an_impossible_recording_is_rejected_before_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(folder.path());
    let record = [
        "space",
        "record",
        "--server",
        &server.http,
        "--space",
        "inns",
    ];
    let error = run_failing(3, [&record[..], &["--seconds", "1"]].concat());
    assert!(error.contains("there is no space \"inns\""), "{error}");
    let error = run_failing(2, [&record[..], &["--seconds", "0"]].concat());
    assert!(error.contains("--seconds 0: it is from 1 to"), "{error}");
    let nowhere = ["--seconds", "1", "-o", "/nowhere/hotels.toml"];
    let error = run_failing(1, [&record[..], &nowhere].concat());
    assert!(
        error.contains("cannot write /nowhere/hotels.toml"),
        "{error}"
    );
    let parts: Vec<&[u8]> = "FT.CREATE inns SCHEMA city TAG"
        .split(' ')
        .map(str::as_bytes)
        .collect();
    server.resp().command(&parts).unwrap();
    let error = run_failing(1, [&record[..], &["--seconds", "1"]].concat());
    assert!(error.contains("nothing was done with inns in "), "{error}");
    let plan = ["space", "plan", "--workload", "recorded"];
    let error = run_failing(2, plan);
    assert!(
        error.contains("name the recorded space with --space"),
        "{error}"
    );
}
