//! The HTTP listener: the operators' API, metrics, health and the console, on one thread of its own.
//!
//! `routes.rs` is the table of paths and what each does; `answer.rs` turns errors into bodies;
//! `guard.rs` keeps other sites' pages out; `reads.rs` holds the routes that look into versions and
//! run on threads of low priority, because they read whole files.

mod answer;
mod guard;
mod reads;
mod routes;
mod stats;

use std::future::IntoFuture;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;

use crate::Shared;
use crate::error::Error;

pub use answer::Failure;
pub use stats::Samples;

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
    stopped: watch::Receiver<bool>,
    patience: Duration,
) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot serve HTTP");
            return;
        }
    };
    let stop = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let app = routes::router(shared, addr);
    let server = axum::serve(listener, app).with_graceful_shutdown(stop(stopped.clone()));
    let too_long = async {
        stop(stopped).await;
        tokio::time::sleep(patience).await;
    };
    tokio::select! {
        result = server.into_future() => if let Err(error) = result {
            tracing::error!(%error, "HTTP ended");
        },
        () = too_long => tracing::warn!("HTTP requests were cut off by the stop"),
    }
}

impl HttpThread {
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn stop(self) {
        self.stop.send_replace(true);
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread panicked");
        }
    }
}
