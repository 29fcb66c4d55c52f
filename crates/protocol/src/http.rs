//! The JSON bodies of the HTTP API under `/v1`, shared by the server, the client and the command line.
//!
//! Times are whole seconds since 1970 in UTC; sizes are bytes. A field that may be unknown is
//! written as `null`. Requests refuse unknown fields; answers may gain fields in any release.

mod cluster;

use std::collections::BTreeMap;

use base64::prelude::{BASE64_STANDARD, Engine};
use larder_types::{StoreName, WhichVersion};
use serde::{Deserialize, Serialize};

use crate::errors::Code;

pub use crate::gates::{Canary, ColumnLimit, Gates, StoreLimit};

pub use cluster::{
    ClusterAnswer, ClusterAsk, ClusterClock, ClusterFlow, ClusterKept, ClusterKeptCopies,
    ClusterMember, ClusterMoves, ClusterPlan, ClusterPull, ClusterPush, ClusterPushEnd,
    ClusterRecover, ClusterRecovery, ClusterRecoveryMember, ClusterSettings, ClusterSettingsWanted,
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
    /// The version that reads see, if any.
    pub live: Option<u64>,
    /// The version that a rollback without a number returns to.
    pub previous: Option<u64>,
    /// Every kept version, newest first.
    pub versions: Vec<VersionStatus>,
    /// The pull that is running, if one is.
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
    /// 1 of a whole version, more of a delta.
    #[serde(default)]
    pub layers: u32,
    /// `none`, `lz4` or `zstd:LEVEL`.
    pub compression: String,
    /// The inputs that it was built from, where its builder said; else where it was pulled from. Without credentials.
    pub source: Option<String>,
    /// Where it was pulled from, without credentials. It may be gone since: `larder push` builds in a temporary folder.
    #[serde(default)]
    pub pulled_from: Option<String>,
    pub pulled_at: Option<u64>,
    /// How much of it was in memory when last looked at; `null` if it is not open.
    pub resident_bytes: Option<u64>,
    pub digest: String,
    /// A crash came before it was verified and judged: a swap to it does that first.
    #[serde(default)]
    pub unchecked: bool,
    /// What a verify found wrong with it; a swap or a rollback to it is refused.
    #[serde(default)]
    pub damaged: Option<String>,
    /// From what and how it was built; `null` of versions whose builder did not say.
    #[serde(default)]
    pub built: Option<BuiltStatus>,
}

/// What a version's manifest says of its build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BuiltStatus {
    /// The program and its version.
    pub by: String,
    pub at: u64,
    /// As they were named to the build, without credentials.
    pub inputs: Vec<String>,
    /// How many inputs there were beside these.
    pub more_inputs: u64,
    /// The columns that make the key.
    pub key: Vec<String>,
    /// `json` or `msgpack` for values made of columns, `column` for the bytes of one.
    pub value: String,
    pub value_column: Option<String>,
    /// How the array is written that every value is, if they were collected.
    pub collect_as: Option<String>,
    /// The other options that were given and bear on the version.
    pub options: BTreeMap<String, String>,
}

impl BuiltStatus {
    /// The inputs for people: so many by name, of others how many they are.
    pub fn inputs_line(&self, named: usize) -> String {
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
    /// False keeps the version beside the live one, to be swapped in later.
    #[serde(default = "yes")]
    pub activate: bool,
    /// In a cluster: so many nodes may lack the version when it goes live, where others have their slots.
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
    /// Rows that are computed at the moment.
    pub rows: u64,
    /// Ranges that are filled at the moment.
    pub ranges: u64,
    /// How many ranges were filled, and evicted, since the join was made or the server started.
    pub filled: u64,
    pub evicted: u64,
    /// How many rows ranges have left out, since values that they add up are no numbers.
    #[serde(default)]
    pub left_out: u64,
    /// Source ranges whose changes are listened to.
    pub updaters: u64,
    pub memory_bytes: u64,
}

/// `POST /v1/joins`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    pub name: String,
    pub definition: String,
    /// If a join of this name is there already, with another definition.
    #[serde(default)]
    pub if_defined: JoinIfDefined,
}

/// What a definition does to a join of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JoinIfDefined {
    /// The request is refused.
    #[default]
    Refuse,
    /// The join stays as it is.
    Keep,
    /// The new definition takes its place in one step.
    Replace,
}

