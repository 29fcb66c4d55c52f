//! The rows of slots in both places: rows of own slots are in the engine, where commands access them, all others among
//! the copies.
//!
//! An engine stores rows by table, not by slot. For each own slot, the *groups* of its rows are therefore recorded; a
//! group is a table and a leading column. The groups of one slot are in key order, and so are the rows of consecutive
//! groups.

use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

use larder_cluster::replication::{Row, RowStore};
use larder_join::{Engine, KeyRange, column_group};
use larder_types::{BySlot, object_key};

use super::copies::Copies;
use super::value::{decode, encode};

type Bytes = Box<[u8]>;

/// The groups of each slot whose rows are in the engine.
#[derive(Debug, Default)]
pub struct Groups(BySlot<BTreeSet<Bytes>>, MovedObjects);

/// Rows of objects that entered or left the engine with their slots, and that spaces must index again.
#[derive(Debug, Default)]
pub struct MovedObjects(Vec<Bytes>);

impl MovedObjects {
    fn push_object(&mut self, key: &[u8]) {
        if object_key(key).is_some() {
            self.0.push(key.into());
        }
    }
}

impl Groups {
    /// Returns whether the engine has the rows of this slot.
    pub fn contains(&self, slot: u16) -> bool {
        self.0.contains(slot)
    }

    /// Returns the objects' rows that were moved since the last call.
    pub fn take_moved(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.1.0)
    }

    /// Records that a row with this key exists.
    pub fn insert_row(&mut self, slot: u16, key: &[u8]) {
        if let Some(groups) = self.0.get_mut(slot) {
            let (group, _) = column_group(key);
            if !groups.contains(group) {
                groups.insert(group.into());
            }
        }
    }

    /// Records that a row was removed. A group is removed with its last row.
    pub fn remove_row(&mut self, engine: &Engine, slot: u16, key: &[u8]) {
        let Some(groups) = self.0.get_mut(slot) else {
            return;
        };
        let (group, _) = column_group(key);
        let mut is_left = false;
        let range = group_range(group);
        engine.read_base_rows(&range.lo, &range.hi, &mut |_, _, _| {
            is_left = true;
            ControlFlow::Break(())
        });
        if !is_left {
            groups.remove(group);
        }
    }

    #[cfg(test)]
    pub fn count(&self, slot: u16) -> usize {
        self.0.get(slot).map_or(0, BTreeSet::len)
    }
}

fn group_range(group: &[u8]) -> KeyRange {
    if column_group(group).1 {
        KeyRange::prefix(group)
    } else {
        KeyRange::point(group)
    }
}

/// The engine and the copies.
pub struct AllRows<'a> {
    pub engine: &'a mut Engine,
    pub groups: &'a mut Groups,
    pub copies: &'a mut Copies,
}

impl AllRows<'_> {
    /// Moves the rows of a slot into the engine.
    pub fn open(&mut self, slot: u16) {
        self.groups.0.get_or_default(slot);
        for (key, value) in self.copies.take(slot) {
            self.adopt(slot, &key, &value);
        }
    }

    /// Moves the rows of a slot out of the engine.
    pub fn close(&mut self, slot: u16) {
        for (key, value) in self.drain(slot) {
            self.copies.set(slot, &key, Some(&value));
        }
    }

    fn adopt(&mut self, slot: u16, key: &[u8], value: &[u8]) {
        let Some((value, expires_at)) = decode(value) else {
            return tracing::error!(slot, "a row of another node has no value; it is skipped");
        };
        match self.engine.adopt(key, value, expires_at) {
            Ok(()) => {
                self.groups.insert_row(slot, key);
                self.groups.1.push_object(key);
            }
            Err(error) => {
                tracing::error!(slot, %error, "a row of another node cannot be stored; it is skipped")
            }
        }
    }

    /// Removes all rows of a slot, and the slot, from the engine.
    fn drain(&mut self, slot: u16) -> Vec<(Bytes, Vec<u8>)> {
        let mut rows: Vec<(Bytes, Vec<u8>)> = Vec::new();
        for group in self.groups.0.remove(slot).unwrap_or_default() {
            let first = rows.len();
            let range = group_range(&group);
            self.engine
                .read_base_rows(&range.lo, &range.hi, &mut |key, value, at| {
                    rows.push((key.into(), encode(value, at)));
                    ControlFlow::Continue(())
                });
            for (key, _) in &rows[first..] {
                self.engine.remove_unowned(key);
                self.groups.1.push_object(key);
            }
        }
        rows
    }

    fn read_engine(
        &self,
        slot: u16,
        after: Option<&[u8]>,
        bytes: usize,
        into: &mut Vec<Row>,
    ) -> bool {
        let Some(groups) = self.groups.0.get(slot) else {
            return true;
        };
        // Start with the last group at or before the key, which may contain it.
        let first = after.and_then(|after| {
            let upto = (Bound::Unbounded, Bound::Included(after));
            groups.range::<[u8], _>(upto).next_back()
        });
        let from = first.map_or(Bound::Unbounded, |first| Bound::Included(&**first));
        let mut size = 0;
        let mut is_all = true;
        for group in groups.range::<[u8], _>((from, Bound::Unbounded)) {
            let mut range = group_range(group);
            if let Some(after) = after
                && *range.lo <= *after
            {
                range.lo = KeyRange::point(after).hi;
            }
            self.engine
                .read_base_rows(&range.lo, &range.hi, &mut |key, value, at| {
                    if size >= bytes {
                        is_all = false;
                        return ControlFlow::Break(());
                    }
                    let value = encode(value, at);
                    size += key.len() + value.len();
                    into.push(Row::new(key, Some(&value)));
                    ControlFlow::Continue(())
                });
            if !is_all {
                return false;
            }
        }
        true
    }
}

