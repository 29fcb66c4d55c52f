//! The current log: appends frames, and tracks which of them are durable.
//!
//! The holder of the log's lock writes, and takes what it writes from the queue, so the log has the order of the
//! queue. The holder is the writer's thread, or a core at the end of its turn (`producer`).
//!
//! 1. An entry is marked as written only after the write of its frame, and of all before it, succeeded. It is marked
//!    as durable only after a sync of its log that started later succeeded, and so did those of all earlier logs.
//! 2. A frame's `synced` is never more than what is durable when it is written.
//! 3. After a failed write the bytes after `end` are undefined. The entries are held in order, and nothing is written
//!    before those bytes are truncated. An entry is therefore in the log once, and never after a missing one.
//! 4. After a failed sync of a log, nothing is written and no sync is tried: the kernel may have dropped data that it
//!    could not write, and then a second sync succeeds without making it durable.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::disk::DiskFile;
use crate::error::{Error, Failure};
use crate::fault::fault_point;
use crate::folder::{log_path, prepare_log, publish_log};
use crate::format::{
    FILE_HEADER_SIZE, FRAME_HEADER_SIZE, FileHeader, FileKind, FrameHeader, FrameKind,
};
use crate::journal::Fsync;
use crate::newest_log::NewestLog;
use crate::recover::end_frame;
use crate::shared::{ProducerMark, QueueItem, Shared, State};

/// A spare buffer larger than this is freed.
const SPARE_BYTES_MAX: usize = 4 << 20;
const SPARES_MAX: usize = 4;

pub(crate) struct Log {
    file: Arc<dyn DiskFile>,
    header: FileHeader,
    /// The offset of the next frame.
    end: u64,
    /// The number of durable bytes of the file.
    synced: u64,
    next_sequence: u64,
    /// The time since which there are entries that no sync covers; `None` if a started sync covers all.
    unsynced_since: Option<Duration>,
    /// Written, but neither durable nor covered by a started sync.
    unsynced: Vec<(Arc<ProducerMark>, u64)>,
    /// Taken from the queue and not processed yet.
    pending: VecDeque<QueueItem>,
    /// A write failed (invariant 3).
    torn: bool,
    /// Set when this log is sealed and the next one does not have its final name yet.
    next: Option<(Box<dyn DiskFile>, FileHeader)>,
}

/// An error, and whether the log can continue.
pub(crate) enum LogError {
    /// Everything that was marked as written is intact; retry the operation.
    Retryable(Error),
    /// A sync failed (invariant 4).
    Permanent(Error),
}

/// A sync that runs concurrently with writes.
pub(crate) struct SyncJob {
    file: Arc<dyn DiskFile>,
    number: u64,
    end: u64,
    next_sequence: u64,
    marks: Vec<(Arc<ProducerMark>, u64)>,
    /// The newest request that it completes, or 0.
    request: u64,
}

impl Log {
    pub fn new(file: Box<dyn DiskFile>, header: FileHeader) -> Log {
        Log {
            file: file.into(),
            header,
            end: FILE_HEADER_SIZE as u64,
            synced: FILE_HEADER_SIZE as u64,
            next_sequence: header.first_sequence,
            unsynced_since: None,
            unsynced: Vec::new(),
            pending: VecDeque::new(),
            torn: false,
            next: None,
        }
    }

    pub fn unsynced_since(&self) -> Option<Duration> {
        self.unsynced_since
    }

    pub fn is_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// Takes items from the queue: all, or only the groups at its front. Returns whether this starts the time until
    /// the next sync.
    pub fn take(&mut self, state: &mut State, all: bool) -> bool {
        let since = state.queue_since.take();
        let begins = self.unsynced_since.is_none() && since.is_some();
        self.unsynced_since = self.unsynced_since.or(since);
        if all {
            self.pending.append(&mut state.queue);
            return begins;
        }
        while let Some(QueueItem::Group(_)) = state.queue.front() {
            self.pending.extend(state.queue.pop_front());
        }
        begins
    }

