//! The table: one ordered map of byte strings.
//!
//! What an operation touches in memory, when nothing of it is cached:
//!
//! ```text
//!  get        index slot, group record, leaf header with slots, one or two records         4 lines
//!  put at end index slot, group record, leaf header, leaf's free space (the last slot is
//!             before it, the row's record goes behind it)                                  4 lines + the row
//!  put_in     group record, leaf header, leaf's free space: prefetched in three steps      3 lines + the row
//!  range      index slot, group record, leaf header with slots, then rows in a line        3 lines + the rows
//! ```
//!
//! A group of more than one leaf adds its inner page, two levels from some 5,000 rows on. A put copies the row once; a
//! page grows by an eighth, so a row is copied about eight more times while its page fills. A row costs six bytes
//! beside what is left of its key after the group's and the page's prefix, and its value.
//!
//! 1. `rows` is the sum of the rows of all groups.
//! 2. `account` knows the bytes of every allocation but those of shared values, which the ledger knows.

use std::ops::Bound;
use std::sync::Arc;

use crate::cursor::Cursor;
use crate::disk::ValuesOnDisk;
use crate::groups::{GroupId, Groups, Sought};
use crate::lookups;
use crate::page::build::Account;
use crate::page::{Cell, INLINE_MAX};
use crate::spans::Spans;
use crate::split::Split;
use crate::tree::{Place, Tree};
use crate::value::{Ledger, SMALL, Shared, Value};

/// What a put did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The key had no row.
    New,
    /// The key's row has another value now.
    Replaced,
}

/// An ordered map of byte strings, owned by one core. Keys and values may be any bytes, of less than 2 GiB each;
/// callers refuse what is longer than they allow.
pub struct Table {
    split: Split,
    groups: Groups,
    rows: u64,
    account: Account,
    ledger: Arc<Ledger>,
    on_disk: Option<Box<ValuesOnDisk>>,
}

// SAFETY: pages are reached from their table alone, and values are `Send`.
unsafe impl Send for Table {}

impl Table {
    pub fn new(split: Split) -> Table {
        Table::with_seed(split, 0)
    }

    /// A table whose hash of groups is seeded. Where strangers choose keys, draw the seed at random: else they can choose
    /// keys that collide.
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

    /// Keeps long values on disk, of those that are copied into rows from now on; not those that come as handles.
    pub fn keep_on_disk(&mut self, on_disk: ValuesOnDisk) {
        self.on_disk = Some(Box::new(on_disk));
    }

    /// An empty table that keeps its values where this one does.
    pub fn empty(&self, split: Split) -> Table {
        let mut table = Table::new(split);
        table.on_disk.clone_from(&self.on_disk);
        table
    }

    pub fn split(&self) -> Split {
        self.split
    }

    /// The number of rows.
    pub fn len(&self) -> u64 {
        self.rows
    }

    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// What the allocator was asked for, and has not been given back: all rows and what finds them. A shared value is
    /// counted once, by the table that stored it first, until its last handle goes.
    pub fn memory_bytes(&self) -> usize {
        self.account.bytes + self.ledger.bytes() + Ledger::ALLOCATED
    }

