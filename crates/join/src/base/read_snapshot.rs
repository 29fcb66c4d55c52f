//! Read snapshots: the rows of a table as of the start of a long read. A read sees these rows while they change.
//!
//! ```text
//!  snapshot of k|a .. k|z    put k|c     ──► old rows: k|c was absent
//!  read up to k|f            remove k|h  ──► old rows: k|h was "3"   (k|c is before the cursor: nothing is stored)
//!
//!                            current rows, overridden by the old rows ──► the read
//! ```
//!
//! 1. `old_rows` has the former value of each key in the unread part that changed since the start, and nothing else.
//! 2. [`Rows`](crate::base::rows::Rows) notifies the snapshots before every change. Snapshots without a reader are
//!    dropped then.
//! 3. All snapshots together never store more than [`SnapshotMemory`] allows. Beyond that, the largest is lost, and its
//!    read ends with an error. This memory does not count as memory of tables, so that a slow reader does not cause
//!    writes to be rejected.
//! 4. A value that several snapshots need is stored once. Each snapshot is charged an equal share.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::Bound;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::key_range::KeyRange;
use crate::base::rows::Cursor;

/// The former state of a key's row.
#[derive(Debug)]
struct OldRow {
    /// `None`: the row was absent.
    value: Option<Rc<RetainedValue>>,
    /// Bytes charged to the snapshot for it.
    share: usize,
}

type OldRows = BTreeMap<Box<[u8]>, OldRow>;

/// A value stored for snapshots after it left its table.
#[derive(Debug)]
pub struct RetainedValue {
    bytes: Box<[u8]>,
    memory: Rc<SnapshotMemory>,
}

impl Drop for RetainedValue {
    fn drop(&mut self) {
        self.memory.release(self.bytes.len());
    }
}

/// The memory that all snapshots of an engine use, and its limits.
#[derive(Debug)]
pub struct SnapshotMemory {
    bytes: Cell<usize>,
    each_max: Cell<usize>,
    all_max: Cell<usize>,
    snapshots: RefCell<Vec<Weak<ReadSnapshot>>>,
}

impl Default for SnapshotMemory {
    fn default() -> Self {
        Self {
            bytes: Cell::new(0),
            each_max: Cell::new(usize::MAX),
            all_max: Cell::new(usize::MAX),
            snapshots: RefCell::default(),
        }
    }
}

