//! Moments: snapshots of a table's rows for long reads. A read sees the rows as they were when it began, while they
//! change.
//!
//! ```text
//!  moment of k|a .. k|z      put k|c     ──► before: k|c was absent
//!  read up to k|f            remove k|h  ──► before: k|h was "3"     (k|c is behind the cursor: nothing is kept)
//!
//!                            current rows, overridden by `before` ──► the read
//! ```
//!
//! 1. `before` has the former value of each key in the unread part that changed since the moment, and nothing else.
//! 2. [`Rows`](crate::base::rows::Rows) notifies the moments before every change. Moments without a reader are dropped
//!    then.
//! 3. All moments together never keep more than [`Held`] allows. Beyond that, the largest is lost, and its read ends
//!    with an error. This memory does not count as memory of tables, so that a slow reader does not cause writes to be
//!    rejected.
//! 4. A value that several moments need is stored once. Each moment is charged an equal share.

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
struct Was {
    /// `None`: the row was absent.
    value: Option<Rc<HeldValue>>,
    /// Bytes charged to the moment for it.
    share: usize,
}

type Before = BTreeMap<Box<[u8]>, Was>;

/// A value kept for moments after it left its table.
#[derive(Debug)]
pub struct HeldValue {
    bytes: Box<[u8]>,
    held: Rc<Held>,
}

impl Drop for HeldValue {
    fn drop(&mut self) {
        self.held.give(self.bytes.len());
    }
}

/// The memory that all moments of an engine use, and its limits.
#[derive(Debug)]
pub struct Held {
    bytes: Cell<usize>,
    each_max: Cell<usize>,
    all_max: Cell<usize>,
    moments: RefCell<Vec<Weak<Moment>>>,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            bytes: Cell::new(0),
            each_max: Cell::new(usize::MAX),
            all_max: Cell::new(usize::MAX),
            moments: RefCell::default(),
        }
    }
}

impl Held {
    /// Sets the limits in bytes: for one long read, and for all together.
    pub fn set_limits(&self, each_max: usize, all_max: usize) {
        self.each_max.set(each_max);
        self.all_max.set(all_max);
    }

    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    fn take(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
    }

    fn give(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// Copies a value that is about to leave its table.
    pub fn value(self: &Rc<Self>, bytes: &[u8]) -> Rc<HeldValue> {
        self.take(bytes.len());
        Rc::new(HeldValue {
            bytes: bytes.into(),
            held: self.clone(),
        })
    }

    /// Drops the largest moments until the memory is within the limit (invariant 3).
    pub fn make_room(&self) {
        while self.bytes.get() > self.all_max.get() {
            let mut moments = self.moments.borrow_mut();
            moments.retain(|moment| moment.strong_count() > 0);
            let live = moments.iter().filter_map(Weak::upgrade);
            let Some(largest) = live.max_by_key(|moment| moment.bytes()) else {
                return;
            };
            drop(moments);
            if largest.bytes() == 0 {
                return;
            }
            largest.lose();
        }
    }
}

#[derive(Debug)]
pub struct Moment {
    kept: RefCell<Kept>,
    held: Rc<Held>,
    /// A second counter for the memory that the moment uses.
    charged: RefCell<Option<Arc<AtomicUsize>>>,
}

#[derive(Debug)]
pub struct Kept {
    unread: KeyRange,
    before: Before,
    bytes: usize,
    /// The moment exceeded a limit and was dropped, with all its rows.
    is_lost: bool,
}

/// Memory of a kept row, besides its key and value.
const KEPT_BYTES: usize = 96;

impl Moment {
    pub fn kept(&self) -> Ref<'_, Kept> {
        self.kept.borrow()
    }

    pub fn held(&self) -> &Rc<Held> {
        &self.held
    }

    pub fn bytes(&self) -> usize {
        self.kept().bytes
    }

    pub fn is_lost(&self) -> bool {
        self.kept().is_lost
    }

    /// Adds the moment's memory to `to`, now and whenever it changes.
    pub fn charge(&self, to: &Arc<AtomicUsize>) {
        to.fetch_add(self.bytes(), Ordering::Relaxed);
        *self.charged.borrow_mut() = Some(to.clone());
    }

    /// Returns whether the moment covers a key that is unread and whose former value it does not have.
    pub fn reads(&self, key: &[u8]) -> bool {
        let kept = self.kept();
        !kept.is_lost && kept.unread.contains(key) && !kept.before.contains_key(key)
    }

    /// Keeps the former value of an unread key that is about to change. `readers` moments share the value.
    pub fn keep(&self, key: &[u8], value: Option<Rc<HeldValue>>, readers: usize) {
        let own = key.len() + KEPT_BYTES;
        let part = value
            .as_ref()
            .map_or(0, |v| v.bytes.len().div_ceil(readers));
        self.held.take(own);
        let mut kept = self.kept.borrow_mut();
        let share = own + part;
        kept.before.insert(key.into(), Was { value, share });
        kept.bytes += share;
        let is_too_much = kept.bytes > self.held.each_max.get();
        drop(kept);
        if let Some(charged) = &*self.charged.borrow() {
            charged.fetch_add(share, Ordering::Relaxed);
        }
        if is_too_much {
            self.lose();
        }
    }

    fn lose(&self) {
        self.kept.borrow_mut().is_lost = true;
        self.forget_outside(&KeyRange::new(b"", b""));
    }

