//! The registry of running, queued and ended pulls, which assigns threads.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use larder_protocol::http::{PullRequest, PullStatus};
use larder_types::{StoreName, VersionId};

use super::state::{Pull, Stop, end_state};
use super::{cluster, compact, pull};
use crate::Shared;
use crate::error::Error;
use crate::low_priority::spawn_low_priority;
use crate::membership::Membership;
use crate::metrics::EndedCounts;
use crate::supervision::contain;

/// Maximum number of ended pulls that `GET /v1/pulls` shows.
const ENDED_LEN_MAX: usize = 200;

#[derive(Default)]
pub(super) struct Registry {
    last_id: u64,
    pub running: HashMap<StoreName, (Arc<Pull>, JoinHandle<()>)>,
    /// In the order in which they will run.
    pub waiting: VecDeque<Arc<Pull>>,
    /// Running and ended pulls, oldest first.
    pub all: VecDeque<Arc<Pull>>,
    pub ended: EndedCounts,
    /// The versions whose compaction the server has started automatically, so that a failing one is not repeated.
    compacted: HashSet<(StoreName, VersionId)>,
    /// Bytes fetched by ended pulls.
    pub fetched_bytes: u64,
    /// The server is stopping.
    pub closed: bool,
}

impl Registry {
    pub fn new_pull(&mut self, store: StoreName, request: PullRequest, source: String) -> Pull {
        self.last_id += 1;
        Pull::new(self.last_id.to_string(), store, request, source)
    }

    /// Returns whether the server may start to compact the version now and has not done so before. Records the attempt.
    pub fn mark_compacted(&mut self, store: &StoreName, id: VersionId) -> bool {
        self.find_pull(store).is_none() && self.compacted.insert((store.clone(), id))
    }

    /// Stops the store's compaction, if there is one, in favor of a pull. It may start again later. Returns whether the pull must
    /// wait for it.
    pub fn displace_compaction(&mut self, store: &StoreName) -> bool {
        let Some(compaction) = self.find_pull(store).cloned() else {
            return false;
        };
        compaction.stop(Stop::Displaced);
        self.compacted.retain(|(name, _)| name != store);
        if let Some(place) = self.waiting.iter().position(|it| it.id == compaction.id) {
            self.waiting.remove(place);
            let result = Err(compact::displaced_error(&compaction));
            self.count_end(&compaction, &result);
            compaction.end(&result);
        }
        self.running.contains_key(store)
    }

    /// Runs a pull before all queued ones, once nothing of its store is running.
    pub fn enqueue_first(
        &mut self,
        shared: &Arc<Shared>,
        pull: Pull,
        running_max: usize,
    ) -> Result<PullStatus, Error> {
        let pull = Arc::new(pull);
        let is_free = !self.running.contains_key(&pull.store) && self.running.len() < running_max;
        if is_free {
            self.run(shared, &pull)?
        } else {
            self.waiting.push_front(pull.clone())
        }
        Ok(self.list(pull))
    }

    pub fn enqueue(
        &mut self,
        shared: &Arc<Shared>,
        pull: Arc<Pull>,
        waits: bool,
    ) -> Result<PullStatus, Error> {
        if waits {
            self.waiting.push_back(pull.clone())
        } else {
            self.run(shared, &pull)?
        }
        Ok(self.list(pull))
    }

    /// Lists a pull that has a thread or a place in the queue.
    fn list(&mut self, pull: Arc<Pull>) -> PullStatus {
        self.all.push_back(pull.clone());
        self.forget_oldest();
        pull.status()
    }

    /// The store's queued or running pull; the queued one if it displaced a compaction that has not stopped yet.
    pub fn find_pull(&self, store: &StoreName) -> Option<&Arc<Pull>> {
        let waiting = self.waiting.iter().find(|pull| pull.store == *store);
        waiting.or_else(|| self.running.get(store).map(|(pull, _)| pull))
    }

    /// Removes and returns the first queued pull whose store has nothing running.
    fn pop_ready(&mut self) -> Option<Arc<Pull>> {
        let is_ready = |pull: &Arc<Pull>| !self.running.contains_key(&pull.store);
        let place = self.waiting.iter().position(is_ready)?;
        self.waiting.remove(place)
    }

    /// Starts a pull's thread.
    fn run(&mut self, shared: &Arc<Shared>, pull: &Arc<Pull>) -> Result<(), Error> {
        pull.begin();
        let (thread_pull, thread_shared) = (pull.clone(), shared.clone());
        let thread = spawn_low_priority("larder-pull", move || {
            let membership = thread_shared.membership.as_ref();
            let uses_etcd = membership.is_some_and(Membership::uses_etcd);
            let what = format!("pull {} of store {}", thread_pull.id, thread_pull.store);
            let result = contain(&what, || match uses_etcd {
                _ if thread_pull.is_compaction => compact::run(&thread_shared, &thread_pull),
                true => cluster::push::run(&thread_shared, &thread_pull),
                false => pull::run(&thread_shared, &thread_pull),
            });
            // The lock is held until the entry is in the registry. A client that sees the end can start the next pull.
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

    /// Removes an ended pull, and starts queued ones in its place.
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
            let ended = self.all.iter().position(|pull| pull.has_ended());
            let Some(oldest) = ended else { return };
            self.all.remove(oldest);
        }
    }

    pub fn count_end(&mut self, pull: &Pull, result: &Result<(), Error>) {
        self.fetched_bytes += pull.bytes_fetched.load(Relaxed);
        let state = end_state(result).name();
        *self.ended.entry((pull.store.clone(), state)).or_default() += 1;
    }
}
