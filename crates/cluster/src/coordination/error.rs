//! Errors of the coordination service.

use std::fmt;

use super::LeaseId;

/// An error of the coordination service. Each variant states whether the request was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Not executed, and a retry cannot succeed: the request, the configuration or the service must change.
    Refused(String),
    /// Not executed: the service did not accept the request. The caller may retry.
    NotDone(String),
    /// Possibly executed, or executed later: no reply arrived in time. To learn the outcome of a change, retry it.
    Unknown(String),
    /// Not executed: the request names a lease that has ended. No key bound to that lease exists any more.
    LeaseEnded(LeaseId),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(why) | Error::NotDone(why) => f.write_str(why),
            Error::Unknown(why) => {
                write!(f, "{why}; the request may have been executed nevertheless")
            }
            Error::LeaseEnded(lease) => write!(f, "lease {lease} has ended"),
        }
    }
}

impl std::error::Error for Error {}
