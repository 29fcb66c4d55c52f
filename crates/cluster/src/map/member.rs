//! A member: a node that the map knows, whether it is up or not.

use serde::{Deserialize, Serialize};

use super::ids::{DiskId, Incarnation, NodeId, NodeName};

/// A node of the cluster, as the map has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub id: NodeId,
    pub registration: Registration,
    pub state: State,
    /// Since when it is in this state, in milliseconds since 1970 on the controller's clock.
    pub since_ms: u64,
    /// What a person wants of it: to be drained, or to be drained and then removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<Leaving>,
    /// Its process is about to end: it gives what it owns to others, and is given nothing, until it is down.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stopping: bool,
}

/// What a node says of itself (the key `nodes/<name>`, bound to its lease).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    pub name: NodeName,
    pub incarnation: Incarnation,
    pub disk: DiskId,
    /// `host:port` for the Redis protocol.
    pub resp: String,
    /// `host:port` for HTTP.
    pub http: String,
    /// `host:port` for other nodes.
    pub peer: String,
    /// What clients are told beside the address, where one is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    pub cores: u16,
    /// Nodes that may fail together. Copies of a slot are in different zones where there are enough.
    pub zone: String,
    /// Its share of slots, in relation to the other nodes' weights. At least 1.
    pub weight: u32,
    pub roles: Roles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Roles {
    /// It owns slots: rows and data sets.
    Base,
    /// It computes outputs of joins, and holds copies of what they need.
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
pub enum State {
    /// It has registered and is given no slots yet.
    Joining,
    Up,
    /// Its lease has ended.
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leaving {
    Drain,
    Remove,
}

impl Member {
    pub fn name(&self) -> &NodeName {
        &self.registration.name
    }

    /// Whether it may be given base slots, now or when it is back.
    pub fn may_hold(&self) -> bool {
        self.state != State::Joining && self.leaving.is_none() && self.registration.roles.is_base()
    }

    /// Whether it may be given outputs of joins to compute.
    pub fn may_compute(&self) -> bool {
        self.state == State::Up && self.leaving.is_none() && self.registration.roles.is_compute()
    }

    /// The state as people are told it: `draining` while it still gives its slots away,
    /// `stopping` while its process ends.
    pub fn shown(&self) -> &'static str {
        match (self.state, self.leaving) {
            (State::Down, _) => "down",
            _ if self.is_stopping => "stopping",
            (_, Some(_)) => "draining",
            (State::Joining, None) => "joining",
            (State::Up, None) => "up",
        }
    }
}