impl SnapshotMemory {
    /// Sets the limits in bytes: for one long read, and for all together.
    pub fn set_limits(&self, each_max: usize, all_max: usize) {
        self.each_max.set(each_max);
        self.all_max.set(all_max);
    }

    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    fn charge(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn release(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// Copies a value that is about to leave its table.
    pub fn retain_value(self: &Rc<Self>, bytes: &[u8]) -> Rc<RetainedValue> {
        self.charge(bytes.len());
        Rc::new(RetainedValue {
            bytes: bytes.into(),
            memory: self.clone(),
        })
    }

    /// Drops the largest snapshots until the memory is within the limit (invariant 3).
    pub fn make_room(&self) {
        while self.bytes.get() > self.all_max.get() {
            let mut snapshots = self.snapshots.borrow_mut();
            snapshots.retain(|snapshot| snapshot.strong_count() > 0);
            let live = snapshots.iter().filter_map(Weak::upgrade);
            let Some(largest) = live.max_by_key(|snapshot| snapshot.bytes()) else {
                return;
            };
            drop(snapshots);
            if largest.bytes() == 0 {
                return;
            }
            largest.mark_lost();
        }
    }
}

#[derive(Debug)]
pub struct ReadSnapshot {
    state: RefCell<SnapshotState>,
    memory: Rc<SnapshotMemory>,
    /// A second counter for the memory that the snapshot uses.
    charged: RefCell<Option<Arc<AtomicUsize>>>,
}

#[derive(Debug)]
pub struct SnapshotState {
    unread: KeyRange,
    old_rows: OldRows,
    bytes: usize,
    /// The snapshot exceeded a limit and was dropped, with all its rows.
    is_lost: bool,
}

/// Memory of an old row, besides its key and value.
const OLD_ROW_BYTES: usize = 96;

impl ReadSnapshot {
    pub fn state(&self) -> Ref<'_, SnapshotState> {
        self.state.borrow()
    }

    pub fn memory(&self) -> &Rc<SnapshotMemory> {
        &self.memory
    }

    pub fn bytes(&self) -> usize {
        self.state().bytes
    }

    pub fn is_lost(&self) -> bool {
        self.state().is_lost
    }

    /// Adds the snapshot's memory to `to`, now and whenever it changes.
    pub fn charge(&self, to: &Arc<AtomicUsize>) {
        to.fetch_add(self.bytes(), Ordering::Relaxed);
        *self.charged.borrow_mut() = Some(to.clone());
    }

    /// Returns whether the snapshot covers a key that is unread and whose former value it does not have.
    pub fn needs_old_row(&self, key: &[u8]) -> bool {
        let state = self.state();
        !state.is_lost && state.unread.contains(key) && !state.old_rows.contains_key(key)
    }

    /// Stores the former value of an unread key that is about to change. `readers` snapshots share the value.
    pub fn add_old_row(&self, key: &[u8], value: Option<Rc<RetainedValue>>, readers: usize) {
        let own = key.len() + OLD_ROW_BYTES;
        let part = value
            .as_ref()
            .map_or(0, |v| v.bytes.len().div_ceil(readers));
        self.memory.charge(own);
        let mut state = self.state.borrow_mut();
        let share = own + part;
        state.old_rows.insert(key.into(), OldRow { value, share });
        state.bytes += share;
        let is_too_much = state.bytes > self.memory.each_max.get();
        drop(state);
        if let Some(charged) = &*self.charged.borrow() {
            charged.fetch_add(share, Ordering::Relaxed);
        }
        if is_too_much {
            self.mark_lost();
        }
    }

    fn mark_lost(&self) {
        self.state.borrow_mut().is_lost = true;
        self.drop_outside(&KeyRange::new(b"", b""));
    }

    /// Drops the old rows whose keys are not in `range`.
    fn drop_outside(&self, range: &KeyRange) {
        let state = &mut *self.state.borrow_mut();
        let mut freed_bytes = 0;
        let mut release = |(key, row): (Box<[u8]>, OldRow)| {
            self.memory.release(key.len() + OLD_ROW_BYTES);
            freed_bytes += row.share;
        };
        while let Some(first) = state.old_rows.first_entry().filter(|e| *e.key() < range.lo) {
            release(first.remove_entry());
        }
        while let Some(last) = state.old_rows.last_entry().filter(|e| *e.key() >= range.hi) {
            release(last.remove_entry());
        }
        state.bytes -= freed_bytes;
        if let Some(charged) = &*self.charged.borrow() {
            charged.fetch_sub(freed_bytes, Ordering::Relaxed);
        }
    }

    /// Reduces the unread part.
    pub fn shrink_to(&self, unread: &KeyRange) {
        self.drop_outside(unread);
        self.state.borrow_mut().unread = unread.clone();
    }
}

impl Drop for ReadSnapshot {
    fn drop(&mut self) {
        self.drop_outside(&KeyRange::new(b"", b""));
    }
}

/// The snapshots of one table's rows.
#[derive(Debug, Default)]
pub struct ReadSnapshots(Vec<Weak<ReadSnapshot>>);

impl ReadSnapshots {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has_live(&self) -> bool {
        self.0.iter().any(|snapshot| snapshot.strong_count() > 0)
    }

    /// Returns whether any snapshot has unread keys in `range`.
    pub fn has_unread_in(&self, range: &KeyRange) -> bool {
        self.0.iter().filter_map(Weak::upgrade).any(|snapshot| {
            let state = snapshot.state();
            !state.is_lost && state.unread.overlaps(range)
        })
    }

    /// Creates a snapshot of the current rows, for a read of `unread`.
    pub fn add(&mut self, unread: KeyRange, memory: &Rc<SnapshotMemory>) -> Rc<ReadSnapshot> {
        let snapshot = Rc::new(ReadSnapshot {
            state: RefCell::new(SnapshotState {
                unread,
                old_rows: OldRows::default(),
                bytes: 0,
                is_lost: false,
            }),
            memory: memory.clone(),
            charged: RefCell::default(),
        });
        self.0.push(Rc::downgrade(&snapshot));
        let mut all = memory.snapshots.borrow_mut();
        if all.len() == all.capacity() {
            all.retain(|snapshot| snapshot.strong_count() > 0);
        }
        all.push(Rc::downgrade(&snapshot));
        drop(all);
        snapshot
    }

