//! Changes of members: added, lost, returned, removed.

use std::collections::BTreeSet;

use super::ensure;
use crate::map::slots::Placement;
use crate::map::{
    Departure, Epoch, Map, Member, MemberState, NodeId, Registration, SlotRange, Term,
};

pub(super) fn add(map: &mut Map, registration: &Registration, at_ms: u64) -> Result<(), String> {
    let name = &registration.name;
    let known = map.member_named(name);
    ensure(known.is_none(), || format!("{name} is already a member"))?;
    check_registration(registration)?;
    map.members.push(Member {
        id: map.next_node,
        registration: registration.clone(),
        state: MemberState::Joining,
        since_ms: at_ms,
        leaving: None,
        is_stopping: false,
    });
    map.next_node = NodeId(map.next_node.0 + 1);
    Ok(())
}

pub(super) fn update(
    map: &mut Map,
    node: NodeId,
    registration: &Registration,
) -> Result<(), String> {
    check_registration(registration)?;
    check_role_change(map, node, registration)?;
    let member = member_mut(map, node)?;
    let before = &member.registration;
    ensure(member.state != MemberState::Down, || {
        format!(
            "{} is down; it must return before it can register new properties",
            before.name
        )
    })?;
    let same = before.name == registration.name
        && before.incarnation == registration.incarnation
        && before.disk == registration.disk;
    ensure(same, || {
        format!(
            "{} has another name, incarnation or disk than in the map; it must be marked lost, then return",
            registration.name
        )
    })?;
    ensure(before != registration, || {
        format!("{} registered no new properties", before.name)
    })?;
    member.registration = registration.clone();
    Ok(())
}

pub(super) fn admit(map: &mut Map, nodes: &[NodeId], at_ms: u64) -> Result<(), String> {
    ensure(!nodes.is_empty(), || "no node is admitted".into())?;
    for &node in nodes {
        let member = member_mut(map, node)?;
        ensure(member.state == MemberState::Joining, || {
            format!("{} is not joining", member.registration.name)
        })?;
        member.state = MemberState::Up;
        member.since_ms = at_ms;
    }
    Ok(())
}

pub(super) fn mark_lost(
    map: &mut Map,
    nodes: &[NodeId],
    owners: &[(SlotRange, NodeId)],
    at_ms: u64,
) -> Result<(), String> {
    let lost: BTreeSet<NodeId> = nodes.iter().copied().collect();
    ensure(!lost.is_empty(), || "no node is lost".into())?;
    for &node in &lost {
        let member = member_mut(map, node)?;
        ensure(member.state != MemberState::Down, || {
            format!("{} is already down", member.registration.name)
        })?;
        member.state = MemberState::Down;
        member.is_stopping = false;
        member.since_ms = at_ms;
    }
    let epoch = map.epoch;
    let mut slots = map.slots.clone();
    slots.edit(owners, |slots, placement, &new| {
        promote(slots, placement, new, &lost)
    })?;
    slots.edit(&[(SlotRange::ALL, ())], |slots, placement, ()| {
        drop_lost(slots, placement, &lost, epoch)
    })?;
    map.slots = slots;
    Ok(())
}

/// Makes a live in-sync replica the owner in place of a lost one.
fn promote(
    slots: SlotRange,
    placement: &mut Placement,
    new: NodeId,
    lost: &BTreeSet<NodeId>,
) -> Result<(), String> {
    ensure(placement.owner.is_some_and(|it| lost.contains(&it)), || {
        format!("an owner of {slots} is not lost")
    })?;
    ensure(
        placement.in_sync.contains(&new) && !lost.contains(&new),
        || format!("{slots}: {new} is not in sync, or is lost too"),
    )?;
    let goal = placement.goal();
    placement.in_sync.retain(|&node| node != new);
    placement.owner = Some(new);
    // `drop_lost` sets the term: it cannot see the change itself, because the previous owner is no longer among the holders.
    placement.term = Term(u64::MAX);
    placement.set_goal(goal);
    Ok(())
}

/// Removes the lost nodes from the slot's in-sync set, provided that a live node holds the slot.
fn drop_lost(
    slots: SlotRange,
    placement: &mut Placement,
    lost: &BTreeSet<NodeId>,
    epoch: Epoch,
) -> Result<(), String> {
    let Some(owner) = placement.owner else {
        return Ok(());
    };
    let goal = placement.goal();
    placement.filling.retain(|it| !lost.contains(&it.node));
    if lost.contains(&owner) {
        let alive = placement.in_sync.iter().find(|it| !lost.contains(it));
        ensure(alive.is_none(), || {
            format!(
                "{slots}: the owner is lost and {alive:?} is in sync, but the change names no new owner"
            )
        })?;
        placement.filling.clear();
    } else {
        let before = placement.in_sync.len();
        placement.in_sync.retain(|it| !lost.contains(it));
        if placement.in_sync.len() < before || placement.term == Term(u64::MAX) {
            placement.term = Term(epoch.0);
        }
    }
    placement.set_goal(goal);
    Ok(())
}

