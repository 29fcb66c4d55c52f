//! What can go wrong with stores, each with the evidence a person needs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use larder_types::ByteSize;

#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Bytes are not what was written. Roll back, or pull or build the version again.
    Corrupted { place: String, detail: String },
    /// Two rows have one key and the build was told to refuse that. `rows`: the `seq` that the first two came with.
    DuplicateKey { key: Vec<u8>, rows: [u64; 2] },
    /// Collecting the values of one key takes more memory at once than there is for that. Give more, choose a longer key, or
    /// do not collect.
    KeyMemory {
        key: Vec<u8>,
        values: u64,
        /// Where it is known.
        needed_bytes: Option<u64>,
        available_bytes: u64,
    },
    /// A key, value or option is outside its bounds.
    Limit { what: String, detail: String },
    /// The file system refused.
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The partition is not among those of the version that are here: another node has it.
    NotHere { place: String, partition: u32 },
    /// The folder or version is not in the state that the call needs.
    State { detail: String },
    /// Who builds it judged it, and does not want it: why.
    Refused(String),
    /// The caller's progress function asked to stop.
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

    /// For `map_err`, of a file that a manifest names, or the manifest of what is known to be a version: that it is not there is
    /// damage.
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

    /// For `map_err`: names what was done and to which path.
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

    /// Whether the process has as many files open as it may.
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EMFILE))
    }

    /// Whether the disk or the quota is full.
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
            Error::Refused(why) => write!(f, "a gate refuses the version: {why}"),
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
                        "to collect the {values} values of key {key} takes {} at once",
                        ByteSize(*bytes)
                    )?,
                    None => write!(f, "the {values} values of key {key} are too long together")?,
                }
                write!(
                    f,
                    ", and of the memory {} are for that; choose a longer key, or first or last instead of collect",
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
                "partition {partition} of the version in {place} is not here; a node of the cluster keeps those whose slots it has"
            ),
            Error::State { detail } => f.write_str(detail),
            Error::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl std::error::Error for Error {}

/// A key for people: as text where it is text, shortened, else in hexadecimal.
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
