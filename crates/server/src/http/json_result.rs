//! JSON bodies of errors and requests.

use axum::Json;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use larder_protocol::http::ErrorBody;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// An [`Error`] as a response.
pub struct Failure(pub Error);

pub type JsonResult<T> = Result<Json<T>, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(error)
    }
}

impl From<larder_batch::Error> for Failure {
    fn from(error: larder_batch::Error) -> Failure {
        Failure(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code().http_status())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = ErrorBody {
            error: self.0.info(),
        };
        (status, Json(body)).into_response()
    }
}

/// Decodes the request's body; an empty body is `{}`.
pub fn decode<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failure> {
    let text: &[u8] = if body.is_empty() { b"{}" } else { body };
    // serde would accept an array as an object's values in order.
    let read = if text.trim_ascii_start().starts_with(b"[") {
        Err("an array, where an object is expected".to_owned())
    } else {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    };
    read.map_err(|error| {
        let message = format!("the request's body is invalid: {error}; see /v1/openapi.json");
        Failure(Error::BadRequest(message))
    })
}
