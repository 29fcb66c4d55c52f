//! The agent of a cluster node's stores: pulls what the map requires, and reports progress.
//!
//! ```text
//!  view ──► show (catalog, immediately) ──► remove folders of other versions ──► pull missing parts ──► report
//!    ▲                                                                              │ each on its own thread
//!    └────────────── woken by: a new view, a pull that ended, a timeout ◄───────────┘
//! ```
//!
//! The map requires the live version, the version being pushed and the kept versions; of each, the partitions of the slots that
//! this node holds or is being filled with (`wanted_versions.rs`). A node that was down, or receives more slots, therefore catches up by
//! the same steps as one that takes part in a push. All state between two turns can be reconstructed.
//!
//! 1. A version is reported as ready only while all partitions that the report's epoch requires are present, verified and
//!    accepted by the gates.
//! 2. A partition is removed only after its slots have been elsewhere for [`GRACE`].
//! 3. A pull of a failed push is not retried. A pull of a version that has been live is retried after a pause.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_batch::Partitions;
use larder_cluster::controller::{Progress, VersionProgress};
use larder_cluster::map::{self, Epoch};
use larder_types::{StoreName, VersionId};

use super::partitions::{drop_partitions, pull_partitions};
use super::wanted_versions::{
    VersionRole, WantedVersion, find_peers, last_fill_epoch, wanted_versions,
};
use crate::Shared;
use crate::cluster::View;
use crate::error::Error;
use crate::fetch::Pull;
use crate::low_priority::spawn_low_priority;
use crate::membership::Membership;
use crate::stores::Store;
use crate::supervision::contain;

/// The time for which a partition is kept after its slots have moved to other nodes.
const GRACE: Duration = Duration::from_secs(60);
/// The time for which a formerly live version is kept after the map has dropped it.
const FORMER_LIVE_MAX: Duration = Duration::from_secs(20);
/// The interval of progress reports while pulls run.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// The maximum interval between two turns of the agent.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Wakes the agent.
#[derive(Default)]
pub struct Wake {
    state: Mutex<WakeState>,
    changed: Condvar,
}

#[derive(Default)]
struct WakeState {
    is_pending: bool,
    is_stopped: bool,
}

