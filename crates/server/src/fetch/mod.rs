//! Pulls: bringing a version from a source into a store.
//!
//! ```text
//!  start ──► waiting ──► fetching ──► verifying ──► warming ──► swapping ──► done
//!                │           │             │            │           │
//!                └───────────┴─────────────┴────────────┴───────────┴──► failed | cancelled   (the live version stays)
//! ```
//!
//! Each pull runs on a thread of low priority, with as many more as `fetch.parallel` says while it
//! fetches; serving threads do none of its work. `fetch.pulls` run at one time, and `fetch.queue` wait, which takes nothing
//! but their entry. `pull.rs` has the steps in order, `download.rs` the threads, `segment.rs` the
//! transfer of one file, `space.rs` the reservation, `budget.rs` and `throttle.rs` what all of it may take of the machine; the conditions for going live are in `stores/gates.rs`.
//!
//! A pull that was told to stop shows itself as `cancelling` until it has: it notices at its next step, and removes what it fetched.
//!
//! Invariants:
//! 1. At most one pull of a store runs or waits at a time, and no compaction beside it but one that was told to stop: a pull
//!    goes before the compaction of its store, and waits only until that has stopped.
//! 2. A pull that has ended never changes its status again.

mod below;
mod budget;
pub(crate) mod cluster;
pub(crate) mod compact;
mod download;
mod local;
pub(crate) mod pull;
mod segment;
mod space;
mod throttle;
pub(crate) mod warm;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use larder_protocol::config::{FetchSection, beyond_bounds};
use larder_protocol::http::{
    ErrorInfo, NodePull, NodePullState, PullRequest, PullState, PullStatus,
};
use larder_remote::{Allowed, Location};
use larder_types::{StoreName, VersionId};
use tokio::sync::watch;

use crate::Shared;
use crate::error::Error;
use crate::low_priority::spawn_low;
use crate::membership::Membership;
use crate::metrics::EndedCounts;
use crate::stores::{Store, unix_seconds};
use crate::supervision::contain;

use cluster::Order;
pub use throttle::{Pace, Throttle};

const SOURCE_BYTES_MAX: usize = 8 << 10;

/// Ended pulls that `GET /v1/pulls` still shows.
const ENDED_LEN_MAX: usize = 200;

/// The points at which a test may kill a pull, in the order in which a pull passes them. A crash at
/// any of them leaves the old version live up to `pull.before_live`, the new one from `pull.live` on.
pub const FAULT_POINTS: &[&str] = &[
    "pull.manifest",
    "pull.linked",
    "pull.reserved",
    "pull.segment",
    "pull.fetched",
    "pull.published",
    "pull.verified",
    "pull.warmed",
    "pull.checked",
    "pull.before_live",
    "pull.live",
    "pull.swapped",
    "pull.retained",
];

/// All pulls since the server started.
pub struct Pulls {
    /// What all background work shares.
    pub throttle: Arc<Throttle>,
    /// `fetch.allow`.
    allowed: Arc<Allowed>,
    running_max: usize,
    waiting_max: usize,
    registry: Mutex<Registry>,
}

#[derive(Default)]
struct Registry {
    last_id: u64,
    running: HashMap<StoreName, (Arc<Pull>, JoinHandle<()>)>,
    /// In the order in which they will run.
    waiting: VecDeque<Arc<Pull>>,
    /// Running and ended ones, oldest first.
    all: VecDeque<Arc<Pull>>,
    ended: EndedCounts,
    /// What the server has begun to compact by itself, so that it does not try again and again what fails.
    compacted: HashSet<(StoreName, VersionId)>,
    /// Bytes fetched by pulls that have ended.
    fetched_bytes: u64,
    /// The server is stopping.
    closed: bool,
}

/// One pull: what was asked, how far it is, and the switch that cancels it.
pub struct Pull {
    pub id: String,
    pub store: StoreName,
    pub request: PullRequest,
    /// For people: without credentials.
    pub source: String,
    started_at: u64,
    cancel: watch::Sender<Option<Stop>>,
    version: AtomicU64,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    /// Since the start; not what an earlier attempt left.
    bytes_fetched: AtomicU64,
    /// Not fetched, as they were here.
    bytes_linked: AtomicU64,
    /// It compacts what is live, and pulls nothing.
    is_compaction: bool,
    progress: Mutex<Progress>,
    /// Of a push in a cluster.
    nodes: Mutex<Vec<NodePull>>,
    /// Turns true once, after the last change of `progress`.
    over: watch::Sender<bool>,
}

