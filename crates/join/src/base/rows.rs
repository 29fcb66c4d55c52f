//! The rows of one table. Only this module accesses `larder_table`.

use std::ops::Bound;

pub use larder_table::{Cursor, GroupId, GroupLookup, Split, Value, ValueFile, ValuesOnDisk};
use larder_table::{Put, Table};

use std::rc::Rc;

use crate::base::key_range::{Flow, KeyRange, is_successor};
use crate::base::read_snapshot::{ReadSnapshot, ReadSnapshots, SnapshotMemory};

pub struct Rows {
    table: Table,
    /// Snapshots for long reads in progress. They are notified before every change.
    snapshots: ReadSnapshots,
}

/// Maximum length, in bytes, of a value that is cheaper to copy than to share.
const COPIED_BYTES_MAX: usize = 16;

impl Default for Rows {
    fn default() -> Self {
        Self::new(Split::None)
    }
}

impl Rows {
    pub fn new(split: Split) -> Self {
        Self {
            table: Table::new(split),
            snapshots: ReadSnapshots::default(),
        }
    }

    /// Stores long values on disk, for values that are copied into rows from now on.
    pub fn keep_on_disk(&mut self, on_disk: ValuesOnDisk) {
        self.table.keep_on_disk(on_disk);
    }

    /// Splits the table, which must be empty.
    pub fn reset_split(&mut self, split: Split) {
        debug_assert!(self.is_empty(), "the table must be empty");
        self.table = self.table.empty(split);
    }

    /// Returns a snapshot of the current rows, for a long read of a range.
    pub fn snapshot(&mut self, unread: KeyRange, memory: &Rc<SnapshotMemory>) -> Rc<ReadSnapshot> {
        self.snapshots.add(unread, memory)
    }

    /// Returns whether a long read of these rows is in progress.
    pub fn has_snapshots(&self) -> bool {
        self.snapshots.has_live()
    }

    /// Returns whether a long read has unread keys in `range`.
    pub fn is_being_read(&self, range: &KeyRange) -> bool {
        self.snapshots.has_unread_in(range)
    }

    /// Notifies the snapshots that a key's row is about to change.
    #[inline]
    fn notify_snapshots(&mut self, key: &[u8]) {
        if !self.snapshots.is_empty() {
            self.preserve_old_row(key);
        }
    }

    #[cold]
    fn preserve_old_row(&mut self, key: &[u8]) {
        let readers = self.snapshots.readers_of(key);
        preserve(&readers, key, self.table.get(key));
    }

    /// Creates an empty table with the same split.
    pub fn new_like(&self) -> Self {
        Self::new(self.table.split())
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.table.get(key)
    }

