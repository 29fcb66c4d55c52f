//! The cluster map: one value that says who is a member, who has which slots, and which data sets,
//! tables and joins there are.
//!
//! There is one map at a time. It is kept as one JSON text by the coordination service, and it
//! changes only by [`Map::apply`]: a [`Change`] and a map give the next map or say why not. Whoever
//! makes a change writes the next map in place of the one that it read, by compare-and-swap.
//!
//! ```text
//!  map, epoch 7 ── apply(change, id) ──► map, epoch 8 ── compare-and-swap on what held epoch 7
//!                        └─► Refused: in words; the map stays
//! ```
//!
//! Invariants; [`Map::check`] names the first that is broken, and every change keeps them:
//!
//! 1. The runs have all slots, each once, in order; no two neighbours are alike.
//! 2. The nodes that a slot names are members with the role base. Its owner, its replicas in sync and those being
//!    filled are different nodes; each list is sorted.
//! 3. A slot without owner has no replica, neither in sync nor being filled, and no goal.
//! 4. No term and no epoch of a filling is above the map's epoch. A slot's term never goes back.
//! 5. A goal names each node once, and is kept only where it is not what is.
//! 6. Where the owner is up, so are all replicas in sync and being filled. Where it is down, so are all in
//!    sync, and none is being filled: nobody could take over, and the first of them to return has every acknowledged write.
//! 7. Members differ in number and in name; no number reaches the one that is given next.
//! 8. Versions of a store differ, and are below the one that is given next. Nodes that lack one are members.
//! 9. Definitions differ in number, and no number reaches the one that is given next.
//! 10. The settings are within their bounds.
//! 11. Outputs are computed by slots' owners (the list is empty), or each slot by a member with the role compute.
//!
//! What the map leaves out: how far a node is with what is asked of it (its report), who has a
//! lease (the coordination service), and everything that changes with a request.

mod apply;
mod change;
mod check;
mod difference;
mod ids;
mod lookup;
mod member;
mod settings;
mod slots;
mod stores;
mod succession;
mod text;

use std::collections::BTreeMap;

use larder_types::StoreName;
use serde::{Deserialize, Serialize};

pub use change::{AtTerm, By, Change, Refused, SpaceSet, What};
pub use check::Broken;
pub use difference::{Difference, Moved, placed_anew};
pub use ids::{
    AskId, ChangeId, ClusterId, DiskId, Epoch, Incarnation, NodeId, NodeName, SlotRange, Term,
};
pub use lookup::{Held, Lookup, Served};
pub use member::{Leaving, Member, Registration, Roles, State};
pub use settings::{Acknowledge, Settings};
pub use slots::{Filling, Placed, Run, Slots};
pub use stores::{Definition, Ended, Push, Store, Version};
pub use succession::Setback;
pub use text::{FORMAT, TextError};

/// The cluster map. Read it by its methods and [`Lookup`], change it by [`Map::apply`].
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
    /// What the placement was computed from, to see whether it must be computed anew. 0: never.
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
    /// The last time that the map was lost: the epoch of the copy that it was recovered from, and the epoch that it continued with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recovered: Option<(Epoch, Epoch)>,
}

fn is_zero(id: &ClusterId) -> bool {
    id.0 == 0
}

impl Map {
    /// A cluster without members, at epoch 0.
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

    /// The same map with an identity, which is set once, when the map is created.
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

    /// The change that made this map. Who got no reply to its compare-and-swap finds here whether it won.
    pub fn last_change(&self) -> &ChangeId {
        &self.last_change
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// All members, by their number.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    pub fn member(&self, id: NodeId) -> Option<&Member> {
        let at = self.members.binary_search_by_key(&id, |it| it.id).ok()?;
        Some(&self.members[at])
    }

    /// The member with this name. It looks through all; [`Lookup`] has a table.
    pub fn member_named(&self, name: &NodeName) -> Option<&Member> {
        self.members.iter().find(|member| member.name() == name)
    }

    /// Whether the map has `id` as a member that is not down.
    pub fn is_up(&self, id: NodeId) -> bool {
        self.member(id).is_some_and(|it| it.state != State::Down)
    }

    /// Whether the member's process is about to end.
    pub fn is_stopping(&self, id: NodeId) -> bool {
        self.member(id).is_some_and(|it| it.is_stopping)
    }

    /// The replica in sync that the owner of a slot is to give it to: the one that is to own it, or, of an owner that is
    /// stopping, any other that is not. [`Lookup::heir`] says the same of a map that stays as it is.
    pub fn heir(&self, slot: u16) -> Option<NodeId> {
        let stopping = lookup::stopping(self);
        lookup::heir_of(&self.slots.of(slot).placed, slot, &stopping)
    }

    /// A member's name for people; its number where it is a member no more.
    pub fn name_of(&self, id: NodeId) -> String {
        match self.member(id) {
            Some(member) => member.name().to_string(),
            None => format!("node number {id}"),
        }
    }

    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// What the placement was computed from; see `controller`.
    pub fn placed_from(&self) -> u64 {
        self.placed_from
    }

    /// Who computes the outputs of which slots. Empty: the owner of each slot.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = (SlotRange, NodeId)> + '_ {
        let outputs = self.outputs.iter();
        outputs.map(|&(from, to, node)| (SlotRange { from, to }, node))
    }

    pub fn stores(&self) -> &BTreeMap<StoreName, Store> {
        &self.stores
    }

    /// Where the rows of tables are that are not the cluster's own, by the table's name.
    pub fn tables(&self) -> &BTreeMap<String, Definition> {
        &self.tables
    }

    /// The joins, by the name of their output.
    pub fn joins(&self) -> &BTreeMap<String, Definition> {
        &self.joins
    }

    /// What names of spaces and their aliases stand for, in the words of whoever keeps spaces.
    pub fn spaces(&self) -> &BTreeMap<String, String> {
        &self.spaces
    }
}
