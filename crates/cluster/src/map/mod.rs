//! The cluster map: the members, the owner and the replicas of each slot, and the data sets, tables, joins and spaces of the
//! cluster.
//!
//! There is one current map. The coordination service stores it as one JSON text. It changes only by [`Map::apply`], which
//! computes the next map from a map and a [`Change`], or rejects the change. The caller then replaces the map that it read with
//! the next one, by compare-and-swap.
//!
//! ```text
//!  map, epoch 7 ── apply(change, id) ──► map, epoch 8 ── compare-and-swap with the value of epoch 7
//!                        └─► ChangeRejected, with the reason; the map is unchanged
//! ```
//!
//! Invariants, which every change preserves. [`Map::check`] returns the first violated one:
//!
//! 1. The runs cover all slots, each once, in order. No two adjacent runs are equal.
//! 2. The nodes that a slot names are members with the role base. Its owner, its in-sync replicas and its replicas being filled
//!    are different nodes; each list is sorted.
//! 3. A slot without an owner has no replica, neither in sync nor being filled, and no goal.
//! 4. No term and no epoch of a fill exceeds the map's epoch. A slot's term never decreases.
//! 5. A goal names each node once, and is stored only if it differs from the current placement.
//! 6. If the owner is up, so are all replicas in sync and being filled. If it is down, so are all replicas in sync, and none is
//!    being filled: no replica could take over, and the first of them to return has every acknowledged write.
//! 7. Members have different numbers and names, and all numbers are below the next one to assign.
//! 8. Versions of a store have different numbers, all below the next one to assign. Nodes that lack a version are members.
//! 9. Definitions have different numbers, all below the next one to assign.
//! 10. The settings are within their bounds.
//! 11. Outputs are computed by slots' owners (the list is empty), or each slot's by a member with the role compute.
//!
//! The map does not contain a node's progress (its report), the leases (the coordination service), or anything that changes with
//! a request.

mod apply;
mod change;
mod check;
mod difference;
mod ids;
mod lookup;
mod member;
mod regression;
mod settings;
mod slots;
mod stores;
mod text;

use std::collections::BTreeMap;

use larder_types::StoreName;
use serde::{Deserialize, Serialize};

pub use change::{Change, ChangeRejected, DefinitionKind, SpaceSet, SyncChange, SyncChangeOrigin};
pub use check::InvariantViolation;
pub use difference::{Difference, SlotChange, changed_slots};
pub use ids::{
    ChangeId, ClusterId, DiskId, Epoch, Incarnation, NodeId, NodeName, RequestId, SlotRange, Term,
};
pub use lookup::{Lookup, NodeSlots, ServedRange};
pub use member::{Departure, Member, MemberState, Registration, Roles};
pub use regression::MapRegression;
pub use settings::{Acknowledge, Settings};
pub use slots::{Placement, ReplicaFill, Run, Slots};
pub use stores::{Definition, Push, PushResult, Store, Version};
pub use text::{FORMAT, TextError};

/// The cluster map. It is read through its methods and [`Lookup`], and changed by [`Map::apply`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    format: u32,
    cluster: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    id: ClusterId,
    epoch: Epoch,
    last_change: ChangeId,
    settings: Settings,
    next_node: NodeId,
    members: Vec<Member>,
    slots: Slots,
    /// A fingerprint of the inputs of the last placement, to detect whether a new one is needed. 0 if there was none.
    #[serde(default)]
    placed_from: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<(u16, u16, NodeId)>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    stores: BTreeMap<StoreName, Store>,
    next_definition: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    tables: BTreeMap<String, Definition>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    joins: BTreeMap<String, Definition>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    spaces: BTreeMap<String, String>,
    /// The last recovery: the epoch of the copy from which the map was recovered, and the epoch at which it continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recovered: Option<(Epoch, Epoch)>,
}

fn is_zero(id: &ClusterId) -> bool {
    id.0 == 0
}

impl Map {
    /// Creates the map of a cluster without members, at epoch 0.
    pub fn new(cluster: &str, settings: Settings) -> Map {
        Map {
            format: FORMAT,
            cluster: cluster.to_owned(),
            id: ClusterId(0),
            epoch: Epoch(0),
            last_change: ChangeId::default(),
            settings,
            next_node: NodeId(1),
            members: Vec::new(),
            slots: Slots::default(),
            placed_from: 0,
            outputs: Vec::new(),
            stores: BTreeMap::new(),
            next_definition: 1,
            tables: BTreeMap::new(),
            joins: BTreeMap::new(),
            spaces: BTreeMap::new(),
            recovered: None,
        }
    }

    /// Sets the identity, once, when the map is created.
    #[must_use]
    pub fn with_id(mut self, id: ClusterId) -> Map {
        self.id = id;
        self
    }

    /// The identity of the cluster.
    pub fn id(&self) -> ClusterId {
        self.id
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The change that produced this map. A writer whose compare-and-swap got no reply learns from it whether it succeeded.
    pub fn last_change(&self) -> &ChangeId {
        &self.last_change
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All members, sorted by number.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    pub fn member(&self, id: NodeId) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&id, |it| it.id).ok()?;
        Some(&self.members[at])
    }

    /// Returns the member with this name, by a linear search. [`Lookup`] has a table.
    pub fn member_named(&self, name: &NodeName) -> Option<&Member> {
        self.members.iter().find(|member| member.name() == name)
    }

    /// Returns whether `id` is a member that is not down.
    pub fn is_up(&self, id: NodeId) -> bool {
        self.member(id)
            .is_some_and(|it| it.state != MemberState::Down)
    }

    /// Returns whether the member's process is stopping.
    pub fn is_stopping(&self, id: NodeId) -> bool {
        self.member(id).is_some_and(|it| it.is_stopping)
    }

    /// Returns the in-sync replica to which the owner should hand over the slot: the intended owner, or, if the owner is
    /// stopping, any other replica that is not. [`Lookup::heir`] is the equivalent for a fixed map.
    pub fn next_owner(&self, slot: u16) -> Option<NodeId> {
        let stopping = lookup::stopping(self);
        lookup::find_next_owner(&self.slots.of(slot).placement, slot, &stopping)
    }

    /// Returns a member's name for messages, or its number if it is no longer a member.
    pub fn name_of(&self, id: NodeId) -> String {
        match self.member(id) {
            Some(member) => member.name().to_string(),
            None => format!("node number {id}"),
        }
    }

    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// A fingerprint of the inputs of the last placement; see `controller`.
    pub fn placed_from(&self) -> u64 {
        self.placed_from
    }

    /// The nodes that compute the outputs of slots. Empty if the owner of each slot computes them.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = (SlotRange, NodeId)> + '_ {
        let outputs = self.outputs.iter();
        outputs.map(|&(from, to, node)| (SlotRange { from, to }, node))
    }

    pub fn stores(&self) -> &BTreeMap<StoreName, Store> {
        &self.stores
    }

    /// The external locations of tables whose rows are not in the cluster, by table name.
    pub fn tables(&self) -> &BTreeMap<String, Definition> {
        &self.tables
    }

    /// The joins, by the name of their output.
    pub fn joins(&self) -> &BTreeMap<String, Definition> {
        &self.joins
    }

    /// The spaces and aliases: a record by name, in a format that this crate does not interpret.
    pub fn spaces(&self) -> &BTreeMap<String, String> {
        &self.spaces
    }
}
