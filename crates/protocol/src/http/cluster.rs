//! Bodies of `/v1/cluster`.

use serde::{Deserialize, Serialize};

/// `GET /v1/cluster`: the state of the cluster, as known to the node that responds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub name: String,
    /// `one`, or `etcd`.
    pub mode: String,
    /// The epoch of the cluster map, which is the number of its changes.
    pub epoch: u64,
    /// The name of the node that responds.
    pub node: String,
    /// The controller.
    pub controller: Option<String>,
    pub settings: ClusterSettings,
    /// The members, in the order of their numbers.
    pub members: Vec<ClusterMember>,
    /// Number of slots whose owner is up, of 16,384.
    pub slots_served: u32,
    /// All slots, in order, as runs of adjacent slots with the same nodes.
    pub slots: Vec<ClusterSlots>,
    /// The remaining moves until every slot has its target placement.
    pub moves: ClusterMoves,
    pub pushes: Vec<ClusterPush>,
    pub stores: Vec<ClusterStore>,
    /// Problems that only an operator can solve, in sentences.
    pub blocked: Vec<String>,
    /// The prerequisites that this node lacks to serve its part.
    pub missing: Option<String>,
    /// The reason why this node cannot reach etcd, and the consequences.
    pub trouble: Option<String>,
    /// Nodes that other nodes cannot reach, and the reasons, in sentences.
    #[serde(default)]
    pub unreached: Vec<String>,
    /// Nodes that cannot serve because their disk hangs or is full, in sentences.
    #[serde(default)]
    pub unable: Vec<String>,
    /// The offsets of other nodes' clocks from the clock of the node that responds.
    #[serde(default)]
    pub clocks: Vec<ClusterClock>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterClock {
    pub node: String,
    /// The offset of the clock. Negative: the clock is behind.
    pub ahead_ms: i64,
    /// The maximum error of `ahead_ms`, in both directions.
    pub within_ms: u64,
}

/// Settings that are the same on every node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    pub replicas: u8,
    /// Minimum number of copies of a slot that must be in sync for the slot to accept writes.
    #[serde(default)]
    pub min_copies: u8,
    /// `owner` or `replicas`.
    pub acknowledge: String,
    pub lease_ms: u64,
    pub replace_after_ms: u64,
    pub start_nodes: u32,
    pub admit_new_nodes: bool,
    pub spare_percent: u8,
    pub fill_slots_at_once: u16,
    pub versions_kept: u8,
    pub push_silence_ms: u64,
}

/// New values for some of [`ClusterSettings`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSettingsChange {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_copies: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acknowledge: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_nodes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admit_new_nodes: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spare_percent: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_slots_at_once: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub versions_kept: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub push_silence_ms: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterMember {
    pub name: String,
    /// The node's id for clients of Redis Cluster.
    pub id: String,
    pub zone: String,
    pub weight: u32,
    /// `base`, `compute` or `both`.
    pub roles: String,
    /// `joining`, `up`, `draining`, `stopping` or `down`.
    pub state: String,
    /// The node is removed as soon as it has no data that only it holds.
    pub is_removed: bool,
    /// The time since which the node is joining, up or down.
    pub since: u64,
    pub resp: String,
    pub http: String,
    pub peer: String,
    pub cores: u16,
    pub slots_owned: u32,
    /// Number of slots of which the node is a replica in sync.
    pub slots_in_sync: u32,
    /// Number of slots whose rows the node is receiving.
    pub slots_filling: u32,
    /// Number of slots that correspond to the node's weight.
    pub slots_share: f64,
}

/// Adjacent slots that have the same nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSlots {
    pub from: u16,
    /// Inclusive.
    pub to: u16,
    pub owner: Option<String>,
    pub in_sync: Vec<String>,
    pub filling: Vec<String>,
    /// The nodes of the target placement, the owner first. Empty: the current nodes.
    pub goal: Vec<String>,
}

/// The moves from one placement to another. Numbers of bytes are estimates that assume slots of equal size.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterMoves {
    /// Number of slots that are copied, counted once per copy.
    pub copied_slots: u64,
    pub copied_bytes: u64,
    /// Number of slots whose owner changes.
    pub owner_slots: u64,
    /// The slots and bytes that each node receives and gives up. Nodes without either are omitted.
    pub nodes: Vec<ClusterFlow>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterFlow {
    pub node: String,
    pub slots_in: u64,
    pub slots_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// The push of a version to all nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPush {
    pub store: String,
    pub version: u64,
    pub source: String,
    pub allow_missing_replicas: u32,
    pub nodes: Vec<ClusterPull>,
}

