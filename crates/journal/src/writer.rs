//! The writer: takes what was handed over, writes it once, syncs it once, and says so.
//!
//! ```text
//!            commit                step                          sync
//! producer ─────────> queue ─────────────────> written (frames) ──────> durable ──> wakers
//!                       │ Rotate: sync, end frame, sync, next log
//!                       │ any error: stopped for good, nothing is tried again
//! ```
//!
//! 1. An entry is called durable only after a sync of its log returned well, and so did that of
//!    every log before.
//! 2. A frame's `synced` is never more than what is durable when it is written.
//! 3. After an error no byte is written and no sync tried: the kernel may have dropped what it
//!    could not write, and then a second sync succeeds and means nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::disk::DiskFile;
use crate::error::{Error, Failure};
use crate::fault::fault_point;
use crate::folder::{create_log, log_path};
use crate::format::{FRAME_HEADER_SIZE, FileHeader, FileKind, FrameHeader, FrameKind};
use crate::journal::Fsync;
use crate::recover::end_frame;
use crate::shared::{Group, Item, ProducerMark, Rest, Shared};

/// How long what is not durable may wait for its sync under [`Fsync::EverySecond`]: half of what a
/// crash may lose, so that the sync has the other half.
const SYNC_AFTER: Duration = Duration::from_millis(500);
/// How long entries gather before they are written, where nobody waits for their sync.
const GATHER: Duration = Duration::from_millis(2);
/// A spare buffer that is larger than this is given back.
const SPARE_BYTES_MAX: usize = 4 << 20;

