//! The last phases of a search: merging parts, sorting and grouping rows, and writing the reply. Their duration depends
//! on the size of the result, and a sort cannot be interrupted. A large result is therefore processed on a thread of
//! the runtime's pool, while the core serves its other connections.
//!
//! 1. A core processes at most [`SMALL_BYTES`] itself.
//! 2. At most [`THREADS`] threads process results. Further searches wait for one of them, up to their time limit.
//! 3. Work stops at the next row if its client has disconnected or its time limit is exceeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use larder_protocol::errors::Code;
use larder_space::error::Refusal as SpaceRefusal;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::tables::Refusal;

/// Maximum size of a result that a core processes in its own turn.
pub(super) const SMALL_BYTES: usize = 64 * 1024;
pub(in crate::resp) const OFFLOAD_THREADS: usize = 4;
/// Number of rows processed between two checks of the time limit.
pub(super) const ROWS_BETWEEN_CHECKS: usize = 256;

static OFFLOAD_PERMITS: Semaphore = Semaphore::const_new(OFFLOAD_THREADS);

/// The time limit of a search, and whether it was abandoned.
#[derive(Debug, Clone, Default)]
pub(super) struct SearchDeadline {
    expires_at: Option<Instant>,
    is_abandoned: Arc<AtomicBool>,
    /// Counts phases that ended because the search was abandoned.
    abandoned: Arc<AtomicU64>,
}

/// A guard that is held while a search is waited for. Dropping it abandons the search.
#[derive(Debug)]
pub(super) struct AbandonGuard(Arc<AtomicBool>);

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl SearchDeadline {
    pub fn new(until: Option<Instant>, abandoned: Arc<AtomicU64>) -> SearchDeadline {
        SearchDeadline {
            expires_at: until,
            abandoned,
            ..SearchDeadline::default()
        }
    }

    /// Returns a guard that abandons the search when it is dropped.
    pub fn abandon_guard(&self) -> AbandonGuard {
        AbandonGuard(self.is_abandoned.clone())
    }

    /// # Errors
    /// The time limit is exceeded, or the search was abandoned.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.is_exceeded() {
            Err(timeout_refusal())
        } else {
            Ok(())
        }
    }

    /// As [`RetryPolicy::ensure`], with the error type of the space crate.
    ///
    /// # Errors
    /// As [`RetryPolicy::ensure`].
    pub fn check_in_space(&self) -> Result<(), SpaceRefusal> {
        if self.is_exceeded() {
            Err(SpaceRefusal::new(timeout_refusal().1))
        } else {
            Ok(())
        }
    }

    fn is_exceeded(&self) -> bool {
        if self.is_abandoned.load(Relaxed) {
            self.abandoned.fetch_add(1, Relaxed);
            return true;
        }
        self.expires_at.is_some_and(|until| Instant::now() > until)
    }
}

fn timeout_refusal() -> Refusal {
    let message = "Timeout limit was reached: narrow the query, or allow more time with TIMEOUT or spaces.search_timeout_ms";
    (Code::BadRequest, message.to_owned())
}

/// Performs `work` on a value of this size: in this turn if it is small, else on another thread.
///
/// # Errors
/// The time limit is exceeded, or `work` fails.
pub(super) async fn run_offloaded<T: Send + 'static>(
    deadline: &SearchDeadline,
    bytes: usize,
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    if bytes <= SMALL_BYTES {
        return work();
    }
    let permit = match deadline.expires_at {
        None => OFFLOAD_PERMITS.acquire().await,
        Some(until) => timeout_at(until.into(), OFFLOAD_PERMITS.acquire())
            .await
            .map_err(|_| timeout_refusal())?,
    };
    let permit = permit.expect("the semaphore is never closed");
    let done = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    done.await.map_err(|error| {
        let message = format!("cannot assemble the reply: {error}");
        (Code::Io, message)
    })?
}

/// Drops a value of this size. A large one is dropped on another thread, because its parts are freed one by one.
pub(super) fn dispose<T: Send + 'static>(bytes: usize, value: T) {
    if bytes > SMALL_BYTES && tokio::runtime::Handle::try_current().is_ok() {
        tokio::task::spawn_blocking(move || drop(value));
    }
}
