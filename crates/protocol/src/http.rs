//! The JSON bodies of the HTTP API under `/v1`, shared by the server, the client and the command line.
//!
//! Times are whole seconds since 1970 in UTC; sizes are bytes. A field that may be unknown is
//! written as `null`. Unknown fields in requests are rejected. Any release may add fields to responses.

mod cluster;

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine};
use larder_types::{StoreName, VersionSelector};
use serde::{Deserialize, Serialize};

use crate::errors::Code;

pub use crate::gates::{Canary, ColumnLimit, Gates, StoreLimit};

pub use cluster::{
    ClusterAnswer, ClusterClock, ClusterFlow, ClusterKept, ClusterKeptCopies, ClusterMember,
    ClusterMoves, ClusterPlan, ClusterPull, ClusterPush, ClusterPushEnd, ClusterRecover,
    ClusterRecovery, ClusterRecoveryMember, ClusterRequest, ClusterSettings, ClusterSettingsChange,
    ClusterShare, ClusterSlots, ClusterStatus, ClusterStore, ClusterWaiting,
};

/// `GET /v1/stores`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreList {
    pub stores: Vec<StoreStatus>,
}

/// `GET /v1/stores/{store}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    pub name: StoreName,
    /// The version that serves reads, if there is one.
    pub live: Option<u64>,
    /// The version that a rollback without a number returns to.
    pub previous: Option<u64>,
    /// All kept versions, newest first.
    pub versions: Vec<VersionStatus>,
    /// The running pull, if there is one.
    pub pull: Option<PullStatus>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionStatus {
    pub version: u64,
    pub live: bool,
    pub record_count: u64,
    pub size_bytes: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    pub partitions: u32,
    /// Number of layers: 1 for a complete version, more for a delta.
    #[serde(default)]
    pub layers: u32,
    /// `none`, `lz4` or `zstd:LEVEL`.
    pub compression: String,
    /// The inputs of the build, if the manifest has them; otherwise the source of the pull. Without credentials.
    pub source: Option<String>,
    /// The source of the pull, without credentials. It may no longer exist, because `larder push` builds in a temporary folder.
    #[serde(default)]
    pub pulled_from: Option<String>,
    pub pulled_at: Option<u64>,
    /// Bytes in memory at the last measurement; `null` if the version is not open.
    pub resident_bytes: Option<u64>,
    pub digest: String,
    /// The server crashed before it verified the version and checked its gates. A swap to the version does both first.
    #[serde(default)]
    pub unchecked: bool,
    /// The damage that a verification found. A swap or a rollback to the version is rejected.
    #[serde(default)]
    pub damaged: Option<String>,
    /// The inputs and options of the build; `null` if the manifest does not have them.
    #[serde(default)]
    pub built: Option<BuiltStatus>,
}

/// The description of the build in a version's manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuiltStatus {
    /// The program and its version.
    pub by: String,
    pub at: u64,
    /// The inputs as given to the build, without credentials.
    pub inputs: Vec<String>,
    /// Number of inputs in addition to these.
    pub more_inputs: u64,
    /// The columns of the key.
    pub key: Vec<String>,
    /// `json` or `msgpack` for values made of columns, `column` for the bytes of one.
    pub value: String,
    pub value_column: Option<String>,
    /// The format of the arrays of collected values, if values were collected.
    pub collect_as: Option<String>,
    /// The other options of the build that affect the version.
    pub options: BTreeMap<String, String>,
}

impl BuiltStatus {
    /// Formats the inputs for people: the first `named` by name, then the number of others.
    pub fn describe_inputs(&self, named: usize) -> String {
        let mut line = self.inputs[..self.inputs.len().min(named)].join(", ");
        let more = self.inputs.len().saturating_sub(named) as u64 + self.more_inputs;
        if more > 0 {
            line.push_str(&format!(" and {more} more"));
        }
        line
    }
}

/// `POST /v1/stores/{store}/pull`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<Gates>,
    /// If false, the version does not go live until a later swap.
    #[serde(default = "yes")]
    pub activate: bool,
    /// In a cluster, the maximum number of nodes without the version when it goes live, if other nodes have their slots.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub allow_missing_replicas: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn yes() -> bool {
    true
}

/// `GET /v1/joins`, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct JoinList {
    pub joins: Vec<JoinStatus>,
}

