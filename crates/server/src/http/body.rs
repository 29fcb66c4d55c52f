//! Reads request bodies completely before any work is done, with limits on size and time.
//!
//! A client that sends half of a body therefore holds its connection no longer than one that sends half of a head. A body whose
//! announced size exceeds the limit is not read.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use futures::StreamExt;

use super::json_result::Failure;
use crate::Shared;
use crate::error::Error;

/// A pull's canaries are the longest body, except for [`RECOVER`].
const BODY_BYTES_MAX: usize = 1 << 20;
/// A request to this path contains the stored state of every node: up to about 100 bytes per copy of a slot.
pub const RECOVER: &str = "/v1/cluster/recover";
const RECOVER_BYTES_MAX: usize = 64 << 20;

pub async fn collect_body(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let timeout = shared.http_read_limiter.timeout;
    let (head, body) = request.into_parts();
    let bytes_max = match head.uri.path() {
        RECOVER => RECOVER_BYTES_MAX,
        _ => BODY_BYTES_MAX,
    };
    let (status, refused) = match tokio::time::timeout(timeout, read_body(body, bytes_max)).await {
        Ok(Ok(bytes)) => return next.run(Request::from_parts(head, Body::from(bytes))).await,
        Ok(Err(refused)) => refused,
        Err(_) => {
            let seconds = timeout.as_secs();
            let message = format!(
                "the rest of the request's body did not arrive within {seconds} s (server.http_timeout_seconds)"
            );
            (StatusCode::REQUEST_TIMEOUT, Error::Timeout(message))
        }
    };
    // The rest of the body is not awaited.
    let close = [(header::CONNECTION, "close")];
    (status, close, Failure(refused)).into_response()
}

/// Reads a complete body.
async fn read_body(body: Body, bytes_max: usize) -> Result<Bytes, (StatusCode, Error)> {
    let too_long = || {
        let message = format!("the request's body is longer than {bytes_max} bytes");
        (StatusCode::PAYLOAD_TOO_LARGE, Error::BadRequest(message))
    };
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(too_long());
    }
    let mut all = BytesMut::new();
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| {
            let message = "the request's body ended early".to_owned();
            (StatusCode::BAD_REQUEST, Error::BadRequest(message))
        })?;
        if all.len() + part.len() > bytes_max {
            return Err(too_long());
        }
        all.extend_from_slice(&part);
    }
    Ok(all.freeze())
}
