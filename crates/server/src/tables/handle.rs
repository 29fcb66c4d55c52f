//! The handle of the tables that all threads share: figures, and a queue of messages to every core.

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
use super::expiring::Expiring;
use super::leaving::Leaving;
use super::pause::PostgresStand;
use super::postgres::PostgresUpdate;
use super::replicated::{FromOwner, Settlement};
use super::{Cursors, Refusal, Requests, SelectedEvents, Tables};
use crate::ability::Ability;
use crate::clients::{Channels, Tracking};
use crate::cluster::View;
use crate::cluster::slot_asks::SlotAsks;
use crate::error::Error;
use crate::spaces::{self, Catalog};

/// A task for a core.
type Task = Box<dyn FnOnce(Rc<Tables>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// What a core is told by another thread. Messages of one thread arrive in order.
pub enum CoreMessage {
    /// What another core's engine has to say.
    Exchange {
        from: u16,
        messages: Vec<larder_join::EngineMessage>,
    },
    /// Commands of another core's connection.
    Requests(Requests),
    /// A command of whoever has no connection, such as a page of the console.
    Ask {
        command: OwnedCommand,
        answer: oneshot::Sender<Result<Vec<u8>, Refusal>>,
    },
    Task(Task),
    /// Execute no commands but those with this ticket; see `pause`.
    Pause {
        ticket: u64,
        granted: oneshot::Sender<PostgresStand>,
    },
    /// The pause has ended; see `Paused`.
    Release {
        ticket: u64,
        is_abandoned: bool,
    },
    /// From PostgreSQL.
    Postgres(PostgresUpdate),
    /// The engine of another core of this node will not say what it kept back: all that it has said is to be forgotten, and that to be
    /// acknowledged as its changes up to `upto`.
    OwnerLost {
        from: u16,
        upto: u64,
    },
    /// What has become of changes that another core made in a pause, and that this core has rows of.
    Settlement {
        from: usize,
        settlement: Settlement,
    },
    /// What this node goes by from now on.
    View(Arc<View>),
    /// From the engine of another node, over a connection of another core.
    FromReader(FromReader),
    /// To such an engine, over a connection of this core with this number.
    ToReader {
        link: u64,
        exchange: larder_cluster::peer::Exchange,
    },
    /// The connection of these readers has ended.
    ReaderGone {
        via: Via,
        forgotten_after_ms: u64,
    },
    /// From the owner of slots that this core copies, over a connection of another core.
    FromOwner(FromOwner),
    /// To an owner, over a connection of this core with this number.
    ToOwner {
        link: u64,
        replicate: larder_cluster::peer::Replicate,
    },
    /// The connection of owners on this node has ended.
    OwnerGone {
        node: larder_cluster::map::NodeId,
        link: u64,
    },
    /// A connection of this core with this number is to be ended.
    EndLink {
        link: u64,
        why: &'static str,
    },
}

/// What there is, at about one moment.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub tables: Vec<TableInfo>,
    pub joins: Vec<JoinInfo>,
    pub spaces: Vec<spaces::Figures>,
    /// Base rows of all tables.
    pub rows: u64,
    pub expiring: ExpirySummary,
    /// Rows and all that keeps them fresh.
    pub memory_bytes: u64,
    pub disk: OnDisk,
    /// The most source rows, entries and nodes that an engine visited while its core did nothing else.
    pub visited_at_once: u64,
    pub log_bytes: u64,
    pub snapshot_bytes: u64,
    pub backlog_bytes: u64,
    /// Why the last snapshot was given up, if it was.
    pub snapshot_failure: Option<String>,
    /// Of own slots' replicas, in a cluster.
    pub replication: larder_cluster::replication::Figures,
}

/// Of values that are kept on disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnDisk {
    /// What values take in the file.
    pub used_bytes: u64,
    pub file_bytes: u64,
    /// Values that are in memory for want of room on the disk, since the start.
    pub refused: u64,
}

impl OnDisk {
    fn add(&mut self, other: OnDisk) {
        self.used_bytes += other.used_bytes;
        self.file_bytes += other.file_bytes;
        self.refused += other.refused;
    }
}

