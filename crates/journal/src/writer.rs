//! The writer: takes committed data from the queue, writes it once, syncs it once, and notifies the producers.
//!
//! ```text
//!            commit                write                      sync
//! producer ─────────> queue ─────────────────> written (frames) ──────> durable ──> wakers
//!                       │ Rotate: create the next log; sync, seal and sync this one; rename the next one
//!                       │ a write fails: it is held, and retried until it succeeds
//!                       │ a sync fails: stopped permanently, no retry
//! ```
//!
//! Under [`Fsync::Always`] the writer's thread writes and syncs. Otherwise a core writes what it commits, unless the
//! disk is slow, a sync is in progress (the kernel may delay a write until its end), or another thread writes. The
//! writer's thread writes the rest. A separate thread, [`Syncer`], then makes the syncs, so that replies need not
//! wait for them. `log` defines the rules.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, Failure};
use crate::journal::Fsync;
use crate::log::LogError;
use crate::shared::{Shared, SyncState};

/// The time that data waits for its sync under [`Fsync::EverySecond`]. It is half of the time whose writes a crash may
/// lose, which leaves the other half for the sync.
const SYNC_AFTER: Duration = Duration::from_millis(500);
/// The delay before a failed write is retried.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Performs the journal's I/O in steps. [`crate::Journal::open`] gives it a thread; a simulation executes the steps
/// itself.
pub struct Writer {
    shared: Arc<Shared>,
    /// The newest sync request for which no sync has started, or 0.
    sync_request: u64,
    /// A [`Syncer`] makes the syncs.
    has_syncer: bool,
    stopped: bool,
}

