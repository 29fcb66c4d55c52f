//! A simulated disk: files, and what survives a crash.
//!
//! 1. Synced data survives every crash.
//! 2. A process that dies loses nothing that it wrote. After a power failure, a prefix of the unsynced changes
//!    survives, and possibly a part of the next one, if that was an append.

use std::collections::{BTreeMap, VecDeque};

use crate::random::Random;

type Files = BTreeMap<&'static str, Vec<u8>>;

#[derive(Debug, Clone)]
enum Change {
    Append(&'static str, Vec<u8>),
    Replace(&'static str, Vec<u8>),
}

#[derive(Debug, Clone, Default)]
pub struct Disk {
    /// The files as the process sees them.
    files: Files,
    /// The files at the last sync, and the changes since then.
    synced: Files,
    unsynced: VecDeque<Change>,
    /// The number of changes since the process started.
    changes: u64,
}

impl Disk {
    /// Returns a file's contents; empty if there is no such file.
    pub fn read(&self, file: &str) -> &[u8] {
        self.files.get(file).map_or(&[], Vec::as_slice)
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the number of changes since the process started.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn append(&mut self, file: &'static str, bytes: Vec<u8>) {
        self.change(Change::Append(file, bytes));
    }

    pub(crate) fn replace(&mut self, file: &'static str, bytes: Vec<u8>) {
        self.change(Change::Replace(file, bytes));
    }

    fn change(&mut self, change: Change) {
        self.changes += 1;
        apply(&mut self.files, &change);
        self.unsynced.push_back(change);
    }

    /// Marks the first `upto` changes since the process started as durable.
    pub(crate) fn sync(&mut self, upto: u64) {
        let first = self.changes - self.unsynced.len() as u64;
        for _ in first..upto {
            let change = self.unsynced.pop_front().expect("as many as were made");
            apply(&mut self.synced, &change);
        }
    }

    /// Ends the process. The system has everything that it wrote.
    pub(crate) fn end_process(&mut self) {
        self.changes = self.unsynced.len() as u64;
    }

    /// Simulates a power failure: returns whether anything was lost, and whether a write was torn.
    pub(crate) fn lose_power(&mut self, random: &mut Random) -> (bool, bool) {
        let kept = random.below(self.unsynced.len() as u64 + 1) as usize;
        let (mut lost, mut torn) = (false, false);
        for (at, change) in std::mem::take(&mut self.unsynced).into_iter().enumerate() {
            match change {
                _ if at < kept => apply(&mut self.synced, &change),
                Change::Append(file, bytes) if at == kept && random.one_in(2) => {
                    let part = random.index(bytes.len() + 1);
                    torn = part > 0 && part < bytes.len();
                    lost |= part < bytes.len();
                    apply(
                        &mut self.synced,
                        &Change::Append(file, bytes[..part].to_vec()),
                    );
                }
                _ => lost = true,
            }
        }
        self.files = self.synced.clone();
        self.changes = 0;
        (lost, torn)
    }

    /// Resets the state for a new process: everything present is synced.
    pub(crate) fn settle(&mut self) {
        self.synced = self.files.clone();
        self.unsynced.clear();
        self.changes = 0;
    }
}

fn apply(files: &mut Files, change: &Change) {
    match change {
        Change::Append(file, bytes) => files.entry(file).or_default().extend_from_slice(bytes),
        Change::Replace(file, bytes) => {
            files.insert(file, bytes.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_loss_keeps_synced_bytes_and_a_prefix_of_the_rest() {
        let (mut seen, mut torn_ever) = (std::collections::BTreeSet::new(), false);
        for seed in 0..200 {
            let mut random = Random::stream(seed, 0);
            let mut disk = Disk::default();
            for text in ["one.", "two.", "three."] {
                disk.append("log", text.as_bytes().to_vec());
            }
            disk.sync(1);
            let (lost, torn) = disk.lose_power(&mut random);
            let left = String::from_utf8(disk.read("log").to_vec()).expect("text");
            assert!("one.two.three.".starts_with(&left) && left.starts_with("one."));
            assert_eq!(lost, left.len() < 14);
            torn_ever |= torn;
            seen.insert(left);
        }
        assert!(torn_ever && seen.len() > 5, "{seen:?}");
    }

    #[test]
    fn a_process_that_dies_loses_nothing() {
        let mut disk = Disk::default();
        disk.append("log", b"one".to_vec());
        disk.replace("name", b"a".to_vec());
        disk.replace("name", b"b".to_vec());
        disk.end_process();
        assert_eq!(
            (disk.read("log"), disk.read("name")),
            (&b"one"[..], &b"b"[..])
        );
    }
}
