//! Changes of members: added, lost, returned, removed.

use std::collections::BTreeSet;

use super::ensure;
use crate::map::slots::Placed;
use crate::map::{Epoch, Leaving, Map, Member, NodeId, Registration, SlotRange, State, Term};

pub(super) fn added(map: &mut Map, registration: &Registration, at_ms: u64) -> Result<(), String> {
    let name = &registration.name;
    let known = map.member_named(name);
    ensure(known.is_none(), || format!("{name} is a member already"))?;
    sound(registration)?;
    map.members.push(Member {
        id: map.next_node,
        registration: registration.clone(),
        state: State::Joining,
        since_ms: at_ms,
        leaving: None,
        is_stopping: false,
    });
    map.next_node = NodeId(map.next_node.0 + 1);
    Ok(())
}

pub(super) fn updated(
    map: &mut Map,
    node: NodeId,
    registration: &Registration,
) -> Result<(), String> {
    sound(registration)?;
    may_change_roles(map, node, registration)?;
    let member = member(map, node)?;
    let before = &member.registration;
    ensure(member.state != State::Down, || {
        format!("{} is down; it has to return first", before.name)
    })?;
    let same = before.name == registration.name
        && before.incarnation == registration.incarnation
        && before.disk == registration.disk;
    ensure(same, || {
        format!(
            "{} has another name, life or disk than the map says; it has to be lost and to return",
            registration.name
        )
    })?;
    ensure(before != registration, || {
        format!("{} says nothing new", before.name)
    })?;
    member.registration = registration.clone();
    Ok(())
}

pub(super) fn admitted(map: &mut Map, nodes: &[NodeId], at_ms: u64) -> Result<(), String> {
    ensure(!nodes.is_empty(), || "no node is admitted".into())?;
    for &node in nodes {
        let member = member(map, node)?;
        ensure(member.state == State::Joining, || {
            format!("{} is not joining", member.registration.name)
        })?;
        member.state = State::Up;
        member.since_ms = at_ms;
    }
    Ok(())
}

pub(super) fn lost(
    map: &mut Map,
    nodes: &[NodeId],
    owners: &[(SlotRange, NodeId)],
    at_ms: u64,
) -> Result<(), String> {
    let lost: BTreeSet<NodeId> = nodes.iter().copied().collect();
    ensure(!lost.is_empty(), || "no node is lost".into())?;
    for &node in &lost {
        let member = member(map, node)?;
        ensure(member.state != State::Down, || {
            format!("{} is down already", member.registration.name)
        })?;
        member.state = State::Down;
        member.is_stopping = false;
        member.since_ms = at_ms;
    }
    let epoch = map.epoch;
    let mut slots = map.slots.clone();
    slots.edit(owners, |slots, placed, &new| {
        promote(slots, placed, new, &lost)
    })?;
    slots.edit(&[(SlotRange::ALL, ())], |slots, placed, ()| {
        drop_lost(slots, placed, &lost, epoch)
    })?;
    map.slots = slots;
    Ok(())
}

/// Makes a live in-sync replica the owner in place of a lost one.
fn promote(
    slots: SlotRange,
    placed: &mut Placed,
    new: NodeId,
    lost: &BTreeSet<NodeId>,
) -> Result<(), String> {
    ensure(placed.owner.is_some_and(|it| lost.contains(&it)), || {
        format!("{slots} have an owner who is not lost")
    })?;
    ensure(
        placed.in_sync.contains(&new) && !lost.contains(&new),
        || format!("{slots}: {new} is not in sync, or is lost too"),
    )?;
    let goal = placed.goal();
    placed.in_sync.retain(|&node| node != new);
    placed.owner = Some(new);
    // `drop_lost` sets the term: it cannot see the change itself, because the previous owner is no longer among the holders.
    placed.term = Term(u64::MAX);
    placed.set_goal(goal);
    Ok(())
}

/// Removes the lost nodes from the slot's in-sync set, provided that a live node holds the slot.
fn drop_lost(
    slots: SlotRange,
    placed: &mut Placed,
    lost: &BTreeSet<NodeId>,
    epoch: Epoch,
) -> Result<(), String> {
    let Some(owner) = placed.owner else {
        return Ok(());
    };
    let goal = placed.goal();
    placed.filling.retain(|it| !lost.contains(&it.node));
    if lost.contains(&owner) {
        let alive = placed.in_sync.iter().find(|it| !lost.contains(it));
        ensure(alive.is_none(), || {
            format!(
                "{slots}: the owner is lost, {alive:?} is in sync, and nobody is made the owner"
            )
        })?;
        placed.filling.clear();
    } else {
        let before = placed.in_sync.len();
        placed.in_sync.retain(|it| !lost.contains(it));
        if placed.in_sync.len() < before || placed.term == Term(u64::MAX) {
            placed.term = Term(epoch.0);
        }
    }
    placed.set_goal(goal);
    Ok(())
}

