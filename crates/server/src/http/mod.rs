//! The HTTP listener: the operators' API, metrics, health and the console, on one thread of its own.
//!
//! `routes.rs` is the table of paths and what each does; `answer.rs` turns errors into bodies;
//! `guard.rs` asks for the password and keeps other sites' pages out; `reads.rs` holds the routes
//! that look into versions and run on threads of low priority, because they read whole files.
//!
//! No client holds what others need for longer than `server.http_timeout_seconds` without doing its part: `body.rs` waits for
//! requests, `write_timeout.rs` for answers to be taken, `work.rs` bounds what is costly.
//!
//! Of connections there are `server.max_http_connections`, and a few more that are asked one thing: whether the server is up.
//! The oldest of those makes room for a new one, so that who only holds them open keeps no supervisor out. There is also one
//! descriptor put by, with which such a connection is accepted when the process has no other left.

mod answer;
mod body;
mod cluster;
mod diff;
mod dump;
mod elsewhere;
mod files;
mod guard;
mod joins;
mod reads;
mod recover;
mod routes;
mod spaces;
mod stats;
mod work;
mod write_timeout;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
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

pub use answer::Failure;
pub use stats::Samples;
pub use work::Work;
use write_timeout::WriteTimeout;

/// Connections beyond the most allowed that are asked whether the server is up.
const HEALTH_CONNECTIONS_MAX: usize = 16;
/// How long one of those has to ask.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);
/// How long new connections wait while the process has no descriptor at all: another thread may give one back at any moment.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// The log says at most so often that a connection could not be accepted.
const TOLD_EVERY: Duration = Duration::from_secs(10);

pub struct HttpThread {
    addr: SocketAddr,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

/// Serves on `listener`, which is not blocking, until stopped.
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
        // Dumps and the like may still run; they end when their sending fails.
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
        timeout: shared.http_work.timeout,
        tls: shared.client_tls.clone(),
        app: TowerToHyperService::new(routes::router(shared.clone(), addr)),
        health: TowerToHyperService::new(routes::health_router(shared, addr)),
        asking: RefCell::default(),
        stopping: GracefulShutdown::new(),
    };
    if let Some(tls) = connections.tls.clone() {
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(client_tls::LOOK_EVERY);
            loop {
                tick.tick().await;
                tls.refresh();
            }
        });
    }
    tokio::select! {
        () = connections.accept(&listener) => {}
        // An error means that the handle is gone: stop as well.
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    drop(listener);
    let ended = tokio::time::timeout(timeout, connections.stopping.shutdown()).await;
    if ended.is_err() {
        tracing::warn!("HTTP requests were cut off by the stop");
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
    /// Connections beyond the most allowed, oldest first.
    asking: RefCell<VecDeque<AbortHandle>>,
    stopping: GracefulShutdown,
}

impl Connections {
    async fn accept(&self, listener: &tokio::net::TcpListener) {
        // A descriptor put by for when there is no other.
        let put_by = || File::open("/dev/null").ok();
        let mut spare = put_by();
        let mut told: Option<Instant> = None;
        let mut untold = 0u64;
        let mut pause = PAUSE_MIN;
        loop {
            let error = match listener.accept().await {
                Ok((stream, from)) => {
                    pause = PAUSE_MIN;
                    spare = spare.or_else(put_by);
                    let is_last =
                        spare.is_none() || !self.shared.descriptors.allow(Purpose::Http, &stream);
                    if self.admit(stream, guard::Peer(from.ip()), is_last) {
                        // What has made room for it gives its descriptor back, and what asks already is answered.
                        tokio::task::yield_now().await;
                        spare = spare.or_else(put_by);
                    }
                    continue;
                }
                Err(error) => error,
            };
            untold += 1;
            if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
                tracing::warn!(%error, times = untold, "cannot accept an HTTP connection; trying on");
                (told, untold) = (Some(Instant::now()), 0);
            }
            if spare.take().is_none() {
                // What is open goes on, new ones wait in the backlog.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
                spare = put_by();
            }
        }
    }

    /// Serves a connection: for whatever it asks if there is room, else for its asking whether the server is up; says whether it
    /// is one of the latter. `is_last` says that the process has no other descriptor to give for HTTP.
    fn admit(&self, stream: TcpStream, from: guard::Peer, is_last: bool) -> bool {
        // Without it small answers wait for the client's acknowledgement; nothing breaks.
        let _ = stream.set_nodelay(true);
        let permit = self.free.clone().try_acquire_owned().ok();
        if let Some(permit) = permit.filter(|_| !is_last) {
            self.serve(stream, from, self.timeout, &self.app, Some(permit));
            return false;
        }
        let timeout = self.timeout.min(HEALTH_PATIENCE);
        let handle = self.serve(stream, from, timeout, &self.health, None);
        let mut asking = self.asking.borrow_mut();
        asking.retain(|handle| !handle.is_finished());
        if asking.len() == HEALTH_CONNECTIONS_MAX
            && let Some(oldest) = asking.pop_front()
        {
            oldest.abort();
        }
        asking.push_back(handle);
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
            // An error means that the client broke off or did not do its part, and there is nobody to tell.
            match tls {
                None => {
                    let io = TokioIo::new(with_timeout(stream));
                    let _ = watcher.watch(http.serve_connection(io, service)).await;
                }
                Some(tls) => {
                    let plain_answer = plain_answer();
                    let secured = tls.accept(stream, from.0, &plain_answer, with_timeout);
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

/// What a client without TLS is told where there is only TLS.
fn plain_answer() -> Vec<u8> {
    let why =
        "this port speaks TLS only (server.tls_cert is set): write https:// in place of http://";
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

    /// Accepts no more, and lets requests in hand end for up to `server.stop_timeout_seconds`.
    pub fn begin_stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for the end that [`HttpThread::begin_stop`] began.
    pub fn join(self) {
        // The supervisor catches panics and reports them.
        let _ = self.thread.join();
    }
}