    /// Processes the held items in order, except for sync requests, and returns the number of the newest of these.
    ///
    /// # Errors
    /// Items that could not be processed are still held.
    pub fn advance(
        &mut self,
        shared: &Shared,
        own: Option<&Arc<ProducerMark>>,
    ) -> Result<u64, LogError> {
        let mut request = 0;
        while let Some(first) = self.pending.front() {
            match *first {
                QueueItem::Group(_) => {
                    self.write(shared, own).map_err(LogError::Retryable)?;
                }
                QueueItem::Sync(number) => {
                    request = number;
                    self.pending.pop_front();
                }
                QueueItem::Rotate(number) => {
                    let rotated = self.rotate(shared)?;
                    self.pending.pop_front();
                    let mut state = shared.state();
                    state.rotation = (number, rotated.map_err(Arc::new));
                    if state.waiting > 0 {
                        shared.progress.notify_all();
                    }
                }
            }
        }
        Ok(request)
    }

    /// Writes the groups at the front as frames, in one operation.
    fn write(&mut self, shared: &Shared, own: Option<&Arc<ProducerMark>>) -> Result<(), Error> {
        if self.torn {
            shared
                .run_write(|| self.file.truncate(self.end))
                .map_err(|error| self.io_error(shared, "truncate", error))?;
            self.torn = false;
        }
        let groups = || {
            self.pending.iter().map_while(|item| match item {
                QueueItem::Group(group) => Some(group),
                _ => None,
            })
        };
        let mut headers: Vec<[u8; FRAME_HEADER_SIZE]> = Vec::with_capacity(self.pending.len());
        let (mut at, mut sequence, mut bodies) = (self.end, self.next_sequence, 0);
        for group in groups() {
            let frame = FrameHeader::new(
                FrameKind::Entries,
                sequence,
                group.entries,
                self.synced,
                &group.body,
                self.header.id,
                at,
            );
            headers.push(frame.encode(self.header.id, at));
            at += frame.frame_size();
            sequence += u64::from(group.entries);
            bodies += group.body.len() as u64;
        }
        for (mark, last) in groups().flat_map(|group| &group.marks) {
            mark.attempted.store(*last, Ordering::Release);
        }
        let parts: Vec<&[u8]> = headers
            .iter()
            .zip(groups())
            .flat_map(|(header, group)| [&header[..], &group.body[..]])
            .collect();
        let count = headers.len();
        if let Err(error) = shared.run_write(|| self.file.write_at(self.end, &parts)) {
            self.torn = true;
            return Err(self.io_error(shared, "write", error));
        }
        fault_point("journal.written");
        shared.log_bytes.fetch_add(at - self.end, Ordering::Relaxed);
        self.end = at;
        self.next_sequence = sequence;
        self.mark_written(shared, count, own);
        // A concurrent stop may have set it to 0.
        let _ = shared
            .backlog_bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |bytes| {
                Some(bytes.saturating_sub(bodies))
            });
        shared.notify_room();
        Ok(())
    }

    /// Marks the first `count` groups as written.
    fn mark_written(&mut self, shared: &Shared, count: usize, own: Option<&Arc<ProducerMark>>) {
        let mut spare = Vec::new();
        let mut called: Vec<Arc<ProducerMark>> = Vec::new();
        for item in self.pending.drain(..count) {
            let QueueItem::Group(group) = item else {
                continue;
            };
            for (mark, last) in group.marks {
                mark.written.store(last, Ordering::Release);
                let is_same = |other: &Arc<ProducerMark>| Arc::ptr_eq(other, &mark);
                if shared.options.fsync != Fsync::Always
                    && !own.is_some_and(is_same)
                    && !called.iter().any(is_same)
                {
                    called.push(mark.clone());
                }
                match self.unsynced.iter_mut().find(|(other, _)| is_same(other)) {
                    Some((_, unsynced)) => *unsynced = last,
                    None => self.unsynced.push((mark, last)),
                }
            }
            if group.body.capacity() <= SPARE_BYTES_MAX && spare.len() < SPARES_MAX {
                spare.push(group.body);
            }
        }
        spare.iter_mut().for_each(Vec::clear);
        let mut state = shared.state();
        while state.spare.len() < SPARES_MAX
            && let Some(body) = spare.pop()
        {
            state.spare.push(body);
        }
        drop(state);
        for mark in called {
            (mark.waker)();
        }
    }

    /// Starts to make everything written durable. `request` is the newest sync request that this completes, or 0.
    pub fn begin_sync(&mut self, request: u64) -> SyncJob {
        self.unsynced_since = None;
        SyncJob {
            file: self.file.clone(),
            number: self.header.number,
            end: self.end,
            next_sequence: self.next_sequence,
            marks: std::mem::take(&mut self.unsynced),
            request,
        }
    }

    /// Marks the result of a sync as durable.
    pub fn end_sync(&mut self, shared: &Shared, job: SyncJob) {
        if job.number == self.header.number {
            self.synced = self.synced.max(job.end);
        }
        for (mark, last) in &job.marks {
            mark.durable.fetch_max(*last, Ordering::AcqRel);
        }
        {
            let mut state = shared.state();
            state.durable_sequence = state.durable_sequence.max(job.next_sequence - 1);
            state.syncs_done = state.syncs_done.max(job.request);
            shared.set_unsynced_since(self.unsynced_since.or(state.queue_since));
            if state.waiting > 0 {
                shared.progress.notify_all();
            }
        }
        if shared.options.fsync == Fsync::Always {
            for (mark, _) in &job.marks {
                (mark.waker)();
            }
        }
        shared.notify_room();
    }

    /// Makes everything written durable, and marks it.
    pub fn sync(&mut self, shared: &Shared, request: u64) -> Result<(), LogError> {
        let job = self.begin_sync(request);
        if self.synced < self.end {
            shared
                .run_write(|| job.run(shared))
                .map_err(LogError::Permanent)?;
        }
        self.end_sync(shared, job);
        Ok(())
    }

    /// Seals this log, which makes everything in it durable.
    pub fn seal(&mut self, shared: &Shared) -> Result<(), LogError> {
        self.sync(shared, 0)?;
        if self.torn {
            let cut = shared.run_write(|| self.file.truncate(self.end));
            cut.map_err(|error| LogError::Retryable(self.io_error(shared, "truncate", error)))?;
            self.torn = false;
        }
        let end = end_frame(&self.header, self.next_sequence, self.end);
        if let Err(error) = shared.run_write(|| self.file.write_at(self.end, &[&end])) {
            self.torn = true;
            return Err(LogError::Retryable(self.io_error(shared, "write", error)));
        }
        shared
            .run_write(|| self.file.sync())
            .map_err(|error| LogError::Permanent(self.io_error(shared, "sync", error)))?;
        self.end += end.len() as u64;
        self.synced = self.end;
        shared
            .log_bytes
            .fetch_add(end.len() as u64, Ordering::Relaxed);
        fault_point("journal.sealed");
        Ok(())
    }

    /// Seals the log permanently, and records that the journal was closed in order.
    pub fn close(&mut self, shared: &Shared) -> Result<(), LogError> {
        self.seal(shared)?;
        let record = NewestLog::new(&self.header, Some(self.end));
        shared
            .run_write(|| record.write(shared.disk.as_ref(), &shared.folder))
            .map_err(LogError::Permanent)
    }

    /// Seals this log and starts the next one; returns its number. `Ok(Err(_))` means that this is impossible and
    /// that this log continues.
    fn rotate(&mut self, shared: &Shared) -> Result<Result<u64, Error>, LogError> {
        if self.next.is_none() {
            // Prepares the next log before this one is sealed: without a descriptor or disk space for it, this log
            // continues.
            let disk = shared.disk.as_ref();
            let id = disk.new_id();
            let prepared = id
                .map_err(Error::io("get a random number for", &shared.folder))
                .and_then(|id| {
                    let header = FileHeader {
                        kind: FileKind::Log,
                        journal: self.header.journal,
                        number: self.header.number + 1,
                        first_sequence: self.next_sequence,
                        id,
                    };
                    let prepare = || prepare_log(disk, &shared.folder, &header);
                    Ok((shared.run_write(prepare)?, header))
                });
            let next = match prepared {
                Ok(next) => next,
                Err(error) => return Ok(Err(error)),
            };
            match self.seal(shared) {
                Ok(()) => self.next = Some(next),
                Err(LogError::Retryable(error)) => return Ok(Err(error)),
                Err(lasting) => return Err(lasting),
            }
        }
        // From here on the rotation must complete: nothing may follow the end of a log.
        let number = self.header.number + 1;
        let place = || publish_log(shared.disk.as_ref(), &shared.folder, number);
        shared.run_write(place).map_err(LogError::Retryable)?;
        let Some((file, header)) = self.next.take() else {
            return Ok(Ok(number));
        };
        (self.file, self.header) = (file.into(), header);
        // Best effort: without the record the loss of this log might go unnoticed; nothing else depends on it.
        let record = NewestLog::new(&header, None);
        let _ = shared.run_write(|| record.write(shared.disk.as_ref(), &shared.folder));
        fault_point("journal.rotated");
        self.end = FILE_HEADER_SIZE as u64;
        self.synced = self.end;
        shared
            .rotated_bytes
            .store(shared.log_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        shared.logs.fetch_add(1, Ordering::Relaxed);
        let mut state = shared.state();
        state.newest_log = number;
        state.newest_log_first = self.next_sequence;
        Ok(Ok(number))
    }

    fn io_error(&self, shared: &Shared, action: &'static str, error: std::io::Error) -> Error {
        Error::io(action, &log_path(&shared.folder, self.header.number))(error)
    }
}

