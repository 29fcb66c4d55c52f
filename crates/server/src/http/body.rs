//! Bodies of requests: taken whole before anything is done, within bounds of size and time, so that a client that sends
//! half of one holds its connection no longer than one that sends half of a head.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::answer::Failure;
use crate::Shared;
use crate::error::Error;

/// A pull's canaries are the longest of what is asked.
const BODY_BYTES_MAX: usize = 1 << 20;

pub async fn take(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let patience = shared.http_work.patience;
    let (head, body) = request.into_parts();
    let refused = match tokio::time::timeout(patience, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => return next.run(Request::from_parts(head, Body::from(bytes))).await,
        Ok(Err(_)) => Error::BadRequest(format!(
            "the request's body broke off, or is longer than {BODY_BYTES_MAX} bytes"
        )),
        Err(_) => Error::Timeout(format!(
            "the rest of the request's body did not come within {} s (server.http_timeout_seconds)",
            patience.as_secs()
        )),
    };
    // What is still to come of the body is not waited for.
    ([(header::CONNECTION, "close")], Failure(refused)).into_response()
}
