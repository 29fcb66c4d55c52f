//! The provenance of a version: the manifest's description of the build.
//!
//! It is for people and tools; serving does not depend on it. It has a digest of its own, so that the manifest's
//! digest covers only the data: the same rows and options yield the same digest, independent of time and input files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::build::CollectAs;
use crate::digest::DigestKind;
use crate::profile::Profile;

/// The `built` part of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Built {
    /// The program and its version.
    pub by: String,
    /// Seconds since 1970.
    pub at: u64,
    /// The inputs as given, without credentials; at most [`Built::INPUTS_MAX`].
    pub inputs: Vec<String>,
    /// The number of further inputs.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_inputs: u64,
    /// The columns that form the key.
    pub key: Vec<String>,
    /// `json` or `msgpack` for values that consist of columns, `column` for the bytes of one column.
    pub value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_column: Option<String>,
    /// The encoding of the arrays, if values were collected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect_as: Option<CollectAs>,
    /// The locations of a delta's lower layers, lowest first: URLs, absolute paths, or paths relative to the delta's
    /// folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// The other options that were given and affect the version, by name.
    pub options: BTreeMap<String, String>,
    /// Statistics of the columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The digest of this part's own text, with this value empty.
    pub digest: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Built {
    pub const INPUTS_MAX: usize = 1000;

    /// Copies the value description of a base, for a build that only removes keys and therefore has no values.
    pub fn copy_value_format(&mut self, base: &Built) {
        if !base.value.is_empty() {
            self.value.clone_from(&base.value);
            self.value_column.clone_from(&base.value_column);
            self.collect_as = base.collect_as;
        }
    }

    /// Returns why this build cannot produce a delta on `base`: its keys or values consist of other columns. Fields
    /// that the base does not have are not compared.
    pub fn find_mismatch(&self, base: &Built) -> Option<String> {
        let is_other_key = !base.key.is_empty() && base.key != self.key;
        let values = |it: &Built| (it.value.clone(), it.value_column.clone(), it.collect_as);
        let is_other_value = !base.value.is_empty() && values(base) != values(self);
        let (expected, actual) = match (is_other_key, is_other_value) {
            (false, false) => return None,
            (true, false) => (base.describe_key(), self.describe_key()),
            (false, true) => (base.describe_values(), self.describe_values()),
            (true, true) => (
                format!("{} and {}", base.describe_key(), base.describe_values()),
                format!("{} and {}", self.describe_key(), self.describe_values()),
            ),
        };
        Some(format!(
            "the base version has {expected}, but these options produce {actual}; use the options of the base version, or build a complete version"
        ))
    }

    fn describe_key(&self) -> String {
        format!("keys of {}", self.key.join(","))
    }

    fn describe_values(&self) -> String {
        let values = match (&self.value_column, self.value.as_str()) {
            (Some(column), _) => format!("values of column {column}"),
            (None, "json") => "values of all other columns as JSON".to_owned(),
            (None, "msgpack") => "values of all other columns as MessagePack".to_owned(),
            (None, other) => format!("values of kind {other}"),
        };
        match self.collect_as {
            Some(collected) => format!("{values}, collected as {collected}"),
            None => values,
        }
    }

    pub(crate) fn with_digest(&self, kind: DigestKind) -> Built {
        Built {
            digest: self.compute_digest(kind),
            ..self.clone()
        }
    }

    pub(crate) fn compute_digest(&self, kind: DigestKind) -> String {
        let open = Built {
            digest: String::new(),
            ..self.clone()
        };
        let text = serde_json::to_vec_pretty(&open).expect("texts and numbers are always JSON");
        kind.of(&text)
    }
}
