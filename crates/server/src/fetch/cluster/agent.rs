//! The agent of a cluster node's stores: pulls what the map requires, and reports progress.
//!
//! ```text
//!  view ──► show (catalog, immediately) ──► remove folders of other versions ──► pull missing parts ──► report
//!    ▲                                                                              │ each on its own thread
//!    └────────────── woken by: a new view, a pull that ended, a timeout ◄───────────┘
//! ```
//!
//! The map requires the live version, the version being pushed and the kept versions; of each, the partitions of the slots that
//! this node holds or is being filled with (`wanted.rs`). A node that was down, or receives more slots, therefore catches up by
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
use larder_cluster::controller::{Progress, Pulled};
use larder_cluster::map::{self, Epoch};
use larder_types::{StoreName, VersionId};

use super::partitions::{bring, drop_partitions};
use super::wanted::{Kind, Wants, last_filling, peers, wants};
use crate::Shared;
use crate::cluster::View;
use crate::error::Error;
use crate::fetch::Pull;
use crate::low_priority::spawn_low;
use crate::membership::Membership;
use crate::stores::Store;
use crate::supervision::contain;

/// The time for which a partition is kept after its slots have moved to other nodes.
const GRACE: Duration = Duration::from_secs(60);
/// The time for which a formerly live version is kept after the map has dropped it.
const NAMED_MAX: Duration = Duration::from_secs(20);
/// The interval of progress reports while pulls run.
const TELL_EVERY: Duration = Duration::from_millis(250);
/// The maximum interval between two turns of the agent.
const LOOK_EVERY: Duration = Duration::from_secs(5);
const AGAIN_FIRST: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(30);

/// Wakes the agent.
#[derive(Default)]
pub struct Wake {
    news: Mutex<News>,
    there_are_some: Condvar,
}

#[derive(Default)]
struct News {
    is_new: bool,
    is_stopped: bool,
}

impl Wake {
    /// Signals a new view, or another reason to run.
    pub fn up(&self) {
        self.lock().is_new = true;
        self.there_are_some.notify_all();
    }

    fn stop(&self) {
        self.lock().is_stopped = true;
        self.there_are_some.notify_all();
    }