    /// The value of the key's row.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.find(key).map(value_at)
    }

    /// As [`Table::get`] of each key, with its number: many keys take a fraction of the time, since look-ups wait for memory together.
    pub fn get_each<'t>(&'t self, keys: &[&[u8]], each: &mut dyn FnMut(usize, Option<&'t [u8]>)) {
        lookups::values_of(&self.groups, self.split, keys, each);
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.find(key).is_some()
    }

    /// The value of the key's row, to keep: a handle if the row holds one, else a copy.
    pub fn value(&self, key: &[u8]) -> Option<Value> {
        self.find(key).map(|place| place.leaf.share(place.index))
    }

    /// As [`Table::value`]; the row holds the same handle from now on, so that further rows cost no bytes for it.
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

    /// Copies the value into the key's row.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Put {
        self.put_with(key, value, |_| ())
    }

    /// As [`Table::put`]; `old` is shown the value that goes, or `None` if the row is new.
    pub fn put_with(&mut self, key: &[u8], value: &[u8], old: impl FnOnce(Option<&[u8]>)) -> Put {
        let cell = self.cell(value);
        self.put_cell(key, cell, |place| old(place.map(value_at)))
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
        let cell = self.shared_cell(value);
        self.put_cell(key, cell, |place| old(place.map(value_at)))
    }

    /// Puts a shared value, and returns the one that goes: a handle if the row held one, else a copy.
    pub fn replace(&mut self, key: &[u8], value: &Value) -> Option<Value> {
        let cell = self.shared_cell(value);
        let mut gone = None;
        self.put_cell(key, cell, |old| {
            gone = old.map(|place| place.leaf.share(place.index))
        });
        gone
    }

    /// Shows the bytes of the key's value where they lie, to be changed. `None` if there is no row, or its value is shared
    /// or of more than 512 bytes.
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

    /// Removes the key's row, and returns its value.
    pub fn remove(&mut self, key: &[u8]) -> Option<Value> {
        let mut value = None;
        self.remove_place(key, |place| value = Some(place.leaf.share(place.index)));
        value
    }

    /// As [`Table::remove`], without a copy: `old` is shown the value, if there was a row. Says whether there was.
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

    /// The rows between two keys, in key order.
    pub fn range<'t>(&'t self, lo: Bound<&'t [u8]>, hi: Bound<&'t [u8]>) -> Cursor<'t> {
        Cursor::new(&self.groups, Spans::new(self.split, lo, hi, false))
    }

    /// The rows between two keys, greatest key first.
    pub fn range_rev<'t>(&'t self, lo: Bound<&'t [u8]>, hi: Bound<&'t [u8]>) -> Cursor<'t> {
        Cursor::new(&self.groups, Spans::new(self.split, lo, hi, true))
    }

    /// How many rows lie between two keys. Leaves, and groups, that lie inside are counted without a look at their rows.
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

    /// Removes the rows between two keys, and says how many there were. `each` is shown every row before it goes.
    /// Groups that lie inside go whole, which is cheap.
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
            let whole = (spans.from(span), spans.to(span)) == (Bound::Unbounded, Bound::Unbounded);
            let mut rows = Cursor::new(&self.groups, spans.only(span));
            while let Some((key, value)) = rows.next() {
                each(key, value);
                if !whole {
                    suffixes.push(&key[prefix_len..]);
                }
            }
            if whole {
                self.rows -= self.groups.get(group).tree().rows();
                self.groups.remove(&mut self.account, group, true);
            }
            suffixes.drain(|suffix| {
                self.remove_at(group, suffix, |_| ());
            });
        }
        before - self.rows
    }

    /// The group that the key's row lies in or would lie in. `None` if that group has no rows, and for a key that
    /// lacks a leading column. `key` may be the group's prefix alone.
    pub fn group(&self, key: &[u8]) -> Option<GroupId> {
        let prefix = &key[..self.split.whole(key)?];
        self.groups.find(prefix).map(|group| self.groups.id(group))
    }

    /// Begins to look for the group whose whole prefix this is, and asks the processor for what that touches first. To look
    /// for several groups at a time call this for all of them, then [`Table::prefetch_sought`] for all, then
    /// [`Table::find_sought`]: each reads what the one before has fetched.
    #[inline]
    pub fn seek(&self, prefix: &[u8]) -> Sought {
        self.groups.seek(prefix)
    }

    /// Asks for the group's record. See [`Table::seek`].
    #[inline]
    pub fn prefetch_sought(&self, sought: Sought) {
        self.groups.prefetch_sought(sought);
    }

    /// As [`Table::group`] of the prefix that was sought. Asks for the group's first page.
    #[inline]
    pub fn find_sought(&self, sought: Sought, prefix: &[u8]) -> Option<GroupId> {
        self.groups.find_sought(sought, prefix)
    }

    /// Asks for the first rows of a group, if they are few and on one page, which [`Table::find_sought`] has asked for.
    #[inline]
    pub fn prefetch_rows(&self, group: GroupId) {
        self.groups.prefetch_rows(group);
    }

    /// All rows of a group, in key order or against it. `None` if the group has lost its last row since the id was made.
    #[inline]
    pub fn rows_of(&self, group: GroupId, reverse: bool) -> Option<Cursor<'_>> {
        let group = self.groups.resolve(group)?;
        Some(Cursor::new(&self.groups, Spans::all_of(group, reverse)))
    }

    /// As [`Table::put`] of the group's prefix followed by `suffix`, without a search for the group. `None`, and
    /// nothing is put, if the group has lost its last row since the id was made: put by the whole key then.
    #[inline]
    pub fn put_in(&mut self, group: GroupId, suffix: &[u8], value: &[u8]) -> Option<Put> {
        let group = self.groups.resolve(group)?;
        let cell = self.cell(value);
        Some(self.put_at(group, suffix, cell, |_| ()))
    }

    /// As [`Table::put_in`], of a value that other rows may hold too.
    #[inline]
    pub fn put_shared_in(&mut self, group: GroupId, suffix: &[u8], value: &Value) -> Option<Put> {
        let group = self.groups.resolve(group)?;
        let cell = self.shared_cell(value);
        Some(self.put_at(group, suffix, cell, |_| ()))
    }

    /// As [`Table::group`], if the group may have rows at the key or after it: `None` is certain. Looks at the group's
    /// record alone.
    #[inline]
    pub fn group_from(&self, key: &[u8]) -> Option<GroupId> {
        let (prefix, suffix) = key.split_at(self.split.whole(key)?);
        self.groups.find_from(prefix, suffix)
    }

    /// The rows of a group from one suffix up to, not including, another, or to its end; in key order or against it. `None`
    /// if there are none, or if the group has lost its last row since the id was made.
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

    /// Asks for the first page of a group, where a range read of it begins.
    #[inline]
    pub fn prefetch_root(&self, group: GroupId) {
        self.groups.prefetch_root(group);
    }

    /// Asks the processor to fetch the group's record, the first thing that a put into it touches. In a loop over groups,
    /// call this some 24 puts ahead, [`Table::prefetch_leaf`] 16 and [`Table::prefetch_end`] 8: each reads what
    /// the one before has fetched.
    #[inline]
    pub fn prefetch(&self, group: GroupId) {
        self.groups.prefetch(group, false);
    }

    /// Asks for the header of the group's last leaf. See [`Table::prefetch`].
    #[inline]
    pub fn prefetch_leaf(&self, group: GroupId) {
        self.groups.prefetch(group, true);
    }

    /// Asks for the end of the group's last leaf, where a row with a greater key goes. See [`Table::prefetch`].
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

/// The first row of a tree in a range that begins there.
fn first_in(tree: &Tree, from: Bound<&[u8]>) -> Option<Place> {
    match from {
        Bound::Unbounded => Some(tree.first()),
        Bound::Included(key) => tree.at_or_after(key, false),
        Bound::Excluded(key) => tree.at_or_after(key, true),
    }
}

/// The first row of a tree after a range that ends there. `None` if there is none.
fn first_beyond(tree: &Tree, to: Bound<&[u8]>) -> Option<Place> {
    match to {
        Bound::Unbounded => None,
        Bound::Included(key) => tree.at_or_after(key, true),
        Bound::Excluded(key) => tree.at_or_after(key, false),
    }
}

/// Suffixes to be removed, one behind the other.
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
