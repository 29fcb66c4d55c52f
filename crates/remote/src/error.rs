//! Errors of remote files. Messages never contain credentials or query strings.

use std::fmt;

use crate::allowed::Refused;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a location could not be used. `location` is always the redacted form.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a valid path or URL. Correct the text.
    BadLocation { text: String, reason: String },
    /// Nothing exists at the location.
    NotFound { location: String },
    /// The object is longer than the caller accepts.
    TooLarge {
        location: String,
        size: u64,
        max: u64,
    },
    /// The response does not match the request: another offset, another size, or it ended early. If `retry` is true,
    /// resuming may succeed.
    WrongAnswer {
        location: String,
        reason: String,
        retry: bool,
    },
    /// The store or the network failed. If `retry` is true, a retry may succeed.
    Failed {
        location: String,
        reason: String,
        retry: bool,
    },
    /// The location is not among the permitted sources.
    NotAllowed { location: String, reason: String },
    /// The scheme does not support the operation, such as listing over HTTP; or the target is not a regular file.
    Unsupported { location: String, reason: String },
}

impl Error {
    /// Returns whether the same call may succeed later, such as after a broken connection.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            Error::WrongAnswer { retry: true, .. } | Error::Failed { retry: true, .. }
        )
    }

    pub(crate) fn failed(
        location: &impl fmt::Display,
        source: &(dyn std::error::Error + 'static),
    ) -> Self {
        if let Some(refused) = refusal(source) {
            return Error::NotAllowed {
                location: location.to_string(),
                reason: refused.to_string(),
            };
        }
        Error::Failed {
            location: location.to_string(),
            reason: error_chain(source),
            retry: true,
        }
    }

    pub(crate) fn from_io(location: &impl fmt::Display, source: &std::io::Error) -> Self {
        let location = location.to_string();
        if source.kind() == std::io::ErrorKind::NotFound {
            return Error::NotFound { location };
        }
        Error::Failed {
            location,
            reason: source.to_string(),
            retry: false,
        }
    }

    pub(crate) fn from_store(location: &impl fmt::Display, source: object_store::Error) -> Self {
        use object_store::Error as Store;
        let location = location.to_string();
        let retry = matches!(source, Store::Generic { .. });
        match source {
            Store::NotFound { .. } => Error::NotFound { location },
            other => Error::Failed {
                location,
                reason: error_chain(&other),
                retry,
            },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::BadLocation { text, reason } => write!(f, "location {text:?}: {reason}"),
            Error::NotFound { location } => {
                write!(
                    f,
                    "{location}: there is nothing here; check the path or URL"
                )
            }
            Error::TooLarge {
                location,
                size,
                max,
            } => {
                write!(
                    f,
                    "{location}: it has {size} bytes, at most {max} are accepted"
                )
            }
            Error::WrongAnswer {
                location, reason, ..
            }
            | Error::Failed {
                location, reason, ..
            }
            | Error::NotAllowed { location, reason }
            | Error::Unsupported { location, reason } => write!(f, "{location}: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the rejection by [`crate::Allowed`], if that is why a request failed.
fn refusal<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Refused> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(refused) = error.downcast_ref() {
            return Some(refused);
        }
        next = error.source();
    }
    None
}

/// Returns the error and its sources in one line, without duplicates, redacted, and without response bodies, which
/// may be confidential.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    redact(without_body(&text))
}

/// Removes the response from an error of an object store, which quotes it from the first `<` of its XML or the brace
/// of its JSON.
fn without_body(text: &str) -> &str {
    let end = text.find(['<', '{']).unwrap_or(text.len());
    text[..end].trim_end_matches([' ', ':', '"'])
}

/// Returns the text without the user, password and query string of any URL in it.
pub(crate) fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after
            .find(|c: char| c.is_whitespace() || "\"')>,".contains(c))
            .unwrap_or(after.len());
        let url = &after[..end];
        let authority_end = url.find(['/', '?', '#']).unwrap_or(url.len());
        let host_start = url[..authority_end].rfind('@').map_or(0, |at| at + 1);
        let visible_end = url.find(['?', '#']).unwrap_or(url.len());
        out.push_str(&url[host_start..visible_end]);
        rest = &after[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::{redact, without_body};

    #[test]
    fn credentials_and_queries_are_not_shown() {
        assert_eq!(
            redact("GET https://ann:secret@host/p/f.csv?sig=abc#x (refused)"),
            "GET https://host/p/f.csv (refused)"
        );
        assert_eq!(redact("s3://bucket/a b://c@d"), "s3://bucket/a b://d");
        assert_eq!(redact("no url?"), "no url?");
    }

    #[test]
    fn response_bodies_are_not_shown() {
        let quoted = "status 403 Forbidden: <?xml version=\"1.0\"?><Error><AWSAccessKeyId>AKIA</AWSAccessKeyId></Error>";
        assert_eq!(without_body(quoted), "status 403 Forbidden");
        assert_eq!(
            without_body("status 401: {\"error\": \"token x\"}"),
            "status 401"
        );
        assert_eq!(without_body("connection refused"), "connection refused");
    }
}
