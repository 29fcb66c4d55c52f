//! The errors of the server. Each variant corresponds to one error code of the HTTP API. The message is a complete sentence that
//! states what failed, on which value, and what to do.

use std::fmt;
use std::io;
use std::path::Path;

use larder_protocol::errors::Code;
use larder_protocol::http::ErrorInfo;
use larder_types::{StoreName, VersionId};

use crate::descriptors;

/// An error reply to a command: its code, and a message that states what failed, on which value, and what to do.
pub type Refusal = (Code, String);

/// Formats bytes as text, truncated, for messages.
pub fn show(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 128;
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]).into_owned()
}

const GIVE_PASSWORD: &str = "give server.password as Authorization: Basic or Bearer, `larder` commands as LARDER_PASSWORD or --password";

#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid.
    BadRequest(String),
    /// A browser's request from another site, or possibly so.
    Forbidden(String),
    /// The server has a password, and the request contains none.
    NoPassword,
    WrongPassword,
    /// A password that was not checked, because of too many wrong ones.
    TooManyGuesses,
    NoSuchStore(String),
    NoSuchVersion {
        store: StoreName,
        version: u64,
        kept: Vec<VersionId>,
    },
    NoSuchPull(String),
    /// An error of the tables and joins.
    Tables(Code, String),
    NoLiveVersion(String),
    AbsentKey(String),
    /// In a cluster: the data are on other nodes, and none of them supplied them.
    NotOnThisNode(String),
    /// A pull of the store is in progress, or the version is in use.
    Conflict(String),
    /// A gate rejected the new version.
    Refused(String),
    Corrupted(String),
    DiskFull(String),
    /// The source of a pull cannot be read, or has invalid contents.
    Source {
        message: String,
        retry: bool,
    },
    Cancelled,
    /// Background work that was stopped in favor of a client's request; nothing changed.
    Displaced(String),
    /// The maximum number of connections are open.
    TooManyClients(String),
    /// The maximum amount of work is in progress.
    Overloaded(String),
    /// The client did not complete its request in time.
    Timeout(String),
    /// The server cannot start or continue: folder, port, file system.
    Io(String),
}

impl Error {
    /// The code that clients match on; its row defines the form in each protocol.
    pub fn code(&self) -> Code {
        match self {
            Error::BadRequest(_) => Code::BadRequest,
            Error::Forbidden(_) => Code::Forbidden,
            Error::NoPassword => Code::NoAuth,
            Error::WrongPassword => Code::WrongPassword,
            Error::TooManyGuesses => Code::TooManyGuesses,
            Error::NoSuchStore(_) => Code::NoSuchStore,
            Error::NoSuchVersion { .. } => Code::NoSuchVersion,
            Error::NoSuchPull(_) => Code::NoSuchPull,
            Error::Tables(code, _) => *code,
            Error::NoLiveVersion(_) => Code::NoLiveVersion,
            Error::AbsentKey(_) => Code::AbsentKey,
            Error::NotOnThisNode(_) => Code::ClusterDown,
            Error::Conflict(_) | Error::Displaced(_) => Code::Conflict,
            Error::Refused(_) => Code::Refused,
            Error::Corrupted(_) => Code::Corrupted,
            Error::DiskFull(_) => Code::DiskFull,
            Error::Source { .. } => Code::Source,
            Error::Cancelled => Code::Cancelled,
            Error::TooManyClients(_) => Code::TooManyClients,
            Error::Overloaded(_) => Code::Overloaded,
            Error::Timeout(_) => Code::Timeout,
            Error::Io(_) => Code::Io,
        }
    }

    /// The body for HTTP responses and pull statuses.
    pub fn info(&self) -> ErrorInfo {
        let mut info = ErrorInfo::new(self.code(), self.to_string());
        if let Error::Source { retry, .. } = self {
            info.retry = *retry;
        }
        info
    }

    /// For `map_err`: adds the action and the path.
    pub(crate) fn io<'a>(action: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
        move |source| {
            let text = format!("cannot {action} {}: {source}", path.display());
            match source.raw_os_error() {
                Some(libc::ENOSPC) | Some(libc::EDQUOT) => Error::DiskFull(format!(
                    "{text}; free space on that disk or move the data folder"
                )),
                Some(libc::EMFILE) => Error::Io(format!("{text}; {}", descriptors::ADVICE)),
                _ => Error::Io(text),
            }
        }
    }
}

impl From<larder_batch::Error> for Error {
    fn from(error: larder_batch::Error) -> Error {
        match &error {
            larder_batch::Error::Corrupted { .. } => Error::Corrupted(error.to_string()),
            larder_batch::Error::Cancelled => Error::Cancelled,
            larder_batch::Error::NotHere { .. } => Error::NotOnThisNode(error.to_string()),
            _ if error.is_disk_full() => Error::DiskFull(error.to_string()),
            _ if error.is_out_of_descriptors() => {
                Error::Io(format!("{error}; {}", descriptors::ADVICE))
            }
            _ => Error::Io(error.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BadRequest(message)
            | Error::Forbidden(message)
            | Error::AbsentKey(message)
            | Error::NotOnThisNode(message)
            | Error::NoLiveVersion(message)
            | Error::Conflict(message)
            | Error::Displaced(message)
            | Error::Refused(message)
            | Error::Corrupted(message)
            | Error::DiskFull(message)
            | Error::Source { message, .. }
            | Error::Tables(_, message)
            | Error::TooManyClients(message)
            | Error::Overloaded(message)
            | Error::Timeout(message)
            | Error::Io(message) => f.write_str(message),
            Error::NoSuchStore(name) => write!(
                f,
                "no store is named {name:?}; `larder store list` and GET /v1/stores list them, and `larder push` creates one"
            ),
            Error::NoSuchVersion {
                store,
                version,
                kept,
            } => {
                write!(f, "store {store} holds no version {version}; ")?;
                if kept.is_empty() {
                    return f.write_str("it holds none yet");
                }
                f.write_str("it holds")?;
                for (i, id) in kept.iter().enumerate() {
                    write!(f, "{} {id}", if i == 0 { "" } else { "," })?;
                }
                Ok(())
            }
            Error::NoSuchPull(id) => write!(
                f,
                "no pull has the id {id:?}; GET /v1/pulls lists those since the server started"
            ),
            Error::Cancelled => f.write_str("cancelled on request; nothing changed"),
            Error::NoPassword => write!(f, "this server requires a password; {GIVE_PASSWORD}"),
            Error::TooManyGuesses => f.write_str(
                "too many wrong passwords were given recently: this one was not checked; try again in a second",
            ),
            Error::WrongPassword => write!(f, "the password is wrong; {GIVE_PASSWORD}"),
        }
    }
}

impl std::error::Error for Error {}
