//! Limits the expensive work of HTTP requests: reading complete versions, and holding large responses.
//!
//! ```text
//!  request ── admit: server.http_reads concurrently ──► run: on one of a few threads ──► response, which holds the admission
//!                │ up to four times as many wait,                                        until it has been sent
//!                └► for server.http_timeout_seconds; otherwise OVERLOADED
//! ```
//!
//! Parts that another node requests for its own response are admitted separately, with the same limit. Otherwise, two nodes that
//! have each admitted a client could wait for each other's parts. Serving such a part requires no other node.
//!
//! 1. No thread waits for a client: a response in parts is produced part by part, each when the previous one has been sent.
//! 2. An admitted request holds a few MiB, or one large value or record.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Bytes;
use larder_protocol::config::ServerConfig;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::json_result::Failure;
use crate::error::Error;
use crate::low_priority::spawn_low_priority;
use crate::supervision::contain;

/// Low-priority threads that read complete versions, mostly ahead of clients.
const THREADS: usize = 4;
const WAITING_PER_READ: usize = 4;

/// The limits of HTTP work; see the module.
pub struct ReadLimiter {
    admitted: Arc<Semaphore>,
    /// For parts of other nodes' responses.
    parts: Arc<Semaphore>,
    waiting: AtomicUsize,
    waiting_max: usize,
    threads: Arc<Semaphore>,
    /// Maximum time that HTTP waits for a client, and a client for its turn.
    pub timeout: Duration,
}

/// Permission for one request. Dropping it admits the next.
pub struct Admission {
    _permit: OwnedSemaphorePermit,
}

/// Counts one waiting request.
struct WaitCount<'a>(&'a AtomicUsize);

impl Drop for WaitCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl ReadLimiter {
    pub fn new(config: &ServerConfig) -> ReadLimiter {
        let reads = config.server.http_reads as usize;
        ReadLimiter {
            admitted: Arc::new(Semaphore::new(reads)),
            parts: Arc::new(Semaphore::new(reads)),
            waiting: AtomicUsize::new(0),
            waiting_max: reads * WAITING_PER_READ,
            threads: Arc::new(Semaphore::new(THREADS.min(reads))),
            timeout: Duration::from_secs(config.server.http_timeout_seconds),
        }
    }

    /// # Errors
    /// [`Error::Overloaded`] immediately if the maximum number wait, or after `timeout`.
    pub async fn admit(&self) -> Result<Admission, Failure> {
        self.admit_to(&self.admitted).await
    }

    /// Like [`ReadLimiter::admit`], for a part of another node's response.
    ///
    /// # Errors
    /// As for [`ReadLimiter::admit`].
    pub async fn admit_part(&self) -> Result<Admission, Failure> {
        self.admit_to(&self.parts).await
    }

    async fn admit_to(&self, admitted: &Arc<Semaphore>) -> Result<Admission, Failure> {
        let overloaded = |what: &str| {
            Failure(Error::Overloaded(format!(
                "{what} samples, dumps, comparisons, verifies and large values are under way over HTTP; try again later, \
                 or raise server.http_reads"
            )))
        };
        if let Ok(permit) = admitted.clone().try_acquire_owned() {
            return Ok(Admission { _permit: permit });
        }
        let waiting = WaitCount(&self.waiting);
        if self.waiting.fetch_add(1, Relaxed) >= self.waiting_max {
            return Err(overloaded("too many"));
        }
        let permit = admitted.clone().acquire_owned();
        let permit = tokio::time::timeout(self.timeout, permit).await;
        drop(waiting);
        match permit {
            Ok(Ok(permit)) => Ok(Admission { _permit: permit }),
            _ => Err(overloaded("other")),
        }
    }

    /// Runs `work` on a low-priority thread when one is free. Its sender argument is closed when the client no longer waits.
    ///
    /// # Errors
    /// The work panicked, or no thread could be created.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&oneshot::Sender<Result<T, Error>>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        // The semaphore is never closed.
        let thread = self.threads.clone().acquire_owned().await.ok();
        let (send, receive) = oneshot::channel();
        spawn_low_priority("larder-read", move || {
            let result = contain("reading the version", || Ok(work(&send)));
            // Before the result is sent, so that its receiver finds the thread free.
            drop(thread);
            // An error means that the client no longer waits.
            let _ = send.send(result);
        })
        .map_err(|error| Error::Io(format!("cannot start a thread: {error}")))?;
        let ended = |_| Error::Io("the reading thread ended; see the log".to_owned());
        receive.await.map_err(ended)?
    }
}

impl Admission {
    /// Bytes of a response that hold the admission until they have been sent.
    pub fn hold(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(HeldBytes {
            bytes,
            _admission: self,
        })
    }
}

struct HeldBytes<T> {
    bytes: T,
    _admission: Admission,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for HeldBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_read_is_rejected_while_the_queue_is_full() {
        let mut config = ServerConfig::default();
        config.server.http_reads = 1;
        config.server.http_timeout_seconds = 86_400;
        let work = ReadLimiter::new(&config);
        let first = work.admit().await.ok().expect("admitted");
        let mut waiting: Vec<_> = (0..WAITING_PER_READ)
            .map(|_| Box::pin(work.admit()))
            .collect();
        for one in &mut waiting {
            assert!(one.now_or_never().is_none());
        }
        let refused = work.admit().await.err().expect("refused");
        assert!(matches!(refused.0, Error::Overloaded(_)));
        let held = first.hold(vec![1, 2, 3]);
        assert!(
            (&mut waiting[0]).now_or_never().is_none(),
            "until it is sent"
        );
        drop(held);
        assert!((&mut waiting[0]).now_or_never().is_some());
        // A request that is dropped no longer waits.
        drop(waiting);
        assert!(work.admit().now_or_never().is_some(), "all have gone");
    }
}
