//! Members: nodes in the map, whether up or down.

use serde::{Deserialize, Serialize};

use super::ids::{DiskId, Incarnation, NodeId, NodeName};

/// A node of the cluster, as recorded in the map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub id: NodeId,
    pub registration: Registration,
    pub state: MemberState,
    /// The time of the last change of `state`, in milliseconds since 1970 on the controller's clock.
    pub since_ms: u64,
    /// An operator's request to drain the node, or to drain and then remove it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Departure>,
    /// The process is stopping: other nodes take over the slots that the node owns, and it receives none until it is down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stopping: bool,
}

/// The properties that a node registers (the key `nodes/<name>`, bound to its lease).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    pub name: NodeName,
    pub incarnation: Incarnation,
    pub disk: DiskId,
    /// `host:port` of the Redis protocol.
    pub resp: String,
    /// `host:port` of HTTP.
    pub http: String,
    /// `host:port` for other nodes.
    pub peer: String,
    /// The host name that clients receive in addition to the address, if one is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    pub cores: u16,
    /// A failure domain. Copies of a slot are in different zones if there are enough.
    pub zone: String,
    /// The node's share of slots, relative to the other nodes' weights. At least 1.
    pub weight: u32,
    pub roles: Roles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Roles {
    /// The node owns slots: rows and data sets.
    Base,
    /// The node computes outputs of joins, and holds copies of the rows that they need.
    Compute,
    Both,
}

impl Roles {
    pub fn is_base(self) -> bool {
        self != Roles::Compute
    }

    pub fn is_compute(self) -> bool {
        self != Roles::Base
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    /// The node has registered and does not receive slots yet.
    Joining,
    Up,
    /// The node's lease has expired.
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Departure {
    Drain,
    Remove,
}

impl Member {
    pub fn name(&self) -> &NodeName {
        &self.registration.name
    }

    /// Returns whether slots may be placed on the node, now or after its return.
    pub fn may_hold(&self) -> bool {
        self.state != MemberState::Joining
            && self.leaving.is_none()
            && self.registration.roles.is_base()
    }

    /// Returns whether the computation of outputs may be placed on the node.
    pub fn may_compute(&self) -> bool {
        self.state == MemberState::Up
            && self.leaving.is_none()
            && self.registration.roles.is_compute()
    }

    /// The state as shown to operators: `draining` while the node hands over its slots, `stopping` while its process stops.
    pub fn display_state(&self) -> &'static str {
        match (self.state, self.leaving) {
            (MemberState::Down, _) => "down",
            _ if self.is_stopping => "stopping",
            (_, Some(_)) => "draining",
            (MemberState::Joining, None) => "joining",
            (MemberState::Up, None) => "up",
        }
    }
}
