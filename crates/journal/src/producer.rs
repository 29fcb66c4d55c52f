//! Appending: entries into a buffer of the core's own, and the buffer to the writer.
//!
//! 1. `append` touches the producer's memory only. `commit` takes the journal's lock once for all
//!    that was appended since the last one.
//! 2. The entries of one call or one batch are in one frame: after a crash there are all or none.
//! 3. The entries of one producer are in the log in the order of their appends. Between producers
//!    there is no order but that of their commits.
//! 4. Rules for the caller, on which exact snapshots rest: a change is in the rows before `commit`
//!    hands its entry over; and a range that is removed holds rows of this producer alone (a
//!    producer logs what *it* removed: replaying its range must not hit newer rows of another).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::entry::Entry;
use crate::error::Error;
use crate::journal::{Fsync, LOSS_MAX};
use crate::log::OWN_BYTES_MAX;
use crate::shared::{Group, Item, ProducerMark, Shared, SyncState};

/// Says which append is meant; grows with each entry of one producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(pub u64);

/// What has become of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendOutcome {
    /// It may be acknowledged: under [`Fsync::Always`] it is durable, else the system has it, and the process may die.
    Done,
    /// It was not committed, or the waker will be called when there is more to say.
    Pending,
    /// The journal stopped while it was on its way to disk: a restart may find it or not.
    Unknown,
    /// The journal stopped before it was tried: no restart will find it.
    NotDone,
}

/// The most bytes that the entries of one batch may take together.
pub const BATCH_BYTES_MAX: usize = 2 << 30;

/// A buffer of this size is handed over without being asked.
const HAND_OVER_BYTES: usize = 256 << 10;
/// Buffers are joined to one frame up to this size.
const FRAME_BYTES: usize = 1 << 20;

/// One core's way into the journal. Entries that were not committed are gone when it is dropped.
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
    /// [`Error::Limit`]: the entry is not done, others may be. [`Error::Stopped`]: not done, and
    /// nothing will be any more.
    #[inline]
    pub fn append(&mut self, entry: Entry<'_>) -> Result<Ticket, Error> {
        entry.check()?;
        if self.shared.stopped.load(Ordering::Relaxed) {
            return Err(self.shared.stopped_error());
        }
        entry.encode(&mut self.body);
        self.entries += 1;
        self.last += 1;
        if self.body.len() >= HAND_OVER_BYTES {
            self.commit();
        }
        Ok(Ticket(self.last))
    }

    /// Appends entries that are all replayed or none.
    ///
    /// # Errors
    /// As [`Producer::append`]; then none of them is done.
    pub fn append_all(&mut self, entries: &[Entry<'_>]) -> Result<Ticket, Error> {
        let mut batch = self.batch();
        for entry in entries {
            batch.add(*entry)?;
        }
        batch.end()
    }

    /// The number for a batch that several producers write at the same time, by [`Batch::add_part`]. When all have committed
    /// their parts, one of them appends [`Entry::Kept`].
    pub fn new_shared_batch(&self) -> u64 {
        self.shared.batches.fetch_add(1, Ordering::Relaxed)
    }

    /// Begins a batch: its entries are all replayed or none. Dropped without [`Batch::end`], none is done.
    pub fn batch(&mut self) -> Batch<'_> {
        let (size, entries) = (self.body.len(), self.entries);
        Batch {
            producer: self,
            size,
            entries,
            ended: false,
        }
    }

    /// Hands everything appended so far over, to be written. To be called at the end of every turn of the
    /// core's loop. Under [`Fsync::EverySecond`] and [`Fsync::No`] it writes little itself, into the
    /// system's memory, as long as that is quick; it does not wait for the disk.
    pub fn commit(&mut self) {
        if self.entries == 0 {
            return;
        }
        let shared = &*self.shared;
        let size = self.body.len() as u64;
        let now = shared.disk.now();
        let mut state = shared.state();
        if state.failure.is_some() || state.closing {
            // Not done: `outcome` says so once the journal has stopped.
            self.body.clear();
            self.entries = 0;
            return;
        }
        // Only everysec bounds the age of what is not durable.
        if shared.options.fsync == Fsync::EverySecond && state.queue_since.is_none() {
            state.queue_since = Some(now);
            if shared.unsynced_since.load(Ordering::Relaxed) == 0 {
                shared.set_unsynced_since(Some(now));
            }
        }
        match state.queue.back_mut() {
            Some(Item::Group(group)) if group.body.len() + self.body.len() <= FRAME_BYTES => {
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
                state.queue.push_back(Item::Group(Group {
                    body,
                    entries: self.entries,
                    marks: vec![(self.mark.clone(), self.last)],
                }));
            }
        }
        self.entries = 0;
        let backlog = shared.backlog_bytes.fetch_add(size, Ordering::Relaxed) + size;
        if state.trouble.is_some() {
            // The writer tries again by itself.
            return;
        }
        let is_left = shared.options.fsync == Fsync::Always
            || backlog > OWN_BYTES_MAX
            || !matches!(state.sync, SyncState::None)
            || now.as_nanos() < u128::from(shared.leave_until.load(Ordering::Relaxed));
        if is_left {
            return shared.call_writer(&mut state);
        }
        drop(state);
        shared.write_here(&self.mark);
    }

    /// What has become of the append that gave `ticket`.
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

    /// Everything up to this ticket is durable.
    pub fn durable(&self) -> Ticket {
        Ticket(self.mark.durable.load(Ordering::Acquire))
    }

    /// The ticket of the last append.
    pub fn last(&self) -> Ticket {
        Ticket(self.last)
    }

    /// Whether the disk keeps up. When it does not, the core is to take no more writes from its
    /// clients until the waker was called and this is true again: that bounds the memory of what
    /// waits to be written, and under [`Fsync::EverySecond`] what a crash can lose to one second.
    #[inline]
    pub fn has_room(&self) -> bool {
        let shared = &*self.shared;
        if self.is_pressed() {
            shared.pressed.store(true, Ordering::Release);
            // It may have ended just before that store, when nobody was to be called.
            return !self.is_pressed();
        }
        true
    }

    fn is_pressed(&self) -> bool {
        let shared = &*self.shared;
        if shared.stopped.load(Ordering::Relaxed) || shared.troubled.load(Ordering::Relaxed) {
            // Nobody needs to wait to learn that.
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

    /// Commits, and blocks until `ticket` is durable, whatever the policy. For tools and tests: a
    /// core must not block.
    ///
    /// # Errors
    /// [`Error::Stopped`]; [`Producer::outcome`] then says whether it is unknown or not done.
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

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
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

/// Entries that are all replayed or none. See [`Producer::batch`].
pub struct Batch<'a> {
    producer: &'a mut Producer,
    /// The producer's buffer before the batch.
    size: usize,
    entries: u32,
    ended: bool,
}

impl Batch<'_> {
    /// # Errors
    /// [`Error::Limit`]; the batch is as it was before.
    pub fn add(&mut self, entry: Entry<'_>) -> Result<(), Error> {
        entry.check()?;
        self.push(entry)
    }

    /// Adds what is part of a batch of several producers, too: it counts only once an [`Entry::Kept`] says so.
    ///
    /// # Errors
    /// As [`Batch::add`].
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

    /// Appends the batch. An empty one has the ticket of the append before it.
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
        if producer.body.len() >= HAND_OVER_BYTES {
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
