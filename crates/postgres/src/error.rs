//! Errors, classified by the action that resolves them.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// PostgreSQL is unreachable, or the connection was lost. Retry.
    Unreachable(String),
    /// The setup of PostgreSQL must be corrected; the message contains the correction. The connection is retried every
    /// few seconds.
    Setup(String),
    /// This read or write is not possible; the message contains the reason.
    Refused(String),
    /// It is unknown whether a write was executed, or when it will be visible.
    Unknown(String),
}

impl Error {
    pub fn message(&self) -> &str {
        match self {
            Error::Unreachable(message)
            | Error::Setup(message)
            | Error::Refused(message)
            | Error::Unknown(message) => message,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Error {}

/// Returns whether an SQLSTATE requires a change in PostgreSQL or in the configuration: invalid credentials (class 28),
/// a wrong database name (3D), or missing rights or objects (42).
fn is_setup(sqlstate: &str) -> bool {
    ["28", "3D", "42"]
        .iter()
        .any(|class| sqlstate.starts_with(class))
}

/// Returns the error of a statement or a connection attempt.
pub(crate) fn classified(error: &tokio_postgres::Error, message: String) -> Error {
    let code = error.code().map(tokio_postgres::error::SqlState::code);
    if code.is_some_and(is_setup) {
        Error::Setup(message)
    } else {
        Error::Unreachable(message)
    }
}

/// Returns the error of a replication connection, whose SQLSTATE is only in its text.
pub(crate) fn replication_failed(error: &pgwire_replication::PgWireError) -> Error {
    let text = error.to_string();
    let message = format!("replication from PostgreSQL broke: {text}");
    let code = text.rsplit_once("(SQLSTATE ").map(|(_, code)| code);
    if error.is_auth() || code.is_some_and(is_setup) {
        Error::Setup(message)
    } else {
        Error::Unreachable(message)
    }
}

/// Returns the message of PostgreSQL or of the connection, with details and hints.
pub(crate) fn describe_error(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(db) => {
            let more = [db.detail(), db.hint()].into_iter().flatten();
            let more: String = more.map(|text| format!(" ({text})")).collect();
            format!("{}{more}", db.message())
        }
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
