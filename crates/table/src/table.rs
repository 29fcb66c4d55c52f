//! The table: one ordered map of byte strings.
//!
//! Cache lines that an operation touches when nothing is cached:
//!
//! ```text
//!  get        index slot, group record, leaf header with slots, one or two records         4 lines
//!  put at end index slot, group record, leaf header, leaf's free space (after the
//!             last slot and before the records)                                            4 lines + the row
//!  put_in     group record, leaf header, leaf's free space: prefetched in three steps      3 lines + the row
//!  range      index slot, group record, leaf header with slots, then sequential rows       3 lines + the rows
//! ```
//!
//! A group of more than one leaf adds its inner page, and two levels from about 5,000 rows on. A put copies the row
//! once. A page grows by an eighth, so a row is copied about eight more times while its page fills. A row costs six
//! bytes, its value, and the part of its key after the prefixes of the group and the page.
//!
//! 1. `rows` is the sum of the rows of all groups.
//! 2. `account` has the bytes of every allocation except shared values, which the ledger has.

use std::ops::Bound;
use std::sync::Arc;

use crate::cursor::Cursor;
use crate::disk::ValuesOnDisk;
use crate::groups::{GroupId, GroupLookup, Groups};
use crate::lookups;
use crate::page::build::Account;
use crate::page::{Cell, INLINE_MAX};
use crate::spans::Spans;
use crate::split::Split;
use crate::tree::{Place, Tree};
use crate::value::{Ledger, SMALL, Shared, Value};

/// The effect of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The key had no row.
    New,
    /// The value of the key's row was replaced.
    Replaced,
}

/// An ordered map of byte strings, owned by one core. Keys and values are arbitrary bytes of less than 2 GiB each;
/// callers enforce lower limits.
pub struct Table {
    split: Split,
    groups: Groups,
    rows: u64,
    account: Account,
    ledger: Arc<Ledger>,
    on_disk: Option<Box<ValuesOnDisk>>,
}

// SAFETY: pages are reachable only from their table, and values are `Send`.
unsafe impl Send for Table {}

impl Table {
    pub fn new(split: Split) -> Table {
        Table::with_seed(split, 0)
    }

    /// Creates a table with a seed for the hash of its groups. If untrusted clients choose keys, use a random seed:
    /// otherwise they can choose keys that collide.
    pub fn with_seed(split: Split, seed: u64) -> Table {
        Table {
            split,
            groups: Groups::new(seed),
            rows: 0,
            account: Account::default(),
            ledger: Arc::default(),
            on_disk: None,
        }
    }

    /// Stores long values on disk from now on: those that are copied into rows, not those that are put as handles.
    pub fn keep_on_disk(&mut self, on_disk: ValuesOnDisk) {
        self.on_disk = Some(Box::new(on_disk));
    }

    /// Creates an empty table that stores its values like this one.
    pub fn empty(&self, split: Split) -> Table {
        let mut table = Table::new(split);
        table.on_disk.clone_from(&self.on_disk);
        table
    }

    pub fn split(&self) -> Split {
        self.split
    }

    /// Returns the number of rows.
    pub fn len(&self) -> u64 {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the allocated bytes of all rows and of the structures that locate them. A shared value is counted
    /// once, by the table that stored it first, until its last handle is dropped.
    pub fn memory_bytes(&self) -> usize {
        self.account.bytes + self.ledger.bytes() + Ledger::ALLOCATED
    }

    /// Returns the value of the key's row.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.find(key).map(value_at)
    }

    /// Looks up all keys and calls `each` with each key's number and value, as [`Table::get`] returns it. This takes
    /// a fraction of the time of single lookups, because their cache misses overlap.
    pub fn get_each<'t>(&'t self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&'t [u8]>)) {
        lookups::lookup_values(&self.groups, self.split, keys, each);
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// Returns the value of the key's row: a handle if the row holds one, else a copy.
    pub fn value(&self, key: &[u8]) -> Option<Value> {
        self.find(key).map(|place| place.leaf.share(place.index))
    }

    /// Like [`Table::value`], but also stores the handle in the row, so that further rows with this value need no
    /// memory for it.
    pub fn share(&mut self, key: &[u8]) -> Option<Value> {
        let value = self.value(key)?;
        if value.len() > SMALL {
            self.put_shared(key, &value);
        }
        Some(value)
    }

    #[inline]
    fn find(&self, key: &[u8]) -> Option<Place> {
        let (prefix, suffix) = key.split_at(self.split.group_len(key));
        self.groups
            .get(self.groups.find(prefix)?)
            .tree()
            .get(suffix)
    }

