//! Changes of slots: fills, the in-sync set, ownership and dropped copies.

use std::collections::BTreeSet;

use larder_types::SLOTS;

use super::ensure;
use crate::map::slots::Placement;
use crate::map::{
    Map, MemberState, NodeId, ReplicaFill, SlotRange, SyncChange, SyncChangeOrigin, Term,
};

pub(super) fn discard_rows(map: &mut Map, node: NodeId) -> Result<(), String> {
    let name = map.name_of(node);
    ensure(
        map.member(node)
            .is_some_and(|it| it.state == MemberState::Down),
        || {
            format!(
                "{name} is not a member that is down; only the rows of such a member can be discarded"
            )
        },
    )?;
    let mut discarded = false;
    map.slots
        .edit(&[(SlotRange::ALL, ())], |_, placement, ()| {
            if placement.owner == Some(node) && placement.in_sync.is_empty() {
                placement.owner = None;
                placement.filling.clear();
                placement.set_goal(Vec::new());
                discarded = true;
            }
            Ok(())
        })?;
    ensure(discarded, || {
        format!("there are no slots that only {name} holds")
    })?;
    // Forces a new placement, which assigns the slots without an owner.
    map.placed_from = 0;
    Ok(())
}

pub(super) fn replace_placement(
    map: &mut Map,
    goals: &[(SlotRange, Vec<NodeId>)],
    outputs: &[(SlotRange, NodeId)],
    from: u64,
) -> Result<(), String> {
    let term = Term(map.epoch.0);
    let mut slots = map.slots.clone();
    slots.edit(goals, |slots, placement, goal| {
        let distinct: BTreeSet<&NodeId> = goal.iter().collect();
        ensure(
            !goal.is_empty() && goal.len() <= 16 && distinct.len() == goal.len(),
            || {
                format!(
                    "{slots} have the targets {goal:?}; the targets must be 1 to 16 different nodes"
                )
            },
        )?;
        for &node in goal {
            check_base_member(map, node)?;
        }
        if placement.owner.is_none() {
            // No node has rows, so all nodes that are up are in sync.
            let mut up = goal.iter().copied().filter(|&node| map.is_up(node));
            let Some(owner) = up.next() else {
                return Ok(());
            };
            placement.owner = Some(owner);
            placement.in_sync = up.collect();
            placement.term = term;
        }
        placement.set_goal(goal.clone());
        Ok(())
    })?;
    let mut next = 0;
    for &(slots, node) in outputs {
        ensure(
            slots.from == next && slots.from <= slots.to && slots.to < SLOTS,
            || format!("outputs of {slots} are out of order: slot {next} is next"),
        )?;
        let is_compute = map
            .member(node)
            .is_some_and(|it| it.registration.roles.is_compute());
        ensure(is_compute, || {
            format!(
                "outputs of {slots}: {} is not a compute member",
                map.name_of(node)
            )
        })?;
        next = slots.to + 1;
    }
    ensure(next == 0 || next == SLOTS, || {
        format!("outputs end before slot {next}")
    })?;
    map.slots = slots;
    map.outputs = outputs
        .iter()
        .map(|&(slots, node)| (slots.from, slots.to, node))
        .collect();
    map.placed_from = from;
    Ok(())
}

pub(super) fn begin_fills(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    check_not_empty(slots)?;
    let began = map.epoch;
    edit(map, slots, |map, slots, placement, &node| {
        check_base_member(map, node)?;
        let owner = placement.owner.is_some_and(|owner| map.is_up(owner));
        ensure(owner && map.is_up(node), || {
            format!("{slots}: the owner, or the node to be filled, is not up")
        })?;
        ensure(
            !placement.is_holder(node) && placement.filling(node).is_none(),
            || {
                format!(
                    "{slots}: {} already holds them or is being filled",
                    map.name_of(node)
                )
            },
        )?;
        placement.filling.push(ReplicaFill { node, began });
        Ok(())
    })
}