/// Why a pull stops before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Someone asked: what was fetched is removed.
    Cancelled,
    /// The server stops: what was fetched is kept for the next pull.
    Shutdown,
    /// Of a compaction: a pull of its store was asked for, which goes before.
    Displaced,
}

struct Progress {
    state: PullState,
    error: Option<ErrorInfo>,
    fetch_began: Instant,
    fetch_ended: Option<Instant>,
    ended_at: Option<u64>,
}

impl Pulls {
    /// # Errors
    /// [`Error::BadRequest`] for an entry of `fetch.allow` that cannot be understood.
    pub fn new(config: &FetchSection) -> Result<Pulls, Error> {
        let allowed = Allowed::parse(&config.allow)
            .map_err(|wrong| Error::BadRequest(format!("fetch.allow: {wrong}")))?;
        Ok(Pulls {
            throttle: Arc::new(Throttle::new(
                config.bytes_per_second,
                config.verify_bytes_per_second,
                config.yield_at_us,
            )),
            allowed,
            running_max: config.pulls as usize,
            waiting_max: config.queue as usize,
            registry: Mutex::default(),
        })
    }

    /// The place that a pull was told to read, if it may be read.
    fn locate(&self, source: &str) -> Result<Location, Error> {
        let location =
            Location::parse(source).map_err(|error| Error::BadRequest(error.to_string()))?;
        location.within(&self.allowed).map_err(|error| {
            Error::Forbidden(format!(
                "{error}; add its folder or the beginning of its URL to fetch.allow"
            ))
        })
    }

    /// Starts a pull, or has it wait for others; or answers the one that runs or waits if it was asked for in the same words.
    ///
    /// # Errors
    /// [`Error::Forbidden`] for a source that may not be read, [`Error::Conflict`] with another pull of the store,
    /// [`Error::Overloaded`] if as many wait as may.
    pub fn start(
        &self,
        shared: &Arc<Shared>,
        store: StoreName,
        request: PullRequest,
    ) -> Result<PullStatus, Error> {
        if request.source.len() > SOURCE_BYTES_MAX {
            return Err(Error::BadRequest(format!(
                "source has {} bytes; at most {SOURCE_BYTES_MAX} are taken",
                request.source.len()
            )));
        }
        let location = self.locate(&request.source)?;
        check_gates(&request)?;
        let mut registry = self.lock();
        if registry.closed {
            return Err(Error::Conflict("the server is stopping".to_owned()));
        }
        if let Some(running) = registry.of(&store).filter(|it| !it.is_compaction) {
            if running.request == request {
                return Ok(running.status());
            }
            let otherwise = match running.request.source == request.source {
                true => " with other gates, or to be kept beside the live version or not",
                false => "",
            };
            return Err(Error::Conflict(format!(
                "pull {} of store {store} from {} is under way{otherwise}; wait for it, or cancel it with DELETE /v1/pulls/{}",
                running.id, running.source, running.id
            )));
        }
        if registry.displace(&store) {
            let pull = registry.new_pull(store, request, location.to_string());
            return registry.enter_first(shared, pull, self.running_max);
        }
        let waits = registry.running.len() >= self.running_max;
        if waits && registry.waiting.len() >= self.waiting_max {
            return Err(Error::Overloaded(format!(
                "{} pulls are running and {} wait; try again later, or raise fetch.pulls or fetch.queue",
                registry.running.len(),
                registry.waiting.len()
            )));
        }
        let pull = registry.new_pull(store, request, location.to_string());
        registry.enter(shared, Arc::new(pull), waits)
    }

