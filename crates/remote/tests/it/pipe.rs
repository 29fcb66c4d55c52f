//! A pipe in place of a file. Also a module of the tests of `crates/server` and `crates/cli`.

use std::path::Path;
use std::process::Command;

/// Makes a pipe that nobody writes to: who opens it to read waits for ever.
pub fn make_pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.expect("mkfifo runs").success());
}
