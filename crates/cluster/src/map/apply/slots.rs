//! Changes of slots: fills, the in-sync set, ownership and dropped copies.

use std::collections::BTreeSet;

use larder_types::SLOTS;

use super::ensure;
use crate::map::slots::Placed;
use crate::map::{AtTerm, By, Filling, Map, NodeId, SlotRange, State, Term};

pub(super) fn rows_given_up(map: &mut Map, node: NodeId) -> Result<(), String> {
    let name = map.name_of(node);
    ensure(
        map.member(node).is_some_and(|it| it.state == State::Down),
        || format!("{name} is no member that is down; only then its rows can be given up"),
    )?;
    let mut given_up = false;
    map.slots.edit(&[(SlotRange::ALL, ())], |_, placed, ()| {
        if placed.owner == Some(node) && placed.in_sync.is_empty() {
            placed.owner = None;
            placed.filling.clear();
            placed.set_goal(Vec::new());
            given_up = true;
        }
        Ok(())
    })?;
    ensure(given_up, || {
        format!("there are no slots that {name} alone has")
    })?;
    // Forces a new placement, which assigns the slots without an owner.
    map.placed_from = 0;
    Ok(())
}

pub(super) fn placement_taken(
    map: &mut Map,
    goals: &[(SlotRange, Vec<NodeId>)],
    outputs: &[(SlotRange, NodeId)],
    from: u64,
) -> Result<(), String> {
    let term = Term(map.epoch.0);
    let mut slots = map.slots.clone();
    slots.edit(goals, |slots, placed, goal| {
        let distinct: BTreeSet<&NodeId> = goal.iter().collect();
        ensure(
            !goal.is_empty() && goal.len() <= 16 && distinct.len() == goal.len(),
            || format!("{slots} are to be had by {goal:?}: by 1 to 16 different nodes"),
        )?;
        for &node in goal {
            base_member(map, node)?;
        }
        if placed.owner.is_none() {
            // No node has rows, so all nodes that are up are in sync.
            let mut up = goal.iter().copied().filter(|&node| map.is_up(node));
            let Some(owner) = up.next() else {
                return Ok(());
            };
            placed.owner = Some(owner);
            placed.in_sync = up.collect();
            placed.term = term;
        }
        placed.set_goal(goal.clone());
        Ok(())
    })?;
    let mut next = 0;
    for &(slots, node) in outputs {
        ensure(
            slots.from == next && slots.from <= slots.to && slots.to < SLOTS,
            || format!("outputs of {slots} follow on slot {next}"),
        )?;
        let is_compute = map
            .member(node)
            .is_some_and(|it| it.registration.roles.is_compute());
        ensure(is_compute, || {
            format!(
                "outputs of {slots}: {} is no member that computes",
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

pub(super) fn fills_begun(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    some(slots)?;
    let began = map.epoch;
    edit(map, slots, |map, slots, placed, &node| {
        base_member(map, node)?;
        let owner = placed.owner.is_some_and(|owner| map.is_up(owner));
        ensure(owner && map.is_up(node), || {
            format!("{slots}: the owner, or the node to be filled, is not up")
        })?;
        ensure(
            !placed.is_holder(node) && placed.filling(node).is_none(),
            || {
                format!(
                    "{slots}: {} has them, or is being filled",
                    map.name_of(node)
                )
            },
        )?;
        placed.filling.push(Filling { node, began });
        Ok(())
    })
}

pub(super) fn fills_ended(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    some(slots)?;
    edit(map, slots, |map, slots, placed, &node| {
        ensure(placed.filling(node).is_some(), || {
            format!("{slots}: {} is not being filled", map.name_of(node))
        })?;
        placed.filling.retain(|it| it.node != node);
        Ok(())
    })
}

pub(super) fn sync_changed(map: &mut Map, by: By, wanted: &[AtTerm]) -> Result<(), String> {
    let wanted: Vec<(SlotRange, &AtTerm)> = wanted.iter().map(|it| (it.slots, it)).collect();
    some(&wanted)?;
    let term = Term(map.epoch.0);
    edit(map, &wanted, |map, slots, placed, wanted| {
        ensure(placed.term == wanted.term, || {
            format!(
                "{slots} are at term {}, and the change knows term {}",
                placed.term, wanted.term
            )
        })?;
        if let By::Owner(node) = by {
            ensure(placed.owner == Some(node), || {
                format!("{slots}: {} is not the owner", map.name_of(node))
            })?;
        }
        ensure(placed.owner.is_some_and(|owner| map.is_up(owner)), || {
            format!("{slots}: the owner is not up")
        })?;
        ensure(!wanted.out.is_empty() || !wanted.into.is_empty(), || {
            format!("{slots}: nobody joins and nobody leaves those in sync")
        })?;
        for &node in &wanted.out {
            ensure(placed.in_sync.contains(&node), || {
                format!("{slots}: {} is not a replica in sync", map.name_of(node))
            })?;
            placed.in_sync.retain(|&it| it != node);
        }
        for filled in &wanted.into {
            ensure(placed.filling.contains(filled), || {
                format!(
                    "{slots}: {} is not being filled since epoch {}",
                    map.name_of(filled.node),
                    filled.began
                )
            })?;
            placed.filling.retain(|it| it != filled);
            placed.in_sync.push(filled.node);
        }
        placed.term = term;
        Ok(())
    })
}

pub(super) fn owners_moved(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    some(slots)?;
    let term = Term(map.epoch.0);
    edit(map, slots, |map, slots, placed, &to| {
        ensure(placed.in_sync.contains(&to) && map.is_up(to), || {
            format!(
                "{slots}: {} is not a replica in sync that is up",
                map.name_of(to)
            )
        })?;
        placed.in_sync.retain(|&it| it != to);
        let before = placed.owner.replace(to);
        placed
            .in_sync
            .extend(before.filter(|&it| !map.is_stopping(it)));
        placed.term = term;
        Ok(())
    })
}

pub(super) fn copies_dropped(map: &mut Map, slots: &[(SlotRange, NodeId)]) -> Result<(), String> {
    some(slots)?;
    let term = Term(map.epoch.0);
    edit(map, slots, |map, slots, placed, &node| {
        ensure(placed.in_sync.contains(&node), || {
            format!("{slots}: {} is not a replica in sync", map.name_of(node))
        })?;
        ensure(!placed.goal().contains(&node), || {
            format!("{slots}: {} is to have them", map.name_of(node))
        })?;
        placed.in_sync.retain(|&it| it != node);
        placed.term = term;
        Ok(())
    })
}

/// Edits slots with access to the rest of the map. The goal is preserved.
fn edit<T>(
    map: &mut Map,
    wanted: &[(SlotRange, T)],
    mut change: impl FnMut(&Map, SlotRange, &mut Placed, &T) -> Result<(), String>,
) -> Result<(), String> {
    let mut slots = std::mem::take(&mut map.slots);
    let edited = slots.edit(wanted, |slots, placed, value| {
        let goal = placed.goal();
        change(map, slots, placed, value)?;
        placed.set_goal(goal);
        Ok(())
    });
    map.slots = slots;
    edited
}

fn some<T>(slots: &[T]) -> Result<(), String> {
    ensure(!slots.is_empty(), || "no slots are named".into())
}

fn base_member(map: &Map, node: NodeId) -> Result<(), String> {
    let is_base = map
        .member(node)
        .is_some_and(|it| it.registration.roles.is_base());
    ensure(is_base, || {
        format!("{} is no member that may have slots", map.name_of(node))
    })
}
