//! Prints lines to standard output and standard error. A command continues if the reader is gone, for instance because
//! a pipe was closed.

use std::fmt::Arguments;
use std::io::{Write as _, stderr, stdout};

/// Prints a line to standard error.
pub fn err(line: Arguments<'_>) {
    let _ = writeln!(stderr(), "{line}");
}

/// Prints a line to standard output.
pub fn out(line: Arguments<'_>) {
    let _ = writeln!(stdout(), "{line}");
}
