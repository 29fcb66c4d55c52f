//! The end of `larder serve`: handles signals at each stage, and ends the process even if a thread of the server is
//! stuck.
//!
//! ```text
//!  starting ── SIGTERM, ctrl-c ──► the process ends: nothing was acknowledged yet
//!  serving  ── SIGTERM, ctrl-c ──► stopping ──► stopped
//!                                     ├── a second signal ───────────────────────► the process ends
//!                                     ├── a serving thread is stuck after server.stop_timeout_seconds ──► the process ends
//!                                     └── STOP_MAX after that time ──────────────► the process ends
//! ```
//!
//! SIGHUP is ignored at every stage, as Redis does: closing the terminal of a server must not stop it.
//! A forced end loses no more than SIGKILL would: replies that were sent are as durable as `tables.fsync` requires.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_server::Shared;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::failure::Failure;
use crate::interrupt::on_own_thread;

/// Time that stopping may take beyond `server.stop_timeout_seconds` while all serving threads make progress: the
/// journal may be syncing.
const STOP_MAX: Duration = Duration::from_secs(30);
/// Interval at which an overdue stop is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Handles the signals of a server process on a separate thread.
pub struct ShutdownHandler {
    /// The server, once it serves.
    serving: Mutex<Option<Arc<Shared>>>,
    stop: Notify,
}

impl ShutdownHandler {
    /// Starts the thread. From now on, signals no longer end the process by default.
    pub fn listen() -> Result<Arc<ShutdownHandler>, Failure> {
        let failed = Failure::io("listen for signals");
        let ending = Arc::new(ShutdownHandler {
            serving: Mutex::default(),
            stop: Notify::new(),
        });
        let own = ending.clone();
        let listen = || {
            Ok([
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
                signal(SignalKind::hangup())?,
            ])
        };
        let handle = |signals| async move { own.run(signals).await };
        on_own_thread(listen, handle).map_err(failed)?;
        Ok(ending)
    }

    /// Registers the running server: from now on, a signal stops it gracefully.
    pub fn set_server(&self, server: Arc<Shared>) {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        *serving = Some(server);
    }

    /// Waits until a signal requests a stop.
    pub async fn stop_requested(&self) {
        self.stop.notified().await;
    }

    async fn run(&self, [mut interrupt, mut terminate, mut hangup]: [Signal; 3]) {
        // The server to stop, and the time of the signal.
        let mut stopping: Option<(Arc<Shared>, Instant)> = None;
        loop {
            let late = async {
                match &stopping {
                    Some((server, since)) => overdue(server, *since).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP is ignored; SIGTERM stops the server, and PATCH /v1/settings changes settings");
                    continue;
                }
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                why = late => {
                    tracing::error!(%why, "the server does not stop in order and is ended");
                    std::process::exit(1);
                }
            }
            let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(server) = serving.clone() else {
                tracing::info!("stopped while starting");
                std::process::exit(0);
            };
            if stopping.replace((server, Instant::now())).is_some() {
                tracing::warn!("a second signal ends the server");
                std::process::exit(130);
            }
            self.stop.notify_one();
        }
    }
}

/// Waits until a stop that began at `since` has taken too long. Returns the reason.
async fn overdue(server: &Shared, since: Instant) -> String {
    let timeout = Duration::from_secs(server.config.server.stop_timeout_seconds);
    tokio::time::sleep_until(since + timeout).await;
    let last = since + timeout + STOP_MAX;
    while Instant::now() < last {
        tokio::time::sleep(POLL_INTERVAL).await;
        if let Some(stall) = server.stall() {
            return stall;
        }
    }
    format!(
        "it has not stopped {} s after server.stop_timeout_seconds",
        STOP_MAX.as_secs()
    )
}
