//! Bodies of `/v1/cluster`.

use serde::{Deserialize, Serialize};

/// `GET /v1/cluster`: the cluster as the node that is asked knows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    pub name: String,
    /// `one`, or `etcd`.
    pub mode: String,
    /// How many changes the cluster's map has seen.
    pub epoch: u64,
    /// The name of the node that answers.
    pub node: String,
    /// The node that decides about the map.
    pub controller: Option<String>,
    pub settings: ClusterSettings,
    /// By their numbers.
    pub members: Vec<ClusterMember>,
    /// Slots whose owner is up, of 16,384.
    pub slots_served: u32,
    /// All slots, as runs of those that are alike, in their order.
    pub slots: Vec<ClusterSlots>,
    /// What is left to be done until every slot is where it is to be.
    pub moves: ClusterMoves,
    pub pushes: Vec<ClusterPush>,
    pub stores: Vec<ClusterStore>,
    /// What only a person can mend, in sentences.
    pub blocked: Vec<String>,
    /// What this node misses until it can do its part.
    pub missing: Option<String>,
    /// Why etcd does not answer this node, and what follows from it.
    pub trouble: Option<String>,
    /// Which nodes cannot be reached by which others, and why, in sentences.
    #[serde(default)]
    pub unreached: Vec<String>,
    /// Which nodes cannot serve, because their disk hangs or is full, in sentences.
    #[serde(default)]
    pub unable: Vec<String>,
    /// How far the clocks of other nodes are from that of the node that answers.
    #[serde(default)]
    pub clocks: Vec<ClusterClock>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterClock {
    pub node: String,
    /// Negative: it is behind.
    pub ahead_ms: i64,
    /// By how much that may be wrong, either way.
    pub within_ms: u64,
}

/// What is the same on every node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterSettings {
    pub replicas: u8,
    /// How many copies of a slot must be in sync for its writes to be taken.
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

/// Some of [`ClusterSettings`], to be changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSettingsWanted {
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
    /// As clients of Redis Cluster know it.
    pub id: String,
    pub zone: String,
    pub weight: u32,
    /// `base`, `compute` or `both`.
    pub roles: String,
    /// `joining`, `up`, `draining`, `stopping` or `down`.
    pub state: String,
    /// It is to be removed once it has nothing any more.
    pub is_removed: bool,
    /// Since when it is joining, up or down.
    pub since: u64,
    pub resp: String,
    pub http: String,
    pub peer: String,
    pub cores: u16,
    pub slots_owned: u32,
    /// Slots of which it is a replica that has every acknowledged write.
    pub slots_in_sync: u32,
    /// Slots of which it is being given the rows.
    pub slots_filling: u32,
    /// How many slots it would own by its weight.
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
    /// The nodes that are to have them, the owner first. Empty: those that have them.
    pub goal: Vec<String>,
}

/// What has to be done to come from one placement to another. Bytes are an estimate: the same for each slot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterMoves {
    /// Slots that are copied, counted once for each copy.
    pub copied_slots: u64,
    pub copied_bytes: u64,
    /// Slots that get another owner.
    pub owner_slots: u64,
    /// What each node is given and gives; nodes that neither are given nor give anything are left out.
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

/// A version on its way to being live on all nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPush {
    pub store: String,
    pub version: u64,
    pub source: String,
    pub allow_missing_replicas: u32,
    pub nodes: Vec<ClusterPull>,
}