    /// Puts a row with a copy of the value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Put {
        self.put_with(key, value, |_| ())
    }

    /// Like [`Table::put`]; calls `old` with the replaced value, or with `None` if the row is new.
    pub fn put_with(&mut self, key: &[u8], value: &[u8], old: impl FnOnce(Option<&[u8]>)) -> Put {
        let cell = self.cell(value);
        self.put_cell(key, cell, |place| old(place.map(value_at)))
    }

    /// Puts a value that other rows of this or other tables may share: its bytes are stored once.
    pub fn put_shared(&mut self, key: &[u8], value: &Value) -> Put {
        self.put_shared_with(key, value, |_| ())
    }

    /// Like [`Table::put_shared`]; calls `old` with the replaced value, or with `None` if the row is new.
    pub fn put_shared_with(
        &mut self,
        key: &[u8],
        value: &Value,
        old: impl FnOnce(Option<&[u8]>),
    ) -> Put {
        let cell = self.shared_cell(value);
        self.put_cell(key, cell, |place| old(place.map(value_at)))
    }

    /// Puts a shared value and returns the replaced one: a handle if the row held one, else a copy.
    pub fn replace(&mut self, key: &[u8], value: &Value) -> Option<Value> {
        let cell = self.shared_cell(value);
        let mut gone = None;
        self.put_cell(key, cell, |old| {
            gone = old.map(|place| place.leaf.share(place.index))
        });
        gone
    }

    /// Calls `change` with the bytes of the key's value, to modify them in place. `None` if there is no row, or if
    /// its value is shared or longer than 512 bytes.
    pub fn edit<R>(&mut self, key: &[u8], change: impl FnOnce(&mut [u8]) -> R) -> Option<R> {
        let mut place = self.find(key)?;
        place.leaf.value_mut(place.index).map(change)
    }

    #[inline]
    fn put_cell(&mut self, key: &[u8], cell: Cell<'_>, old: impl FnOnce(Option<Place>)) -> Put {
        let (prefix, suffix) = key.split_at(self.split.group_len(key));
        match self.groups.find(prefix) {
            Some(group) => self.put_at(group, suffix, cell, old),
            None => {
                old(None);
                self.groups.insert(&mut self.account, prefix, suffix, cell);
                self.rows += 1;
                Put::New
            }
        }
    }

    #[inline]
    fn put_at(
        &mut self,
        group: u32,
        suffix: &[u8],
        cell: Cell<'_>,
        old: impl FnOnce(Option<Place>),
    ) -> Put {
        if self
            .groups
            .get_mut(group)
            .tree_mut()
            .put(&mut self.account, suffix, cell, old)
        {
            self.rows += 1;
            Put::New
        } else {
            Put::Replaced
        }
    }

    #[inline]
    fn cell<'v>(&self, value: &'v [u8]) -> Cell<'v> {
        let on_disk = self.on_disk.as_ref().and_then(|it| it.shared(value));
        if on_disk.is_none() && value.len() <= INLINE_MAX {
            return Cell::Inline(value);
        }
        let shared = on_disk.unwrap_or_else(|| Shared::new(value));
        shared.charge(&self.ledger);
        Cell::Out(shared.into_address())
    }

    #[inline]
    fn shared_cell<'v>(&self, value: &'v Value) -> Cell<'v> {
        match value.shared() {
            None => Cell::Inline(value.as_bytes()),
            Some(shared) => {
                shared.charge(&self.ledger);
                Cell::Out(shared.clone().into_address())
            }
        }
    }

    /// Removes the key's row and returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Option<Value> {
        let mut value = None;
        self.remove_place(key, |place| value = Some(place.leaf.share(place.index)));
        value
    }

    /// Like [`Table::remove`], without a copy: calls `old` with the value if there is a row. Returns whether there
    /// was one.
    pub fn remove_with(&mut self, key: &[u8], old: impl FnOnce(&[u8])) -> bool {
        self.remove_place(key, |place| old(value_at(place)))
    }

    fn remove_place(&mut self, key: &[u8], old: impl FnOnce(Place)) -> bool {
        let (prefix, suffix) = key.split_at(self.split.group_len(key));
        match self.groups.find(prefix) {
            Some(group) => self.remove_at(group, suffix, old),
            None => false,
        }
    }

    fn remove_at(&mut self, group: u32, suffix: &[u8], old: impl FnOnce(Place)) -> bool {
        let Some(left) =
            self.groups
                .get_mut(group)
                .tree_mut()
                .remove(&mut self.account, suffix, old)
        else {
            return false;
        };
        self.rows -= 1;
        if !left {
            self.groups.remove(&mut self.account, group, false);
        }
        true
    }

    /// Removes every row.
    pub fn clear(&mut self) {
        self.groups.clear(&mut self.account);
        self.rows = 0;
    }

    /// Returns the rows between two keys, in ascending key order.
    pub fn range<'t>(&'t self, lo: Bound<&'t [u8]>, hi: Bound<&'t [u8]>) -> Cursor<'t> {
        Cursor::new(&self.groups, Spans::new(self.split, lo, hi, false))
    }

    /// Returns the rows between two keys, in descending key order.
    pub fn range_rev<'t>(&'t self, lo: Bound<&'t [u8]>, hi: Bound<&'t [u8]>) -> Cursor<'t> {
        Cursor::new(&self.groups, Spans::new(self.split, lo, hi, true))
    }

    /// Counts the rows between two keys. Leaves and groups that lie completely inside are counted without reading
    /// their rows.
    pub fn count(&self, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> u64 {
        let mut spans = Spans::new(self.split, lo, hi, false);
        let mut count = 0;
        while let Some(span) = spans.next(&self.groups) {
            let tree = self.groups.get(span.group).tree();
            count += match (spans.from(span), spans.to(span)) {
                (Bound::Unbounded, Bound::Unbounded) => tree.rows(),
                (from, to) => match first_in(tree, from) {
                    Some(from) => tree.count(from, first_beyond(tree, to)),
                    None => 0,
                },
            };
        }
        count
    }

    /// Removes the rows between two keys and returns their number. `each` is called with every row before its
    /// removal. Groups that lie completely inside are removed as a unit, which is cheap.
    pub fn remove_range(
        &mut self,
        lo: Bound<&[u8]>,
        hi: Bound<&[u8]>,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> u64 {
        let mut spans = Spans::new(self.split, lo, hi, false);
        let mut touched = Vec::new();
        while let Some(span) = spans.next(&self.groups) {
            touched.push(span);
        }
        let before = self.rows;
        let mut suffixes = Suffixes::default();
        for span in touched {
            let group = span.group;
            let prefix_len = self.groups.get(group).prefix().len();
            let is_covered =
                (spans.from(span), spans.to(span)) == (Bound::Unbounded, Bound::Unbounded);
            let mut rows = Cursor::new(&self.groups, spans.only(span));
            while let Some((key, value)) = rows.next() {
                each(key, value);
                if !is_covered {
                    suffixes.push(&key[prefix_len..]);
                }
            }
            if is_covered {
                self.rows -= self.groups.get(group).tree().rows();
                self.groups.remove(&mut self.account, group, true);
            }
            suffixes.drain(|suffix| {
                self.remove_at(group, suffix, |_| ());
            });
        }
        before - self.rows
    }

    /// Returns the group of the key's row. `None` if the group has no rows, or if the key lacks a leading column.
    /// `key` may be the group's prefix alone.
    pub fn group(&self, key: &[u8]) -> Option<GroupId> {
        let prefix = &key[..self.split.full_group_len(key)?];
        self.groups.find(prefix).map(|group| self.groups.id(group))
    }

    /// Starts a lookup of the group with this prefix and prefetches its index slot. To look up several groups, call
    /// this for all of them, then [`Table::prefetch_lookup`] for all, then [`Table::finish_lookup`]: each step reads
    /// what the previous one prefetched.
    #[inline]
    pub fn start_lookup(&self, prefix: &[u8]) -> GroupLookup {
        self.groups.start_lookup(prefix)
    }

    /// Prefetches the group's record. See [`Table::seek`].
    #[inline]
    pub fn prefetch_lookup(&self, sought: GroupLookup) {
        self.groups.prefetch_lookup(sought);
    }

    /// Like [`Table::group`] for the prefix of the lookup. Prefetches the group's root page.
    #[inline]
    pub fn finish_lookup(&self, sought: GroupLookup, prefix: &[u8]) -> Option<GroupId> {
        self.groups.finish_lookup(sought, prefix)
    }

    /// Prefetches the first rows of a group if they are on one page, which [`Table::finish_lookup`] has prefetched.
    #[inline]
    pub fn prefetch_rows(&self, group: GroupId) {
        self.groups.prefetch_rows(group);
    }

    /// Returns all rows of a group, in ascending or descending key order. `None` if the group's last row has been
    /// removed since the id was created.
    #[inline]
    pub fn rows_of(&self, group: GroupId, reverse: bool) -> Option<Cursor<'_>> {
        let group = self.groups.resolve(group)?;
        Some(Cursor::new(&self.groups, Spans::all_of(group, reverse)))
    }

    /// Like [`Table::put`] of the group's prefix followed by `suffix`, without a search for the group. Returns `None`
    /// and puts nothing if the group's last row has been removed since the id was created. The caller then puts by
    /// the complete key.
    #[inline]
    pub fn put_in(&mut self, group: GroupId, suffix: &[u8], value: &[u8]) -> Option<Put> {
        let group = self.groups.resolve(group)?;
        let cell = self.cell(value);
        Some(self.put_at(group, suffix, cell, |_| ()))
    }

    /// Like [`Table::put_in`], for a value that other rows may share.
    #[inline]
    pub fn put_shared_in(&mut self, group: GroupId, suffix: &[u8], value: &Value) -> Option<Put> {
        let group = self.groups.resolve(group)?;
        let cell = self.shared_cell(value);
        Some(self.put_at(group, suffix, cell, |_| ()))
    }

    /// Like [`Table::group`], but also returns `None` if the group certainly has no rows at the key or after it.
    /// Reads only the group's record.
    #[inline]
    pub fn group_from(&self, key: &[u8]) -> Option<GroupId> {
        let (prefix, suffix) = key.split_at(self.split.full_group_len(key)?);
        self.groups.find_from(prefix, suffix)
    }

    /// Returns the rows of a group from one suffix up to, but not including, another, or to the group's end. `None`
    /// if there are none, or if the group's last row has been removed since the id was created.
    #[inline]
    pub fn range_in<'t>(
        &'t self,
        group: GroupId,
        lo: &'t [u8],
        hi: Option<&'t [u8]>,
        reverse: bool,
    ) -> Option<Cursor<'t>> {
        let group = self.groups.resolve(group)?;
        let tree = self.groups.get(group).tree();
        let first = tree.at_or_after(lo, false)?;
        if hi.is_some_and(|hi| !first.leaf.is_less(first.index, hi)) {
            return None;
        }
        let spans = Spans::within(group, lo, hi, reverse);
        Some(if reverse {
            Cursor::new(&self.groups, spans)
        } else {
            Cursor::at(&self.groups, spans, first)
        })
    }

    /// Prefetches the root page of a group, where a range read starts.
    #[inline]
    pub fn prefetch_root(&self, group: GroupId) {
        self.groups.prefetch_root(group);
    }

    /// Prefetches the group's record, the first memory that a put into it touches. In a loop over groups, call this
    /// about 24 puts ahead, [`Table::prefetch_leaf`] 16 and [`Table::prefetch_end`] 8: each reads what the previous
    /// one prefetched.
    #[inline]
    pub fn prefetch(&self, group: GroupId) {
        self.groups.prefetch(group, false);
    }

    /// Prefetches the header of the group's last leaf. See [`Table::prefetch`].
    #[inline]
    pub fn prefetch_leaf(&self, group: GroupId) {
        self.groups.prefetch(group, true);
    }

    /// Prefetches the end of the group's last leaf, where a row with a greater key is written. See
    /// [`Table::prefetch`].
    #[inline]
    pub fn prefetch_end(&self, group: GroupId) {
        self.groups.prefetch_tail(group);
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.clear();
    }
}

