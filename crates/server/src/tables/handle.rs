//! The handle of the tables, which all threads share: statistics, and a queue of messages to every core.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use larder_join::{ExpirySummary, JoinInfo, Shard, SlotOwners, TableInfo, row_slot};
use larder_protocol::commands::OwnedCommand;
use tokio::sync::{mpsc, oneshot};

use super::conversations::{FromReader, Via};
use super::expiry::SharedExpiry;
use super::outgoing_slots::OutgoingSlots;
use super::pause::PostgresPosition;
use super::postgres::PostgresUpdate;
use super::replicated::{FromOwner, Settlement};
use super::{Cursors, Refusal, Requests, SelectedEvents, Tables};
use crate::clients::{Channels, Tracking};
use crate::cluster::View;
use crate::cluster::slot_requests::SlotRequests;
use crate::error::Error;
use crate::fault_monitor::FaultMonitor;
use crate::spaces::{self, Catalog};

/// A task for a core.
type Task = Box<dyn FnOnce(Rc<Tables>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A message of another thread to a core. Messages of one thread arrive in order.
pub enum CoreMessage {
    /// Messages of another core's engine.
    Exchange {
        from: u16,
        messages: Vec<larder_join::EngineMessage>,
    },
    /// Commands of another core's connection.
    Requests(Requests),
    /// A command without a connection, for example of a page of the console.
    Execute {
        command: OwnedCommand,
        answer: oneshot::Sender<Result<Vec<u8>, Refusal>>,
    },
    Task(Task),
    /// Pauses the core: only commands with this ticket are executed; see `pause`.
    Pause {
        ticket: u64,
        granted: oneshot::Sender<PostgresPosition>,
    },
    /// Ends the pause; see `PausedCores`.
    Release {
        ticket: u64,
        is_abandoned: bool,
    },
    /// An update from PostgreSQL.
    Postgres(PostgresUpdate),
    /// The engine of another core of this node drops its withheld messages. The rows that it has sent must be dropped,
    /// and that must be acknowledged as its changes up to `upto`.
    OwnerLost {
        from: u16,
        upto: u64,
    },
    /// The outcome of changes that another core made in a pause, and of which this core has rows.
    Settlement {
        from: usize,
        settlement: Settlement,
    },
    /// The node's new view.
    View(Arc<View>),
    /// A message of another node's engine, received over a connection of another core.
    FromReader(FromReader),
    /// A message to such an engine, over this core's connection with this number.
    ToReader {
        link: u64,
        exchange: larder_cluster::peer::Exchange,
    },
    /// The connection of these readers has ended.
    ReaderDisconnected {
        via: Via,
        forgotten_after_ms: u64,
    },
    /// A message of the owner of slots that this core replicates, received over a connection of another core.
    FromOwner(FromOwner),
    /// A message to an owner, over this core's connection with this number.
    ToOwner {
        link: u64,
        replicate: larder_cluster::peer::Replicate,
    },
    /// The connection of owners on this node has ended.
    OwnerDisconnected {
        node: larder_cluster::map::NodeId,
        link: u64,
    },
    /// Closes this core's connection with this number.
    EndLink {
        link: u64,
        why: &'static str,
    },
}

/// Statistics of about one moment.
#[derive(Debug, Clone, Default)]
pub struct TablesStats {
    pub tables: Vec<TableInfo>,
    pub joins: Vec<JoinInfo>,
    pub spaces: Vec<spaces::SpaceStats>,
    /// Base rows of all tables.
    pub rows: u64,
    pub expiring: ExpirySummary,
    /// Memory of rows, and of the state that keeps them fresh.
    pub memory_bytes: u64,
    pub disk: OnDisk,
    /// The maximum number of source rows, entries and nodes that an engine visited in one step.
    pub visited_per_step_max: u64,
    pub log_bytes: u64,
    pub snapshot_bytes: u64,
    pub backlog_bytes: u64,
    /// The cause of the last snapshot's failure, if it failed.
    pub snapshot_failure: Option<String>,
    /// Replication of own slots, in a cluster.
    pub replication: larder_cluster::replication::ReplicationStats,
}

/// Statistics of values stored on disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnDisk {
    /// Size of the values in the file.
    pub used_bytes: u64,
    pub file_bytes: u64,
    /// Values that were kept in memory because the disk was full, since the start.
    pub refused: u64,
}