    /// Starts to compact what is live of a store, or answers the compaction that runs.
    ///
    /// # Errors
    /// [`Error::Refused`] for what cannot be compacted, [`Error::Conflict`] with a pull of the store, [`Error::Overloaded`].
    pub fn compact(&self, shared: &Arc<Shared>, store: &Store) -> Result<PullStatus, Error> {
        if shared
            .membership
            .as_ref()
            .is_some_and(Membership::is_in_etcd)
        {
            return Err(Error::Refused(
                "in a cluster no node has all of a version: compact it where it was built, with `larder compact`, and push that".to_owned(),
            ));
        }
        let (id, _) = compact::candidate(shared, store)?;
        let mut registry = self.lock();
        if registry.closed {
            return Err(Error::Conflict("the server is stopping".to_owned()));
        }
        if let Some(running) = registry.of(&store.name) {
            if running.is_compaction {
                return Ok(running.status());
            }
            return Err(Error::Conflict(format!(
                "pull {} of store {} is under way; wait for it, or cancel it with DELETE /v1/pulls/{}",
                running.id, store.name, running.id
            )));
        }
        let waits = registry.running.len() >= self.running_max;
        if waits && registry.waiting.len() >= self.waiting_max {
            return Err(Error::Overloaded(
                "too many pulls are running and waiting; try again later".to_owned(),
            ));
        }
        let request = PullRequest {
            source: String::new(),
            gates: None,
            activate: true,
            allow_missing_replicas: 0,
        };
        let source = format!("{}{id}", compact::SOURCE);
        let pull = Arc::new(Pull {
            is_compaction: true,
            ..registry.new_pull(store.name.clone(), request, source)
        });
        registry.enter(shared, pull, waits)
    }

    /// Starts to compact the live versions that have more layers than `stores.compact_layers`, each once; again where a pull went before.
    pub(crate) fn compact_all(&self, shared: &Arc<Shared>) {
        let layers_max = shared.config.stores.compact_layers as usize;
        let is_cluster = shared
            .membership
            .as_ref()
            .is_some_and(Membership::is_in_etcd);
        if layers_max == 0 || is_cluster || shared.stores.needs_signature() {
            return;
        }
        for store in shared.stores.list() {
            let Some((id, version)) = store.live() else {
                continue;
            };
            let is_due = version.manifest().layer_count() > layers_max;
            if !is_due || !self.lock().is_first_try(&store.name, id) {
                continue;
            }
            if let Err(error) = self.compact(shared, &store) {
                tracing::warn!(store = %store.name, %error, "the live version has many layers and was not compacted");
            }
        }
    }

    pub(crate) fn running_max(&self) -> usize {
        self.running_max
    }

    /// Asks a pull to stop. One that waits has ended when this returns.
    pub fn cancel(&self, id: &str) -> Result<Arc<Pull>, Error> {
        let pull = self.get(id)?;
        let mut registry = self.lock();
        let waits = registry.waiting.iter().position(|waiting| waiting.id == id);
        pull.stop(Stop::Cancelled);
        if let Some(place) = waits {
            registry.waiting.remove(place);
            registry.count_end(&pull, &Err(Error::Cancelled));
            pull.end(&Err(Error::Cancelled));
        }
        Ok(pull)
    }

    pub fn get(&self, id: &str) -> Result<Arc<Pull>, Error> {
        let registry = self.lock();
        let mut all = registry.all.iter();
        let found = all.find(|pull| pull.id == id).cloned();
        found.ok_or_else(|| Error::NoSuchPull(id.chars().take(40).collect()))
    }

    /// Newest first.
    pub fn list(&self) -> Vec<PullStatus> {
        self.lock()
            .all
            .iter()
            .rev()
            .map(|pull| pull.status())
            .collect()
    }

    pub fn all_running(&self) -> Vec<PullStatus> {
        let registry = self.lock();
        registry
            .running
            .values()
            .map(|(pull, _)| pull.status())
            .collect()
    }

    pub fn ended_counts(&self) -> EndedCounts {
        self.lock().ended.clone()
    }

    /// By all pulls since the server started.
    pub fn fetched_bytes(&self) -> u64 {
        let registry = self.lock();
        let running = registry.running.values();
        registry.fetched_bytes
            + running
                .map(|(pull, _)| pull.bytes_fetched.load(Relaxed))
                .sum::<u64>()
    }

    /// The store's pull that runs or waits.
    pub fn running(&self, store: &StoreName) -> Option<PullStatus> {
        self.lock().of(store).map(|pull| pull.status())
    }

    /// Stops every pull, keeping what they fetched, and waits for their threads.
    pub fn shut_down(&self) {
        let threads: Vec<JoinHandle<()>> = {
            let mut registry = self.lock();
            registry.closed = true;
            for pull in std::mem::take(&mut registry.waiting) {
                pull.stop(Stop::Shutdown);
                registry.count_end(&pull, &Err(Error::Cancelled));
                pull.end(&Err(Error::Cancelled));
            }
            let running = registry.running.drain();
            running
                .map(|(_, (pull, thread))| {
                    pull.stop(Stop::Shutdown);
                    thread
                })
                .collect()
        };
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a pull's thread panicked");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn new_pull(&mut self, store: StoreName, request: PullRequest, source: String) -> Pull {
        self.last_id += 1;
        Pull::new(self.last_id.to_string(), store, request, source)
    }

