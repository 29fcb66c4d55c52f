//! Positions of SCAN in tables: a cursor is a number that stands for the next key, and the latest of them are remembered.

use std::collections::BTreeMap;

const CURSORS_MAX: usize = 10_000;

/// The cursors that were given out of late, with the key that each begins at.
#[derive(Default)]
pub struct Cursors {
    next: u64,
    keys: BTreeMap<u64, Vec<u8>>,
}

impl Cursors {
    /// Gives out a cursor that begins at a key.
    pub fn keep(&mut self, key: Vec<u8>) -> u64 {
        self.next += 1;
        self.keys.insert(self.next, key);
        if self.keys.len() > CURSORS_MAX {
            self.keys.pop_first();
        }
        self.next
    }

    /// The key at which a cursor begins; `None` if it is not remembered any more.
    pub fn get(&self, cursor: u64) -> Option<Vec<u8>> {
        self.keys.get(&cursor).cloned()
    }
}
