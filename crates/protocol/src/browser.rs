//! Which HTTP requests a browser sends for a page of another site: an operator's browser that is open on a console is open on
//! other pages, too. The server's console and bg's deck ask the same.
//!
//! 1. `Origin`, if sent, must be the `Host` that was asked.
//! 2. What listens on loopback alone answers only to names of loopback: a name that an attacker lets point here ("DNS rebinding")
//!    is refused.
//! 3. A request that changes something must be of a kind that a page of another site cannot send without asking first, which
//!    nobody answers: JSON, by its `Content-Type`.

use std::net::{IpAddr, SocketAddr};

/// Why a request must be refused: it came for a page of another site, or by a name that is not ours. `what` is asked at `listens`:
/// "this server".
pub fn refuse_other_site(
    what: &str,
    listens: SocketAddr,
    host: Option<&str>,
    origin: Option<&str>,
) -> Result<(), String> {
    let host = host.unwrap_or("");
    if listens.ip().is_loopback() && !host.is_empty() && !is_local_name(host) {
        return Err(format!(
            "{what} listens on loopback only and was asked as {host:?}; ask it as localhost or 127.0.0.1"
        ));
    }
    let Some(origin) = origin else {
        return Ok(());
    };
    let of_origin = origin.split_once("://").map_or(origin, |(_, rest)| rest);
    if of_origin.eq_ignore_ascii_case(host) {
        return Ok(());
    }
    Err(format!(
        "a page of {origin:?} may not use {what} at {host:?}"
    ))
}

/// Whether a `Content-Type` is JSON, whatever its parameters.
pub fn is_json(content_type: Option<&str>) -> bool {
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
        let verdict =
            refuse_other_site("this server", listens.parse().unwrap(), Some(host), origin);
        assert_eq!(verdict.is_ok(), allowed, "{verdict:?}");
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_tools_are_not() {
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

    #[test]
    fn json_is_told_by_its_type_whatever_the_parameters() {
        assert!(is_json(Some("application/json")));
        assert!(is_json(Some("Application/JSON ; charset=utf-8")));
        assert!(!is_json(Some("text/plain")));
        assert!(!is_json(Some("application/json2")));
        assert!(!is_json(None));
    }
}