pub(super) fn returned(
    map: &mut Map,
    node: NodeId,
    registration: &Registration,
    at_ms: u64,
) -> Result<(), String> {
    sound(registration)?;
    may_change_roles(map, node, registration)?;
    let member = member(map, node)?;
    let before = &member.registration;
    let name = registration.name.clone();
    ensure(before.name == name, || {
        format!(
            "{name} is not the name of member {node}, which is {}",
            before.name
        )
    })?;
    ensure(member.state == State::Down, || {
        format!("{name} is not down")
    })?;
    ensure(before.incarnation < registration.incarnation, || {
        format!(
            "{name} comes with life {}, and the map knows life {}",
            registration.incarnation, before.incarnation
        )
    })?;
    let has_rows = before.disk == registration.disk;
    member.registration = registration.clone();
    member.state = State::Up;
    member.since_ms = at_ms;

    let (epoch, term) = (map.epoch, Term(map.epoch.0));
    let mut slots = map.slots.clone();
    slots.edit(&[(SlotRange::ALL, ())], |slots, placed, ()| {
        if !placed.is_holder(node) {
            return Ok(());
        }
        let goal = placed.goal();
        if has_rows {
            // Every node that was in sync when the last of them died has every acknowledged write.
            placed.owner = Some(node);
            placed.in_sync.clear();
        } else {
            let mut others = placed.holders().filter(|&it| it != node);
            let owner = others.next();
            ensure(owner.is_some(), || {
                format!(
                    "{name} came back with another disk, and it alone had the rows of {slots}; bring its disk back. Only if that is lost for ever: larder cluster remove {name} --lose-rows"
                )
            })?;
            let others: Vec<NodeId> = others.collect();
            (placed.owner, placed.in_sync) = (owner, others);
        }
        placed.term = term;
        placed.set_goal(goal);
        debug_assert!(placed.term.0 <= epoch.0);
        Ok(())
    })?;
    map.slots = slots;
    Ok(())
}

pub(super) fn leaving(map: &mut Map, node: NodeId, leaving: Option<Leaving>) -> Result<(), String> {
    let member = member(map, node)?;
    ensure(member.leaving != leaving, || {
        format!("{} is already asked to do that", member.registration.name)
    })?;
    member.leaving = leaving;
    Ok(())
}

pub(super) fn stopping(map: &mut Map, node: NodeId) -> Result<(), String> {
    let member = member(map, node)?;
    ensure(member.state == State::Up && !member.is_stopping, || {
        format!("{} is not up, or stops already", member.registration.name)
    })?;
    member.is_stopping = true;
    Ok(())
}

pub(super) fn gone(map: &mut Map, node: NodeId) -> Result<(), String> {
    let name = member(map, node)?.registration.name.clone();
    let kept = map.slots.runs().iter().find(|run| run.placed.names(node));
    ensure(kept.is_none(), || {
        format!(
            "{name} still has, or is to have, {}",
            kept.expect("it is some").slots
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

fn member(map: &mut Map, node: NodeId) -> Result<&mut Member, String> {
    let at = map.members.binary_search_by_key(&node, |it| it.id);
    let at = at.map_err(|_| format!("node number {node} is not a member"))?;
    Ok(&mut map.members[at])
}

/// A node's role may change only while the node holds nothing that the new role excludes.
fn may_change_roles(map: &Map, node: NodeId, registration: &Registration) -> Result<(), String> {
    let (name, roles) = (&registration.name, registration.roles);
    let kept = map.slots.runs().iter().find(|run| run.placed.names(node));
    ensure(roles.is_base() || kept.is_none(), || {
        format!("{name} has slots, and cannot be a node that computes alone; drain it first")
    })?;
    let computes = map.outputs.iter().any(|&(_, _, it)| it == node);
    ensure(roles.is_compute() || !computes, || {
        format!("{name} computes outputs, and cannot be a base node alone; drain it first")
    })
}

fn sound(registration: &Registration) -> Result<(), String> {
    ensure(registration.weight > 0 && registration.cores > 0, || {
        format!(
            "{} must have a weight and at least one core",
            registration.name
        )
    })
}
