//! Moves slots step by step from their current placement to the target placement.
//!
//! ```text
//!                 begin                    synced              (the owner)         drop
//!  A [B]     ──────────────► A [B] {C} ──────────────► A [B C] ────────► C [A B] ────────► C [B]       goal: C B
//!  owner [in sync] {filling}   the owner reports C         the previous owner stays in sync until it is dropped
//! ```
//!
//! A step covers all slots that are ready for it, in one change; other steps that are already possible are written with it. No
//! step reduces a slot's in-sync copies below the number that it had before the move, except the last, which drops the surplus
//! copy.
//!
//! The owner itself makes the third step ([`Change::OwnersMoved`]). The controller never takes a slot from a node that is up,
//! because that node may still serve requests under an older map.

use std::collections::BTreeMap;

use super::{Decision, IdleState, Inputs};
use crate::map::{Change, Epoch, NodeId, Placement, Run, SlotRange, SyncChange, SyncChangeOrigin};

pub(super) fn decide(inputs: &Inputs<'_>, idle: &mut IdleState) -> Option<Decision> {
    mark_in_sync(inputs)
        .or_else(|| {
            collect_step(inputs, find_surplus_replica).and_then(|slots| {
                inputs.change(
                    Change::CopiesDropped { slots },
                    "all target nodes of these slots are in sync",
                )
            })
        })
        .or_else(|| {
            collect_step(inputs, find_obsolete_fill).and_then(|slots| {
                inputs.change(
                    Change::FillsEnded { slots },
                    "these nodes are no longer targets of the slots",
                )
            })
        })
        .or_else(|| begin_fills(inputs))
        .or_else(|| report_unavailable_slots(inputs, idle))
}

/// Returns whether a change is a step of a slot move.
pub(super) fn is_step(change: &Change) -> bool {
    match change {
        Change::SyncChanged { by, .. } => *by == SyncChangeOrigin::Controller,
        Change::CopiesDropped { .. } | Change::FillsEnded { .. } | Change::FillsBegun { .. } => {
            true
        }
        _ => false,
    }
}

/// Marks replicas in sync that their owners report to be. Reports about another term or fill are stale.
fn mark_in_sync(inputs: &Inputs<'_>) -> Option<Decision> {
    let mut ready: Vec<SyncChange> = Vec::new();
    for member in inputs.map.members() {
        let Some(report) = inputs.report(member.id) else {
            continue;
        };
        for synced in &report.synced {
            if !has_live_versions(inputs, synced.node, synced.began) {
                continue;
            }
            let runs = inputs.map.slots().runs();
            let first = runs.partition_point(|run| run.slots.to < synced.slots.from);
            for run in &runs[first..] {
                let Some(slots) = run.slots.intersection(synced.slots) else {
                    break;
                };
                let filling = run.placement.filling(synced.node);
                let filling = filling.filter(|it| it.began == synced.began);
                let is_current =
                    run.placement.owner == Some(member.id) && run.placement.term == synced.term;
                if let Some(filling) = filling.filter(|_| is_current) {
                    ready.push(SyncChange {
                        slots,
                        term: synced.term,
                        out: Vec::new(),
                        into: vec![filling],
                    });
                }
            }
        }
    }
    ready.sort_by_key(|it| it.slots);
    // If two ranges overlap, the second waits: its owner reports it again at the new term.
    let mut next = 0;
    ready.retain(|it| {
        let is_free = u32::from(it.slots.from) >= next;
        if is_free {
            next = u32::from(it.slots.to) + 1;
        }
        is_free
    });
    let change = Change::SyncChanged {
        by: SyncChangeOrigin::Controller,
        slots: ready.clone(),
    };
    let some = !ready.is_empty();
    some.then(|| inputs.change(change, "their owners report replicas in sync"))
        .flatten()
}

/// Returns whether the node has the live versions of all stores. A replica is useful only with their partitions of these slots, which
/// were assigned to it in the epoch `began`.
fn has_live_versions(inputs: &Inputs<'_>, node: NodeId, began: Epoch) -> bool {
    let report = inputs.report(node).filter(|report| report.epoch >= began);
    inputs.map.stores().iter().all(|(name, store)| {
        let Some(live) = &store.live else {
            return true;
        };
        report.is_some_and(|report| report.has_version(name, store, live.version))
    })
}

