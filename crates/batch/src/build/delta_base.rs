//! The base of a delta, and the conversion of rows to those of a delta.
//!
//! Rows that are changes are looked up in the base. A row that the base already has is not written, and the manifest
//! states the exact number of records of the version. Rows that are a complete new version are sorted like those of
//! any version and merged with the base, which is read sequentially; the differences go to a builder of changes. Both
//! methods produce the same delta.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use larder_types::key_hash;
use serde::{Deserialize, Serialize};

use super::RowWriter;
use crate::delta::{MarkedValue, decode};
use crate::error::Error;
use crate::manifest::{Layer, Manifest};
use crate::segment::Compression;
use crate::version::{Record, Version, Walk};

/// The base of a build that writes only the difference.
#[derive(Clone)]
pub struct DeltaBase {
    pub base: Arc<Base>,
    /// The rows are the complete new version: keys without a row are removed.
    pub is_full: bool,
}

/// A version on which deltas are built.
pub struct Base {
    manifest: Manifest,
    partitions: BasePartitions,
    /// The target size of the base's blocks, once it is known.
    block_size: OnceLock<Option<u32>>,
    /// The absolute path or URL of the base, for errors.
    place: String,
    /// The path or URL of each layer's files, the lowest layer first.
    roots: Vec<String>,
    /// The absolute path or URL of the delta.
    target: String,
}

enum BasePartitions {
    Complete(Arc<Version>),
    /// Partitions that are opened on first use and stay open.
    OnDemand {
        open: Box<OpenPartition>,
        opened: Mutex<BTreeMap<u32, Arc<Version>>>,
    },
}

/// Opens a version of which at least the given partition is present.
pub type OpenPartition = dyn Fn(u32) -> Result<Version, Error> + Send + Sync;

impl std::fmt::Debug for DeltaBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "On({}, full: {})", self.base.place, self.is_full)
    }
}

impl Base {
    /// Opens the version in `folder`. `place` and `target` are the later locations of the base and the delta, as
    /// absolute paths or URLs: the manifest records how to reach the base from the delta.
    ///
    /// # Errors
    /// Like [`Version::open`]; [`Error::State`] for a version that cannot be a base.
    pub fn open(folder: &Path, place: &str, target: &str) -> Result<Base, Error> {
        let version = Version::open(folder)?;
        if !version.has_all_partitions() {
            return Err(Error::state(format!(
                "{place} cannot be used as a base: it has only some partitions; name the location of the complete version"
            )));
        }
        let manifest = version.manifest().clone();
        version.refresh_residency();
        let partitions = BasePartitions::Complete(Arc::new(version));
        Base::new(manifest, partitions, place, target)
    }

    /// Creates a base from its manifest, for a builder of some of its partitions. `open` is called for each partition
    /// that is compared.
    ///
    /// # Errors
    /// [`Error::State`] for a version that cannot be a base.
    pub fn from_parts(
        manifest: Manifest,
        open: Box<OpenPartition>,
        place: &str,
        target: &str,
    ) -> Result<Base, Error> {
        let opened = Mutex::default();
        Base::new(
            manifest,
            BasePartitions::OnDemand { open, opened },
            place,
            target,
        )
    }

    fn new(
        manifest: Manifest,
        partitions: BasePartitions,
        place: &str,
        target: &str,
    ) -> Result<Base, Error> {
        let refused = |why: &str| {
            Err(Error::state(format!(
                "nothing can be built on {place}: {why}"
            )))
        };
        if manifest.format < Manifest::FORMAT {
            return refused(
                "it was built by an earlier version of larder; build a complete version once",
            );
        }
        if manifest.layer_count() >= Manifest::LAYERS_MAX {
            return refused(&format!(
                "it has {} layers, the maximum; compact it (larder compact, or larder store compact), or build a complete version",
                manifest.layer_count()
            ));
        }
        let folder = Path::new(place);
        let is_url = place.contains("://");
        let Ok(roots) = manifest.find_roots(place, |layer| {
            Ok::<_, Infallible>(!is_url && manifest.has_layer_in(folder, layer))
        });
        Ok(Base {
            manifest,
            partitions,
            roots,
            block_size: OnceLock::new(),
            place: place.to_owned(),
            target: target.to_owned(),
        })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the version, with at least this partition.
    pub(super) fn partition(&self, partition: u32) -> Result<Arc<Version>, Error> {
        let (open, opened) = match &self.partitions {
            BasePartitions::Complete(version) => return Ok(version.clone()),
            BasePartitions::OnDemand { open, opened } => (open, opened),
        };
        let all = || opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(version) = all().get(&partition) {
            return Ok(version.clone());
        }
        let version = open(partition)?;
        let found = &version.manifest().digest;
        if *found != self.manifest.digest {
            return Err(Error::state(format!(
                "the version at {} was replaced: its digest is {found} instead of {}; build the delta again on the current version",
                self.place, self.manifest.digest
            )));
        }
        version.refresh_residency();
        let version = Arc::new(version);
        all().insert(partition, version.clone());
        Ok(version)
    }

    /// Returns the target size of the base's blocks. Opens `partition` if none is open yet.
    pub(super) fn block_size(&self, partition: u32) -> Result<Option<u32>, Error> {
        if let Some(known) = self.block_size.get() {
            return Ok(*known);
        }
        let size = self.partition(partition)?.block_size();
        Ok(*self.block_size.get_or_init(|| size))
    }

    pub(super) fn compression(&self) -> Compression {
        self.manifest().compression
    }

    /// Returns the layers for the delta's manifest.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let manifest = self.manifest();
        let own = Layer {
            digest: manifest.digest.clone(),
            segments: manifest.segments.clone(),
        };
        manifest.layers.iter().cloned().chain([own]).collect()
    }

