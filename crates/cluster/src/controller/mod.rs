//! The controller: computes the next change of the cluster map.
//!
//! One node at a time is the controller. It repeatedly reads the map, the registrations, the reports and the operator requests,
//! and makes the one change, or sends the one answer, that [`decide`] returns:
//!
//! ```text
//!  Inputs { map, registered, reports, requests, now } ── decide ──► Change ──► compare-and-swap on the map, and repeat
//!                                                        ├───► Answer to an operator request, and repeat
//!                                                        └───► Wait: wait for a change, or until a time
//! ```
//!
//! The controller keeps no state; all its inputs are arguments. If it dies, the next controller continues where it stopped. If
//! the reply to a change is lost, the change is visible in the map and is not made twice. Two concurrent controllers are
//! harmless: one of them loses the compare-and-swap.
//!
//! Priorities, in the order of the functions in `decide`:
//!
//! 1. `membership`: removes dead nodes and makes in-sync replicas owners of their slots, in one change for all that died. It also
//!    admits nodes that are new or have returned.
//! 2. `requests`: operator requests.
//! 3. `pushes`: makes a version live when all holders of slots have it, or aborts the push.
//! 4. `placement`: computes the target placement of slots when the set of nodes has changed.
//! 5. `moves`: one step towards the target placement: mark in sync, change the owner, drop, or begin a fill.
//!
//! The configuration changes one step at a time, outside the replicas, with a version that the replicas check, as in PacificA's
//! configuration manager (MSR-TR-2008-25). The target placement beside the current one, and the steps from one to the other, are
//! Helix's ideal state and external view.
//!
//! Times are those of the controller's own clock. If the next controller's clock differs, a node is replaced, or a push aborted,
//! earlier or later by that difference. Correctness does not depend on these times.

mod membership;
mod moves;
mod placement;
mod pushes;
mod report;
mod requests;

use std::collections::BTreeMap;

use crate::map::{
    Change, ChangeId, ChangeRejected, Map, NodeId, NodeName, Registration, RequestId,
};

pub use report::{Progress, Report, SyncedReplica, VersionProgress};
pub use requests::ControllerRequest;

/// Maximum number of slot-move steps that are added to one map.
const STEPS_MAX: usize = 8;

/// All inputs of the controller.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    pub map: &'a Map,
    /// Milliseconds since 1970.
    pub now_ms: u64,
    /// Registrations of the nodes that have a lease.
    pub registered: &'a BTreeMap<NodeName, Registration>,
    pub reports: &'a BTreeMap<NodeName, Report>,
    /// In order of arrival.
    pub requests: &'a [(RequestId, ControllerRequest)],
}

/// The controller's next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Make this change, then decide again. If `request` is set, make it only while that request is open: a delayed change must not
    /// be made after another controller has rejected the request.
    Change {
        change: Change,
        why: String,
        request: Option<RequestId>,
    },
    /// Send this answer, delete the request, then decide again. Only valid for the map that was examined: a change whose reply
    /// was lost may have executed the request already. An error is a message for the operator.
    Answer {
        request: RequestId,
        answer: Result<String, String>,
    },
    /// Wait for a change, at most until `wake_at_ms`.
    Wait {
        wake_at_ms: Option<u64>,
        /// Problems that need an operator, as messages.
        blocked: Vec<String>,
    },
}

/// Returns the controller's next action. The cost is linear in the size of the map and the reports, and higher if a new placement
/// is computed (`placement`).
pub fn decide(inputs: &Inputs<'_>) -> Decision {
    let mut idle = IdleState::default();
    membership::decide(inputs, &mut idle)
        .or_else(|| requests::decide(inputs))
        .or_else(|| pushes::decide(inputs, &mut idle))
        .or_else(|| placement::decide(inputs, &mut idle))
        .or_else(|| moves::decide(inputs, &mut idle))
        .unwrap_or(Decision::Wait {
            wake_at_ms: idle.wake_at_ms,
            blocked: idle.blocked,
        })
}

/// Returns the map after a change of [`decide`]. If the change is a step of a slot move, further steps that are already possible
/// are added to it. This reduces the number of maps, each of which every node reads and applies while it serves requests.
///
/// # Errors
/// The map rejects the change.
pub fn next_map(
    inputs: &Inputs<'_>,
    change: &Change,
    id: &ChangeId,
) -> Result<Map, ChangeRejected> {
    let mut map = inputs.map.apply(change, id)?;
    if !moves::is_step(change) {
        return Ok(map);
    }
    for _ in 0..STEPS_MAX {
        let next = Inputs {
            map: &map,
            ..*inputs
        };
        let Decision::Change {
            change,
            request: None,
            ..
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

/// Results that apply if there is nothing to change.
#[derive(Default)]
struct IdleState {
    wake_at_ms: Option<u64>,
    blocked: Vec<String>,
}

impl IdleState {
    fn wake_at(&mut self, at_ms: u64) {
        let earliest = self.wake_at_ms.unwrap_or(u64::MAX);
        self.wake_at_ms = Some(earliest.min(at_ms));
    }
}

impl Inputs<'_> {
    fn change(&self, change: Change, why: impl Into<String>) -> Option<Decision> {
        let why = why.into();
        Some(Decision::Change {
            change,
            why,
            request: None,
        })
    }

    /// Returns the reason why the map would reject the change.
    fn rejection(&self, change: &Change) -> Option<String> {
        let tried = self.map.apply(change, &ChangeId::default());
        tried.err().map(|refused| refused.0)
    }

    /// Returns the report of a member that is up, if the report is from its current incarnation.
    fn report(&self, node: NodeId) -> Option<&Report> {
        let member = self.map.member(node)?;
        let report = self.reports.get(member.name())?;
        let is_current = report.incarnation == member.registration.incarnation;
        (self.map.is_up(node) && is_current).then_some(report)
    }
}
