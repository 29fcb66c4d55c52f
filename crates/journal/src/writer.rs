//! The writer: takes what was handed over, writes it once, syncs it once, and says so.
//!
//! ```text
//!            commit                write                      sync
//! producer ─────────> queue ─────────────────> written (frames) ──────> durable ──> wakers
//!                       │ Rotate: next log made, this one synced, ended, synced; the next one gets its name
//!                       │ a write fails: it is held, and tried again until it succeeds
//!                       │ a sync fails: stopped for good, nothing is tried again
//! ```
//!
//! Under [`Fsync::Always`] the writer's thread writes and syncs. Else a core writes what it hands over, as long as the disk
//! is quick, no sync is on its way (the kernel may hold up a write for as long), and nobody else writes; what it leaves, the
//! writer's thread writes. Syncs are then made by a thread of their own, [`Syncer`], so that replies need not wait for them.
//! `log` has the rules.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::{Error, Failure};
use crate::journal::Fsync;
use crate::log::Trouble;
use crate::shared::{Shared, SyncState};

/// How long what is not durable may wait for its sync under [`Fsync::EverySecond`]: half of what a
/// crash may lose, so that the sync has the other half.
const SYNC_AFTER: Duration = Duration::from_millis(500);
/// How soon a write that failed is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(250);

/// Does the journal's I/O in steps. [`crate::Journal::open`] gives it a thread; a simulation takes
/// the steps itself.
pub struct Writer {
    shared: Arc<Shared>,
    /// The newest request to sync that no sync has begun for, or 0.
    sync_request: u64,
    /// A [`Syncer`] makes the syncs.
    syncs_apart: bool,
    stopped: bool,
}

/// When [`Writer::step`] has more to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When something is handed over.
    Wait,
    /// Then, or at this time at the latest.
    WaitUntil(Duration),
    /// Never: the journal has stopped.
    Stop,
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>) -> Writer {
        Writer {
            shared,
            sync_request: 0,
            syncs_apart: false,
            stopped: false,
        }
    }

    /// From now on syncs are made by the steps of this, while the writer goes on; but under [`Fsync::Always`] by the writer.
    pub fn split_syncs(&mut self) -> Syncer {
        self.syncs_apart = self.shared.options.fsync != Fsync::Always;
        Syncer {
            shared: self.shared.clone(),
        }
    }

    /// Writes what was handed over, and syncs if it is time to.
    pub fn step(&mut self) -> Next {
        if self.stopped || self.shared.stopped.load(Ordering::Acquire) {
            self.stopped = true;
            return Next::Stop;
        }
        match self.try_step() {
            Ok(next) => {
                self.stopped = next == Next::Stop;
                next
            }
            Err(error) => {
                self.stopped = true;
                self.shared.stop(Failure::Failed(error));
                Next::Stop
            }
        }
    }

    fn try_step(&mut self) -> Result<Next, Error> {
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
                shared.end_trouble();
            }
            Err(Trouble::Passing(error)) if !closing => {
                shared.begin_trouble(error);
                retry = Some(shared.disk.now() + RETRY_AFTER);
            }
            Err(Trouble::Passing(error) | Trouble::Lasting(error)) => return Err(error),
        }
        if closing {
            let ended = log.close(&shared);
            if let Err(Trouble::Passing(error) | Trouble::Lasting(error)) = ended {
                return Err(error);
            }
            drop(log);
            shared.stop(Failure::Closed);
            return Ok(Next::Stop);
        }
        let due = match shared.options.fsync {
            Fsync::Always => log.is_unsynced(),
            Fsync::EverySecond => log
                .unsynced_since()
                .is_some_and(|since| shared.disk.now() >= since + SYNC_AFTER),
            Fsync::No => false,
        };
        if due || self.sync_request > 0 {
            if !self.syncs_apart {
                let request = std::mem::take(&mut self.sync_request);
                log.sync(&shared, request).or_else(lasting)?;
            } else if matches!(shared.state().sync, SyncState::None) {
                let job = log.begin_sync(std::mem::take(&mut self.sync_request));
                shared.state().sync = SyncState::Wanted(job);
                shared.sync_work.notify_one();
            } else {
                // The one that is on its way calls when it is done.
                return Ok(retry.map_or(Next::Wait, Next::WaitUntil));
            }
        }
        let due = match (shared.options.fsync, log.unsynced_since()) {
            (Fsync::EverySecond, Some(since)) => Some(since + SYNC_AFTER),
            _ => None,
        };
        let until = due.into_iter().chain(retry).min();
        Ok(until.map_or(Next::Wait, Next::WaitUntil))
    }

    /// Steps until the journal stops.
    pub(crate) fn run(mut self) {
        let guard = StopOnPanic(self.shared.clone());
        loop {
            match self.step() {
                Next::Stop => break,
                Next::Wait => self.wait(None),
                Next::WaitUntil(time) => self.wait(Some(time)),
            }
        }
        drop(guard);
    }

    /// Until somebody calls, or the time has come.
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

fn lasting(trouble: Trouble) -> Result<(), Error> {
    match trouble {
        Trouble::Passing(error) | Trouble::Lasting(error) => Err(error),
    }
}

/// Makes the syncs that are not the writer's, in steps.
pub struct Syncer {
    shared: Arc<Shared>,
}

impl Syncer {
    /// Makes the sync that is wanted; says whether one was.
    pub fn step(&mut self) -> bool {
        let shared = &*self.shared;
        let job = {
            let mut state = shared.state();
            match std::mem::replace(&mut state.sync, SyncState::Running) {
                SyncState::Wanted(job) => job,
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

    /// Steps until the journal stops.
    pub(crate) fn run(mut self) {
        let guard = StopOnPanic(self.shared.clone());
        loop {
            if self.step() {
                continue;
            }
            let shared = &*self.shared;
            let mut state = shared.state();
            while !matches!(state.sync, SyncState::Wanted(_)) && state.failure.is_none() {
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

/// Stops the journal when its thread panics, so that nobody waits for that thread.
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
