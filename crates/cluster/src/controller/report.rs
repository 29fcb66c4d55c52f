//! Reports of nodes about their progress.

use std::collections::BTreeMap;

use larder_types::{StoreName, VersionId};
use serde::{Deserialize, Serialize};

use crate::map::{Epoch, Incarnation, NodeId, NodeName, SlotRange, Store, Term};

/// The progress of a node towards the state that the map requires (the key `reports/<name>`). Each report is complete, so it may
/// arrive late or twice. Parts that the map no longer requires are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The incarnation of the reporting node. Reports of other incarnations are ignored.
    pub incarnation: Incarnation,
    /// The epoch of the map to whose slots and versions `versions` refers.
    #[serde(default)]
    pub epoch: Epoch,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<VersionProgress>,
    /// For slots that the node owns: replicas that have all changes. The owner waits for their acknowledgements *from before it
    /// reports them here*.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub synced: Vec<SyncedReplica>,
    /// Nodes that it has not been able to reach for a long time, with the reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreached: BTreeMap<NodeName, String>,
    /// The reason why the node cannot serve, if it cannot: its disk stalls or is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unable: Option<String>,
}

/// A node's progress with a version of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionProgress {
    pub store: StoreName,
    pub version: VersionId,
    pub progress: Progress,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Progress {
    Pulling {
        bytes: u64,
        of_bytes: u64,
    },
    /// The node has verified partitions for all slots that it holds or is being filled with, and can swap immediately. The digest
    /// is the manifest's.
    Ready {
        digest: String,
    },
    Failed {
        why: String,
    },
}

/// A replica of adjacent slots that has every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncedReplica {
    pub slots: SlotRange,
    pub term: Term,
    pub node: NodeId,
    /// The epoch in which the fill began.
    pub began: Epoch,
}

impl Report {
    pub fn progress(&self, store: &StoreName, version: VersionId) -> Option<&Progress> {
        let mut versions = self.versions.iter();
        let found = versions.find(|it| it.store == *store && it.version == version);
        found.map(|it| &it.progress)
    }

    /// Returns whether the node can serve this version with the digest that the map specifies.
    pub fn has_version(&self, name: &StoreName, store: &Store, version: VersionId) -> bool {
        let wanted = store.version(version).map(|it| it.digest.as_str());
        match self.progress(name, version) {
            Some(Progress::Ready { digest }) => Some(digest.as_str()) == wanted,
            _ => false,
        }
    }
}
