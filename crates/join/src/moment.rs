//! Moments: a long read sees the rows of a table as they were when it began, while they change.
//!
//! ```text
//!  moment of k|a .. k|z      k|c put   ──► before: k|c had no row
//!  read up to k|f            k|h goes  ──► before: k|h had "3"        the read skips k|c? it has passed it: nothing is kept
//!                                          rows as they are, but those in `before` as they were ──► the read
//! ```
//!
//! 1. For each key in the unread part whose row changed since, `before` has what it was, and nothing else.
//! 2. [`Rows`](crate::rows::Rows) tells of every change before it is made; a moment that nobody reads any more is forgotten then.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::ops::Bound;
use std::rc::{Rc, Weak};

use crate::keyrange::KeyRange;
use crate::rows::{Cursor, Value};

/// What a key's row was; `None`: it had none.
type Before = BTreeMap<Box<[u8]>, Option<Value>>;

#[derive(Debug)]
pub struct Moment(RefCell<Kept>);

#[derive(Debug)]
pub struct Kept {
    unread: KeyRange,
    before: Before,
    bytes: usize,
}

/// What a kept row costs beside its bytes.
const KEPT_BYTES: usize = 64;

impl Moment {
    pub fn kept(&self) -> Ref<'_, Kept> {
        self.0.borrow()
    }

    /// A key's row is about to change; it is this now.
    pub fn keep(&self, key: &[u8], value: Option<Value>) {
        let kept = &mut *self.0.borrow_mut();
        if !kept.before.contains_key(key) {
            kept.bytes += cost(key, value.as_ref());
            kept.before.insert(key.into(), value);
        }
    }

    /// Nothing that is still to be read has changed.
    pub fn is_as_it_was(&self) -> bool {
        self.kept().before.is_empty()
    }

    /// Only this is still to be read.
    pub fn shrink_to(&self, unread: &KeyRange) {
        let kept = &mut *self.0.borrow_mut();
        while let Some(first) = kept.before.first_entry().filter(|e| *e.key() < unread.lo) {
            let (key, value) = first.remove_entry();
            kept.bytes -= cost(&key, value.as_ref());
        }
        while let Some(last) = kept.before.last_entry().filter(|e| *e.key() >= unread.hi) {
            let (key, value) = last.remove_entry();
            kept.bytes -= cost(&key, value.as_ref());
        }
        kept.unread = unread.clone();
    }
}

fn cost(key: &[u8], value: Option<&Value>) -> usize {
    key.len() + value.map_or(0, |v| v.len()) + KEPT_BYTES
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

    /// Now, for a read of `unread`.
    pub fn add(&mut self, unread: KeyRange) -> Rc<Moment> {
        let moment = Rc::new(Moment(RefCell::new(Kept {
            unread,
            before: Before::default(),
            bytes: 0,
        })));
        self.0.push(Rc::downgrade(&moment));
        moment
    }

    /// The moments that read a key, which is about to change, and do not know yet what it was.
    pub fn readers_of(&mut self, key: &[u8]) -> Vec<Rc<Moment>> {
        let mut readers = self.live();
        readers.retain(|moment| {
            let kept = moment.kept();
            kept.unread.contains(key) && !kept.before.contains_key(key)
        });
        readers
    }

    /// The moments that read some of a range, which is about to go, and what they read of it.
    pub fn readers_in(&mut self, lo: &[u8], hi: &[u8]) -> Vec<(Rc<Moment>, KeyRange)> {
        let live = self.live().into_iter();
        let part = |moment: Rc<Moment>| {
            let unread = moment.kept().unread.clone();
            let part = KeyRange::new(lo.max(&unread.lo), hi.min(&unread.hi));
            (!part.is_empty()).then_some((moment, part))
        };
        live.filter_map(part).collect()
    }

    fn live(&mut self) -> Vec<Rc<Moment>> {
        self.0.retain(|moment| moment.strong_count() > 0);
        self.0.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn memory_bytes(&self) -> usize {
        let live = self.0.iter().filter_map(Weak::upgrade);
        live.map(|moment| moment.0.borrow().bytes).sum()
    }
}

/// Reads rows as they were at a moment, or are now where they have not changed.
pub struct Then<'v> {
    /// None if the table is gone: all its rows went first.
    now: Option<Cursor<'v>>,
    before: btree_map::Range<'v, Box<[u8]>, Option<Value>>,
    kept: Option<(&'v [u8], Option<&'v Value>)>,
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
        self.kept = next.map(|(key, value)| (&**key, value.as_ref()));
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
            (true, Some((key, Some(value)))) => Some((key, value.as_bytes())),
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
