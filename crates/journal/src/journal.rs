//! The complete journal: opening, producers, snapshots, closing.

use std::any::Any;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::disk::{Disk, RealDisk};
use crate::entry::Entry;
use crate::error::{Error, Failure};
use crate::folder::{create_log, sweep};
use crate::format::{FileHeader, FileKind};
use crate::log::Log;
use crate::newest_log::NewestLog;
use crate::producer::Producer;
use crate::recover::{Recovery, read_journal};
use crate::shared::{CommitGroup, QueueItem, Shared, State};
use crate::snapshot::{SnapshotPart, SnapshotShared, SnapshotWriter};
use crate::writer::{StopOnPanic, Writer, WriterStep};

/// When written data becomes durable. The names and their meaning are those of Redis's `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// Before the acknowledgement: no acknowledged write is lost.
    Always,
    /// Data is written to the operating system before the acknowledgement, so a killed process loses nothing. It is
    /// durable within a second, so a crash of the machine loses at most the last second, provided that callers
    /// respect [`Producer::has_room`].
    #[default]
    EverySecond,
    /// Data is written to the operating system before the acknowledgement, and the system decides when it becomes
    /// durable, and in which order. A crash of the machine may cut the log at any frame since the last snapshot
    /// began.
    No,
}

/// The maximum that a crash may lose under [`Fsync::EverySecond`].
pub(crate) const LOSS_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Options {
    pub fsync: Fsync,
    /// Maximum number of bytes waiting to be written; above it [`Producer::has_room`] returns false. Default 64 MiB.
    pub backlog_bytes_max: u64,
    /// A snapshot is due when the logs since the last one reach this percentage of its size. Default 100.
    pub snapshot_growth_percent: u64,
    /// Minimum size of the logs, in bytes, for a snapshot to be due. Default 64 MiB.
    pub snapshot_log_bytes_min: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fsync: Fsync::default(),
            backlog_bytes_max: 64 << 20,
            snapshot_growth_percent: 100,
            snapshot_log_bytes_min: 64 << 20,
        }
    }
}

/// The result of the last snapshot.
#[derive(Debug, Clone)]
pub enum LastSnapshot {
    Made { rows: u64, bytes: u64 },
    Failed(Arc<Error>),
}

/// Sizes for monitoring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The logs since the newest snapshot, which a start replays after it.
    pub log_bytes: u64,
    pub logs: u64,
    pub snapshot_bytes: u64,
    /// Committed and not written yet.
    pub backlog_bytes: u64,
}

/// Returns entries that abandon these batches, so that a later start need not hold back the entries after their
/// parts.
fn abort_batches(batches: &[u64]) -> CommitGroup {
    let mut body = Vec::new();
    for batch in batches {
        Entry::Abort { batch: *batch }.encode(&mut body);
    }
    CommitGroup {
        body,
        entries: u32::try_from(batches.len()).expect("one a connection at most"),
        marks: Vec::new(),
    }
}

/// Maximum number of logs, of any size, before a snapshot is due: each start begins a log.
const LOGS_MAX: u64 = 64;

/// A folder with the durable rows of a process. Only one process at a time can open it.
///
/// Dropping it closes it and discards what producers have not committed.
pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Threads>,
    _lock: Box<dyn Any + Send + Sync>,
}

/// A handle that shows whether a journal can write. It does not keep the journal open.
#[derive(Clone)]
pub struct Health(Arc<Shared>);

impl Health {
    /// Returns how long the disk operation that writes wait for has been running, if there is one. This detects a
    /// disk that hangs; a disk that fails shows in [`Health::write_failure`] and [`Health::failure`].
    pub fn stalled_for(&self) -> Option<Duration> {
        let operations = [self.0.writing.since(), self.0.syncing.since()];
        let first = operations.into_iter().flatten().min()?;
        Some(self.0.disk.now().saturating_sub(first))
    }

    /// Returns why writes currently fail, and for how long they have. The journal holds commits in memory and writes
    /// them as soon as possible; callers should accept no new writes until then. `None` if writes succeed or the
    /// journal has stopped.
    pub fn write_failure(&self) -> Option<(Arc<Error>, Duration)> {
        write_failure(&self.0)
    }

    /// Returns why the journal has stopped, if it has.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.0.state().failure.clone()
    }
}

fn write_failure(shared: &Shared) -> Option<(Arc<Error>, Duration)> {
    if !shared.is_write_failing.load(Ordering::Acquire) {
        return None;
    }
    let now = shared.disk.now();
    let state = shared.state();
    let (error, since) = state.write_failure.as_ref()?;
    (state.failure.is_none()).then(|| (error.clone(), now.saturating_sub(*since)))
}

#[derive(Default)]
struct Threads {
    writer: Option<JoinHandle<()>>,
    syncer: Option<JoinHandle<()>>,
    snapshot: Option<JoinHandle<()>>,
}