/// `GET /v1/joins/{join}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinStatus {
    pub name: String,
    pub definition: String,
    /// Number of computed rows.
    pub rows: u64,
    /// Number of filled ranges.
    pub ranges: u64,
    /// Number of ranges that were filled (and evicted, in `evicted`) since the join was created or the server started.
    pub filled: u64,
    pub evicted: u64,
    /// Number of rows that ranges omitted because values that they aggregate are not numbers.
    #[serde(default)]
    pub left_out: u64,
    /// Number of source ranges whose changes the join tracks.
    pub updaters: u64,
    pub memory_bytes: u64,
}

/// `POST /v1/joins`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    pub name: String,
    pub definition: String,
    /// The handling of an existing join of this name with another definition.
    #[serde(default)]
    pub if_defined: JoinIfDefined,
}

/// The effect of a definition on an existing join of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinIfDefined {
    /// The request is rejected.
    #[default]
    Refuse,
    /// The join does not change.
    Keep,
    /// The new definition replaces the join atomically.
    Replace,
}

/// `GET /v1/joins/{join}/explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinExplained {
    /// Text for people.
    pub plan: String,
}

/// `GET /v1/pulls`, newest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PullList {
    pub pulls: Vec<PullStatus>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PullStatus {
    pub id: String,
    pub store: StoreName,
    /// The version's number; 0 until the manifest is read.
    pub version: u64,
    pub source: String,
    pub state: PullState,
    pub bytes_done: u64,
    /// 0 until the manifest is read.
    pub bytes_total: u64,
    pub bytes_per_second: u64,
    /// The part of `bytes_done` that did not need a transfer, because another version of the store had the data.
    #[serde(default)]
    pub bytes_linked: u64,
    pub error: Option<ErrorInfo>,
    pub started_at: u64,
    pub ended_at: Option<u64>,
    /// In a cluster, the progress of each node that stores a part of the version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodePull>,
}

/// A node's part in a push.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodePull {
    pub node: String,
    pub state: NodePullState,
    pub bytes_done: u64,
    /// 0 until the node has read the manifest.
    pub bytes_total: u64,
    /// The reason of the failure, if the node failed.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePullState {
    /// The node has not begun.
    Waiting,
    Pulling,
    /// The node has its part, and can make it live immediately.
    Ready,
    Failed,
    /// The node is down.
    Away,
}

impl NodePullState {
    pub fn name(self) -> &'static str {
        match self {
            NodePullState::Waiting => "waiting",
            NodePullState::Pulling => "pulling",
            NodePullState::Ready => "ready",
            NodePullState::Failed => "failed",
            NodePullState::Away => "away",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PullState {
    /// The pull waits until other pulls end (see `fetch.pulls`).
    Waiting,
    Fetching,
    Verifying,
    Warming,
    Swapping,
    /// The pull was cancelled, and removes its files.
    Cancelling,
    Done,
    Failed,
    Cancelled,
}

impl PullState {
    /// Returns true for the three final states.
    pub fn has_ended(self) -> bool {
        matches!(
            self,
            PullState::Done | PullState::Failed | PullState::Cancelled
        )
    }

    pub fn name(self) -> &'static str {
        match self {
            PullState::Waiting => "waiting",
            PullState::Fetching => "fetching",
            PullState::Verifying => "verifying",
            PullState::Warming => "warming",
            PullState::Swapping => "swapping",
            PullState::Cancelling => "cancelling",
            PullState::Done => "done",
            PullState::Failed => "failed",
            PullState::Cancelled => "cancelled",
        }
    }
}

impl std::fmt::Display for PullState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// `POST /v1/stores/{store}/swap`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwapRequest {
    pub version: VersionSelector,
    /// Swaps even if the version is damaged, or is empty while the live one is not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// `POST /v1/stores/{store}/rollback`; without a version, to the previous one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionSelector>,
    /// As in [`SwapRequest`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The response to a swap and to a rollback.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SwapResult {
    pub live: u64,
    pub previous: Option<u64>,
    pub took_us: u64,
}

/// `POST /v1/stores/{store}/verify`; without a version, the live one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionSelector>,
}

/// The response to a verification without damage. Damage is reported as an error with the code `CORRUPTED`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifyResult {
    pub version: u64,
    pub record_count: u64,
    pub size_bytes: u64,
    pub ok: bool,
}

/// A line of the response to a verification with `Accept: application/x-ndjson`. Any number of lines with
/// progress precede one of another variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerifyLine {
    Progress { bytes_done: u64, bytes_total: u64 },
    Done(VerifyResult),
    Error(ErrorInfo),
}

/// The media type of lines of JSON.
pub const JSON_LINES: &str = "application/x-ndjson";