    /// Drops the kept rows whose keys are not in `range`.
    fn forget_outside(&self, range: &KeyRange) {
        let kept = &mut *self.kept.borrow_mut();
        let mut gone = 0;
        let mut forget = |(key, was): (Box<[u8]>, Was)| {
            self.held.give(key.len() + KEPT_BYTES);
            gone += was.share;
        };
        while let Some(first) = kept.before.first_entry().filter(|e| *e.key() < range.lo) {
            forget(first.remove_entry());
        }
        while let Some(last) = kept.before.last_entry().filter(|e| *e.key() >= range.hi) {
            forget(last.remove_entry());
        }
        kept.bytes -= gone;
        if let Some(charged) = &*self.charged.borrow() {
            charged.fetch_sub(gone, Ordering::Relaxed);
        }
    }

    /// Reduces the unread part.
    pub fn shrink_to(&self, unread: &KeyRange) {
        self.forget_outside(unread);
        self.kept.borrow_mut().unread = unread.clone();
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        self.forget_outside(&KeyRange::new(b"", b""));
    }
}

/// The moments of one table's rows.
#[derive(Debug, Default)]
pub struct Moments(Vec<Weak<Moment>>);

impl Moments {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn is_held(&self) -> bool {
        self.0.iter().any(|moment| moment.strong_count() > 0)
    }

    /// Returns whether any moment has unread keys in `range`.
    pub fn are_reading(&self, range: &KeyRange) -> bool {
        self.0.iter().filter_map(Weak::upgrade).any(|moment| {
            let kept = moment.kept();
            !kept.is_lost && kept.unread.overlaps(&range.lo, &range.hi)
        })
    }

    /// Creates a moment of the current rows, for a read of `unread`.
    pub fn add(&mut self, unread: KeyRange, held: &Rc<Held>) -> Rc<Moment> {
        let moment = Rc::new(Moment {
            kept: RefCell::new(Kept {
                unread,
                before: Before::default(),
                bytes: 0,
                is_lost: false,
            }),
            held: held.clone(),
            charged: RefCell::default(),
        });
        self.0.push(Rc::downgrade(&moment));
        let mut all = held.moments.borrow_mut();
        if all.len() == all.capacity() {
            all.retain(|moment| moment.strong_count() > 0);
        }
        all.push(Rc::downgrade(&moment));
        drop(all);
        moment
    }

    /// Returns the moments that must keep the former value of `key`, which is about to change.
    pub fn readers_of(&mut self, key: &[u8]) -> Vec<Rc<Moment>> {
        let mut readers = self.live();
        readers.retain(|moment| moment.reads(key));
        readers
    }

    /// Returns the moments with unread keys in `lo..hi`, which is about to be removed, and a range that covers those
    /// keys.
    pub fn readers_in(&mut self, lo: &[u8], hi: &[u8]) -> (Vec<Rc<Moment>>, KeyRange) {
        let mut all: Option<KeyRange> = None;
        let mut readers = self.live();
        readers.retain(|moment| {
            let kept = moment.kept();
            let unread = &kept.unread;
            let part = KeyRange::new(lo.max(&unread.lo), hi.min(&unread.hi));
            if kept.is_lost || part.is_empty() {
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

    fn live(&mut self) -> Vec<Rc<Moment>> {
        self.0.retain(|moment| moment.strong_count() > 0);
        self.0.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Merges the current rows with the kept ones, as a cursor over the rows at the moment.
pub struct Then<'v> {
    /// `None` if the table was dropped. All its rows were removed, and kept, before.
    now: Option<Cursor<'v>>,
    before: btree_map::Range<'v, Box<[u8]>, Was>,
    kept: Option<(&'v [u8], Option<&'v [u8]>)>,
    /// True if the current row is the kept one.
    is_kept: bool,
    reverse: bool,
}

impl<'v> Then<'v> {
    /// `now` is a cursor over the current rows of the unread part.
    pub fn new(mut now: Option<Cursor<'v>>, kept: &'v Kept, reverse: bool) -> Self {
        if let Some(now) = &mut now {
            now.next();
        }
        let mut then = Then {
            now,
            before: kept
                .before
                .range::<[u8], (Bound<&[u8]>, Bound<&[u8]>)>((Bound::Unbounded, Bound::Unbounded)),
            kept: None,
            is_kept: false,
            reverse,
        };
        then.next_kept();
        then.settle();
        then
    }

    fn next_kept(&mut self) {
        let next = if self.reverse {
            self.before.next_back()
        } else {
            self.before.next()
        };
        self.kept = next.map(|(key, was)| {
            let value = was.value.as_ref().map(|value| &*value.bytes);
            (&**key, value)
        });
    }

    fn now(&self) -> Option<(&[u8], &[u8])> {
        self.now.as_ref()?.current()
    }

    fn next_now(&mut self) {
        if let Some(now) = &mut self.now {
            now.next();
        }
    }

    /// Chooses the next row of the merge.
    fn settle(&mut self) {
        self.is_kept = false;
        while let Some((key, value)) = self.kept {
            let order = self.now().map(|(now, _)| {
                if self.reverse {
                    key.cmp(now)
                } else {
                    now.cmp(key)
                }
            });
            if order.is_some_and(|order| order.is_lt()) {
                return;
            }
            if order.is_some_and(|order| order.is_eq()) {
                self.next_now();
            }
            if value.is_some() {
                self.is_kept = true;
                return;
            }
            self.next_kept();
        }
    }

    pub fn current(&self) -> Option<(&[u8], &[u8])> {
        match (self.is_kept, self.kept) {
            (true, Some((key, Some(value)))) => Some((key, value)),
            _ => self.now(),
        }
    }

    pub fn advance(&mut self) {
        if self.kept.is_none() {
            return self.next_now();
        }
        if self.is_kept {
            self.next_kept()
        } else {
            self.next_now()
        }
        self.settle();
    }
}
