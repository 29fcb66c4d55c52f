//! What a delta is built on, and how its rows become a delta's.
//!
//! Rows of changes: each is looked up in the base, so that what is there already is not written again, and so that the manifest
//! can say exactly how many records the version has. A whole new input: it is sorted like that of a whole version, and merged
//! with the base, which is read front to back; what differs goes to a builder of changes. Both give the same delta.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use larder_types::key_hash;
use serde::{Deserialize, Serialize};

use super::RowWriter;
use crate::delta::{Said, said};
use crate::error::Error;
use crate::manifest::{Layer, Manifest};
use crate::segment::Compression;
use crate::version::{Record, Version, Walk};

/// What a build writes the difference to.
#[derive(Clone)]
pub struct On {
    pub base: Arc<Base>,
    /// The rows are all that the new version is to have: keys that are not among them are removed.
    pub is_full: bool,
}

/// A version that deltas are built on.
pub struct Base {
    manifest: Manifest,
    partitions: Opened,
    /// Bytes of records that a block of its was to hold, once it is known.
    block_size: OnceLock<Option<u32>>,
    /// The absolute path or URL that it is told to be at.
    place: String,
    /// That of the delta.
    target: String,
}

enum Opened {
    Whole(Arc<Version>),
    /// One by one, when they are compared with. They stay open.
    Parts {
        open: Box<OpenPart>,
        opened: Mutex<BTreeMap<u32, Arc<Version>>>,
    },
}

/// Opens a version of which one partition is here, at least.
pub type OpenPart = dyn Fn(u32) -> Result<Version, Error> + Send + Sync;

impl std::fmt::Debug for On {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "On({}, full: {})", self.base.place, self.is_full)
    }
}

impl Base {
    /// Opens the version in `folder`. `place` and `target` are where it and the delta are to be found later, as absolute paths
    /// or URLs: the manifest says how to come from one to the other.
    ///
    /// # Errors
    /// As for [`Version::open`]; [`Error::State`] for a version on which none can be built.
    pub fn open(folder: &Path, place: &str, target: &str) -> Result<Base, Error> {
        let version = Version::open(folder)?;
        if !version.has_all_partitions() {
            return Err(Error::state(format!(
                "nothing can be built on {place}: it is a part of a version; name the place of the whole"
            )));
        }
        let manifest = version.manifest().clone();
        version.refresh_residency();
        let partitions = Opened::Whole(Arc::new(version));
        Base::new(manifest, partitions, place, target)
    }

    /// The version that `manifest` is of, for who builds on some of its partitions: `open` is asked for each that something is compared with.
    ///
    /// # Errors
    /// [`Error::State`] for a version on which none can be built.
    pub fn of_parts(
        manifest: Manifest,
        open: Box<OpenPart>,
        place: &str,
        target: &str,
    ) -> Result<Base, Error> {
        let opened = Mutex::default();
        Base::new(manifest, Opened::Parts { open, opened }, place, target)
    }

