//! The API of the deck, for its page and for tools such as curl.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::board::Board;
use super::guard;

const PAGE: &str = include_str!("page.html");

pub fn router(board: Arc<Board>, addr: SocketAddr) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/v1/state", get(state))
        .route("/v1/threads", post(threads))
        .route("/v1/stop", post(stop))
        .route("/v1/start", post(start))
        .fallback(|| async { Failure::NoPath })
        .method_not_allowed_fallback(|| async { Failure::NoMethod })
        .layer(from_fn_with_state(addr, guard::check))
        .with_state(board)
}

/// The reason why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// Malformed: the request is never valid.
    Bad(String),
    /// Not valid in the current state or for this command.
    Conflict(String),
    Forbidden(String),
    /// The body did not arrive in time.
    Timeout(Duration),
    NoPath,
    NoMethod,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let paths = "the paths are GET /v1/state, POST /v1/threads, /v1/stop and /v1/start";
        let (status, code, message) = match self {
            Failure::Bad(why) => (StatusCode::BAD_REQUEST, "BAD_REQUEST", why),
            Failure::Conflict(why) => (StatusCode::CONFLICT, "CONFLICT", why),
            Failure::Timeout(silence) => {
                let seconds = silence.as_secs_f64();
                let message = format!("the request body did not arrive within {seconds} s");
                (StatusCode::REQUEST_TIMEOUT, "BAD_REQUEST", message)
            }
            Failure::Forbidden(why) => (StatusCode::FORBIDDEN, "FORBIDDEN", why),
            Failure::NoPath => {
                let message = format!("unknown path; {paths}");
                (StatusCode::NOT_FOUND, "BAD_REQUEST", message)
            }
            Failure::NoMethod => {
                let message = format!("method not allowed; {paths}");
                (StatusCode::METHOD_NOT_ALLOWED, "BAD_REQUEST", message)
            }
        };
        let body = json!({"error": {"code": code, "message": message}});
        (status, Json(body)).into_response()
    }
}

type ApiResult = Result<Json<Value>, Failure>;

async fn page() -> Response {
    // The page is self-contained: it must not load anything from another site or send anything there.
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                  img-src data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// The query parameter for past seconds: those from this number on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StateQuery {
    #[serde(default)]
    from: u64,
}

async fn state(
    State(board): State<Arc<Board>>,
    query: Result<Query<StateQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(|why| Failure::Bad(why.body_text()))?;
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, board.json(query.from)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreadsBody {
    threads: u32,
}

async fn threads(State(board): State<Arc<Board>>, body: Bytes) -> ApiResult {
    let ThreadsBody { threads } = decode(&body)?;
    board.set_threads(threads)?;
    Ok(Json(json!({"threads": threads})))
}

/// A body without content: `{}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyBody {}

async fn stop(State(board): State<Arc<Board>>, body: Bytes) -> ApiResult {
    let EmptyBody {} = decode(&body)?;
    board.stop()?;
    Ok(Json(json!({"stopping": true})))
}

async fn start(State(board): State<Arc<Board>>, body: Bytes) -> ApiResult {
    let EmptyBody {} = decode(&body)?;
    board.start()?;
    Ok(Json(json!({"starting": true})))
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|why| Failure::Bad(why.to_string()))
}
