//! This node's status in its cluster, as messages for operators: `/readyz`, INFO, and the reason why commands are rejected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_cluster::coordination::boot_ms;
use larder_cluster::map::{MemberState, NodeName};

use super::{CoordinationState, peer_failures};
use crate::cluster::View;

/// The status at approximately one instant.
#[derive(Debug, Clone)]
pub struct NodeHealth {
    pub name: NodeName,
    /// `cluster.etcd`.
    pub endpoints: String,
    /// The error of the last request to etcd; `None` if it succeeded.
    pub etcd_error: Option<String>,
    /// The time of `boot_ms` at which the known state was last compared with etcd; `None` if never.
    pub confirmed_at_ms: Option<u64>,
    /// The reason why this node does not participate, if it needs an operator.
    pub operator_error: Option<String>,
    pub is_registered: bool,
    pub state: CoordinationState,
    /// The newest epoch that another node has sent.
    peer_epoch: Arc<AtomicU64>,
}

impl NodeHealth {
    pub fn new(
        name: NodeName,
        endpoints: String,
        state: CoordinationState,
        peer_epoch: Arc<AtomicU64>,
    ) -> NodeHealth {
        NodeHealth {
            name,
            endpoints,
            etcd_error: None,
            confirmed_at_ms: None,
            operator_error: None,
            is_registered: false,
            state,
            peer_epoch,
        }
    }

    /// Returns what is missing before this node can serve; `None` if nothing is.
    pub fn readiness_error(&self, view: &View) -> Option<String> {
        let name = &self.name;
        if self.confirmed_at_ms.is_none() {
            let why = self
                .etcd_error
                .as_deref()
                .unwrap_or("it has not answered yet");
            return Some(format!(
                "etcd at {} has not been reached: {why}",
                self.endpoints
            ));
        }
        if let Some(why) = &self.state.map_error {
            return Some(format!("the cluster's map in etcd cannot be used: {why}"));
        }
        if let Some(why) = self.cut_off_reason(view) {
            return Some(why);
        }
        if let Some(why) = &self.operator_error {
            return Some(why.clone());
        }
        let Some(own) = view.own() else {
            return Some(if self.is_registered {
                format!(
                    "node {name} has registered, and is not in the map yet ({})",
                    self.describe_controller()
                )
            } else {
                format!("node {name} has not registered yet")
            });
        };
        if !view.is_up() && own.state != MemberState::Joining {
            let blocked = self.state.blocked.iter();
            let mut own = blocked.filter(|why| why.starts_with(name.as_str()));
            return Some(own.next().cloned().unwrap_or_else(|| {
                let controller = self.describe_controller();
                format!("the map still has node {name} as down ({controller})")
            }));
        }
        self.unassigned_reason(view)
            .or_else(|| self.unreached_reason(view))
    }

    /// With three nodes or more: reports that most of the others cannot reach this one.
    fn unreached_reason(&self, view: &View) -> Option<String> {
        let (by, why) = peer_failures::find_reporters(&view.map, &self.state.reports, &self.name);
        let there = view.map.members().iter();
        let others = there
            .filter(|it| it.state != MemberState::Down && it.id != view.me)
            .count();
        (by.len() > 1 && 2 * by.len() > others)
            .then(|| peer_failures::describe_failure(&self.name, &by, why))
    }

    /// One sentence for each node that others cannot reach.
    pub fn describe_unreached(&self, view: &View) -> Vec<String> {
        peer_failures::describe_failures(&view.map, &self.state.reports)
    }

    /// The reason why this node must not serve by its own map: its lease has expired, and another node has a newer map.
    pub fn cut_off_reason(&self, view: &View) -> Option<String> {
        let (own, newest) = (view.map.epoch().0, self.peer_epoch.load(Ordering::Acquire));
        if newest <= own || self.lease_left_ms(view) > 0 {
            return None;
        }
        let why = self
            .etcd_error
            .as_deref()
            .unwrap_or("it has just answered again");
        Some(format!(
            "this node's lease has ended, and other nodes have a newer map of the cluster (epoch {newest}, this node has {own}), which it cannot get from \
             etcd at {}: {why}",
            self.endpoints
        ))
    }

    /// One sentence for each node that cannot serve.
    pub fn describe_unable(&self, view: &View) -> Vec<String> {
        let unable = self.state.unable.iter();
        let members = unable.filter(|(name, _)| view.map.member_named(name).is_some());
        let sentences = members.map(|(name, why)| format!("node {name} cannot serve: {why}"));
        sentences.collect()
    }

    /// The reason why all commands on tables are rejected, if they are.
    pub fn refusal(&self, view: &View) -> Option<String> {
        if view.is_up() && !view.lookup.served_ranges().is_empty() {
            return None;
        }
        self.readiness_error(view)
    }

    /// A warning that does not prevent this node from serving.
    pub fn etcd_warning(&self, view: &View) -> Option<String> {
        let why = self.etcd_error.as_ref()?;
        let left = self.lease_left_ms(view);
        let writes = match left {
            0 => "writes to tables are rejected until it does".to_owned(),
            left => format!(
                "writes to tables are accepted for another {:.1} s",
                left as f64 / 1000.0
            ),
        };
        Some(format!(
            "etcd at {} does not answer ({why}): reads of stores continue with the last map, reads of rows where replicas confirm them, {writes}",
            self.endpoints
        ))
    }

    /// The time for which this node certainly holds its lease.
    pub fn lease_left_ms(&self, view: &View) -> u64 {
        let until = view.life.as_ref().map_or(0, |life| life.held.until_ms());
        until.saturating_sub(boot_ms())
    }

    /// The controller's name, as a clause.
    fn describe_controller(&self) -> String {
        match &self.state.leader {
            Some(leader) => format!("{} is the controller", leader.name),
            None => "there is no controller".to_owned(),
        }
    }

    fn unassigned_reason(&self, view: &View) -> Option<String> {
        let own = view.own()?;
        let has_slots = view
            .map
            .slots()
            .runs()
            .iter()
            .any(|run| run.placement.owner.is_some());
        let settings = view.map.settings();
        if own.state == MemberState::Joining && !settings.admit_new_nodes {
            return Some(format!(
                "node {name} has registered, and receives slots after this command: larder cluster join {name}",
                name = self.name
            ));
        }
        if has_slots {
            return (own.state == MemberState::Joining).then(|| {
                format!(
                    "node {} is being admitted ({})",
                    self.name,
                    self.describe_controller()
                )
            });
        }
        let there = view.map.members().iter();
        let there = there
            .filter(|it| it.state != MemberState::Down && it.registration.roles.is_base())
            .count();
        Some(if there < settings.start_nodes as usize {
            format!(
                "{there} of {} nodes are present; slots are assigned when all are (cluster.start_nodes)",
                settings.start_nodes
            )
        } else {
            format!(
                "slots are about to be assigned ({})",
                self.describe_controller()
            )
        })
    }
}
