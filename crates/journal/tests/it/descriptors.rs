//! A process without free file descriptors: the open log continues, and a snapshot succeeds when descriptors are
//! available again.
//!
//! The limit applies to the complete process, so the test runs in a child process: this test binary with the filter
//! `child`.

use std::process::Command;

use larder_journal::{AppendOutcome, Entry, Fsync, Journal, LastSnapshot, Options};

const FOLDER: &str = "LARDER_JOURNAL_TEST_DESCRIPTORS";

fn limit_descriptors(current: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls receive a valid local struct.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = current.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}

/// Does nothing except in a child process.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let options = Options {
        fsync: Fsync::EverySecond,
        ..Options::default()
    };
    let (journal, _) = Journal::open(folder.as_ref(), options, &mut |_| ()).unwrap();
    let mut producer = journal.producer(|| ());
    let mut put = |n: u64| {
        let key = n.to_be_bytes();
        let ticket = producer
            .append(Entry::Put {
                key: &key,
                value: b"value",
                deadline_ms: None,
            })
            .unwrap();
        producer.wait_durable(ticket).unwrap();
        assert_eq!(producer.outcome(ticket), AppendOutcome::Done);
    };
    put(1);
    limit_descriptors(3);
    let parts = journal.begin_snapshot(1).unwrap();
    match journal.wait_for_snapshot() {
        Some(LastSnapshot::Failed(error)) => {
            assert!(error.to_string().contains("Too many open files"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    drop(parts);
    put(2);
    assert!(journal.write_failure().is_none() && journal.failure().is_none());
    limit_descriptors(1024);
    for part in journal.begin_snapshot(1).unwrap() {
        let mut part = part;
        for n in [1u64, 2] {
            part.add(Entry::Put {
                key: &n.to_be_bytes(),
                value: b"value",
                deadline_ms: None,
            })
            .unwrap();
        }
        part.finish(&mut producer);
    }
    match journal.wait_for_snapshot() {
        Some(LastSnapshot::Made { rows: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(producer);
    journal.close().unwrap();
}

#[test]
fn without_descriptors_writes_continue_and_snapshots_resume_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "descriptors::child", "--test-threads=1"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{message}");
    let mut entries = 0;
    larder_journal::replay(&larder_journal::RealDisk, folder.path(), &mut |_| {
        entries += 1;
    })
    .unwrap();
    assert_eq!(entries, 2);
}
