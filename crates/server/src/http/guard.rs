//! Access control of the HTTP API: requires the password, if one is set, and rejects requests from other sites' pages in an
//! operator's browser.
//!
//! 1. Requests from other sites' pages are rejected according to `larder_protocol::browser`, for all of `/v1` and the metrics; a
//!    link to the console works. A request that changes something may carry `X-Larder` instead of JSON: another site's page can
//!    send neither without a preflight request.
//! 2. If a password is configured, every path requires it except [`OPEN_PATHS`], which reveal only whether the server is up. A
//!    browser prompts its user, and sends the password from then on.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use larder_protocol::browser::BrowserRequest;

use super::json_result::Failure;
use crate::Shared;
use crate::error::Error;

/// Paths for load balancers and supervisors, which have no password.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The console.
const PAGE: &str = "/";

pub async fn check(State(addr): State<SocketAddr>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_open = path == PAGE || OPEN_PATHS.contains(&path);
    let browser_request = BrowserRequest {
        what: "this server",
        listens: addr,
        marker: Some("X-Larder"),
    };
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    match browser_request.authorize(request.method().as_str(), header, is_open) {
        Ok(()) => next.run(request).await,
        Err(why) => Failure(Error::Forbidden(why)).into_response(),
    }
}

pub async fn require_password(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    if OPEN_PATHS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let from = request.extensions().get::<Peer>().copied();
    match authenticate(&shared, from, request.headers()).await {
        Ok(()) => next.run(request).await,
        Err(why) => {
            let challenge = [(
                header::WWW_AUTHENTICATE,
                "Basic realm=\"larder\", charset=\"UTF-8\"",
            )];
            (challenge, Failure(why)).into_response()
        }
    }
}

/// The source address of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Checks the password of a request. After many wrong passwords from an address, its requests are delayed.
///
/// # Errors
/// [`Error::NoPassword`], [`Error::WrongPassword`], [`Error::TooManyGuesses`].
async fn authenticate(
    shared: &Shared,
    from: Option<Peer>,
    headers: &HeaderMap,
) -> Result<(), Error> {
    let from = from.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |Peer(addr)| addr);
    if !shared.password().is_none() && headers.contains_key(header::AUTHORIZATION) {
        shared.guess_limiter.wait_for_turn(from).await;
    }
    authenticate_now(shared, from, headers)
}

fn authenticate_now(shared: &Shared, from: IpAddr, headers: &HeaderMap) -> Result<(), Error> {
    match shared.password().check(headers) {
        Ok(()) if shared.password().is_none() => Ok(()),
        Ok(()) => shared.guess_limiter.check(from, true),
        Err(Error::WrongPassword) => shared.guess_limiter.check(from, false),
        Err(error) => Err(error),
    }
}

/// Checks the password without a delay, for paths that also respond without a password.
pub fn has_password(shared: &Shared, Peer(from): Peer, headers: &HeaderMap) -> bool {
    authenticate_now(shared, from, headers).is_ok()
}
