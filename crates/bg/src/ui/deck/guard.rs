//! Keeps pages of other sites out: the deck has buttons, and a browser that is open on it is open on other pages, too.
//!
//! Refused is what `larder_protocol::browser` says, but for opening the deck's page, and a request that changes something and is not JSON.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use larder_protocol::browser::Asked;

use super::routes::Failure;

pub async fn check(State(addr): State<SocketAddr>, request: Request, next: Next) -> Response {
    let asked = Asked {
        what: "this deck",
        listens: addr,
        marker: None,
    };
    let header = |name: &str| request.headers().get(name)?.to_str().ok();
    let is_page = request.uri().path() == "/";
    match asked.judge(request.method().as_str(), header, is_page) {
        Ok(()) => next.run(request).await,
        Err(why) => Failure::Forbidden(why).into_response(),
    }
}
