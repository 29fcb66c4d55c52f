//! The state of one pull: the request, its progress, and its stop switch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use larder_protocol::http::{
    ErrorInfo, NodePull, NodePullState, PullRequest, PullState, PullStatus,
};
use larder_remote::Location;
use larder_types::StoreName;
use tokio::sync::watch;

use super::cluster::VersionRequest;
use crate::clock::unix_seconds;
use crate::error::Error;

/// A pull or a compaction; see the module.
pub struct Pull {
    pub id: String,
    pub store: StoreName,
    pub request: PullRequest,
    /// The source for display, without credentials.
    pub source: String,
    started_at: u64,
    cancel: watch::Sender<Option<Stop>>,
    pub(super) version: AtomicU64,
    pub(super) bytes_done: AtomicU64,
    pub(super) bytes_total: AtomicU64,
    /// Since the start, without what an earlier attempt left.
    pub(super) bytes_fetched: AtomicU64,
    /// Linked locally instead of fetched.
    pub(super) bytes_linked: AtomicU64,
    /// It is a compaction of the live version, not a pull.
    pub(super) is_compaction: bool,
    progress: Mutex<PullProgress>,
    /// The nodes of a push in a cluster.
    nodes: Mutex<Vec<NodePull>>,
    /// Becomes true once, after the last change of `progress`.
    ended: watch::Sender<bool>,
}

/// The reason why a pull stops early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The pull was cancelled: the server removes the fetched data.
    Cancelled,
    /// The server stops: the fetched data is kept for the next pull.
    Shutdown,
    /// A compaction was displaced by a pull of its store, which has priority.
    Displaced,
}

struct PullProgress {
    state: PullState,
    error: Option<ErrorInfo>,
    fetch_began: Instant,
    fetch_ended: Option<Instant>,
    ended_at: Option<u64>,
}

pub(super) fn end_state(result: &Result<(), Error>) -> PullState {
    match result {
        Ok(()) => PullState::Done,
        Err(Error::Cancelled | Error::Displaced(_)) => PullState::Cancelled,
        Err(_) => PullState::Failed,
    }
}

impl Pull {
    pub(super) fn new(id: String, store: StoreName, request: PullRequest, source: String) -> Pull {
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
            progress: Mutex::new(PullProgress {
                state: PullState::Waiting,
                error: None,
                fetch_began: Instant::now(),
                fetch_ended: None,
                ended_at: None,
            }),
            nodes: Mutex::default(),
            ended: watch::Sender::new(false),
        }
    }

    /// Converts it into a compaction of the live version.
    pub(super) fn into_compaction(self) -> Pull {
        Pull {
            is_compaction: true,
            ..self
        }
    }

    /// A pull that the cluster's map requires. It is not listed among those that clients requested.
    pub(crate) fn for_cluster(order: &VersionRequest) -> Result<Pull, Error> {
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

    /// The bytes present, and the total.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (
            self.bytes_done.load(Relaxed),
            self.bytes_total.load(Relaxed),
        )
    }

    /// Cancels a pull of the cluster, because the version is no longer required.
    pub(crate) fn cancel(&self) {
        self.stop(Stop::Cancelled);
    }

    /// Stops for a shutdown: the fetched data is kept.
    pub(crate) fn interrupt(&self) {
        self.stop(Stop::Shutdown);
    }

    pub(super) fn has_ended(&self) -> bool {
        self.progress().state.has_ended()
    }

    /// Returns when the pull has ended.
    pub async fn wait_until_ended(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
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
            state: self.shown_state(progress.state),
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

    /// Updates the progress of each node. A ready node no longer reports its number of bytes, so the previous value is kept.
    pub(super) fn set_nodes(&self, mut nodes: Vec<NodePull>) {
        let mut known = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        for node in nodes
            .iter_mut()
            .filter(|it| it.state == NodePullState::Ready)
        {
            let before = known.iter().find(|it| it.node == node.node);
            let bytes = before.map_or(0, |it| it.bytes_total);
            (node.bytes_done, node.bytes_total) = (bytes, bytes);
        }
        let sum = |of: fn(&NodePull) -> u64| nodes.iter().map(of).sum::<u64>();
        self.bytes_done.store(sum(|it| it.bytes_done), Relaxed);
        self.bytes_total.store(sum(|it| it.bytes_total), Relaxed);
        *known = nodes;
    }

    /// The state as shown to clients.
    fn shown_state(&self, state: PullState) -> PullState {
        let is_stopping = matches!(self.stopped(), Some(Stop::Cancelled | Stop::Displaced));
        match state {
            PullState::Fetching | PullState::Verifying | PullState::Warming if is_stopping => {
                PullState::Cancelling
            }
            state => state,
        }
    }

    /// Requests the pull to stop. It does so at its next chunk, but not once it is swapping.
    pub(super) fn stop(&self, why: Stop) {
        self.cancel.send_if_modified(|stop| {
            let is_first = stop.is_none();
            if is_first {
                *stop = Some(why);
            }
            is_first
        });
    }

    pub(super) fn stopped(&self) -> Option<Stop> {
        *self.cancel.borrow()
    }

    pub(super) fn check_cancelled(&self) -> Result<(), Error> {
        match self.stopped() {
            None => Ok(()),
            Some(_) => Err(Error::Cancelled),
        }
    }

    /// Returns when the pull has been requested to stop.
    pub(super) async fn cancelled(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.cancel.subscribe().wait_for(Option::is_some).await;
    }

    pub(super) fn begin(&self) {
        let mut progress = self.progress();
        (progress.state, progress.fetch_began) = (PullState::Fetching, Instant::now());
    }

    pub(super) fn enter(&self, state: PullState) {
        let mut progress = self.progress();
        if progress.state == PullState::Fetching {
            progress.fetch_ended = Some(Instant::now());
        }
        progress.state = state;
    }

    pub(super) fn end(&self, result: &Result<(), Error>) {
        self.record_end(result);
        self.ended.send_replace(true);
    }

    fn record_end(&self, result: &Result<(), Error>) {
        let mut progress = self.progress();
        progress.fetch_ended.get_or_insert_with(Instant::now);
        progress.ended_at = Some(unix_seconds());
        progress.error = result.as_ref().err().map(Error::info);
        progress.state = end_state(result);
    }

    pub(super) fn count_fetched(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
        self.bytes_fetched.fetch_add(bytes, Relaxed);
    }

    pub(super) fn count_resumed(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
    }

    pub(super) fn count_linked(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Relaxed);
        self.bytes_linked.fetch_add(bytes, Relaxed);
    }

    pub(super) fn count_discarded(&self, bytes: u64) {
        self.bytes_done.fetch_sub(bytes, Relaxed);
    }

    fn progress(&self) -> MutexGuard<'_, PullProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pull's thread has low priority, and may be in the middle of a file.
    #[test]
    fn a_stopped_pull_reports_cancelling_until_it_ends() {
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
        assert!(!cancelled.status().state.has_ended());
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
