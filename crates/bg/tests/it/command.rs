//! Tests of the command line.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const SMALL: [&str; 6] = ["--members", "300", "--friends", "10", "--resources", "5"];

fn bg(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bg"));
    command.args(arguments);
    command
}

fn output_text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_run_prints_a_table_and_its_trace_can_be_validated() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let mut run = bg(&[
        "run",
        "--store",
        "memory",
        "--threads",
        "4",
        "--duration",
        "200ms",
    ]);
    let output = run.args(SMALL).arg("--trace").arg(&trace).output().unwrap();
    let (out, err) = output_text(&output);
    assert!(output.status.success(), "{err}");
    for expected in [
        "view-profile",
        "skipped",
        "of the draws went to the most popular 20 %",
        "unpredictable 0 (0.0000 %)",
        "processors",
        "coordinated omission",
    ] {
        assert!(out.contains(expected), "{out}");
    }
    let output = bg(&["validate", "--json"]).arg(&trace).output().unwrap();
    let judged: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let total = &judged["total"];
    assert!(total["reads"].as_u64().unwrap() > 100 && total["unpredictable"] == 0);
}

#[test]
fn a_trace_contains_its_friendship_graph() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    for shape in [["--friendships", "zipf"], ["--mix", "feeds"]] {
        let mut run = bg(&["run", "--store", "memory", "--duration", "100ms", "--quiet"]);
        let run = run
            .args(["--threads", "9", "--invitations", "2", "--json"])
            .args(SMALL);
        let output = run.args(shape).arg("--trace").arg(&trace).output().unwrap();
        let (out, err) = output_text(&output);
        assert!(output.status.success(), "{err}");
        let measured: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(measured["reads"]["unpredictable"], 0, "{out}");
        std::fs::remove_dir_all(&trace).unwrap();
    }
}

#[test]
fn invalid_options_are_rejected_by_name_with_status_2() {
    let check = |arguments: &[&str], expected: &str| {
        let output = bg(arguments).output().unwrap();
        let (_, err) = output_text(&output);
        assert!(
            output.status.code() == Some(2) && err.contains(expected),
            "{arguments:?}: {err}"
        );
    };
    check(
        &["run", "--store", "nosuch"],
        "--store nosuch: unknown data store",
    );
    check(
        &["run", "--store", "null", "--friends", "7"],
        "--friends 7: must be even",
    );
    check(
        &["run", "--store", "null", "--members", "100"],
        "less than --members 100",
    );
    check(
        &["run", "--store", "null", "--friends", "-2"],
        "'-2' for '--friends",
    );
    for option in ["--top", "--tries", "--threads-max", "--connections"] {
        let why = format!("{option} 0: must be at least 1");
        check(&["run", "--store", "null", option, "0"], &why);
    }
    check(
        &["run", "--store", "memory", "--trace", "/proc/nosuch"],
        "trace folder /proc/nosuch",
    );
    check(
        &[
            "rate",
            "--store",
            "memory",
            "--sla",
            "9% < 1s",
            "--report",
            "/proc/nosuch",
        ],
        "--report /proc/nosuch",
    );
    check(
        &["load", "--store", "redis", "--from", "20000"],
        "--from 20000: is more than --members 10000",
    );
    check(
        &["run", "--store", "redis", "--at", "127.0.0.1:1"],
        "check that it is running",
    );
    check(
        &["run", "--store", "null", "--image-size", "12Q"],
        "must be a number of bytes",
    );
    check(
        &["run", "--store", "null", "--sla", "95 < 100ms"],
        "expected % after a number",
    );
    check(
        &["run", "--store", "null", "--mix", "nosuch"],
        "--mix nosuch: neither a named mix",
    );
    check(
        &["run", "--store", "null", "--threads", "20000"],
        "20000 threads need as many members, but there are 10000",
    );
    check(
        &["run", "--store", "null", "--duration", "10"],
        "a duration is a number and a unit",
    );
    check(
        &["run", "--store", "null", "--draw", "zipfian"],
        "the distribution is unknown",
    );
    check(&["run", "--store", "null", "--rate", "0"], "--rate 0");
    check(
        &["run", "--store", "faulty:memory", "--set", "stale=2"],
        "must be a rate from 0 to 1",
    );
    check(
        &["run", "--store", "memory", "--set", "x=1"],
        "--set x: memory has no settings",
    );
    check(&["load", "--store", "memory"], "is lost when bg ends");
    check(&["validate", "/nosuch"], "/nosuch is not a trace");
}

