//! The table of paths, and the routes that only look up or change a pointer.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{delete, get, post};
use futures::FutureExt;
use larder_protocol::http::{
    PullList, PullRequest, PullStatus, RollbackRequest, SettingsInForce, StoreList, StoreStatus,
    SwapRequest, SwapResult,
};
use larder_types::{StoreName, VersionSelector};

use super::Server;
use super::body::RECOVER;
use super::json_result::{Failure, JsonResult, decode};
use super::{body, cluster, diff, dump, files, guard, joins, reads, recover, spaces, stats};
use crate::Shared;
use crate::error::Error;
use crate::fetch::cluster::{push, status};
use crate::membership::Membership;
use crate::metrics;
use crate::stores::SwapOutcome;
use crate::supervision::{job_panicked, task_panicked};

const CONSOLE: &str = include_str!("../console/index.html");
const WAIT_SECONDS_MAX: f64 = 60.0;
const OPENAPI: &str = include_str!("openapi.json");

/// The router for additional connections beyond the limit: serves only health checks.
pub fn health_router(shared: Arc<Shared>, addr: SocketAddr) -> Router {
    Router::new()
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .fallback(|| async {
            let message = "server.max_http_connections are open; close some or raise it";
            let refused = Failure(Error::TooManyClients(message.to_owned()));
            ([(header::RETRY_AFTER, "1")], refused)
        })
        .layer(from_fn_with_state(addr, guard::check))
        .with_state(shared)
}

async fn healthy() -> &'static str {
    "ok\n"
}

pub fn router(shared: Arc<Shared>, addr: SocketAddr) -> Router {
    Router::new()
        .route("/", get(console))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics::scrape))
        .route("/v1/openapi.json", get(openapi))
        .route("/v1/stats", get(stats::stats))
        .route("/v1/settings", get(settings).patch(change_settings))
        .route("/v1/joins", get(joins::list).post(joins::create))
        .route(
            "/v1/joins/{join}",
            get(joins::get_join).delete(joins::remove),
        )
        .route("/v1/joins/{join}/explain", get(joins::explain))
        .route("/v1/spaces", get(spaces::list))
        .route("/v1/spaces/{space}", get(spaces::get_space))
        .route("/v1/cluster", get(cluster::status))
        .route("/v1/cluster/plan", get(cluster::plan))
        .route("/v1/cluster/asks", post(cluster::submit))
        .route("/v1/cluster/kept", get(recover::kept_copies))
        .route(RECOVER, post(recover::recover))
        .route("/v1/pulls", get(pulls))
        .route("/v1/pulls/{id}", get(get_pull).delete(cancel))
        .route("/v1/stores", get(stores))
        .route("/v1/stores/{store}", get(store).delete(remove_store))
        .route("/v1/stores/{store}/pull", post(pull))
        .route("/v1/stores/{store}/compact", post(compact))
        .route("/v1/stores/{store}/swap", post(swap))
        .route("/v1/stores/{store}/rollback", post(rollback))
        .route(
            "/v1/stores/{store}/versions/{version}",
            delete(remove_version),
        )
        .route(
            "/v1/stores/{store}/versions/{version}/files/{file}",
            get(files::file),
        )
        .route("/v1/stores/{store}/verify", post(reads::verify))
        .route("/v1/stores/{store}/diff", get(diff::diff))
        .route("/v1/stores/{store}/sample", get(reads::sample))
        .route("/v1/stores/{store}/dump", get(dump::dump))
        .route("/v1/stores/{store}/keys/{*key}", get(reads::value))
        .fallback(|| async {
            let message = "no such path; /v1/openapi.json lists them".to_owned();
            (StatusCode::NOT_FOUND, Failure(Error::BadRequest(message)))
        })
        .method_not_allowed_fallback(|| async {
            let message = "this path does not support the method; see /v1/openapi.json".to_owned();
            (
                StatusCode::METHOD_NOT_ALLOWED,
                Failure(Error::BadRequest(message)),
            )
        })
        .layer(from_fn_with_state(shared.clone(), refuse_while_loading))
        .layer(from_fn_with_state(shared.clone(), body::collect_body))
        .layer(from_fn_with_state(shared.clone(), guard::require_password))
        .layer(from_fn_with_state(addr, guard::check))
        .layer(from_fn(catch_panics))
        .with_state(shared)
}

