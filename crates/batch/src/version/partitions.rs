//! The partitions of a version that are in its folder.
//!
//! A node of a cluster keeps the partitions of its slots. The manifest describes the complete version on every node;
//! `partitions.json` next to it lists the partitions that are present. Without that file all are.
//!
//! 1. A partition in the list has its segment in the folder, complete and durable: segments are written before the
//!    list. When partitions are removed, the list is written first.
//! 2. A crash may leave a segment that is not in the list. It is never read.
//! 3. An open [`Version`](super::Version) does not change with the list. Opening the folder again uses the current
//!    list.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files;
use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry, partition_of};

/// A set of partitions of a version.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partitions(BTreeSet<u32>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartitionList {
    /// First and last, both inclusive; in ascending order.
    here: Vec<(u32, u32)>,
}

impl Partitions {
    pub const FILE: &str = "partitions.json";

    /// Returns all partitions of a version that has `count`.
    pub fn all(count: u32) -> Partitions {
        Partitions((0..count).collect())
    }

    /// Returns the partitions, out of `count`, that have some of these slots. A slot range includes both ends.
    pub fn of_slots(slots: impl IntoIterator<Item = (u16, u16)>, count: u32) -> Partitions {
        let ranges = slots.into_iter();
        let partitions =
            ranges.flat_map(|(from, to)| partition_of(from, count)..=partition_of(to, count));
        Partitions(partitions.collect())
    }

    pub fn contains(&self, partition: u32) -> bool {
        self.0.contains(&partition)
    }

    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn includes(&self, other: &Partitions) -> bool {
        self.0.is_superset(&other.0)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn with(&self, other: &Partitions) -> Partitions {
        Partitions(&self.0 | &other.0)
    }

    /// Returns the partitions that are in this set and not in `other`.
    #[must_use]
    pub fn without(&self, other: &Partitions) -> Partitions {
        Partitions(&self.0 - &other.0)
    }

    /// Reads the list in a version's folder; returns all partitions if there is no list.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for an invalid list, [`Error::Io`].
    pub fn read(folder: &Path, manifest: &Manifest) -> Result<Partitions, Error> {
        let path = folder.join(Self::FILE);
        let bytes = match files::read_regular(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Partitions::all(manifest.partitions));
            }
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let wrong = |detail: String| Error::corrupted(path.display().to_string(), detail);
        let note: PartitionList =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let fits = |&(first, last): &(u32, u32)| first <= last && last < manifest.partitions;
        if !note.here.iter().all(fits) {
            return Err(wrong(
                "it names partitions that the version does not have".into(),
            ));
        }
        let ranges = note.here.into_iter();
        Ok(Partitions(
            ranges.flat_map(|(first, last)| first..=last).collect(),
        ))
    }

    /// Writes the list of partitions in the folder durably.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let note = PartitionList {
            here: self.ranges(),
        };
        let bytes = serde_json::to_vec(&note).expect("plain structs become JSON");
        files::write_durably(&folder.join(Self::FILE), &bytes)
    }

    /// Returns the first and last of each run of consecutive partitions.
    fn ranges(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for partition in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == partition => *last = partition,
                _ => ranges.push((partition, partition)),
            }
        }
        ranges
    }

    /// Removes all other partitions from a published version's folder: writes the list first, then removes the
    /// segments. Open versions remain readable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn keep_only(&self, folder: &Path, manifest: &Manifest) -> Result<(), Error> {
        self.write(folder)?;
        let gone = |entry: &&SegmentEntry| !self.contains(entry.partition.0);
        for entry in manifest.entries().filter(gone) {
            let path = folder.join(&entry.file);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("remove", &path)(error));
                }
                _ => {}
            }
        }
        files::sync_folder(folder)
    }
}

impl FromIterator<u32> for Partitions {
    fn from_iter<I: IntoIterator<Item = u32>>(partitions: I) -> Partitions {
        Partitions(partitions.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_map_to_their_partitions() {
        let of = |slots: &[(u16, u16)], count| -> Vec<u32> {
            let slots = slots.iter().copied();
            Partitions::of_slots(slots, count).iter().collect()
        };
        assert_eq!(of(&[(0, 16_383)], 3), [0, 1, 2]);
        assert_eq!(of(&[(0, 0), (16_383, 16_383)], 8), [0, 7]);
        assert_eq!(of(&[(2047, 2048)], 8), [0, 1]);
        assert!(of(&[], 8).is_empty());
        assert_eq!(of(&[(9, 9)], 1), [0]);
    }

    #[test]
    fn the_list_is_stored_as_ranges() {
        let some = Partitions::of_slots([(0, 4095), (12_288, 16_383)], 8);
        assert_eq!(some.ranges(), [(0, 1), (6, 7)]);
        assert_eq!(Partitions::all(8).without(&some).ranges(), [(2, 5)]);
        assert!(Partitions::default().ranges().is_empty());
    }
}
