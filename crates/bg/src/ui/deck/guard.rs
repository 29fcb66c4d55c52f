//! Rejects requests from pages of other sites: the deck has buttons, and a browser that shows the deck may show other
//! pages at the same time.
//!
//! Applies the rules of `larder_protocol::browser`, with two differences: opening the deck's page is allowed, and a
//! request that changes state must be JSON.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use larder_protocol::browser::BrowserRequest;

use super::routes::Failure;

pub async fn check(State(addr): State<SocketAddr>, request: Request, next: Next) -> Response {
    let browser_request = BrowserRequest {
        what: "this deck",
        listens: addr,
        marker: None,
    };
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let is_page = request.uri().path() == "/";
    match browser_request.authorize(request.method().as_str(), header, is_page) {
        Ok(()) => next.run(request).await,
        Err(why) => Failure::Forbidden(why).into_response(),
    }
}
