//! The error of a rejected command.

use std::fmt;

/// The part of a command that an error refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPosition {
    /// The complete command.
    Whole,
    /// A position in a text argument (a query, an expression, a path), in characters, counted from 1.
    Column(usize),
    /// An argument, counted from 0. The command determines which argument is the first.
    Argument(usize),
}

/// The error of a rejected command. The command had no effect.
///
/// If stock clients recognize an error by a phrase, the message begins with that phrase. Advice follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub message: String,
    pub position: ErrorPosition,
}

pub type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    pub fn new(message: impl Into<String>) -> Refusal {
        Refusal {
            message: message.into(),
            position: ErrorPosition::Whole,
        }
    }

    pub fn at_column(column: usize, message: impl Into<String>) -> Refusal {
        Refusal {
            message: message.into(),
            position: ErrorPosition::Column(column),
        }
    }

    pub fn at_argument(argument: usize, message: impl Into<String>) -> Refusal {
        Refusal {
            message: message.into(),
            position: ErrorPosition::Argument(argument),
        }
    }
}

impl Refusal {
    /// Shifts an argument's position by the number of arguments `before` those that were parsed.
    #[must_use]
    pub fn shift_argument(self, before: usize) -> Refusal {
        match self.position {
            ErrorPosition::Argument(at) => Refusal::at_argument(at + before, self.message),
            _ => self,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.position {
            ErrorPosition::Whole => Ok(()),
            ErrorPosition::Column(column) => write!(f, " (column {column})"),
            ErrorPosition::Argument(argument) => write!(f, " (argument {argument})"),
        }
    }
}

impl std::error::Error for Refusal {}

/// Formats bytes for an error message, as lossy UTF-8 and at most 64 bytes long.
pub(crate) fn printable(bytes: &[u8]) -> String {
    const BYTES_MAX: usize = 64;
    if bytes.len() > BYTES_MAX {
        format!("{}...", String::from_utf8_lossy(&bytes[..BYTES_MAX]))
    } else {
        String::from_utf8_lossy(bytes).into_owned()
    }
}
