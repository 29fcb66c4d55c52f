//! Versions to push, and checks of the values that a server returns.
//!
//! A data set is identified by its *letter*, with which every value begins. A single read therefore shows which
//! version served it, and a read of all keys shows whether one version served them all.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use larder_batch::{BuildOptions, Builder};
use larder_client::Error;
use larder_protocol::http::{Gates, PullRequest, PullState, PullStatus};
use larder_types::StoreName;

use crate::support::{Server, larder, show};

pub const STORE: &str = "pymk";
pub const RECORDS: u64 = 3_000;

pub fn store() -> StoreName {
    STORE.parse().unwrap()
}

/// Returns the value of a key in the data set of `letter`, of 20 to 119 bytes.
pub fn value(letter: char, number: u64) -> String {
    format!(
        "{letter}{number:019}{}",
        "-".repeat((number % 100) as usize)
    )
}

/// Builds the data set of `letter` into `folder`.
pub fn build(letter: char, folder: &Path) -> PathBuf {
    let mut options = BuildOptions::new(store());
    options.partitions = 4;
    let builder = Builder::new(options, folder).unwrap();
    let mut rows = builder.writer();
    for number in 0..RECORDS {
        rows.push(
            number,
            format!("key{number}").as_bytes(),
            value(letter, number).as_bytes(),
        )
        .unwrap();
    }
    rows.close().unwrap();
    builder.finish(&|_| {}).unwrap();
    folder.to_owned()
}

/// Returns the command `larder build` for a file of `write_csv`, with the path or URL `out` as its output.
pub fn build_command(input: &Path, out: impl AsRef<OsStr>) -> Command {
    let mut command = larder();
    command
        .args([
            "build", "--store", STORE, "--key", "key", "--value", "value",
        ])
        .arg("--out")
        .arg(out)
        .arg(input)
        .stdin(Stdio::null());
    command
}

/// Runs the command, which must succeed.
#[track_caller]
pub fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", show(&output));
}

/// Pulls `source` and waits for its end. Returns an error if the server exits meanwhile.
pub fn pull(server: &Server, source: &str) -> Result<PullStatus, Error> {
    pull_through(server, source, None)
}

/// Like [`pull`], with gates.
pub fn pull_through(
    server: &Server,
    source: &str,
    gates: Option<Gates>,
) -> Result<PullStatus, Error> {
    let admin = server.admin();
    let request = PullRequest {
        source: source.to_owned(),
        gates,
        activate: true,
        allow_missing_replicas: 0,
    };
    let mut status = admin.pull(&store(), &request)?;
    while !status.state.has_ended() {
        status = admin.pull_status(&status)?;
    }
    Ok(status)
}

#[track_caller]
pub fn pull_ok(server: &Server, source: &Path) {
    let status = pull(server, source.to_str().unwrap()).unwrap();
    assert_eq!(status.state, PullState::Done, "{:?}", status.error);
}

/// Reads every key in several requests, checks that one version served all of them, and returns its letter.
#[track_caller]
pub fn served(server: &Server) -> char {
    let client = server.resp();
    let letter = client
        .get(format!("{STORE}:key0"))
        .unwrap()
        .expect("key0 is in every version")[0] as char;
    let numbers: Vec<u64> = (0..RECORDS).collect();
    for some in numbers.chunks(500) {
        let keys: Vec<String> = some
            .iter()
            .map(|number| format!("{STORE}:key{number}"))
            .collect();
        for (number, found) in some.iter().zip(client.mget(&keys).unwrap()) {
            assert_eq!(
                found.as_deref(),
                Some(value(letter, *number).as_bytes()),
                "key{number}"
            );
        }
    }
    assert_eq!(client.get(format!("{STORE}:no such key")).unwrap(), None);
    letter
}

/// Returns the entries of the store's folder that an interrupted operation left behind.
pub fn leftovers(data: &Path) -> Vec<String> {
    let names = std::fs::read_dir(data.join("stores").join(STORE)).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| {
        [".pull", ".trash", ".tmp", ".part"]
            .iter()
            .any(|end| name.ends_with(end))
    });
    names
}
