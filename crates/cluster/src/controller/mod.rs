//! The controller: what is to be changed in the map next.
//!
//! One node at a time is the controller. Over and over it looks at the map, at who has a lease, at what nodes report
//! and at what people ask for, and makes the one change (or gives the one answer) that [`decide`] names:
//!
//! ```text
//!  World { map, registered, reports, asks, now } ── decide ──► Change ──► compare-and-swap on the map, and again
//!                                                        ├───► Answer to a person's wish, and again
//!                                                        └───► Nothing: wait for news, or until a time
//! ```
//!
//! It keeps nothing: all that it knows is in its arguments. So a controller that dies is followed by one that goes on
//! where it stopped, and a change whose reply was lost is seen in the map and not made twice. Two controllers do no harm
//! beyond one of them losing the compare-and-swap.
//!
//! What comes first (the order of the functions in `decide`):
//!
//! 1. `membership`: the dead are dropped, and who is in sync takes their place, in one change for all that died; who is back, or new, is let in.
//! 2. `asks`: what people want.
//! 3. `pushes`: versions go live when all who hold slots have them, or are given up.
//! 4. `placement`: where slots are to be, when who is there has changed.
//! 5. `moves`: a step towards it: in sync, owned, dropped, begun.
//!
//! Configuration changes one at a time from outside the replicas, with a version that the replicas check, as PacificA's
//! configuration manager makes them (MSR-TR-2008-25); the goal beside what is, and steps from one to the other, are Helix's ideal state and external view.
//!
//! Times are those of the controller's own clock. Where one controller follows another whose clock is apart, a node is replaced,
//! or a push given up, earlier or later by as much: nothing that anybody relies on hangs on these times.

mod asks;
mod membership;
mod moves;
mod placement;
mod pushes;
mod report;

use std::collections::BTreeMap;

use crate::map::{AskId, Change, ChangeId, Map, NodeId, NodeName, Refused, Registration};

pub use asks::Ask;
pub use report::{Progress, Pulled, Report, Synced};

/// Steps of slots on their way that are written as one map.
const STEPS_MAX: usize = 8;

/// All that the controller goes by.
#[derive(Debug, Clone, Copy)]
pub struct World<'a> {
    pub map: &'a Map,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Nodes that have a lease, and what they say of themselves.
    pub registered: &'a BTreeMap<NodeName, Registration>,
    pub reports: &'a BTreeMap<NodeName, Report>,
    /// In the order in which they came.
    pub asks: &'a [(AskId, Ask)],
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Make this change, then look again. If it is somebody's wish, only as long as the wish is open: a change that was long on
    /// its way is not to be made after another controller has refused it.
    Change {
        change: Change,
        why: String,
        ask: Option<AskId>,
    },
    /// Give this answer, drop the wish, then look again; only on the map that was looked at: what was wished may have been done by a
    /// change whose reply was lost. An error is in words for the person.
    Answer {
        ask: AskId,
        answer: Result<String, String>,
    },
    /// Wait for news, but not beyond `look_again_at_ms`.
    Nothing {
        look_again_at_ms: Option<u64>,
        /// What only a person can mend, in words.
        blocked: Vec<String>,
    },
}

/// What the controller does next. It takes time linear in the map and the reports, and longer where slots are placed anew (`placement`).
pub fn decide(world: &World<'_>) -> Decision {
    let mut rest = Rest::default();
    membership::decide(world, &mut rest)
        .or_else(|| asks::decide(world))
        .or_else(|| pushes::decide(world, &mut rest))
        .or_else(|| placement::decide(world, &mut rest))
        .or_else(|| moves::decide(world, &mut rest))
        .unwrap_or(Decision::Nothing {
            look_again_at_ms: rest.look_again_at_ms,
            blocked: rest.blocked,
        })
}

/// The map that a change of [`decide`] gives. Where that is a step of slots on their way, it has other such steps in it that can be made at once:
/// each map that is written is read and acted on by every node, beside the requests that they serve.
///
/// # Errors
/// The map does not allow the change.
pub fn next_map(world: &World<'_>, change: &Change, id: &ChangeId) -> Result<Map, Refused> {
    let mut map = world.map.apply(change, id)?;
    if !moves::is_step(change) {
        return Ok(map);
    }
    for _ in 0..STEPS_MAX {
        let next = World {
            map: &map,
            ..*world
        };
        let Decision::Change {
            change, ask: None, ..
        } = decide(&next)
        else {
            break;
        };
        if !moves::is_step(&change) {
            break;
        }
        match map.apply(&change, id) {
            Ok(after) => map = after,
            Err(_) => break,
        }
    }
    Ok(map)
}

/// What is left when there is nothing to do.
#[derive(Default)]
struct Rest {
    look_again_at_ms: Option<u64>,
    blocked: Vec<String>,
}

impl Rest {
    fn look_again_at(&mut self, at_ms: u64) {
        let earliest = self.look_again_at_ms.unwrap_or(u64::MAX);
        self.look_again_at_ms = Some(earliest.min(at_ms));
    }
}

impl World<'_> {
    fn change(&self, change: Change, why: impl Into<String>) -> Option<Decision> {
        let why = why.into();
        Some(Decision::Change {
            change,
            why,
            ask: None,
        })
    }

    /// Why the map would refuse the change, in words.
    fn refusal(&self, change: &Change) -> Option<String> {
        let tried = self.map.apply(change, &ChangeId::default());
        tried.err().map(|refused| refused.0)
    }

    /// The report of a member that is up, from its present life.
    fn report(&self, node: NodeId) -> Option<&Report> {
        let member = self.map.member(node)?;
        let report = self.reports.get(member.name())?;
        let is_current = report.incarnation == member.registration.incarnation;
        (self.map.is_up(node) && is_current).then_some(report)
    }
}
