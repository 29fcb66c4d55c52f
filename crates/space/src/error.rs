//! What is refused, and what whoever asked can do about it.

use std::fmt;

/// Where in a command something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In all of it.
    Whole,
    /// In its text (a query, an expression, a path): counted in characters from 1.
    Column(usize),
    /// In its arguments: counted from 0, as the command's own table says which is the first.
    Argument(usize),
}

/// A command that is not carried out: nothing of it is.
///
/// Messages begin with the phrase by which stock clients know the error, where there is one; what to do about it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub message: String,
    pub place: Place,
}

pub type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    pub fn new(message: impl Into<String>) -> Refusal {
        Refusal {
            message: message.into(),
            place: Place::Whole,
        }
    }

    pub fn at_column(column: usize, message: impl Into<String>) -> Refusal {
        Refusal {
            message: message.into(),
            place: Place::Column(column),
        }
    }

    pub fn at_argument(argument: usize, message: impl Into<String>) -> Refusal {
        Refusal {
            message: message.into(),
            place: Place::Argument(argument),
        }
    }
}

impl Refusal {
    /// As one of a command that has so many arguments before those that were read.
    #[must_use]
    pub fn behind(self, before: usize) -> Refusal {
        match self.place {
            Place::Argument(at) => Refusal::at_argument(at + before, self.message),
            _ => self,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.place {
            Place::Whole => Ok(()),
            Place::Column(column) => write!(f, " (column {column})"),
            Place::Argument(argument) => write!(f, " (argument {argument})"),
        }
    }
}

impl std::error::Error for Refusal {}

/// Bytes as a person can read them, cut where they are long.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const BYTES_MAX: usize = 64;
    match bytes.len() > BYTES_MAX {
        true => format!("{}...", String::from_utf8_lossy(&bytes[..BYTES_MAX])),
        false => String::from_utf8_lossy(bytes).into_owned(),
    }
}
