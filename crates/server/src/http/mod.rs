//! The HTTP listener: the operators' API, metrics, health and the console, on one thread of its own.
//!
//! `routes.rs` is the table of paths and what each does; `answer.rs` turns errors into bodies;
//! `guard.rs` asks for the password and keeps other sites' pages out; `reads.rs` holds the routes
//! that look into versions and run on threads of low priority, because they read whole files.

mod answer;
mod guard;
mod joins;
mod reads;
mod routes;
mod stats;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use larder_protocol::errors::Code;
use larder_protocol::http::{ErrorBody, ErrorInfo};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use crate::Shared;
use crate::error::Error;

pub use answer::Failure;
pub use stats::Samples;

/// A connection may be without a request for so long: before its first, and between two.
const SILENCE_MAX: Duration = Duration::from_secs(30);

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
        .build()
        .map_err(failed)?;
    let (stop, stopped) = watch::channel(false);
    let thread = std::thread::Builder::new()
        .name("larder-http".to_owned())
        .spawn(move || {
            let patience = Duration::from_secs(shared.config.server.stop_timeout_seconds);
            runtime.block_on(serve(shared, listener, addr, stopped, patience));
            // Dumps and the like may still run; they end when their sending fails.
            runtime.shutdown_background();
        })
        .map_err(failed)?;
    Ok(HttpThread { addr, stop, thread })
}

async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    addr: SocketAddr,
    mut stopped: watch::Receiver<bool>,
    patience: Duration,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot serve HTTP");
            return;
        }
    };
    let max = shared.config.server.max_http_connections as usize;
    let connections = Connections {
        free: Arc::new(Semaphore::new(max)),
        app: TowerToHyperService::new(routes::router(shared, addr)),
        stopping: GracefulShutdown::new(),
    };
    tokio::select! {
        () = connections.accept(&listener) => {}
        // An error means that the handle is gone: stop as well.
        _ = stopped.wait_for(|stop| *stop) => {}
    }
    drop(listener);
    let ended = tokio::time::timeout(patience, connections.stopping.shutdown()).await;
    if ended.is_err() {
        tracing::warn!("HTTP requests were cut off by the stop");
    }
}

struct Connections {
    /// One permit for each connection that may still be opened.
    free: Arc<Semaphore>,
    app: TowerToHyperService<Router>,
    stopping: GracefulShutdown,
}

impl Connections {
    async fn accept(&self, listener: &tokio::net::TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => self.admit(stream),
                Err(error) => {
                    // Out of descriptors or memory: what is open goes on, new ones wait in the backlog.
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream) {
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            // The socket's buffer is empty, so this does not wait; if it fails the client has gone.
            let _ = stream.try_write(&too_many());
            return;
        };
        // Without it small answers wait for the client's acknowledgement; nothing breaks.
        let _ = stream.set_nodelay(true);
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(SILENCE_MAX);
        let connection = http.serve_connection(TokioIo::new(stream), self.app.clone());
        let connection = self.stopping.watch(connection);
        tokio::spawn(async move {
            // An error means that the client broke off or was silent, and there is nobody to tell.
            let _ = connection.await;
            drop(permit);
        });
    }
}

/// The whole answer to a connection beyond `server.max_http_connections`.
fn too_many() -> Vec<u8> {
    let code = Code::TooManyClients;
    let message = "server.max_http_connections are open; close some or raise it";
    let error = ErrorInfo::new(code, message);
    let body = serde_json::to_string(&ErrorBody { error }).expect("texts become JSON");
    format!(
        "HTTP/1.1 {} Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        code.http_status(),
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
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread panicked");
        }
    }
}
