//! The failure of a command: a message and an exit code.

use std::fmt;

/// The exit codes, as `larder --help` prints them.
pub const EXIT_CODES: &str = "\
Exit codes:
    0  success
    1  failure
    2  error in the command line or the configuration
    3  not found: the key, store, version or input does not exist
    4  rejected: by a gate, or because of a conflicting operation
    5  no server answers
    6  damaged data
  130  interrupted";

/// The reason for which a command failed.
#[derive(Debug)]
pub struct Failure {
    pub exit_code: u8,
    pub message: String,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Failure {
        Failure {
            exit_code: 1,
            message: message.into(),
        }
    }

    pub fn usage(message: impl Into<String>) -> Failure {
        Failure {
            exit_code: 2,
            message: message.into(),
        }
    }

    pub fn not_found(message: impl Into<String>) -> Failure {
        Failure {
            exit_code: 3,
            message: message.into(),
        }
    }

    pub fn refused(message: impl Into<String>) -> Failure {
        Failure {
            exit_code: 4,
            message: message.into(),
        }
    }

    pub fn interrupted(message: impl Into<String>) -> Failure {
        Failure {
            exit_code: 130,
            message: message.into(),
        }
    }

    /// Creates a failure with one of the server's error codes.
    pub fn with_code(code: &str, message: impl Into<String>) -> Failure {
        let exit_code = match code {
            "ABSENT_KEY" | "NO_SUCH_STORE" | "NO_SUCH_VERSION" | "NO_SUCH_PULL"
            | "NO_LIVE_VERSION" => 3,
            "REFUSED" | "CONFLICT" => 4,
            "CORRUPTED" => 6,
            "CANCELLED" => 130,
            _ => 1,
        };
        Failure {
            exit_code,
            message: message.into(),
        }
    }

    /// For `map_err`: prefixes the error with the operation that failed.
    pub fn io(doing: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Failure {
        move |error| Failure::new(format!("cannot {doing}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<larder_client::Error> for Failure {
    fn from(error: larder_client::Error) -> Failure {
        match &error {
            larder_client::Error::NoServer { .. } => Failure {
                exit_code: 5,
                message: error.to_string(),
            },
            larder_client::Error::BadAddress { .. } | larder_client::Error::BadFile { .. } => {
                Failure::usage(error.to_string())
            }
            _ => Failure::with_code(error.code().unwrap_or_default(), error.to_string()),
        }
    }
}

impl From<larder_remote::Error> for Failure {
    fn from(error: larder_remote::Error) -> Failure {
        Failure::new(error.to_string())
    }
}

impl From<larder_batch::Error> for Failure {
    fn from(error: larder_batch::Error) -> Failure {
        match &error {
            larder_batch::Error::Corrupted { .. } => {
                Failure::with_code("CORRUPTED", error.to_string())
            }
            larder_batch::Error::Cancelled => Failure::with_code("CANCELLED", error.to_string()),
            _ => Failure::new(error.to_string()),
        }
    }
}
