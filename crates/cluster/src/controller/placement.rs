//! Computes the target placement of slots when the set of nodes has changed.

use std::collections::BTreeSet;

use larder_types::SLOTS;

use super::{Decision, Rest, World};
use crate::map::{Change, Map, Member, NodeId, SlotRange, State};
use crate::placement::{Node, held, place, place_outputs};

pub(super) fn decide(world: &World<'_>, rest: &mut Rest) -> Option<Decision> {
    let map = world.map;
    let settings = map.settings();
    let unreached = unreached(world);
    let mut base: Vec<Node> = Vec::new();
    for member in map.members().iter().filter(|member| member.may_hold()) {
        if unreached.contains(&member.id) {
            continue;
        }
        let replaced_at = member.since_ms.saturating_add(settings.replace_after_ms);
        if member.state == State::Down && replaced_at <= world.now_ms {
            continue;
        }
        if member.state == State::Down {
            rest.look_again_at(replaced_at);
        }
        base.push(Node::of(member));
    }
    let has_slots = |map: &Map| {
        map.slots()
            .runs()
            .iter()
            .any(|run| run.placed.owner.is_some())
    };
    if base.is_empty() || (!has_slots(map) && base.len() < settings.start_nodes as usize) {
        return None;
    }
    if let Some(decision) = taken(world, &base, &unreached, "who is there has changed") {
        return Some(decision);
    }
    // Slots without an owner, because none of their target nodes was up.
    let lacking = map
        .slots()
        .runs()
        .iter()
        .any(|run| run.placed.owner.is_none());
    let is_up = |node: &Node| map.is_up(node.id);
    base.retain(is_up);
    if lacking && !base.is_empty() {
        return taken(
            world,
            &base,
            &unreached,
            "slots without owner are placed on nodes that are up",
        );
    }
    None
}

/// Returns the nodes that hold no slots and that most slot holders cannot reach. Nothing is placed on them, because no owner
/// could send them rows. A node that holds slots keeps them: moving them away requires a connection to it.
fn unreached(world: &World<'_>) -> Vec<NodeId> {
    let map = world.map;
    let named = |member: &&Member| {
        let reports = world.reports.values();
        let mut named = reports.flat_map(|report| report.unreached.keys());
        named.any(|name| name == member.name())
    };
    let named: Vec<&Member> = map.members().iter().filter(named).collect();
    if named.is_empty() {
        return Vec::new();
    }
    let runs = map.slots().runs().iter();
    let holders: BTreeSet<NodeId> = runs.flat_map(|run| run.placed.holders()).collect();
    let computes = |node: NodeId| map.outputs().any(|(_, it)| it == node);
    let empty = named.into_iter().filter(|member| {
        !holders.contains(&member.id) && !computes(member.id) && {
            let heard = holders.iter().filter_map(|holder| world.report(*holder));
            let (all, without) = heard.fold((0, 0), |(all, without), report| {
                let lacks = report.unreached.contains_key(member.name());
                (all + 1, without + usize::from(lacks))
            });
            2 * without > all
        }
    });
    empty.map(|member| member.id).collect()
}

fn taken(world: &World<'_>, base: &[Node], unreached: &[NodeId], why: &str) -> Option<Decision> {
    let map = world.map;
    let settings = map.settings();
    let compute = computing(map, unreached);
    let from = fingerprint(base, &compute, settings.replicas, settings.spare_percent);
    if from == map.placed_from() {
        return None;
    }
    let goals = place(
        &held(map, base),
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
    world.change(
        Change::PlacementTaken {
            goals,
            outputs,
            from,
        },
        why,
    )
}

/// Returns the nodes that compute outputs if these are not simply the slots' owners, that is, if some nodes have only one role.
fn computing(map: &Map, unreached: &[NodeId]) -> Vec<Node> {
    let in_service = || {
        map.members()
            .iter()
            .filter(|it| it.leaving.is_none() && it.state != State::Joining)
    };
    let is_one_tier = in_service()
        .all(|it| it.registration.roles.is_base() && it.registration.roles.is_compute());
    if is_one_tier {
        return Vec::new();
    }
    let able =
        in_service().filter(|member| member.may_compute() && !unreached.contains(&member.id));
    able.take(usize::from(SLOTS))
        .map(Node::of)
        .collect::<Vec<Node>>()
}

/// Returns a number that changes whenever the placement would change (FNV-1a). Never 0.
fn fingerprint(base: &[Node], compute: &[Node], replicas: u8, spare: u8) -> u64 {
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
