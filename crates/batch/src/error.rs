//! Errors of stores. Each contains the evidence that a person needs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use larder_types::ByteSize;

#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The bytes differ from what was written. Roll back, or pull or build the version again.
    Corrupted { place: String, detail: String },
    /// Two rows have the same key, and the build rejects duplicates. `rows` has the `seq` of the first two.
    DuplicateKey { key: Vec<u8>, rows: [u64; 2] },
    /// Collecting the values of one key exceeds the available memory. Increase the memory, choose a longer key, or do
    /// not collect.
    KeyMemory {
        key: Vec<u8>,
        values: u64,
        /// `None` if it is not known.
        needed_bytes: Option<u64>,
        available_bytes: u64,
    },
    /// A key, value or option is out of bounds.
    Limit { what: String, detail: String },
    /// A file system operation failed.
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The partition is not present here: another node has it.
    NotHere { place: String, partition: u32 },
    /// The folder or version is not in the state that the call requires.
    State { detail: String },
    /// The builder's `judge` function rejected the version, with this reason.
    Refused(String),
    /// The caller's progress function cancelled the operation.
    Cancelled,
}

impl Error {
    pub fn corrupted(place: impl Into<String>, detail: impl Into<String>) -> Error {
        Error::Corrupted {
            place: place.into(),
            detail: detail.into(),
        }
    }

    pub(crate) fn limit(what: impl Into<String>, detail: impl Into<String>) -> Error {
        Error::Limit {
            what: what.into(),
            detail: detail.into(),
        }
    }

    pub(crate) fn state(detail: impl Into<String>) -> Error {
        Error::State {
            detail: detail.into(),
        }
    }

    /// For `map_err`, on files that a manifest names and on the manifest of a version known to exist: a missing file
    /// is damage.
    pub(crate) fn of_part<'a>(
        place: &'a str,
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Error + 'a {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => Error::corrupted(place, "its file is missing"),
            _ => Error::io(action, path)(source),
        }
    }

    /// For `map_err`: adds the action and the path.
    pub(crate) fn io<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Error + 'a {
        move |source| Error::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Returns whether the process has reached its limit of open files.
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EMFILE))
    }

    /// Returns whether the disk or the quota is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Error::Io { source, .. }
            if matches!(source.raw_os_error(), Some(libc::ENOSPC) | Some(libc::EDQUOT)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Corrupted { place, detail } => {
                write!(
                    f,
                    "{place} is damaged: {detail}; roll back, or pull or build this version again"
                )
            }
            Error::DuplicateKey { key, .. } => write!(
                f,
                "two rows have the key {}; remove one, or choose with --on-duplicate first, last or collect",
                show_key(key)
            ),
            Error::Refused(why) => write!(f, "a gate rejects the version: {why}"),
            Error::KeyMemory {
                key,
                values,
                needed_bytes,
                available_bytes,
            } => {
                let key = show_key(key);
                match needed_bytes {
                    Some(bytes) => write!(
                        f,
                        "collecting the {values} values of key {key} needs {} of memory",
                        ByteSize(*bytes)
                    )?,
                    None => write!(f, "the {values} values of key {key} are too long together")?,
                }
                write!(
                    f,
                    ", but {} are available for one key; choose a longer key, or first or last instead of collect",
                    ByteSize(*available_bytes)
                )
            }
            Error::Limit { what, detail } => write!(f, "{what}: {detail}"),
            Error::Io {
                action,
                path,
                source,
            } => {
                write!(f, "cannot {action} {}", path.display())?;
                if matches!(
                    source.raw_os_error(),
                    Some(libc::ENOSPC) | Some(libc::EDQUOT)
                ) {
                    write!(
                        f,
                        ": the disk is full; free space there or choose another folder"
                    )?;
                }
                write!(f, ": {source}")
            }
            Error::NotHere { place, partition } => write!(
                f,
                "partition {partition} of the version in {place} is not on this node; each node of the cluster has only the partitions of its slots"
            ),
            Error::State { detail } => f.write_str(detail),
            Error::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl std::error::Error for Error {}

/// Formats a key for people: as text if it is UTF-8, else in hexadecimal; long keys are shortened.
pub(crate) fn show_key(key: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 64;
    let cut = &key[..key.len().min(SHOWN_BYTES_MAX)];
    let rest = if cut.len() < key.len() {
        format!("... ({} bytes)", key.len())
    } else {
        String::new()
    };
    match std::str::from_utf8(cut) {
        Ok(text) => format!("{text:?}{rest}"),
        Err(_) => {
            let hex: String = cut.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("0x{hex}{rest}")
        }
    }
}