/// Scripts that check a run, a rating or a comparison rely on the exit status alone.
#[test]
fn the_exit_status_reports_missed_agreements_and_unpredictable_reads() {
    let status = |arguments: &[&str]| {
        let output = bg(arguments).args(SMALL).output().unwrap();
        (output.status.code().unwrap(), output_text(&output))
    };
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let trace = trace.to_str().unwrap();
    let run = ["run", "--store", "memory", "--duration", "100ms", "--quiet"];
    let faulty = [
        "run",
        "--store",
        "faulty:memory",
        "--set",
        "phantom=0.5",
        "--mix",
        "comments",
        "--duration",
        "200ms",
        "--quiet",
    ];
    let with = |some: &[&'static str], more: &[&'static str]| [some, more].concat();
    let check = |arguments: &[&str], expected: i32| {
        let (code, text) = status(arguments);
        assert_eq!(code, expected, "{arguments:?}: {text:?}");
    };
    check(&run, 0);
    check(&with(&run, &["--sla", "95% < 10s, 0% unpredictable"]), 0);
    check(&with(&run, &["--sla", "95% < 1ns"]), 1);
    check(&with(&run, &["--sla", "95% < 10s", "--threads", "0"]), 2);
    check(&with(&faulty, &["--online"]), 1);
    check(&with(&faulty, &["--online", "--allow", "100"]), 0);
    check(
        &with(&faulty, &["--sla", "95% < 10s, 100% unpredictable"]),
        0,
    );
    check(
        &with(
            &faulty,
            &["--sla", "95% < 10s, 1% unpredictable", "--allow", "100"],
        ),
        1,
    );
    let traced: Vec<&str> = [&faulty[..], &["--trace", trace]].concat();
    check(&traced, 1);
    let judged = |more: &[&str]| bg(&["validate", trace]).args(more).output().unwrap().status;
    assert_eq!(judged(&[]).code(), Some(1));
    assert_eq!(judged(&["--allow", "100%"]).code(), Some(0));
    assert_eq!(judged(&["--allow", "101"]).code(), Some(2));
    let rate = [
        "rate", "--store", "memory", "--most", "1", "--trial", "50ms", "--warmup", "0s",
    ];
    check(&with(&rate, &["--sla", "95% < 10s, 100ms"]), 0);
    check(&with(&rate, &["--sla", "95% < 1ns, 100ms"]), 1);
}

#[test]
fn comparing_two_reports_accounts_for_noise() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (fast, slow) = (file("fast.json"), file("slow.json"));
    for (name, delay) in [(&fast, "delay=0ms"), (&slow, "delay=20ms")] {
        let mut run = bg(&["run", "--store", "faulty:memory", "--set", delay, "--json"]);
        run.args(["--duration", "300ms", "--between", "1ms", "--quiet"]);
        let output = run.args(SMALL).output().unwrap();
        std::fs::write(name, &output.stdout).unwrap();
    }
    let compared = |one: &str, other: &str| {
        let output = bg(&["compare", one, other]).output().unwrap();
        let (out, err) = output_text(&output);
        (output.status.code().unwrap(), out + &err)
    };
    let (code, text) = compared(&fast, &slow);
    assert!(code == 1 && text.contains("B is worse than A"), "{text}");
    let (code, text) = compared(&slow, &fast);
    assert!(code == 0 && text.contains("B is better than A"), "{text}");
    let (code, text) = compared(&fast, &fast);
    assert!(
        code == 0 && text.contains("B does not differ from A"),
        "{text}"
    );
    let (code, text) = compared(&fast, &file("nosuch"));
    assert!(code == 2 && text.contains("nosuch"), "{text}");
    std::fs::write(file("other.json"), "{}").unwrap();
    let (code, text) = compared(&fast, &file("other.json"));
    assert!(
        code == 2 && text.contains("neither a rating.json nor"),
        "{text}"
    );
}