    /// The same base, with other paths or URLs of its layers' files, the lowest first: see [`Manifest::find_roots`].
    #[must_use]
    pub fn with_roots(self, roots: Vec<String>) -> Base {
        Base { roots, ..self }
    }

    /// Returns the location of each layer, for the delta's manifest.
    pub(super) fn places(&self) -> Vec<String> {
        let places = self.roots.iter().cloned();
        places
            .map(|place| relative_place(&self.target, place))
            .collect()
    }
}

/// Returns the path from a delta at `target` to `place`. It is relative if they have the same parent, so that both
/// may be moved together.
fn relative_place(target: &str, place: String) -> String {
    let parts = |complete: &str| -> Option<(String, String)> {
        let (parent, name) = complete.trim_end_matches('/').rsplit_once('/')?;
        Some((parent.to_owned(), name.to_owned()))
    };
    match (parts(target), parts(&place)) {
        (Some((parent, _)), Some((same, name))) if parent == same => format!("../{name}"),
        _ => place,
    }
}

/// The number of changes of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    pub added: u64,
    pub changed: u64,
    pub removed: u64,
    /// Rows that equal the base's record; they are not written.
    pub unchanged: u64,
    pub key_bytes: i64,
    pub value_bytes: i64,
}

impl Changes {
    /// Counts the change that a row makes, and returns whether it makes one.
    pub(super) fn count(
        &mut self,
        base: &Version,
        key: &[u8],
        marked: &[u8],
    ) -> Result<bool, Error> {
        let before = base.get(key)?;
        let value = match decode(marked) {
            Some(MarkedValue::Value(value)) => Some(value),
            _ => None,
        };
        let size_before = before.as_ref().map(|before| before.len() as i64);
        let is_same = before.as_deref() == value;
        if before.is_some_and(|before| before.is_borrowed()) && !base.is_intact() {
            return Err(base.lost_pages_error());
        }
        let key_size = key.len() as i64;
        match (size_before, value.map(|value| value.len() as i64)) {
            _ if is_same => self.unchanged += 1,
            (None, Some(size)) => {
                self.added += 1;
                (self.key_bytes, self.value_bytes) =
                    (self.key_bytes + key_size, self.value_bytes + size);
            }
            (Some(before), Some(size)) => {
                self.changed += 1;
                self.value_bytes += size - before;
            }
            (Some(before), None) => {
                self.removed += 1;
                (self.key_bytes, self.value_bytes) =
                    (self.key_bytes - key_size, self.value_bytes - before);
            }
            (None, None) => unreachable!("both are nothing, so they are the same"),
        }
        Ok(!is_same)
    }

    #[must_use]
    pub fn with(self, other: Changes) -> Changes {
        Changes {
            added: self.added + other.added,
            changed: self.changed + other.changed,
            removed: self.removed + other.removed,
            unchanged: self.unchanged + other.unchanged,
            key_bytes: self.key_bytes + other.key_bytes,
            value_bytes: self.value_bytes + other.value_bytes,
        }
    }
}

/// Compares the records of one partition, in order, with those of the base.
pub(super) struct Comparison<'a> {
    base: Walk<Arc<Version>>,
    head: Option<(u64, Record)>,
    changes: RowWriter<'a>,
}

impl<'a> Comparison<'a> {
    pub fn new(
        base: &Base,
        partition: u32,
        changes: RowWriter<'a>,
    ) -> Result<Comparison<'a>, Error> {
        let at = partition as usize;
        let mut comparison = Comparison {
            base: Walk::of_partitions(base.partition(partition)?, at..at + 1),
            head: None,
            changes,
        };
        comparison.step()?;
        Ok(comparison)
    }

    fn step(&mut self) -> Result<(), Error> {
        let record = self.base.next().transpose()?;
        self.head = record.map(|record| (key_hash(&record.0), record));
        Ok(())
    }

    pub fn push(&mut self, hash: u64, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.remove_before(Some((hash, key)))?;
        let is_there =
            (self.head.as_ref()).filter(|(at, (there, _))| (*at, &there[..]) == (hash, key));
        let is_same = is_there.is_some_and(|(_, (_, before))| before[..] == *value);
        if is_there.is_some() {
            self.step()?;
        }
        if is_same {
            Ok(())
        } else {
            self.changes.push_checked(0, key, value)
        }
    }

    /// Removes the base's records before this record, or all that are left.
    fn remove_before(&mut self, end: Option<(u64, &[u8])>) -> Result<(), Error> {
        while let Some((hash, (key, _))) = &self.head {
            if end.is_some_and(|end| (*hash, &key[..]) >= end) {
                break;
            }
            self.changes.push_removed(0, key)?;
            self.step()?;
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<(), Error> {
        self.remove_before(None)?;
        self.changes.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_have_relative_places_and_others_absolute_ones() {
        let relative = |target: &str, place: &str| relative_place(target, place.to_owned());
        assert_eq!(relative("/b/tuesday", "/b/monday"), "../monday");
        assert_eq!(
            relative("s3://b/x/tuesday", "s3://b/x/monday/"),
            "../monday"
        );
        assert_eq!(relative("/b/tuesday", "/c/monday"), "/c/monday");
        assert_eq!(relative("/b/tuesday", "s3://b/monday"), "s3://b/monday");
    }
}