/// Does the journal's I/O in steps. [`crate::Journal::open`] gives it a thread; a simulation takes
/// the steps itself.
pub struct Writer {
    shared: Arc<Shared>,
    file: Box<dyn DiskFile>,
    header: FileHeader,
    /// Where the next frame goes.
    end: u64,
    /// How many bytes of the file are durable.
    synced: u64,
    next_sequence: u64,
    unsynced_since: Option<Duration>,
    /// Written and not durable.
    unsynced: Vec<(Arc<ProducerMark>, u64)>,
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
    pub(crate) fn new(shared: Arc<Shared>, file: Box<dyn DiskFile>, header: FileHeader) -> Writer {
        Writer {
            shared,
            file,
            header,
            end: crate::format::FILE_HEADER_SIZE as u64,
            synced: crate::format::FILE_HEADER_SIZE as u64,
            next_sequence: header.first_sequence,
            unsynced_since: None,
            unsynced: Vec::new(),
            stopped: false,
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
        let (items, closing) = {
            let mut state = self.shared.state();
            let since = state.queue_since.take();
            self.unsynced_since = self.unsynced_since.or(since);
            (std::mem::take(&mut state.queue), state.closing)
        };
        let mut groups = Vec::new();
        let mut sync_request = 0;
        for item in items {
            match item {
                Item::Group(group) => groups.push(group),
                Item::Sync(number) => sync_request = number,
                Item::Rotate => {
                    self.write(&mut groups)?;
                    self.rotate()?;
                }
            }
        }
        self.write(&mut groups)?;
        let due = match self.shared.options.fsync {
            Fsync::Always => !self.unsynced.is_empty(),
            Fsync::EverySecond => self
                .unsynced_since
                .is_some_and(|since| self.shared.disk.now() >= since + SYNC_AFTER),
            Fsync::No => false,
        };
        if due || sync_request > 0 || closing {
            self.sync(sync_request)?;
        }
        if closing {
            self.seal()?;
            self.shared.stop(Failure::Closed);
            return Ok(Next::Stop);
        }
        Ok(match (self.shared.options.fsync, self.unsynced_since) {
            (Fsync::EverySecond, Some(since)) => Next::WaitUntil(since + SYNC_AFTER),
            _ => Next::Wait,
        })
    }

    /// Writes groups as frames, all at once.
    fn write(&mut self, groups: &mut Vec<Group>) -> Result<(), Error> {
        if groups.is_empty() {
            return Ok(());
        }
        let mut headers: Vec<[u8; FRAME_HEADER_SIZE]> = Vec::with_capacity(groups.len());
        let (mut at, mut sequence, mut bodies) = (self.end, self.next_sequence, 0);
        for group in groups.iter() {
            let frame = FrameHeader::of(
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
        for (mark, last) in groups.iter().flat_map(|group| &group.marks) {
            mark.attempted.store(*last, Ordering::Release);
        }
        let parts: Vec<&[u8]> = headers
            .iter()
            .zip(groups.iter())
            .flat_map(|(header, group)| [&header[..], &group.body[..]])
            .collect();
        self.file
            .write_at(self.end, &parts)
            .map_err(|error| self.failed("write", error))?;
        fault_point("journal.written");
        self.shared
            .log_bytes
            .fetch_add(at - self.end, Ordering::Relaxed);
        self.end = at;
        self.next_sequence = sequence;

        let mut spare = Vec::new();
        for group in groups.drain(..) {
            for (mark, last) in group.marks {
                match self
                    .unsynced
                    .iter_mut()
                    .find(|(other, _)| Arc::ptr_eq(other, &mark))
                {
                    Some((_, unsynced)) => *unsynced = last,
                    None => self.unsynced.push((mark, last)),
                }
            }
            spare.push(group.body);
        }
        self.keep_spare(spare);
        self.shared
            .backlog_bytes
            .fetch_sub(bodies, Ordering::AcqRel);
        self.shared.room_again();
        Ok(())
    }

    fn keep_spare(&self, bodies: Vec<Vec<u8>>) {
        const SPARES_MAX: usize = 4;
        let mut kept: Vec<Vec<u8>> = bodies
            .into_iter()
            .filter(|body| body.capacity() <= SPARE_BYTES_MAX)
            .take(SPARES_MAX)
            .collect();
        kept.iter_mut().for_each(Vec::clear);
        let mut state = self.shared.state();
        while state.spare.len() < SPARES_MAX
            && let Some(body) = kept.pop()
        {
            state.spare.push(body);
        }
    }

    /// Makes everything written durable, and says so. `request` is the newest sync request that
    /// this answers, or 0.
    fn sync(&mut self, request: u64) -> Result<(), Error> {
        if self.synced < self.end {
            self.file
                .sync()
                .map_err(|error| self.failed("sync", error))?;
            fault_point("journal.synced");
            self.synced = self.end;
        }
        self.unsynced_since = None;
        let durable = std::mem::take(&mut self.unsynced);
        for (mark, last) in &durable {
            mark.durable.store(*last, Ordering::Release);
        }
        {
            let mut state = self.shared.state();
            state.durable_sequence = self.next_sequence - 1;
            state.syncs_done = state.syncs_done.max(request);
            self.shared.set_unsynced_since(state.queue_since);
            if state.waiting > 0 {
                self.shared.progress.notify_all();
            }
        }
        if self.shared.options.fsync == Fsync::Always {
            for (mark, _) in &durable {
                (mark.waker)();
            }
        }
        self.shared.room_again();
        Ok(())
    }

    /// Ends this log; everything in it is durable then.
    fn seal(&mut self) -> Result<(), Error> {
        self.sync(0)?;
        let end = end_frame(&self.header, self.next_sequence, self.end);
        self.file
            .write_at(self.end, &[&end])
            .map_err(|error| self.failed("write", error))?;
        self.file
            .sync()
            .map_err(|error| self.failed("sync", error))?;
        self.end += end.len() as u64;
        self.synced = self.end;
        self.shared
            .log_bytes
            .fetch_add(end.len() as u64, Ordering::Relaxed);
        fault_point("journal.sealed");
        Ok(())
    }

    fn rotate(&mut self) -> Result<(), Error> {
        self.seal()?;
        let shared = self.shared.clone();
        let id = shared
            .disk
            .new_id()
            .map_err(Error::io("get a random number for", &shared.folder))?;
        self.header = FileHeader {
            kind: FileKind::Log,
            journal: self.header.journal,
            number: self.header.number + 1,
            first_sequence: self.next_sequence,
            id,
        };
        self.file = create_log(shared.disk.as_ref(), &shared.folder, &self.header)?;
        fault_point("journal.rotated");
        self.end = crate::format::FILE_HEADER_SIZE as u64;
        self.synced = self.end;
        shared
            .rotated_bytes
            .store(shared.log_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        shared.logs.fetch_add(1, Ordering::Relaxed);
        let mut state = shared.state();
        state.newest_log = self.header.number;
        state.newest_log_first = self.next_sequence;
        Ok(())
    }

    fn failed(&self, action: &'static str, error: std::io::Error) -> Error {
        Error::io(action, &log_path(&self.shared.folder, self.header.number))(error)
    }

    /// Steps until the journal stops.
    pub(crate) fn run(mut self) {
        /// A writer that panics must not leave others waiting.
        struct StopOnPanic(Arc<Shared>);
        impl Drop for StopOnPanic {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.stop(Failure::Failed(Error::state(
                        "the journal's writer panicked; this is a bug",
                    )));
                }
            }
        }
        let guard = StopOnPanic(self.shared.clone());
        loop {
            let before = self.next_sequence;
            let next = self.step();
            let wrote = self.next_sequence != before;
            match next {
                Next::Stop => break,
                Next::Wait => self.wait(None, wrote),
                Next::WaitUntil(time) => self.wait(Some(time), wrote),
            }
        }
        drop(guard);
    }

    fn wait(&self, until: Option<Duration>, wrote: bool) {
        let shared = &*self.shared;
        let gather = wrote && shared.options.fsync != Fsync::Always;
        let mut state = shared.state();
        if state.closing || state.failure.is_some() {
            return;
        }
        let requested = |item: &Item| !matches!(item, Item::Group(_));
        if gather && !state.queue.iter().any(requested) {
            state.rest = Rest::Gathering;
            state = shared
                .work
                .wait_timeout(state, GATHER)
                .expect("no holder of the lock panics")
                .0;
        }
        while state.queue.is_empty() && !state.closing && state.failure.is_none() {
            state.rest = Rest::Asleep;
            state = match until {
                None => shared
                    .work
                    .wait(state)
                    .expect("no holder of the lock panics"),
                Some(until) => {
                    let now = shared.disk.now();
                    if now >= until {
                        break;
                    }
                    shared
                        .work
                        .wait_timeout(state, until - now)
                        .expect("no holder of the lock panics")
                        .0
                }
            };
        }
        state.rest = Rest::Working;
    }
}
