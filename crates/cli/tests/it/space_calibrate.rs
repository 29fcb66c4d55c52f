//! `larder space calibrate`: what a deployment's steps cost, and nothing left behind.

use std::process::{Command, Stdio};

use crate::support::{larder, run_failing, run_ok, spawn_server, text};

#[test]
fn an_interrupted_calibration_leaves_nothing_and_two_at_once_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(folder.path());
    let resp = server.resp();
    let shown = |line: &str| {
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        shown_reply(&resp.command(&parts).unwrap())
    };
    let empty = shown("FT._LIST");
    let file = folder.path().join("servers.toml");
    let mut calibration = larder()
        .args(["space", "calibrate", "--server", &server.http, "-o"])
        .arg(&file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is in the middle of its measurements when it has read some objects.
    while shown("FT._LIST").matches("calibrate").count() == 0 || shown("DBSIZE") != "20000" {
        let ended = calibration.try_wait().unwrap();
        assert!(ended.is_none(), "it has ended: {ended:?}");
        std::thread::yield_now();
    }
    let error = run_failing(4, ["space", "calibrate", "--server", &server.http]);
    assert!(
        error.contains("another calibration is under way"),
        "{error}"
    );
    let pid = calibration.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let done = calibration.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130), "{}", text(&done.stderr));
    assert_eq!(
        (shown("FT._LIST"), shown("DBSIZE")),
        (empty.clone(), "0".to_owned())
    );
    assert!(!file.exists());
    // What a killed one has left is removed when that is asked for.
    shown("FT.CREATE larder-calibrate PREFIX 1 larder-calibrate-none: SCHEMA objects30000 TAG");
    shown("HSET larder-calibrate:7 k k1");
    shown("HSET larder-calibrate:29999 k k1");
    run_failing(4, ["space", "calibrate", "--server", &server.http]);
    let cleaned = run_ok(["space", "calibrate", "--clean", "--server", &server.http]);
    assert_eq!(cleaned, "nothing of a calibration is left\n");
    assert_eq!(
        (shown("FT._LIST"), shown("DBSIZE")),
        (empty, "0".to_owned())
    );
    let nowhere = [
        "space",
        "calibrate",
        "--server",
        &server.http,
        "-o",
        "/nowhere/x.toml",
    ];
    assert!(run_failing(1, nowhere).contains("cannot write /nowhere/x.toml"));
}

#[test]
fn a_calibration_is_a_deployment_to_plan_for() {
    if !larder_testing::is_asked_for("LARDER_SLOW_TESTS", "it measures for a minute") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(folder.path());
    let (file, workload) = (
        folder.path().join("servers.toml"),
        folder.path().join("w.toml"),
    );
    let (file, workload) = (file.to_str().unwrap(), workload.to_str().unwrap());
    let begun = std::time::Instant::now();
    let at = ["--server", &server.http, "-o", file];
    run_ok([&["space", "calibrate", "--objects", "25500"], &at[..]].concat());
    eprintln!("measured in {:?}", begun.elapsed());
    let resp = server.resp();
    let left = shown_reply(&resp.command(&[b"DBSIZE"]).unwrap());
    assert_eq!(left, "0");
    let text = "objects = 100000\n[[attribute]]\nname = \"city\"\ndistinct = 5000\n[[query]]\nfrequency = 9\nequal = [\"city\"]\n";
    std::fs::write(workload, text).unwrap();
    let words = [
        "space",
        "plan",
        "--workload",
        workload,
        "--deployment",
        file,
    ];
    let planned = run_ok(words);
    assert!(planned.contains("ops/s"), "{planned}");
}

fn shown_reply(reply: &larder_client::Reply) -> String {
    use larder_client::Reply;
    match reply {
        Reply::Bulk(bytes) => text(bytes),
        Reply::Integer(number) => number.to_string(),
        Reply::Array(items) | Reply::Set(items) => {
            items.iter().map(shown_reply).collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    }
}
