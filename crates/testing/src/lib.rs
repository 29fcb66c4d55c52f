//! Test support for several crates: third-party servers, a proxy that breaks and stalls connections ([`proxy`]), and
//! reports of missing prerequisites.
//!
//! PostgreSQL, Redis and memcached run as processes of one test, each on a free loopback port and in a folder of its
//! own, and end with their value. `process` starts, stops and restarts any command; `postgres` and `services` define
//! the commands. [`etcd`] has members, [`hdfs`] a namenode and datanodes. An authority of the test signs certificates
//! ([`certificates`]).
//!
//! A skipped test must be visible, but the test harness hides what a passing test prints with `eprintln!`. Messages
//! about skipped tests are therefore written directly to standard error, and to the file in `LARDER_TEST_SKIPS`, from
//! which `cargo xtask ci` repeats them at its end.
//!
//! | missing prerequisite | result of the test |
//! |---|---|
//! | a program or package that `scripts/setup test` installs: [`missing`] | skipped; fails if `CI` is set |
//! | a property that no setup can provide, such as root or external data: [`cannot`] | skipped |
//! | a request for a long test: [`is_enabled`] | skipped |

pub mod browser;
pub mod certificates;
pub mod etcd;
pub mod hdfs;
pub mod pages;
mod port;
pub mod postgres;
mod process;
pub mod proxy;
mod services;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub use port::free_port;
pub use process::{Server, temp_folder};
pub use services::{find, memcached, redis};

/// Reports that a program or a package that `scripts/setup test` installs is not installed.
///
/// # Panics
/// If `CI` is set: no test may be skipped there for this reason.
#[track_caller]
pub fn report_missing(what: &str) {
    let message = format!("{what} is not installed; install it with scripts/setup test");
    assert!(std::env::var_os("CI").is_none(), "{message}");
    report_skip(&message);
}

/// Reports that this machine or this user does not support what the test requires.
pub fn report_unsupported(what: &str) {
    report_skip(&format!("this machine cannot {what}"));
}

/// Returns whether an environment variable requests a long test.
pub fn is_enabled(variable: &str, why: &str) -> bool {
    let is_set = std::env::var_os(variable).is_some();
    if !is_set {
        report_skip(&format!("{why}; set {variable}=1 to run it"));
    }
    is_set
}

/// Returns the path of a folder of golden files in `testdata/golden`.
pub fn golden_path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden");
    folder.join(name)
}

/// Sets a flag when it is dropped, so that the threads that read the flag also stop when a test fails.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns a figure of `/proc/<pid>/status` in bytes, such as `VmRSS`, the resident memory; 0 if the process has ended.
///
/// # Panics
/// The file has no such figure.
pub fn memory_bytes(pid: u32, figure: &str) -> u64 {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return 0;
    };
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_else(|| panic!("no {figure} in {status}")) * 1024
}

/// Returns the path of real data that is not in the repository: below `LARDER_TEST_DATA`, or below `shared/data` next
/// to it.
pub fn external_data(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LARDER_TEST_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let path = folder.join(name);
    let exists = path.exists();
    if !exists {
        let path = path.display();
        report_skip(&format!(
            "{path} does not exist; set LARDER_TEST_DATA to its folder"
        ));
    }
    exists.then_some(path)
}

fn report_skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    // Best effort: the test is skipped even if the report fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("LARDER_TEST_SKIPS") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
