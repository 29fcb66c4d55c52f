//! Serves the files of a version unchanged: to nodes whose source is slow or gone, and for copies between servers
//! (`larder push http://…/v1/stores/pymk/versions/7/files --store pymk`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use larder_batch::Manifest;
use larder_batch::version::files::open_regular;
use larder_types::VersionSelector;

use super::Server;
use super::json_result::Failure;
use super::read_limiter::Admission;
use crate::error::Error;

const PART_BYTES: u64 = 256 << 10;

/// Returns the manifest, or a segment of a partition on this node, optionally from a byte on (`Range: bytes=N-`).
pub async fn file(
    State(shared): Server,
    Path((name, version, file)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let which: VersionSelector = version.parse().map_err(Error::BadRequest)?;
    let (id, version) = shared.stores.get(&name)?.version(Some(which))?;
    if file == Manifest::FILE {
        return Ok(version.manifest().encode().into_response());
    }
    let absent = || {
        Error::AbsentKey(format!(
            "version {id} of store {name} has no file {file:?} here"
        ))
    };
    let entry = version.manifest().entries().find(|it| it.file == file);
    let here = version.local_partitions();
    let entry = entry.filter(|entry| here.contains(entry.partition.0));
    let entry = entry.ok_or_else(absent)?;
    let size = entry.size_bytes;
    let from = range_from(&headers)?.unwrap_or(0);
    if from > size || (from == size && size > 0) {
        let content_range = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, content_range).into_response());
    }
    let path = version.path().join(&entry.file);
    let admission = shared.http_read_limiter.admit().await?;
    let opened =
        tokio::task::spawn_blocking(move || open_regular(&path).map_err(Error::io("open", &path)));
    let opened = opened.await.map_err(|error| Error::Io(error.to_string()))?;
    let sending = Sending {
        file: Arc::new(opened?),
        at: from,
        size,
        _admission: admission,
    };
    let parts = futures::stream::try_unfold(sending, Sending::next_part);
    let mut answer = Body::from_stream(parts).into_response();
    let headers = answer.headers_mut();
    let number = |number: u64| header::HeaderValue::from(number);
    headers.insert(header::CONTENT_LENGTH, number(size - from));
    let bytes = header::HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, bytes);
    if from > 0 {
        let range = format!("bytes {from}-{}/{size}", size - 1);
        let range = header::HeaderValue::from_str(&range).expect("digits are a header");
        headers.insert(header::CONTENT_RANGE, range);
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(answer)
}

/// Parses `bytes=N-`; other ranges are not supported.
fn range_from(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let Some(range) = headers.get(header::RANGE) else {
        return Ok(None);
    };
    let from = range.to_str().ok().and_then(|text| {
        let from = text.strip_prefix("bytes=")?.strip_suffix('-')?;
        from.parse().ok()
    });
    let wrong = || Error::BadRequest("only ranges of the form bytes=N- are supported".to_owned());
    from.map(Some).ok_or_else(wrong)
}

/// A file being sent. Each part is read when the previous one has been sent.
struct Sending {
    file: Arc<File>,
    at: u64,
    size: u64,
    _admission: Admission,
}

impl Sending {
    async fn next_part(mut self) -> Result<Option<(Bytes, Sending)>, std::io::Error> {
        let count = (self.size - self.at).min(PART_BYTES);
        if count == 0 {
            return Ok(None);
        }
        let (file, at) = (self.file.clone(), self.at);
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; count as usize];
            file.read_exact_at(&mut bytes, at).map(|()| bytes)
        });
        let bytes = read.await.map_err(std::io::Error::other)??;
        self.at += count;
        Ok(Some((bytes.into(), self)))
    }
}
