//! Appending: entries go into a buffer of the core, and the buffer to the writer.
//!
//! 1. `append` accesses only the producer's memory. `commit` takes the journal's lock once for everything that was
//!    appended since the last commit.
//! 2. The entries of one call or one batch are in one frame: after a crash all of them are present, or none.
//! 3. The entries of one producer are in the log in the order of their appends. Entries of different producers are
//!    ordered only by commits.
//! 4. The caller must follow two rules, on which exact snapshots depend. A change must be in the rows before `commit`
//!    passes its entry on. A removed range must contain only rows of this producer, and a producer logs only what
//!    *it* removed: replaying its range must not remove newer rows of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::entry::Entry;
use crate::error::Error;
use crate::journal::{Fsync, LOSS_MAX};
use crate::log::OWN_BYTES_MAX;
use crate::shared::{CommitGroup, ProducerMark, QueueItem, Shared, SyncState};

/// Identifies an append; increases with each entry of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// The state of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It may be acknowledged: under [`Fsync::Always`] it is durable, else it is written to the operating system and
    /// survives the process.
    Done,
    /// It was not committed, or its state is still open; the waker will be called.
    Pending,
    /// The journal stopped while it was being written: it may survive a restart or not.
    Unknown,
    /// The journal stopped before it was tried: it will not survive a restart.
    NotDone,
}

/// Maximum total size of the entries of one batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 2 << 30;

/// A buffer of this size is committed automatically.
const AUTO_COMMIT_BYTES: usize = 256 << 10;
/// Buffers are combined into one frame up to this size.
const FRAME_BYTES: usize = 1 << 20;

/// One core's access to the journal. Dropping it discards uncommitted entries.
pub struct Producer {
    shared: Arc<Shared>,
    mark: Arc<ProducerMark>,
    body: Vec<u8>,
    entries: u32,
    last: u64,
}

impl Producer {
    pub(crate) fn new(shared: Arc<Shared>, waker: Box<dyn Fn() + Send + Sync>) -> Producer {
        let mark = Arc::new(ProducerMark {
            durable: AtomicU64::new(0),
            written: AtomicU64::new(0),
            attempted: AtomicU64::new(0),
            waker,
        });
        shared.state().producers.push(mark.clone());
        Producer {
            shared,
            mark,
            body: Vec::new(),
            entries: 0,
            last: 0,
        }
    }

    /// Appends one entry.
    ///
    /// # Errors
    /// [`Error::Limit`]: the entry is not done, others may be. [`Error::Stopped`]: neither this nor any later entry
    /// is done.
    #[inline]
    pub fn append(&mut self, entry: Entry<'_>) -> Result<Ticket, Error> {
        entry.check()?;
        if self.shared.stopped.load(Ordering::Relaxed) {
            return Err(self.shared.stopped_error());
        }
        entry.encode(&mut self.body);
        self.entries += 1;
        self.last += 1;
        if self.body.len() >= AUTO_COMMIT_BYTES {
            self.commit();
        }
        Ok(Ticket(self.last))
    }

