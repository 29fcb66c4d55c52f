//! The typed changes of a map.

use std::collections::BTreeMap;
use std::fmt;

use larder_types::{StoreName, VersionId};
use serde::{Deserialize, Serialize};

use super::ids::{ChangeId, Epoch, NodeId, RequestId, SlotRange, Term};
use super::member::{Departure, Registration};
use super::settings::Settings;
use super::slots::ReplicaFill;
use super::{Map, apply};

/// A change of the map. Lists of slots are sorted and do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node that is not in the map has registered.
    MemberAdded {
        registration: Registration,
        at_ms: u64,
    },
    /// A member registered different properties in the same incarnation.
    MemberUpdated {
        node: NodeId,
        registration: Registration,
    },
    /// Joining members may receive slots.
    MembersAdmitted {
        nodes: Vec<NodeId>,
        at_ms: u64,
    },
    /// Members are dead and are removed from all slots. `owners` names a live in-sync replica as the new owner of each slot that
    /// a lost member owned. A slot without such a replica is unchanged.
    MembersLost {
        nodes: Vec<NodeId>,
        owners: Vec<(SlotRange, NodeId)>,
        at_ms: u64,
    },
    /// A member that was down has returned, in a new incarnation. It becomes the owner of slots for which it was in sync and that
    /// no live node holds.
    MemberReturned {
        node: NodeId,
        registration: Registration,
        at_ms: u64,
    },
    /// An operator requests that the member be drained or removed, or withdraws that (`None`).
    MemberLeaving {
        node: NodeId,
        leaving: Option<Departure>,
    },
    /// The member's process will stop: in-sync replicas take over the slots that it owns.
    MemberStopping {
        node: NodeId,
    },
    /// Removes the member from the map. It has no slots.
    MemberRemoved {
        node: NodeId,
    },
    /// An operator discards the rows that only `node` has, which is down. These slots become empty and get a new owner.
    RowsDiscarded {
        node: NodeId,
    },
    /// The target placement of slots, and of the computation of outputs. Slots without an owner start there, empty.
    PlacementReplaced {
        /// The target nodes of each slot, the owner first.
        goals: Vec<(SlotRange, Vec<NodeId>)>,
        outputs: Vec<(SlotRange, NodeId)>,
        /// The fingerprint of the inputs: see `Map::placed_from`.
        from: u64,
    },
    /// Starts the transfer of slots' rows to nodes.
    FillsBegun {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// Stops the transfer of slots' rows to nodes that are not in sync.
    FillsEnded {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// Replicas leave the in-sync set or join it. Only valid for the slot's current term.
    SyncChanged {
        by: SyncChangeOrigin,
        slots: Vec<SyncChange>,
    },
    /// An in-sync replica becomes the owner. The previous owner becomes an in-sync replica, unless it is stopping: then no write
    /// waits for it. The owner makes this change itself, when it no longer serves requests for these slots and no other node
    /// computes from its rows. A node that learns of the change late therefore has no stale data.
    OwnersMoved {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// Drops in-sync replicas that are not targets of the slots.
    CopiesDropped {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// Requests that every node that holds slots pull a version. The version gets the store's next number.
    PushBegun {
        store: StoreName,
        request: RequestId,
        source: String,
        digest: String,
        allow_missing_replicas: u32,
        options: BTreeMap<String, String>,
        at_ms: u64,
    },
    /// Nodes have reported progress with a push.
    PushProgressed {
        store: StoreName,
        version: VersionId,
        progress: u64,
        at_ms: u64,
    },
    /// The push failed; no node makes the version live.
    PushFailed {
        store: StoreName,
        version: VersionId,
        why: String,
    },
    /// The push's version is live on every node except those in `lacking`.
    VersionLive {
        store: StoreName,
        version: VersionId,
        missing: Vec<NodeId>,
    },
    /// A kept version becomes live again, at the request `ask`.
    RolledBack {
        store: StoreName,
        request: RequestId,
        to: VersionId,
        missing: Vec<NodeId>,
    },
    /// Nodes that lacked the live version now have it.
    CaughtUp {
        store: StoreName,
        version: VersionId,
        nodes: Vec<NodeId>,
    },
    /// A kept version is removed.
    VersionRemoved {
        store: StoreName,
        version: VersionId,
    },
    StoreRemoved {
        store: StoreName,
    },
    DefinitionSet {
        kind: DefinitionKind,
        name: String,
        text: String,
        /// Replaces a definition of the same name.
        replace: bool,
    },
    DefinitionDropped {
        kind: DefinitionKind,
        name: String,
    },
    /// Changes which space each name refers to, for all names or for none.
    SpacesSet {
        sets: Vec<SpaceSet>,
    },
    SettingsChanged {
        settings: Settings,
    },
    /// Restores a lost map from a copy, at a later epoch and with every member down. `holders` are the nodes with a slot's newest
    /// rows, the future owner first. Slots that are not listed keep their holders.
    MapRecovered {
        epoch: Epoch,
        holders: Vec<(SlotRange, Vec<NodeId>)>,
        at_ms: u64,
    },
}

/// The origin of a change of the in-sync set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncChangeOrigin {
    /// The owner of all these slots, with a compare-and-swap that also checks its own lease.
    Owner(NodeId),
    /// The controller, according to the owner's report. The owner reports a replica only after it has started to wait for that
    /// replica's acknowledgements, so no write is acknowledged without it.
    Controller,
}

/// Slots of one term whose in-sync set changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncChange {
    pub slots: SlotRange,
    /// The term on which the change is based. The change is rejected if the slot has any other.
    pub term: Term,
    pub out: Vec<NodeId>,
    /// Filled replicas that join the in-sync set. They must match fills in the map.
    pub into: Vec<ReplicaFill>,
}

/// The new value of a space's name.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceSet {
    pub name: String,
    /// The previous value. If the current value differs, the change is rejected.
    pub before: Option<String>,
    pub record: Option<String>,
}

/// Omits the records, which are long and of no use in a log.
impl fmt::Debug for SpaceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = |record: &Option<String>| record.as_ref().map(String::len);
        f.debug_struct("SpaceSet")
            .field("name", &self.name)
            .field("bytes_before", &len(&self.before))
            .field("bytes", &len(&self.record))
            .finish()
    }
}

/// The kind of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DefinitionKind {
    Table,
    Join,
}

/// The reason why a change was rejected. The map is unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeRejected(pub String);

impl fmt::Display for ChangeRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the change of the cluster map was rejected: {}", self.0)
    }
}

impl std::error::Error for ChangeRejected {}

impl Map {
    /// Returns the map after `change`, which has the id `id`. It copies the map, which takes milliseconds for the largest maps.
    ///
    /// # Errors
    ///
    /// The change does not fit this map. Read the map again and decide again; the same change of the same map is always rejected.
    pub fn apply(&self, change: &Change, id: &ChangeId) -> Result<Map, ChangeRejected> {
        let mut map = self.clone();
        map.epoch = Epoch(self.epoch.0 + 1);
        map.last_change = id.clone();
        apply::apply(&mut map, change).map_err(ChangeRejected)?;
        debug_assert_eq!(map.check(), Ok(()), "after {change:?}");
        Ok(map)
    }
}