    /// Passes the values of several keys' rows to `each`, with the index of the key.
    pub fn get_each<'t>(&'t self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&'t [u8]>)) {
        self.table.get_each(keys, each);
    }

    pub fn value(&self, key: &[u8]) -> Option<Value> {
        self.table.value(key)
    }

    /// Puts a row. Returns its former value.
    pub fn replace(&mut self, key: &[u8], value: &Value) -> Option<Value> {
        self.notify_snapshots(key);
        let mut before = None;
        self.table
            .put_shared_with(key, value, |old| before = old.map(Value::new));
        before
    }

    pub fn put(&mut self, key: &[u8], value: &Value) {
        self.notify_snapshots(key);
        self.table.put_shared(key, value);
    }

    /// Puts a row of a group without searching for the group. Returns `None`, without a change, if the group no longer
    /// exists or a long read is in progress.
    pub fn put_in(&mut self, group: GroupId, suffix: &[u8], value: &Value) -> Option<Put> {
        if !self.snapshots.is_empty() {
            return None;
        }
        self.table.put_shared_in(group, suffix, value)
    }

    /// Returns the group of the keys with this prefix, if the table is split at this prefix and the group has rows.
    pub fn group(&self, prefix: &[u8]) -> Option<GroupId> {
        if self.is_head(prefix) {
            self.table.group(prefix)
        } else {
            None
        }
    }

    /// Returns whether every group consists of the keys that share their first `len` bytes.
    pub fn is_split_after(&self, len: usize) -> bool {
        self.table.split() == Split::Bytes(len)
    }

    /// Returns the group of a key and prefetches its first page. `key` may be only the part that names the group.
    pub fn group_of(&self, key: &[u8]) -> Option<GroupId> {
        let group = self.table.group(key)?;
        self.table.prefetch_root(group);
        Some(group)
    }

    /// Starts a lookup of the group with a prefix. For several lookups, call this for each, then `prefetch_sought`,
    /// then `find_sought`, so that their cache misses overlap.
    pub fn seek(&self, prefix: &[u8]) -> GroupLookup {
        self.table.start_lookup(prefix)
    }

    pub fn prefetch_sought(&self, sought: GroupLookup) {
        self.table.prefetch_lookup(sought);
    }

    pub fn find_sought(&self, sought: GroupLookup, prefix: &[u8]) -> Option<GroupId> {
        self.table.finish_lookup(sought, prefix)
    }

    /// Prefetches the first rows of a group whose first page is cached.
    pub fn prefetch_rows(&self, group: GroupId) {
        self.table.prefetch_rows(group);
    }

    /// Returns a cursor over all rows of a group.
    pub fn rows_of(&self, group: GroupId, reverse: bool) -> Option<Cursor<'_>> {
        self.table.rows_of(group, reverse)
    }

    /// Returns a key's group if it may have rows at or after the key. `None` means that it has none.
    pub fn group_from(&self, key: &[u8]) -> Option<GroupId> {
        self.table.group_from(key)
    }

    /// Returns a cursor over a group's rows from suffix `lo` to suffix `hi`, or to its end.
    pub fn cursor_in<'t>(
        &'t self,
        group: GroupId,
        lo: &'t [u8],
        hi: Option<&'t [u8]>,
        reverse: bool,
    ) -> Option<Cursor<'t>> {
        self.table.range_in(group, lo, hi, reverse)
    }

    /// Returns whether rows with this prefix may exist. `false` means that there are none.
    pub fn may_have(&self, prefix: &[u8]) -> bool {
        !self.is_head(prefix) || self.table.group(prefix).is_some()
    }

    /// Returns whether `prefix` is the common prefix of a group.
    pub fn is_head(&self, prefix: &[u8]) -> bool {
        self.head(prefix)
            .is_some_and(|head| head.len() == prefix.len())
    }

    /// Returns the common prefix of a key's group, if the table is split.
    pub fn head<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        match self.table.split() {
            Split::None => None,
            Split::Bytes(len) => key.get(..len),
            Split::Columns(columns) => {
                let is_separator = |(_, b): &(usize, &u8)| matches!(b, b'|' | b':');
                key.iter()
                    .enumerate()
                    .filter(is_separator)
                    .nth(columns)
                    .map(|(at, _)| &key[..=at])
            }
        }
    }

    pub fn prefetch_leaf(&self, group: GroupId) {
        self.table.prefetch_leaf(group);
    }

    pub fn prefetch_end(&self, group: GroupId) {
        self.table.prefetch_end(group);
    }

    pub fn prefetch(&self, group: GroupId) {
        self.table.prefetch(group);
    }

    /// Passes a row's value to `change`, which modifies it in place.
    pub fn edit<R>(&mut self, key: &[u8], change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        self.notify_snapshots(key);
        self.table.edit(key, change)
    }

    pub fn put_bytes(&mut self, key: &[u8], value: &[u8]) {
        self.notify_snapshots(key);
        self.table.put(key, value);
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<Value> {
        self.notify_snapshots(key);
        self.table.remove(key)
    }

    pub fn len(&self) -> u64 {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Passes the rows from `lo` to `hi` to `each`, in either order, as shareable values.
    pub fn scan(
        &self,
        lo: &[u8],
        hi: &[u8],
        reverse: bool,
        each: &mut dyn FnMut(&[u8], &Value) -> Flow,
    ) -> Flow {
        let mut cursor = self.cursor(lo, hi, reverse);
        let mut copied = Vec::new();
        loop {
            let Some((key, value)) = cursor.next() else {
                return Flow::Continue(());
            };
            if value.len() <= COPIED_BYTES_MAX {
                each(key, &Value::new(value))?;
            } else {
                copied.clear();
                copied.extend_from_slice(key);
                each(&copied, &cursor.value())?;
            }
        }
    }

    /// Passes the rows from `lo` to `hi` to `each`, in either order.
    pub fn read(
        &self,
        lo: &[u8],
        hi: &[u8],
        reverse: bool,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Flow,
    ) -> Flow {
        let mut cursor = self.cursor(lo, hi, reverse);
        while let Some((key, value)) = cursor.next() {
            each(key, value)?;
        }
        Flow::Continue(())
    }

    pub fn cursor<'t>(&'t self, lo: &'t [u8], hi: &'t [u8], reverse: bool) -> Cursor<'t> {
        let bounds = (Bound::Included(lo), Bound::Excluded(hi));
        if reverse {
            self.table.range_rev(bounds.0, bounds.1)
        } else {
            self.table.range(bounds.0, bounds.1)
        }
    }

    /// Like [`Rows::cursor`], but faster if the range is in one group. `None` means that there are no rows.
    pub fn cursor_near<'t>(
        &'t self,
        lo: &'t [u8],
        hi: &'t [u8],
        reverse: bool,
    ) -> Option<Cursor<'t>> {
        let Some(head) = self.head(lo) else {
            return Some(self.cursor(lo, hi, reverse));
        };
        let high = hi.strip_prefix(head);
        if high.is_none() && !is_successor(head, hi) {
            return Some(self.cursor(lo, hi, reverse));
        }
        let group = self.table.group(lo)?;
        self.table.range_in(group, &lo[head.len()..], high, reverse)
    }

    pub fn count(&self, lo: &[u8], hi: &[u8]) -> u64 {
        self.table.count(Bound::Included(lo), Bound::Excluded(hi))
    }

    pub fn remove_range(&mut self, lo: &[u8], hi: &[u8]) -> u64 {
        if !self.snapshots.is_empty() {
            let (readers, part) = self.snapshots.readers_in(lo, hi);
            let mut cursor = self.cursor(&part.lo, &part.hi, false);
            while let Some((key, value)) = cursor.next() {
                let of_key: Vec<_> = readers
                    .iter()
                    .filter(|m| m.needs_old_row(key))
                    .cloned()
                    .collect();
                preserve(&of_key, key, Some(value));
            }
        }
        self.table
            .remove_range(Bound::Included(lo), Bound::Excluded(hi), |_, _| {})
    }

    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }
}

/// Stores a key's current value in the snapshots that need it.
fn preserve(readers: &[Rc<ReadSnapshot>], key: &[u8], value: Option<&[u8]>) {
    let Some(first) = readers.first() else {
        return;
    };
    let memory = first.memory();
    let value = value.map(|value| memory.retain_value(value));
    for reader in readers {
        reader.add_old_row(key, value.clone(), readers.len());
    }
    drop(value);
    memory.make_room();
}
