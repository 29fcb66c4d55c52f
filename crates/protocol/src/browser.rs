//! Rejects HTTP requests that a browser sends for a page of another site. An operator's browser that shows a console may show
//! such pages, too. The server's console and bg's deck use the same rules.
//!
//! 1. `Origin`, if sent, must be the same as `Host`.
//! 2. A request with a `Sec-Fetch-Site` of another site is rejected, even without `Origin`. Otherwise a page of that site could
//!    cause expensive requests with an image or a script, or link to data. Only a navigation to an open page may come from any
//!    site. Browsers send the header over HTTPS and to localhost. A request without the header is accepted.
//! 3. A server that listens on loopback only accepts only loopback names. This prevents DNS rebinding, in which an attacker's
//!    name resolves to this machine.
//! 4. A request that changes state must need a CORS preflight if a page of another site sends it: it has a JSON `Content-Type`,
//!    or a header that no page sends by default. larder does not answer preflights.

use std::net::{IpAddr, SocketAddr};

/// The server that receives the request.
#[derive(Debug, Clone, Copy)]
pub struct BrowserRequest {
    /// The server's name in error messages, such as "this server".
    pub what: &'static str,
    pub listens: SocketAddr,
    /// A header that a request which changes state may have instead of a JSON `Content-Type`.
    pub marker: Option<&'static str>,
}

impl BrowserRequest {
    /// Checks a request. `header` returns a header's value by its name, in any case. `is_open` is true for paths that pages of
    /// any site may open: the server's own pages, and responses without data or cost.
    ///
    /// # Errors
    /// The request must be rejected. The text is for its sender.
    pub fn authorize<'a>(
        &self,
        method: &str,
        header: impl Fn(&str) -> Option<&'a str>,
        is_open: bool,
    ) -> Result<(), String> {
        refuse_other_site(
            self.what,
            self.listens,
            Source::from_headers(&header),
            is_open,
        )?;
        if matches!(method, "GET" | "HEAD")
            || is_json(header("content-type"))
            || self.marker.is_some_and(|marker| header(marker).is_some())
        {
            return Ok(());
        }
        let or = match self.marker {
            Some(marker) => format!(", or {marker}: 1"),
            None => String::new(),
        };
        Err(format!(
            "a {method} needs the header Content-Type: application/json{or}"
        ))
    }
}

/// The origin of a request, according to its headers.
#[derive(Debug, Clone, Copy, Default)]
struct Source<'a> {
    host: Option<&'a str>,
    origin: Option<&'a str>,
    /// `Sec-Fetch-Site`.
    site: Option<&'a str>,
    /// `Sec-Fetch-Mode`.
    mode: Option<&'a str>,
}

impl<'a> Source<'a> {
    fn from_headers(header: impl Fn(&str) -> Option<&'a str>) -> Source<'a> {
        Source {
            host: header("host"),
            origin: header("origin"),
            site: header("sec-fetch-site"),
            mode: header("sec-fetch-mode"),
        }
    }
}

/// Returns an error if a request comes from a page of another site, or uses a host name that is not the server's.
fn refuse_other_site(
    what: &str,
    listens: SocketAddr,
    source: Source<'_>,
    is_open: bool,
) -> Result<(), String> {
    let host = source.host.unwrap_or("");
    if listens.ip().is_loopback() && !host.is_empty() && !is_local_name(host) {
        return Err(format!(
            "{what} listens on loopback only, and the request was for host {host:?}; use localhost or 127.0.0.1"
        ));
    }
    if let Some(origin) = source.origin {
        let of_origin = origin.split_once("://").map_or(origin, |(_, rest)| rest);
        if !of_origin.eq_ignore_ascii_case(host) {
            return Err(format!(
                "a page of {origin:?} may not use {what} at {host:?}"
            ));
        }
    }
    // "none": the user typed the address or opened a bookmark.
    let is_ours = source
        .site
        .is_none_or(|site| matches!(site, "same-origin" | "none"));
    let is_opened = is_open && source.mode.is_none_or(|mode| mode == "navigate");
    if is_ours || is_opened {
        return Ok(());
    }
    Err(format!(
        "a page of another site may not use {what} at {host:?}; open its own page, or type the address"
    ))
}

/// Returns whether a `Content-Type` is JSON, with any parameters.
fn is_json(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or("");
        kind.trim().eq_ignore_ascii_case("application/json")
    })
}

fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(listens: &str, host: &str, origin: Option<&str>, allowed: bool) {
        let source = Source {
            host: Some(host),
            origin,
            ..Source::default()
        };
        let verdict = refuse_other_site("this server", listens.parse().unwrap(), source, false);
        assert_eq!(verdict.is_ok(), allowed, "{verdict:?}");
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_tools_are_accepted() {
        let (here, anywhere) = ("127.0.0.1:7070", "0.0.0.0:7070");
        check(here, "localhost:7070", None, true);
        check(here, "[::1]:7070", None, true);
        check(here, "127.0.0.1", None, true);
        check(here, "", None, true);
        check(here, "evil.example", None, false);
        check(here, "evil.example:7070", None, false);
        check(anywhere, "larder.example", None, true);
        check(here, "localhost:7070", Some("http://localhost:7070"), true);
        check(here, "localhost:7070", Some("http://evil.example"), false);
        check(here, "localhost:7070", Some("null"), false);
        let own = Some("http://larder.example:7070");
        check(anywhere, "larder.example:7070", own, true);
        check(anywhere, "other.example", own, false);
    }

    /// An image on a page of another site has no `Origin`, and could start a dump.
    #[test]
    fn cross_site_requests_are_refused_except_page_navigation() {
        let verdict = |site, mode, is_open| {
            let source = Source {
                host: Some("localhost:7070"),
                origin: None,
                site: Some(site),
                mode: Some(mode),
            };
            refuse_other_site(
                "this server",
                "127.0.0.1:7070".parse().unwrap(),
                source,
                is_open,
            )
            .is_ok()
        };
        // Another port of this machine is the same site, and another origin.
        for site in ["cross-site", "same-site"] {
            assert!(!verdict(site, "no-cors", false), "{site}");
            assert!(!verdict(site, "navigate", false), "{site}");
            assert!(!verdict(site, "no-cors", true), "{site}");
            assert!(verdict(site, "navigate", true), "{site}");
        }
        for site in ["same-origin", "none"] {
            assert!(
                verdict(site, "cors", false) && verdict(site, "navigate", false),
                "{site}"
            );
        }
    }

    #[test]
    fn the_source_of_a_request_is_read_from_its_headers() {
        let source = Source::from_headers(|name| match name {
            "host" => Some("localhost:7070"),
            "origin" => Some("null"),
            "sec-fetch-site" => Some("cross-site"),
            "sec-fetch-mode" => Some("no-cors"),
            _ => None,
        });
        assert_eq!(
            (source.host, source.origin, source.site, source.mode),
            (
                Some("localhost:7070"),
                Some("null"),
                Some("cross-site"),
                Some("no-cors")
            )
        );
        assert_eq!(Source::from_headers(|_| None).host, None);
    }

    #[test]
    fn only_requests_that_other_sites_cannot_send_change_state() {
        let check = |marker, method, header: Option<(&str, &'static str)>, allowed| {
            let request = BrowserRequest {
                what: "this server",
                listens: "127.0.0.1:7070".parse().unwrap(),
                marker,
            };
            let find = |name: &str| match header {
                Some((sent, value)) if name.eq_ignore_ascii_case(sent) => Some(value),
                _ => (name == "host").then_some("localhost:7070"),
            };
            let verdict = request.authorize(method, find, false);
            assert_eq!(verdict.is_ok(), allowed, "{verdict:?}");
        };
        for marker in [None, Some("X-Larder")] {
            check(marker, "GET", None, true);
            check(marker, "GET", Some(("origin", "null")), false);
            check(
                marker,
                "GET",
                Some(("origin", "http://evil.example")),
                false,
            );
            check(marker, "GET", Some(("sec-fetch-site", "same-site")), false);
            check(marker, "GET", Some(("sec-fetch-site", "cross-site")), false);
            check(marker, "POST", None, false);
            check(marker, "POST", Some(("content-type", "text/plain")), false);
            let json = Some(("content-type", "application/json"));
            check(marker, "POST", json, true);
            check(marker, "DELETE", Some(("x-larder", "1")), marker.is_some());
        }
    }

    #[test]
    fn json_is_recognized_by_its_type_with_any_parameters() {
        assert!(is_json(Some("application/json")));
        assert!(is_json(Some("Application/JSON ; charset=utf-8")));
        assert!(!is_json(Some("text/plain")));
        assert!(!is_json(Some("application/json2")));
        assert!(!is_json(None));
    }
}