impl RowStore for AllRows<'_> {
    fn get(&self, slot: u16, key: &[u8]) -> Option<Vec<u8>> {
        if self.groups.contains(slot) {
            self.engine
                .base_row(key)
                .map(|(value, at)| encode(value, at))
        } else {
            self.copies.get(slot, key)
        }
    }

    fn set(&mut self, slot: u16, key: &[u8], value: Option<&[u8]>) {
        match (self.groups.contains(slot), value) {
            (false, value) => self.copies.set(slot, key, value),
            (true, Some(value)) => self.adopt(slot, key, value),
            (true, None) => {
                self.engine.remove_unowned(key);
                self.groups.1.push_object(key);
                self.groups.remove_row(self.engine, slot, key);
            }
        }
    }

    fn clear(&mut self, slot: u16) {
        self.drain(slot);
        self.copies.take(slot);
    }

    fn read(&self, slot: u16, after: Option<&[u8]>, bytes: usize, into: &mut Vec<Row>) -> bool {
        if self.groups.contains(slot) {
            self.read_engine(slot, after, bytes, into)
        } else {
            self.copies.read(slot, after, bytes, into)
        }
    }
}

#[cfg(test)]
mod tests {
    use larder_join::row_slot;

    use super::*;

    /// Rows of one slot, by a hash tag, with groups that lie within each other's bounds as text.
    fn keys() -> Vec<String> {
        let columns = ["{a}", "{a}x", "{a}<", "x{a}"];
        let tables = ["post|", "post:", "s|"];
        let mut keys = Vec::new();
        for table in tables {
            for column in columns {
                for rest in ["", "|", ":1", "|1", "|1|2", "|\u{e9}"] {
                    keys.push(format!("{table}{column}{rest}"));
                }
            }
        }
        keys.sort();
        keys
    }

    #[test]
    fn the_rows_of_a_slot_are_read_completely_and_in_order_from_both_places() {
        let (mut engine, mut groups, mut copies) =
            (Engine::new(), Groups::default(), Copies::default());
        let mut rows = AllRows {
            engine: &mut engine,
            groups: &mut groups,
            copies: &mut copies,
        };
        let slot = row_slot(b"post|{a}|1");
        let keys = keys();
        assert!(keys.iter().all(|key| row_slot(key.as_bytes()) == slot));
        for (at, key) in keys.iter().enumerate() {
            let expires_at = (at % 3 == 0).then_some(1_000_000 + at as u64);
            let value = encode(format!("value {at}").as_bytes(), expires_at);
            rows.set(slot, key.as_bytes(), Some(&value));
        }
        let read = |rows: &AllRows<'_>, bytes: usize| {
            let (mut all, mut after) = (Vec::new(), None::<Vec<u8>>);
            loop {
                let mut chunk = Vec::new();
                let is_last = rows.read(slot, after.as_deref(), bytes, &mut chunk);
                after = chunk.last().map(|row: &Row| row.key().to_vec()).or(after);
                all.append(&mut chunk);
                if is_last {
                    return all;
                }
            }
        };
        let kept = read(&rows, 30);
        assert_eq!(kept.len(), keys.len());
        rows.open(slot);
        assert_eq!(rows.copies.memory_bytes(), 0);
        for bytes in [1, 30, 1 << 20] {
            assert_eq!(read(&rows, bytes), kept, "chunks of {bytes}");
        }
        rows.set(slot, keys[4].as_bytes(), None);
        let left = read(&rows, 30);
        assert_eq!(left.len(), keys.len() - 1);
        rows.close(slot);
        assert!(!rows.groups.contains(slot));
        assert_eq!(read(&rows, 30), left);
        assert_eq!(rows.engine.row_count(), 0);
        rows.open(slot);
        for key in &keys {
            rows.set(slot, key.as_bytes(), None);
        }
        assert_eq!(rows.groups.count(slot), 0, "groups go with their last rows");
        rows.clear(slot);
        assert!(!rows.groups.contains(slot));
    }
}