impl Figures {
    /// Takes in another core's. What is of the journal is the same for all.
    fn add(&mut self, other: &Figures) {
        for table in &other.tables {
            match self.tables.iter_mut().find(|own| own.name == table.name) {
                Some(own) => own.rows += table.rows,
                None => self.tables.push(table.clone()),
            }
        }
        self.tables.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        add_joins(&mut self.joins, &other.joins);
        spaces::add_figures(&mut self.spaces, &other.spaces);
        self.rows += other.rows;
        self.expiring.add(other.expiring);
        self.memory_bytes += other.memory_bytes;
        self.disk.add(other.disk);
        self.visited_at_once = self.visited_at_once.max(other.visited_at_once);
        self.log_bytes = self.log_bytes.max(other.log_bytes);
        self.snapshot_bytes = self.snapshot_bytes.max(other.snapshot_bytes);
        self.backlog_bytes = self.backlog_bytes.max(other.backlog_bytes);
        self.replication.add(&other.replication);
        if self.snapshot_failure.is_none() {
            self.snapshot_failure.clone_from(&other.snapshot_failure);
        }
    }
}

/// Adds what another core has of the same joins.
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

/// Takes bytes, gives the shares.
pub type Background = Box<dyn Fn(u64) -> Shares + Send + Sync>;

/// Of processor time, and of a rate: 1 is all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    pub background: f64,
    /// Of work that nobody waits for.
    pub unhurried: f64,
}

