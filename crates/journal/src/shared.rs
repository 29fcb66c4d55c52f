//! The state that producers, the writer and a snapshot's maker share.
//!
//! One lock is held only briefly: to commit a buffer, to take the queue, or to mark data as durable. No I/O is done
//! under it. The log has a second lock (`log`), which is held while it is written. A thread that holds the first lock
//! never takes the second.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::Disk;
use crate::error::{Error, Failure};
use crate::journal::{LastSnapshot, Options};
use crate::log::{Log, SyncJob};

pub(crate) struct Shared {
    pub disk: Arc<dyn Disk>,
    pub folder: PathBuf,
    pub options: Options,
    pub journal_id: u64,
    /// The number of the next batch of several cores.
    pub batches: AtomicU64,
    /// Set once, when the journal stops; `State::failure` has the reason.
    pub stopped: AtomicBool,
    /// Writes fail and are retried; `State::write_failure` has the reason.
    pub is_write_failing: AtomicBool,
    /// Bytes committed and not written yet.
    pub backlog_bytes: AtomicU64,
    /// The commit time of the oldest entry that is not durable: nanoseconds plus 1, or 0 for none.
    pub unsynced_since: AtomicU64,
    /// A producer or a snapshot part was refused for lack of room and waits for its waker.
    pub has_waiting_producers: AtomicBool,
    /// Bytes of the logs since the newest snapshot.
    pub log_bytes: AtomicU64,
    /// The part of them before the newest rotation.
    pub rotated_bytes: AtomicU64,
    pub logs: AtomicU64,
    pub snapshot_bytes: AtomicU64,
    /// After a failed snapshot: the size of the logs at which the next one is due.
    pub retry_at_bytes: AtomicU64,
    /// Cores leave writes to the writer's thread until this time: nanoseconds of the disk's clock.
    pub offload_until: AtomicU64,
    /// The disk operation in progress: a write, or a sync by the writing thread.
    pub writing: Operation,
    /// The sync in progress in the syncer's thread.
    pub syncing: Operation,
    pub log: Mutex<Log>,
    state: Mutex<State>,
    /// Notifies the writer of work.
    pub work: Condvar,
    /// Notifies the syncer of a sync, or of the end of the journal.
    pub sync_work: Condvar,
    /// Notifies waiting threads that data has become durable, or that the journal has stopped.
    pub progress: Condvar,
}

/// A disk operation in progress, for detecting a disk that hangs.
#[derive(Default)]
pub(crate) struct Operation {
    /// Its start: nanoseconds of the disk's clock plus 1, or 0 for none.
    since: AtomicU64,
}

impl Operation {
    /// Runs an operation that starts at `now`.
    pub fn run<T>(&self, now: Duration, operation: impl FnOnce() -> T) -> T {
        self.since
            .store(now.as_nanos() as u64 + 1, Ordering::Relaxed);
        let done = operation();
        self.since.store(0, Ordering::Relaxed);
        done
    }

    pub fn since(&self) -> Option<Duration> {
        let since = self.since.load(Ordering::Relaxed);
        since.checked_sub(1).map(Duration::from_nanos)
    }
}

pub(crate) struct State {
    pub queue: VecDeque<QueueItem>,
    /// The commit time of the oldest group in the queue.
    pub queue_since: Option<Duration>,
    /// Buffers for reuse.
    pub spare: Vec<Vec<u8>>,
    pub is_writer_asleep: bool,
    /// The writer's thread must check for work again.
    pub is_writer_called: bool,
    pub closing: bool,
    pub failure: Option<Arc<Failure>>,
    /// The reason why writes fail, and the time of the first failure.
    pub write_failure: Option<(Arc<Error>, Duration)>,
    pub sync: SyncState,
    pub syncs_requested: u64,
    pub syncs_done: u64,
    pub rotations_requested: u64,
    /// The last rotation that was tried: its request, and the number of the log that it started.
    pub rotation: (u64, Result<u64, Arc<Error>>),
    /// The current log, and its first sequence number.
    pub newest_log: u64,
    pub newest_log_first: u64,
    /// The last durable sequence number.
    pub durable_sequence: u64,
    pub snapshot_running: bool,
    pub last_snapshot: Option<LastSnapshot>,
    pub producers: Vec<Arc<ProducerMark>>,
    /// The number of threads that block on `progress`.
    pub waiting: u32,
}

impl State {
    /// Returns the state of a journal whose log `newest_log` starts with the sequence number `first`.
    pub fn new(newest_log: u64, first: u64) -> State {
        State {
            queue: VecDeque::new(),
            queue_since: None,
            spare: Vec::new(),
            is_writer_asleep: false,
            is_writer_called: false,
            closing: false,
            failure: None,
            write_failure: None,
            sync: SyncState::None,
            syncs_requested: 0,
            syncs_done: 0,
            rotations_requested: 0,
            rotation: (0, Ok(newest_log)),
            newest_log,
            newest_log_first: first,
            durable_sequence: first - 1,
            snapshot_running: false,
            last_snapshot: None,
            producers: Vec::new(),
            waiting: 0,
        }
    }
}

/// A sync concurrent with writes.
pub(crate) enum SyncState {
    None,
    Requested(SyncJob),
    Running,
}

