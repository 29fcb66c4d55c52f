//! Plain HTTP reads. Object stores have their own client; this one keeps query strings, which contain the permission
//! in signed URLs, and needs no listing.
//!
//! Redirects are followed only to `http` and `https`, the only schemes of the client. If only some sources may be
//! read, each redirect and each address is checked.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode};
use url::Url;

use crate::error::{Error, Result};
use crate::location::Location;

/// The bytes of an object from an offset on, with the total size if it is known.
pub(crate) struct RangeResponse {
    pub response: Response,
    pub size: Option<u64>,
}

/// Installs the cryptography provider of TLS. There is one per process; the first one installed is used.
pub(crate) fn install_tls() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        rustls::crypto::ring::default_provider()
            .install_default()
            .ok();
    });
}

fn client(location: &Location) -> Result<Client> {
    install_tls();
    // One client per call: a pooled connection belongs to the runtime that opened it, and callers use different
    // runtimes.
    let mut client = Client::builder()
        .user_agent(concat!("larder/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(10));
    if let Some(allowed) = &location.allowed {
        client = client
            .redirect(allowed.redirects())
            .dns_resolver(allowed.resolver());
    }
    if let Some(certificates) = location.certificates.as_deref() {
        if !certificates.authorities.is_empty() {
            client = client.tls_certs_only(certificates.authorities.iter().cloned());
        }
        if let Some(own) = &certificates.own {
            client = client.identity(own.clone());
        }
    }
    client
        .build()
        .map_err(|e| Error::failed(location, &e.without_url()))
}

/// Returns the size that the server states: by `HEAD`, or by a one-byte range request for servers without it.
pub(crate) async fn size(location: &Location, url: &Url) -> Result<u64> {
    let client = client(location)?;
    let head = client.head(url.clone()).send().await;
    let head = head.map_err(|e| Error::failed(location, &e.without_url()))?;
    if head.status().is_success() {
        // `Response::content_length` is the length of this (empty) body, so the header is read instead.
        if let Some(size) = header_u64(&head, CONTENT_LENGTH.as_str()) {
            return Ok(size);
        }
    } else if head.status() == StatusCode::NOT_FOUND {
        return Err(Error::NotFound {
            location: location.to_string(),
        });
    }
    let answer = get(location, url, 0).await?;
    answer.size.ok_or_else(|| Error::WrongAnswer {
        location: location.to_string(),
        reason: "the server did not send the file's length; serve the file with Content-Length"
            .into(),
        retry: false,
    })
}

/// Requests the bytes from `from` on and checks that the response begins there.
pub(crate) async fn get(location: &Location, url: &Url, from: u64) -> Result<RangeResponse> {
    let mut request = client(location)?.get(url.clone());
    if from > 0 {
        request = request.header(RANGE, format!("bytes={from}-"));
    }
    let response = request.send().await;
    let response = response.map_err(|e| Error::failed(location, &e.without_url()))?;
    let status = response.status();
    let wrong = |reason: String| Error::WrongAnswer {
        location: location.to_string(),
        reason,
        retry: false,
    };
    match status {
        StatusCode::OK if from == 0 => {
            let size = header_u64(&response, CONTENT_LENGTH.as_str());
            Ok(RangeResponse { response, size })
        }
        StatusCode::PARTIAL_CONTENT if from > 0 => {
            let range = response
                .headers()
                .get(CONTENT_RANGE)
                .and_then(|value| value.to_str().ok())
                .and_then(parse_content_range)
                .ok_or_else(|| {
                    wrong("the response holds a range without a Content-Range header".into())
                })?;
            if range.start != from {
                return Err(wrong(format!(
                    "the request was for the bytes from {from} on, but the response begins at {}",
                    range.start
                )));
            }
            Ok(RangeResponse {
                response,
                size: range.size,
            })
        }
        StatusCode::OK => Err(wrong(format!(
            "the request was for the bytes from {from} on, but the server sent the complete file; it does not support ranges"
        ))),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(Error::NotFound {
            location: location.to_string(),
        }),
        StatusCode::RANGE_NOT_SATISFIABLE => Err(wrong(format!(
            "the request was for the bytes from {from} on, but the file ends before that"
        ))),
        other => Err(Error::Failed {
            location: location.to_string(),
            reason: format!("the server answered {other}"),
            retry: other.is_server_error()
                || other == StatusCode::TOO_MANY_REQUESTS
                || other == StatusCode::REQUEST_TIMEOUT,
        }),
    }
}

struct ContentRange {
    start: u64,
    size: Option<u64>,
}

/// Parses `bytes 10-99/100`, where the size may be `*`.
fn parse_content_range(text: &str) -> Option<ContentRange> {
    let (range, size) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end): (u64, u64) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
    let size = match size.trim() {
        "*" => None,
        size => Some(size.parse().ok()?),
    };
    (start <= end && size.is_none_or(|size| end < size)).then_some(ContentRange { start, size })
}

fn header_u64(response: &Response, name: &str) -> Option<u64> {
    response
        .headers()
        .get(name)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::parse_content_range;

    #[test]
    fn content_ranges() {
        let range = parse_content_range("bytes 10-99/100").unwrap();
        assert_eq!((range.start, range.size), (10, Some(100)));
        assert_eq!(parse_content_range("bytes 5-9/*").unwrap().size, None);
        for bad in [
            "",
            "bytes */100",
            "bytes 9-5/100",
            "bytes 0-100/100",
            "items 0-1/2",
        ] {
            assert!(parse_content_range(bad).is_none(), "{bad}");
        }
    }
}
