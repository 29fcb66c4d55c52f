//! The journal as a whole: opening, producers, snapshots, closing.

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
use crate::newest::NewestLog;
use crate::producer::Producer;
use crate::recover::{Recovery, find};
use crate::shared::{Group, Item, Shared, State};
use crate::snapshot::{SnapshotMaker, SnapshotPart, SnapshotShared};
use crate::writer::{Next, StopOnPanic, Writer};

/// When what was written is made durable. The words and their meaning are those of Redis's
/// `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fsync {
    /// Before it is acknowledged: nothing acknowledged is lost.
    Always,
    /// The system has it before it is acknowledged, so a killed process loses nothing; it is durable within a
    /// second, so a crash of the machine loses the last second at most, as long as
    /// [`Producer::has_room`] is heeded.
    #[default]
    EverySecond,
    /// The system has it before it is acknowledged, and makes it durable when it does. The order in which it does
    /// is its own, so a crash of the machine may cut the log at any frame since the last snapshot began.
    No,
}

/// The most that a crash may lose under [`Fsync::EverySecond`].
pub(crate) const LOSS_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct Options {
    pub fsync: Fsync,
    /// Bytes that wait to be written before [`Producer::has_room`] says no. Default 64 MiB.
    pub backlog_bytes_max: u64,
    /// A snapshot is wanted when the logs since the last one have this many percent of its size.
    /// Default 100.
    pub snapshot_growth_percent: u64,
    /// ... and at least this many bytes. Default 64 MiB.
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

/// How the last snapshot went.
#[derive(Debug, Clone)]
pub enum LastSnapshot {
    Made { rows: u64, bytes: u64 },
    Failed(Arc<Error>),
}

/// Sizes for people who watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Logs since the newest snapshot: what a start replays beside it.
    pub log_bytes: u64,
    pub logs: u64,
    pub snapshot_bytes: u64,
    /// Handed over and not yet written.
    pub backlog_bytes: u64,
}

/// So that a later start need not keep back all that follows.
fn abandon(batches: &[u64]) -> Group {
    let mut body = Vec::new();
    for batch in batches {
        Entry::Abandoned { batch: *batch }.encode(&mut body);
    }
    Group {
        body,
        entries: u32::try_from(batches.len()).expect("one a connection at most"),
        marks: Vec::new(),
    }
}

/// So many logs call for a snapshot, whatever their size: each start begins one.
const LOGS_MAX: u64 = 64;

/// A folder with the durable rows of a process. One process has it open at a time.
///
/// Dropping it closes it; what producers have not committed by then is not done.
pub struct Journal {
    shared: Arc<Shared>,
    threads: Mutex<Threads>,
    _lock: Box<dyn Any + Send + Sync>,
}

/// Whether a journal can write. It does not keep the journal open.
#[derive(Clone)]
pub struct Health(Arc<Shared>);

impl Health {
    /// For how long the disk has not completed the operation that writes wait for, if it is in one. A disk that fails
    /// instead of hanging shows in [`Health::trouble`] and [`Health::failure`].
    pub fn stalled_for(&self) -> Option<Duration> {
        let operations = [self.0.writing.since(), self.0.syncing.since()];
        let first = operations.into_iter().flatten().min()?;
        Some(self.0.disk.now().saturating_sub(first))
    }

    /// Why writing fails at present, and for how long it has. The journal holds what is committed meanwhile in memory, and
    /// writes it as soon as it can; take no new writes until then. `None` if nothing is wrong, or the journal has stopped.
    pub fn trouble(&self) -> Option<(Arc<Error>, Duration)> {
        trouble(&self.0)
    }

    /// Why the journal has stopped, if it has.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.0.state().failure.clone()
    }
}

fn trouble(shared: &Shared) -> Option<(Arc<Error>, Duration)> {
    if !shared.troubled.load(Ordering::Acquire) {
        return None;
    }
    let now = shared.disk.now();
    let state = shared.state();
    let (error, since) = state.trouble.as_ref()?;
    (state.failure.is_none()).then(|| (error.clone(), now.saturating_sub(*since)))
}

#[derive(Default)]
struct Threads {
    writer: Option<JoinHandle<()>>,
    syncer: Option<JoinHandle<()>>,
    snapshot: Option<JoinHandle<()>>,
}

impl Journal {
    /// Opens or creates the journal in `folder`, gives everything in it to `visit` in order, and
    /// starts the writer's thread. It blocks until all was read.
    ///
    /// Rows, definitions and positions may come more than once: the last word counts. Definitions
    /// are best kept until the end, so that no join is maintained during replay.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for anything but a torn tail of the last log; [`Error::State`] if another
    /// process has it open; [`Error::Io`]. What was given to `visit` is then worth nothing.
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