    /// Whether the server has not begun to compact the version yet, and may now. It has from then on.
    fn is_first_try(&mut self, store: &StoreName, id: VersionId) -> bool {
        self.of(store).is_none() && self.compacted.insert((store.clone(), id))
    }

    /// Tells the store's compaction to stop, if there is one, as a pull is wanted; it may begin again after that. Whether it has to be waited
    /// for.
    fn displace(&mut self, store: &StoreName) -> bool {
        let Some(compaction) = self.of(store).cloned() else {
            return false;
        };
        compaction.stop(Stop::Displaced);
        self.compacted.retain(|(name, _)| name != store);
        if let Some(place) = self.waiting.iter().position(|it| it.id == compaction.id) {
            self.waiting.remove(place);
            let result = Err(compact::displaced(&compaction));
            self.count_end(&compaction, &result);
            compaction.end(&result);
        }
        self.running.contains_key(store)
    }

    /// Has a pull run before all that wait, once nothing of its store does.
    fn enter_first(
        &mut self,
        shared: &Arc<Shared>,
        pull: Pull,
        running_max: usize,
    ) -> Result<PullStatus, Error> {
        let pull = Arc::new(pull);
        let is_free = !self.running.contains_key(&pull.store) && self.running.len() < running_max;
        match is_free {
            true => self.run(shared, &pull)?,
            false => self.waiting.push_front(pull.clone()),
        }
        self.all.push_back(pull.clone());
        self.forget_oldest();
        Ok(pull.status())
    }

    fn enter(
        &mut self,
        shared: &Arc<Shared>,
        pull: Arc<Pull>,
        waits: bool,
    ) -> Result<PullStatus, Error> {
        match waits {
            true => self.waiting.push_back(pull.clone()),
            false => self.run(shared, &pull)?,
        }
        self.all.push_back(pull.clone());
        self.forget_oldest();
        Ok(pull.status())
    }

    /// The store's pull that waits or runs: the one that waits, where it displaced a compaction that has not stopped yet.
    fn of(&self, store: &StoreName) -> Option<&Arc<Pull>> {
        let waiting = self.waiting.iter().find(|pull| pull.store == *store);
        waiting.or_else(|| self.running.get(store).map(|(pull, _)| pull))
    }

    /// Takes the first off the list of those that wait whose store has nothing running.
    fn pop_ready(&mut self) -> Option<Arc<Pull>> {
        let is_ready = |pull: &Arc<Pull>| !self.running.contains_key(&pull.store);
        let place = self.waiting.iter().position(is_ready)?;
        self.waiting.remove(place)
    }

    /// Gives a pull its thread.
    fn run(&mut self, shared: &Arc<Shared>, pull: &Arc<Pull>) -> Result<(), Error> {
        pull.begin();
        let (thread_pull, thread_shared) = (pull.clone(), shared.clone());
        let thread = spawn_low("larder-pull", move || {
            let membership = thread_shared.membership.as_ref();
            let is_in_etcd = membership.is_some_and(Membership::is_in_etcd);
            let what = format!("pull {} of store {}", thread_pull.id, thread_pull.store);
            let result = contain(&what, || match is_in_etcd {
                _ if thread_pull.is_compaction => compact::run(&thread_shared, &thread_pull),
                true => cluster::push::run(&thread_shared, &thread_pull),
                false => pull::run(&thread_shared, &thread_pull),
            });
            // The lock waits until the entry is in the registry. Who learns of the end can start the next pull.
            thread_shared
                .pulls
                .lock()
                .end(&thread_shared, &thread_pull, &result);
            thread_pull.end(&result);
        })
        .map_err(|error| Error::Io(format!("cannot start a thread for the pull: {error}")))?;
        self.running
            .insert(pull.store.clone(), (pull.clone(), thread));
        Ok(())
    }

    /// Takes a pull that has ended off the list, and gives its place to one that waits.
    fn end(&mut self, shared: &Arc<Shared>, pull: &Pull, result: &Result<(), Error>) {
        self.running.remove(&pull.store);
        self.count_end(pull, result);
        while !self.closed && self.running.len() < shared.pulls.running_max {
            let Some(next) = self.pop_ready() else {
                break;
            };
            if let Err(error) = self.run(shared, &next) {
                self.count_end(&next, &Err(error.clone()));
                next.end(&Err(error));
            }
        }
    }