    /// Appends entries that are replayed atomically.
    ///
    /// # Errors
    /// Like [`Producer::append`]; none of them is done then.
    pub fn append_all(&mut self, entries: &[Entry<'_>]) -> Result<Ticket, Error> {
        let mut batch = self.batch();
        for entry in entries {
            batch.add(*entry)?;
        }
        batch.end()
    }

    /// Returns the number for a batch that several producers write concurrently with [`Batch::add_part`]. After all
    /// have committed their parts, one of them appends [`Entry::Commit`].
    pub fn new_shared_batch(&self) -> u64 {
        self.shared.batches.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a batch, whose entries are replayed atomically. Dropping it without [`Batch::end`] discards them.
    pub fn batch(&mut self) -> Batch<'_> {
        let (size, entries) = (self.body.len(), self.entries);
        Batch {
            producer: self,
            size,
            entries,
            ended: false,
        }
    }

    /// Commits everything appended so far, to be written. Call it at the end of every turn of the core's loop. Under
    /// [`Fsync::EverySecond`] and [`Fsync::No`] it writes small amounts itself, to the operating system, while that
    /// is fast; it never waits for the disk.
    pub fn commit(&mut self) {
        if self.entries == 0 {
            return;
        }
        let shared = &*self.shared;
        let size = self.body.len() as u64;
        let now = shared.disk.now();
        let mut state = shared.state();
        if state.failure.is_some() || state.closing {
            // Not done: `outcome` reports it once the journal has stopped.
            self.body.clear();
            self.entries = 0;
            return;
        }
        // Only everysec bounds the age of data that is not durable.
        if shared.options.fsync == Fsync::EverySecond && state.queue_since.is_none() {
            state.queue_since = Some(now);
            if shared.unsynced_since.load(Ordering::Relaxed) == 0 {
                shared.set_unsynced_since(Some(now));
            }
        }
        match state.queue.back_mut() {
            Some(QueueItem::Group(group)) if group.body.len() + self.body.len() <= FRAME_BYTES => {
                group.body.extend_from_slice(&self.body);
                group.entries += self.entries;
                match group
                    .marks
                    .iter_mut()
                    .find(|(mark, _)| Arc::ptr_eq(mark, &self.mark))
                {
                    Some((_, last)) => *last = self.last,
                    None => group.marks.push((self.mark.clone(), self.last)),
                }
                self.body.clear();
            }
            _ => {
                let fresh = state.spare.pop().unwrap_or_default();
                let body = std::mem::replace(&mut self.body, fresh);
                state.queue.push_back(QueueItem::Group(CommitGroup {
                    body,
                    entries: self.entries,
                    marks: vec![(self.mark.clone(), self.last)],
                }));
            }
        }
        self.entries = 0;
        let backlog = shared.backlog_bytes.fetch_add(size, Ordering::Relaxed) + size;
        if state.write_failure.is_some() {
            // The writer retries on its own.
            return;
        }
        let is_left = shared.options.fsync == Fsync::Always
            || backlog > OWN_BYTES_MAX
            || !matches!(state.sync, SyncState::None)
            || now.as_nanos() < u128::from(shared.offload_until.load(Ordering::Relaxed));
        if is_left {
            return shared.call_writer(&mut state);
        }
        drop(state);
        shared.try_write_inline(&self.mark);
    }

    /// Returns the state of the append that returned `ticket`.
    pub fn outcome(&self, ticket: Ticket) -> AppendOutcome {
        let stopped = self.shared.stopped.load(Ordering::Acquire);
        if self.mark.durable.load(Ordering::Acquire) >= ticket.0 {
            AppendOutcome::Done
        } else if !stopped {
            match self.shared.options.fsync {
                Fsync::EverySecond | Fsync::No
                    if self.mark.written.load(Ordering::Acquire) >= ticket.0 =>
                {
                    AppendOutcome::Done
                }
                _ => AppendOutcome::Pending,
            }
        } else if self.mark.attempted.load(Ordering::Acquire) >= ticket.0 {
            AppendOutcome::Unknown
        } else {
            AppendOutcome::NotDone
        }
    }

    /// Returns the last ticket up to which everything is durable.
    pub fn durable_ticket(&self) -> Ticket {
        Ticket(self.mark.durable.load(Ordering::Acquire))
    }

    /// Returns the ticket of the last append.
    pub fn last_ticket(&self) -> Ticket {
        Ticket(self.last)
    }

    /// Returns whether the disk keeps up. If it does not, the core must apply back-pressure: accept no more writes
    /// until the waker is called and this returns true again. That bounds the memory of pending writes and, under
    /// [`Fsync::EverySecond`], limits the loss in a crash to one second.
    #[inline]
    pub fn has_room(&self) -> bool {
        let shared = &*self.shared;
        if self.is_backlogged() {
            shared.has_waiting_producers.store(true, Ordering::Release);
            // The pressure may have ended just before the store, while no producer waited for a notification.
            return !self.is_backlogged();
        }
        true
    }

    fn is_backlogged(&self) -> bool {
        let shared = &*self.shared;
        if shared.stopped.load(Ordering::Relaxed) || shared.is_write_failing.load(Ordering::Relaxed)
        {
            // There is no need to wait before reporting that.
            return false;
        }
        if shared.backlog_bytes.load(Ordering::Acquire) > shared.options.backlog_bytes_max {
            return true;
        }
        let since = shared.unsynced_since.load(Ordering::Relaxed);
        shared.options.fsync == Fsync::EverySecond
            && since != 0
            && shared.disk.now() >= Duration::from_nanos(since - 1) + LOSS_MAX
    }

    /// Commits, and blocks until `ticket` is durable, whatever the policy. For tools and tests: a core must not
    /// block.
    ///
    /// # Errors
    /// [`Error::Stopped`]; [`Producer::outcome`] then returns whether it is unknown or not done.
    pub fn wait_durable(&mut self, ticket: Ticket) -> Result<(), Error> {
        self.commit();
        let shared = &*self.shared;
        let mut state = shared.state();
        if shared.options.fsync != Fsync::Always {
            shared.request_sync(&mut state);
        }
        state.waiting += 1;
        while self.mark.durable.load(Ordering::Acquire) < ticket.0 && state.failure.is_none() {
            state = shared
                .progress
                .wait(state)
                .expect("no holder of the lock panics");
        }
        state.waiting -= 1;
        drop(state);
        if self.mark.durable.load(Ordering::Acquire) >= ticket.0 {
            return Ok(());
        }
        Err(shared.stopped_error())
    }

    pub(crate) fn belongs_to(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let mark = &self.mark;
        self.shared
            .state()
            .producers
            .retain(|other| !Arc::ptr_eq(other, mark));
    }
}

/// Entries that are replayed atomically. See [`Producer::batch`].
pub struct Batch<'a> {
    producer: &'a mut Producer,
    /// The producer's buffer before the batch.
    size: usize,
    entries: u32,
    ended: bool,
}