#[inline]
fn value_at<'t>(place: Place) -> &'t [u8] {
    place.leaf.value(place.index)
}

/// Returns the first row of a tree at or after a lower bound.
fn first_in(tree: &Tree, from: Bound<&[u8]>) -> Option<Place> {
    match from {
        Bound::Unbounded => Some(tree.first()),
        Bound::Included(key) => tree.at_or_after(key, false),
        Bound::Excluded(key) => tree.at_or_after(key, true),
    }
}

/// Returns the first row of a tree after an upper bound. `None` if there is none.
fn first_beyond(tree: &Tree, to: Bound<&[u8]>) -> Option<Place> {
    match to {
        Bound::Unbounded => None,
        Bound::Included(key) => tree.at_or_after(key, true),
        Bound::Excluded(key) => tree.at_or_after(key, false),
    }
}

/// Suffixes to remove, concatenated.
#[derive(Default)]
struct Suffixes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Suffixes {
    fn push(&mut self, suffix: &[u8]) {
        self.bytes.extend_from_slice(suffix);
        self.ends.push(self.bytes.len());
    }

    fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        let mut start = 0;
        for &end in &self.ends {
            each(&self.bytes[start..end]);
            start = end;
        }
        self.bytes.clear();
        self.ends.clear();
    }
}
