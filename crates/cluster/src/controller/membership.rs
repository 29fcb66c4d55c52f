//! Membership: which nodes are members, and which of them are up.

use std::collections::BTreeMap;

use super::{Decision, Rest, World};
use crate::map::{Change, Leaving, Member, NodeId, Registration, Run, SlotRange, State};

pub(super) fn decide(world: &World<'_>, rest: &mut Rest) -> Option<Decision> {
    lost(world)
        .or_else(|| known(world, rest))
        .or_else(|| added(world))
        .or_else(|| admitted(world))
        .or_else(|| gone(world))
}

/// Returns the member's registration if it is from the incarnation in the map.
fn registration<'a>(world: &World<'a>, member: &Member) -> Option<&'a Registration> {
    let registration = world.registered.get(member.name())?;
    (registration.incarnation == member.registration.incarnation).then_some(registration)
}

/// Marks all members whose lease has expired as lost, in one change.
fn lost(world: &World<'_>) -> Option<Decision> {
    let map = world.map;
    let absent = map
        .members()
        .iter()
        .filter(|member| member.state != State::Down && registration(world, member).is_none());
    let (joining, lost): (Vec<&Member>, Vec<&Member>) =
        absent.partition(|it| it.state == State::Joining);
    if let Some(member) = joining.first() {
        let why = format!("{} has gone before it was given slots", member.name());
        return world.change(Change::MemberGone { node: member.id }, why);
    }
    if lost.is_empty() {
        return None;
    }
    let nodes: Vec<NodeId> = lost.iter().map(|member| member.id).collect();
    let names: Vec<&str> = lost.iter().map(|member| member.name().as_str()).collect();
    let why = format!("the lease of {} has ended", names.join(", "));
    let change = Change::MembersLost {
        owners: followers(world, &nodes),
        nodes,
        at_ms: world.now_ms,
    };
    world.change(change, why)
}

/// Chooses the new owner of each slot that the lost nodes owned: the slot's intended owner if it is in sync, else the in-sync
/// replica that owns the fewest slots so far.
fn followers(world: &World<'_>, lost: &[NodeId]) -> Vec<(SlotRange, NodeId)> {
    let runs = world.map.slots().runs();
    let mut owned: BTreeMap<NodeId, u32> = BTreeMap::new();
    for run in runs {
        if let Some(owner) = run.placed.owner {
            *owned.entry(owner).or_default() += run.slots.count();
        }
    }
    let mut followers = Vec::new();
    for Run { slots, placed } in runs {
        if !placed.owner.is_some_and(|owner| lost.contains(&owner)) {
            continue;
        }
        let alive = placed
            .in_sync
            .iter()
            .copied()
            .filter(|node| !lost.contains(node) && world.map.is_up(*node));
        let goal = placed.goal();
        let follower = alive.min_by_key(|node| {
            (
                goal.first() != Some(node),
                owned.get(node).copied().unwrap_or(0),
                *node,
            )
        });
        if let Some(follower) = follower {
            *owned.entry(follower).or_default() += slots.count();
            followers.push((*slots, follower));
        }
    }
    followers
}

/// Updates members that returned with a new incarnation or that registered different properties.
fn known(world: &World<'_>, rest: &mut Rest) -> Option<Decision> {
    for member in world.map.members() {
        let Some(registration) = world.registered.get(member.name()) else {
            continue;
        };
        let node = member.id;
        let registration = registration.clone();
        let (change, what) = match member.state {
            State::Down => {
                let at_ms = world.now_ms;
                (
                    Change::MemberReturned {
                        node,
                        registration,
                        at_ms,
                    },
                    "is back",
                )
            }
            _ if member.registration != registration => (
                Change::MemberUpdated { node, registration },
                "says something new of itself",
            ),
            _ => continue,
        };
        match world.refusal(&change) {
            None => return world.change(change, format!("{} {what}", member.name())),
            Some(why) => rest.blocked.push(why),
        }
    }
    None
}

fn added(world: &World<'_>) -> Option<Decision> {
    let known: std::collections::BTreeSet<_> =
        world.map.members().iter().map(Member::name).collect();
    let new = world
        .registered
        .values()
        .find(|it| !known.contains(&it.name))?;
    let change = Change::MemberAdded {
        registration: new.clone(),
        at_ms: world.now_ms,
    };
    world.change(change, format!("{} has registered", new.name))
}

fn admitted(world: &World<'_>) -> Option<Decision> {
    if !world.map.settings().admit_new_nodes {
        return None;
    }
    let joining = world
        .map
        .members()
        .iter()
        .filter(|it| it.state == State::Joining);
    let nodes: Vec<NodeId> = joining.map(|member| member.id).collect();
    let at_ms = world.now_ms;
    let some = !nodes.is_empty();
    some.then(|| {
        world.change(
            Change::MembersAdmitted { nodes, at_ms },
            "new nodes are given slots",
        )
    })
    .flatten()
}

/// Removes members that an operator wants removed, that hold no slots, and whose process has ended. A running process would
/// register again.
fn gone(world: &World<'_>) -> Option<Decision> {
    let leaving = world.map.members().iter().filter(|member| {
        member.leaving == Some(Leaving::Remove) && !world.registered.contains_key(member.name())
    });
    for member in leaving {
        let change = Change::MemberGone { node: member.id };
        if world.refusal(&change).is_none() {
            return world.change(
                change,
                format!(
                    "{} is to be removed, and has nothing any more",
                    member.name()
                ),
            );
        }
    }
    None
}