/// The progress of a node with a version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPull {
    pub node: String,
    /// `waiting`, `pulling`, `ready` or `failed`.
    pub state: String,
    pub bytes: u64,
    pub of_bytes: u64,
    /// The reason of the failure.
    pub why: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStore {
    pub name: String,
    pub live: Option<u64>,
    /// The versions to which a rollback is possible, most recently live first.
    pub kept: Vec<u64>,
    /// Nodes that hold slots and do not have the live version yet. They forward its reads.
    pub lacking: Vec<String>,
    /// The results of the last pushes and rollbacks, oldest first.
    pub ended: Vec<ClusterPushEnd>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPushEnd {
    pub version: u64,
    /// The reason why the version did not go live, if it did not.
    pub failed: Option<String>,
}

/// `POST /v1/cluster/asks`: a request to the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClusterRequest {
    /// Assign slots to a node that has registered.
    Join {
        node: String,
    },
    /// Move a node's slots to other nodes. The node stays a member.
    Drain {
        node: String,
    },
    /// Cancel a drain or a removal.
    Keep {
        node: String,
    },
    /// Drain a node, and remove it from the members when its process has ended. If it is down, `lose_rows` accepts the loss of rows
    /// that only this node has.
    Remove {
        node: String,
        #[serde(default)]
        lose_rows: bool,
    },
    Set {
        settings: ClusterSettingsChange,
    },
    /// Abort the push of a store that is in progress, from any client.
    AbortPush {
        store: String,
    },
}

/// The controller's response.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterAnswer {
    pub answer: String,
}

/// `GET /v1/cluster/plan?add=NAME[:ZONE[:WEIGHT]],...&remove=NAME,...&replicas=N`: the moves that this change would cause.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPlan {
    pub replicas: u8,
    pub moves: ClusterMoves,
    /// Number of rounds, each with at most `fill_slots_at_once` slots per node.
    pub rounds: u32,
    /// The slots of each node after the change.
    pub nodes: Vec<ClusterShare>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterShare {
    pub node: String,
    pub zone: String,
    pub slots_owned: u32,
    /// Number of slots that the node owns or replicates.
    pub slots_held: u32,
}

/// `GET /v1/cluster/kept`: the contents of a node's data folder that a recovery of the cluster map needs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterKept {
    pub node: String,
    /// The identity of the data folder, and the number of times that the node started on it. `None`: the folder is new.
    pub folder: Option<(u64, u64)>,
    /// The last map that the node followed, as text.
    pub map: Option<String>,
    /// The states of the node's copies of slots.
    pub copies: Vec<ClusterKeptCopies>,
}

/// Adjacent slots whose copies have the same state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterKeptCopies {
    pub from: u16,
    /// Inclusive.
    pub to: u16,
    /// The last term in which the node was the owner or a replica.
    pub term: u64,
    /// The term and the number of the last change.
    pub last: (u64, u64),
    /// The copy has all rows up to the last change.
    pub is_whole: bool,
}

/// `POST /v1/cluster/recover`: the contents of nodes' data folders, from which a lost map is restored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterRecover {
    pub kept: Vec<ClusterKept>,
    /// A backup of the map, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// If false, the recovery writes nothing.
    pub write: bool,
}

/// The result of a recovery, or of its dry run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterRecovery {
    /// The node with the newest copy of the map; `None`: the backup is the newest.
    pub source: Option<String>,
    /// The epoch of that copy.
    pub source_epoch: u64,
    /// The epoch of the map in etcd; `None`: etcd has no map.
    pub found_epoch: Option<u64>,
    /// The epoch of the restored map.
    pub epoch: u64,
    pub members: Vec<ClusterRecoveryMember>,
    /// Slots that no node can serve until one of certain nodes returns.
    pub waiting: Vec<ClusterWaiting>,
    /// Number of slots whose rows are newer than the newest copy of the map. Writes to them may be missing.
    pub slots_unconfirmed: u32,
    /// The epoch of a map that a node followed, if it is higher than the epoch of every copy. Writes of that epoch may be missing.
    pub missed_epoch: Option<u64>,
    pub joins: Vec<String>,
    pub spaces: Vec<String>,
    /// Stores with their live versions.
    pub stores: Vec<(String, Option<u64>)>,
    pub is_written: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterRecoveryMember {
    pub name: String,
    pub http: String,
    /// `answered`, `absent`, or `other disk`. With `other disk`, the node's folder is not the one in the map, and its contents are
    /// ignored.
    pub state: String,
    /// The epoch of the node's own copy of the map.
    pub epoch: Option<u64>,
    /// Number of slots that the node will own.
    pub slots_owned: u32,
}

/// Slots whose newest rows are on nodes that did not respond, or that have another disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterWaiting {
    pub slots: u32,
    /// The nodes that have the rows.
    pub nodes: Vec<String>,
}