impl Batch<'_> {
    /// # Errors
    /// [`Error::Limit`]; the batch is then unchanged.
    pub fn add(&mut self, entry: Entry<'_>) -> Result<(), Error> {
        entry.check()?;
        self.push(entry)
    }

    /// Adds a part of a batch of several producers: it takes effect only with an [`Entry::Commit`].
    ///
    /// # Errors
    /// Like [`Batch::add`].
    pub fn add_part(&mut self, batch: u64, entry: Entry<'_>) -> Result<(), Error> {
        entry.check()?;
        let mut change = Vec::new();
        entry.encode(&mut change);
        let change = &change;
        self.push(Entry::Part { batch, change })
    }

    fn push(&mut self, entry: Entry<'_>) -> Result<(), Error> {
        let before = self.producer.body.len();
        entry.encode(&mut self.producer.body);
        if self.producer.body.len() - self.size > BATCH_BYTES_MAX {
            self.producer.body.truncate(before);
            return Err(Error::Limit {
                what: "batch",
                detail: format!("its entries take more than {BATCH_BYTES_MAX} bytes together"),
            });
        }
        self.producer.entries += 1;
        Ok(())
    }

    /// Appends the batch. An empty batch has the ticket of the previous append.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn end(mut self) -> Result<Ticket, Error> {
        if self.producer.shared.stopped.load(Ordering::Relaxed) {
            return Err(self.producer.shared.stopped_error());
        }
        self.ended = true;
        let producer = &mut *self.producer;
        producer.last += u64::from(producer.entries - self.entries);
        let ticket = Ticket(producer.last);
        if producer.body.len() >= AUTO_COMMIT_BYTES {
            producer.commit();
        }
        Ok(ticket)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.producer.body.truncate(self.size);
            self.producer.entries = self.entries;
        }
    }
}
