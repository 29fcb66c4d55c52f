//! Tables and joins: each core has a `larder-join` engine with its part of them. All cores share one journal.
//!
//! ```text
//!  session, on the row's core ── Tables::write / read ──► engine ──► changes ─┬► journal ──► notifies when durable
//!  session on another core    ── commands, by message (resp/remote.rs) ──┘    └► other cores that have replicas
//!  HTTP, metrics              ── TablesHandle::run_on ──► a task on a core
//! ```
//!
//! This file contains reads and writes. Other files:
//!
//! - `maintenance`: deferred work of reads and writes.
//! - `open`: recovery from the journal; `snapshot` keeps the journal short.
//! - `gate`: delays replies; `refusal` rejects writes.
//! - `shards`: messages between the engines of several cores (`conversations`: of other nodes); `pause` makes an
//!   operation on several cores atomic. With one core, neither has a cost.
//! - `field_expiries`: objects (hashes and documents), which are rows too, and the expiry of fields; `spaces` indexes them.
//! - `postgres`: tables whose rows are in PostgreSQL.
//!
//! The commands are in `resp/tables`.
//!
//! Invariants:
//! 1. Only the thread of its core accesses an engine, and no await happens while it is borrowed.
//! 2. Changes of the engine are in the journal's buffer, in the same order, before any other operation on the engine.
//! 3. A reply is sent when its gate is open: the outputs reflect its writes, and the writes are passed to the kernel,
//!    or with `always` are on disk. At the end of a turn, a core passes on everything that its connections have written
//!    in it.
//! 4. A long reply reflects the moment when its command was executed: its [`Reading`](larder_join::Reading) keeps the
//!    former values of rows that change.

mod conversations;
mod copy_pacing;
mod cursors;
mod events;
mod executing_command;
mod expiry;
mod field_expiries;
mod gate;
mod handle;
mod maintenance;
#[cfg(test)]
#[allow(dead_code, reason = "the journal's tests use more of it")]
#[path = "../../../journal/tests/it/model_disk.rs"]
pub mod model_disk;
mod no_reply;
mod open;
mod outgoing_slots;
mod pause;
pub mod postgres;
mod refusal;
mod replicated;
mod requests;
mod shards;
mod shared_batch;
mod snapshot;
mod spaces;
mod subscriptions;
mod tracked_reads;
mod watched_keys;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use larder_join::{Engine, LogEntry, ValuesOnDisk};
use larder_journal::{Entry, Fsync, Journal, Producer, Ticket};
use larder_protocol::config;
use larder_protocol::errors::Code;
use larder_types::ByteSize;
use tokio::sync::Notify;

use crate::error::Error;
pub use crate::error::Refusal;
use crate::spaces::Spaces;
pub use cursors::Cursors;
pub use events::SelectedEvents;
pub use executing_command::ExecutingCommand;
pub use field_expiries::{has_object, read_object};
pub use gate::Gate;
pub use handle::{CoreMessage, OnDisk, Shares, TablesHandle, TablesStats, collect_results};
pub use no_reply::{NoReply, WaitCondition, require_done};
#[cfg(test)]
pub use open::open_stepped;
pub use open::{OpenError, OpeningChannels, open};
pub use pause::PausedCores;
pub use replicated::AdmitOutcome;
pub use requests::{Execution, ReplyPiece, Requests, Scope};
pub use spaces::decode_catalog;
pub use subscriptions::{KEY_CHANNEL, Subscription};
pub use watched_keys::WatchFlag;

/// Outputs that a write updates before the rest of its fan-out is deferred.
const STEP_ROWS: usize = 2048;

/// Source rows that a read computes from in one step. A read that needs more is deferred (see `maintenance`).
const READ_ROWS: usize = 8192;