    /// Waits for a signal, or until `longest` has passed. Returns false if the agent must end.
    fn wait(&self, longest: Duration) -> bool {
        let mut news = self.lock();
        if !news.is_new && !news.is_stopped {
            let waited = self.there_are_some.wait_timeout(news, longest);
            news = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        news.is_new = false;
        !news.is_stopped
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
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
            .is_some_and(Membership::is_in_etcd)
        {
            return Ok(None);
        }
        let mut agent = Agent {
            shared: shared.clone(),
            pulls: BTreeMap::new(),
            surplus: BTreeMap::new(),
            asked: Default::default(),
            were_live: Vec::new(),
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
    pulls: BTreeMap<Key, Bringing>,
    /// Partitions whose slots have moved to other nodes, and since when.
    surplus: BTreeMap<Key, (Partitions, Instant)>,
    /// The requirements of the previous turn, and the first epoch with these requirements, or a later epoch in which an equal
    /// fill started again. Epochs without new requirements are not reported: with a thousand nodes, every node would receive such
    /// a report from every other.
    asked: (Vec<Wants>, Epoch),
    /// Versions that were live, and since when they are not. Requests in progress may refer to them although the map no longer
    /// keeps them.
    were_live: Vec<(StoreName, map::Version, Instant)>,
}

/// A pull of the required parts of a version.
enum Bringing {
    Runs {
        pull: Arc<Pull>,
        thread: JoinHandle<()>,
        /// The result, once the pull has ended.
        ended: Arc<Mutex<Option<Result<(), Error>>>>,
        digest: String,
        /// The number of failed attempts before this one.
        times: u32,
    },
    Failed {
        why: String,
        times: u32,
        at: Instant,
        digest: String,
    },
}

impl Bringing {
    fn has_ended(&self) -> bool {
        let Bringing::Runs { thread, ended, .. } = self else {
            return false;
        };
        let is_told = ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        is_told || thread.is_finished()
    }
}

impl Agent {
    fn run(&mut self) {
        let shared = self.shared.clone();
        loop {
            self.turn();
            let longest = if self.is_busy() {
                TELL_EVERY
            } else {
                LOOK_EVERY
            };
            if !shared.agent.wait(longest) {
                break;
            }
        }
        for (_, bringing) in std::mem::take(&mut self.pulls) {
            if let Bringing::Runs { pull, thread, .. } = bringing {
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
        let wanted = wants(&view);
        self.give_up_others(&wanted);
        self.note_were_live(&wanted);
        self.keep_folders(&view, &wanted);
        let mut versions: Vec<Pulled> = Vec::new();
        for wants in &wanted {
            let progress = self.see_to(membership, &view, wants);
            versions.push(Pulled {
                store: wants.store.clone(),
                version: wants.meant.version,
                progress,
            });
        }
        // The parts that arrived in this turn become readable.
        shared.stores.show(&membership.view().map);
        let is_new = self.asked.0 != wanted || self.asked.1 < last_filling(&view.map, view.me);
        if is_new {
            self.asked = (wanted, view.map.epoch());
        }
        membership.report(|report| {
            report.epoch = self.asked.1;
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
            let Some(Bringing::Runs {
                thread,
                ended,
                digest,
                times,
                ..
            }) = self.pulls.remove(&key)
            else {
                continue;
            };
            let _ = thread.join();
            let panicked = || Error::Io("the pull's thread panicked; see the log".to_owned());
            let ended = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Err(error) = ended.unwrap_or_else(|| Err(panicked())) else {
                tracing::info!(store = %key.0, version = key.1.0, "here");
                continue;
            };
            tracing::warn!(store = %key.0, version = key.1.0, %error, "a version, or a part of it, is not here");
            let failed = Bringing::Failed {
                why: format!("{}: {error}", error.code()),
                times: times + 1,
                at: Instant::now(),
                digest,
            };
            self.pulls.insert(key, failed);
        }
    }

    /// Ends pulls that the map no longer requires.
    fn give_up_others(&mut self, wanted: &[Wants]) {
        let is_wanted = |(store, version): &Key, digest: &str| {
            wanted.iter().any(|it| {
                it.store == *store && it.meant.version == *version && it.meant.digest == digest
            })
        };
        let others = self.pulls.extract_if(.., |key, bringing| match bringing {
            Bringing::Runs { digest, .. } | Bringing::Failed { digest, .. } => {
                !is_wanted(key, digest)
            }
        });
        for (_, bringing) in others {
            if let Bringing::Runs { pull, thread, .. } = bringing {
                pull.give_up();
                // The pull removes what it fetched before the map can assign the number to another version.
                let _ = thread.join();
            }
        }
        self.surplus.retain(|(store, version), _| {
            let mut wanted = wanted.iter();
            wanted.any(|it| it.store == *store && it.meant.version == *version)
        });
    }

    fn note_were_live(&mut self, wanted: &[Wants]) {
        let is_live = |was: &Wants| {
            let mut live = wanted.iter().filter(|it| it.kind == Kind::Live);
            live.any(|now| now.store == was.store && now.meant == was.meant)
        };
        let before = self.asked.0.iter().filter(|it| it.kind == Kind::Live);
        for was in before.filter(|was| !is_live(was)) {
            let (store, meant) = (was.store.clone(), was.meant.clone());
            self.were_live.push((store, meant, Instant::now()));
        }
        self.were_live
            .retain(|(_, _, since)| since.elapsed() < NAMED_MAX);
    }

    /// Removes the versions that are not in the map, and records the live ones on disk.
    fn keep_folders(&self, view: &View, wanted: &[Wants]) {
        let stores = &self.shared.stores;
        stores.drop_others(&view.map);
        for (name, of_map) in view.map.stores() {
            let kept = || -> Result<(), Error> {
                let store = stores.get_or_create_followed(name, view.map.cluster())?;
                let meant = wanted.iter().filter(|it| it.store == *name);
                let were_live = self.were_live.iter().filter(|(store, ..)| store == name);
                let meant = meant
                    .map(|it| &it.meant)
                    .chain(were_live.map(|(_, meant, _)| meant));
                let meant: Vec<map::Version> = meant.cloned().collect();
                store.note_live(of_map.live.as_ref())?;
                store.keep_only(&meant)
            };
            if let Err(error) = kept() {
                tracing::warn!(store = %name, %error, "the store's folder is not as the map says");
            }
        }
    }

    /// Returns this node's progress with a version, and starts the next step.
    fn see_to(&mut self, membership: &Membership, view: &View, wants: &Wants) -> Progress {
        let key = (wants.store.clone(), wants.meant.version);
        let pulling = |(bytes, of_bytes)| Progress::Pulling { bytes, of_bytes };
        let running = self
            .pulls
            .values()
            .filter(|it| matches!(it, Bringing::Runs { .. }))
            .count();
        let mut times = 0;
        match self.pulls.get(&key) {
            Some(Bringing::Runs { pull, .. }) => return pulling(pull.bytes()),
            Some(Bringing::Failed {
                why,
                times: before,
                at,
                ..
            }) => {
                let is_over = wants.kind == Kind::Pushed || at.elapsed() < again_after(*before);
                if is_over {
                    return Progress::Failed { why: why.clone() };
                }
                times = *before;
            }
            None => {}
        }
        let store = match self.shared.stores.get(wants.store.as_str()) {
            Ok(store) => store,
            Err(error) => return failed(&error),
        };
        if self.is_ready(&store, &key, wants) {
            self.pulls.remove(&key);
            return Progress::Ready {
                digest: wants.meant.digest.clone(),
            };
        }
        if running >= self.shared.pulls.running_max() {
            return pulling((0, 0));
        }
        let standing = membership.standing();
        let reports = standing.as_ref().map(|it| &*it.known.reports);
        let order = wants.order(&self.shared, peers(&self.shared, view, reports, wants));
        let digest = wants.meant.digest.clone();
        let begun = Pull::of_cluster(&order).and_then(|pull| {
            let pull = Arc::new(pull);
            let (shared, its) = (self.shared.clone(), pull.clone());
            let ended = Arc::new(Mutex::new(None));
            let end = ended.clone();
            let thread = spawn_low("larder-pull", move || {
                let what = format!("pull of version {} of store {}", order.version, order.store);
                let result = contain(&what, || bring(&shared, &its, &order));
                *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                shared.agent.up();
            });
            let thread = thread.map_err(|error| {
                Error::Io(format!("cannot start a thread for the pull: {error}"))
            })?;
            Ok(Bringing::Runs {
                pull,
                thread,
                ended,
                digest,
                times,
            })
        });
        match begun {
            Ok(bringing) => {
                self.pulls.insert(key, bringing);
                pulling((0, 0))
            }
            Err(error) => failed(&error),
        }
    }

    /// Returns whether all required partitions are present. Surplus partitions are removed after a while.
    fn is_ready(&mut self, store: &Store, key: &Key, wants: &Wants) -> bool {
        let Some(version) = store.ready(&wants.meant) else {
            return false;
        };
        let here = version.partitions_here();
        let count = version.manifest().partitions;
        let wanted = Partitions::of_slots(wants.slots.iter().copied(), count);
        if !here.includes(&wanted) {
            return false;
        }
        let surplus = here.without(&wanted);
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
        match drop_partitions(store, wants.meant.version, &wanted) {
            Ok(()) => {
                tracing::info!(store = %store.name, version = key.1.0, partitions = surplus.len(), "partitions whose slots are elsewhere were removed")
            }
            Err(error) => {
                tracing::warn!(store = %store.name, version = key.1.0, %error, "partitions whose slots are elsewhere were not removed")
            }
        }
        true
    }
}

fn failed(error: &Error) -> Progress {
    Progress::Failed {
        why: format!("{}: {error}", error.code()),
    }
}

/// Doubles with every failure.
fn again_after(times: u32) -> Duration {
    let doubled = AGAIN_FIRST.saturating_mul(1 << times.saturating_sub(1).min(16));
    doubled.min(AGAIN_MAX)
}
