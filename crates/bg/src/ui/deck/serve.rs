//! The deck's connections: how many there may be, and how long one may keep the deck waiting.

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

/// What one who connects may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// At the same time.
    pub connections: usize,
    /// How long a request's headers, and then its body, may take to come.
    pub silence: Duration,
    /// How long a deck stays open at its end for pages that watch.
    pub farewell: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            silence: Duration::from_secs(10),
            farewell: FAREWELL,
        }
    }
}

/// Longer than the second in which a page asks again.
const FAREWELL: Duration = Duration::from_millis(1500);

/// Bytes of a request's body: an object with a number.
const BODY_BYTES_MAX: usize = 4096;

/// How long to wait when the system has no descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until told to stop, and then lets requests in hand end for so long.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut stopped: oneshot::Receiver<()>,
    grace: Duration,
) {
    let router = router
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(limits.silence, in_time));
    let (free, stopping) = (
        Arc::new(Semaphore::new(limits.connections)),
        GracefulShutdown::new(),
    );
    let app = TowerToHyperService::new(router);
    loop {
        let stream = tokio::select! {
            // An error means that the deck was dropped: the same.
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
        // Without it small answers wait for the client's acknowledgement; nothing breaks.
        let _ = stream.set_nodelay(true);
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits.silence);
        let connection = http.serve_connection(TokioIo::new(stream), app.clone());
        let connection = stopping.watch(connection);
        tokio::spawn(async move {
            // An error means that the browser broke off or was silent, and there is nobody to tell.
            let _ = connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(grace, stopping.shutdown()).await;
}

/// Answers within the time: the only thing that a request waits for is its own body.
async fn in_time(State(silence): State<Duration>, request: Request, next: Next) -> Response {
    match tokio::time::timeout(silence, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Failure::Late(silence).into_response(),
    }
}

/// The socket's buffer is empty, so this does not wait; if it fails the client has gone.
fn refuse(stream: &TcpStream) {
    let _ = stream.try_write(
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    );
}