impl Journal {
    /// Opens or creates the journal in `folder`, passes all entries to `visit` in order, and starts the writer's
    /// thread. Blocks until everything has been read.
    ///
    /// Rows, definitions and positions may occur more than once: the last entry is valid. Callers should apply
    /// definitions at the end, so that no join is maintained during the replay.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for any damage except a torn tail of the last log; [`Error::State`] if another process
    /// has it open; [`Error::Io`]. The entries that were passed to `visit` must then be discarded.
    pub fn open(
        folder: &Path,
        options: Options,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<(Journal, Recovery), Error> {
        let (journal, mut writer, recovery) =
            Journal::open_stepped(Arc::new(RealDisk), folder, options, visit)?;
        let syncer = writer.split_syncs();
        let start = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(run)
                .map_err(Error::io("start a thread for", folder))
        };
        let thread = start("journal", Box::new(move || writer.run()))?;
        journal.threads().writer = Some(thread);
        let thread = start("journal-sync", Box::new(move || syncer.run()))?;
        journal.threads().syncer = Some(thread);
        Ok((journal, recovery))
    }

    /// Like [`Journal::open`], on any [`Disk`] and without threads: the caller executes the writer's steps.
    ///
    /// # Errors
    /// Like [`Journal::open`].
    pub fn open_stepped(
        disk: Arc<dyn Disk>,
        folder: &Path,
        options: Options,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<(Journal, Writer, Recovery), Error> {
        disk.create_folder(folder)
            .map_err(Error::io("create folder", folder))?;
        let lock = disk.lock(folder).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => Error::state(format!(
                "{} is open in another process; end that one first",
                folder.display()
            )),
            _ => Error::io("lock", folder)(error),
        })?;
        let found = read_journal(disk.as_ref(), folder, visit)?;
        let number = found.repair(disk.as_ref(), folder, options.fsync)?;
        let new_id = || {
            disk.new_id()
                .map_err(Error::io("get a random number for", folder))
        };
        let journal_id = match found.journal {
            Some(id) => id,
            None => new_id()?,
        };
        let header = FileHeader {
            kind: FileKind::Log,
            journal: journal_id,
            number,
            first_sequence: found.next_sequence,
            id: new_id()?,
        };
        sweep(disk.as_ref(), folder, found.snapshot, true)?;
        let file = create_log(disk.as_ref(), folder, &header)?;
        NewestLog::new(&header, None).create(disk.as_ref(), folder)?;
        let mut state = State::new(number, found.next_sequence);
        if !found.open_batches.is_empty() {
            state
                .queue
                .push_back(QueueItem::Group(abort_batches(&found.open_batches)));
        }
        let shared = Arc::new(Shared::new(
            disk,
            folder.to_owned(),
            options,
            journal_id,
            // The first batch number: random, so that numbers of different runs do not collide.
            header.id,
            found.recovery.log_bytes,
            found.recovery.logs + 1,
            found.recovery.snapshot_bytes,
            Log::new(file, header),
            state,
        ));
        let journal = Journal {
            shared: shared.clone(),
            threads: Mutex::default(),
            _lock: lock,
        };
        Ok((journal, Writer::new(shared), found.recovery))
    }

    /// Returns a producer for one core. The journal's threads call `waker`, which must only notify that core. The
    /// core then checks for these events:
    ///
    /// - appends can be acknowledged,
    /// - there is room again,
    /// - a snapshot has ended,
    /// - writes fail, or succeed again,
    /// - the journal has stopped.
    pub fn producer(&self, waker: impl Fn() + Send + Sync + 'static) -> Producer {
        Producer::new(self.shared.clone(), Box::new(waker))
    }

    /// Returns why the journal has stopped, if it has.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.shared.state().failure.clone()
    }

    /// Like [`Health::write_failure`].
    pub fn write_failure(&self) -> Option<(Arc<Error>, Duration)> {
        write_failure(&self.shared)
    }

    /// Returns a health handle for threads that outlive the journal or must not keep it open.
    pub fn health(&self) -> Health {
        Health(self.shared.clone())
    }

    pub fn sizes(&self) -> Sizes {
        let shared = &self.shared;
        Sizes {
            log_bytes: shared.log_bytes.load(Ordering::Relaxed),
            logs: shared.logs.load(Ordering::Relaxed),
            snapshot_bytes: shared.snapshot_bytes.load(Ordering::Relaxed),
            backlog_bytes: shared.backlog_bytes.load(Ordering::Relaxed),
        }
    }

    /// Returns whether the logs have grown so much, relative to the last snapshot, that a new one is due. Cheap; poll
    /// it periodically.
    pub fn is_snapshot_due(&self) -> bool {
        let (sizes, options) = (self.sizes(), &self.shared.options);
        let grown = sizes.snapshot_bytes / 100 * options.snapshot_growth_percent;
        let large = sizes.log_bytes > grown.max(options.snapshot_log_bytes_min);
        (large || sizes.logs > LOGS_MAX)
            && sizes.log_bytes >= self.shared.retry_at_bytes.load(Ordering::Relaxed)
            && !self.shared.state().snapshot_running
            && !self.shared.is_write_failing.load(Ordering::Relaxed)
            && !self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Starts a snapshot in `parts`, one per core, with a thread of its own. Each part may be read as soon as this
    /// call returns.
    ///
    /// # Errors
    /// [`Error::State`] while another snapshot is running; [`Error::Stopped`]; [`Error::Io`].
    pub fn begin_snapshot(&self, parts: usize) -> Result<Vec<SnapshotPart>, Error> {
        let (parts, maker) = self.begin_snapshot_stepped(parts)?;
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new()
            .name("snapshot".into())
            .spawn(move || {
                let _guard = StopOnPanic(shared);
                maker.run();
            })
            .map_err(|error| {
                self.shared.state().snapshot_running = false;
                Error::io("start a thread for", &self.shared.folder)(error)
            })?;
        let before = self.threads().snapshot.replace(thread);
        if let Some(before) = before {
            // The previous snapshot has ended; otherwise this call would have failed.
            let _ = before.join();
        }
        Ok(parts)
    }

    /// Like [`Journal::begin_snapshot`]; the caller executes the maker's steps.
    ///
    /// # Errors
    /// Like [`Journal::begin_snapshot`].
    pub fn begin_snapshot_stepped(
        &self,
        parts: usize,
    ) -> Result<(Vec<SnapshotPart>, SnapshotWriter), Error> {
        assert!(parts > 0, "a snapshot has at least one part");
        let mut state = self.shared.state();
        if let Some(failure) = &state.failure {
            return Err(Error::Stopped(failure.clone()));
        }
        if state.snapshot_running || state.closing {
            return Err(Error::state("another snapshot is running"));
        }
        state.snapshot_running = true;
        state.rotations_requested += 1;
        let rotation = state.rotations_requested;
        self.shared.request(&mut state, QueueItem::Rotate(rotation));
        drop(state);
        let shared = Arc::new(SnapshotShared::new(parts));
        let made = (0..parts)
            .map(|_| SnapshotPart::new(self.shared.clone(), shared.clone()))
            .collect();
        Ok((
            made,
            SnapshotWriter::new(self.shared.clone(), shared, rotation),
        ))
    }

    /// Returns whether a snapshot is running.
    pub fn snapshot_running(&self) -> bool {
        self.shared.state().snapshot_running
    }

    /// Returns the result of the last snapshot since the start.
    pub fn last_snapshot(&self) -> Option<LastSnapshot> {
        self.shared.state().last_snapshot.clone()
    }

    /// Blocks until no snapshot is running. For tools and tests.
    pub fn wait_for_snapshot(&self) -> Option<LastSnapshot> {
        let mut state = self.shared.state();
        state.waiting += 1;
        while state.snapshot_running {
            state = self
                .shared
                .progress
                .wait(state)
                .expect("no holder of the lock panics");
        }
        state.waiting -= 1;
        state.last_snapshot.clone()
    }

    /// Writes and syncs everything committed, seals the log, and stops. A running snapshot is abandoned. Call it
    /// after the producers are done.
    ///
    /// # Errors
    /// The error that stopped the journal, before or during this call.
    pub fn close(self) -> Result<(), Error> {
        self.stop_threads();
        match self.failure().as_deref() {
            None | Some(Failure::Closed) => Ok(()),
            Some(Failure::Failed(_)) => Err(self.shared.stopped_error()),
        }
    }

    /// Like [`Journal::close`], for callers that execute the steps.
    ///
    /// # Errors
    /// Like [`Journal::close`].
    pub fn close_stepped(self, writer: &mut Writer) -> Result<(), Error> {
        self.shared.state().closing = true;
        while writer.step() != WriterStep::Stop {}
        self.close()
    }

    fn stop_threads(&self) {
        let mut threads = std::mem::take(&mut *self.threads());
        {
            let mut state = self.shared.state();
            state.closing = true;
            self.shared.call_writer(&mut state);
            self.shared.work.notify_all();
        }
        if let Some(writer) = threads.writer.take() {
            // `stop` has reported a panic of the thread.
            let _ = writer.join();
        }
        // The journal and the syncer end with the writer.
        for thread in [threads.syncer.take(), threads.snapshot.take()]
            .into_iter()
            .flatten()
        {
            let _ = thread.join();
        }
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Threads> {
        self.threads.lock().expect("no holder of the lock panics")
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_threads();
    }
}
