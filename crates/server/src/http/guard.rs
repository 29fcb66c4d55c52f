//! Who may use the HTTP API: those who know the password, if there is one, and no page of another
//! site that is open in an operator's browser.
//!
//! 1. A request that changes something must carry `Content-Type: application/json` or `X-Larder`:
//!    a page of another site cannot send either without asking first, and nobody answers that.
//! 2. `Origin`, if sent, must be the `Host` that was asked.
//! 3. A server that listens on loopback alone answers only to names of loopback: a name that an
//!    attacker lets point here ("DNS rebinding") is refused.
//! 4. With a password configured, every path asks for it but [`OPEN_PATHS`], which tell nothing but
//!    whether the server is up. A browser asks its user, and sends what it was told from then on.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::answer::Failure;
use crate::Shared;
use crate::error::Error;

/// What load balancers and supervisors ask, which have no password.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

pub async fn check(State(addr): State<SocketAddr>, request: Request, next: Next) -> Response {
    match judge(request.method(), request.headers(), addr) {
        Ok(()) => next.run(request).await,
        Err(why) => Failure(Error::Forbidden(why)).into_response(),
    }
}

pub async fn ask_password(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    if OPEN_PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    match shared.password().check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(why) => {
            let ask = [(
                header::WWW_AUTHENTICATE,
                "Basic realm=\"larder\", charset=\"UTF-8\"",
            )];
            (ask, Failure(why)).into_response()
        }
    }
}

fn judge(method: &Method, headers: &HeaderMap, addr: SocketAddr) -> Result<(), String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or("");
    if addr.ip().is_loopback() && !host.is_empty() && !is_local_name(host) {
        return Err(format!(
            "this server listens on loopback only and was asked as {host:?}; ask it as localhost or 127.0.0.1"
        ));
    }
    if let Some(origin) = text(header::ORIGIN) {
        let of_origin = origin.split_once("://").map_or(origin, |(_, rest)| rest);
        if !of_origin.eq_ignore_ascii_case(host) {
            return Err(format!(
                "a page of {origin:?} may not use the server at {host:?}"
            ));
        }
    }
    if matches!(*method, Method::GET | Method::HEAD) {
        return Ok(());
    }
    let json = text(header::CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or("");
        kind.trim().eq_ignore_ascii_case("application/json")
    });
    if json || headers.contains_key("x-larder") {
        return Ok(());
    }
    Err(format!(
        "a {method} needs the header Content-Type: application/json, or X-Larder: 1"
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
        let (here, anywhere) = ("127.0.0.1:7070", "0.0.0.0:7070");
        let json = ("content-type", "application/json; charset=utf-8");
        check(here, Method::GET, &[("host", "localhost:7070")], true);
        check(here, Method::GET, &[("host", "[::1]:7070")], true);
        check(here, Method::GET, &[("host", "evil.example")], false);
        check(anywhere, Method::GET, &[("host", "larder.example")], true);
        check(here, Method::POST, &[("host", "127.0.0.1:7070")], false);
        check(
            here,
            Method::POST,
            &[("host", "127.0.0.1:7070"), json],
            true,
        );
        check(
            here,
            Method::DELETE,
            &[("host", "127.0.0.1"), ("x-larder", "1")],
            true,
        );
        check(
            here,
            Method::POST,
            &[("host", "127.0.0.1"), ("content-type", "text/plain")],
            false,
        );
        let own = ("origin", "http://larder.example:7070");
        check(
            anywhere,
            Method::POST,
            &[("host", "larder.example:7070"), own, json],
            true,
        );
        check(
            anywhere,
            Method::POST,
            &[("host", "other.example"), own, json],
            false,
        );
        check(
            here,
            Method::GET,
            &[("host", "localhost:7070"), ("origin", "null")],
            false,
        );
    }
}