pub(crate) enum QueueItem {
    Group(CommitGroup),
    /// Seal this log and start the next one; requests are numbered.
    Rotate(u64),
    /// Make everything before this item durable, whatever the policy; requests are numbered.
    Sync(u64),
}

/// Entries that become one frame.
pub(crate) struct CommitGroup {
    pub body: Vec<u8>,
    pub entries: u32,
    /// The last ticket of each producer with entries in the group.
    pub marks: Vec<(Arc<ProducerMark>, u64)>,
}

/// The progress of a producer's entries.
pub(crate) struct ProducerMark {
    /// Entries up to this ticket are durable.
    pub durable: AtomicU64,
    /// Entries up to this ticket are written to the operating system.
    pub written: AtomicU64,
    /// No write was tried for entries after this ticket.
    pub attempted: AtomicU64,
    pub waker: Box<dyn Fn() + Send + Sync>,
}

impl Shared {
    #[allow(
        clippy::too_many_arguments,
        reason = "one caller, which has just learnt all of it"
    )]
    pub fn new(
        disk: Arc<dyn Disk>,
        folder: PathBuf,
        options: Options,
        journal_id: u64,
        first_batch: u64,
        log_bytes: u64,
        logs: u64,
        snapshot_bytes: u64,
        log: Log,
        state: State,
    ) -> Shared {
        Shared {
            disk,
            folder,
            options,
            journal_id,
            batches: AtomicU64::new(first_batch),
            stopped: AtomicBool::new(false),
            is_write_failing: AtomicBool::new(false),
            backlog_bytes: AtomicU64::new(0),
            unsynced_since: AtomicU64::new(0),
            has_waiting_producers: AtomicBool::new(false),
            log_bytes: AtomicU64::new(log_bytes),
            rotated_bytes: AtomicU64::new(0),
            logs: AtomicU64::new(logs),
            snapshot_bytes: AtomicU64::new(snapshot_bytes),
            retry_at_bytes: AtomicU64::new(0),
            offload_until: AtomicU64::new(0),
            writing: Operation::default(),
            syncing: Operation::default(),
            log: Mutex::new(log),
            state: Mutex::new(state),
            work: Condvar::new(),
            sync_work: Condvar::new(),
            progress: Condvar::new(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        // No holder leaves the state inconsistent; a thread that panics elsewhere stops the journal.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a request to the queue.
    pub fn request(&self, state: &mut State, item: QueueItem) {
        state.queue.push_back(item);
        self.call_writer(state);
    }

    /// Requests that everything committed so far becomes durable, and returns the request's number.
    pub fn request_sync(&self, state: &mut State) -> u64 {
        state.syncs_requested += 1;
        let number = state.syncs_requested;
        self.request(state, QueueItem::Sync(number));
        number
    }

    pub fn call_writer(&self, state: &mut State) {
        state.is_writer_called = true;
        if state.is_writer_asleep {
            state.is_writer_asleep = false;
            self.work.notify_one();
        }
    }

    /// Locks the log for writing.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        // A holder that panics stops the journal.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that writes fail and are retried, and notifies the producers.
    pub fn record_write_failure(&self, error: Error) {
        let now = self.disk.now();
        let mut state = self.state();
        let since = state
            .write_failure
            .as_ref()
            .map_or(now, |(_, since)| *since);
        let is_new = state.write_failure.is_none();
        state.write_failure = Some((Arc::new(error), since));
        self.is_write_failing.store(true, Ordering::Release);
        drop(state);
        if is_new {
            self.wake_all();
        }
    }

    /// Records that writes succeed again.
    pub fn clear_write_failure(&self) {
        if self.is_write_failing.load(Ordering::Acquire) {
            self.state().write_failure = None;
            self.is_write_failing.store(false, Ordering::Release);
            self.wake_all();
        }
    }

    pub fn set_unsynced_since(&self, since: Option<Duration>) {
        let value = since.map_or(0, |since| since.as_nanos() as u64 + 1);
        self.unsynced_since.store(value, Ordering::Relaxed);
    }

    /// Stops the journal permanently. The first reason is kept.
    pub fn stop(&self, failure: Failure) {
        let mut state = self.state();
        if state.failure.is_none() {
            state.failure = Some(Arc::new(failure));
        }
        // Groups that were not tried are not done.
        state.queue.clear();
        self.backlog_bytes.store(0, Ordering::Relaxed);
        self.stopped.store(true, Ordering::Release);
        self.work.notify_all();
        self.sync_work.notify_all();
        self.progress.notify_all();
        drop(state);
        self.wake_all();
    }

    /// Returns the reason why the journal has stopped, as an error.
    pub fn stopped_error(&self) -> Error {
        let failure = self.state().failure.clone();
        Error::Stopped(failure.unwrap_or_else(|| Arc::new(Failure::Closed)))
    }

    /// Runs a disk operation of the thread that writes or syncs the log.
    pub fn run_write<T>(&self, operation: impl FnOnce() -> T) -> T {
        self.writing.run(self.disk.now(), operation)
    }

    /// Calls every producer's waker.
    pub fn wake_all(&self) {
        let producers = self.state().producers.clone();
        for producer in producers {
            (producer.waker)();
        }
    }

    /// Calls the wakers if a producer waits for room.
    pub fn notify_room(&self) {
        if self.has_waiting_producers.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }
}
