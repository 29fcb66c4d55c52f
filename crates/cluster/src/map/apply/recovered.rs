//! Continues a lost map from a copy of it.

use std::collections::BTreeSet;

use super::ensure;
use crate::map::{Epoch, Map, MemberState, NodeId, SlotRange, Term};

/// Every member is down until it registers again, and every slot gets a term that no node has seen.
pub(super) fn recovered(
    map: &mut Map,
    epoch: Epoch,
    holders: &[(SlotRange, Vec<NodeId>)],
    at_ms: u64,
) -> Result<(), String> {
    ensure(epoch >= map.epoch, || {
        format!(
            "epoch {epoch} is not above the copy's epoch {}",
            map.epoch.0.saturating_sub(1)
        )
    })?;
    map.recovered = Some((Epoch(map.epoch.0.saturating_sub(1)), epoch));
    map.epoch = epoch;
    for member in &mut map.members {
        // A member that was joining has no slots; the controller adds it again.
        if member.state == MemberState::Up {
            member.state = MemberState::Down;
            member.since_ms = at_ms;
        }
        member.is_stopping = false;
    }
    let mut slots = map.slots.clone();
    slots.edit(holders, |slots, placement, holders| {
        let distinct: BTreeSet<&NodeId> = holders.iter().collect();
        let are_members = holders.iter().all(|it| {
            map.member(*it)
                .is_some_and(|it| it.state == MemberState::Down && it.registration.roles.is_base())
        });
        ensure(are_members && distinct.len() == holders.len(), || {
            format!("{slots}: {holders:?} are not distinct base members")
        })?;
        let (owner, others) = holders
            .split_first()
            .ok_or_else(|| format!("{slots}: the change names no holder"))?;
        let goal = placement.goal();
        placement.owner = Some(*owner);
        placement.in_sync = others.to_vec();
        placement.filling.clear();
        placement.set_goal(goal);
        Ok(())
    })?;
    slots.edit(&[(SlotRange::ALL, ())], |_, placement, ()| {
        if placement.owner.is_some() {
            let goal = placement.goal();
            placement.filling.clear();
            placement.term = Term(epoch.0);
            placement.set_goal(goal);
        }
        Ok(())
    })?;
    map.slots = slots;
    Ok(())
}
