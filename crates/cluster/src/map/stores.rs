//! Stores in the map: which version is live everywhere, and which push is under way.

use std::collections::BTreeMap;

use larder_types::VersionId;
use serde::{Deserialize, Serialize};

use super::ids::{AskId, NodeId};

/// What the cluster knows of a store. The map numbers its versions, so a number means the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// The number that the next push gets.
    pub next: VersionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Version>,
    /// Versions that can be rolled back to, the one that was live last first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Version>,
    /// Nodes that hold slots and have not told that they have the live version. They pass its reads on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// How the last pushes ended, the latest last; some few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Ended>,
}

/// A version that every node can pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    pub version: VersionId,
    /// A folder, a URL or a place in an object store.
    pub source: String,
    /// The digest of its manifest: what makes the pulls of all nodes the same version.
    pub digest: String,
}

/// A version on its way to being live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// The wish that began it.
    pub ask: AskId,
    pub version: Version,
    /// How many of the nodes that hold slots may lack it when it goes live, where another has each of their slots.
    pub allow_missing_replicas: u32,
    /// A number that grows while nodes tell of progress, and when it was last seen to grow.
    pub progress: u64,
    pub progress_ms: u64,
    /// Further conditions that each node looks at when it pulls, such as `min_records`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// How a push ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    pub ask: AskId,
    pub version: VersionId,
    /// `None`: the version went live. Else why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// How many ends of pushes a store keeps.
pub const ENDED_MAX: usize = 8;

impl Store {
    pub fn new() -> Store {
        Store {
            next: VersionId(1),
            live: None,
            kept: Vec::new(),
            lacking: Vec::new(),
            push: None,
            ended: Vec::new(),
        }
    }

    /// The version with this number, live, kept or being pushed.
    pub fn version(&self, version: VersionId) -> Option<&Version> {
        let pushed = self.push.iter().map(|push| &push.version);
        let mut all = self.live.iter().chain(&self.kept).chain(pushed);
        all.find(|it| it.version == version)
    }
}

impl Default for Store {
    fn default() -> Store {
        Store::new()
    }
}

/// A join, or the mapping of a table to where its rows are: its text, as it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub text: String,
    /// Definitions are numbered in the order in which they were made. A name that is dropped and
    /// defined anew has a new number.
    pub number: u64,
}
