//! The life of a push, and of versions on nodes that were away.
//!
//! ```text
//!  asked ──► pushed: nodes pull, and report ──► all who hold slots are ready ──────────────► live
//!                    │                      └─► some failed, as many as allowed, and every
//!                    │                          slot has a holder who is ready ──────────► live, some lack it
//!                    └─► failed otherwise, or silent for too long ───────────────────────► failed, everywhere
//! ```
//!
//! It hangs on nobody but the controller: whoever asked for it may be gone.

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

/// How those who hold slots are with a version.
pub(super) struct Standing {
    pub ready: Vec<NodeId>,
    /// With the reason, in words.
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
                Some(Progress::Ready { digest }) => match report.is_some_and(|it| it.has(name, store, version)) {
                    true => standing.ready.push(node),
                    false => standing.failed.push((node, format!("it pulled digest {digest}, not the one that was pushed; the source has changed, or is damaged"))),
                },
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

    /// A slot that none of `able` holds.
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
    // Those that are down cannot pull: they are away, as long as they are.
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
    // Progress is written down now and then, so that silence is known for what it is.
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

/// Nodes that lacked the live version and have it now, or hold no slots any more.
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