pub(super) fn end_fills(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    check_not_empty(slots)?;
    edit(map, slots, |map, slots, placement, &node| {
        ensure(placement.filling(node).is_some(), || {
            format!("{slots}: {} is not being filled", map.name_of(node))
        })?;
        placement.filling.retain(|it| it.node != node);
        Ok(())
    })
}

pub(super) fn change_in_sync(
    map: &mut Map,
    by: SyncChangeOrigin,
    edits: &[SyncChange],
) -> Result<(), String> {
    let edits: Vec<(SlotRange, &SyncChange)> = edits.iter().map(|it| (it.slots, it)).collect();
    check_not_empty(&edits)?;
    let term = Term(map.epoch.0);
    edit(map, &edits, |map, slots, placement, change| {
        ensure(placement.term == change.term, || {
            format!(
                "{slots} are at term {}, and the change is for term {}",
                placement.term, change.term
            )
        })?;
        if let SyncChangeOrigin::Owner(node) = by {
            ensure(placement.owner == Some(node), || {
                format!("{slots}: {} is not the owner", map.name_of(node))
            })?;
        }
        ensure(
            placement.owner.is_some_and(|owner| map.is_up(owner)),
            || format!("{slots}: the owner is not up"),
        )?;
        ensure(!change.out.is_empty() || !change.into.is_empty(), || {
            format!("{slots}: no replica joins or leaves the in-sync set")
        })?;
        for &node in &change.out {
            ensure(placement.in_sync.contains(&node), || {
                format!("{slots}: {} is not a replica in sync", map.name_of(node))
            })?;
            placement.in_sync.retain(|&it| it != node);
        }
        for filled in &change.into {
            ensure(placement.filling.contains(filled), || {
                format!(
                    "{slots}: {} is not being filled since epoch {}",
                    map.name_of(filled.node),
                    filled.began
                )
            })?;
            placement.filling.retain(|it| it != filled);
            placement.in_sync.push(filled.node);
        }
        placement.term = term;
        Ok(())
    })
}

pub(super) fn move_owners(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    check_not_empty(slots)?;
    let term = Term(map.epoch.0);
    edit(map, slots, |map, slots, placement, &to| {
        ensure(placement.in_sync.contains(&to) && map.is_up(to), || {
            format!(
                "{slots}: {} is not a replica in sync that is up",
                map.name_of(to)
            )
        })?;
        placement.in_sync.retain(|&it| it != to);
        let before = placement.owner.replace(to);
        placement
            .in_sync
            .extend(before.filter(|&it| !map.is_stopping(it)));
        placement.term = term;
        Ok(())
    })
}

pub(super) fn drop_copies(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    check_not_empty(slots)?;
    let term = Term(map.epoch.0);
    edit(map, slots, |map, slots, placement, &node| {
        ensure(placement.in_sync.contains(&node), || {
            format!("{slots}: {} is not a replica in sync", map.name_of(node))
        })?;
        ensure(!placement.goal().contains(&node), || {
            format!("{slots}: {} is a target of them", map.name_of(node))
        })?;
        placement.in_sync.retain(|&it| it != node);
        placement.term = term;
        Ok(())
    })
}

/// Edits slots with access to the rest of the map. The goal is preserved.
fn edit<T>(
    map: &mut Map,
    edits: &[(SlotRange, T)],
    mut change: impl FnMut(&Map, SlotRange, &mut Placement, &T) -> Result<(), String>,
) -> Result<(), String> {
    let mut slots = std::mem::take(&mut map.slots);
    let edited = slots.edit(edits, |slots, placement, value| {
        let goal = placement.goal();
        change(map, slots, placement, value)?;
        placement.set_goal(goal);
        Ok(())
    });
    map.slots = slots;
    edited
}

fn check_not_empty<T>(slots: &[T]) -> Result<(), String> {
    ensure(!slots.is_empty(), || "the change names no slots".into())
}

fn check_base_member(map: &Map, node: NodeId) -> Result<(), String> {
    let is_base = map
        .member(node)
        .is_some_and(|it| it.registration.roles.is_base());
    ensure(is_base, || {
        format!("{} is not a base member", map.name_of(node))
    })
}