/// When to call [`Writer::step`] again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterStep {
    /// When data is committed.
    Wait,
    /// When data is committed, or at this time at the latest.
    WaitUntil(Duration),
    /// Never: the journal has stopped.
    Stop,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>) -> Writer {
        Writer {
            shared,
            sync_request: 0,
            has_syncer: false,
            stopped: false,
        }
    }

    /// Moves the syncs to the returned syncer, whose steps run concurrently with the writer. Under [`Fsync::Always`]
    /// the writer continues to make them.
    pub fn split_syncs(&mut self) -> Syncer {
        self.has_syncer = self.shared.options.fsync != Fsync::Always;
        Syncer {
            shared: self.shared.clone(),
        }
    }

    /// Writes committed data, and syncs if it is due.
    pub fn step(&mut self) -> WriterStep {
        if self.stopped || self.shared.stopped.load(Ordering::Acquire) {
            self.stopped = true;
            return WriterStep::Stop;
        }
        match self.try_step() {
            Ok(next) => {
                self.stopped = next == WriterStep::Stop;
                next
            }
            Err(error) => {
                self.stopped = true;
                self.shared.stop(Failure::Failed(error));
                WriterStep::Stop
            }
        }
    }

    fn try_step(&mut self) -> Result<WriterStep, Error> {
        let shared = self.shared.clone();
        let mut log = shared.log();
        let closing = {
            let mut state = shared.state();
            state.is_writer_called = false;
            log.take(&mut state, true);
            state.closing
        };
        let mut retry = None;
        match log.advance(&shared, None) {
            Ok(request) => {
                self.sync_request = self.sync_request.max(request);
                shared.clear_write_failure();
            }
            Err(LogError::Retryable(error)) if !closing => {
                shared.record_write_failure(error);
                retry = Some(shared.disk.now() + RETRY_AFTER);
            }
            Err(LogError::Retryable(error) | LogError::Permanent(error)) => return Err(error),
        }
        if closing {
            let ended = log.close(&shared);
            if let Err(LogError::Retryable(error) | LogError::Permanent(error)) = ended {
                return Err(error);
            }
            drop(log);
            shared.stop(Failure::Closed);
            return Ok(WriterStep::Stop);
        }
        let due = match shared.options.fsync {
            Fsync::Always => log.is_unsynced(),
            Fsync::EverySecond => log
                .unsynced_since()
                .is_some_and(|since| shared.disk.now() >= since + SYNC_AFTER),
            Fsync::No => false,
        };
        if due || self.sync_request > 0 {
            if !self.has_syncer {
                let request = std::mem::take(&mut self.sync_request);
                log.sync(&shared, request).or_else(into_error)?;
            } else if matches!(shared.state().sync, SyncState::None) {
                let job = log.begin_sync(std::mem::take(&mut self.sync_request));
                shared.state().sync = SyncState::Requested(job);
                shared.sync_work.notify_one();
            } else {
                // The running sync notifies the writer when it is done.
                return Ok(retry.map_or(WriterStep::Wait, WriterStep::WaitUntil));
            }
        }
        let due = match (shared.options.fsync, log.unsynced_since()) {
            (Fsync::EverySecond, Some(since)) => Some(since + SYNC_AFTER),
            _ => None,
        };
        let until = due.into_iter().chain(retry).min();
        Ok(until.map_or(WriterStep::Wait, WriterStep::WaitUntil))
    }

    /// Executes steps until the journal stops.
    pub(crate) fn run(mut self) {
        let guard = StopOnPanic(self.shared.clone());
        loop {
            match self.step() {
                WriterStep::Stop => break,
                WriterStep::Wait => self.wait(None),
                WriterStep::WaitUntil(time) => self.wait(Some(time)),
            }
        }
        drop(guard);
    }

    /// Blocks until the writer is called or the time is reached.
    fn wait(&self, until: Option<Duration>) {
        let shared = &*self.shared;
        let mut state = shared.state();
        while !state.is_writer_called && !state.closing && state.failure.is_none() {
            let left = until.map(|until| until.saturating_sub(shared.disk.now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            state.is_writer_asleep = true;
            state = match left {
                None => shared
                    .work
                    .wait(state)
                    .expect("no holder of the lock panics"),
                Some(left) => {
                    shared
                        .work
                        .wait_timeout(state, left)
                        .expect("no holder of the lock panics")
                        .0
                }
            };
        }
        state.is_writer_asleep = false;
    }
}

fn into_error(error: LogError) -> Result<(), Error> {
    match error {
        LogError::Retryable(error) | LogError::Permanent(error) => Err(error),
    }
}

/// Makes the syncs that the writer does not make, in steps.
pub struct Syncer {
    shared: Arc<Shared>,
}

impl Syncer {
    /// Makes the requested sync; returns whether there was one.
    pub fn step(&mut self) -> bool {
        let shared = &*self.shared;
        let job = {
            let mut state = shared.state();
            match std::mem::replace(&mut state.sync, SyncState::Running) {
                SyncState::Requested(job) => job,
                other => {
                    state.sync = other;
                    return false;
                }
            }
        };
        let now = shared.disk.now();
        if let Err(error) = shared.syncing.run(now, || job.run(shared)) {
            shared.stop(Failure::Failed(error));
            return true;
        }
        shared.log().end_sync(shared, job);
        let mut state = shared.state();
        state.sync = SyncState::None;
        shared.call_writer(&mut state);
        true
    }

    /// Executes steps until the journal stops.
    pub(crate) fn run(mut self) {
        let guard = StopOnPanic(self.shared.clone());
        loop {
            if self.step() {
                continue;
            }
            let shared = &*self.shared;
            let mut state = shared.state();
            while !matches!(state.sync, SyncState::Requested(_)) && state.failure.is_none() {
                state = shared
                    .sync_work
                    .wait(state)
                    .expect("no holder of the lock panics");
            }
            if state.failure.is_some() {
                break;
            }
        }
        drop(guard);
    }
}

/// Stops the journal when its thread panics, so that no other thread waits for it.
pub(crate) struct StopOnPanic(pub Arc<Shared>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(Failure::Failed(Error::state(
                "a thread of the journal panicked; this is a bug",
            )));
        }
    }
}
