//! `larder get PATH` and `larder dump PATH`: reads of versions on disk, without a server.

use larder_batch::{BuildOptions, Builder};

use crate::support::{run, run_failing, run_ok, spawn_server, text, write_csv};

#[test]
fn a_built_version_is_read_without_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("built");
    let builder = Builder::new(BuildOptions::new("s".parse().unwrap()), &out).unwrap();
    let mut rows = builder.writer();
    rows.push(0, b"a", b"one\ntwo").unwrap();
    rows.push(1, b"b", &[0xff, 0]).unwrap();
    rows.close().unwrap();
    builder.finish(&|_| {}).unwrap();
    let out = out.to_str().unwrap();

    assert_eq!(run_ok(["get", out, "a"]), "one\ntwo\n");
    assert_eq!(run(["get", out, "b"]).stdout, b"\xff\0\n");
    let absent = run(["get", out, "a", "z", "a"]);
    assert_eq!(absent.status.code(), Some(3));
    assert_eq!(text(&absent.stdout), "one\ntwo\none\ntwo\n");
    assert!(text(&absent.stderr).contains("has no key \"z\""));
    let json = run(["get", out, "b", "z", "", "--json"]);
    assert_eq!(json.status.code(), Some(3));
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        json,
        serde_json::json!([
            { "key": "b", "value": "\u{fffd}\0", "value_base64": "/wA=" },
            { "key": "z", "value": null },
            { "key": "", "value": null },
        ])
    );
    let dump = run_ok(["dump", out]);
    let mut lines: Vec<&str> = dump.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            r#"{"key":"a","value":"one\ntwo"}"#,
            "{\"key\":\"b\",\"value\":\"\u{fffd}\\u0000\",\"value_base64\":\"/wA=\"}",
        ]
    );
}

#[test]
fn a_store_folder_is_readable_while_its_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = spawn_server(&data);
    for value in ["one", "two"] {
        let input = write_csv(
            folder.path(),
            "in.csv",
            [("k".to_owned(), value.to_owned())],
        );
        let input = input.to_str().unwrap();
        let what = ["--store", "s", "--key", "key", "--value", "value"];
        let push = ["push", input, "--server", &server.http];
        run_ok(push.iter().chain(&what));
    }
    let store = data.join("stores/s");
    let store = store.to_str().unwrap();
    assert_eq!(run_ok(["get", store, "k"]), "two\n");
    assert_eq!(run_ok(["get", store, "k", "--version", "v1"]), "one\n");
    assert_eq!(
        run_ok(["get", store, "k", "--version", "previous"]),
        "one\n"
    );
    assert_eq!(run_ok(["get", store, "k", "--version", "live"]), "two\n");
    let rollback = ["store", "rollback", "s", "--server", &server.http];
    run_ok(rollback);
    let error = run_failing(3, ["get", store, "k", "--version", "previous"]);
    assert!(
        error.contains("has no previous version; it contains 1, 2"),
        "{error}"
    );
    let dump = run_ok(["dump", store, "--version", "1"]);
    let served = ["store", "dump", "s", "--version", "1"];
    let served = run_ok(served.iter().chain(&["--server", server.http.as_str()]));
    assert_eq!(dump, served, "a dump is the same with and without a server");
    let error = run_failing(3, ["get", store, "k", "--version", "9"]);
    assert!(
        error.contains("does not contain version 9; it contains 1, 2"),
        "{error}"
    );
}

#[test]
fn damage_and_wrong_paths_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().to_str().unwrap();
    let error = run_failing(3, ["get", empty, "k"]);
    assert!(error.contains("contains no version"), "{error}");
    run_failing(3, ["dump", &format!("{empty}/nowhere")]);
    run_failing(2, ["dump", "s3://bucket/built"]);
    let error = run_failing(3, ["get", "pymk", "42"]);
    assert!(error.contains("larder store get pymk KEY"), "{error}");
    let input = write_csv(folder.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let out = folder.path().join("built");
    let what = ["--store", "s", "--key", "key", "--partitions", "1", "--out"];
    let build = ["build", input.to_str().unwrap()];
    run_ok(build.iter().chain(&what).chain(&[out.to_str().unwrap()]));
    let segment = out.join("p00000.segment");
    let away = out.join("away");
    std::fs::rename(&segment, &away).unwrap();
    let error = run_failing(6, ["get", out.to_str().unwrap(), "k"]);
    assert!(
        error.contains("p00000.segment is damaged: its file is missing"),
        "{error}"
    );
    std::fs::rename(&away, &segment).unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    let at = bytes.windows(3).position(|part| part == b"\"v\"").unwrap();
    bytes[at + 1] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    for command in [
        &["get", out.to_str().unwrap(), "k"][..],
        &["dump", out.to_str().unwrap()],
    ] {
        let error = run_failing(6, command);
        assert!(error.contains("damaged"), "{error}");
    }
}