impl Wake {
    /// Signals a new view, or another reason to run.
    pub fn notify(&self) {
        self.lock().is_pending = true;
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits for a signal, or until `longest` has passed. Returns false if the agent must end.
    fn wait(&self, longest: Duration) -> bool {
        let mut state = self.lock();
        if !state.is_pending && !state.is_stopped {
            let waited = self.changed.wait_timeout(state, longest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_pending = false;
        !state.is_stopped
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, WakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread of the agent.
pub struct AgentThread {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl AgentThread {
    /// Starts the agent. Returns `None` if no map in etcd determines the stores.
    ///
    /// # Errors
    /// [`Error::Io`] if the thread cannot be created.
    pub fn spawn(shared: &Arc<Shared>) -> Result<Option<AgentThread>, Error> {
        if !shared
            .membership
            .as_ref()
            .is_some_and(Membership::uses_etcd)
        {
            return Ok(None);
        }
        let mut agent = Agent {
            shared: shared.clone(),
            pulls: BTreeMap::new(),
            surplus: BTreeMap::new(),
            processed: Default::default(),
            former_live: Vec::new(),
        };
        let run = move || {
            agent.run();
            Ok(())
        };
        let thread = shared
            .supervisor
            .spawn("larder-stores", run)
            .map_err(|error| Error::Io(format!("cannot start a thread for stores: {error}")))?;
        Ok(Some(AgentThread {
            shared: shared.clone(),
            thread,
        }))
    }

    /// Stops the agent and keeps everything fetched.
    pub fn stop(self) {
        self.shared.agent.stop();
        // The supervisor catches and reports panics.
        let _ = self.thread.join();
    }
}

type Key = (StoreName, VersionId);

struct Agent {
    shared: Arc<Shared>,
    pulls: BTreeMap<Key, PullTask>,
    /// Partitions whose slots have moved to other nodes, and since when.
    surplus: BTreeMap<Key, (Partitions, Instant)>,
    /// The requirements of the previous turn, and the first epoch with these requirements, or a later epoch in which an equal
    /// fill started again. Epochs without new requirements are not reported: with a thousand nodes, every node would receive such
    /// a report from every other.
    processed: (Vec<WantedVersion>, Epoch),
    /// Versions that were live, and since when they are not. Requests in progress may refer to them although the map no longer
    /// keeps them.
    former_live: Vec<(StoreName, map::Version, Instant)>,
}

/// A pull of the required parts of a version.
enum PullTask {
    Running {
        pull: Arc<Pull>,
        thread: JoinHandle<()>,
        /// The result, once the pull has ended.
        ended: Arc<Mutex<Option<Result<(), Error>>>>,
        digest: String,
        /// The number of failed attempts before this one.
        attempts: u32,
    },
    Failed {
        why: String,
        attempts: u32,
        at: Instant,
        digest: String,
    },
}

impl PullTask {
    fn has_ended(&self) -> bool {
        let PullTask::Running { thread, ended, .. } = self else {
            return false;
        };
        let has_result = ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        has_result || thread.is_finished()
    }
}

impl Agent {
    fn run(&mut self) {
        let shared = self.shared.clone();
        loop {
            self.turn();
            let longest = if self.is_busy() {
                REPORT_INTERVAL
            } else {
                POLL_INTERVAL
            };
            if !shared.agent.wait(longest) {
                break;
            }
        }
        for (_, task) in std::mem::take(&mut self.pulls) {
            if let PullTask::Running { pull, thread, .. } = task {
                pull.interrupt();
                let _ = thread.join();
            }
        }
    }

    fn is_busy(&self) -> bool {
        !self.pulls.is_empty()
    }

    fn turn(&mut self) {
        let shared = self.shared.clone();
        let Some(membership) = &shared.membership else {
            return;
        };
        let view = membership.view();
        if view.own().is_none() {
            return;
        }
        self.collect_ended();
        let required = wanted_versions(&view);
        self.cancel_unwanted(&required);
        self.track_former_live(&required);
        self.sync_folders(&view, &required);
        let mut versions: Vec<VersionProgress> = Vec::new();
        for wanted_version in &required {
            let progress = self.advance(membership, &view, wanted_version);
            versions.push(VersionProgress {
                store: wanted_version.store.clone(),
                version: wanted_version.map_version.version,
                progress,
            });
        }
        // The parts that arrived in this turn become readable.
        shared.stores.apply_map(&membership.view().map);
        let is_new =
            self.processed.0 != required || self.processed.1 < last_fill_epoch(&view.map, view.me);
        if is_new {
            self.processed = (required, view.map.epoch());
        }
        membership.report(|report| {
            report.epoch = self.processed.1;
            report.versions = versions;
        });
    }

    /// Collects ended pulls: each leaves the version ready, or a reason.
    fn collect_ended(&mut self) {
        let ended: Vec<Key> = self
            .pulls
            .iter()
            .filter(|(_, it)| it.has_ended())
            .map(|(key, _)| key.clone())
            .collect();
        for key in ended {
            let Some(PullTask::Running {
                thread,
                ended,
                digest,
                attempts,
                ..
            }) = self.pulls.remove(&key)
            else {
                continue;
            };
            let _ = thread.join();
            let panicked = || Error::Io("the pull's thread panicked; see the log".to_owned());
            let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Err(error) = ended.unwrap_or_else(|| Err(panicked())) else {
                tracing::info!(store = %key.0, version = key.1.0, "the version is ready");
                continue;
            };
            tracing::warn!(store = %key.0, version = key.1.0, %error, "a version or a part of it could not be pulled");
            let failed = PullTask::Failed {
                why: format!("{}: {error}", error.code()),
                attempts: attempts + 1,
                at: Instant::now(),
                digest,
            };
            self.pulls.insert(key, failed);
        }
    }

    /// Ends pulls that the map no longer requires.
    fn cancel_unwanted(&mut self, required: &[WantedVersion]) {
        let is_wanted = |(store, version): &Key, digest: &str| {
            required.iter().any(|it| {
                it.store == *store
                    && it.map_version.version == *version
                    && it.map_version.digest == digest
            })
        };
        let others = self.pulls.extract_if(.., |key, task| match task {
            PullTask::Running { digest, .. } | PullTask::Failed { digest, .. } => {
                !is_wanted(key, digest)
            }
        });
        for (_, task) in others {
            if let PullTask::Running { pull, thread, .. } = task {
                pull.cancel();
                // The pull removes what it fetched before the map can assign the number to another version.
                let _ = thread.join();
            }
        }
        self.surplus.retain(|(store, version), _| {
            let mut required = required.iter();
            required.any(|it| it.store == *store && it.map_version.version == *version)
        });
    }

    fn track_former_live(&mut self, required: &[WantedVersion]) {
        let is_live = |was: &WantedVersion| {
            let mut live = required.iter().filter(|it| it.role == VersionRole::Live);
            live.any(|now| now.store == was.store && now.map_version == was.map_version)
        };
        let before = self
            .processed
            .0
            .iter()
            .filter(|it| it.role == VersionRole::Live);
        for was in before.filter(|was| !is_live(was)) {
            let (store, map_version) = (was.store.clone(), was.map_version.clone());
            self.former_live.push((store, map_version, Instant::now()));
        }
        self.former_live
            .retain(|(_, _, since)| since.elapsed() < FORMER_LIVE_MAX);
    }

    /// Removes the versions that are not in the map, and records the live ones on disk.
    fn sync_folders(&self, view: &View, required: &[WantedVersion]) {
        let stores = &self.shared.stores;
        stores.drop_unlisted(&view.map);
        for (name, of_map) in view.map.stores() {
            let kept = || -> Result<(), Error> {
                let store = stores.get_or_create_marked(name, view.map.cluster())?;
                let map_version = required.iter().filter(|it| it.store == *name);
                let former_live = self.former_live.iter().filter(|(store, ..)| store == name);
                let map_version = map_version
                    .map(|it| &it.map_version)
                    .chain(former_live.map(|(_, map_version, _)| map_version));
                let map_version: Vec<map::Version> = map_version.cloned().collect();
                store.note_live(of_map.live.as_ref())?;
                store.keep_only(&map_version)
            };
            if let Err(error) = kept() {
                tracing::warn!(store = %name, %error, "the store's folder could not be synchronized with the cluster map");
            }
        }
    }

    /// Returns this node's progress with a version, and starts the next step.
    fn advance(
        &mut self,
        membership: &Membership,
        view: &View,
        wanted_version: &WantedVersion,
    ) -> Progress {
        let key = (
            wanted_version.store.clone(),
            wanted_version.map_version.version,
        );
        let pulling = |(bytes, of_bytes)| Progress::Pulling { bytes, of_bytes };
        let running = self
            .pulls
            .values()
            .filter(|it| matches!(it, PullTask::Running { .. }))
            .count();
        let mut attempts = 0;
        match self.pulls.get(&key) {
            Some(PullTask::Running { pull, .. }) => return pulling(pull.bytes()),
            Some(PullTask::Failed {
                why,
                attempts: before,
                at,
                ..
            }) => {
                let is_final = wanted_version.role == VersionRole::Pushed
                    || at.elapsed() < retry_delay(*before);
                if is_final {
                    return Progress::Failed { why: why.clone() };
                }
                attempts = *before;
            }
            None => {}
        }
        let store = match self.shared.stores.get(wanted_version.store.as_str()) {
            Ok(store) => store,
            Err(error) => return failed_progress(&error),
        };
        if self.is_ready(&store, &key, wanted_version) {
            self.pulls.remove(&key);
            return Progress::Ready {
                digest: wanted_version.map_version.digest.clone(),
            };
        }
        if running >= self.shared.pulls.running_max() {
            return pulling((0, 0));
        }
        let health = membership.health();
        let reports = health.as_ref().map(|it| &*it.state.reports);
        let order = wanted_version.to_request(
            &self.shared,
            find_peers(&self.shared, view, reports, wanted_version),
        );
        let digest = wanted_version.map_version.digest.clone();
        let started = Pull::for_cluster(&order).and_then(|pull| {
            let pull = Arc::new(pull);
            let (shared, its) = (self.shared.clone(), pull.clone());
            let ended = Arc::new(Mutex::new(None));
            let end = ended.clone();
            let thread = spawn_low_priority("larder-pull", move || {
                let what = format!("pull of version {} of store {}", order.version, order.store);
                let result = contain(&what, || pull_partitions(&shared, &its, &order));
                *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                shared.agent.notify();
            });
            let thread = thread.map_err(|error| {
                Error::Io(format!("cannot start a thread for the pull: {error}"))
            })?;
            Ok(PullTask::Running {
                pull,
                thread,
                ended,
                digest,
                attempts,
            })
        });
        match started {
            Ok(task) => {
                self.pulls.insert(key, task);
                pulling((0, 0))
            }
            Err(error) => failed_progress(&error),
        }
    }

    /// Returns whether all required partitions are present. Surplus partitions are removed after a while.
    fn is_ready(&mut self, store: &Store, key: &Key, wanted_version: &WantedVersion) -> bool {
        let Some(version) = store.ready_version(&wanted_version.map_version) else {
            return false;
        };
        let here = version.local_partitions();
        let count = version.manifest().partitions;
        let required = Partitions::of_slots(wanted_version.slots.iter().copied(), count);
        if !here.includes(&required) {
            return false;
        }
        let surplus = here.without(&required);
        if surplus.is_empty() {
            self.surplus.remove(key);
            return true;
        }
        let since = self
            .surplus
            .get(key)
            .filter(|(before, _)| *before == surplus);
        let since = since.map_or_else(Instant::now, |(_, since)| *since);
        if since.elapsed() < GRACE {
            self.surplus.insert(key.clone(), (surplus, since));
            return true;
        }
        self.surplus.remove(key);
        match drop_partitions(store, wanted_version.map_version.version, &required) {
            Ok(()) => {
                tracing::info!(store = %store.name, version = key.1.0, partitions = surplus.len(), "partitions of slots that moved to other nodes were removed")
            }
            Err(error) => {
                tracing::warn!(store = %store.name, version = key.1.0, %error, "partitions of slots that moved to other nodes were not removed")
            }
        }
        true
    }
}

fn failed_progress(error: &Error) -> Progress {
    Progress::Failed {
        why: format!("{}: {error}", error.code()),
    }
}

/// Doubles with every failure.
fn retry_delay(attempts: u32) -> Duration {
    let doubled = RETRY_FIRST.saturating_mul(1 << attempts.saturating_sub(1).min(16));
    doubled.min(RETRY_MAX)
}
