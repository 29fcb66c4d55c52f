//! An in-memory implementation of `Rows`, for simulations and fuzzing.

use std::collections::BTreeMap;

use super::change::{Row, RowStore};

/// The rows of all slots, owned or replicated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InMemoryRows(pub BTreeMap<u16, BTreeMap<Vec<u8>, Vec<u8>>>);

impl RowStore for InMemoryRows {
    fn get(&self, slot: u16, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(&slot)?.get(key).cloned()
    }

    fn set(&mut self, slot: u16, key: &[u8], value: Option<&[u8]>) {
        let rows = self.0.entry(slot).or_default();
        match value {
            Some(value) => rows.insert(key.to_vec(), value.to_vec()),
            None => rows.remove(key),
        };
    }

    fn clear(&mut self, slot: u16) {
        self.0.remove(&slot);
    }

    fn read(&self, slot: u16, after: Option<&[u8]>, bytes: usize, into: &mut Vec<Row>) -> bool {
        let mut size = 0;
        for (key, value) in self.0.get(&slot).into_iter().flatten() {
            if after.is_some_and(|after| key.as_slice() <= after) {
                continue;
            }
            if size >= bytes {
                return false;
            }
            size += key.len() + value.len();
            into.push(Row::new(key, Some(value)));
        }
        true
    }
}
