//! A session: the change stream of one connection, and the loads and writes during its lifetime.
//!
//! `begin` starts the stream. `checks` checks every second that the connection is alive and the database is unchanged.

mod begin;
mod checks;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::Future;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use pgwire_replication::{Lsn as WireLsn, PgWireError, ReplicationClient, ReplicationEvent};
use tokio::sync::{Semaphore, mpsc, oneshot};

use larder_types::KeyRange;

use crate::changes::{Change, Translator};
use crate::connect::Pool;
use crate::database::{Event, Options, Reply, Request, ResumePoint};
use crate::error::{Error, replication_failed};
use crate::mapping::{Mapping, Misfit};
use crate::merge::{LoadId, Loaded, Merge, MergeOutput};
use crate::pgoutput;
use crate::snapshot::Lsn;
use crate::stats::{Credit, Stats};
use crate::verify::{Verified, verify};
use crate::work::{self, Beat, CommittedWrite, Written};
use begin::{begin_stream, settle};

/// Maximum number of changes in one part of a transaction that is too large to be passed on in one step.
const PART_CHANGES_MAX: usize = 1024;
/// Maximum number of bytes of the keys and values of one transaction that is passed on in one step.
const BATCH_BYTES_MAX: usize = 64 << 20;
/// Maximum number of stream events received before loads, writes and timers are served.
const EVENTS_PER_TURN: usize = 256;
/// Maximum number of changes that were passed on but not applied. A single transaction that is passed on in one step
/// may have more.
const CREDIT: usize = 16 * PART_CHANGES_MAX;
const NUDGE_INTERVAL: Duration = Duration::from_millis(50);
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
const LOAD_RETRY_DELAY: Duration = Duration::from_millis(2);

/// The reason for the end of a session.
pub struct End {
    pub error: Error,
    /// The state from which a permanent slot can resume.
    pub resume_point: Option<ResumePoint>,
    /// The connection works, but a change of the tables or the publication requires a new slot.
    pub needs_new_stream: bool,
}

enum WorkOutcome {
    Loaded(LoadId, Result<Loaded, Error>),
    Wrote(u64, Result<CommittedWrite, Error>),
    Beat(Result<Beat, Error>),
    NudgeSent,
    Verified(Result<Verified, Error>),
    /// A transaction that was passed on in parts is visible completely. The values are its number of changes and its
    /// start.
    Settled(u64, Instant),
}

type Work = Pin<Box<dyn Future<Output = WorkOutcome>>>;

pub struct Session {
    options: Arc<Options>,
    pool: Arc<Pool>,
    stats: Arc<Stats>,
    verified: Verified,
    /// Tables whose rows may have changed without notification by the stream, and that must be discarded.
    changed: Vec<KeyRange>,
    client: ReplicationClient,
    system: (String, u32),
    is_resumed: bool,
    translator: Translator,
    merge: Merge,
    in_transaction: bool,
    /// Changes that were not passed on yet.
    batch: Vec<Change>,
    /// Bytes of their keys and values.
    batch_bytes: usize,
    /// For a transaction that is passed on in parts: the number of changes passed on, and when that started.
    parts: Option<(u64, Instant)>,
    /// Number of transactions that were passed on in parts and are not visible completely yet.
    settling: u32,
    credit: Arc<Semaphore>,
    work: FuturesUnordered<Work>,
    loads: HashMap<LoadId, Vec<Reply<()>>>,
    writes: HashMap<u64, Reply<Written>>,
    /// Writes that PostgreSQL has committed, by the id of the merge's wait.
    committed: HashMap<u64, (Written, Reply<Written>)>,
    next_write: u64,
    last_message_at: Instant,
    awaited_since: Option<Instant>,
    is_nudging: bool,
    is_verifying: bool,
    needs_new_stream: bool,
    /// Tables wait for a new stream, which starts once all transactions before this one have ended. 0 until the
    /// transaction is known.
    renewed_at: Option<u64>,
    beats: u64,
    beats_in_flight: u32,
}

