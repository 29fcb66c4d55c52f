//! The last phases of a search: merging parts, sorting and grouping them, and writing the reply. They take as long as the answer is large, and cannot
//! pause in the middle of a sort; where they are long, a thread of the runtime's pool does them, and the core serves its other connections.
//!
//! 1. A core does such work itself only for [`SMALL_BYTES`] at most.
//! 2. At most [`THREADS`] threads do it: further searches wait for one, each no longer than its time limit.
//! 3. Work whose asker has gone, or whose time is over, ends at the next row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use larder_protocol::errors::Code;
use larder_space::error::Refusal as SpaceRefusal;
use tokio::sync::Semaphore;
use tokio::time::timeout_at;

use crate::tables::Refusal;

/// What a core handles in its own turn.
pub(super) const SMALL_BYTES: usize = 64 * 1024;
pub(in crate::resp) const THREADS: usize = 4;
/// Rows that are handled before it is looked whether the time is over.
pub(super) const ROWS_BETWEEN_CHECKS: usize = 256;

static PERMITS: Semaphore = Semaphore::const_new(THREADS);

/// How long a search may take, and whether somebody still waits for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    until: Option<Instant>,
    is_abandoned: Arc<AtomicBool>,
    /// Counts phases that ended since nobody waited any more.
    abandoned: Arc<AtomicU64>,
}

/// Whoever waits for a search: dropping it abandons the search.
#[derive(Debug)]
pub(super) struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Patience {
    pub fn until(until: Option<Instant>, abandoned: Arc<AtomicU64>) -> Patience {
        Patience {
            until,
            abandoned,
            ..Patience::default()
        }
    }

    /// Abandons the search when what is returned is dropped.
    pub fn waiting(&self) -> Waiting {
        Waiting(self.is_abandoned.clone())
    }

    /// # Errors
    /// The search has taken as long as it may, or nobody waits for it any more.
    pub fn ensure(&self) -> Result<(), Refusal> {
        match self.is_over() {
            true => Err(timed_out()),
            false => Ok(()),
        }
    }

    /// As [`Patience::ensure`], for code that knows nothing of this server.
    ///
    /// # Errors
    /// As [`Patience::ensure`].
    pub fn ensure_in_space(&self) -> Result<(), SpaceRefusal> {
        match self.is_over() {
            true => Err(SpaceRefusal::new(timed_out().1)),
            false => Ok(()),
        }
    }

    fn is_over(&self) -> bool {
        if self.is_abandoned.load(Relaxed) {
            self.abandoned.fetch_add(1, Relaxed);
            return true;
        }
        self.until.is_some_and(|until| Instant::now() > until)
    }
}

fn timed_out() -> Refusal {
    let message = "Timeout limit was reached: narrow the query, or allow more time with TIMEOUT or spaces.search_timeout_ms";
    (Code::BadRequest, message.to_owned())
}

/// Does `work` on something of so many bytes: in this turn if it is small, else on another thread.
///
/// # Errors
/// The search has taken as long as it may; or `work` fails.
pub(super) async fn aside<T: Send + 'static>(
    patience: &Patience,
    bytes: usize,
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    if bytes <= SMALL_BYTES {
        return work();
    }
    let permit = match patience.until {
        None => PERMITS.acquire().await,
        Some(until) => timeout_at(until.into(), PERMITS.acquire())
            .await
            .map_err(|_| timed_out())?,
    };
    let permit = permit.expect("the semaphore is never closed");
    let done = tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    });
    done.await.map_err(|error| {
        let message = format!("the answer could not be put together: {error}");
        (Code::Io, message)
    })?
}

/// Drops something of so many bytes: a large one on another thread, since each of its parts is freed by itself.
pub(super) fn dispose<T: Send + 'static>(bytes: usize, value: T) {
    if bytes > SMALL_BYTES && tokio::runtime::Handle::try_current().is_ok() {
        tokio::task::spawn_blocking(move || drop(value));
    }
}