impl OnDisk {
    fn add(&mut self, other: OnDisk) {
        self.used_bytes += other.used_bytes;
        self.file_bytes += other.file_bytes;
        self.refused += other.refused;
    }
}

impl TablesStats {
    /// Adds the statistics of another core. Those of the journal are the same for all.
    fn add(&mut self, other: &TablesStats) {
        for table in &other.tables {
            match self.tables.iter_mut().find(|own| own.name == table.name) {
                Some(own) => own.rows += table.rows,
                None => self.tables.push(table.clone()),
            }
        }
        self.tables.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        add_joins(&mut self.joins, &other.joins);
        spaces::merge_stats(&mut self.spaces, &other.spaces);
        self.rows += other.rows;
        self.expiring.add(other.expiring);
        self.memory_bytes += other.memory_bytes;
        self.disk.add(other.disk);
        self.visited_per_step_max = self.visited_per_step_max.max(other.visited_per_step_max);
        self.log_bytes = self.log_bytes.max(other.log_bytes);
        self.snapshot_bytes = self.snapshot_bytes.max(other.snapshot_bytes);
        self.backlog_bytes = self.backlog_bytes.max(other.backlog_bytes);
        self.replication.add(&other.replication);
        if self.snapshot_failure.is_none() {
            self.snapshot_failure.clone_from(&other.snapshot_failure);
        }
    }
}

/// Adds another core's statistics of the same joins.
fn add_joins(all: &mut Vec<JoinInfo>, others: &[JoinInfo]) {
    for join in others {
        let Some(own) = all.iter_mut().find(|own| own.name == join.name) else {
            all.push(join.clone());
            continue;
        };
        own.ranges += join.ranges;
        own.filled += join.filled;
        own.evicted += join.evicted;
        own.left_out += join.left_out;
        own.rows += join.rows;
        own.updaters += join.updaters;
        own.memory_bytes += join.memory_bytes;
    }
}

/// Reports bytes of background work, and returns the shares.
pub type Background = Box<dyn Fn(u64) -> Shares + Send + Sync>;

/// Shares of processor time and of the fetch rate; 1 is everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    pub background: f64,
    /// The share of work for which no client waits.
    pub unhurried: f64,
}

/// State that all threads share.
pub struct TablesHandle {
    cores: Vec<mpsc::UnboundedSender<CoreMessage>>,
    /// Number of messages that each core has not received yet.
    waiting: Vec<AtomicUsize>,
    receivers: Mutex<Vec<Option<mpsc::UnboundedReceiver<CoreMessage>>>>,
    stats: Mutex<Vec<TablesStats>>,
    /// Memory of the engines, from which their shares of the limit are computed.
    pub(super) used_bytes: Vec<AtomicU64>,
    /// The reason why writes are rejected, if they are.
    refusal: Mutex<Option<Refusal>>,
    /// Cursors of SCAN over tables.
    cursors: Mutex<Cursors>,
    /// True if there are tables in PostgreSQL.
    pub(super) has_mapped_tables: bool,
    /// Number of cores whose connections may still send requests to others.
    pub serving: AtomicUsize,
    pub(super) tickets: AtomicU64,
    pub(super) expiry: SharedExpiry,
    /// The owners of slots by place, in a cluster.
    owners: ArcSwapOption<SlotOwners>,
    /// Requests of own slots' owners to the controller.
    pub slot_requests: Arc<SlotRequests>,
    /// Reports the bytes sent to fill replicas, and returns the shares of background work.
    pub background: OnceLock<Background>,
    pub outgoing_slots: OutgoingSlots,
    /// The catalog to which each core switches when notified: see [`Tables::follow_spaces`].
    pub spaces: ArcSwap<Catalog>,
    /// Cursors of aggregations.
    pub space_cursors: spaces::cursors::Cursors,
    /// Search phases that ended early because the client was gone.
    pub abandoned_searches: Arc<AtomicU64>,
    pub fault_monitor: Arc<FaultMonitor>,
    /// True if `cluster.routing` is `redirect`: clients are redirected to the owners of keys.
    pub is_redirecting: bool,
    /// Clients that cache what they read.
    pub tracking: Arc<Tracking>,
    pub channels: Channels,
    pub events: SelectedEvents,
}

