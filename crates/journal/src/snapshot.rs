//! Snapshots: the rows, copied while they change, which replace the logs before.
//!
//! ```text
//! begin_snapshot ── rotates: log n starts
//!   parts add their rows ──> snapshot-n.tmp            writes continue in log n
//!   every part has finished ──> log n is synced ──> totals, sync, rename, sync folder ──> older files are removed
//! ```
//!
//! 1. A row of the snapshot has its state at some instant after log `n` started. Every later change of it is in log
//!    `n`; replaying a change that the row already reflects leaves the row in the state of the last change.
//! 2. The snapshot gets its final name only when the log is durable up to every change that a row may reflect.
//!    Otherwise a crash could leave half of a batch. The snapshot records that position, and a start checks that the
//!    logs reach it.
//! 3. A failure here aborts the snapshot, not the journal.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::disk::DiskFile;
use crate::entry::Entry;
use crate::error::Error;
use crate::fault::fault_point;
use crate::folder::{snapshot_path, sweep, temporary};
use crate::format::{
    FILE_HEADER_SIZE, FRAME_HEADER_SIZE, FileHeader, FileKind, FrameHeader, FrameKind, Totals,
};
use crate::journal::LastSnapshot;
use crate::producer::Producer;
use crate::shared::Shared;

/// The approximate size of a snapshot's frames.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of bytes waiting to be written.
const BACKLOG_BYTES_MAX: u64 = 4 << 20;
/// A snapshot is synced in pieces of this size, so that the log's syncs do not wait long for it.
const SYNC_BYTES: u64 = 16 << 20;

pub(crate) struct SnapshotShared {
    queue: Mutex<Queue>,
    /// Notifies the maker of chunks, of the end of a part, or of the end of the journal.
    work: Condvar,
    backlog_bytes: AtomicU64,
    ended: AtomicBool,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Chunk>,
    parts_left: usize,
    /// A part was dropped before it was finished.
    abandoned: bool,
    /// Set by the last part: the sync of the log that must complete first.
    sync_request: u64,
}

#[derive(Default)]
struct Chunk {
    body: Vec<u8>,
    entries: u32,
    rows: u64,
    key_bytes: u64,
    value_bytes: u64,
}

impl SnapshotShared {
    pub(crate) fn new(parts: usize) -> SnapshotShared {
        SnapshotShared {
            queue: Mutex::new(Queue {
                parts_left: parts,
                ..Queue::default()
            }),
            work: Condvar::new(),
            backlog_bytes: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("no holder of the lock panics")
    }
}

/// One core's share of a snapshot: its rows, definitions and positions, each once, with the rows in key order.
/// Dropping it before [`SnapshotPart::finish`] abandons the complete snapshot.
pub struct SnapshotPart {
    journal: Arc<Shared>,
    shared: Arc<SnapshotShared>,
    chunk: Chunk,
    finished: bool,
}

impl SnapshotPart {
    pub(crate) fn new(journal: Arc<Shared>, shared: Arc<SnapshotShared>) -> SnapshotPart {
        SnapshotPart {
            journal,
            shared,
            chunk: Chunk::default(),
            finished: false,
        }
    }

    /// Adds a row ([`Entry::Put`]), a definition, a position, the name of a space or a record of a slot, in its
    /// current state. It never blocks; between chunks of rows the caller checks [`SnapshotPart::has_room`].
    ///
    /// # Errors
    /// [`Error::Limit`]; [`Error::State`] if the snapshot has failed: drop the part then.
    pub fn add(&mut self, entry: Entry<'_>) -> Result<(), Error> {
        entry.check()?;
        if self.shared.ended.load(Ordering::Relaxed) {
            return Err(Error::state("this snapshot was aborted"));
        }
        match entry {
            Entry::Put { key, value, .. } => {
                self.chunk.rows += 1;
                self.chunk.key_bytes += key.len() as u64;
                self.chunk.value_bytes += value.len() as u64;
            }
            Entry::Define { .. }
            | Entry::Position { .. }
            | Entry::Space { .. }
            | Entry::Slot { .. } => {}
            _ => {
                return Err(Error::state(
                    "a snapshot contains only rows, definitions, positions, names of spaces and records of slots",
                ));
            }
        }
        entry.encode(&mut self.chunk.body);
        self.chunk.entries += 1;
        if self.chunk.body.len() >= CHUNK_BYTES {
            self.submit_chunk();
        }
        Ok(())
    }

    /// Returns whether the snapshot's file keeps up. If it does not, the producers' wakers are called as soon as it
    /// does again.
    pub fn has_room(&self) -> bool {
        let full = || {
            self.shared.backlog_bytes.load(Ordering::Acquire) > BACKLOG_BYTES_MAX
                && !self.shared.ended.load(Ordering::Acquire)
        };
        if full() {
            self.journal
                .has_waiting_producers
                .store(true, Ordering::Release);
            return !full();
        }
        true
    }

