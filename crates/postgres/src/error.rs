//! What can go wrong, and what the reader of the message can do about it.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// PostgreSQL cannot be reached, or the connection broke. Try again.
    Unreachable(String),
    /// Something in PostgreSQL must be set right first; the message says how. It is tried again every few seconds.
    Setup(String),
    /// This read or write cannot be done; the message says why.
    Refused(String),
    /// Whether a write was made is not known, or when it will be seen.
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

/// Whether an SQLSTATE means that something in PostgreSQL or in the configuration must be changed first: the credentials (class 28), the
/// database's name (3D), or rights and objects that are missing (42).
fn is_setup(sqlstate: &str) -> bool {
    ["28", "3D", "42"]
        .iter()
        .any(|class| sqlstate.starts_with(class))
}

/// The error of a statement or a connection attempt, with a message for people.
pub(crate) fn classified(error: &tokio_postgres::Error, message: String) -> Error {
    let code = error.code().map(tokio_postgres::error::SqlState::code);
    match code.is_some_and(is_setup) {
        true => Error::Setup(message),
        false => Error::Unreachable(message),
    }
}

/// The error of a replication connection, which has the SQLSTATE in its text alone.
pub(crate) fn replication_failed(error: &pgwire_replication::PgWireError) -> Error {
    let said = error.to_string();
    let message = format!("replication from PostgreSQL broke: {said}");
    let code = said.rsplit_once("(SQLSTATE ").map(|(_, code)| code);
    match error.is_auth() || code.is_some_and(is_setup) {
        true => Error::Setup(message),
        false => Error::Unreachable(message),
    }
}

/// What PostgreSQL, or the way to it, said.
pub(crate) fn said(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => {
            let more = [said.detail(), said.hint()].into_iter().flatten();
            let more: String = more.map(|text| format!(" ({text})")).collect();
            format!("{}{more}", said.message())
        }
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}
