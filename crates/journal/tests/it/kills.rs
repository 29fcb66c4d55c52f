//! Kills a process under load with SIGKILL, at random moments and at every fault point. Writes that the process
//! acknowledged must survive.
//!
//! The child is this test binary with the filter `child`; an environment variable activates it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use larder_journal::{Entry, FAULT_POINTS, Fsync, Journal, Options, RealDisk};

use crate::model_disk::Random;
use crate::rows::Rows;

const FOLDER: &str = "LARDER_JOURNAL_TEST_FOLDER";
const PUTS: &str = "LARDER_JOURNAL_TEST_PUTS";

/// Returns the keys of put number `n`, and of a batch of two.
fn keys(n: u64) -> [Vec<u8>; 2] {
    [
        format!("a{n:08}").into_bytes(),
        format!("b{n:08}").into_bytes(),
    ]
}

/// Does nothing except in a child process. Writes, reports acknowledgements on its output, and makes snapshots
/// throughout.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let options = Options {
        fsync: Fsync::Always,
        snapshot_log_bytes_min: 3000,
        snapshot_growth_percent: 10,
        ..Options::default()
    };
    let mut rows = Rows::default();
    let (journal, _) =
        Journal::open(Path::new(&folder), options, &mut |entry| rows.apply(entry)).unwrap();
    let mut producer = journal.producer(|| ());
    let mut out = std::io::stdout();
    let first = rows.rows.len() as u64 / 2;
    let puts: u64 = std::env::var(PUTS).unwrap().parse().unwrap();
    for n in first..first + puts {
        let keys = keys(n);
        let entries = [0, 1].map(|index| Entry::Put {
            key: &keys[index],
            value: b"value",
            deadline_ms: None,
        });
        entries.iter().for_each(|entry| rows.apply(*entry));
        let ticket = producer.append_all(&entries).unwrap();
        if n % 3 == 0 {
            producer.commit();
            continue;
        }
        producer.wait_durable(ticket).unwrap();
        writeln!(out, "done {n}").unwrap();
        if journal.is_snapshot_due() {
            for mut part in journal.begin_snapshot(1).unwrap() {
                for (key, (value, deadline_ms)) in &rows.rows {
                    let deadline_ms = *deadline_ms;
                    part.add(Entry::Put {
                        key,
                        value,
                        deadline_ms,
                    })
                    .unwrap();
                }
                part.finish(&mut producer);
            }
        }
    }
    drop(producer);
    // Long enough to be killed during the last steps of a snapshot.
    journal.wait_for_snapshot();
    journal.close().unwrap();
}

/// Runs a child until it is killed: by `fault`, or soon after it has printed `lines` lines. Returns the last put that
/// it acknowledged, and whether it was killed.
fn run(folder: &Path, fault: Option<&str>, lines: Option<usize>) -> (Option<u64>, bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "kills::child", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        // Enough puts to pass every fault point, or more than it can reach.
        .env(PUTS, if lines.is_some() { "100000000" } else { "600" })
        .env_remove("LARDER_FAULT_POINT")
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(fault) = fault {
        command.env("LARDER_FAULT_POINT", fault);
    }
    let mut child = command.spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut last = None;
    let mut printed = 0;
    for line in out.lines() {
        let Ok(line) = line else { break };
        if let Some(n) = line.rsplit_once("done ") {
            last = n.1.parse().ok().or(last);
            printed += 1;
        }
        if lines.is_some_and(|lines| printed >= lines) {
            // Lines that it has already printed count too, so the loop continues to read.
            child.kill().unwrap();
        }
    }
    let status = child.wait().unwrap();
    (last, !status.success())
}

fn check(folder: &Path, acknowledged: Option<u64>) -> u64 {
    let (rows, _) = Rows::replayed(&RealDisk, folder).unwrap();
    let found = rows.rows.len() as u64;
    assert!(found.is_multiple_of(2), "half a batch");
    for n in 0..found / 2 {
        for key in keys(n) {
            assert!(rows.rows.contains_key(&key), "{n} of {found} is missing");
        }
    }
    assert!(acknowledged.is_none_or(|n| n < found / 2));
    found / 2
}

#[test]
fn a_process_killed_under_load_loses_nothing_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::new(11);
    let mut acknowledged = None;
    for _ in 0..12 {
        let lines = 1 + random.below(60);
        let (last, was_killed) = run(folder.path(), None, Some(lines));
        assert!(was_killed);
        acknowledged = acknowledged.max(last);
        check(folder.path(), acknowledged);
    }
    assert!(acknowledged > Some(24), "{acknowledged:?}");
}

#[test]
fn a_process_killed_at_any_fault_point_loses_nothing_acknowledged() {
    if !cfg!(debug_assertions) {
        return larder_testing::report_unsupported(
            "be killed at a fault point: release builds hold none",
        );
    }
    for point in FAULT_POINTS {
        let mut killed = 0;
        let folder = tempfile::tempdir().unwrap();
        for pass in ["1", "3"] {
            let (last, was_killed) = run(folder.path(), Some(&format!("{point}:{pass}")), None);
            killed += u64::from(was_killed);
            check(folder.path(), last);
        }
        // A start passes the points of recovery once, and only if there is something to recover.
        if point.contains("recovery") {
            run(folder.path(), Some("journal.written:5"), None);
            let (last, was_killed) = run(folder.path(), Some(point), None);
            killed += u64::from(was_killed);
            check(folder.path(), last);
        }
        assert!(killed > 0, "{point} is never passed");
    }
}
