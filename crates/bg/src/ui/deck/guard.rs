//! Keeps pages of other sites out: the deck has buttons, and a browser that is open on it is open on other pages, too.
//!
//! Refused is what `larder_protocol::browser` says, but for opening the deck's page, and a request that changes something and is not JSON.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use larder_protocol::browser::{self, Came};

use super::routes::Failure;

pub async fn check(State(addr): State<SocketAddr>, request: Request, next: Next) -> Response {
    let is_page = request.uri().path() == "/";
    match judge(request.method(), request.headers(), addr, is_page) {
        Ok(()) => next.run(request).await,
        Err(why) => Failure::Forbidden(why).into_response(),
    }
}

fn judge(
    method: &Method,
    headers: &HeaderMap,
    addr: SocketAddr,
    is_page: bool,
) -> Result<(), String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    browser::refuse_other_site("this deck", addr, Came::of(text), is_page)?;
    if matches!(*method, Method::GET | Method::HEAD) || browser::is_json(text("content-type")) {
        return Ok(());
    }
    Err(format!(
        "a {method} needs the header Content-Type: application/json"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(method: Method, header: Option<(&'static str, &str)>, allowed: bool) {
        let mut headers = HeaderMap::new();
        headers.insert("host", "localhost:6001".parse().unwrap());
        if let Some((name, value)) = header {
            headers.insert(name, value.parse().unwrap());
        }
        let verdict = judge(&method, &headers, "127.0.0.1:6001".parse().unwrap(), false);
        assert_eq!(verdict.is_ok(), allowed, "{verdict:?}");
    }

    #[test]
    fn pages_of_other_sites_press_no_buttons() {
        check(Method::GET, None, true);
        check(Method::GET, Some(("origin", "null")), false);
        check(Method::GET, Some(("sec-fetch-site", "same-site")), false);
        check(Method::POST, None, false);
        check(Method::POST, Some(("content-type", "text/plain")), false);
        check(
            Method::POST,
            Some(("content-type", "application/json")),
            true,
        );
    }
}
