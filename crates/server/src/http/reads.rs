//! Routes that read records: one key, a sample, and the verification of all local data. Those for a complete version are in
//! `dump` and `diff`.
//!
//! They may wait for the disk or take minutes, so none runs on the HTTP thread. Single keys use the blocking pool, complete
//! versions use low-priority threads, with the concurrency and step size of `read_limiter.rs`.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::{IntoResponse, Response};
use larder_batch::version::VerifyReport;
use larder_protocol::http::{JSON_LINES, Record, Sample, VerifyLine, VerifyRequest, VerifyResult};
use larder_types::VersionSelector;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::Server;
use super::json_result::{Failure, decode};
use super::read_limiter::Admission;
use super::remote_reads;
use crate::Shared;
use crate::catalog::{LiveStore, Lookup};
use crate::error::Error;
use crate::pinned_value::PinnedValue;
use crate::supervision::{contain, task_panicked};

pub(super) type MaybeQuery<T> = Result<Query<T>, QueryRejection>;

const SAMPLE_RECORDS_DEFAULT: usize = 10;
const SAMPLE_RECORDS_MAX: usize = 10_000;
/// Maximum bytes of keys and values in a response, before their conversion to JSON.
pub(super) const ANSWER_BYTES_MAX: u64 = 4 << 20;
/// Values up to this size are served without admission control.
const UNBOUNDED_BYTES_MAX: usize = 64 << 10;
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValueQuery {
    version: Option<VersionSelector>,
    /// Only data on this node: the form of a request from another node.
    #[serde(default)]
    here: bool,
}

/// Returns the value of one key unchanged, from the live version or another kept one.
pub async fn value(
    State(shared): Server,
    query: MaybeQuery<ValueQuery>,
    uri: Uri,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(bad_query)?;
    // Not axum's `Path`, which rejects keys that are not UTF-8.
    let path = uri.path().strip_prefix("/v1/stores/").unwrap_or_default();
    let (name, encoded) = path.split_once("/keys/").unwrap_or_default();
    let key = percent_decode(encoded);
    let live = match query.version {
        None | Some(VersionSelector::Live) => live_store(&shared, name),
        Some(which) => kept_store(&shared, name, which),
    };
    let live = live.map_err(|error| {
        if query.here {
            // Another node must not mistake this for an absent key.
            Error::NotOnThisNode(error.to_string())
        } else {
            error
        }
    })?;
    let version = [("x-larder-version", live.version_id.to_string())];
    // This runs on the HTTP thread, whose counters only that thread writes.
    let series = shared.stats.http().series(Some(name), "HTTP.GET");
    let began = Instant::now();
    if !live.version.has_partition_of(&key) {
        let value = if query.here {
            Err(remote_reads::not_on_this_node(&live))
        } else {
            let _admission = shared.http_read_limiter.admit().await?;
            remote_reads::fetch_value(&shared, &live, &key, encoded).await
        };
        series.record(1, began.elapsed());
        series.record_keys(1, u64::from(matches!(value, Err(Error::AbsentKey(_)))));
        let answer =
            value.map_or_else(|error| Failure(error).into_response(), Bytes::into_response);
        return Ok((version, answer).into_response());
    }
    let mut read = if live.has_large_values() {
        Err(None)
    } else {
        read_value(&live, &key, UNBOUNDED_BYTES_MAX).await?
    };
    if let Err(None) = read {
        let admission = shared.http_read_limiter.admit().await?;
        read = read_value(&live, &key, usize::MAX)
            .await?
            .map(|value| admission.hold(value));
    }
    let read = read.map_err(|error| error.unwrap_or(Error::Cancelled));
    series.record(1, began.elapsed());
    series.record_keys(1, u64::from(matches!(read, Err(Error::AbsentKey(_)))));
    let answer = match read {
        Ok(value) => value.into_response(),
        Err(error) => {
            if !matches!(error, Error::AbsentKey(_)) {
                series.record_error();
            }
            Failure(error).into_response()
        }
    };
    Ok((version, answer).into_response())
}

fn live_store(shared: &Shared, name: &str) -> Result<Arc<LiveStore>, Error> {
    match shared.catalog.load().lookup(name.as_bytes()) {
        Lookup::Live(live) => Ok(live.clone()),
        Lookup::Unavailable(why) => Err(Error::Tables(why.cause.code(), why.reason.clone())),
        Lookup::Absent => Err(Error::NoSuchStore(name.chars().take(80).collect())),
    }
}

/// A kept version in the form of a live one.
fn kept_store(
    shared: &Shared,
    name: &str,
    which: VersionSelector,
) -> Result<Arc<LiveStore>, Error> {
    let store = shared.stores.get(name)?;
    let (version_id, version) = store.version(Some(which))?;
    Ok(Arc::new(LiveStore {
        name: store.name.clone(),
        version_id,
        version,
    }))
}

/// Reads the value of a key; `Err(None)` if it is longer than `bytes_max`.
async fn read_value(
    live: &Arc<LiveStore>,
    key: &[u8],
    bytes_max: usize,
) -> Result<Result<Bytes, Option<Error>>, Failure> {
    let (live, key) = (live.clone(), key.to_vec());
    let read = move || -> Result<Bytes, Option<Error>> {
        let found = PinnedValue::find(&live, |version| version.get(&key));
        match found.map_err(|error| Some(error.into()))? {
            Some(value) if value.len() > bytes_max => Err(None),
            Some(value) => into_bytes(&live, value).map_err(Some),
            None => Err(Some(absent_key(&live, &key))),
        }
    };
    tokio::task::spawn_blocking(read).await.map_err(panicked)
}

