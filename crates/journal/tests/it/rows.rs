//! The oracle: the effect of entries, in maps.

use std::collections::BTreeMap;
use std::path::Path;

use larder_journal::{Disk, Entry, Error, Recovery, replay};

pub type Value = (Vec<u8>, Option<u64>);

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Rows {
    pub rows: BTreeMap<Vec<u8>, Value>,
    pub definitions: BTreeMap<Vec<u8>, Vec<u8>>,
    pub positions: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Rows {
    pub fn apply(&mut self, entry: Entry<'_>) {
        match entry {
            Entry::Put {
                key,
                value,
                deadline_ms,
            } => {
                self.rows
                    .insert(key.to_vec(), (value.to_vec(), deadline_ms));
            }
            Entry::Expire { key, deadline_ms } => {
                if let Some(row) = self.rows.get_mut(key) {
                    row.1 = deadline_ms;
                }
            }
            Entry::Remove { key } => {
                self.rows.remove(key);
            }
            Entry::RemoveRange { lo, hi } => self
                .rows
                .retain(|key, _| &key[..] < lo || hi.is_some_and(|hi| &key[..] >= hi)),
            Entry::Define { name, text } => {
                self.definitions.insert(name.to_vec(), text.to_vec());
            }
            Entry::Drop { name } => {
                self.definitions.remove(name);
            }
            Entry::Position { source, position } => {
                self.positions.insert(source.to_vec(), position.to_vec());
            }
            Entry::Part { .. } | Entry::Commit { .. } | Entry::Abort { .. } => {
                unreachable!("the journal resolves them")
            }
            Entry::Space { .. } | Entry::Slot { .. } => {
                unreachable!("none of these tests writes one")
            }
        }
    }

    pub fn replayed(disk: &dyn Disk, folder: &Path) -> Result<(Rows, Recovery), Error> {
        let mut rows = Rows::default();
        let recovery = replay(disk, folder, &mut |entry| rows.apply(entry))?;
        Ok((rows, recovery))
    }

    /// Returns the rows whose first byte is `owner`.
    pub fn of(&self, owner: u8) -> Rows {
        fn part<V: Clone>(map: &BTreeMap<Vec<u8>, V>, owner: u8) -> BTreeMap<Vec<u8>, V> {
            map.iter()
                .filter(|(key, _)| key[0] == owner)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        }
        Rows {
            rows: part(&self.rows, owner),
            definitions: part(&self.definitions, owner),
            positions: part(&self.positions, owner),
        }
    }
}

/// An [`Entry`] that owns its bytes.
#[derive(Debug, Clone)]
pub enum Change {
    Put(Vec<u8>, Vec<u8>, Option<u64>),
    Expire(Vec<u8>, Option<u64>),
    Remove(Vec<u8>),
    RemoveRange(Vec<u8>, Vec<u8>),
    Define(Vec<u8>, Vec<u8>),
    Drop(Vec<u8>),
    Position(Vec<u8>, Vec<u8>),
}

impl Change {
    pub fn entry(&self) -> Entry<'_> {
        match self {
            Change::Put(key, value, deadline_ms) => Entry::Put {
                key,
                value,
                deadline_ms: *deadline_ms,
            },
            Change::Expire(key, deadline_ms) => Entry::Expire {
                key,
                deadline_ms: *deadline_ms,
            },
            Change::Remove(key) => Entry::Remove { key },
            Change::RemoveRange(lo, hi) => Entry::RemoveRange { lo, hi: Some(hi) },
            Change::Define(name, text) => Entry::Define { name, text },
            Change::Drop(name) => Entry::Drop { name },
            Change::Position(source, position) => Entry::Position { source, position },
        }
    }
}
