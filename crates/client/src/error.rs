//! The errors of a client, distinguished by what the caller can do about them.

use std::fmt;
use std::path::PathBuf;

/// The reason why an operation failed.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// No server listens at the address: start a server, or correct the address.
    NoServer { address: String },
    /// The address is invalid. Correct it.
    BadAddress { address: String, detail: String },
    /// The server did not reply in time. The outcome of a write is *unknown*: it may have been executed.
    TimedOut { address: String, seconds: f64 },
    /// The connection broke, or the reply was unreadable. A write may have been executed.
    Broken { address: String, detail: String },
    /// No TLS connection could be established; `detail` has advice. Nothing was sent yet.
    Tls { address: String, detail: String },
    /// A certificate or key file cannot be used.
    BadFile { path: PathBuf, detail: String },
    /// The server uses another protocol: a different program listens at the address.
    Protocol { address: String, detail: String },
    /// A write was sent without a reply: its outcome is unknown, and it was not retried. Read the affected data, or
    /// repeat the write if it is idempotent.
    Unknown { address: String, detail: String },
    /// No node responded in time, and nothing was executed. `failures` describes the last failures.
    NoNode {
        /// The slot of the first key, if there is one.
        slot: Option<u16>,
        failures: Vec<String>,
    },
    /// The keys of one store repeatedly came from different versions. Retry.
    SeveralVersions { store: String },
    /// The command changes its connection, which a cluster client does not support: use a `RespClient`.
    BoundToConnection { command: String },
    /// The server rejected the request, with a code that programs can match.
    Refused {
        code: String,
        message: String,
        retry: bool,
    },
}

impl Error {
    /// Returns the server's error code (`NO_SUCH_STORE`, `ERR`, ...), if the server rejected the request.
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
                "the server at {address} did not answer within {seconds} s; it may have executed the request"
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
                "the program at {address} is not a larder server: {detail}"
            ),
            Error::Unknown { address, detail } => write!(
                f,
                "the write was sent to {address}, which {detail}: the write may have been executed, and it was not repeated"
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
                "the nodes replied from several versions of store {store}; try again"
            ),
            Error::BoundToConnection { command } => write!(
                f,
                "{command} changes the state of its connection; send it over your own connection to one node"
            ),
            Error::Refused { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Error {}
