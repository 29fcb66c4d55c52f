//! The lifecycle of a push, and of versions on nodes that were down.
//!
//! ```text
//!  requested ──► pushing: nodes pull and report ──► all holders of slots are ready ─────────────► live
//!                    │                          └─► at most the allowed number failed, and every
//!                    │                              slot has a holder that is ready ────────────► live, some lack it
//!                    └─► otherwise failed, or no progress for too long ─────────────────────────► failed, everywhere
//! ```
//!
//! A push depends only on the controller: it continues if the client that requested it has disconnected.

use larder_types::{StoreName, VersionId};

use super::{Decision, IdleState, Inputs, Progress};
use crate::map::{Change, NodeId, Push, Store};

pub(super) fn decide(inputs: &Inputs<'_>, idle: &mut IdleState) -> Option<Decision> {
    for (name, store) in inputs.map.stores() {
        let decision = record_caught_up(inputs, name, store);
        let decision = decision.or_else(|| {
            store
                .push
                .as_ref()
                .and_then(|push| advance_push(inputs, idle, name, store, push))
        });
        if decision.is_some() {
            return decision;
        }
    }
    None
}

/// The progress of the slot holders with a version.
pub(super) struct PushProgress {
    pub ready: Vec<NodeId>,
    /// With the reason.
    pub failed: Vec<(NodeId, String)>,
    pub pending: Vec<NodeId>,
    pub bytes: u64,
}

impl PushProgress {
    pub fn collect(
        inputs: &Inputs<'_>,
        name: &StoreName,
        store: &Store,
        version: VersionId,
    ) -> PushProgress {
        let mut holders: Vec<NodeId> = inputs
            .map
            .slots()
            .runs()
            .iter()
            .flat_map(|run| run.placement.holders())
            .collect();
        holders.sort_unstable();
        holders.dedup();
        let mut progress = PushProgress {
            ready: Vec::new(),
            failed: Vec::new(),
            pending: Vec::new(),
            bytes: 0,
        };
        for node in holders {
            let report = inputs.report(node);
            match report.and_then(|report| report.progress(name, version)) {
                Some(Progress::Ready { digest }) => {
                    if report.is_some_and(|it| it.has_version(name, store, version)) {
                        progress.ready.push(node)
                    } else {
                        progress.failed.push((node, format!("it pulled digest {digest}, which is not the pushed one; the source has changed or is damaged")))
                    }
                }
                Some(Progress::Failed { why }) => progress.failed.push((node, why.clone())),
                Some(Progress::Pulling { bytes, .. }) => {
                    progress.bytes += bytes;
                    progress.pending.push(node);
                }
                None => progress.pending.push(node),
            }
        }
        progress
    }

    /// Returns a slot that none of the nodes in `able` holds.
    pub fn find_uncovered_slot(&self, inputs: &Inputs<'_>, able: &[NodeId]) -> Option<u16> {
        let runs = inputs.map.slots().runs().iter();
        let mut bare = runs.filter(|run| {
            run.placement.owner.is_some()
                && !run.placement.holders().any(|node| able.contains(&node))
        });
        bare.next().map(|run| run.slots.from)
    }

    pub fn missing_nodes(&self) -> Vec<NodeId> {
        let failed = self.failed.iter().map(|&(node, _)| node);
        failed.chain(self.pending.iter().copied()).collect()
    }
}

fn advance_push(
    inputs: &Inputs<'_>,
    idle: &mut IdleState,
    name: &StoreName,
    store: &Store,
    push: &Push,
) -> Option<Decision> {
    let version = push.version.version;
    let progress = PushProgress::collect(inputs, name, store, version);
    if progress.ready.is_empty() && progress.failed.is_empty() && progress.pending.is_empty() {
        return None;
    }
    let fail = |why: String| {
        let change = Change::PushFailed {
            store: name.clone(),
            version,
            why: why.clone(),
        };
        inputs.change(change, why)
    };
    // Nodes that are down cannot pull; they count as absent until they return.
    let (away, pulling): (Vec<NodeId>, Vec<NodeId>) = progress
        .pending
        .iter()
        .partition(|&&node| !inputs.map.is_up(node));
    if let Some((node, why)) = progress.failed.first() {
        let who = inputs.map.name_of(*node);
        let count = progress.failed.len();
        if count > push.allow_missing_replicas as usize {
            return fail(format!("{who}: {why}"));
        }
        let mut able = progress.ready.clone();
        able.extend(&progress.pending);
        if let Some(slot) = progress.find_uncovered_slot(inputs, &able) {
            return fail(format!("{who}: {why}; and no other node has slot {slot}"));
        }
    }
    let missing = progress.failed.len() + away.len();
    let is_covered = || {
        progress
            .find_uncovered_slot(inputs, &progress.ready)
            .is_none()
    };
    if pulling.is_empty() && missing <= push.allow_missing_replicas as usize && is_covered() {
        let lacking = progress.missing_nodes();
        let why = format!(
            "{} nodes have version {version} of store {name}, {} lack it",
            progress.ready.len(),
            lacking.len()
        );
        let change = Change::VersionLive {
            store: name.clone(),
            version,
            missing: lacking,
        };
        return inputs.change(change, why);
    }
    // Progress is recorded in the map from time to time, so that a stalled push can be detected.
    let silence_ms = inputs.map.settings().push_silence_ms;
    let done = progress
        .bytes
        .saturating_add((progress.ready.len() as u64) << 40);
    let silent_ms = inputs.now_ms.saturating_sub(push.progress_ms);
    if done != push.progress && silent_ms >= silence_ms / 4 {
        let change = Change::PushProgressed {
            store: name.clone(),
            version,
            progress: done,
            at_ms: inputs.now_ms,
        };
        return inputs.change(
            change,
            format!("nodes pull version {version} of store {name}"),
        );
    }
    if silent_ms >= silence_ms {
        let waiting: Vec<String> = progress
            .pending
            .iter()
            .take(4)
            .map(|&node| inputs.map.name_of(node))
            .collect();
        return fail(format!(
            "no node reported progress for {} seconds; waiting for {}",
            silent_ms / 1000,
            waiting.join(", ")
        ));
    }
    idle.wake_at(push.progress_ms.saturating_add(silence_ms));
    None
}

/// Nodes that lacked the live version and now have it, or that hold no slots any more.
fn record_caught_up(inputs: &Inputs<'_>, name: &StoreName, store: &Store) -> Option<Decision> {
    let version = store.live.as_ref()?.version;
    let holds = |node: NodeId| {
        inputs
            .map
            .slots()
            .runs()
            .iter()
            .any(|run| run.placement.is_holder(node))
    };
    let has = |node: NodeId| {
        inputs
            .report(node)
            .is_some_and(|report| report.has_version(name, store, version))
    };
    let nodes: Vec<NodeId> = store
        .lacking
        .iter()
        .copied()
        .filter(|&node| has(node) || !holds(node))
        .collect();
    let some = !nodes.is_empty();
    let why = format!(
        "{} nodes have caught up with version {version} of store {name}",
        nodes.len()
    );
    let change = Change::CaughtUp {
        store: name.clone(),
        version,
        nodes,
    };
    some.then(|| inputs.change(change, why)).flatten()
}
