//! Membership: which nodes are members, and which of them are up.

use std::collections::BTreeMap;

use super::{Decision, IdleState, Inputs};
use crate::map::{Change, Departure, Member, MemberState, NodeId, Registration, Run, SlotRange};

pub(super) fn decide(inputs: &Inputs<'_>, idle: &mut IdleState) -> Option<Decision> {
    mark_lost(inputs)
        .or_else(|| update_known(inputs, idle))
        .or_else(|| add_registered(inputs))
        .or_else(|| admit_joining(inputs))
        .or_else(|| remove_departed(inputs))
}

/// Returns the member's registration if it is from the incarnation in the map.
fn registration<'a>(inputs: &Inputs<'a>, member: &Member) -> Option<&'a Registration> {
    let registration = inputs.registered.get(member.name())?;
    (registration.incarnation == member.registration.incarnation).then_some(registration)
}

/// Marks all members whose lease has expired as lost, in one change.
fn mark_lost(inputs: &Inputs<'_>) -> Option<Decision> {
    let map = inputs.map;
    let absent = map.members().iter().filter(|member| {
        member.state != MemberState::Down && registration(inputs, member).is_none()
    });
    let (joining, lost): (Vec<&Member>, Vec<&Member>) =
        absent.partition(|it| it.state == MemberState::Joining);
    if let Some(member) = joining.first() {
        let why = format!("{} ended before it received slots", member.name());
        return inputs.change(Change::MemberRemoved { node: member.id }, why);
    }
    if lost.is_empty() {
        return None;
    }
    let nodes: Vec<NodeId> = lost.iter().map(|member| member.id).collect();
    let names: Vec<&str> = lost.iter().map(|member| member.name().as_str()).collect();
    let why = format!("the lease of {} has expired", names.join(", "));
    let change = Change::MembersLost {
        owners: choose_successors(inputs, &nodes),
        nodes,
        at_ms: inputs.now_ms,
    };
    inputs.change(change, why)
}

/// Chooses the new owner of each slot that the lost nodes owned: the slot's intended owner if it is in sync, else the in-sync
/// replica that owns the fewest slots so far.
fn choose_successors(inputs: &Inputs<'_>, lost: &[NodeId]) -> Vec<(SlotRange, NodeId)> {
    let runs = inputs.map.slots().runs();
    let mut owned: BTreeMap<NodeId, u32> = BTreeMap::new();
    for run in runs {
        if let Some(owner) = run.placement.owner {
            *owned.entry(owner).or_default() += run.slots.count();
        }
    }
    let mut successors = Vec::new();
    for Run { slots, placement } in runs {
        if !placement.owner.is_some_and(|owner| lost.contains(&owner)) {
            continue;
        }
        let alive = placement
            .in_sync
            .iter()
            .copied()
            .filter(|node| !lost.contains(node) && inputs.map.is_up(*node));
        let goal = placement.goal();
        let successor = alive.min_by_key(|node| {
            (
                goal.first() != Some(node),
                owned.get(node).copied().unwrap_or(0),
                *node,
            )
        });
        if let Some(successor) = successor {
            *owned.entry(successor).or_default() += slots.count();
            successors.push((*slots, successor));
        }
    }
    successors
}

/// Updates members that returned with a new incarnation or that registered different properties.
fn update_known(inputs: &Inputs<'_>, idle: &mut IdleState) -> Option<Decision> {
    for member in inputs.map.members() {
        let Some(registration) = inputs.registered.get(member.name()) else {
            continue;
        };
        let node = member.id;
        let registration = registration.clone();
        let (change, what) = match member.state {
            MemberState::Down => {
                let at_ms = inputs.now_ms;
                (
                    Change::MemberReturned {
                        node,
                        registration,
                        at_ms,
                    },
                    "has returned",
                )
            }
            _ if member.registration != registration => (
                Change::MemberUpdated { node, registration },
                "registered new properties",
            ),
            _ => continue,
        };
        match inputs.rejection(&change) {
            None => return inputs.change(change, format!("{} {what}", member.name())),
            Some(why) => idle.blocked.push(why),
        }
    }
    None
}

fn add_registered(inputs: &Inputs<'_>) -> Option<Decision> {
    let known: std::collections::BTreeSet<_> =
        inputs.map.members().iter().map(Member::name).collect();
    let new = inputs
        .registered
        .values()
        .find(|it| !known.contains(&it.name))?;
    let change = Change::MemberAdded {
        registration: new.clone(),
        at_ms: inputs.now_ms,
    };
    inputs.change(change, format!("{} has registered", new.name))
}

fn admit_joining(inputs: &Inputs<'_>) -> Option<Decision> {
    if !inputs.map.settings().admit_new_nodes {
        return None;
    }
    let joining = inputs
        .map
        .members()
        .iter()
        .filter(|it| it.state == MemberState::Joining);
    let nodes: Vec<NodeId> = joining.map(|member| member.id).collect();
    let at_ms = inputs.now_ms;
    let some = !nodes.is_empty();
    some.then(|| {
        inputs.change(
            Change::MembersAdmitted { nodes, at_ms },
            "new nodes may receive slots",
        )
    })
    .flatten()
}

/// Removes members that an operator wants removed, that hold no slots, and whose process has ended. A running process would
/// register again.
fn remove_departed(inputs: &Inputs<'_>) -> Option<Decision> {
    let leaving = inputs.map.members().iter().filter(|member| {
        member.leaving == Some(Departure::Remove) && !inputs.registered.contains_key(member.name())
    });
    for member in leaving {
        let change = Change::MemberRemoved { node: member.id };
        if inputs.rejection(&change).is_none() {
            return inputs.change(
                change,
                format!(
                    "an operator removed {}, and it holds no slots",
                    member.name()
                ),
            );
        }
    }
    None
}