    /// Returns the snapshots that must store the former value of `key`, which is about to change.
    pub fn readers_of(&mut self, key: &[u8]) -> Vec<Rc<ReadSnapshot>> {
        let mut readers = self.live_snapshots();
        readers.retain(|snapshot| snapshot.needs_old_row(key));
        readers
    }

    /// Returns the snapshots with unread keys in `lo..hi`, which is about to be removed, and a range that covers those
    /// keys.
    pub fn readers_in(&mut self, lo: &[u8], hi: &[u8]) -> (Vec<Rc<ReadSnapshot>>, KeyRange) {
        let mut all: Option<KeyRange> = None;
        let mut readers = self.live_snapshots();
        readers.retain(|snapshot| {
            let state = snapshot.state();
            let unread = &state.unread;
            let part = KeyRange::new(lo.max(&unread.lo), hi.min(&unread.hi));
            if state.is_lost || part.is_empty() {
                return false;
            }
            all = Some(match all.take() {
                None => part,
                Some(all) => KeyRange::new(&all.lo.min(part.lo), &all.hi.max(part.hi)),
            });
            true
        });
        (readers, all.unwrap_or_else(|| KeyRange::new(b"", b"")))
    }

    fn live_snapshots(&mut self) -> Vec<Rc<ReadSnapshot>> {
        self.0.retain(|snapshot| snapshot.strong_count() > 0);
        self.0.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Merges the current rows with the old ones, as a cursor over the rows of the snapshot.
pub struct SnapshotCursor<'v> {
    /// `None` if the table was dropped. All its rows were removed, and stored as old rows, before.
    current_rows: Option<Cursor<'v>>,
    old_rows: btree_map::Range<'v, Box<[u8]>, OldRow>,
    next_old: Option<(&'v [u8], Option<&'v [u8]>)>,
    /// True if the current row is the old one.
    is_old: bool,
    reverse: bool,
}

impl<'v> SnapshotCursor<'v> {
    /// `current_rows` is a cursor over the current rows of the unread part.
    pub fn new(
        mut current_rows: Option<Cursor<'v>>,
        state: &'v SnapshotState,
        reverse: bool,
    ) -> Self {
        if let Some(cursor) = &mut current_rows {
            cursor.next();
        }
        let mut cursor = SnapshotCursor {
            current_rows,
            old_rows: state
                .old_rows
                .range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>((Bound::Unbounded, Bound::Unbounded)),
            next_old: None,
            is_old: false,
            reverse,
        };
        cursor.advance_old();
        cursor.settle();
        cursor
    }

    fn advance_old(&mut self) {
        let next = if self.reverse {
            self.old_rows.next_back()
        } else {
            self.old_rows.next()
        };
        self.next_old = next.map(|(key, row)| {
            let value = row.value.as_ref().map(|value| &*value.bytes);
            (&**key, value)
        });
    }

    fn current_row(&self) -> Option<(&[u8], &[u8])> {
        self.current_rows.as_ref()?.current()
    }

    fn advance_current(&mut self) {
        if let Some(cursor) = &mut self.current_rows {
            cursor.next();
        }
    }

    /// Chooses the next row of the merge.
    fn settle(&mut self) {
        self.is_old = false;
        while let Some((key, value)) = self.next_old {
            let order = self.current_row().map(|(current, _)| {
                if self.reverse {
                    key.cmp(current)
                } else {
                    current.cmp(key)
                }
            });
            if order.is_some_and(|order| order.is_lt()) {
                return;
            }
            if order.is_some_and(|order| order.is_eq()) {
                self.advance_current();
            }
            if value.is_some() {
                self.is_old = true;
                return;
            }
            self.advance_old();
        }
    }

    pub fn current(&self) -> Option<(&[u8], &[u8])> {
        match (self.is_old, self.next_old) {
            (true, Some((key, Some(value)))) => Some((key, value)),
            _ => self.current_row(),
        }
    }

    pub fn advance(&mut self) {
        if self.next_old.is_none() {
            return self.advance_current();
        }
        if self.is_old {
            self.advance_old()
        } else {
            self.advance_current()
        }
        self.settle();
    }
}
