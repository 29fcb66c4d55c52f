//! `larder space calibrate`: measures the costs of a deployment's operations, and leaves no objects behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use larder_client::RespClient;

use crate::support::{Server, larder, run_failing, run_ok, spawn_server, text};

#[test]
fn an_interrupted_calibration_leaves_no_objects_and_a_concurrent_one_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(folder.path());
    let resp = server.resp();
    let shown = |line: &str| send(&resp, line);
    let empty = shown("FT._LIST");
    let file = folder.path().join("servers.toml");
    let calibration = measuring(&server, &file);
    let error = run_failing(4, ["space", "calibrate", "--server", &server.http]);
    assert!(
        error.contains("another calibration is under way"),
        "{error}"
    );
    interrupt(&calibration);
    let done = calibration.wait_with_output().unwrap();
    let output = text(&done.stderr);
    assert_eq!(done.status.code(), Some(130), "{output}");
    assert!(
        output.contains("the measurements are lost unless they are complete")
            && output.contains("no partial output was left"),
        "{output}"
    );
    assert_eq!(
        (shown("FT._LIST"), shown("DBSIZE")),
        (empty.clone(), "0".to_owned())
    );
    assert!(!file.exists());
    // `--clean` removes the objects that a killed calibration has left.
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
fn a_second_interrupt_ends_a_calibration_immediately_and_names_the_cleanup_command() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let file = folder.path().join("servers.toml");
    let mut calibration = measuring(&server, &file);
    // A suspended server does not respond, so that the calibration cannot end by itself.
    server.signal("-STOP");
    let mut lines = BufReader::new(calibration.stderr.take().unwrap()).lines();
    interrupt(&calibration);
    let first = lines.find(|line| line.as_ref().unwrap().contains("interrupt again"));
    assert!(first.is_some());
    interrupt(&calibration);
    assert_eq!(calibration.wait().unwrap().code(), Some(130));
    let second: Vec<String> = lines.map(Result::unwrap).collect();
    let expected = "are left on the servers; `larder space calibrate --clean` removes them";
    assert!(
        second.iter().any(|line| line.ends_with(expected)),
        "{second:?}"
    );
    assert!(!file.exists());
    server.signal("-CONT");
    run_ok(["space", "calibrate", "--clean", "--server", &server.http]);
    assert_eq!(send(&server.resp(), "DBSIZE"), "0");
}

#[test]
fn a_calibration_is_usable_as_a_deployment() {
    if !larder_testing::is_enabled("LARDER_SLOW_TESTS", "it measures for a minute") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(folder.path());
    let (file, workload) = (
        folder.path().join("servers.toml"),
        folder.path().join("w.toml"),
    );
    let (file, workload) = (file.to_str().unwrap(), workload.to_str().unwrap());
    let started = std::time::Instant::now();
    let at = ["--server", &server.http, "-o", file];
    run_ok([&["space", "calibrate", "--objects", "25500"], &at[..]].concat());
    eprintln!("measured in {:?}", started.elapsed());
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

/// Starts a calibration, and waits until it has written its objects and measures.
fn measuring(server: &Server, file: &Path) -> Child {
    let mut calibration = larder()
        .args(["space", "calibrate", "--server", &server.http, "-o"])
        .arg(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let resp = server.resp();
    while send(&resp, "DBSIZE") != "20000" {
        let ended = calibration.try_wait().unwrap();
        assert!(ended.is_none(), "it has ended: {ended:?}");
        std::thread::yield_now();
    }
    calibration
}

fn interrupt(calibration: &Child) {
    let pid = calibration.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
}

fn send(resp: &RespClient, line: &str) -> String {
    let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    shown_reply(&resp.command(&parts).unwrap())
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
