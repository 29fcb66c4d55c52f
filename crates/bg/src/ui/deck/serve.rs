//! Serves the deck's connections, with limits on their number and on the time that each may take.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

use super::routes::Failure;

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of simultaneous connections.
    pub connections: usize,
    /// The maximum time that a request's headers, and then its body, may take to arrive.
    pub silence: Duration,
    /// The time for which a deck stays available at the end for pages that are open.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            silence: Duration::from_secs(10),
            linger: LINGER,
        }
    }
}

/// Longer than the second after which a page sends its next request.
const LINGER: Duration = Duration::from_millis(1500);

/// Maximum size of a request's body in bytes: an object with a number.
const BODY_BYTES_MAX: usize = 4096;

/// The wait time if the system has no file descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stopped`, then lets requests in progress complete within `grace`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut stopped: oneshot::Receiver<()>,
    grace: Duration,
) {
    let router = router
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(limits.silence, limit_time));
    let (free, stopping) = (
        Arc::new(Semaphore::new(limits.connections)),
        GracefulShutdown::new(),
    );
    let app = TowerToHyperService::new(router);
    loop {
        let stream = tokio::select! {
            // An error means that the deck was dropped, which has the same effect.
            _ = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let Ok(permit) = free.clone().try_acquire_owned() else {
            refuse(&stream);
            continue;
        };
        // Without this option, small answers wait for the client's acknowledgement. Failure is harmless.
        let _ = stream.set_nodelay(true);
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits.silence);
        let connection = http.serve_connection(TokioIo::new(stream), app.clone());
        let connection = stopping.watch(connection);
        tokio::spawn(async move {
            // An error means that the browser closed the connection or was silent. No peer is left to report it to.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(grace, stopping.shutdown()).await;
}

/// Limits the time of a request: the only thing that it waits for is its own body.
async fn limit_time(State(silence): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(silence, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Failure::Timeout(silence).into_response(),
    }
}

/// Rejects a connection. The socket's buffer is empty, so this does not block; if it fails, the client is gone.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    );
}
