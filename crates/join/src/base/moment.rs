//! Moments: a long read sees the rows of a table as they were when it began, while they change.
//!
//! ```text
//!  moment of k|a .. k|z      k|c put   ──► before: k|c had no row
//!  read up to k|f            k|h goes  ──► before: k|h had "3"        the read skips k|c? it has passed it: nothing is kept
//!                                          rows as they are, but those in `before` as they were ──► the read
//! ```
//!
//! 1. For each key in the unread part whose row changed since, `before` has what it was, and nothing else.
//! 2. [`Rows`](crate::base::rows::Rows) tells of every change before it is made; a moment that nobody reads any more is forgotten then.
//! 3. What all moments keep is never more than [`Held`] allows: beyond it the largest is lost, and its read ends with an error.
//!    None of it counts as memory of tables, so that no write is refused for what a slow reader keeps.
//! 4. A row that several moments keep is kept once. Each is charged with an equal part of it.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::Bound;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::key_range::KeyRange;
use crate::base::rows::Cursor;

/// What a key's row was.
#[derive(Debug)]
struct Was {
    /// `None`: there was no row.
    value: Option<Rc<HeldValue>>,
    /// What of it the moment is charged with.
    share: usize,
}

type Before = BTreeMap<Box<[u8]>, Was>;

/// A value that is in no table any more.
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

/// What all moments of an engine keep, and how much they may.
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
    /// Bytes: of one long read, and of all together.
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

    /// A value to keep, which is about to go from its table.
    pub fn value(self: &Rc<Self>, bytes: &[u8]) -> Rc<HeldValue> {
        self.take(bytes.len());
        Rc::new(HeldValue {
            bytes: bytes.into(),
            held: self.clone(),
        })
    }

    /// Loses moments until what is kept is within the limits (invariant 3).
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
    /// Who else counts what it keeps.
    charged: RefCell<Option<Arc<AtomicUsize>>>,
}

#[derive(Debug)]
pub struct Kept {
    unread: KeyRange,
    before: Before,
    bytes: usize,
    /// It would have kept too much: what it had is gone.
    is_lost: bool,
}

/// What a kept row costs beside its bytes.
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

    /// From now on what it keeps is added there too.
    pub fn charge(&self, to: &Arc<AtomicUsize>) {
        to.fetch_add(self.bytes(), Ordering::Relaxed);
        *self.charged.borrow_mut() = Some(to.clone());
    }

    /// Whether it reads a key, and does not know yet what it was.
    pub fn reads(&self, key: &[u8]) -> bool {
        let kept = self.kept();
        !kept.is_lost && kept.unread.contains(key) && !kept.before.contains_key(key)
    }

    /// A key that it reads is about to change; its row is this now, and `readers` keep it.
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

    /// Forgets what it kept of keys that are not in `range`.
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

    /// Only this is still to be read.
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

/// The moments of one table's rows that are being read.
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

    /// Whether any of them has yet to read keys of a range.
    pub fn are_reading(&self, range: &KeyRange) -> bool {
        self.0.iter().filter_map(Weak::upgrade).any(|moment| {
            let kept = moment.kept();
            !kept.is_lost && kept.unread.overlaps(&range.lo, &range.hi)
        })
    }

    /// Now, for a read of `unread`.
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

    /// The moments that read a key, which is about to change, and do not know yet what it was.
    pub fn readers_of(&mut self, key: &[u8]) -> Vec<Rc<Moment>> {
        let mut readers = self.live();
        readers.retain(|moment| moment.reads(key));
        readers
    }

    /// The moments that read some of a range, which is about to go, and a range that has all that they read of it.
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

/// Reads rows as they were at a moment, or are now where they have not changed.
pub struct Then<'v> {
    /// None if the table is gone: all its rows went first.
    now: Option<Cursor<'v>>,
    before: btree_map::Range<'v, Box<[u8]>, Was>,
    kept: Option<(&'v [u8], Option<&'v [u8]>)>,
    /// The current row is the kept one.
    is_kept: bool,
    reverse: bool,
}

impl<'v> Then<'v> {
    /// `now` has the rows of the unread part as they are.
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
        let next = match self.reverse {
            false => self.before.next(),
            true => self.before.next_back(),
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

    /// Decides which row is next.
    fn settle(&mut self) {
        self.is_kept = false;
        while let Some((key, value)) = self.kept {
            let order = self.now().map(|(now, _)| match self.reverse {
                false => now.cmp(key),
                true => key.cmp(now),
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
        match self.is_kept {
            true => self.next_kept(),
            false => self.next_now(),
        }
        self.settle();
    }
}
