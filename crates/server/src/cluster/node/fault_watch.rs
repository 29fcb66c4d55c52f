//! Ties the lease to the ability to serve: a node whose disk stalls or fails gives up its lease if other nodes have copies of its
//! slots.
//!
//! The node first reports that it cannot serve, and gives up its lease one second after etcd has confirmed the report. If the
//! disks of two nodes fail together, each thus knows about the other, and neither leaves its slots to the other.

use std::time::Duration;

use larder_cluster::map::{NodeId, NodeName, Placement};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::coordination_state::CoordinationState;
use super::reports::Reports;
use crate::fault_monitor::{Fault, FaultMonitor};

/// The interval between checks.
pub const CHECK_EVERY: Duration = Duration::from_millis(250);
/// The time for which the report must have been in etcd before the node gives up its lease.
const REPORTED_FOR: Duration = Duration::from_secs(1);

/// Reports whether this node can serve. Returns the reason why it cannot, once other nodes should take over.
pub async fn until_unable(
    fault_monitor: &FaultMonitor,
    reports: &Reports,
    name: &NodeName,
    updates: watch::Receiver<CoordinationState>,
) -> Fault {
    let mut since = None;
    loop {
        let fault = fault_monitor.fault();
        let why = fault.as_ref().map(|it| it.why.clone());
        reports.change(|report| report.unable = why);
        match fault {
            None => since = None,
            Some(fault) => {
                let state = updates.borrow();
                if state.unable.get(name) != Some(&fault.why) {
                    since = None;
                } else if since.get_or_insert_with(Instant::now).elapsed() >= REPORTED_FOR
                    && can_others_serve(&state, name, &fault)
                {
                    return fault;
                }
            }
        }
        sleep(CHECK_EVERY).await;
    }
}

/// Returns whether nodes that can serve have in-sync copies: of all slots that this node owns if it still serves some
/// requests, of any slot if it serves none.
fn can_others_serve(state: &CoordinationState, name: &NodeName, fault: &Fault) -> bool {
    let Some(map) = state.map.as_ref().map(|it| &it.map) else {
        return false;
    };
    let Some(me) = map.member_named(name).map(|it| it.id) else {
        return false;
    };
    let is_able = |node: NodeId| {
        let name = map.member(node).map(|it| it.name());
        node != me && map.is_up(node) && !name.is_some_and(|name| state.unable.contains_key(name))
    };
    let has_other = |placed: &Placement| placed.holders().any(is_able);
    let runs = map.slots().runs().iter().map(|run| &run.placement);
    let mut held = runs.filter(|placed| placed.is_holder(me)).peekable();
    if fault.is_partial {
        held.peek().is_some() && held.all(|placed| placed.owner != Some(me) || has_other(placed))
    } else {
        held.any(has_other)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_cluster::coordination::Revision;
    use larder_cluster::map::{Change, ChangeId, Map, Settings, SlotRange};
    use larder_types::SLOTS;

    use super::*;
    use crate::cluster::node::RevisionedMap;
    use crate::cluster::registration;

    /// A map in which replicas of `a`'s slots are on `b`, and optionally as many slots without a replica.
    fn state(are_all_copied: bool) -> CoordinationState {
        let settings = Settings {
            replicas: 2,
            ..Settings::default()
        };
        let mut map = Map::new("test", settings);
        let mut change =
            |change: Change| map = map.apply(&change, &ChangeId::default()).expect("allowed");
        for name in ["a", "b"] {
            change(Change::MemberAdded {
                registration: registration(name, 1),
                at_ms: 0,
            });
        }
        let (a, b) = (NodeId(1), NodeId(2));
        change(Change::MembersAdmitted {
            nodes: vec![a, b],
            at_ms: 0,
        });
        let rest = if are_all_copied { vec![a, b] } else { vec![a] };
        change(Change::PlacementReplaced {
            goals: vec![
                (SlotRange::new(0, 8191), vec![a, b]),
                (SlotRange::new(8192, SLOTS - 1), rest),
            ],
            outputs: Vec::new(),
            from: 1,
        });
        let mut state = CoordinationState::default();
        state.map = Some(RevisionedMap {
            map: Arc::new(map),
            revision: Revision(1),
        });
        state
    }

    #[test]
    fn a_node_that_serves_some_requests_gives_up_only_if_every_slot_has_another_copy() {
        let fault = |serves_some: bool| Fault {
            why: String::new(),
            is_partial: serves_some,
        };
        let a = "a".parse().expect("a name");
        assert!(can_others_serve(&state(true), &a, &fault(true)));
        assert!(!can_others_serve(&state(false), &a, &fault(true)));
        assert!(can_others_serve(&state(false), &a, &fault(false)));
        let mut both = state(true);
        both.unable = Arc::new([("b".parse().expect("a name"), String::new())].into());
        assert!(!can_others_serve(&both, &a, &fault(true)));
        assert!(!can_others_serve(&both, &a, &fault(false)));
    }
}
