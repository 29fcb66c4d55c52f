//! Where a version came from: what its manifest says of the build that made it.
//!
//! It is for people and tools; nothing that is served depends on it. It has a digest of its own, so that the
//! manifest's digest stays that of the data: the same rows and options make the same one, whenever and from
//! whichever files they were built.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::build::CollectAs;
use crate::digest::DigestKind;
use crate::profile::Profile;

/// The part `built` of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Built {
    /// The program and its version.
    pub by: String,
    /// Seconds since 1970.
    pub at: u64,
    /// The inputs as they were named, without credentials: the first [`Built::INPUTS_MAX`].
    pub inputs: Vec<String>,
    /// How many inputs there were beside these.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_inputs: u64,
    /// The columns that make the key.
    pub key: Vec<String>,
    /// `json` or `msgpack` for values made of columns, `column` for the bytes of one.
    pub value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_column: Option<String>,
    /// How the array is written that every value is, if they were collected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collect_as: Option<CollectAs>,
    /// Where the versions below a delta were, the lowest first: URLs, or paths, from the delta's own folder where they are not absolute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// The other options that were given and bear on the version, by name.
    pub options: BTreeMap<String, String>,
    /// What its columns hold, in numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Of this part's own text, with this value empty.
    pub digest: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Built {
    pub const INPUTS_MAX: usize = 1000;

    /// Takes over what the values of a base are: for a build that only removes keys, and so makes none.
    pub fn take_values_of(&mut self, base: &Built) {
        if !base.value.is_empty() {
            self.value.clone_from(&base.value);
            self.value_column.clone_from(&base.value_column);
            self.collect_as = base.collect_as;
        }
    }

    /// Why this is no build of a delta on a base: it makes other keys or values of its rows, as far as the base says what it has.
    pub fn is_unlike(&self, base: &Built) -> Option<String> {
        let is_other_key = !base.key.is_empty() && base.key != self.key;
        let values = |it: &Built| (it.value.clone(), it.value_column.clone(), it.collect_as);
        let is_other_value = !base.value.is_empty() && values(base) != values(self);
        let (has, told) = match (is_other_key, is_other_value) {
            (false, false) => return None,
            (true, false) => (base.told_key(), self.told_key()),
            (false, true) => (base.told_values(), self.told_values()),
            (true, true) => (
                format!("{} and {}", base.told_key(), base.told_values()),
                format!("{} and {}", self.told_key(), self.told_values()),
            ),
        };
        Some(format!(
            "the version that is built on has {has}, and what is given makes {told}; give what that version was built with, or build a whole version"
        ))
    }

    fn told_key(&self) -> String {
        format!("keys of {}", self.key.join(","))
    }

    fn told_values(&self) -> String {
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

    pub(crate) fn sealed(&self, kind: DigestKind) -> Built {
        Built {
            digest: self.digest_now(kind),
            ..self.clone()
        }
    }

    pub(crate) fn digest_now(&self, kind: DigestKind) -> String {
        let open = Built {
            digest: String::new(),
            ..self.clone()
        };
        let text = serde_json::to_vec_pretty(&open).expect("texts and numbers are always JSON");
        kind.of(&text)
    }
}