    fn forget_oldest(&mut self) {
        let under_way = self.running.len() + self.waiting.len();
        while self.all.len() > ENDED_LEN_MAX + under_way {
            let ended = self
                .all
                .iter()
                .position(|pull| pull.progress().state.is_over());
            let Some(oldest) = ended else { return };
            self.all.remove(oldest);
        }
    }

    fn count_end(&mut self, pull: &Pull, result: &Result<(), Error>) {
        self.fetched_bytes += pull.bytes_fetched.load(Relaxed);
        let state = end_state(result).name();
        *self.ended.entry((pull.store.clone(), state)).or_default() += 1;
    }
}

fn check_gates(request: &PullRequest) -> Result<(), Error> {
    let Some(gates) = &request.gates else {
        return Ok(());
    };
    let refused = |name: &str, is: f64, expected: &str| {
        let message = format!("{name} is {is}; it must be {expected}");
        Err(Error::BadRequest(message))
    };
    for (name, percent) in [
        ("max_shrink_percent", gates.max_shrink_percent),
        ("max_growth_percent", gates.max_growth_percent),
    ] {
        let Some(percent) = percent else { continue };
        if let Some(expected) = beyond_bounds(&format!("stores.{name}"), percent) {
            return refused(name, percent, &expected);
        }
    }
    for (name, limits) in [
        ("max_nulls", &gates.max_nulls),
        ("max_empty", &gates.max_empty),
        ("max_shift", &gates.max_shift),
    ] {
        if let Some(it) = limits.iter().find(|it| it.limit < 0.0) {
            let name = format!("{name} of column {}", it.column);
            return refused(&name, it.limit, "at least 0");
        }
    }
    Ok(())
}

fn end_state(result: &Result<(), Error>) -> PullState {
    match result {
        Ok(()) => PullState::Done,
        Err(Error::Cancelled | Error::Displaced(_)) => PullState::Cancelled,
        Err(_) => PullState::Failed,
    }
}

impl Pull {
    fn new(id: String, store: StoreName, request: PullRequest, source: String) -> Pull {
        Pull {
            id,
            store,
            request,
            source,
            started_at: unix_seconds(),
            cancel: watch::Sender::new(None),
            version: AtomicU64::new(0),
            bytes_done: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            bytes_fetched: AtomicU64::new(0),
            bytes_linked: AtomicU64::new(0),
            is_compaction: false,
            progress: Mutex::new(Progress {
                state: PullState::Waiting,
                error: None,
                fetch_began: Instant::now(),
                fetch_ended: None,
                ended_at: None,
            }),
            nodes: Mutex::default(),
            over: watch::Sender::new(false),
        }
    }

    /// One that the cluster's map asks for. It is not among those that clients ask for.
    pub(crate) fn of_cluster(order: &Order) -> Result<Pull, Error> {
        let source =
            Location::parse(&order.source).map_err(|error| Error::BadRequest(error.to_string()))?;
        let request = PullRequest {
            source: order.source.clone(),
            gates: order.gates.clone(),
            activate: false,
            allow_missing_replicas: 0,
        };
        let id = format!("{}-{}", order.store, order.version);
        let pull = Pull::new(id, order.store.clone(), request, source.to_string());
        pull.begin();
        Ok(pull)
    }