/// `GET /v1/joins/{join}/explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinExplained {
    /// Lines for people.
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
    /// The version it becomes; 0 until the manifest is read.
    pub version: u64,
    pub source: String,
    pub state: PullState,
    pub bytes_done: u64,
    /// 0 until the manifest is read.
    pub bytes_total: u64,
    pub bytes_per_second: u64,
    /// Of `bytes_done`, those that another version of the store had here already.
    #[serde(default)]
    pub bytes_linked: u64,
    pub error: Option<ErrorInfo>,
    pub started_at: u64,
    pub ended_at: Option<u64>,
    /// In a cluster: how far each node is that is to have some of it.
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
    /// Why it failed, if it did.
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodePullState {
    /// It has not begun.
    Waiting,
    Pulling,
    /// It has its part, and can make it live at once.
    Ready,
    Failed,
    /// It is down.
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
    /// For others to end: see `fetch.pulls`.
    Waiting,
    Fetching,
    Verifying,
    Warming,
    Swapping,
    /// It was told to stop, and puts away what it has.
    Cancelling,
    Done,
    Failed,
    Cancelled,
}

impl PullState {
    /// True for the three states that do not change any more.
    pub fn is_over(self) -> bool {
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
    pub version: WhichVersion,
    /// Makes it live also when it was found damaged, or is empty where the live one is not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// `POST /v1/stores/{store}/rollback`; without a version, to the previous one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<WhichVersion>,
    /// As in [`SwapRequest`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// The answer to a swap and to a rollback.
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
    pub version: Option<WhichVersion>,
}

/// Damage is not an answer of this kind but an error with the code `CORRUPTED`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifyResult {
    pub version: u64,
    pub record_count: u64,
    pub size_bytes: u64,
    pub ok: bool,
}

/// A line of the answer to a verify that was asked for with `Accept: application/x-ndjson`: progress
/// any number of times, then one of the others.
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
    /// The numbers of the versions that were compared; `null` of servers that do not say.
    #[serde(default)]
    pub from: Option<u64>,
    #[serde(default)]
    pub to: Option<u64>,
    pub added: u64,
    pub removed: u64,
    pub changed: u64,
    pub unchanged: u64,
    /// The first `limit` differences, those of each node in the order of its segments; fewer if their keys take more than 4 MiB.
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
    /// Some were left out, because an answer holds at most 4 MiB of keys and values.
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

/// `PATCH /v1/settings`: changes those that are given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// 0 is unlimited.
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

/// `GET /v1/settings`, and the answer to `PATCH`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingsInForce {
    pub fetch_bytes_per_second: u64,
    pub retain_versions: u32,
    pub retain_age_hours: u64,
    pub retain_bytes: u64,
    pub slowlog_threshold_us: u64,
    /// Those that differ from the configuration and return to it when the server restarts.
    pub until_restart: Vec<String>,
}

/// The body of every answer with a status of 400 or above.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub error: ErrorInfo,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// A name of [`Code`]; kept as text, so that a client understands a newer server's errors.
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
    fn a_pull_request_needs_only_a_source_and_refuses_what_it_does_not_know() {
        let request: PullRequest = serde_json::from_str(r#"{"source":"/data/v1"}"#).unwrap();
        assert!(request.activate && request.gates.is_none());
        let error = serde_json::from_str::<PullRequest>(r#"{"source":"/d","activat":true}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("activat"), "{error}");
    }

    #[test]
    fn bytes_that_are_not_text_are_given_exactly_beside_the_lossy_text() {
        let record = Record::from_bytes(b"k", &[0xff, 0x00]);
        assert_eq!(record.key_base64, None);
        assert_eq!(record.value_base64.as_deref(), Some("/wA="));
    }

    #[test]
    fn many_inputs_are_counted_and_not_all_named() {
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
        assert_eq!(built(&["a", "b"], 0).inputs_line(3), "a, b");
        assert_eq!(built(&["a", "b", "c"], 5).inputs_line(2), "a, b and 6 more");
    }

    #[test]
    fn states_are_spelled_in_lower_case() {
        let json = serde_json::to_string(&PullState::Fetching).unwrap();
        assert_eq!(json, r#""fetching""#);
        assert_eq!(PullState::Fetching.to_string(), "fetching");
    }
}
