//! The HTTP listener: the operators' API, metrics, health and the console, on its own thread.
//!
//! `routes.rs` is the table of paths and handlers. `json_result.rs` converts errors to bodies. `guard.rs` requires the password and
//! rejects other sites' pages. `reads.rs` contains the routes that read versions; they run on low-priority threads, because they
//! read complete files.
//!
//! No client may hold shared resources for longer than `server.http_timeout_seconds` without progress: `body.rs` limits the time
//! to send a request, `write_timeout.rs` the time to receive a response, and `read_limiter.rs` the expensive operations.
//!
//! There are `server.max_http_connections` connections, and a few more on which only the health of the server can be queried. The
//! oldest of those is closed in favor of a new one, so that idle connections cannot lock out a supervisor. One file descriptor is
//! kept in reserve, to accept such a connection when the process has no other left.

mod body;
mod cluster;
mod diff;
mod dump;
mod files;
mod guard;
mod joins;
mod json_result;
mod read_limiter;
mod reads;
mod recover;
mod remote_reads;
mod routes;
mod spaces;
mod stats;
mod write_timeout;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use larder_protocol::errors::Code;
use larder_protocol::http::{ErrorBody, ErrorInfo};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;

use crate::Shared;
use crate::client_tls::{self, ClientTls};
use crate::descriptors::Purpose;
use crate::error::Error;

pub use json_result::Failure;
pub use read_limiter::ReadLimiter;
pub use stats::Samples;
use write_timeout::WriteTimeout;

/// The handlers' access to the server.
type Server = State<Arc<Shared>>;

/// Maximum number of additional connections, which serve only health checks.
const HEALTH_CONNECTIONS_MAX: usize = 16;
/// The timeout for the request on such a connection.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause before new connections are accepted while the process has no descriptor. Another thread may close one at any time.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The minimum interval between log messages about connections that could not be accepted.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

pub struct HttpThread {
    addr: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// Serves on the non-blocking `listener` until stopped.
pub fn spawn(shared: Arc<Shared>, listener: TcpListener) -> Result<HttpThread, Error> {
    let failed = |error: std::io::Error| Error::Io(format!("cannot serve HTTP: {error}"));
    let addr = listener.local_addr().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(shared.config.server.disk_threads as usize)
        .build()
        .map_err(failed)?;
    let (stop, stopped) = watch::channel(false);
    let supervisor = shared.supervisor.clone();
    let run = move || {
        let timeout = Duration::from_secs(shared.config.server.stop_timeout_seconds);
        let served = runtime.block_on(serve(shared, listener, addr, stopped, timeout));
        // Dumps and similar work may still run; they end when sending fails.
        runtime.shutdown_background();
        served
    };
    let thread = supervisor.spawn("larder-http", run).map_err(failed)?;
    Ok(HttpThread { addr, stop, thread })
}

async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    addr: SocketAddr,
    mut stopped: watch::Receiver<bool>,
    timeout: Duration,
) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Io(format!("cannot serve HTTP: {error}"));
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let max = shared.descriptors.http_connections() as usize;
    let connections = Connections {
        shared: shared.clone(),
        free: Arc::new(Semaphore::new(max)),
        timeout: shared.http_read_limiter.timeout,
        tls: shared.client_tls.clone(),
        app: TowerToHyperService::new(routes::router(shared.clone(), addr)),
        health: TowerToHyperService::new(routes::health_router(shared, addr)),
        health_tasks: RefCell::default(),
        stopping: GracefulShutdown::new(),
    };
    if let Some(tls) = connections.tls.clone() {
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(client_tls::CHECK_INTERVAL);
            loop {
                tick.tick().await;
                tls.refresh();
            }
        });
    }
    tokio::select! {
        () = connections.accept(&listener) => {}
        // An error means that the handle was dropped: stop as well.
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    drop(listener);
    let ended = tokio::time::timeout(timeout, connections.stopping.shutdown()).await;
    if ended.is_err() {
        tracing::warn!("HTTP requests were aborted by the stop");
    }
    Ok(())
}

struct Connections {
    shared: Arc<Shared>,
    /// One permit for each connection that may still be opened.
    free: Arc<Semaphore>,
    timeout: Duration,
    tls: Option<Arc<ClientTls>>,
    app: TowerToHyperService<Router>,
    health: TowerToHyperService<Router>,
    /// Additional connections, oldest first.
    health_tasks: RefCell<VecDeque<AbortHandle>>,
    stopping: GracefulShutdown,
}