    /// As [`Journal::open`], on any [`Disk`] and without threads: the caller takes the writer's steps.
    ///
    /// # Errors
    /// As [`Journal::open`].
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
        let found = find(disk.as_ref(), folder, visit)?;
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
        NewestLog::of(&header, None).begin(disk.as_ref(), folder)?;
        let mut state = State::new(number, found.next_sequence);
        if !found.open_batches.is_empty() {
            state
                .queue
                .push_back(Item::Group(abandon(&found.open_batches)));
        }
        let shared = Arc::new(Shared::new(
            disk,
            folder.to_owned(),
            options,
            journal_id,
            // Random, as the numbers of batches are to be.
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

    /// A way in for one core. `waker` is called by the journal's threads, and must only call that
    /// core to look again: something of its own may be acknowledged, there is room again, a snapshot
    /// has ended, writing fails or works again, or the journal has stopped.
    pub fn producer(&self, waker: impl Fn() + Send + Sync + 'static) -> Producer {
        Producer::new(self.shared.clone(), Box::new(waker))
    }

    /// Why the journal has stopped, if it has.
    pub fn failure(&self) -> Option<Arc<Failure>> {
        self.shared.state().failure.clone()
    }

    /// As [`Health::trouble`].
    pub fn trouble(&self) -> Option<(Arc<Error>, Duration)> {
        trouble(&self.shared)
    }

    /// Whether the journal can write, for threads that outlive it or must not keep it open.
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

    /// Whether the logs have grown so large, beside the last snapshot, that it is time for a new
    /// one. Cheap: to be asked now and then.
    pub fn wants_snapshot(&self) -> bool {
        let (sizes, options) = (self.sizes(), &self.shared.options);
        let grown = sizes.snapshot_bytes / 100 * options.snapshot_growth_percent;
        let large = sizes.log_bytes > grown.max(options.snapshot_log_bytes_min);
        (large || sizes.logs > LOGS_MAX)
            && sizes.log_bytes >= self.shared.retry_at_bytes.load(Ordering::Relaxed)
            && !self.shared.state().snapshot_running
            && !self.shared.troubled.load(Ordering::Relaxed)
            && !self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Begins a snapshot in `parts`, one a core, and gives it a thread. Each part may be read from
    /// this call's return on.
    ///
    /// # Errors
    /// [`Error::State`] while one is being made; [`Error::Stopped`]; [`Error::Io`].
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
            // It has said that it ended, or this call would have been refused.
            let _ = before.join();
        }
        Ok(parts)
    }

    /// As [`Journal::begin_snapshot`]; the caller takes the maker's steps.
    ///
    /// # Errors
    /// As [`Journal::begin_snapshot`].
    pub fn begin_snapshot_stepped(
        &self,
        parts: usize,
    ) -> Result<(Vec<SnapshotPart>, SnapshotMaker), Error> {
        assert!(parts > 0, "a snapshot has at least one part");
        let mut state = self.shared.state();
        if let Some(failure) = &state.failure {
            return Err(Error::Stopped(failure.clone()));
        }
        if state.snapshot_running || state.closing {
            return Err(Error::state("a snapshot is being made"));
        }
        state.snapshot_running = true;
        state.rotations_requested += 1;
        let rotation = state.rotations_requested;
        self.shared.request(&mut state, Item::Rotate(rotation));
        drop(state);
        let shared = Arc::new(SnapshotShared::new(parts));
        let made = (0..parts)
            .map(|_| SnapshotPart::new(self.shared.clone(), shared.clone()))
            .collect();
        Ok((
            made,
            SnapshotMaker::new(self.shared.clone(), shared, rotation),
        ))
    }

    /// Whether a snapshot is being made.
    pub fn snapshot_running(&self) -> bool {
        self.shared.state().snapshot_running
    }

    /// How the last snapshot since the start went.
    pub fn last_snapshot(&self) -> Option<LastSnapshot> {
        self.shared.state().last_snapshot.clone()
    }

    /// Blocks until no snapshot is being made. For tools and tests.
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

    /// Writes and syncs everything committed, ends the log, and stops. A snapshot that is being made
    /// is given up. To be called when the producers are done.
    ///
    /// # Errors
    /// What stopped the journal before, or now.
    pub fn close(self) -> Result<(), Error> {
        self.end();
        match self.failure().as_deref() {
            None | Some(Failure::Closed) => Ok(()),
            Some(Failure::Failed(_)) => Err(self.shared.stopped_error()),
        }
    }

    /// As [`Journal::close`] where the caller takes the steps.
    ///
    /// # Errors
    /// As [`Journal::close`].
    pub fn close_stepped(self, writer: &mut Writer) -> Result<(), Error> {
        self.shared.state().closing = true;
        while writer.step() != Next::Stop {}
        self.close()
    }

    fn end(&self) {
        let mut threads = std::mem::take(&mut *self.threads());
        {
            let mut state = self.shared.state();
            state.closing = true;
            self.shared.call_writer(&mut state);
            self.shared.work.notify_all();
        }
        if let Some(writer) = threads.writer.take() {
            // A panic in it was told by `stop`.
            let _ = writer.join();
        }
        // The writer's end is the journal's, and so the syncer's.
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
        self.end();
    }
}