/// `GET /v1/stores/{store}/diff?from=&to=&limit=`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DiffResult {
    /// The numbers of the compared versions; `null` if the server does not return them.
    #[serde(default)]
    pub from: Option<u64>,
    #[serde(default)]
    pub to: Option<u64>,
    pub added: u64,
    pub removed: u64,
    pub changed: u64,
    pub unchanged: u64,
    /// The first `limit` differences, those of each node in the order of its segments. There are fewer if their keys exceed 4 MiB.
    pub changes: Vec<DiffChange>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiffChange {
    pub kind: ChangeKind,
    /// Bytes that are not UTF-8 show as U+FFFD.
    pub key: String,
    /// The exact bytes, when the key is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Added,
    Removed,
    Changed,
}

/// `GET /v1/stores/{store}/sample?n=&version=`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub records: Vec<Record>,
    /// True if records were omitted because a response has at most 4 MiB of keys and values.
    #[serde(default)]
    pub is_cut: bool,
}

/// A record of a sample, and a line of a dump.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Bytes that are not UTF-8 show as U+FFFD.
    pub key: String,
    pub value: String,
    /// The exact bytes, when the key is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_base64: Option<String>,
    /// The exact bytes, when the value is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_base64: Option<String>,
}

impl Record {
    pub fn from_bytes(key: &[u8], value: &[u8]) -> Record {
        Record {
            key: String::from_utf8_lossy(key).into_owned(),
            value: String::from_utf8_lossy(value).into_owned(),
            key_base64: exact(key),
            value_base64: exact(value),
        }
    }
}

impl DiffChange {
    pub fn new(kind: ChangeKind, key: &[u8]) -> DiffChange {
        DiffChange {
            kind,
            key: String::from_utf8_lossy(key).into_owned(),
            key_base64: exact(key),
        }
    }
}

fn exact(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes)
        .is_err()
        .then(|| BASE64_STANDARD.encode(bytes))
}

/// `PATCH /v1/settings`: changes the settings that are present.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// 0: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetch_bytes_per_second: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_versions: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_age_hours: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowlog_threshold_us: Option<u64>,
}

/// `GET /v1/settings`, and the response to `PATCH`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingsInForce {
    pub fetch_bytes_per_second: u64,
    pub retain_versions: u32,
    pub retain_age_hours: u64,
    pub retain_bytes: u64,
    pub slowlog_threshold_us: u64,
    /// The settings that differ from the configuration until the server restarts.
    pub until_restart: Vec<String>,
}

/// The body of every response with a status of 400 or above.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub error: ErrorInfo,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// The name of a [`Code`], as text so that clients accept codes of newer servers.
    pub code: String,
    pub message: String,
    pub retry: bool,
}

impl ErrorInfo {
    pub fn new(code: Code, message: impl Into<String>) -> ErrorInfo {
        ErrorInfo {
            code: code.name().to_owned(),
            message: message.into(),
            retry: code.retry(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_request_needs_only_a_source_and_rejects_unknown_fields() {
        let request: PullRequest = serde_json::from_str(r#"{"source":"/data/v1"}"#).unwrap();
        assert!(request.activate && request.gates.is_none());
        let error = serde_json::from_str::<PullRequest>(r#"{"source":"/d","activat":true}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("activat"), "{error}");
    }

    #[test]
    fn bytes_that_are_not_utf8_are_given_exactly_beside_the_lossy_text() {
        let record = Record::from_bytes(b"k", &[0xff, 0x00]);
        assert_eq!(record.key_base64, None);
        assert_eq!(record.value_base64.as_deref(), Some("/wA="));
    }

    #[test]
    fn many_inputs_are_summarized_by_their_count() {
        let built = |inputs: &[&str], more_inputs| BuiltStatus {
            inputs: inputs.iter().map(|input| (*input).to_owned()).collect(),
            more_inputs,
            by: String::new(),
            at: 0,
            key: Vec::new(),
            value: String::new(),
            value_column: None,
            collect_as: None,
            options: BTreeMap::new(),
        };
        assert_eq!(built(&["a", "b"], 0).describe_inputs(3), "a, b");
        assert_eq!(
            built(&["a", "b", "c"], 5).describe_inputs(2),
            "a, b and 6 more"
        );
    }

    #[test]
    fn states_are_spelled_in_lower_case() {
        let json = serde_json::to_string(&PullState::Fetching).unwrap();
        assert_eq!(json, r#""fetching""#);
        assert_eq!(PullState::Fetching.to_string(), "fetching");
    }
}
