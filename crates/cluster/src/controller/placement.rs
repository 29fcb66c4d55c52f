//! Where slots are to be, when who is there has changed.

use larder_types::SLOTS;

use super::{Decision, Rest, World};
use crate::map::{Change, Map, NodeId, SlotRange, State};
use crate::placement::{Node, held, place, place_outputs};

pub(super) fn decide(world: &World<'_>, rest: &mut Rest) -> Option<Decision> {
    let map = world.map;
    let settings = map.settings();
    let mut base: Vec<Node> = Vec::new();
    for member in map.members().iter().filter(|member| member.may_hold()) {
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
    if let Some(decision) = taken(world, &base, "who is there has changed") {
        return Some(decision);
    }
    // Slots that nobody has, because none of those that are to have them was up.
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
            "slots without owner are placed on nodes that are up",
        );
    }
    None
}

fn taken(world: &World<'_>, base: &[Node], why: &str) -> Option<Decision> {
    let map = world.map;
    let settings = map.settings();
    let compute = computing(map);
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
    let outputs = match compute.is_empty() {
        true => Vec::new(),
        false => place_outputs(&old, &compute, settings.spare_percent),
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

/// Who computes outputs, if that is not to be each slot's owner: where some nodes have one role alone.
fn computing(map: &Map) -> Vec<Node> {
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
    let able = in_service().filter(|member| member.may_compute());
    able.take(usize::from(SLOTS))
        .map(Node::of)
        .collect::<Vec<Node>>()
}

/// A number that differs where the placement would (FNV-1a). Never 0.
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
