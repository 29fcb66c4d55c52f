//! Which partitions of a version are in its folder.
//!
//! A node of a cluster keeps those whose slots it has. The manifest is the whole version's on every node; `partitions.json` beside it
//! names those that are here. Without that file all are.
//!
//! 1. A partition that the note names has its segment in the folder, whole and durable: segments come first, then the note. When
//!    partitions go, the note is first.
//! 2. What a crash leaves is a segment that the note does not name. Nobody reads it.
//! 3. A [`Version`](super::Version) that is open does not change when the note does. Who opens the folder again has what is there
//!    then.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::files;
use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry, partition_of};

/// Some of a version's partitions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partitions(BTreeSet<u32>);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    /// First and last, both included; in order.
    here: Vec<(u32, u32)>,
}

impl Partitions {
    pub const FILE: &str = "partitions.json";

    /// All of a version that is cut into `count`.
    pub fn all(count: u32) -> Partitions {
        Partitions((0..count).collect())
    }

    /// Those of `count` that hold some of these slots. A range has its first and its last slot.
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

    /// Those that are in either.
    #[must_use]
    pub fn with(&self, other: &Partitions) -> Partitions {
        Partitions(&self.0 | &other.0)
    }

    /// Those that are here and not in `other`.
    #[must_use]
    pub fn without(&self, other: &Partitions) -> Partitions {
        Partitions(&self.0 - &other.0)
    }

    /// What the note in a version's folder names; all if there is no note.
    ///
    /// # Errors
    /// [`Error::Corrupted`] for a note that cannot be understood, [`Error::Io`].
    pub fn read(folder: &Path, manifest: &Manifest) -> Result<Partitions, Error> {
        let path = folder.join(Self::FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Partitions::all(manifest.partitions));
            }
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        let wrong = |detail: String| Error::corrupted(path.display().to_string(), detail);
        let note: Note =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        let fits = |&(first, last): &(u32, u32)| first <= last && last < manifest.partitions;
        if !note.here.iter().all(fits) {
            return Err(wrong("it names partitions that the version has not".into()));
        }
        let ranges = note.here.into_iter();
        Ok(Partitions(
            ranges.flat_map(|(first, last)| first..=last).collect(),
        ))
    }

    /// Says durably that these are in the folder, and no others.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let note = Note {
            here: self.ranges(),
        };
        let bytes = serde_json::to_vec(&note).expect("plain structs become JSON");
        files::write_durably(&folder.join(Self::FILE), &bytes)
    }

    /// First and last of those that follow each other.
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

    /// Removes from a published version's folder all partitions but these: the note first, then the segments. Whoever has the version
    /// open keeps reading.
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
    fn slots_name_the_partitions_that_hold_them() {
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
    fn a_note_holds_ranges() {
        let some = Partitions::of_slots([(0, 4095), (12_288, 16_383)], 8);
        assert_eq!(some.ranges(), [(0, 1), (6, 7)]);
        assert_eq!(Partitions::all(8).without(&some).ranges(), [(2, 5)]);
        assert!(Partitions::default().ranges().is_empty());
    }
}
