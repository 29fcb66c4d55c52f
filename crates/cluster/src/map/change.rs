//! What may happen to a map: one typed change at a time.

use std::collections::BTreeMap;
use std::fmt;

use larder_types::{StoreName, VersionId};
use serde::{Deserialize, Serialize};

use super::ids::{AskId, ChangeId, Epoch, NodeId, SlotRange, Term};
use super::member::{Leaving, Registration};
use super::settings::Settings;
use super::slots::Filling;
use super::{Map, apply};

/// A change of the map. Lists of slots are in order and do not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A node that the map does not know has registered.
    MemberAdded {
        registration: Registration,
        at_ms: u64,
    },
    /// A member says something new of itself, in the same life.
    MemberUpdated {
        node: NodeId,
        registration: Registration,
    },
    /// Members that were joining may be given slots.
    MembersAdmitted {
        nodes: Vec<NodeId>,
        at_ms: u64,
    },
    /// Members are dead: they are dropped everywhere, and for each slot that one of them owned and
    /// somebody alive is in sync with, one of those becomes the owner. Where nobody is, all stays.
    MembersLost {
        nodes: Vec<NodeId>,
        owners: Vec<(SlotRange, NodeId)>,
        at_ms: u64,
    },
    /// A member that was down is back, in a new life. Of slots that nobody alive has and that it was
    /// in sync with, it becomes the owner.
    MemberReturned {
        node: NodeId,
        registration: Registration,
        at_ms: u64,
    },
    /// A person wants the member drained or removed, or no more so (`None`).
    MemberLeaving {
        node: NodeId,
        leaving: Option<Leaving>,
    },
    /// The member's process is about to end: what it owns goes to replicas in sync.
    MemberStopping {
        node: NodeId,
    },
    /// The member is a member no more. It has no slots.
    MemberGone {
        node: NodeId,
    },
    /// A person gives up the rows that only `node` has, which is down: these slots get an owner without rows.
    RowsGivenUp {
        node: NodeId,
    },
    /// Where slots are to be, and who is to compute outputs. Slots that nobody has yet begin there, without rows.
    PlacementTaken {
        /// The nodes that are to have each slot, the owner first.
        goals: Vec<(SlotRange, Vec<NodeId>)>,
        outputs: Vec<(SlotRange, NodeId)>,
        /// What it was computed from: see `Map::placed_from`.
        from: u64,
    },
    /// Nodes begin to be given the rows of slots.
    FillsBegun {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// Nodes are no longer given the rows of slots, and are not in sync.
    FillsEnded {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// Replicas leave those in sync, or join them. Only who knows the slot's current term may say so.
    SyncChanged {
        by: By,
        slots: Vec<AtTerm>,
    },
    /// A replica in sync becomes the owner, and the owner a replica in sync, unless it is stopping: then nobody waits for it. It is the owner who makes this change, when it answers nobody of
    /// these slots any more and no other node computes from its rows: from then on whoever learns late of it has nothing that is old.
    OwnersMoved {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// Replicas in sync that are not to have the slots any more are dropped.
    CopiesDropped {
        slots: Vec<(SlotRange, NodeId)>,
    },
    /// A version is to be pulled by every node that holds slots. It gets the store's next number.
    PushBegun {
        store: StoreName,
        ask: AskId,
        source: String,
        digest: String,
        allow_missing_replicas: u32,
        options: BTreeMap<String, String>,
        at_ms: u64,
    },
    /// Nodes have told of progress with a push.
    PushProgressed {
        store: StoreName,
        version: VersionId,
        progress: u64,
        at_ms: u64,
    },
    /// The push did not work out; no node makes the version live.
    PushFailed {
        store: StoreName,
        version: VersionId,
        why: String,
    },
    /// The push's version is live on every node but those that lack it.
    VersionLive {
        store: StoreName,
        version: VersionId,
        lacking: Vec<NodeId>,
    },
    /// A kept version is live again, by the wish `ask`.
    RolledBack {
        store: StoreName,
        ask: AskId,
        to: VersionId,
        lacking: Vec<NodeId>,
    },
    /// Nodes that lacked the live version have it now.
    CaughtUp {
        store: StoreName,
        version: VersionId,
        nodes: Vec<NodeId>,
    },
    /// A kept version is kept no more.
    VersionRemoved {
        store: StoreName,
        version: VersionId,
    },
    StoreRemoved {
        store: StoreName,
    },
    Defined {
        what: What,
        name: String,
        text: String,
        /// In the place of a definition of the same name.
        replace: bool,
    },
    Undefined {
        what: What,
        name: String,
    },
    /// Names of spaces stand for something else from now on: all of them, or nothing changes.
    SpacesSet {
        sets: Vec<SpaceSet>,
    },
    SettingsChanged {
        settings: Settings,
    },
    /// The map was lost, and is written again from a copy: at a later epoch, with every member down. `holders` are the nodes that
    /// have a slot's newest rows, the future owner first; slots that are not listed keep their holders.
    Recovered {
        epoch: Epoch,
        holders: Vec<(SlotRange, Vec<NodeId>)>,
        at_ms: u64,
    },
}

/// Who says that the replicas in sync change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The owner of all these slots, by compare-and-swap on its own lease as well.
    Owner(NodeId),
    /// The controller, by the owner's report: the owner tells of a replica only after it has begun
    /// to wait for that replica's acknowledgements, so nothing is acknowledged without it.
    Controller,
}

/// Slots of one term whose replicas in sync change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AtTerm {
    pub slots: SlotRange,
    /// The term that whoever wants the change knows. Any other refuses it.
    pub term: Term,
    pub out: Vec<NodeId>,
    /// Replicas that were filled: just those fillings that the map has.
    pub into: Vec<Filling>,
}

/// What a name of a space is to stand for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceSet {
    pub name: String,
    /// What it stood for when this was decided; any other refuses the change.
    pub before: Option<String>,
    pub record: Option<String>,
}

/// Records are long, and nothing that a log's reader looks for.
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

/// What a definition defines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    Table,
    Join,
}

/// Why a change is not made, in words. The map stays as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the change of the cluster map is refused: {}", self.0)
    }
}

impl std::error::Error for Refused {}

impl Map {
    /// The map after `change`, which `id` names. It copies the map: milliseconds for the largest.
    ///
    /// # Errors
    ///
    /// If the change does not fit this map. Read the map again and decide anew; the same change
    /// on the same map is refused again.
    pub fn apply(&self, change: &Change, id: &ChangeId) -> Result<Map, Refused> {
        let mut map = self.clone();
        map.epoch = Epoch(self.epoch.0 + 1);
        map.last_change = id.clone();
        apply::apply(&mut map, change).map_err(Refused)?;
        debug_assert_eq!(map.check(), Ok(()), "after {change:?}");
        Ok(map)
    }
}