/// Shared by all threads.
pub struct TablesHandle {
    cores: Vec<mpsc::UnboundedSender<CoreMessage>>,
    /// Messages that each core has yet to take.
    waiting: Vec<AtomicUsize>,
    receivers: Mutex<Vec<Option<mpsc::UnboundedReceiver<CoreMessage>>>>,
    figures: Mutex<Vec<Figures>>,
    /// What the engines take, for their share of the limit.
    pub(super) used_bytes: Vec<AtomicU64>,
    /// Why no writes are taken.
    refusal: Mutex<Option<Refusal>>,
    /// Positions of SCAN in tables.
    cursors: Mutex<Cursors>,
    /// There are tables that are kept in PostgreSQL.
    pub(super) has_mapped_tables: bool,
    /// Cores whose connections may still ask others.
    pub serving: AtomicUsize,
    pub(super) tickets: AtomicU64,
    pub(super) expiring: Expiring,
    /// Places that own slots, in a cluster.
    owners: ArcSwapOption<SlotOwners>,
    /// What own slots' owners want of the cluster's map.
    pub slot_asks: Arc<SlotAsks>,
    /// Tells what fillings of replicas have sent to whoever keeps account of background work; gives the shares that such work has.
    pub background: OnceLock<Background>,
    pub leaving: Leaving,
    /// Which each core goes on with when it is told: see [`Tables::follow_spaces`].
    pub spaces: ArcSwap<Catalog>,
    /// Of aggregations.
    pub space_cursors: spaces::cursors::Cursors,
    /// Phases of searches that ended early since nobody waited for the answer any more.
    pub abandoned_searches: Arc<AtomicU64>,
    pub ability: Arc<Ability>,
    /// `cluster.routing` is `redirect`: clients go to the owners of what they ask for.
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
        ability: Ability,
        is_redirecting: bool,
        tracking: Arc<Tracking>,
    ) -> TablesHandle {
        let channels = (0..cores).map(|_| mpsc::unbounded_channel());
        let (senders, receivers) = channels.map(|(s, r)| (s, Some(r))).unzip();
        TablesHandle {
            cores: senders,
            waiting: (0..cores).map(|_| AtomicUsize::new(0)).collect(),
            receivers: Mutex::new(receivers),
            figures: Mutex::new(vec![Figures::default(); cores]),
            used_bytes: (0..cores).map(|_| AtomicU64::new(0)).collect(),
            refusal: Mutex::default(),
            cursors: Mutex::new(cursors),
            has_mapped_tables,
            serving: AtomicUsize::new(cores),
            tickets: AtomicU64::new(0),
            expiring: Expiring::new(cores),
            owners: ArcSwapOption::empty(),
            slot_asks: Arc::default(),
            background: OnceLock::new(),
            leaving: Leaving::default(),
            spaces: ArcSwap::default(),
            space_cursors,
            abandoned_searches: Arc::default(),
            ability: Arc::new(ability),
            is_redirecting,
            tracking,
            channels: Channels::default(),
            events: SelectedEvents::default(),
        }
    }

    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// For each core, once.
    pub fn take_receiver(&self, core: usize) -> Option<mpsc::UnboundedReceiver<CoreMessage>> {
        locked(&self.receivers)[core].take()
    }

    pub fn send(&self, core: usize, message: CoreMessage) {
        self.waiting[core].fetch_add(1, Ordering::Relaxed);
        // Without its receiver the server is stopping: who waits for an answer learns that none will come.
        let _ = self.cores[core].send(message);
    }

    /// A core has taken a message.
    pub fn taken(&self, core: usize) {
        self.waiting[core].fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a core has messages to take: what it does for a while should let them in between, since others wait.
    #[inline]
    pub fn has_messages(&self, core: usize) -> bool {
        self.waiting[core].load(Ordering::Relaxed) > 0
    }

    /// Runs `task` on a core, once it executes commands.
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
        self.start_on(core, None, task).await.map_err(|_| stopped())
    }

    /// As [`TablesHandle::run_on`], for a core that is paused with `ticket`; the answer comes by the receiver.
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
                if !tables.is_held_by(ticket) {
                    return;
                }
                // An error means that nobody waits any more.
                let _ = answer.send(task(tables).await);
            })
        };
        self.send(core, CoreMessage::Task(Box::new(on_core)));
        answered
    }

    /// Runs `task` on every core; what each answers, in their order.
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
        let begun: Vec<_> = (0..self.cores())
            .map(|core| self.start_on(core, ticket, task.clone()))
            .collect();
        answers(begun).await
    }

    /// Makes sure that each core owns what it owned by the map of this epoch.
    ///
    /// # Errors
    /// Rows have moved since, or have not come yet; or the server is stopping.
    pub async fn ensure_owners_since(
        &self,
        ticket: Option<u64>,
        epoch: u64,
    ) -> Result<(), Refusal> {
        let ensure = move |tables: Rc<Tables>| async move { tables.ensure_owner_since(epoch) };
        let ensured = self.run_on_all(ticket, ensure).await;
        ensured.map_err(super::stopping)?.into_iter().collect()
    }

    /// Executes a command wherever it belongs, on several nodes perhaps; its reply, as version 2 of the protocol has it.
    ///
    /// # Errors
    /// The server is stopping; or why the command is refused.
    pub async fn ask(&self, command: OwnedCommand) -> Result<Vec<u8>, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.send(0, CoreMessage::Ask { command, answer });
        answered.await.map_err(|_| super::stopping(stopped()))?
    }

    /// Has all cores publish their figures.
    pub async fn refresh_figures(&self) {
        // Without an owner the figures are the last ones, and the server is stopping.
        let _ = self
            .run_on_all(None, |tables| async move { tables.publish_figures() })
            .await;
    }

    /// The joins, with what all cores have of them.
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

    /// The core that has a key's row; in a cluster the number of the place.
    pub fn owner_of(&self, key: &[u8]) -> usize {
        match &*self.owners.load() {
            Some(owners) => usize::from(owners.of(row_slot(key))),
            None => {
                let count = self.cores() as u16;
                usize::from(Shard::new(0, count).owner_of(key))
            }
        }
    }

    /// In a cluster, from now on.
    pub(super) fn set_owners(&self, owners: Arc<SlotOwners>) {
        self.owners.store(Some(owners));
    }

    pub fn figures(&self) -> Figures {
        let mut all = Figures::default();
        locked(&self.figures).iter().for_each(|one| all.add(one));
        all
    }

    pub(super) fn set_figures(&self, core: usize, new: Figures) {
        locked(&self.figures)[core] = new;
    }

    /// Why no writes are taken, if none are.
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

    /// How many pauses were begun so far.
    #[cfg(test)]
    pub fn tickets(&self) -> u64 {
        self.tickets.load(Ordering::Relaxed)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answers of tasks that were started on cores, in their order.
///
/// # Errors
/// As [`TablesHandle::run_on`].
pub async fn answers<T>(started: Vec<oneshot::Receiver<T>>) -> Result<Vec<T>, Error> {
    let mut answers = Vec::with_capacity(started.len());
    for answered in started {
        answers.push(answered.await.map_err(|_| stopped())?);
    }
    Ok(answers)
}

fn stopped() -> Error {
    Error::Io("the server is stopping".to_owned())
}