impl TablesHandle {
    pub fn new(
        cores: usize,
        has_mapped_tables: bool,
        cursors: Cursors,
        space_cursors: spaces::cursors::Cursors,
        fault_monitor: FaultMonitor,
        is_redirecting: bool,
        tracking: Arc<Tracking>,
    ) -> TablesHandle {
        let channels = (0..cores).map(|_| mpsc::unbounded_channel());
        let (senders, receivers) = channels.map(|(s, r)| (s, Some(r))).unzip();
        TablesHandle {
            cores: senders,
            waiting: (0..cores).map(|_| AtomicUsize::new(0)).collect(),
            receivers: Mutex::new(receivers),
            stats: Mutex::new(vec![TablesStats::default(); cores]),
            used_bytes: (0..cores).map(|_| AtomicU64::new(0)).collect(),
            refusal: Mutex::default(),
            cursors: Mutex::new(cursors),
            has_mapped_tables,
            serving: AtomicUsize::new(cores),
            tickets: AtomicU64::new(0),
            expiry: SharedExpiry::new(cores),
            owners: ArcSwapOption::empty(),
            slot_requests: Arc::default(),
            background: OnceLock::new(),
            outgoing_slots: OutgoingSlots::default(),
            spaces: ArcSwap::default(),
            space_cursors,
            abandoned_searches: Arc::default(),
            fault_monitor: Arc::new(fault_monitor),
            is_redirecting,
            tracking,
            channels: Channels::default(),
            events: SelectedEvents::default(),
        }
    }

    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Returns a core's receiver, once.
    pub fn take_receiver(&self, core: usize) -> Option<mpsc::UnboundedReceiver<CoreMessage>> {
        locked(&self.receivers)[core].take()
    }

    pub fn send(&self, core: usize, message: CoreMessage) {
        self.waiting[core].fetch_add(1, Ordering::Relaxed);
        // Without its receiver, the server is stopping. A task that waits for an answer receives an error.
        let _ = self.cores[core].send(message);
    }

    /// Counts a message that a core has received.
    pub fn record_received(&self, core: usize) {
        self.waiting[core].fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether messages wait for a core. Long work should then yield, because other cores wait.
    #[inline]
    pub fn has_messages(&self, core: usize) -> bool {
        self.waiting[core].load(Ordering::Relaxed) > 0
    }

    /// Runs `task` on a core, when the core executes commands.
    ///
    /// # Errors
    /// [`Error::Io`] if the server is stopping.
    pub async fn run_on<T, F>(
        &self,
        core: usize,
        task: impl FnOnce(Rc<Tables>) -> F + Send + 'static,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        self.start_on(core, None, task)
            .await
            .map_err(|_| stopping_error())
    }

    /// As [`TablesHandle::run_on`], for a core that is paused with `ticket`. The receiver gets the result.
    pub fn start_on<T, F>(
        &self,
        core: usize,
        ticket: Option<u64>,
        task: impl FnOnce(Rc<Tables>) -> F + Send + 'static,
    ) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let on_core = move |tables: Rc<Tables>| -> Pin<Box<dyn Future<Output = ()>>> {
            Box::pin(async move {
                tables.wait_while_paused(ticket).await;
                if !tables.may_execute_with(ticket) {
                    return;
                }
                // An error means that the requester is gone.
                let _ = answer.send(task(tables).await);
            })
        };
        self.send(core, CoreMessage::Task(Box::new(on_core)));
        answered
    }

