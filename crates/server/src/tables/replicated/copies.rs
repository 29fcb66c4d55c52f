//! Copies: the rows of slots that another place owns, or that this place does not own yet. Clients do not read them.

use std::collections::BTreeMap;
use std::ops::Bound;

use larder_cluster::replication::{Row, RowStore};
use larder_join::{Value, ValuesOnDisk};
use larder_types::BySlot;

/// Memory of a row, besides its bytes.
const ROW_BYTES: usize = 48;

type Bytes = Box<[u8]>;

/// The rows by slot. Values are encoded (see `value`).
#[derive(Debug, Default)]
pub struct Copies {
    slots: BySlot<BTreeMap<Bytes, Value>>,
    bytes: usize,
    /// The location of long values on disk; `None` if they are stored in memory.
    pub on_disk: Option<ValuesOnDisk>,
}

impl Copies {
    /// Removes and returns all rows of a slot.
    pub fn take(&mut self, slot: u16) -> BTreeMap<Bytes, Value> {
        let rows = self.slots.remove(slot).unwrap_or_default();
        let bytes = rows.iter().map(|(key, value)| row_bytes(key, value));
        self.bytes -= bytes.sum::<usize>();
        rows
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of rows, and the number of slots.
    pub fn count(&self) -> (usize, usize) {
        (
            self.slots.iter().map(|(_, rows)| rows.len()).sum(),
            self.slots.len(),
        )
    }
}

impl RowStore for Copies {
    fn get(&self, slot: u16, key: &[u8]) -> Option<Vec<u8>> {
        self.slots.get(slot)?.get(key).map(|value| value.to_vec())
    }

    fn set(&mut self, slot: u16, key: &[u8], value: Option<&[u8]>) {
        let rows = self.slots.get_or_default(slot);
        let before = match value {
            Some(value) => {
                let value = match &self.on_disk {
                    Some(on_disk) => on_disk.value(value),
                    None => Value::new(value),
                };
                self.bytes += row_bytes(key, &value);
                rows.insert(key.into(), value)
            }
            None => rows.remove(key),
        };
        if let Some(before) = before {
            self.bytes -= row_bytes(key, &before);
        }
        if rows.is_empty() {
            self.slots.remove(slot);
        }
    }

    fn clear(&mut self, slot: u16) {
        self.take(slot);
    }

    fn read(&self, slot: u16, after: Option<&[u8]>, bytes: usize, into: &mut Vec<Row>) -> bool {
        let Some(rows) = self.slots.get(slot) else {
            return true;
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut size = 0;
        for (key, value) in rows.range::<[u8], _>((from, Bound::Unbounded)) {
            if size >= bytes {
                return false;
            }
            size += key.len() + value.len();
            into.push(Row::new(key, Some(value)));
        }
        true
    }
}

fn row_bytes(key: &[u8], value: &Value) -> usize {
    key.len() + value.memory_bytes() + ROW_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_and_released() {
        let mut copies = Copies::default();
        copies.set(3, b"t|a|1", Some(b"one"));
        copies.set(3, b"t|a|2", Some(b"two, of twenty bytes"));
        copies.set(4, b"t|b|1", Some(b"other"));
        let all = copies.memory_bytes();
        copies.set(3, b"t|a|2", Some(b"longer, of twenty-three"));
        assert_eq!(copies.memory_bytes(), all + 3);
        let mut rows = Vec::new();
        assert!(!copies.read(3, None, 1, &mut rows), "a row is left");
        assert!(copies.read(3, Some(b"t|a|1"), 1, &mut rows));
        let keys: Vec<&[u8]> = rows.iter().map(Row::key).collect();
        assert_eq!(keys, [b"t|a|1", b"t|a|2"]);
        assert_eq!(copies.take(3).len(), 2);
        copies.set(4, b"t|b|1", None);
        assert_eq!((copies.memory_bytes(), copies.count()), (0, (0, 0)));
    }
}
