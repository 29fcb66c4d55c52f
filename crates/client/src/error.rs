//! What a client can fail with, told apart by what the caller can do about it.

use std::fmt;
use std::path::PathBuf;

/// Why an operation did not give its answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// Nothing listens at the address: start a server, or correct the address.
    NoServer { address: String },
    /// The address is not one. Correct it.
    BadAddress { address: String, detail: String },
    /// The server did not answer in time. For a write this means *unknown*: it may have been done.
    TimedOut { address: String, seconds: f64 },
    /// The connection broke, or the answer could not be read. A write may have been done.
    Broken { address: String, detail: String },
    /// No secret connection came about: what to do is in `detail`. Nothing was asked yet.
    Tls { address: String, detail: String },
    /// A file with a certificate or a key cannot be used.
    BadFile { path: PathBuf, detail: String },
    /// The server answers, but not in the protocol expected: another program is behind the address.
    Protocol { address: String, detail: String },
    /// A write was sent, and no reply came: whether it was done is not known, and it was not sent again.
    /// Read what it was to change, or repeat it if it is the same done twice.
    Unknown { address: String, detail: String },
    /// No node has answered in time, and nothing was done. `failures` says what became of the last that were asked.
    NoNode {
        /// That of the first key, if there is one.
        slot: Option<u16>,
        failures: Vec<String>,
    },
    /// The keys of one store were answered from several versions, again and again. Ask again.
    SeveralVersions { store: String },
    /// The command changes its connection, and a client of a cluster has none for longer than a command: use a `RespClient`.
    BoundToConnection { command: String },
    /// The server refused, with a code that programs may match on.
    Refused {
        code: String,
        message: String,
        retry: bool,
    },
}

impl Error {
    /// The server's error code (`NO_SUCH_STORE`, `ERR`, ...), where it was the server that refused.
    pub fn code(&self) -> Option<&str> {
        match self {
            Error::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoServer { address } => write!(
                f,
                "no larder server answers at {address}; start one with `larder serve`"
            ),
            Error::BadAddress { address, detail } => {
                write!(f, "{address:?} is not an address of a server: {detail}")
            }
            Error::TimedOut { address, seconds } => write!(
                f,
                "the server at {address} did not answer within {seconds} s; whether it did what was asked is unknown"
            ),
            Error::Broken { address, detail } => {
                write!(f, "the connection to {address} broke: {detail}")
            }
            Error::Tls { address, detail } => {
                write!(f, "no TLS connection to the server at {address}: {detail}")
            }
            Error::BadFile { path, detail } => {
                write!(f, "{} cannot be used for TLS: {detail}", path.display())
            }
            Error::Protocol { address, detail } => write!(
                f,
                "what answers at {address} does not speak as a larder server does: {detail}"
            ),
            Error::Unknown { address, detail } => write!(
                f,
                "the write was sent to {address}, which {detail}: whether it was done is unknown, and it was not repeated"
            ),
            Error::NoNode { slot, failures } => {
                f.write_str("no node of the cluster answers")?;
                if let Some(slot) = slot {
                    write!(f, " for slot {slot}")?;
                }
                write!(f, ": {}", failures.join("; "))
            }
            Error::SeveralVersions { store } => write!(
                f,
                "the nodes answer from several versions of store {store}; ask again"
            ),
            Error::BoundToConnection { command } => write!(
                f,
                "{command} changes its connection; send it over a connection of your own to one node"
            ),
            Error::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}
