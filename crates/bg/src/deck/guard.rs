//! Keeps pages of other sites out: the deck has buttons, and a browser that is open on it is open on other pages, too.
//!
//! 1. A request that changes something must carry `Content-Type: application/json`: a page of another site cannot send that without
//!    asking first, and nobody answers that.
//! 2. `Origin`, if sent, must be the `Host` that was asked.
//! 3. A deck that listens on loopback answers only to names of loopback: a name that an attacker lets point here ("DNS rebinding") is refused.
//!
//! The same as larder's own console asks for.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::routes::Failure;

pub async fn check(State(addr): State<SocketAddr>, request: Request, next: Next) -> Response {
    match judge(request.method(), request.headers(), addr) {
        Ok(()) => next.run(request).await,
        Err(why) => Failure::Forbidden(why).into_response(),
    }
}

fn judge(method: &Method, headers: &HeaderMap, addr: SocketAddr) -> Result<(), String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or("");
    if addr.ip().is_loopback() && !host.is_empty() && !is_local_name(host) {
        return Err(format!(
            "this deck listens on loopback and was asked as {host:?}; ask it as localhost or 127.0.0.1"
        ));
    }
    if let Some(origin) = text(header::ORIGIN) {
        let of_origin = origin.split_once("://").map_or(origin, |(_, rest)| rest);
        if !of_origin.eq_ignore_ascii_case(host) {
            return Err(format!(
                "a page of {origin:?} may not use the deck at {host:?}"
            ));
        }
    }
    let json = text(header::CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or("");
        kind.trim().eq_ignore_ascii_case("application/json")
    });
    if json || matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    Err(format!(
        "a {method} needs the header Content-Type: application/json"
    ))
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
    fn check(listen: &str, method: Method, headers: &[(&'static str, &str)], allowed: bool) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let verdict = judge(&method, &map, listen.parse().unwrap());
        assert_eq!(verdict.is_ok(), allowed, "{verdict:?}");
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_tools_are_not() {
        let (here, anywhere) = ("127.0.0.1:6001", "0.0.0.0:6001");
        let json = ("content-type", "application/json; charset=utf-8");
        let local = ("host", "localhost:6001");
        check(here, Method::GET, &[local], true);
        check(here, Method::GET, &[("host", "[::1]:6001")], true);
        check(here, Method::POST, &[local, json], true);
        check(here, Method::POST, &[local], false);
        let form = ("content-type", "text/plain");
        check(here, Method::POST, &[local, form], false);
        let own = ("origin", "http://localhost:6001");
        check(here, Method::POST, &[local, json, own], true);
        let other = ("origin", "http://elsewhere.example");
        check(here, Method::POST, &[local, json, other], false);
        check(here, Method::GET, &[local, other], false);
        check(here, Method::GET, &[local, ("origin", "null")], false);
        let rebound = ("host", "elsewhere.example:6001");
        check(here, Method::GET, &[rebound], false);
        check(anywhere, Method::GET, &[rebound], true);
    }
}
