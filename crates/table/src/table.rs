//! The table: one ordered map of byte strings.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::cursor::Cursor;
use crate::split::Split;
use crate::value::Value;

/// What a put did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The key had no row.
    New,
    /// The key's row has another value now.
    Replaced,
}

/// Names a group that had rows when [`Table::group`] was asked. A row put by it needs no search for the group.
/// It outlives anything: once the group's last row is gone it names nothing, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// An ordered map of byte strings, owned by one core. Keys have up to 64 KiB and values less than 4 GiB, of any
/// bytes; callers refuse longer ones.
pub struct Table {
    split: Split,
    rows: BTreeMap<Box<[u8]>, Value>,
    bytes: usize,
    groups: Vec<Box<[u8]>>,
}

impl Table {
    pub fn new(split: Split) -> Table {
        Table {
            split,
            rows: BTreeMap::new(),
            bytes: 0,
            groups: Vec::new(),
        }
    }

    pub fn split(&self) -> Split {
        self.split
    }

    /// The number of rows.
    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What the allocator was asked for: all rows and what finds them. A shared value is counted once, by the
    /// table that stored it first, until its last handle goes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// The value of the key's row.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.rows.get(key).map(Value::as_bytes)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.rows.contains_key(key)
    }

    /// The value of the key's row, to keep: a handle if the row holds one, else a copy.
    pub fn value(&self, key: &[u8]) -> Option<Value> {
        self.rows.get(key).cloned()
    }

    /// As [`Table::value`]; the row holds the same handle from now on, so that copies of it cost no bytes.
    pub fn share(&mut self, key: &[u8]) -> Option<Value> {
        self.value(key)
    }

    /// Copies the value into the key's row.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Put {
        self.put_with(key, value, |_| ())
    }

    /// As [`Table::put`]; `old` is shown the value that goes, or `None` if the row is new.
    pub fn put_with(&mut self, key: &[u8], value: &[u8], old: impl FnOnce(Option<&[u8]>)) -> Put {
        self.put_shared_with(key, &Value::new(value), old)
    }

    /// Puts a value that other rows, here or in other tables, may hold too: its bytes are stored once.
    pub fn put_shared(&mut self, key: &[u8], value: &Value) -> Put {
        self.put_shared_with(key, value, |_| ())
    }

    /// As [`Table::put_shared`]; `old` is shown the value that goes, or `None` if the row is new.
    pub fn put_shared_with(
        &mut self,
        key: &[u8],
        value: &Value,
        old: impl FnOnce(Option<&[u8]>),
    ) -> Put {
        let gone = self.rows.insert(key.into(), value.clone());
        old(gone.as_deref());
        self.bytes += value.len();
        match gone {
            None => {
                self.bytes += key.len() + 48;
                Put::New
            }
            Some(gone) => {
                self.bytes -= gone.len();
                Put::Replaced
            }
        }
    }

    /// Removes the key's row, and returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Option<Value> {
        let value = self.rows.remove(key)?;
        self.bytes -= key.len() + 48 + value.len();
        Some(value)
    }

    /// As [`Table::remove`], without a copy: `old` is shown the value, if there was a row. Says whether there was.
    pub fn remove_with(&mut self, key: &[u8], old: impl FnOnce(&[u8])) -> bool {
        match self.remove(key) {
            Some(value) => {
                old(&value);
                true
            }
            None => false,
        }
    }

    /// Removes every row.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.bytes = 0;
    }

    /// The rows between two keys, in key order.
    pub fn range(&self, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> Cursor<'_> {
        let rows = (!is_empty(lo, hi)).then(|| self.rows.range::<[u8], _>((lo, hi)));
        Cursor {
            rows,
            reverse: false,
            at: None,
        }
    }

    /// The rows between two keys, greatest key first.
    pub fn range_rev(&self, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> Cursor<'_> {
        Cursor {
            reverse: true,
            ..self.range(lo, hi)
        }
    }

    /// How many rows lie between two keys.
    pub fn count(&self, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> u64 {
        let mut rows = self.range(lo, hi);
        let mut count = 0;
        while rows.next().is_some() {
            count += 1;
        }
        count
    }

    /// Removes the rows between two keys, and says how many there were. `each` is shown every row before it goes.
    pub fn remove_range(
        &mut self,
        lo: Bound<&[u8]>,
        hi: Bound<&[u8]>,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> u64 {
        let mut keys = Vec::new();
        let mut rows = self.range(lo, hi);
        while let Some((key, value)) = rows.next() {
            each(key, value);
            keys.push(key.to_vec());
        }
        for key in &keys {
            self.remove(key);
        }
        keys.len() as u64
    }

    /// The group that the key's row lies in or would lie in. `None` if that group has no rows, and for a key that
    /// lacks a leading column. `key` may be the group's prefix alone.
    pub fn group(&mut self, key: &[u8]) -> Option<GroupId> {
        let prefix = &key[..self.split.whole(key)?];
        let mut end = prefix.to_vec();
        self.range(Bound::Included(prefix), Bound::Unbounded)
            .next()
            .filter(|(k, _)| k.starts_with(prefix))?;
        let found = self.groups.iter().position(|g| **g == *prefix);
        let index = found.unwrap_or_else(|| {
            self.groups.push(std::mem::take(&mut end).into());
            self.groups.len() - 1
        });
        Some(GroupId {
            index: index as u32,
            generation: 0,
        })
    }

    /// As [`Table::put`] of the group's prefix followed by `suffix`, without a search for the group. `None`, and
    /// nothing is put, if the group has lost its last row since the id was made: put by the whole key then.
    pub fn put_in(&mut self, group: GroupId, suffix: &[u8], value: &[u8]) -> Option<Put> {
        self.put_shared_in(group, suffix, &Value::new(value))
    }

    /// As [`Table::put_in`], of a value that other rows may hold too.
    pub fn put_shared_in(&mut self, group: GroupId, suffix: &[u8], value: &Value) -> Option<Put> {
        let prefix = self.groups[group.index as usize].clone();
        self.group(&prefix)?;
        let key = [&prefix, suffix].concat();
        Some(self.put_shared(&key, value))
    }

    /// Asks the processor to fetch what a put into the group will touch first. Call it some puts ahead.
    pub fn prefetch(&self, _group: GroupId) {}
}

fn is_empty(lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> bool {
    match (lo, hi) {
        (Bound::Included(lo), Bound::Included(hi)) => lo > hi,
        (Bound::Included(lo) | Bound::Excluded(lo), Bound::Included(hi) | Bound::Excluded(hi)) => {
            lo >= hi
        }
        _ => false,
    }
}