/// Rejects requests that need the stores until these are open, and requests that need the serving threads until these have loaded
/// their rows.
async fn refuse_while_loading(State(shared): Server, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let needs_rows = ["/v1/joins", "/v1/spaces", "/v1/cluster/kept"];
    let is_ready = match path {
        _ if path.starts_with("/v1/stores") => shared.loading.ensure_stores_open(),
        _ if needs_rows.iter().any(|prefix| path.starts_with(prefix)) => {
            shared.loading.ensure_loaded()
        }
        _ => Ok(()),
    };
    if let Err(error) = is_ready {
        return ([(header::RETRY_AFTER, "1")], Failure(error)).into_response();
    }
    next.run(request).await
}

/// Returns an error if a request panics; other requests are not affected.
async fn catch_panics(request: Request, next: Next) -> Response {
    let what = format!("{} {}", request.method(), request.uri().path());
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answer.unwrap_or_else(|panic| Failure(job_panicked(&what, &*panic)).into_response())
}

async fn console() -> Response {
    // The page is self-contained; nothing may be loaded from, or sent to, any other origin.
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                  img-src data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'";
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Html(CONSOLE)).into_response()
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

/// Responds to everyone, but includes names of stores only for requests with the password.
async fn ready(
    State(shared): Server,
    Extension(peer): Extension<guard::Peer>,
    headers: HeaderMap,
) -> Response {
    let mut reasons: Vec<String> = shared.loading.describe().into_iter().collect();
    reasons.extend(shared.turns.describe_stalls());
    let fault_monitor = &shared.tables.fault_monitor;
    let fault = || fault_monitor.journal_fault().map(|it| it.why);
    let refusal = shared.tables.refusal().map(|(_, why)| why);
    reasons.extend(refusal.or_else(fault));
    let mut notes = String::new();
    let damaged = shared.stores.damaged();
    if shared.config.stores.unready_when_damaged {
        reasons.extend(damaged)
    } else {
        notes.extend(damaged.iter().map(|it| format!("{it}\n")))
    }
    if let Some(postgres) = &shared.postgres {
        let faults = postgres.stats().faults().into_iter();
        notes.extend(faults.map(|it| it.replace(char::is_control, " ") + "\n"));
    }
    if let Some(membership) = &shared.membership
        && let Some(health) = membership.health()
    {
        let view = membership.view();
        reasons.extend(health.readiness_error(&view));
        notes.extend(health.etcd_warning(&view).map(|note| note + "\n"));
        let others = health
            .describe_unreached(&view)
            .into_iter()
            .chain(health.describe_unable(&view));
        notes.extend(others.map(|it| it + "\n"));
    }
    if reasons.is_empty() {
        return if guard::has_password(&shared, peer, &headers) {
            format!("ready\n{notes}").into_response()
        } else {
            "ready\n".into_response()
        };
    }
    let reasons = if guard::has_password(&shared, peer, &headers) {
        reasons.join("\n") + "\n"
    } else {
        "not ready; send the password to see the reason\n".to_owned()
    };
    (StatusCode::SERVICE_UNAVAILABLE, reasons).into_response()
}

async fn settings(State(shared): Server) -> Json<SettingsInForce> {
    Json(shared.settings.in_force())
}

async fn change_settings(State(shared): Server, body: Bytes) -> JsonResult<SettingsInForce> {
    let requested = decode(&body)?;
    let changed = run_blocking(move || shared.change_settings(requested)).await?;
    Ok(Json(changed))
}

/// The membership, if a map determines the versions.
fn etcd_membership(shared: &Shared) -> Option<&Membership> {
    shared.membership.as_ref().filter(|it| it.uses_etcd())
}

async fn stores(State(shared): Server) -> Json<StoreList> {
    if let Some(membership) = etcd_membership(&shared) {
        let stores = status::list(&shared, membership);
        return Json(StoreList { stores });
    }
    let stores = shared.stores.list();
    let stores = stores.iter().filter_map(|store| {
        // A store that was removed since the list was made is skipped.
        store.status(shared.pulls.running(&store.name)).ok()
    });
    Json(StoreList {
        stores: stores.collect(),
    })
}

async fn store(State(shared): Server, Path(name): Path<String>) -> JsonResult<StoreStatus> {
    if let Some(membership) = etcd_membership(&shared) {
        return Ok(Json(status::find_status(&shared, membership, &name)?));
    }
    let store = shared.stores.get(&name)?;
    Ok(Json(store.status(shared.pulls.running(&store.name))?))
}