impl Connections {
    async fn accept(&self, listener: &tokio::net::TcpListener) {
        // A reserve descriptor for when there is no other.
        let open_spare = || File::open("/dev/null").ok();
        let mut spare = open_spare();
        let mut logged_at: Option<Instant> = None;
        let mut unlogged = 0u64;
        let mut pause = PAUSE_MIN;
        loop {
            let error = match listener.accept().await {
                Ok((stream, from)) => {
                    pause = PAUSE_MIN;
                    spare = spare.or_else(open_spare);
                    let is_last =
                        spare.is_none() || !self.shared.descriptors.allow(Purpose::Http, &stream);
                    if self.admit(stream, guard::Peer(from.ip()), is_last) {
                        // The connection closed in favor of this one releases its descriptor, and pending health checks are
                        // answered.
                        tokio::task::yield_now().await;
                        spare = spare.or_else(open_spare);
                    }
                    continue;
                }
                Err(error) => error,
            };
            unlogged += 1;
            if logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_INTERVAL) {
                tracing::warn!(%error, times = unlogged, "cannot accept an HTTP connection; trying again");
                (logged_at, unlogged) = (Some(Instant::now()), 0);
            }
            if spare.take().is_none() {
                // Open connections continue; new ones wait in the backlog.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                spare = open_spare();
            }
        }
    }

    /// Serves a connection: fully if there is room, else only for health checks. Returns whether it is one of the latter.
    /// `is_last` means that the process has no other descriptor for HTTP.
    fn admit(&self, stream: TcpStream, from: guard::Peer, is_last: bool) -> bool {
        // On failure, small responses wait for the client's acknowledgement, which is harmless.
        let _ = stream.set_nodelay(true);
        let permit = self.free.clone().try_acquire_owned().ok();
        if let Some(permit) = permit.filter(|_| !is_last) {
            self.serve(stream, from, self.timeout, &self.app, Some(permit));
            return false;
        }
        let timeout = self.timeout.min(HEALTH_TIMEOUT);
        let handle = self.serve(stream, from, timeout, &self.health, None);
        let mut health_tasks = self.health_tasks.borrow_mut();
        health_tasks.retain(|handle| !handle.is_finished());
        if health_tasks.len() == HEALTH_CONNECTIONS_MAX
            && let Some(oldest) = health_tasks.pop_front()
        {
            oldest.abort();
        }
        health_tasks.push_back(handle);
        true
    }

    fn serve(
        &self,
        stream: TcpStream,
        from: guard::Peer,
        timeout: Duration,
        app: &TowerToHyperService<Router>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> AbortHandle {
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(timeout)
            .keep_alive(permit.is_some());
        let app = app.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(from);
            app.call(request)
        });
        let (watcher, tls) = (self.stopping.watcher(), self.tls.clone());
        let task = tokio::spawn(async move {
            let with_timeout = |stream| WriteTimeout::new(stream, timeout);
            // An error means that the client disconnected or timed out, so there is no one to report it to.
            match tls {
                None => {
                    let io = TokioIo::new(with_timeout(stream));
                    let _ = watcher.watch(http.serve_connection(io, service)).await;
                }
                Some(tls) => {
                    let plain_reply = plain_reply();
                    let secured = tls.accept(stream, from.0, &plain_reply, with_timeout);
                    if let Some(stream) = secured.await {
                        let io = TokioIo::new(stream);
                        let _ = watcher.watch(http.serve_connection(io, service)).await;
                    }
                }
            }
            drop(permit);
        });
        task.abort_handle()
    }
}

/// The response to a client without TLS on a TLS-only port.
fn plain_reply() -> Vec<u8> {
    let why =
        "this port accepts only TLS (server.tls_cert is set): use https:// instead of http://";
    let error = ErrorInfo::new(Code::BadRequest, why);
    let body = serde_json::to_string(&ErrorBody { error }).expect("texts become JSON");
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl HttpThread {
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Stops accepting connections, and lets current requests finish for up to `server.stop_timeout_seconds`.
    pub fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for the end of the stop that [`HttpThread::begin_stop`] started.
    pub fn join(self) {
        // The supervisor catches and reports panics.
        let _ = self.thread.join();
    }
}
