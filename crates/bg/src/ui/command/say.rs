//! Lines on standard output and standard error. A command goes on when nobody reads them any more, as when a pipe is closed.

use std::fmt::Arguments;
use std::io::{Write as _, stderr, stdout};

/// A line on standard error.
pub fn err(line: Arguments<'_>) {
    let _ = writeln!(stderr(), "{line}");
}

/// A line on standard output.
pub fn out(line: Arguments<'_>) {
    let _ = writeln!(stdout(), "{line}");
}
