//! Pulls: transfer a version from a source into a store.
//!
//! ```text
//!  start ──► waiting ──► fetching ──► verifying ──► warming ──► swapping ──► done
//!                │           │             │            │           │
//!                └───────────┴─────────────┴────────────┴───────────┴──► failed | cancelled   (the live version stays)
//! ```
//!
//! Each pull runs on a low-priority thread, with `fetch.parallel` additional threads while it fetches. Serving threads do none of
//! its work. `fetch.pulls` pulls run concurrently, and `fetch.queue` wait, which costs only their entry.
//!
//! - `registry.rs` contains the list of pulls, `state.rs` the state of one pull, `pull.rs` its steps in order.
//! - `download.rs` contains the threads, `segment.rs` the transfer of one file, `space.rs` the reservation of disk space.
//! - `budget.rs` and `throttle.rs` limit the resources that all of this uses.
//! - The conditions for going live are in `stores/gates.rs`.
//!
//! A pull that was cancelled is shown as `cancelling` until it has stopped: it checks at its next step, and removes what it
//! fetched.
//!
//! Invariants:
//! 1. At most one pull of a store runs or waits, and no compaction concurrently except one that is stopping. A pull has priority
//!    over the compaction of its store, and waits only until that has stopped.
//! 2. The status of a pull that has ended does not change.

mod base_sources;
mod budget;
pub(crate) mod cluster;
pub(crate) mod compact;
mod download;
mod local;
pub(crate) mod pull;
mod registry;
mod segment;
mod space;
mod state;
mod throttle;
pub(crate) mod warm;

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use larder_protocol::config::{FetchSection, out_of_bounds};
use larder_protocol::http::{PullRequest, PullStatus};
use larder_remote::{Allowed, Location};
use larder_types::StoreName;

use crate::Shared;
use crate::error::Error;
use crate::membership::Membership;
use crate::metrics::EndedCounts;
use crate::stores::Store;

use registry::Registry;
pub use state::Pull;
use state::Stop;
pub use throttle::{Pace, Throttle};

const SOURCE_BYTES_MAX: usize = 8 << 10;

/// The points at which a test may kill a pull, in execution order. After a crash up to `pull.before_live`, the old version is
/// live; from `pull.live` on, the new one.
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
    /// Shared by all background work.
    pub throttle: Arc<Throttle>,
    /// `fetch.allow`.
    allowed: Arc<Allowed>,
    running_max: usize,
    waiting_max: usize,
    registry: Mutex<Registry>,
}

impl Pulls {
    /// # Errors
    /// [`Error::BadRequest`] for an invalid entry of `fetch.allow`.
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

    /// Returns a pull's source location, if reading it is allowed.
    fn locate(&self, source: &str) -> Result<Location, Error> {
        let location =
            Location::parse(source).map_err(|error| Error::BadRequest(error.to_string()))?;
        location.within(&self.allowed).map_err(|error| {
            Error::Forbidden(format!(
                "{error}; add its folder or the beginning of its URL to fetch.allow"
            ))
        })
    }

    /// Starts or queues a pull. If an identical pull of the store runs or waits, returns that one.
    ///
    /// # Errors
    /// [`Error::Forbidden`] for a source that may not be read, [`Error::Conflict`] with another pull of the store,
    /// [`Error::Overloaded`] if the queue is full.
    pub fn start(
        &self,
        shared: &Arc<Shared>,
        store: StoreName,
        request: PullRequest,
    ) -> Result<PullStatus, Error> {
        if request.source.len() > SOURCE_BYTES_MAX {
            return Err(Error::BadRequest(format!(
                "source has {} bytes; at most {SOURCE_BYTES_MAX} are allowed",
                request.source.len()
            )));
        }
        let location = self.locate(&request.source)?;
        check_gates(&request)?;
        let mut registry = self.lock();
        if registry.closed {
            return Err(Error::Conflict("the server is stopping".to_owned()));
        }
        if let Some(running) = registry.find_pull(&store).filter(|it| !it.is_compaction) {
            if running.request == request {
                return Ok(running.status());
            }
            let otherwise = if running.request.source == request.source {
                " with other gates or another value of activate"
            } else {
                ""
            };
            return Err(Error::Conflict(format!(
                "pull {} of store {store} from {} is under way{otherwise}; wait for it, or cancel it with DELETE /v1/pulls/{}",
                running.id, running.source, running.id
            )));
        }
        if registry.displace_compaction(&store) {
            let pull = registry.new_pull(store, request, location.to_string());
            return registry.enqueue_first(shared, pull, self.running_max);
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
        registry.enqueue(shared, Arc::new(pull), waits)
    }

    /// Starts to compact a store's live version, or returns the running compaction.
    ///
    /// # Errors
    /// [`Error::Refused`] if it cannot be compacted, [`Error::Conflict`] with a pull of the store, [`Error::Overloaded`].
    pub fn compact(&self, shared: &Arc<Shared>, store: &Store) -> Result<PullStatus, Error> {
        if shared
            .membership
            .as_ref()
            .is_some_and(Membership::uses_etcd)
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
        if let Some(running) = registry.find_pull(&store.name) {
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
        let pull = registry.new_pull(store.name.clone(), request, source);
        let pull = Arc::new(pull.into_compaction());
        registry.enqueue(shared, pull, waits)
    }

    /// Starts a compaction of each live version that has more layers than `stores.compact_layers`, once per version, and again
    /// after a pull displaced it.
    pub(crate) fn compact_all(&self, shared: &Arc<Shared>) {
        let layers_max = shared.config.stores.compact_layers as usize;
        let is_cluster = shared
            .membership
            .as_ref()
            .is_some_and(Membership::uses_etcd);
        if layers_max == 0 || is_cluster || shared.stores.needs_signature() {
            return;
        }
        for store in shared.stores.list() {
            let Some((id, version)) = store.live() else {
                continue;
            };
            let is_due = version.manifest().layer_count() > layers_max;
            if !is_due || !self.lock().mark_compacted(&store.name, id) {
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

    /// Requests a pull to stop. A queued pull has ended when this returns.
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

    /// Bytes fetched by all pulls since the server started.
    pub fn fetched_bytes(&self) -> u64 {
        let registry = self.lock();
        let running = registry.running.values();
        registry.fetched_bytes
            + running
                .map(|(pull, _)| pull.bytes_fetched.load(Relaxed))
                .sum::<u64>()
    }

    /// The store's running or queued pull.
    pub fn running(&self, store: &StoreName) -> Option<PullStatus> {
        self.lock().find_pull(store).map(|pull| pull.status())
    }

    /// Stops every pull, keeps what they fetched, and waits for their threads.
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
        if let Some(expected) = out_of_bounds(&format!("stores.{name}"), percent) {
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