    /// Marks all rows of this part as added. `producer` must be the one that logs changes to them.
    pub fn finish(mut self, producer: &mut Producer) {
        assert!(
            producer.belongs_to(&self.journal),
            "the producer belongs to the snapshot's journal"
        );
        // The changes that the rows reflect are committed before the sync is requested (invariant 2).
        producer.commit();
        self.submit_chunk();
        self.finished = true;
        let mut queue = self.shared.queue();
        queue.parts_left -= 1;
        if queue.parts_left == 0 {
            queue.sync_request = self.journal.request_sync(&mut self.journal.state());
        }
        self.shared.work.notify_one();
    }

    fn submit_chunk(&mut self) {
        if self.chunk.entries == 0 {
            return;
        }
        let chunk = std::mem::take(&mut self.chunk);
        self.shared
            .backlog_bytes
            .fetch_add(chunk.body.len() as u64, Ordering::AcqRel);
        self.shared.queue().chunks.push_back(chunk);
        self.shared.work.notify_one();
    }
}

impl Drop for SnapshotPart {
    fn drop(&mut self) {
        if !self.finished {
            self.shared.queue().abandoned = true;
            self.shared.work.notify_one();
        }
    }
}

/// Writes a snapshot's file in steps. [`crate::Journal::begin_snapshot`] gives it a thread; a simulation executes the
/// steps itself.
pub struct SnapshotWriter {
    journal: Arc<Shared>,
    shared: Arc<SnapshotShared>,
    /// The request for the log that follows the snapshot, and that log's number once it has started.
    rotation: u64,
    number: u64,
    path: PathBuf,
    file: Option<(Box<dyn DiskFile>, FileHeader)>,
    end: u64,
    synced: u64,
    totals: Totals,
    ended: bool,
}

/// When to call [`SnapshotWriter::step`] again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotStep {
    /// Immediately.
    Again,
    /// When a part has added more.
    WaitForParts,
    /// When the log has started or was synced.
    WaitForLog,
    /// Never: the snapshot is complete or was abandoned.
    Ended,
}

impl SnapshotWriter {
    pub(crate) fn new(
        journal: Arc<Shared>,
        shared: Arc<SnapshotShared>,
        rotation: u64,
    ) -> SnapshotWriter {
        SnapshotWriter {
            path: journal.folder.clone(),
            journal,
            shared,
            rotation,
            number: 0,
            file: None,
            end: 0,
            synced: 0,
            totals: Totals::default(),
            ended: false,
        }
    }

    /// Writes what the parts have added; publishes the snapshot when all parts are finished.
    pub fn step(&mut self) -> SnapshotStep {
        if self.ended {
            return SnapshotStep::Ended;
        }
        let next = self.try_step();
        let result = match next {
            Ok(SnapshotStep::Ended) => LastSnapshot::Made {
                rows: self.totals.rows,
                bytes: self.end,
            },
            Ok(next) => return next,
            Err(error) => {
                if self.file.take().is_some() {
                    // If the removal fails, the next start removes the file.
                    let _ = self.journal.disk.remove(&temporary(&self.path));
                }
                LastSnapshot::Failed(Arc::new(error))
            }
        };
        self.finish(result);
        SnapshotStep::Ended
    }

    fn finish(&mut self, result: LastSnapshot) {
        self.ended = true;
        self.shared.ended.store(true, Ordering::Release);
        self.shared.queue().chunks.clear();
        self.shared.backlog_bytes.store(0, Ordering::Release);
        let journal = &*self.journal;
        if matches!(result, LastSnapshot::Failed(_)) {
            // The next attempt is due when the logs have grown by half.
            let bytes = journal.log_bytes.load(Ordering::Relaxed);
            journal
                .retry_at_bytes
                .store(bytes + bytes / 2, Ordering::Relaxed);
        }
        {
            let mut state = journal.state();
            state.snapshot_running = false;
            state.last_snapshot = Some(result);
            if state.waiting > 0 {
                journal.progress.notify_all();
            }
        }
        journal
            .has_waiting_producers
            .store(false, Ordering::Release);
        journal.wake_all();
    }

    fn try_step(&mut self) -> Result<SnapshotStep, Error> {
        if self.journal.stopped.load(Ordering::Acquire) {
            return Err(self.journal.stopped_error());
        }
        if self.number == 0 {
            let state = self.journal.state();
            match &state.rotation {
                (rotation, Ok(number)) if *rotation == self.rotation => self.number = *number,
                (rotation, Err(why)) if *rotation == self.rotation => {
                    return Err(Error::state(format!("a new log cannot be created: {why}")));
                }
                _ => return Ok(SnapshotStep::WaitForLog),
            }
            self.path = snapshot_path(&self.journal.folder, self.number);
        }
        let (chunks, sync_request) = {
            let mut queue = self.shared.queue();
            if queue.abandoned {
                return Err(Error::state("a core aborted its part of the snapshot"));
            }
            let all_in = queue.parts_left == 0;
            (
                std::mem::take(&mut queue.chunks),
                all_in.then_some(queue.sync_request),
            )
        };
        if self.file.is_none() {
            self.create()?;
        }
        if !chunks.is_empty() {
            for chunk in chunks {
                self.write(FrameKind::Entries, &chunk)?;
                self.shared
                    .backlog_bytes
                    .fetch_sub(chunk.body.len() as u64, Ordering::AcqRel);
            }
            fault_point("journal.snapshot_written");
            self.journal.notify_room();
            if self.end - self.synced >= SYNC_BYTES {
                self.sync()?;
            }
            return Ok(SnapshotStep::Again);
        }
        let Some(sync_request) = sync_request else {
            return Ok(SnapshotStep::WaitForParts);
        };
        {
            let state = self.journal.state();
            if state.syncs_done < sync_request {
                return Ok(SnapshotStep::WaitForLog);
            }
            if state.newest_log != self.number {
                return Err(Error::state(
                    "another log follows this snapshot; this is a bug",
                ));
            }
            self.totals.seen_sequence = state.durable_sequence;
            self.totals.log_first_sequence = state.newest_log_first;
        }
        self.publish()?;
        Ok(SnapshotStep::Ended)
    }