pub(super) fn absent_key(live: &LiveStore, key: &[u8]) -> Error {
    Error::AbsentKey(format!(
        "store {} version {} holds no key {:?}",
        live.name,
        live.version_id,
        String::from_utf8_lossy(key)
    ))
}

/// Copies a value that borrows from the mapping, because the sender cannot check whether it is still intact.
fn into_bytes(live: &LiveStore, value: PinnedValue) -> Result<Bytes, Error> {
    if !value.is_borrowed() {
        return Ok(Bytes::from_owner(value));
    }
    let copy = Bytes::copy_from_slice(&value);
    if value.is_intact() {
        Ok(copy)
    } else {
        Err(live.version.lost_pages_error().into())
    }
}

/// Reads and checks a complete version. Reports progress to clients that accept lines.
pub async fn verify(
    State(shared): Server,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    let request: VerifyRequest = decode(&body)?;
    let store = shared.stores.get(&name)?;
    let (id, version) = store.version(request.version)?;
    let bytes_total = version.local_size_bytes();
    let verify = move |should_continue: &dyn Fn(u64) -> bool| {
        let what = format!("verifying version {id} of store {}", store.name);
        let report =
            contain(&what, || Ok(version.verify(should_continue))).unwrap_or_else(|error| {
                let place = version.path().display().to_string();
                Err(larder_batch::Error::corrupted(place, error.to_string()))
            });
        store.note_verified(id, &version, &report);
        report
    };
    let result = move |report: VerifyReport| VerifyResult {
        version: id.0,
        record_count: report.record_count,
        size_bytes: report.size_bytes,
        ok: true,
    };
    let admission = shared.http_read_limiter.admit().await?;
    let accept = headers.get(header::ACCEPT).map(|value| value.as_bytes());
    if accept != Some(JSON_LINES.as_bytes()) {
        let work = move |cancelled: &oneshot::Sender<_>| verify(&|_| !cancelled.is_closed());
        let report = shared.http_read_limiter.run(work).await??;
        return Ok(json(admission, &result(report)));
    }
    let (send, lines) = mpsc::channel::<Result<Bytes, std::io::Error>>(4);
    let work = move |_: &oneshot::Sender<_>| {
        let reported_at = Cell::new(Instant::now());
        let report = verify(&|bytes_done| {
            // One place is reserved for the last line, so that this never waits for the reader.
            if reported_at.get().elapsed() >= PROGRESS_EVERY && send.capacity() > 1 {
                reported_at.set(Instant::now());
                let progress = VerifyLine::Progress {
                    bytes_done,
                    bytes_total,
                };
                let _ = send.try_send(Ok(line(&progress)));
            }
            !send.is_closed()
        });
        let last = match report {
            Ok(report) => VerifyLine::Done(result(report)),
            Err(error) => VerifyLine::Error(Error::from(error).info()),
        };
        // An error means that the client has disconnected.
        let _ = send.try_send(Ok(line(&last)));
    };
    tokio::spawn(async move {
        let done = shared.http_read_limiter.run(work).await;
        drop((done, admission));
    });
    Ok(([(header::CONTENT_TYPE, JSON_LINES)], stream(lines)).into_response())
}

fn line(value: &impl serde::Serialize) -> Bytes {
    let mut line = serde_json::to_vec(value).expect("plain values become JSON");
    line.push(b'\n');
    line.into()
}

fn stream(mut parts: mpsc::Receiver<Result<Bytes, std::io::Error>>) -> Body {
    Body::from_stream(futures::stream::poll_fn(move |context| {
        parts.poll_recv(context)
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleQuery {
    n: Option<usize>,
    version: Option<VersionSelector>,
    seed: Option<u64>,
}

/// Returns some records; different ones each time unless a seed is given.
pub async fn sample(
    State(shared): Server,
    Path(name): Path<String>,
    query: MaybeQuery<SampleQuery>,
) -> Result<Response, Failure> {
    let Query(query) = query.map_err(bad_query)?;
    let (_, version) = shared.stores.get(&name)?.version(query.version)?;
    let count = query
        .n
        .unwrap_or(SAMPLE_RECORDS_DEFAULT)
        .min(SAMPLE_RECORDS_MAX);
    let seed = query
        .seed
        .unwrap_or_else(|| shared.started_at.elapsed().as_nanos() as u64);
    let admission = shared.http_read_limiter.admit().await?;
    let work = move |_: &oneshot::Sender<_>| version.sample(count, ANSWER_BYTES_MAX, seed);
    let sampled = shared.http_read_limiter.run(work).await??;
    let records = sampled.records.into_iter();
    let sample = Sample {
        records: records
            .map(|(key, value)| Record::from_bytes(&key, &value))
            .collect(),
        is_cut: sampled.is_truncated,
    };
    Ok(json(admission, &sample))
}

/// A JSON response that holds its admission until it has been sent.
pub(super) fn json(admission: Admission, value: &impl serde::Serialize) -> Response {
    let text = serde_json::to_vec(value).expect("plain values become JSON");
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (kind, admission.hold(text)).into_response()
}

fn panicked(error: tokio::task::JoinError) -> Failure {
    Failure(task_panicked("reading the version", error))
}

pub(super) fn bad_query(rejection: QueryRejection) -> Failure {
    Failure(Error::BadRequest(rejection.body_text()))
}

/// Decodes to bytes, because keys are bytes.
fn percent_decode(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_bytes_fit_in_a_path() {
        assert_eq!(percent_decode("a%2Fb/c%00%ff"), b"a/b/c\0\xff");
        assert_eq!(percent_decode("100%"), b"100%");
        assert_eq!(percent_decode("%zz%4"), b"%zz%4");
        assert_eq!(percent_decode("%+f"), b"%+f");
    }
}
