//! Computes the target placement of slots when the set of nodes has changed.

use std::collections::BTreeSet;

use larder_types::SLOTS;

use super::{Decision, IdleState, Inputs};
use crate::map::{Change, Map, Member, MemberState, NodeId, SlotRange};
use crate::placement::{PlacementNode, current_placement, place, place_outputs};

pub(super) fn decide(inputs: &Inputs<'_>, idle: &mut IdleState) -> Option<Decision> {
    let map = inputs.map;
    let settings = map.settings();
    let unreached = unreachable_nodes(inputs);
    let mut base: Vec<PlacementNode> = Vec::new();
    for member in map.members().iter().filter(|member| member.may_hold()) {
        if unreached.contains(&member.id) {
            continue;
        }
        let replaced_at = member.since_ms.saturating_add(settings.replace_after_ms);
        if member.state == MemberState::Down && replaced_at <= inputs.now_ms {
            continue;
        }
        if member.state == MemberState::Down {
            idle.wake_at(replaced_at);
        }
        base.push(PlacementNode::of(member));
    }
    let has_slots = |map: &Map| {
        map.slots()
            .runs()
            .iter()
            .any(|run| run.placement.owner.is_some())
    };
    if base.is_empty() || (!has_slots(map) && base.len() < settings.start_nodes as usize) {
        return None;
    }
    if let Some(decision) =
        replace_placement(inputs, &base, &unreached, "the set of nodes has changed")
    {
        return Some(decision);
    }
    // Slots without an owner, because none of their target nodes was up.
    let has_unowned_slots = map
        .slots()
        .runs()
        .iter()
        .any(|run| run.placement.owner.is_none());
    let is_up = |node: &PlacementNode| map.is_up(node.id);
    base.retain(is_up);
    if has_unowned_slots && !base.is_empty() {
        return replace_placement(
            inputs,
            &base,
            &unreached,
            "slots without an owner are placed on nodes that are up",
        );
    }
    None
}

/// Returns the nodes that hold no slots and that most slot holders cannot reach. Nothing is placed on them, because no owner
/// could send them rows. A node that holds slots keeps them: moving them away requires a connection to it.
fn unreachable_nodes(inputs: &Inputs<'_>) -> Vec<NodeId> {
    let map = inputs.map;
    let named = |member: &&Member| {
        let reports = inputs.reports.values();
        let mut named = reports.flat_map(|report| report.unreached.keys());
        named.any(|name| name == member.name())
    };
    let named: Vec<&Member> = map.members().iter().filter(named).collect();
    if named.is_empty() {
        return Vec::new();
    }
    let runs = map.slots().runs().iter();
    let holders: BTreeSet<NodeId> = runs.flat_map(|run| run.placement.holders()).collect();
    let computes = |node: NodeId| map.outputs().any(|(_, it)| it == node);
    let empty = named.into_iter().filter(|member| {
        !holders.contains(&member.id) && !computes(member.id) && {
            let reports = holders.iter().filter_map(|holder| inputs.report(*holder));
            let (all, without) = reports.fold((0, 0), |(all, without), report| {
                let lacks = report.unreached.contains_key(member.name());
                (all + 1, without + usize::from(lacks))
            });
            2 * without > all
        }
    });
    empty.map(|member| member.id).collect()
}

fn replace_placement(
    inputs: &Inputs<'_>,
    base: &[PlacementNode],
    unreached: &[NodeId],
    why: &str,
) -> Option<Decision> {
    let map = inputs.map;
    let settings = map.settings();
    let compute = compute_nodes(map, unreached);
    let from = fingerprint(base, &compute, settings.replicas, settings.spare_percent);
    if from == map.placed_from() {
        return None;
    }
    let goals = place(
        &current_placement(map, base),
        base,
        settings.replicas,
        settings.spare_percent,
    );
    let old: Vec<(SlotRange, NodeId)> = map.outputs().collect();
    let outputs = if compute.is_empty() {
        Vec::new()
    } else {
        place_outputs(&old, &compute, settings.spare_percent)
    };
    inputs.change(
        Change::PlacementReplaced {
            goals,
            outputs,
            from,
        },
        why,
    )
}

/// Returns the nodes that compute outputs if these are not simply the slots' owners, that is, if some nodes have only one role.
fn compute_nodes(map: &Map, unreached: &[NodeId]) -> Vec<PlacementNode> {
    let in_service = || {
        map.members()
            .iter()
            .filter(|it| it.leaving.is_none() && it.state != MemberState::Joining)
    };
    let is_one_tier = in_service()
        .all(|it| it.registration.roles.is_base() && it.registration.roles.is_compute());
    if is_one_tier {
        return Vec::new();
    }
    let able =
        in_service().filter(|member| member.may_compute() && !unreached.contains(&member.id));
    able.take(usize::from(SLOTS))
        .map(PlacementNode::of)
        .collect::<Vec<PlacementNode>>()
}

/// Returns a number that changes whenever the placement would change (FNV-1a). Never 0.
fn fingerprint(base: &[PlacementNode], compute: &[PlacementNode], replicas: u8, spare: u8) -> u64 {
    let mut text = format!("{replicas} {spare}");
    for (tier, nodes) in [("base", base), ("compute", compute)] {
        for node in nodes {
            text += &format!(
                "\n{tier} {} {} {} {}",
                node.id, node.name, node.zone, node.weight
            );
        }
    }
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash.max(1)
}