    fn new(
        manifest: Manifest,
        partitions: Opened,
        place: &str,
        target: &str,
    ) -> Result<Base, Error> {
        let refused = |why: &str| {
            Err(Error::state(format!(
                "nothing can be built on {place}: {why}"
            )))
        };
        if manifest.format < Manifest::FORMAT {
            return refused("it was built by a larder before this one; build a whole version once");
        }
        if manifest.layer_count() >= Manifest::LAYERS_MAX {
            return refused(&format!(
                "it has {} layers, which is as many as a version may have; compact it (larder compact, or larder store compact), or build a whole version",
                manifest.layer_count()
            ));
        }
        Ok(Base {
            manifest,
            partitions,
            block_size: OnceLock::new(),
            place: place.to_owned(),
            target: target.to_owned(),
        })
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The version, with one of its partitions at least.
    pub(super) fn partition(&self, partition: u32) -> Result<Arc<Version>, Error> {
        let (open, opened) = match &self.partitions {
            Opened::Whole(version) => return Ok(version.clone()),
            Opened::Parts { open, opened } => (open, opened),
        };
        let all = || opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(version) = all().get(&partition) {
            return Ok(version.clone());
        }
        let version = open(partition)?;
        let found = &version.manifest().digest;
        if *found != self.manifest.digest {
            return Err(Error::state(format!(
                "the version at {} is another one now, with digest {found} and not {}; build the delta again, on what is there",
                self.place, self.manifest.digest
            )));
        }
        version.refresh_residency();
        let version = Arc::new(version);
        all().insert(partition, version.clone());
        Ok(version)
    }

    /// Bytes of records that a block of its was to hold. If no partition is open yet, this one is opened.
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

    /// As the delta's manifest has them.
    pub(super) fn layers(&self) -> Vec<Layer> {
        let manifest = self.manifest();
        let own = Layer {
            digest: manifest.digest.clone(),
            segments: manifest.segments.clone(),
        };
        manifest.layers.iter().cloned().chain([own]).collect()
    }

    /// Where each of them is, as the delta's manifest has it.
    pub(super) fn places(&self) -> Vec<String> {
        let roots = self.manifest.roots(&self.place).into_iter().enumerate();
        roots
            .map(|(layer, root)| match self.holds_layer(layer) {
                true => self.place.clone(),
                false => root,
            })
            .map(|place| told_from(&self.target, place))
            .collect()
    }

    /// Whether a layer's files are in the base's own folder, as a server has them.
    fn holds_layer(&self, layer: usize) -> bool {
        let folder = Path::new(&self.place);
        let layer = self.manifest.layers.get(layer);
        !self.place.contains("://")
            && layer.is_some_and(|it| self.manifest.has_layer_in(folder, it))
    }
}

/// How a delta at `target` tells of a place: two that lie side by side may be moved together.
fn told_from(target: &str, place: String) -> String {
    let parts = |whole: &str| -> Option<(String, String)> {
        let (parent, name) = whole.trim_end_matches('/').rsplit_once('/')?;
        Some((parent.to_owned(), name.to_owned()))
    };
    match (parts(target), parts(&place)) {
        (Some((parent, _)), Some((same, name))) if parent == same => format!("../{name}"),
        _ => place,
    }
}

/// What a delta changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changes {
    pub added: u64,
    pub changed: u64,
    pub removed: u64,
    /// Rows that say what the base says already; they are not written.
    pub unchanged: u64,
    pub key_bytes: i64,
    pub value_bytes: i64,
}

impl Changes {
    /// Counts what a row says of a key; whether it says anything new.
    pub(super) fn count(
        &mut self,
        base: &Version,
        key: &[u8],
        marked: &[u8],
    ) -> Result<bool, Error> {
        let before = base.get(key)?;
        let value = match said(marked) {
            Some(Said::Value(value)) => Some(value),
            _ => None,
        };
        let size_before = before.as_ref().map(|before| before.len() as i64);
        let is_same = before.as_deref() == value;
        if before.is_some_and(|before| before.is_borrowed()) && !base.is_whole() {
            return Err(base.lost());
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

/// Compares the records of one partition, which come in their order, with those of the base.
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
        match is_same {
            true => Ok(()),
            false => self.changes.push_checked(0, key, value),
        }
    }

    /// Removes what the base has before this record, or to its end.
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
    fn neighbours_are_told_from_each_other_and_others_by_their_whole_name() {
        let told = |target: &str, place: &str| told_from(target, place.to_owned());
        assert_eq!(told("/b/tuesday", "/b/monday"), "../monday");
        assert_eq!(told("s3://b/x/tuesday", "s3://b/x/monday/"), "../monday");
        assert_eq!(told("/b/tuesday", "/c/monday"), "/c/monday");
        assert_eq!(told("/b/tuesday", "s3://b/monday"), "s3://b/monday");
    }
}
