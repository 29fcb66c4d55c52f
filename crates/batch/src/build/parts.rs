//! Combines the partitions of several builders, such as the tasks of a Spark job, into a version.
//!
//! A segment is a pure function of its partition's rows and the options, so a repeated task writes the same bytes.

use serde::{Deserialize, Serialize};

use super::BuildOptions;
use super::delta_base::{Base, Changes};
use crate::built::Built;
use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry};

/// A written segment, and its contribution to the totals of the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuiltSegment {
    pub entry: SegmentEntry,
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Present only for a delta.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
}

impl Manifest {
    /// Returns the manifest of a version of these parts, in any order.
    ///
    /// # Errors
    /// If a part is missing or duplicate, or belongs to a version with a different number of partitions.
    pub fn from_parts(
        options: &BuildOptions,
        built: Option<Built>,
        mut parts: Vec<BuiltSegment>,
    ) -> Result<Manifest, Error> {
        parts.sort_by_key(|part| part.entry.partition.0);
        let sum = |of: fn(&BuiltSegment) -> u64| parts.iter().map(of).sum::<u64>();
        let changes = parts.iter().filter_map(|part| part.changes);
        let changes = changes.fold(Changes::default(), Changes::with);
        let mut manifest = Manifest {
            format: Manifest::format_of(options.segment_format, built.as_ref()),
            store: options.store.clone(),
            partitions: options.partitions,
            record_count: sum(|it| it.entry.record_count),
            key_bytes: sum(|it| it.key_bytes),
            value_bytes: sum(|it| it.value_bytes),
            size_bytes: sum(|it| it.entry.size_bytes),
            compression: options.compression,
            segments: parts.into_iter().map(|part| part.entry).collect(),
            layers: Vec::new(),
            built,
            signature: None,
            digest: String::new(),
        };
        if let Some(on) = &options.delta_base {
            manifest.set_base(&on.base, changes);
        }
        if let Some(key) = &options.sign {
            manifest.sign(key);
        }
        match manifest.check() {
            Ok(()) => Ok(manifest),
            Err(detail) => Err(Error::state(format!(
                "the parts of this version do not make one: {detail}"
            ))),
        }
    }

    /// Makes this the manifest of a delta on `base`.
    fn set_base(&mut self, base: &Base, changes: Changes) {
        let below = base.manifest();
        let sum = |count: u64, change: i64| count.saturating_add_signed(change);
        self.format = Manifest::FORMAT_DELTA;
        self.record_count = (below.record_count + changes.added).saturating_sub(changes.removed);
        self.key_bytes = sum(below.key_bytes, changes.key_bytes);
        self.value_bytes = sum(below.value_bytes, changes.value_bytes);
        self.size_bytes += below.size_bytes;
        self.layers = base.layers();
        self.built.get_or_insert_default().on = base.places();
    }
}
