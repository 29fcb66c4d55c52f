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

use super::{Decision, Progress, Rest, World};
use crate::map::{Change, NodeId, Push, Store};

pub(super) fn decide(world: &World<'_>, rest: &mut Rest) -> Option<Decision> {
    for (name, store) in world.map.stores() {
        let decision = caught_up(world, name, store);
        let decision = decision.or_else(|| {
            store
                .push
                .as_ref()
                .and_then(|push| pushed(world, rest, name, store, push))
        });
        if decision.is_some() {
            return decision;
        }
    }
    None
}

/// The progress of the slot holders with a version.
pub(super) struct Standing {
    pub ready: Vec<NodeId>,
    /// With the reason.
    pub failed: Vec<(NodeId, String)>,
    pub pending: Vec<NodeId>,
    pub bytes: u64,
}

impl Standing {
    pub fn of(world: &World<'_>, name: &StoreName, store: &Store, version: VersionId) -> Standing {
        let mut holders: Vec<NodeId> = world
            .map
            .slots()
            .runs()
            .iter()
            .flat_map(|run| run.placed.holders())
            .collect();
        holders.sort_unstable();
        holders.dedup();
        let mut standing = Standing {
            ready: Vec::new(),
            failed: Vec::new(),
            pending: Vec::new(),
            bytes: 0,
        };
        for node in holders {
            let report = world.report(node);
            match report.and_then(|report| report.progress(name, version)) {
                Some(Progress::Ready { digest }) => {
                    if report.is_some_and(|it| it.has(name, store, version)) {
                        standing.ready.push(node)
                    } else {
                        standing.failed.push((node, format!("it pulled digest {digest}, not the one that was pushed; the source has changed, or is damaged")))
                    }
                }
                Some(Progress::Failed { why }) => standing.failed.push((node, why.clone())),
                Some(Progress::Pulling { bytes, .. }) => {
                    standing.bytes += bytes;
                    standing.pending.push(node);
                }
                None => standing.pending.push(node),
            }
        }
        standing
    }

    /// Returns a slot that none of the nodes in `able` holds.
    pub fn uncovered(&self, world: &World<'_>, able: &[NodeId]) -> Option<u16> {
        let runs = world.map.slots().runs().iter();
        let mut bare = runs.filter(|run| {
            run.placed.owner.is_some() && !run.placed.holders().any(|node| able.contains(&node))
        });
        bare.next().map(|run| run.slots.from)
    }

    pub fn lacking(&self) -> Vec<NodeId> {
        let failed = self.failed.iter().map(|&(node, _)| node);
        failed.chain(self.pending.iter().copied()).collect()
    }
}

fn pushed(
    world: &World<'_>,
    rest: &mut Rest,
    name: &StoreName,
    store: &Store,
    push: &Push,
) -> Option<Decision> {
    let version = push.version.version;
    let standing = Standing::of(world, name, store, version);
    if standing.ready.is_empty() && standing.failed.is_empty() && standing.pending.is_empty() {
        return None;
    }
    let fail = |why: String| {
        let change = Change::PushFailed {
            store: name.clone(),
            version,
            why: why.clone(),
        };
        world.change(change, why)
    };
    // Nodes that are down cannot pull; they count as absent until they return.
    let (away, pulling): (Vec<NodeId>, Vec<NodeId>) = standing
        .pending
        .iter()
        .partition(|&&node| !world.map.is_up(node));
    if let Some((node, why)) = standing.failed.first() {
        let who = world.map.name_of(*node);
        let count = standing.failed.len();
        if count > push.allow_missing_replicas as usize {
            return fail(format!("{who}: {why}"));
        }
        let mut able = standing.ready.clone();
        able.extend(&standing.pending);
        if let Some(slot) = standing.uncovered(world, &able) {
            return fail(format!("{who}: {why}; and no other node has slot {slot}"));
        }
    }
    let missing = standing.failed.len() + away.len();
    let is_covered = || standing.uncovered(world, &standing.ready).is_none();
    if pulling.is_empty() && missing <= push.allow_missing_replicas as usize && is_covered() {
        let lacking = standing.lacking();
        let why = format!(
            "{} nodes have version {version} of store {name}, {} lack it",
            standing.ready.len(),
            lacking.len()
        );
        let change = Change::VersionLive {
            store: name.clone(),
            version,
            lacking,
        };
        return world.change(change, why);
    }
    // Progress is recorded in the map from time to time, so that a stalled push can be detected.
    let silence_ms = world.map.settings().push_silence_ms;
    let done = standing
        .bytes
        .saturating_add((standing.ready.len() as u64) << 40);
    let silent_ms = world.now_ms.saturating_sub(push.progress_ms);
    if done != push.progress && silent_ms >= silence_ms / 4 {
        let change = Change::PushProgressed {
            store: name.clone(),
            version,
            progress: done,
            at_ms: world.now_ms,
        };
        return world.change(
            change,
            format!("nodes pull version {version} of store {name}"),
        );
    }
    if silent_ms >= silence_ms {
        let waiting: Vec<String> = standing
            .pending
            .iter()
            .take(4)
            .map(|&node| world.map.name_of(node))
            .collect();
        return fail(format!(
            "no node told of progress for {} seconds; waiting for {}",
            silent_ms / 1000,
            waiting.join(", ")
        ));
    }
    rest.look_again_at(push.progress_ms.saturating_add(silence_ms));
    None
}

/// Nodes that lacked the live version and now have it, or that hold no slots any more.
fn caught_up(world: &World<'_>, name: &StoreName, store: &Store) -> Option<Decision> {
    let version = store.live.as_ref()?.version;
    let holds = |node: NodeId| {
        world
            .map
            .slots()
            .runs()
            .iter()
            .any(|run| run.placed.is_holder(node))
    };
    let has = |node: NodeId| {
        world
            .report(node)
            .is_some_and(|report| report.has(name, store, version))
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
    some.then(|| world.change(change, why)).flatten()
}