    /// Runs `task` on every core. Returns the results in order.
    ///
    /// # Errors
    /// As [`TablesHandle::run_on`].
    pub async fn run_on_all<T, F>(
        &self,
        ticket: Option<u64>,
        task: impl FnOnce(Rc<Tables>) -> F + Clone + Send + 'static,
    ) -> Result<Vec<T>, Error>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let tasks: Vec<_> = (0..self.cores())
            .map(|core| self.start_on(core, ticket, task.clone()))
            .collect();
        collect_results(tasks).await
    }

    /// Checks that each core owns the slots that it owned in the map of this epoch.
    ///
    /// # Errors
    /// Rows have moved since, or have not arrived yet; or the server is stopping.
    pub async fn ensure_owners_since(
        &self,
        ticket: Option<u64>,
        epoch: u64,
    ) -> Result<(), Refusal> {
        let ensure = move |tables: Rc<Tables>| async move { tables.ensure_owner_since(epoch) };
        let ensured = self.run_on_all(ticket, ensure).await;
        ensured.map_err(super::stopping)?.into_iter().collect()
    }

    /// Executes a command wherever its keys are, possibly on several nodes. Returns the reply in RESP2.
    ///
    /// # Errors
    /// The server is stopping; or the reason why the command is rejected.
    pub async fn execute(&self, command: OwnedCommand) -> Result<Vec<u8>, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.send(0, CoreMessage::Execute { command, answer });
        answered
            .await
            .map_err(|_| super::stopping(stopping_error()))?
    }

    /// Makes all cores publish their statistics.
    pub async fn refresh_stats(&self) {
        // After an error, the last statistics remain; the server is stopping.
        let _ = self
            .run_on_all(None, |tables| async move { tables.publish_stats() })
            .await;
    }

    /// Lists the joins, with the statistics of all cores.
    ///
    /// # Errors
    /// As [`TablesHandle::run_on`].
    pub async fn joins(&self, ticket: Option<u64>) -> Result<Vec<JoinInfo>, Error> {
        let list = |tables: Rc<Tables>| async move { tables.read(|engine, _| engine.list()) };
        let mut all = Vec::new();
        for joins in self.run_on_all(ticket, list).await? {
            add_joins(&mut all, &joins);
        }
        Ok(all)
    }

    /// Returns the core that owns a key's row; in a cluster, the number of the place.
    pub fn owner_of(&self, key: &[u8]) -> usize {
        match &*self.owners.load() {
            Some(owners) => usize::from(owners.owner_of(row_slot(key))),
            None => {
                let count = self.cores() as u16;
                usize::from(Shard::new(0, count).owner_of(key))
            }
        }
    }

    /// Sets the owners in a cluster.
    pub(super) fn set_owners(&self, owners: Arc<SlotOwners>) {
        self.owners.store(Some(owners));
    }

    pub fn stats(&self) -> TablesStats {
        let mut all = TablesStats::default();
        locked(&self.stats).iter().for_each(|one| all.add(one));
        all
    }

    pub(super) fn set_stats(&self, core: usize, new: TablesStats) {
        locked(&self.stats)[core] = new;
    }

    /// Returns why writes are rejected, if they are.
    pub fn refusal(&self) -> Option<Refusal> {
        locked(&self.refusal).clone()
    }

    pub(super) fn set_refusal(&self, refusal: Option<Refusal>) {
        *locked(&self.refusal) = refusal;
    }

    pub fn cursors(&self) -> MutexGuard<'_, Cursors> {
        locked(&self.cursors)
    }

    pub fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Number of pauses that were started.
    #[cfg(test)]
    pub fn tickets(&self) -> u64 {
        self.tickets.load(Ordering::Relaxed)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the results of tasks that were started on cores, in order.
///
/// # Errors
/// As [`TablesHandle::run_on`].
pub async fn collect_results<T>(started: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, Error> {
    let mut results = Vec::with_capacity(started.len());
    for answered in started {
        results.push(answered.await.map_err(|_| stopping_error())?);
    }
    Ok(results)
}

fn stopping_error() -> Error {
    Error::Io("the server is stopping".to_owned())
}