impl Session {
    /// Checks the database, and starts the stream.
    pub async fn connect(
        options: Arc<Options>,
        pool: Arc<Pool>,
        stats: Arc<Stats>,
        resume_point: Option<ResumePoint>,
    ) -> Result<Session, Error> {
        let connection = pool.get().await?;
        let verified = verify(connection.client(), &options.mappings, &options.publication).await;
        let verified = verified?;
        connection.release();
        // Commits during a period with incomplete publication are not in the slot's log.
        let is_complete = |resume_point: &ResumePoint| {
            let needing = verified.needing_new_stream(&resume_point.verified);
            verified.is_published_as(&resume_point.verified) && needing.is_empty()
        };
        let resume_point = resume_point.filter(is_complete);
        let before = resume_point
            .as_ref()
            .map(|resume_point| resume_point.verified.clone());
        let (client, system, position, is_resumed) =
            begin_stream(&options, &pool, &stats, resume_point).await?;
        settle(&pool).await?;
        let tables = verified.tables.iter().filter(|t| t.fault.is_none());
        let numbered = tables.map(|table| (table.number, table.mapping.clone()));
        let changed = before.as_ref().filter(|_| is_resumed).map(|before| {
            let changed = verified.changed_since(before);
            changed
                .map(|mapping| KeyRange::prefix(&mapping.prefix))
                .collect()
        });
        Ok(Session {
            translator: Translator::new(numbered),
            merge: Merge::new(position),
            options,
            pool,
            stats,
            changed: changed.unwrap_or_default(),
            verified,
            client,
            system,
            is_resumed,
            in_transaction: false,
            batch: Vec::new(),
            batch_bytes: 0,
            parts: None,
            settling: 0,
            credit: Arc::new(Semaphore::new(CREDIT)),
            work: FuturesUnordered::new(),
            loads: HashMap::new(),
            writes: HashMap::new(),
            committed: HashMap::new(),
            next_write: 0,
            last_message_at: Instant::now(),
            awaited_since: None,
            is_nudging: false,
            is_verifying: false,
            needs_new_stream: false,
            renewed_at: None,
            beats: 0,
            beats_in_flight: 0,
        })
    }

    /// Returns whether the stream resumed at the end of an earlier one.
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Streams until the connection is lost, or the setup of the database changes.
    pub async fn run(
        mut self,
        requests: &mut mpsc::UnboundedReceiver<Request>,
        sink: &dyn Fn(Event),
    ) -> End {
        let error = match self.stream(requests, sink).await {
            Err(error) => error,
            Ok(()) => Error::Unreachable("larder is stopping".to_owned()),
        };
        for done in self.loads.drain().flat_map(|(_, all)| all) {
            let _ = done.send(Err(error.clone()));
        }
        let unknown = Error::Unknown(format!("the write may have been executed: {error}"));
        for (_, done) in self.writes.drain() {
            let _ = done.send(Err(unknown.clone()));
        }
        let unseen = Error::Unknown(format!(
            "the write was committed in PostgreSQL, but reads may not include it yet: {error}"
        ));
        for (_, (_, done)) in self.committed.drain() {
            let _ = done.send(Err(unseen.clone()));
        }
        let can_resume =
            self.options.permanent_slot.is_some() && matches!(error, Error::Unreachable(_));
        let resume_point = can_resume.then(|| ResumePoint {
            system: self.system.clone(),
            position: self.merge.position(),
            verified: self.verified.clone(),
        });
        if self.parts.is_none() {
            Stats::set(&self.stats.settling, 0);
        }
        self.client.abort();
        End {
            error,
            resume_point,
            needs_new_stream: self.needs_new_stream,
        }
    }