/// How far a node is with a version.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPull {
    pub node: String,
    /// `waiting`, `pulling`, `ready` or `failed`.
    pub state: String,
    pub bytes: u64,
    pub of_bytes: u64,
    /// Why it failed.
    pub why: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStore {
    pub name: String,
    pub live: Option<u64>,
    /// Versions that can be rolled back to, the one that was live last first.
    pub kept: Vec<u64>,
    /// Nodes that hold slots and do not have the live version yet: they pass its reads on.
    pub lacking: Vec<String>,
    /// How the last pushes and rollbacks ended, the latest last.
    pub ended: Vec<ClusterPushEnd>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPushEnd {
    pub version: u64,
    /// Why it did not go live, if it did not.
    pub failed: Option<String>,
}

/// `POST /v1/cluster/asks`: something that the controller is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClusterAsk {
    /// Give slots to a node that has registered.
    Join {
        node: String,
    },
    /// Move a node's slots elsewhere; it stays a member.
    Drain {
        node: String,
    },
    /// Take back a drain or a removal.
    Keep {
        node: String,
    },
    /// Drain a node, and forget it when its process has ended. Of one that is down, `lose_rows` gives up what it alone has.
    Remove {
        node: String,
        #[serde(default)]
        lose_rows: bool,
    },
    Set {
        settings: ClusterSettingsWanted,
    },
    /// Give up the push of a store that is under way, whoever has begun it.
    AbortPush {
        store: String,
    },
}

/// What the controller answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterAnswer {
    pub answer: String,
}

/// `GET /v1/cluster/plan?add=NAME[:ZONE[:WEIGHT]],...&remove=NAME,...&replicas=N`: what would move.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterPlan {
    pub replicas: u8,
    pub moves: ClusterMoves,
    /// In so many rounds, of at most `fill_slots_at_once` slots a node.
    pub rounds: u32,
    /// What each node would have then.
    pub nodes: Vec<ClusterShare>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterShare {
    pub node: String,
    pub zone: String,
    pub slots_owned: u32,
    /// Owned or copied.
    pub slots_held: u32,
}

/// `GET /v1/cluster/kept`: what a node has kept in its data folder, for a recovery of the cluster's map.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterKept {
    pub node: String,
    /// The identity of the data folder, and how many lives of the node have begun on it. `None`: the folder is new.
    pub folder: Option<(u64, u64)>,
    /// The last map that the node followed, as text.
    pub map: Option<String>,
    /// How far the node's copies of slots are.
    pub copies: Vec<ClusterKeptCopies>,
}

/// Adjacent slots whose copies are alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterKeptCopies {
    pub from: u16,
    /// Inclusive.
    pub to: u16,
    /// The last term that the node took part in.
    pub term: u64,
    /// The term and the number of the last change.
    pub last: (u64, u64),
    /// All rows up to the last change are there.
    pub is_whole: bool,
}

/// `POST /v1/cluster/recover`: what nodes have kept, of which a lost map is made again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterRecover {
    pub kept: Vec<ClusterKept>,
    /// A backup of the map, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Without it nothing is written.
    pub write: bool,
}

/// What a recovery writes, or would write.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterRecovery {
    /// The node whose copy of the map is the newest; `None`: the backup is.
    pub source: Option<String>,
    /// The epoch of that copy.
    pub source_epoch: u64,
    /// The epoch of the map that etcd has now; `None`: it has none.
    pub found_epoch: Option<u64>,
    /// The epoch of the map that is written.
    pub epoch: u64,
    pub members: Vec<ClusterRecoveryMember>,
    /// Slots that nobody can serve before one of some nodes is back.
    pub waiting: Vec<ClusterWaiting>,
    /// Slots whose rows are newer than the newest copy of the map: that a write is missing cannot be excluded.
    pub slots_unconfirmed: u32,
    /// The epoch of a map that some node followed, if it is above that of every copy: writes under it may be missing.
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
    /// `answered`, `absent`, or `other disk`: its folder is not the one that the map knows, and what it has does not count.
    pub state: String,
    /// The epoch of its own copy of the map.
    pub epoch: Option<u64>,
    /// How many slots it is to own.
    pub slots_owned: u32,
}

/// Slots whose newest rows are with nodes that did not answer, or whose disks are others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterWaiting {
    pub slots: u32,
    /// Any of these has the rows.
    pub nodes: Vec<String>,
}