/// Starts a long run and waits until it has printed a line for a second.
fn start(
    store: &str,
    more: impl FnOnce(&mut Command),
) -> (std::process::Child, BufReader<std::process::ChildStderr>) {
    let mut run = bg(&["run", "--store", store, "--threads", "2"]);
    run.args(["--duration", "1h", "--json"]).args(SMALL);
    run.args(["--between", "1ms"]);
    more(&mut run);
    let mut child = run
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("threads") {
        line.clear();
        assert!(
            err.read_line(&mut line).unwrap() > 0,
            "bg printed a line with the threads"
        );
    }
    (child, err)
}

#[test]
fn an_interrupted_run_leaves_a_valid_report_and_trace() {
    for signal in [Signal::INT, Signal::TERM] {
        check_interrupt(signal);
    }
}

fn check_interrupt(signal: Signal) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let (mut child, _err) = start("memory", |run| {
        run.arg("--trace").arg(&trace);
    });
    kill_process(Pid::from_child(&child), signal).unwrap();
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert!(child.wait().unwrap().success());
    let measured: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(measured["seconds"].as_f64().unwrap() < 3000.0);
    assert_eq!(measured["reads"]["unpredictable"], 0);
    assert!(
        bg(&["validate"])
            .arg(&trace)
            .output()
            .unwrap()
            .status
            .success()
    );
}

#[test]
fn killed_and_failed_runs_remove_their_scratch_trace() {
    let folder = tempfile::tempdir().unwrap();
    let left = || std::fs::read_dir(folder.path()).unwrap().count();
    // With a call that takes an hour, the first signal waits for it and the second does not.
    let (mut child, err) = start("faulty:memory", |run| {
        run.env("TMPDIR", folder.path());
        run.args(["--set", "stall=0.01", "--set", "stall-for=1h"]);
        run.args(["--timeout", "1h", "--sla", "99% < 1s, 0% unpredictable"]);
    });
    assert_eq!(left(), 1);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut lines = err.lines();
    assert!(lines.any(|line| line.unwrap().contains("send it again to exit immediately")));
    // Two signals close together count as one, so send signals until one counts as the second.
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        std::thread::yield_now();
    };
    assert_eq!(status.code(), Some(130));
    assert_eq!(left(), 0);
    // A full disk.
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$@\"";
    let mut run = Command::new("sh");
    run.args([
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_bg"),
        "run",
        "--store",
        "memory",
    ]);
    run.args(["--duration", "1h", "--quiet", "--sla", "0% unpredictable"]);
    let output = run
        .args(SMALL)
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(left(), 0);
}

#[test]
fn two_simultaneous_signals_count_as_one_and_a_closed_stderr_is_ignored() {
    let (child, err) = start("memory", |_| {});
    // The lines of the following seconds have no reader.
    drop(err);
    for _ in 0..2 {
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let measured: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(measured["seconds"].as_f64().unwrap() < 3000.0);
}

#[test]
fn an_interrupted_load_ends() {
    let mut load = bg(&[
        "run",
        "--store",
        "memory",
        "--members",
        "500000",
        "--friends",
        "2",
    ]);
    load.args(["--resources", "1", "--duration", "1h"]);
    let mut child = load.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("members, ")));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(lines.any(|line| line.unwrap().contains("the load was interrupted")));
    assert!(!child.wait().unwrap().success());
}

#[test]
fn a_full_disk_ends_the_run_with_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    // Files of at most 2 MB: the effect of a full disk, for this process only.
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$@\"";
    let mut run = Command::new("sh");
    run.args([
        "-c",
        script,
        "sh",
        env!("CARGO_BIN_EXE_bg"),
        "run",
        "--store",
        "null",
    ]);
    run.args(["--duration", "1h", "--quiet", "--trace"])
        .arg(&trace);
    let output = run.output().unwrap();
    let (out, err) = output_text(&output);
    assert!(!output.status.success() && out.is_empty(), "{out}");
    assert!(
        err.contains("cannot write") && err.contains("worker-00"),
        "{err}"
    );
    let output = bg(&["validate"]).arg(&trace).output().unwrap();
    assert!(!output.status.success());
}
