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
