//! What producers, the writer and a snapshot's maker have in common.
//!
//! One lock, held for moments: to hand a buffer over, to take what was handed over, to say what is
//! durable. Nobody does I/O under it. Another one is the log's (`log`), held while it is written, and never taken by who
//! holds the first.

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
    /// Set once, when the journal stops; `State::failure` says why.
    pub stopped: AtomicBool,
    /// A write fails, and is tried again; `State::trouble` says why.
    pub troubled: AtomicBool,
    /// Bytes handed over and not yet written.
    pub backlog_bytes: AtomicU64,
    /// When the oldest entry that is not durable was handed over: nanoseconds plus 1, or 0 for none.
    pub unsynced_since: AtomicU64,
    /// A producer was told that there is no room, and waits for a call.
    pub pressed: AtomicBool,
    /// Bytes of the logs since the newest snapshot.
    pub log_bytes: AtomicU64,
    /// How many of them are before the newest rotation.
    pub rotated_bytes: AtomicU64,
    pub logs: AtomicU64,
    pub snapshot_bytes: AtomicU64,
    /// After a snapshot failed: ask again when the logs have this size.
    pub retry_at_bytes: AtomicU64,
    /// Until then cores leave writes to the writer's thread: nanoseconds of the disk's clock.
    pub leave_until: AtomicU64,
    /// The write, or the sync by whoever writes, that the disk has not completed.
    pub writing: Operation,
    /// The sync that the syncer's thread waits for.
    pub syncing: Operation,
    pub log: Mutex<Log>,
    state: Mutex<State>,
    /// Something for the writer to do.
    pub work: Condvar,
    /// A sync is to be made apart, or the journal has stopped.
    pub sync_work: Condvar,
    /// Something has become durable, or the journal has stopped.
    pub progress: Condvar,
}

/// An operation of the disk while it is in progress, for whoever watches whether the disk hangs.
#[derive(Default)]
pub(crate) struct Operation {
    /// Nanoseconds of the disk's clock plus 1, or 0 for none.
    since: AtomicU64,
}

impl Operation {
    /// Runs an operation that begins `now`.
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
    pub queue: VecDeque<Item>,
    /// When the oldest group of the queue was handed over.
    pub queue_since: Option<Duration>,
    /// Buffers to use again.
    pub spare: Vec<Vec<u8>>,
    pub is_writer_asleep: bool,
    /// The writer's thread is to look again.
    pub is_writer_called: bool,
    pub closing: bool,
    pub failure: Option<Arc<Failure>>,
    /// Why writing fails, and since when.
    pub trouble: Option<(Arc<Error>, Duration)>,
    pub sync: SyncState,
    pub syncs_requested: u64,
    pub syncs_done: u64,
    pub rotations_requested: u64,
    /// The last rotation that was tried: its request, and the number of the log that it began.
    pub rotation: (u64, Result<u64, Arc<Error>>),
    /// The log that is being written, and the sequence that it begins with.
    pub newest_log: u64,
    pub newest_log_first: u64,
    /// The last sequence that is durable.
    pub durable_sequence: u64,
    pub snapshot_running: bool,
    pub last_snapshot: Option<LastSnapshot>,
    pub producers: Vec<Arc<ProducerMark>>,
    /// Threads in a blocking wait for `progress`.
    pub waiting: u32,
}

impl State {
    /// Of a journal whose log `newest_log` begins with the sequence `first`.
    pub fn new(newest_log: u64, first: u64) -> State {
        State {
            queue: VecDeque::new(),
            queue_since: None,
            spare: Vec::new(),
            is_writer_asleep: false,
            is_writer_called: false,
            closing: false,
            failure: None,
            trouble: None,
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

/// A sync while others write.
pub(crate) enum SyncState {
    None,
    Wanted(SyncJob),
    Running,
}

pub(crate) enum Item {
    Group(Group),
    /// End this log and begin the next one; requests are numbered.
    Rotate(u64),
    /// Make everything before this durable, whatever the policy; requests are numbered.
    Sync(u64),
}

/// Entries that make one frame.
pub(crate) struct Group {
    pub body: Vec<u8>,
    pub entries: u32,
    /// The last ticket of each producer that has entries in it.
    pub marks: Vec<(Arc<ProducerMark>, u64)>,
}

/// How far a producer's entries have come.
pub(crate) struct ProducerMark {
    /// Up to this ticket they are durable.
    pub durable: AtomicU64,
    /// Up to this ticket the system has them.
    pub written: AtomicU64,
    /// Behind this ticket no write was tried.
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
            troubled: AtomicBool::new(false),
            backlog_bytes: AtomicU64::new(0),
            unsynced_since: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
            log_bytes: AtomicU64::new(log_bytes),
            rotated_bytes: AtomicU64::new(0),
            logs: AtomicU64::new(logs),
            snapshot_bytes: AtomicU64::new(snapshot_bytes),
            retry_at_bytes: AtomicU64::new(0),
            leave_until: AtomicU64::new(0),
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
        // No holder leaves it half changed; a thread that panics elsewhere stops the journal.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request behind everything that was handed over.
    pub fn request(&self, state: &mut State, item: Item) {
        state.queue.push_back(item);
        self.call_writer(state);
    }

    /// Asks for everything handed over so far to become durable, and gives the request's number.
    pub fn request_sync(&self, state: &mut State) -> u64 {
        state.syncs_requested += 1;
        let number = state.syncs_requested;
        self.request(state, Item::Sync(number));
        number
    }

    pub fn call_writer(&self, state: &mut State) {
        state.is_writer_called = true;
        if state.is_writer_asleep {
            state.is_writer_asleep = false;
            self.work.notify_one();
        }
    }

    /// The log, when nobody else is writing it.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        // A holder that panics stops the journal.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writing failed: it is tried again, and says so meanwhile.
    pub fn begin_trouble(&self, error: Error) {
        let now = self.disk.now();
        let mut state = self.state();
        let since = state.trouble.as_ref().map_or(now, |(_, since)| *since);
        let is_new = state.trouble.is_none();
        state.trouble = Some((Arc::new(error), since));
        self.troubled.store(true, Ordering::Release);
        drop(state);
        if is_new {
            self.wake_all();
        }
    }

    /// Writing works again.
    pub fn end_trouble(&self) {
        if self.troubled.load(Ordering::Acquire) {
            self.state().trouble = None;
            self.troubled.store(false, Ordering::Release);
            self.wake_all();
        }
    }

    pub fn set_unsynced_since(&self, since: Option<Duration>) {
        let value = since.map_or(0, |since| since.as_nanos() as u64 + 1);
        self.unsynced_since.store(value, Ordering::Relaxed);
    }

    /// Stops the journal for good. The first reason stays.
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

    /// Why the journal has stopped, as an error.
    pub fn stopped_error(&self) -> Error {
        let failure = self.state().failure.clone();
        Error::Stopped(failure.unwrap_or_else(|| Arc::new(Failure::Closed)))
    }

    /// Runs an operation of the disk as the one that writes or syncs the log.
    pub fn writing<T>(&self, operation: impl FnOnce() -> T) -> T {
        self.writing.run(self.disk.now(), operation)
    }

    /// Calls every producer's waker.
    pub fn wake_all(&self) {
        let producers = self.state().producers.clone();
        for producer in producers {
            (producer.waker)();
        }
    }

    /// Calls the producers that were told to wait for room.
    pub fn room_again(&self) {
        if self.pressed.swap(false, Ordering::AcqRel) {
            self.wake_all();
        }
    }
}