async fn remove_store(
    State(shared): Server,
    Path(name): Path<String>,
) -> Result<StatusCode, Failure> {
    if etcd_membership(&shared).is_some() {
        push::remove_store(&shared, &parse_store_name(&name)?).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    let store = shared.stores.get(&name)?;
    if let Some(pull) = shared.pulls.running(&store.name) {
        return Err(Failure(Error::Conflict(format!(
            "pull {} of store {name} is under way; cancel it with DELETE /v1/pulls/{} first",
            pull.id, pull.id
        ))));
    }
    run_blocking(move || shared.stores.remove(&store)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove_version(
    State(shared): Server,
    Path((name, version)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let version: VersionSelector = version.parse().map_err(Error::BadRequest)?;
    let removed = match etcd_membership(&shared) {
        Some(_) => push::remove_version(&shared, &parse_store_name(&name)?, version).await?,
        None => {
            let store = shared.stores.get(&name)?;
            run_blocking(move || shared.stores.remove_version(&store, version)).await?
        }
    };
    let number = [("x-larder-version", removed.to_string())];
    Ok((StatusCode::NO_CONTENT, number).into_response())
}

async fn pull(
    State(shared): Server,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<(StatusCode, Json<PullStatus>), Failure> {
    let name: StoreName = name
        .parse()
        .map_err(|error: larder_types::NameError| Error::BadRequest(error.to_string()))?;
    let request: PullRequest = decode(&body)?;
    let status = shared.pulls.start(&shared, name, request)?;
    Ok((StatusCode::ACCEPTED, Json(status)))
}

async fn compact(
    State(shared): Server,
    Path(name): Path<String>,
) -> Result<(StatusCode, Json<PullStatus>), Failure> {
    let store = shared.stores.get(&name)?;
    let status = shared.pulls.compact(&shared, &store)?;
    Ok((StatusCode::ACCEPTED, Json(status)))
}

async fn pulls(State(shared): Server) -> Json<PullList> {
    Json(PullList {
        pulls: shared.pulls.list(),
    })
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitQuery {
    /// In seconds.
    #[serde(default)]
    wait: f64,
}

/// Responds immediately, or with `?wait=SECONDS` when the pull has ended or that time has passed.
async fn get_pull(
    State(shared): Server,
    Path(id): Path<String>,
    query: Result<Query<WaitQuery>, QueryRejection>,
) -> JsonResult<PullStatus> {
    let Query(WaitQuery { wait }) = query.map_err(|why| Error::BadRequest(why.body_text()))?;
    if !(0.0..=f64::MAX).contains(&wait) {
        return Err(Failure(Error::BadRequest(format!(
            "wait is {wait}; it must be a number of seconds, of at least 0"
        ))));
    }
    let pull = shared.pulls.get(&id)?;
    let longest = Duration::from_secs_f64(wait.min(WAIT_SECONDS_MAX));
    let _ = tokio::time::timeout(longest, pull.wait_until_ended()).await;
    Ok(Json(pull.status()))
}

async fn cancel(State(shared): Server, Path(id): Path<String>) -> JsonResult<PullStatus> {
    Ok(Json(shared.pulls.cancel(&id)?.status()))
}

async fn swap(
    State(shared): Server,
    Path(name): Path<String>,
    body: Bytes,
) -> JsonResult<SwapResult> {
    let request: SwapRequest = decode(&body)?;
    let SwapRequest { version, force } = request;
    swap_to(shared, &name, version, force).await
}

async fn rollback(
    State(shared): Server,
    Path(name): Path<String>,
    body: Bytes,
) -> JsonResult<SwapResult> {
    let request: RollbackRequest = decode(&body)?;
    let to = request.version.unwrap_or(VersionSelector::Previous);
    swap_to(shared, &name, to, request.force).await
}

/// Makes a kept version live: on this server, or on all nodes.
async fn swap_to(
    shared: Arc<Shared>,
    name: &str,
    to: VersionSelector,
    force: bool,
) -> JsonResult<SwapResult> {
    let swapped = match etcd_membership(&shared) {
        Some(_) => push::roll_back(&shared, &parse_store_name(name)?, to).await?,
        None => {
            let store = shared.stores.get(name)?;
            run_blocking(move || shared.stores.swap(&store, to, force)).await?
        }
    };
    Ok(Json(swap_result(swapped)))
}

fn parse_store_name(name: &str) -> Result<StoreName, Error> {
    let unknown = || Error::NoSuchStore(name.chars().take(80).collect());
    name.parse().map_err(|_| unknown())
}

/// For changes, which wait for the disk.
async fn run_blocking<T: Send + 'static>(
    change: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(change).await;
    Ok(done.map_err(|error| task_panicked("the change", error))??)
}

fn swap_result(swapped: SwapOutcome) -> SwapResult {
    SwapResult {
        live: swapped.live.0,
        previous: swapped.previous.map(|id| id.0),
        took_us: swapped.took.as_micros() as u64,
    }
}