/// One core's part of all tables and joins.
pub struct Tables {
    /// The core's number.
    pub index: usize,
    engine: RefCell<Engine>,
    producer: RefCell<Producer>,
    journal: Arc<Journal>,
    /// Wakes `run_maintenance`. Notified by the journal's threads, and by operations that leave work for the end of the
    /// turn.
    woken: Arc<Notify>,
    /// True if maintenance was woken in this turn.
    is_woken: Cell<bool>,
    /// Tasks whose gate is closed, or whose read waits for steps.
    waiting: RefCell<Vec<Waker>>,
    /// The reason why writes are rejected. It changes only between turns of the core's loop, so a transaction is rejected as a
    /// whole.
    write_refusal: RefCell<Option<Refusal>>,
    /// The shared batch of current writes; see `shared_batch`.
    part: Cell<Option<u64>>,
    /// Changes of the transaction that is being executed.
    transaction_changes: RefCell<Option<Vec<LogEntry>>>,
    postgres_progress: postgres::PostgresProgress,
    /// True if reads may be deferred: a read with much to compute then requests steps.
    are_reads_deferred: Cell<bool>,
    watched_keys: watched_keys::WatchedKeys,
    tracked_reads: tracked_reads::TrackedReads,
    /// Set if [`Tables::are_changes_reported`].
    executing: RefCell<Option<ExecutingCommand>>,
    subscriptions: subscriptions::Subscriptions,
    /// The maximum work of the engine in one step.
    visited_per_step_max: Cell<u64>,
    /// `tables.memory`.
    memory_limit: ByteSize,
    /// The location of long values on disk; `None` if they are stored in memory.
    on_disk: Option<ValuesOnDisk>,
    handle: Arc<TablesHandle>,
    /// Set if there are several cores.
    sharing: Option<shards::ShardState>,
    /// Set if rows belong to a cluster.
    replicated: Option<replicated::Replicated>,
    pause: RefCell<pause::Pause>,
    field_expiries: field_expiries::FieldExpiries,
    spaces: Spaces,
    /// The steps and rests of filling regions.
    copy_pacer: copy_pacing::CopyPacer,
}

impl Tables {
    /// Returns the time in milliseconds since 1970; it never decreases.
    pub fn now(&self) -> u64 {
        self.handle.expiry.now()
    }

    /// Runs a read. Expired rows are removed first, so this may change tables.
    pub fn read<T>(&self, read: impl FnOnce(&mut Engine, u64) -> T) -> T {
        let now = self.now();
        let mut engine = self.engine.borrow_mut();
        if engine.next_expiry().is_some_and(|at| at <= now) || self.field_expiries.are_due(now) {
            engine.begin(now);
            self.remove_due_fields(&mut engine, now);
            // A failure is recorded and makes the next write fail.
            let _ = self.log(&mut engine, &mut Gate::default());
        }
        engine.set_read_rows(self.are_reads_deferred.get().then_some(READ_ROWS));
        let done = self.run_measured(&mut engine, |engine| read(engine, now));
        self.invalidate_stale(&mut engine);
        self.wake_maintenance_if_more(&engine);
        done
    }

    /// Runs an operation on the engine, and records its work.
    fn run_measured<T>(&self, engine: &mut Engine, run: impl FnOnce(&mut Engine) -> T) -> T {
        let before = engine.visited();
        let done = run(engine);
        let visited = engine.visited() - before;
        if visited > self.visited_per_step_max.get() {
            self.visited_per_step_max.set(visited);
        }
        done
    }

    /// Runs an operation whose reads may be deferred: a read with much to compute returns that it needs steps.
    pub fn with_deferred_reads<T>(&self, run: impl FnOnce() -> T) -> T {
        self.are_reads_deferred.set(true);
        let done = run();
        self.are_reads_deferred.set(false);
        done
    }

    /// Runs a write. `gate` then waits for the conditions of the reply.
    ///
    /// # Errors
    /// Those of `change`, or the journal cannot be written. Then nothing was changed, or, once the journal has stopped,
    /// the outcome is unknown.
    pub fn write<T>(
        &self,
        gate: &mut Gate,
        change: impl FnOnce(&mut Engine, u64) -> Result<(T, Option<u64>), NoReply>,
    ) -> Result<T, NoReply> {
        // The lease was checked at admission: of a command with several writes, none is rejected after the first.
        self.ensure_journal()?;
        let now = self.now();
        let mut engine = self.engine.borrow_mut();
        let changed = self.run_measured(&mut engine, |engine| change(engine, now));
        // A rejected change may have removed expired rows.
        self.log(&mut engine, gate)?;
        self.wake_maintenance_if_more(&engine);
        let (answer, waits_for) = changed.map_err(|why| self.add_memory_limit(why))?;
        if waits_for.is_some() {
            gate.change = gate.change.max(waits_for);
            self.wake_maintenance();
        }
        Ok(answer)
    }