impl SyncJob {
    /// # Errors
    /// [`Error::Io`]: the rest of this log is no longer trustworthy.
    pub fn run(&self, shared: &Shared) -> Result<(), Error> {
        let path = log_path(&shared.folder, self.number);
        self.file.sync().map_err(Error::io("sync", &path))?;
        fault_point("journal.synced");
        Ok(())
    }
}

/// Maximum number of bytes that a core writes itself; it leaves more to the writer's thread.
pub(crate) const OWN_BYTES_MAX: u64 = 256 << 10;
/// A write by a core that takes longer than this...
const SLOW_WRITE: Duration = Duration::from_millis(2);
/// ... makes all cores leave writes to the writer's thread for this time.
const OFFLOAD_FOR: Duration = Duration::from_millis(100);

impl Shared {
    /// Writes the front of the queue in the core's thread, if no other thread is writing and the disk was fast
    /// recently; else wakes the writer's thread. The waker of `own` need not be called.
    pub fn try_write_inline(&self, own: &Arc<ProducerMark>) {
        let Ok(mut log) = self.log.try_lock() else {
            return self.call_writer(&mut self.state());
        };
        if self.is_write_failing.load(Ordering::Acquire) {
            // The writer retries.
            return;
        }
        let started = self.disk.now();
        let mut state = self.state();
        let begins = log.take(&mut state, false);
        let mut calls = begins && self.options.fsync == Fsync::EverySecond;
        drop(state);
        match log.advance(self, Some(own)) {
            Ok(_) => {}
            Err(LogError::Retryable(error)) => {
                self.record_write_failure(error);
                calls = true;
            }
            Err(LogError::Permanent(error)) => self.stop(Failure::Failed(error)),
        }
        drop(log);
        let ended = self.disk.now();
        if ended - started > SLOW_WRITE {
            self.offload_until
                .store((ended + OFFLOAD_FOR).as_nanos() as u64, Ordering::Relaxed);
        }
        if calls {
            self.call_writer(&mut self.state());
        }
    }
}
