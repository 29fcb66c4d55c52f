//! Why the coordination service did not answer as asked.

use std::fmt;

use super::LeaseId;

/// Each says whether what was asked for was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// It was not made, and asking again will not help: somebody must change the request, the configuration or the service.
    Refused(String),
    /// It was not made: the service did not take it. It may be asked for again.
    NotDone(String),
    /// It may have been made, or be made yet: an answer did not come in time. A change is asked for again to find out.
    Unknown(String),
    /// It was not made: it names a lease that has ended. Nothing bound to that lease exists any more.
    LeaseEnded(LeaseId),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(why) | Error::NotDone(why) => f.write_str(why),
            Error::Unknown(why) => write!(f, "{why}; it may have been done all the same"),
            Error::LeaseEnded(lease) => write!(f, "lease {lease} has ended"),
        }
    }
}

impl std::error::Error for Error {}
