//! A pipe in place of a file. Also a module of the tests of `crates/server` and `crates/cli`.

use std::path::Path;
use std::process::Command;

/// Creates a pipe without a writer: opening it for reading blocks forever.
pub fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
}
