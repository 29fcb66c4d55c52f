//! What tests of several crates need: other people's servers, a proxy that cuts and stalls ([`proxy`]), and a word where a machine lacks something.
//!
//! PostgreSQL, Redis and memcached run as processes of a test's own, each on a free port of loopback and in a folder of its own, gone with
//! its value: `process` starts, ends and starts again what any command runs; `postgres` and `services` know the commands. [`etcd`] has members, [`hdfs`] a namenode and datanodes.
//! Certificates are signed by an authority of a test's own ([`certificates`]).
//!
//! A test that goes without says so where it is heard. The test harness keeps what a passing test prints with `eprintln!` to itself. So what is said here goes to standard error
//! directly, and into the file that `LARDER_TEST_SKIPS` names, from which `cargo xtask ci` tells it again at its end.
//!
//! | lacking | what becomes of the test |
//! |---|---|
//! | what `scripts/setup test` installs: [`missing`] | it is skipped; where `CI` is set it fails |
//! | what no set-up can give, such as root or data that is not in the project: [`cannot`] | it is skipped |
//! | nobody has asked for it, since it takes long: [`is_asked_for`] | it is skipped |

pub mod browser;
pub mod certificates;
pub mod etcd;
pub mod hdfs;
mod port;
pub mod postgres;
mod process;
pub mod proxy;
mod services;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

pub use port::free_port;
pub use process::{Server, folder};
pub use services::{find, memcached, redis};

/// A program or a package is not installed that `scripts/setup test` installs.
///
/// # Panics
/// Where `CI` is set: there a test must not go without.
#[track_caller]
pub fn missing(what: &str) {
    let word = format!("{what} is not installed; scripts/setup test installs it");
    assert!(std::env::var_os("CI").is_none(), "{word}");
    skipped(&word);
}

/// This machine or this user cannot do what the test is about.
pub fn cannot(what: &str) {
    skipped(&format!("this machine cannot {what}"));
}

/// Whether a long test is asked for, by an environment variable.
pub fn is_asked_for(variable: &str, why: &str) -> bool {
    let is_set = std::env::var_os(variable).is_some();
    if !is_set {
        skipped(&format!("{why}; {variable}=1 runs it"));
    }
    is_set
}

/// A file or folder of real data, which is not in the project: below `LARDER_TEST_DATA`, or below `shared/data` beside it.
pub fn data(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LARDER_TEST_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
        PathBuf::from,
    );
    let path = folder.join(name);
    let is_here = path.exists();
    if !is_here {
        let path = path.display();
        skipped(&format!("{path} is not there; LARDER_TEST_DATA says where"));
    }
    is_here.then_some(path)
}

fn skipped(why: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}\n", thread.name().unwrap_or("a test"));
    // Who cannot be told goes without the test all the same.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("LARDER_TEST_SKIPS") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}
