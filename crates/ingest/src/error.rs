//! Reasons why an input is rejected. Every message names the file, the position in it, and the remedy.

use std::fmt;

use larder_types::ByteSize;

use crate::options::SinkError;

/// A position in a file, counted from 1 as people do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum At {
    File,
    Line(u64),
    Row(u64),
    RowGroup(u64),
}

/// The reason why a run ended. None of its output should be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The options are invalid. Correct the options.
    Options { reason: String },
    /// An input cannot be found, opened or listed.
    Input { input: String, reason: String },
    /// The bytes violate the format, or a row violates a rule. Correct the file or the options.
    Data {
        file: String,
        at: At,
        reason: String,
    },
    /// A part of the input needs more memory than available. Provide more, or write the input in smaller parts.
    Memory {
        file: String,
        at: At,
        /// The part that needs it.
        what: String,
        /// In bytes; `None` if it is unknown.
        needed_bytes: Option<u64>,
        available_bytes: u64,
    },
    /// A requested column does not exist.
    Column {
        file: String,
        at: At,
        wanted: String,
        have: Vec<String>,
    },
    /// The receiver of the rows rejected one.
    Sink {
        file: String,
        at: At,
        source: SinkError,
    },
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::File => Ok(()),
            At::Line(line) => write!(f, ", line {line}"),
            At::Row(row) => write!(f, ", row {row}"),
            At::RowGroup(group) => write!(f, ", row group {group}"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Options { reason } => f.write_str(reason),
            Error::Input { input, reason } => write!(f, "input {input}: {reason}"),
            Error::Data { file, at, reason } => write!(f, "{file}{at}: {reason}"),
            Error::Memory {
                file,
                at,
                what,
                available_bytes,
                ..
            } => write!(
                f,
                "{file}{at}: {what}, but only {} of the memory are available for it",
                ByteSize(*available_bytes)
            ),
            Error::Column {
                file,
                at,
                wanted,
                have,
            } => {
                write!(f, "{file}{at}: there is no column {wanted:?}; ")?;
                if have.is_empty() {
                    return f.write_str("it has no columns");
                }
                f.write_str("the columns are ")?;
                for (index, name) in have.iter().take(100).enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{}", shorten(name))?;
                }
                match have.len() {
                    0..=100 => Ok(()),
                    more => write!(f, " and {} more", more - 100),
                }
            }
            Error::Sink { file, at, source } => write!(f, "{file}{at}: {source}"),
        }
    }
}

impl std::error::Error for Error {}

/// Returns a name in one line of bounded length: a header may contain anything.
fn shorten(name: &str) -> String {
    let mut shown = String::new();
    for (number, c) in name.chars().enumerate() {
        match c {
            _ if number == 60 => return shown + "...",
            c if c.is_control() => shown.extend(c.escape_debug()),
            c => shown.push(c),
        }
    }
    shown
}

/// An error without the file's name.
#[derive(Debug)]
pub(crate) struct Fault {
    pub at: At,
    pub kind: FaultKind,
}

#[derive(Debug)]
pub(crate) enum FaultKind {
    Data(String),
    /// The file cannot be opened.
    Input(String),
    Memory {
        what: String,
        needed_bytes: Option<u64>,
        available_bytes: u64,
    },
    Column {
        wanted: String,
        have: Vec<String>,
    },
    Sink(SinkError),
}

impl Fault {
    pub fn data(at: At, reason: impl Into<String>) -> Fault {
        Fault {
            at,
            kind: FaultKind::Data(reason.into()),
        }
    }

    pub fn file(reason: impl Into<String>) -> Fault {
        Fault::data(At::File, reason)
    }

    /// Creates the fault for a part that needs more memory than there is in total.
    pub fn memory(what: String, needed_bytes: Option<u64>, available_bytes: u64) -> Fault {
        Fault {
            at: At::File,
            kind: FaultKind::Memory {
                what,
                needed_bytes,
                available_bytes,
            },
        }
    }

    /// Sets the position if none is known yet.
    pub fn or_at(mut self, at: At) -> Fault {
        if self.at == At::File {
            self.at = at;
        }
        self
    }

    /// Adds the number of preceding lines to the position.
    pub fn after_lines(mut self, lines: u64) -> Fault {
        if let At::Line(line) = &mut self.at {
            *line += lines;
        }
        self
    }

    pub fn into_error(self, file: &str) -> Error {
        let (file, at) = (file.to_owned(), self.at);
        match self.kind {
            FaultKind::Data(reason) => Error::Data { file, at, reason },
            FaultKind::Input(reason) => Error::Input {
                input: file,
                reason,
            },
            FaultKind::Memory {
                what,
                needed_bytes,
                available_bytes,
            } => Error::Memory {
                file,
                at,
                what,
                needed_bytes,
                available_bytes,
            },
            FaultKind::Column { wanted, have } => Error::Column {
                file,
                at,
                wanted,
                have,
            },
            FaultKind::Sink(source) => Error::Sink { file, at, source },
        }
    }
}

/// Returns the fault for a file that a library cannot decode: it uses an unsupported feature, or it is damaged.
/// Libraries distinguish the two only in their messages.
pub(crate) fn decode_fault(error: &dyn fmt::Display) -> Fault {
    let text = one_line(error);
    let lower = text.to_ascii_lowercase();
    const UNSUPPORTED: [&str; 4] = ["nyi:", "not supported", "unsupported", "implemented"];
    Fault::file(if UNSUPPORTED.iter().any(|it| lower.contains(it)) {
        format!("it uses an unsupported feature: {text}")
    } else {
        format!("it cannot be decoded: {text}; the file is damaged, write it again")
    })
}

/// Returns the problem of one line of JSON. The library's own message counts lines within that line, which is useless
/// for the file.
pub(crate) fn json_reason(error: &serde_json::Error) -> String {
    let text = one_line(error);
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => format!("{reason} at column {}", error.column()),
        None => text,
    }
}

/// Returns a library's message in one line of bounded length: some quote the invalid bytes.
pub(crate) fn one_line(error: &dyn fmt::Display) -> String {
    let text: String = error
        .to_string()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(400)
        .collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_features_are_not_reported_as_damage() {
        let message = |error: &str| decode_fault(&error).into_error("f").to_string();
        for error in [
            "NYI: The codec type LZO is not supported yet",
            "Not yet implemented: reading large tensors",
        ] {
            let message = message(error);
            assert!(
                message.contains("uses an unsupported feature") && message.contains(error),
                "{message}"
            );
            assert!(!message.contains("damaged"), "{message}");
        }
        assert!(message("snappy: corrupt input").contains("damaged"));
    }
}
