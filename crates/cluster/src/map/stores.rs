//! Stores in the map: the live version and the push in progress.

use std::collections::BTreeMap;

use larder_types::VersionId;
use serde::{Deserialize, Serialize};

use super::ids::{NodeId, RequestId};

/// A store in the map. The map numbers the versions, so that a number means the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// The number of the next push.
    pub next: VersionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Version>,
    /// Versions available for a rollback, the most recently live first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Version>,
    /// Nodes that hold slots and have not reported that they have the live version. They forward its reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<NodeId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// The results of the last few pushes, the latest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<PushResult>,
}

/// A version that every node can pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Version {
    pub version: VersionId,
    /// A folder, a URL or a location in an object store.
    pub source: String,
    /// The digest of its manifest, which ensures that all nodes pull the same version.
    pub digest: String,
}

/// A version that is being pushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Push {
    /// The operator request that started the push.
    pub ask: RequestId,
    pub version: Version,
    /// The number of slot holders that may lack the version when it becomes live, provided that another holder of each of their
    /// slots has it.
    pub allow_missing_replicas: u32,
    /// A number that increases as nodes report progress, and the time at which it last increased.
    pub progress: u64,
    pub progress_ms: u64,
    /// Further conditions that each node checks when it pulls, such as `min_records`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PushResult {
    pub ask: RequestId,
    pub version: VersionId,
    /// `None` if the version became live, else the reason why it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Maximum number of push results per store.
pub const PUSH_RESULTS_MAX: usize = 8;

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

    /// Returns the version with this number, whether live, kept or being pushed.
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

/// The text of a join, or of the mapping of a table to its external rows, as given by the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    pub text: String,
    /// The position in the order of definitions. A name that is dropped and defined again gets a new number.
    pub number: u64,
}