pub(super) fn mark_returned(
    map: &mut Map,
    node: NodeId,
    registration: &Registration,
    at_ms: u64,
) -> Result<(), String> {
    check_registration(registration)?;
    check_role_change(map, node, registration)?;
    let member = member_mut(map, node)?;
    let before = &member.registration;
    let name = registration.name.clone();
    ensure(before.name == name, || {
        format!(
            "{name} is not the name of member {node}, which is {}",
            before.name
        )
    })?;
    ensure(member.state == MemberState::Down, || {
        format!("{name} is not down")
    })?;
    ensure(before.incarnation < registration.incarnation, || {
        format!(
            "{name} has incarnation {}, which is not above incarnation {} in the map",
            registration.incarnation, before.incarnation
        )
    })?;
    let has_rows = before.disk == registration.disk;
    member.registration = registration.clone();
    member.state = MemberState::Up;
    member.since_ms = at_ms;

    let (epoch, term) = (map.epoch, Term(map.epoch.0));
    let mut slots = map.slots.clone();
    slots.edit(&[(SlotRange::ALL, ())], |slots, placement, ()| {
        if !placement.is_holder(node) {
            return Ok(());
        }
        let goal = placement.goal();
        if has_rows {
            // Every node that was in sync when the last of them died has every acknowledged write.
            placement.owner = Some(node);
            placement.in_sync.clear();
        } else {
            let mut others = placement.holders().filter(|&it| it != node);
            let owner = others.next();
            ensure(owner.is_some(), || {
                format!(
                    "{name} returned with another disk, and only it had the rows of {slots}; restore its disk. Only if that is lost permanently: larder cluster remove {name} --lose-rows"
                )
            })?;
            let others: Vec<NodeId> = others.collect();
            (placement.owner, placement.in_sync) = (owner, others);
        }
        placement.term = term;
        placement.set_goal(goal);
        debug_assert!(placement.term.0 <= epoch.0);
        Ok(())
    })?;
    map.slots = slots;
    Ok(())
}

pub(super) fn set_departure(
    map: &mut Map,
    node: NodeId,
    leaving: Option<Departure>,
) -> Result<(), String> {
    let member = member_mut(map, node)?;
    ensure(member.leaving != leaving, || {
        format!("{} already has this request", member.registration.name)
    })?;
    member.leaving = leaving;
    Ok(())
}

pub(super) fn mark_stopping(map: &mut Map, node: NodeId) -> Result<(), String> {
    let member = member_mut(map, node)?;
    ensure(
        member.state == MemberState::Up && !member.is_stopping,
        || {
            format!(
                "{} is not up, or is already stopping",
                member.registration.name
            )
        },
    )?;
    member.is_stopping = true;
    Ok(())
}

pub(super) fn remove(map: &mut Map, node: NodeId) -> Result<(), String> {
    let name = member_mut(map, node)?.registration.name.clone();
    let kept = map
        .slots
        .runs()
        .iter()
        .find(|run| run.placement.includes(node));
    ensure(kept.is_none(), || {
        format!(
            "{name} still holds, or is a target of, {}",
            kept.expect("checked above").slots
        )
    })?;
    let computes = map.outputs.iter().any(|&(_, _, it)| it == node);
    ensure(!computes, || format!("{name} still computes outputs"))?;
    map.members.retain(|member| member.id != node);
    for store in map.stores.values_mut() {
        store.lacking.retain(|&it| it != node);
    }
    Ok(())
}

fn member_mut(map: &mut Map, node: NodeId) -> Result<&mut Member, String> {
    let at = map.members.binary_search_by_key(&node, |it| it.id);
    let at = at.map_err(|_| format!("node number {node} is not a member"))?;
    Ok(&mut map.members[at])
}

/// A node's role may change only while the node holds nothing that the new role excludes.
fn check_role_change(map: &Map, node: NodeId, registration: &Registration) -> Result<(), String> {
    let (name, roles) = (&registration.name, registration.roles);
    let kept = map
        .slots
        .runs()
        .iter()
        .find(|run| run.placement.includes(node));
    ensure(roles.is_base() || kept.is_none(), || {
        format!("{name} holds slots and cannot become a compute-only node; drain it first")
    })?;
    let computes = map.outputs.iter().any(|&(_, _, it)| it == node);
    ensure(roles.is_compute() || !computes, || {
        format!("{name} computes outputs and cannot become a base-only node; drain it first")
    })
}

fn check_registration(registration: &Registration) -> Result<(), String> {
    ensure(registration.weight > 0 && registration.cores > 0, || {
        format!(
            "{} must have a weight and at least one core",
            registration.name
        )
    })
}