    fn create(&mut self) -> Result<(), Error> {
        let temporary = temporary(&self.path);
        let disk = &self.journal.disk;
        let header = FileHeader {
            kind: FileKind::Snapshot,
            journal: self.journal.journal_id,
            number: self.number,
            first_sequence: 0,
            id: disk
                .new_id()
                .map_err(Error::io("get a random number for", &temporary))?,
        };
        let file = disk
            .create(&temporary)
            .map_err(Error::io("create", &temporary))?;
        let (file, _) = self.file.insert((file, header));
        file.write_at(0, &[&header.encode()])
            .map_err(Error::io("write", &temporary))?;
        self.end = FILE_HEADER_SIZE as u64;
        fault_point("journal.snapshot_begun");
        Ok(())
    }

    fn write(&mut self, kind: FrameKind, chunk: &Chunk) -> Result<(), Error> {
        let (file, header) = self.file.as_mut().expect("the file was created");
        let frame = FrameHeader::new(
            kind,
            self.totals.entries,
            chunk.entries,
            self.synced,
            &chunk.body,
            header.id,
            self.end,
        );
        let head: [u8; FRAME_HEADER_SIZE] = frame.encode(header.id, self.end);
        file.write_at(self.end, &[&head, &chunk.body])
            .map_err(Error::io("write", &self.path))?;
        self.end += frame.frame_size();
        self.totals.entries += u64::from(chunk.entries);
        self.totals.rows += chunk.rows;
        self.totals.key_bytes += chunk.key_bytes;
        self.totals.value_bytes += chunk.value_bytes;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        let (file, _) = self.file.as_mut().expect("the file was created");
        file.sync().map_err(Error::io("sync", &self.path))?;
        self.synced = self.end;
        Ok(())
    }

    fn publish(&mut self) -> Result<(), Error> {
        let end = Chunk {
            body: self.totals.encode().to_vec(),
            ..Chunk::default()
        };
        self.write(FrameKind::End, &end)?;
        self.sync()?;
        fault_point("journal.snapshot_synced");
        let journal = &*self.journal;
        let disk = journal.disk.as_ref();
        disk.rename(&temporary(&self.path), &self.path)
            .map_err(Error::io("rename", &self.path))?;
        fault_point("journal.snapshot_renamed");
        disk.sync_folder(&journal.folder)
            .map_err(Error::io("sync folder", &journal.folder))?;
        let old = journal.rotated_bytes.load(Ordering::Relaxed);
        journal.log_bytes.fetch_sub(old, Ordering::Relaxed);
        journal.logs.store(1, Ordering::Relaxed);
        journal.snapshot_bytes.store(self.end, Ordering::Relaxed);
        journal.retry_at_bytes.store(0, Ordering::Relaxed);
        // The snapshot is valid. Old files that cannot be removed now are removed after the next one.
        let _ = sweep(disk, &journal.folder, Some(self.number), false);
        fault_point("journal.snapshot_swept");
        Ok(())
    }

    /// Executes steps until the snapshot has ended.
    pub(crate) fn run(mut self) {
        /// The interval of checks for the end of the journal.
        const CHECK_INTERVAL: Duration = Duration::from_millis(50);
        loop {
            match self.step() {
                SnapshotStep::Again => {}
                SnapshotStep::Ended => break,
                SnapshotStep::WaitForParts => {
                    let queue = self.shared.queue();
                    if queue.chunks.is_empty() && queue.parts_left > 0 && !queue.abandoned {
                        drop(self.shared.work.wait_timeout(queue, CHECK_INTERVAL));
                    }
                }
                SnapshotStep::WaitForLog => {
                    let request = self.shared.queue().sync_request;
                    let (number, rotation) = (self.number, self.rotation);
                    let mut state = self.journal.state();
                    state.waiting += 1;
                    while state.failure.is_none()
                        && match number {
                            0 => state.rotation.0 != rotation,
                            _ => state.syncs_done < request,
                        }
                    {
                        state = self
                            .journal
                            .progress
                            .wait(state)
                            .expect("no holder of the lock panics");
                    }
                    state.waiting -= 1;
                }
            }
        }
    }
}