    /// Adds the limit that base rows have reached to the message.
    fn add_memory_limit(&self, why: NoReply) -> NoReply {
        match why {
            NoReply::Refused((code @ Code::OutOfMemory, _)) => {
                let limit = self.memory_limit;
                let message = format!(
                    "base rows fill tables.memory ({limit}), and all computed rows are evicted: remove rows, or raise tables.memory"
                );
                NoReply::Refused((code, message))
            }
            why => why,
        }
    }

    /// Executes a transaction: the journal contains all of its changes or none.
    pub fn execute_transaction<T>(&self, gate: &mut Gate, run: impl FnOnce(&mut Gate) -> T) -> T {
        *self.transaction_changes.borrow_mut() = Some(Vec::new());
        let done = run(gate);
        let changes = self
            .transaction_changes
            .borrow_mut()
            .take()
            .unwrap_or_default();
        if let Some(sharing) = &self.sharing
            && sharing.export(&changes, self.spaces.take_notifications(), true, gate)
        {
            self.wake_maintenance();
        }
        let engine = &mut *self.engine.borrow_mut();
        self.update_expiry_after(&changes, engine);
        // After a failure the gate never opens, and the client receives no reply.
        if !changes.is_empty() && self.persist(engine, &changes, gate).is_err() {
            gate.failed = true;
        }
        done
    }

    /// Limits, in bytes, the former values that one long read keeps, and those of all on this core.
    pub fn set_held_limits(&self, each_max: usize, all_max: usize) {
        self.engine
            .borrow_mut()
            .set_snapshot_limits(each_max, all_max);
    }

    /// Returns this core's share of the tables, if there are several cores.
    pub fn shard(&self) -> Option<Rc<larder_join::Shard>> {
        self.sharing.as_ref().map(|sharing| sharing.shard())
    }

    pub fn handle(&self) -> &Arc<TablesHandle> {
        &self.handle
    }

    /// Returns whether a transaction is being executed.
    pub fn in_transaction(&self) -> bool {
        self.transaction_changes.borrow().is_some()
    }

    fn log(&self, engine: &mut Engine, gate: &mut Gate) -> Result<(), Refusal> {
        let changes = engine.take_changes();
        self.watched_keys.mark_changed(&changes);
        self.invalidate_changes(&changes, engine);
        self.publish_events(&changes);
        self.field_expiries.apply_changes(&changes);
        self.update_space_indexes(&changes, engine);
        if engine.has_row_changes() {
            self.wake_maintenance();
        }
        if !changes.is_empty() && self.in_transaction() && self.is_paused() {
            self.record_unnumbered();
        }
        // The changes of a transaction are sent at its end, together. Those of a transaction over several cores are
        // sent immediately, because its commands wait for each other.
        if let Some(sharing) = &self.sharing
            && (!self.in_transaction() || self.is_paused())
            && sharing.export(&changes, self.spaces.take_notifications(), false, gate)
        {
            self.wake_maintenance();
        }
        if changes.is_empty() {
            // The read may have returned another client's write that a crash can still undo. The reply must wait for
            // that write.
            if self.replicated.is_none() {
                gate.ticket = gate.ticket.max(Some(self.producer.borrow().last_ticket()));
            }
            return Ok(());
        }
        // If changes are not sent yet, this follows when they are.
        if !self.in_transaction() || self.is_paused() {
            self.update_expiry_after(&changes, engine);
        }
        if let Some(together) = &mut *self.transaction_changes.borrow_mut() {
            together.extend(changes);
            return Ok(());
        }
        self.persist(engine, &changes, gate)
    }

    /// Logs changes and, in a cluster, sends them to replicas.
    fn persist(
        &self,
        engine: &mut Engine,
        changes: &[LogEntry],
        gate: &mut Gate,
    ) -> Result<(), Refusal> {
        match &self.replicated {
            None => self.append(changes, gate),
            Some(replicated) => self.number_changes(replicated, engine, gate),
        }
    }