/// Returns the slots for which `of` returns a node.
fn collect_step(
    inputs: &Inputs<'_>,
    of: impl Fn(&Inputs<'_>, &Placement) -> Option<NodeId>,
) -> Option<Vec<(SlotRange, NodeId)>> {
    let runs = inputs.map.slots().runs().iter();
    let slots: Vec<_> = runs
        .filter_map(|run| Some((run.slots, of(inputs, &run.placement)?)))
        .collect();
    (!slots.is_empty()).then_some(slots)
}

/// Returns a surplus in-sync replica, if all target nodes hold the slot.
fn find_surplus_replica(_: &Inputs<'_>, placement: &Placement) -> Option<NodeId> {
    if placement.is_settled() {
        return None;
    }
    let goal = placement.goal();
    let is_there = goal.iter().all(|&node| placement.is_holder(node));
    let surplus = placement
        .in_sync
        .iter()
        .copied()
        .find(|node| !goal.contains(node));
    surplus.filter(|_| is_there)
}

/// Returns a node that is being filled but is not a target.
fn find_obsolete_fill(_: &Inputs<'_>, placement: &Placement) -> Option<NodeId> {
    let fillings = placement.filling.iter().map(|it| it.node);
    let goal = if placement.filling.is_empty() {
        Vec::new()
    } else {
        placement.goal()
    };
    fillings.into_iter().find(|node| !goal.contains(node))
}

/// Begins fills, at most as many per node as the settings allow.
fn begin_fills(inputs: &Inputs<'_>) -> Option<Decision> {
    let map = inputs.map;
    let limit = u32::from(map.settings().fill_slots_at_once);
    let mut filling: BTreeMap<NodeId, u32> = BTreeMap::new();
    for run in map.slots().runs() {
        for it in &run.placement.filling {
            *filling.entry(it.node).or_default() += run.slots.count();
        }
    }
    let mut slots = Vec::new();
    // Slots with the fewest copies come first.
    let unsettled = map
        .slots()
        .runs()
        .iter()
        .filter(|run| !run.placement.is_settled());
    let mut runs: Vec<&Run> = unsettled.collect();
    runs.sort_by_key(|run| run.placement.in_sync.len());
    for Run {
        slots: all,
        placement,
    } in runs
    {
        let Some(owner) = placement.owner.filter(|&owner| map.is_up(owner)) else {
            continue;
        };
        // The owner sends the rows, so it must be able to reach the node.
        let is_reached = |node: NodeId| {
            let report = inputs.report(owner).filter(|it| !it.unreached.is_empty());
            let name = map.member(node).map(|it| it.name());
            !report
                .zip(name)
                .is_some_and(|(report, name)| report.unreached.contains_key(name))
        };
        let candidates = placement.goal().into_iter().filter(|&node| {
            !placement.is_holder(node)
                && placement.filling(node).is_none()
                && map.is_up(node)
                && !map.is_stopping(node)
                && is_reached(node)
        });
        let room = |node: NodeId, filling: &BTreeMap<NodeId, u32>| {
            limit.saturating_sub(filling.get(&node).copied().unwrap_or(0))
        };
        let Some(node) = candidates.max_by_key(|&node| (room(node, &filling), node)) else {
            continue;
        };
        let count = room(node, &filling).min(all.count());
        if count > 0 {
            *filling.entry(node).or_default() += count;
            let last = u32::from(all.from) + count - 1;
            slots.push((SlotRange::new(all.from, last as u16), node));
        }
    }
    slots.sort_unstable();
    let some = !slots.is_empty();
    some.then(|| {
        inputs.change(
            Change::FillsBegun { slots },
            "these nodes are new targets of the slots",
        )
    })
    .flatten()
}

/// Reports slots that only an operator can bring back.
fn report_unavailable_slots(inputs: &Inputs<'_>, idle: &mut IdleState) -> Option<Decision> {
    let map = inputs.map;
    let mut unavailable: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
    for run in map.slots().runs() {
        if let Some(owner) = run.placement.owner.filter(|&owner| !map.is_up(owner)) {
            let list = unavailable.entry(owner).or_default();
            if list.len() < 4 {
                list.push(run.slots.to_string());
            }
        }
    }
    for (node, slots) in unavailable {
        let name = map.name_of(node);
        let slots = slots.join(", ");
        idle.blocked.push(format!(
            "{slots} and possibly others: no node that is up has their rows; start {name} again. Only if its disk is lost permanently: \
             larder cluster remove {name} --lose-rows"
        ));
    }
    None
}
