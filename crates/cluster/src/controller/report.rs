//! What nodes tell of how far they are.

use std::collections::BTreeMap;

use larder_types::{StoreName, VersionId};
use serde::{Deserialize, Serialize};

use crate::map::{Epoch, Incarnation, NodeId, NodeName, SlotRange, Store, Term};

/// How far a node is with what the map asks of it (the key `reports/<name>`). It says all again each time, so a
/// report may come late or twice: what the map no longer asks for is passed over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The life of the node that reports. Reports of another are passed over.
    pub incarnation: Incarnation,
    /// The epoch of the map whose slots and versions `versions` speaks of.
    #[serde(default)]
    pub epoch: Epoch,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<Pulled>,
    /// Of slots that it owns: replicas that have all, and whose acknowledgements it waits for *from before it says so here*.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub synced: Vec<Synced>,
    /// Nodes that it could not reach for long, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreached: BTreeMap<NodeName, String>,
    /// Why the node cannot serve, if it cannot: its disk hangs or is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unable: Option<String>,
}

/// How far a node is with a version of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pulled {
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
    /// It has the partitions of all slots that it holds or is filled with, verified, and can swap at once. The digest is the manifest's.
    Ready {
        digest: String,
    },
    /// In words.
    Failed {
        why: String,
    },
}

/// A replica of adjacent slots that has every write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synced {
    pub slots: SlotRange,
    pub term: Term,
    pub node: NodeId,
    /// The epoch in which the filling began.
    pub began: Epoch,
}

impl Report {
    pub fn progress(&self, store: &StoreName, version: VersionId) -> Option<&Progress> {
        let mut versions = self.versions.iter();
        let found = versions.find(|it| it.store == *store && it.version == version);
        found.map(|it| &it.progress)
    }

    /// Whether the node can serve this version, and it is the one that the map means.
    pub fn has(&self, name: &StoreName, store: &Store, version: VersionId) -> bool {
        let wanted = store.version(version).map(|it| it.digest.as_str());
        match self.progress(name, version) {
            Some(Progress::Ready { digest }) => Some(digest.as_str()) == wanted,
            _ => false,
        }
    }
}