    fn append(&self, changes: &[LogEntry], gate: &mut Gate) -> Result<(), Refusal> {
        let mut producer = self.producer.borrow_mut();
        let appended = match (self.part.get(), changes) {
            (None, [one]) => producer.append(journal_entry(one)),
            (part, all) => {
                let mut batch = producer.batch();
                all.iter()
                    .map(journal_entry)
                    .try_for_each(|one| match part {
                        None => batch.add(one),
                        Some(part) => batch.add_part(part, one),
                    })
                    .and_then(|()| batch.end())
            }
        };
        match appended {
            Ok(ticket) => {
                gate.ticket = Some(ticket);
                self.wake_maintenance();
                Ok(())
            }
            Err(error) => {
                let why = format!("{error}; it is unknown whether this write is durable");
                self.check_journal();
                Err((Code::Io, why))
            }
        }
    }

    /// Returns whether the journal's disk keeps up with the writes.
    pub fn disk_keeps_up(&self) -> bool {
        self.producer.borrow().has_room()
    }

    /// Waits until the disk has caught up.
    pub async fn wait_for_disk(&self) {
        while !self.disk_keeps_up() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    }

    /// Closes this core's part. The core that closes the last part also closes the journal, which syncs everything
    /// committed.
    ///
    /// # Errors
    /// [`Error::Io`]: data that the journal could not make durable.
    pub fn close(self) -> Result<(), Error> {
        larder_types::fault_point("core.closing");
        let journal = self.journal.clone();
        drop(self);
        let Some(journal) = Arc::into_inner(journal) else {
            return Ok(());
        };
        journal
            .close()
            .map_err(|error| Error::Io(format!("the tables were not closed cleanly: {error}")))
    }

    /// Passes writes to the journal, which syncs them at the latest when the tables are dropped.
    pub fn commit(&self) {
        self.producer.borrow_mut().commit();
    }

    /// Returns the outcome of an append.
    fn outcome(&self, ticket: Ticket) -> larder_journal::AppendOutcome {
        self.producer.borrow().outcome(ticket)
    }
}

/// Converts a change to a journal entry.
fn journal_entry(change: &LogEntry) -> Entry<'_> {
    match change {
        LogEntry::Put { key, value } => Entry::Put {
            key,
            value,
            deadline_ms: None,
        },
        LogEntry::Remove { key } => Entry::Remove { key },
        LogEntry::RemoveRange { lo, hi } => Entry::RemoveRange { lo, hi: Some(hi) },
        LogEntry::Expire { key, at } => Entry::Expire {
            key,
            deadline_ms: *at,
        },
        LogEntry::Create { name, definition } => Entry::Define {
            name: name.as_bytes(),
            text: definition.as_bytes(),
        },
        LogEntry::Drop { name } => Entry::Drop {
            name: name.as_bytes(),
        },
    }
}

/// Converts `tables.fsync` to the journal's option.
fn journal_fsync(word: config::Fsync) -> Fsync {
    match word {
        config::Fsync::Always => Fsync::Always,
        config::Fsync::EverySecond => Fsync::EverySecond,
        config::Fsync::No => Fsync::No,
    }
}

/// The error to report if another core is gone.
pub fn stopping(error: crate::error::Error) -> Refusal {
    (Code::Io, error.to_string())
}

/// The error to report for an error of the engine.
pub fn refusal(error: larder_join::Error) -> Refusal {
    use larder_join::Error;
    let text = error.to_string();
    match error {
        Error::ComputedTable { .. } => (Code::ReadOnly, text),
        Error::OutOfMemory { .. } => (
            Code::OutOfMemory,
            text.strip_prefix("OOM ").unwrap_or(&text).to_owned(),
        ),
        Error::SnapshotTooOld => (Code::OutOfMemory, text),
        Error::NotAnInteger { .. } => (
            Code::BadRequest,
            "value is not an integer or out of range".to_owned(),
        ),
        Error::Overflow { .. } => (
            Code::BadRequest,
            "increment or decrement would overflow".to_owned(),
        ),
        Error::UnknownJoin { .. } => (
            Code::NoSuchJoin,
            text + "; JOIN.LIST lists the existing joins",
        ),
        _ => (Code::BadRequest, text),
    }
}
