//! Errors of a journal. Each contains the evidence that a person needs.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Bytes differ from what was written, or files are missing. Nothing was changed on disk.
    Corrupted {
        path: PathBuf,
        offset: u64,
        detail: String,
    },
    /// A key, value or batch is out of bounds. Nothing was appended.
    Limit { what: &'static str, detail: String },
    /// A file system operation failed.
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The journal is not in the state that the call requires.
    State { detail: String },
    /// The journal has stopped permanently; the data of this call is *not done*.
    Stopped(Arc<Failure>),
}

/// The reason why a journal stopped. This is permanent: after a failed sync the kernel may have dropped the data and
/// report success for the next sync, so later results are not trustworthy. (After a failed write it continues when
/// the write succeeds: see [`crate::Journal::write_failure`].)
#[derive(Debug)]
pub enum Failure {
    /// [`crate::Journal::close`] was called, or the journal was dropped.
    Closed,
    /// A sync failed, or any operation during the close.
    Failed(Error),
}

impl Error {
    pub(crate) fn corrupted(path: &Path, offset: u64, detail: impl Into<String>) -> Error {
        Error::Corrupted {
            path: path.to_owned(),
            offset,
            detail: detail.into(),
        }
    }

    pub(crate) fn state(detail: impl Into<String>) -> Error {
        Error::State {
            detail: detail.into(),
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

    /// Returns whether the disk or the quota is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Error::Io { source, .. } => matches!(
                source.raw_os_error(),
                Some(libc::ENOSPC) | Some(libc::EDQUOT)
            ),
            Error::Stopped(failure) => match failure.as_ref() {
                Failure::Failed(error) => error.is_disk_full(),
                Failure::Closed => false,
            },
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Corrupted {
                path,
                offset,
                detail,
            } => write!(
                f,
                "{} is damaged at byte {offset}: {detail}; restore the journal's folder from a \
                 copy, or move it away to start without its rows",
                path.display()
            ),
            Error::Limit { what, detail } => write!(f, "{what}: {detail}"),
            Error::Io {
                action,
                path,
                source,
            } => {
                write!(f, "cannot {action} {}", path.display())?;
                if self.is_disk_full() {
                    write!(f, ": the disk is full; free space there")?;
                }
                write!(f, ": {source}")
            }
            Error::State { detail } => f.write_str(detail),
            Error::Stopped(failure) => failure.fmt(f),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Closed => f.write_str("the journal is closed"),
            Failure::Failed(error) => write!(
                f,
                "the journal stopped and rejects writes until a restart: {error}"
            ),
        }
    }
}

impl std::error::Error for Error {}