    /// Bytes that are here, and those that will be.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (
            self.bytes_done.load(Relaxed),
            self.bytes_total.load(Relaxed),
        )
    }

    /// Ends a pull of the cluster: the version is not wanted any more.
    pub(crate) fn give_up(&self) {
        self.stop(Stop::Cancelled);
    }

    /// As the server stops: what was fetched stays.
    pub(crate) fn interrupt(&self) {
        self.stop(Stop::Shutdown);
    }

    /// Returns when the pull has ended.
    pub async fn ended(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    pub fn status(&self) -> PullStatus {
        let progress = self.progress();
        let fetch_ended = progress.fetch_ended.unwrap_or_else(Instant::now);
        let seconds = (fetch_ended - progress.fetch_began)
            .as_secs_f64()
            .max(0.001);
        PullStatus {
            id: self.id.clone(),
            store: self.store.clone(),
            version: self.version.load(Relaxed),
            source: self.source.clone(),
            state: self.shown(progress.state),
            bytes_done: self.bytes_done.load(Relaxed),
            bytes_total: self.bytes_total.load(Relaxed),
            bytes_per_second: (self.bytes_fetched.load(Relaxed) as f64 / seconds) as u64,
            bytes_linked: self.bytes_linked.load(Relaxed),
            error: progress.error.clone(),
            started_at: self.started_at,
            ended_at: progress.ended_at,
            nodes: self
                .nodes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }

    /// A node that is ready tells no more how many bytes that were.
    fn tell_nodes(&self, mut nodes: Vec<NodePull>) {
        let mut told = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for node in nodes
            .iter_mut()
            .filter(|it| it.state == NodePullState::Ready)
        {
            let before = told.iter().find(|it| it.node == node.node);
            let bytes = before.map_or(0, |it| it.bytes_total);
            (node.bytes_done, node.bytes_total) = (bytes, bytes);
        }
        let sum = |of: fn(&NodePull) -> u64| nodes.iter().map(of).sum::<u64>();
        self.bytes_done.store(sum(|it| it.bytes_done), Relaxed);
        self.bytes_total.store(sum(|it| it.bytes_total), Relaxed);
        *told = nodes;
    }

    /// What others are told of its state.
    fn shown(&self, state: PullState) -> PullState {
        let is_stopping = matches!(self.stopped(), Some(Stop::Cancelled | Stop::Displaced));
        match state {
            PullState::Fetching | PullState::Verifying | PullState::Warming if is_stopping => {
                PullState::Cancelling
            }
            state => state,
        }
    }

    /// Asks the pull to stop; it does so at its next chunk, and not once it is swapping.
    fn stop(&self, why: Stop) {
        self.cancel.send_if_modified(|stop| {
            let first = stop.is_none();
            if first {
                *stop = Some(why);
            }
            first
        });
    }

    fn stopped(&self) -> Option<Stop> {
        *self.cancel.borrow()
    }

    fn check_cancelled(&self) -> Result<(), Error> {
        match self.stopped() {
            None => Ok(()),
            Some(_) => Err(Error::Cancelled),
        }
    }

    /// Returns when the pull is to stop.
    async fn cancelled(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.cancel.subscribe().wait_for(Option::is_some).await;
    }

    fn begin(&self) {
        let mut progress = self.progress();
        (progress.state, progress.fetch_began) = (PullState::Fetching, Instant::now());
    }

    fn enter(&self, state: PullState) {
        let mut progress = self.progress();
        if progress.state == PullState::Fetching {
            progress.fetch_ended = Some(Instant::now());
        }
        progress.state = state;
    }

    fn end(&self, result: &Result<(), Error>) {
        self.record_end(result);
        self.over.send_replace(true);
    }

    fn record_end(&self, result: &Result<(), Error>) {
        let mut progress = self.progress();
        progress.fetch_ended.get_or_insert_with(Instant::now);
        progress.ended_at = Some(unix_seconds());
        progress.error = result.as_ref().err().map(Error::info);
        progress.state = end_state(result);
    }

    fn fetched(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
        self.bytes_fetched.fetch_add(bytes, Relaxed);
    }

    fn resumed(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
    }

    fn linked(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
        self.bytes_linked.fetch_add(bytes, Relaxed);
    }

    fn discarded(&self, bytes: u64) {
        self.bytes_done.fetch_sub(bytes, Relaxed);
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its thread is of low priority, and may be in the middle of a file.
    #[test]
    fn a_pull_that_was_told_to_stop_says_so_until_it_has() {
        let pull = || {
            let request = serde_json::from_str(r#"{"source": "/x"}"#).expect("a request");
            let store = "pymk".parse().expect("a name");
            let pull = Pull::new("1".to_owned(), store, request, "/x".to_owned());
            pull.begin();
            pull
        };
        let cancelled = pull();
        assert_eq!(cancelled.status().state, PullState::Fetching);
        cancelled.stop(Stop::Cancelled);
        assert_eq!(cancelled.status().state, PullState::Cancelling);
        assert!(!cancelled.status().state.is_over());
        cancelled.end(&Err(Error::Cancelled));
        assert_eq!(cancelled.status().state, PullState::Cancelled);

        let late = pull();
        late.enter(PullState::Swapping);
        late.stop(Stop::Cancelled);
        assert_eq!(late.status().state, PullState::Swapping, "it goes live");
        late.end(&Ok(()));
        assert_eq!(late.status().state, PullState::Done);
    }
}