    async fn stream(
        &mut self,
        requests: &mut mpsc::UnboundedReceiver<Request>,
        sink: &dyn Fn(Event),
    ) -> Result<(), Error> {
        let mut beat = tokio::time::interval(BEAT_INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        self.report_tables();
        self.stats.begin_at(self.merge.position());
        loop {
            for range in std::mem::take(&mut self.changed) {
                self.forget(range, sink);
            }
            self.emit_ready(sink);
            let nudge_at = self.nudge_at();
            tokio::select! {
                event = self.client.recv() => self.receive_more(event, sink).await?,
                Some(done) = self.work.next(), if !self.work.is_empty() => self.finish_work(done)?,
                request = requests.recv() => match request {
                    Some(request) => self.request(request),
                    None => return Ok(()),
                },
                _ = beat.tick() => self.beat()?,
                () = tokio::time::sleep_until(nudge_at.unwrap_or_else(Instant::now).into()), if nudge_at.is_some() => self.nudge(),
            }
        }
    }

    /// Receives an event of the stream, and the events that are available after it.
    async fn receive_more(
        &mut self,
        event: Result<Option<ReplicationEvent>, PgWireError>,
        sink: &dyn Fn(Event),
    ) -> Result<(), Error> {
        let mut next = Some(event);
        for _ in 0..EVENTS_PER_TURN {
            let Some(event) = next else { break };
            let event = event.map_err(|error| replication_failed(&error))?;
            let ended = || Error::Unreachable("PostgreSQL ended the replication".to_owned());
            self.receive(event.ok_or_else(ended)?, sink).await?;
            // Loads and writes that wait for the stream are served between two transactions.
            if !self.in_transaction && self.merge.has_pending() {
                break;
            }
            next = self.client.recv().now_or_never();
        }
        // Time spent waiting for the cores does not count as silence of PostgreSQL.
        self.last_message_at = Instant::now();
        Ok(())
    }

    async fn receive(
        &mut self,
        event: ReplicationEvent,
        sink: &dyn Fn(Event),
    ) -> Result<(), Error> {
        match event {
            ReplicationEvent::Begin { xid, .. } => {
                self.in_transaction = true;
                self.merge.begin(xid);
            }
            ReplicationEvent::XLogData { data, .. } => {
                let message = pgoutput::decode(data);
                let message = message.map_err(|error| Error::Unreachable(error.to_string()))?;
                self.translate(&message);
                if self.batch.len() > self.batch_max() || self.batch_bytes > BATCH_BYTES_MAX {
                    Stats::set(&self.stats.settling, 1);
                    let (changes, _) = self.parts.get_or_insert((0, Instant::now()));
                    *changes += self.batch.len() as u64;
                    self.flush(self.merge.position(), sink).await;
                }
            }
            ReplicationEvent::Commit { end_lsn, .. } => {
                let rest = self.batch.len() as u64;
                self.flush(end_lsn.as_u64(), sink).await;
                if let Some((changes, since)) = self.parts.take() {
                    self.settle(changes + rest, since, sink);
                }
                self.in_transaction = false;
                self.merge.commit(end_lsn.as_u64());
                Stats::add(&self.stats.transactions, 1);
                self.note_position();
            }
            ReplicationEvent::KeepAlive { wal_end, .. } if !self.in_transaction => {
                self.merge.advance(wal_end.as_u64());
                self.note_position();
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits, after a transaction was passed on in parts, until the cores have applied it and the joins reflect it.
    fn settle(&mut self, changes: u64, since: Instant, sink: &dyn Fn(Event)) {
        Stats::add(&self.stats.transactions_in_parts, 1);
        self.settling += 1;
        let (done, seen) = oneshot::channel();
        let written = Written { rows: 0, sum: None };
        sink(Event::WriteVisible { written, done });
        self.work.push(Box::pin(async move {
            // On shutdown, the sender is dropped.
            let _ = seen.await;
            WorkOutcome::Settled(changes, since)
        }));
    }

    fn note_position(&mut self) {
        let position = self.merge.position();
        self.stats.set_delivered(position);
        self.client.update_applied_lsn(WireLsn::from_u64(position));
    }

    fn translate(&mut self, message: &pgoutput::Message) {
        let (merge, batch, stats) = (&mut self.merge, &mut self.batch, &self.stats);
        let bytes = &mut self.batch_bytes;
        let mut each = |change: Change| {
            merge.change(&change);
            *bytes += change.bytes();
            batch.push(change);
        };
        let mut misfit = |mapping: &Mapping, misfit: &Misfit| {
            Stats::add(&stats.misfits, 1);
            tracing::warn!(
                table = mapping.shown(),
                "a changed row cannot be a key of {}: {misfit}; reads that include it are refused",
                mapping.pattern
            );
        };
        let altered = self.translator.translate(message, &mut each, &mut misfit);
        if !altered.is_empty() {
            self.exclude_altered(altered);
        }
        if self.translator.take_redescribed() && self.beats_in_flight == 0 {
            self.check_versions();
        }
    }

    /// Returns the maximum number of changes that wait for the end of their transaction, or of their part of it.
    fn batch_max(&self) -> usize {
        match self.parts {
            None => usize::try_from(self.options.atomic_changes_max).unwrap_or(usize::MAX),
            Some(_) => PART_CHANGES_MAX - 1,
        }
    }

    /// Passes on the received changes: in one step, or in parts if they belong to a transaction in parts. Once they are
    /// applied, all changes up to `position` are.
    async fn flush(&mut self, position: Lsn, sink: &dyn Fn(Event)) {
        let changes = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if self.parts.is_none() {
            return self.deliver(changes, position, sink).await;
        }
        // At the end of a transaction, the remaining changes form one part, the only one with the transaction's
        // position.
        let mut changes = changes.into_iter();
        while changes.len() > 0 {
            let part = changes.by_ref().take(PART_CHANGES_MAX).collect();
            self.deliver(part, position, sink).await;
        }
    }

    async fn deliver(&mut self, changes: Vec<Change>, position: Lsn, sink: &dyn Fn(Event)) {
        if changes.is_empty() {
            return;
        }
        let permits = changes.len().min(CREDIT) as u32;
        // Cannot fail: the semaphore is never closed.
        if let Ok(permit) = self.credit.clone().acquire_many_owned(permits).await {
            Stats::add(&self.stats.changes, changes.len() as u64);
            let credit = Credit::new(self.stats.clone(), position, permit);
            sink(Event::Apply { changes, credit });
        }
    }

    /// Performs the actions that are possible between transactions, or between parts of a large one.
    fn emit_ready(&mut self, sink: &dyn Fn(Event)) {
        if !self.batch.is_empty() {
            return;
        }
        for ready in self.merge.take_outputs() {
            match ready {
                MergeOutput::Supply {
                    load,
                    core,
                    ranges,
                    rows,
                } => {
                    Stats::add(&self.stats.loaded_rows, rows.len() as u64);
                    let done = self.loads.remove(&load).unwrap_or_default();
                    sink(Event::Supply {
                        core,
                        ranges,
                        rows,
                        done,
                    });
                }
                MergeOutput::Retry { load } => {
                    Stats::add(&self.stats.loads_repeated, 1);
                    self.merge.restart_load(load);
                    self.load(load, LOAD_RETRY_DELAY);
                }
                MergeOutput::WriteVisible { wait } => {
                    if let Some((written, done)) = self.committed.remove(&wait) {
                        sink(Event::WriteVisible { written, done });
                    }
                }
            }
        }
        if self.merge.awaited_position().is_none() {
            self.awaited_since = None;
        } else if self.awaited_since.is_none() {
            self.awaited_since = Some(Instant::now());
        }
    }

    pub fn request(&mut self, request: Request) {
        match request {
            Request::Load { core, ranges, done } => {
                Stats::add(&self.stats.loads, 1);
                let keys = ranges.iter().map(|range| &*range.lo);
                if let Some(error) = self.verified.fault_of(keys) {
                    Stats::add(&self.stats.loads_failed, 1);
                    return Request::Load { core, ranges, done }.fail(&error);
                }
                let load = self
                    .merge
                    .find_covering_load(core, &ranges)
                    .unwrap_or_else(|| {
                        let load = self.merge.begin_load(core, ranges);
                        self.load(load, Duration::ZERO);
                        load
                    });
                self.loads.entry(load).or_default().push(done);
            }
            Request::Write { write, done } => {
                Stats::add(&self.stats.writes, 1);
                if let Some(error) = self.verified.fault_of(write.keys().into_iter()) {
                    return Request::Write { write, done }.fail(&error);
                }
                self.next_write += 1;
                let number = self.next_write;
                self.writes.insert(number, done);
                let pool = self.pool.clone();
                let tables = self.verified.tables.iter();
                let mappings = tables.map(|table| table.mapping.clone());
                let mappings: Vec<_> = mappings.collect();
                self.work.push(Box::pin(async move {
                    WorkOutcome::Wrote(number, work::write(&pool, &mappings, &write).await)
                }));
            }
        }
    }

    fn load(&mut self, load: LoadId, after: Duration) {
        let mut ranges = Vec::new();
        for range in self.merge.ranges_of(load) {
            if let Some(table) = self.verified.table_of(&range.lo) {
                ranges.push((range.clone(), table.mapping.clone(), table.number));
            }
        }
        let (pool, rows_max) = (self.pool.clone(), self.options.load_rows_max);
        self.work.push(Box::pin(async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            WorkOutcome::Loaded(load, work::load(&pool, ranges, rows_max).await)
        }));
    }

    /// Handles the completion of an operation on the pool.
    fn finish_work(&mut self, done: WorkOutcome) -> Result<(), Error> {
        match done {
            WorkOutcome::Loaded(load, Ok(loaded)) => self.merge.loaded(load, loaded),
            WorkOutcome::Loaded(load, Err(error)) => {
                Stats::add(&self.stats.loads_failed, 1);
                self.merge.forget_load(load);
                for done in self.loads.remove(&load).unwrap_or_default() {
                    let _ = done.send(Err(error.clone()));
                }
                if matches!(error, Error::Setup(_)) {
                    self.verify_again();
                }
            }
            WorkOutcome::Wrote(number, outcome) => {
                let Some(done) = self.writes.remove(&number) else {
                    return Ok(());
                };
                match outcome {
                    Ok(committed) => {
                        let wait = self.merge.wait_for(committed.xid, committed.lsn);
                        self.committed.insert(wait, (committed.written, done));
                    }
                    Err(error) => drop(done.send(Err(error))),
                }
            }
            WorkOutcome::Beat(beat) => {
                self.beats_in_flight -= 1;
                // The stream itself detects whether PostgreSQL is reachable.
                let Ok(beat) = beat else { return Ok(()) };
                let lag = beat.lsn.saturating_sub(self.merge.position());
                Stats::set(&self.stats.lag_bytes, lag);
                self.merge.prune(&beat.snapshot);
                self.end_when_renewable(&beat.snapshot)?;
                if beat.versions != self.verified.versions {
                    self.verify_again();
                }
            }
            WorkOutcome::Settled(changes, since) => {
                self.settling -= 1;
                if self.settling == 0 && self.parts.is_none() {
                    Stats::set(&self.stats.settling, 0);
                }
                let seconds = since.elapsed().as_secs_f32();
                tracing::info!(
                    changes,
                    seconds,
                    "a large transaction of PostgreSQL was applied; until now, reads included only a part of it"
                );
            }
            WorkOutcome::NudgeSent => {
                self.is_nudging = false;
                self.awaited_since = Some(Instant::now() + NUDGE_INTERVAL);
            }
            WorkOutcome::Verified(verified) => {
                self.is_verifying = false;
                match verified {
                    Ok(now) => self.compare(now)?,
                    Err(Error::Unreachable(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}
