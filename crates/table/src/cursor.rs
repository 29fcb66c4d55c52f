//! Range reads: the rows of a range in ascending or descending key order.

use std::ops::Bound;

use crate::groups::Groups;
use crate::key_buffer::KeyBuffer;
use crate::page::{Page, Record};
use crate::spans::{Span, Spans};
use crate::tree::{Place, Tree};
use crate::value::Value;

/// A range cursor. It allocates nothing per row: keys are assembled in the cursor's buffer, and values are read in
/// place. The row that `next` returns is valid until the next call.
pub struct Cursor<'t> {
    groups: &'t Groups,
    spans: Spans<'t>,
    /// The group being read.
    span: Option<(Span, &'t Tree)>,
    /// The end of the range lies in this group, so each row is compared with it.
    bounded: bool,
    next: Next,
    current_row: Option<(Place, Record)>,
    key: KeyBuffer,
    group_len: usize,
    /// The leaf whose prefix is in the key buffer, after the group's prefix.
    leaf: Option<Page>,
    /// The length of both prefixes.
    fixed: usize,
}

/// The number of rows to prefetch ahead.
const PREFETCH_ROWS: usize = 6;

enum Next {
    At(Place),
    Beyond(Place),
    Group,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(groups: &'t Groups, spans: Spans<'t>) -> Cursor<'t> {
        Cursor {
            groups,
            spans,
            span: None,
            bounded: false,
            next: Next::Group,
            current_row: None,
            key: KeyBuffer::from(&[]),
            group_len: 0,
            leaf: None,
            fixed: 0,
        }
    }

    /// Like [`Cursor::new`] in ascending order, when the position of the first row in the first group is known.
    pub(crate) fn at(groups: &'t Groups, spans: Spans<'t>, first: Place) -> Cursor<'t> {
        let mut cursor = Cursor::new(groups, spans);
        cursor.next = Next::At(first);
        cursor
    }

    /// Advances to the next row; `None` after the last.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> Option<(&[u8], &[u8])> {
        self.step();
        self.current()
    }

    /// Returns the row that `next` last returned.
    #[inline]
    pub fn current(&self) -> Option<(&[u8], &[u8])> {
        let (_, record) = &self.current_row?;
        Some((self.key.bytes(), record.value()))
    }

    /// Returns the value of the row that `next` last returned: a handle if the row holds one, else a copy.
    ///
    /// # Panics
    ///
    /// If `next` has not been called, or last returned `None`.
    pub fn value(&self) -> Value {
        let (place, _) = self.current_row.expect("a row was read");
        place.leaf.share(place.index)
    }

    #[inline]
    fn step(&mut self) {
        loop {
            let place = match self.next {
                Next::Beyond(place) => {
                    let (_, tree) = self.span.expect("a row was read from a group");
                    if self.spans.reverse {
                        tree.previous(place)
                    } else {
                        tree.next(place)
                    }
                }
                Next::At(place) => {
                    self.enter();
                    Some(place)
                }
                Next::Group => {
                    self.current_row = None;
                    match self.enter() {
                        Some((tree, near)) => self.first(tree, near),
                        None => return,
                    }
                }
            };
            let Some(place) = place else {
                self.next = Next::Group;
                continue;
            };
            let record = self.read_key(place);
            if self.bounded && self.is_beyond() {
                self.next = Next::Group;
                continue;
            }
            self.next = Next::Beyond(place);
            self.current_row = Some((place, record));
            return;
        }
    }

    /// Advances to the next group and returns its tree and start bound. `None` if no group is left.
    fn enter(&mut self) -> Option<(&'t Tree, Bound<&'t [u8]>)> {
        let span = self.spans.next(self.groups)?;
        let group = self.groups.get(span.group);
        let tree = group.tree();
        tree.prefetch_root();
        let prefix = group.prefix();
        self.key.resize(0, prefix.len()).copy_from_slice(prefix);
        self.group_len = prefix.len();
        self.leaf = None;
        self.span = Some((span, tree));
        let (near, far) = if self.spans.reverse {
            (self.spans.to(span), self.spans.from(span))
        } else {
            (self.spans.from(span), self.spans.to(span))
        };
        self.bounded = far != Bound::Unbounded;
        Some((tree, near))
    }

    /// Returns the first row of a group that is read.
    fn first(&self, tree: &Tree, near: Bound<&[u8]>) -> Option<Place> {
        match (near, self.spans.reverse) {
            (Bound::Unbounded, false) => Some(tree.first()),
            (Bound::Included(key), false) => tree.at_or_after(key, false),
            (Bound::Excluded(key), false) => tree.at_or_after(key, true),
            (Bound::Unbounded, true) => Some(tree.last()),
            (Bound::Included(key), true) => tree.at_or_before(key, false),
            (Bound::Excluded(key), true) => tree.at_or_before(key, true),
        }
    }

    #[inline]
    fn read_key(&mut self, place: Place) -> Record {
        if self.leaf != Some(place.leaf) {
            let prefix = place.leaf.prefix();
            self.fixed = self.group_len + prefix.len();
            self.key.resize(self.group_len, self.fixed)[self.group_len..].copy_from_slice(prefix);
            self.leaf = Some(place.leaf);
            if !self.spans.reverse {
                place
                    .leaf
                    .prefetch_rows(place.index, place.index + PREFETCH_ROWS);
            }
        }
        if !self.spans.reverse {
            place.leaf.prefetch_row(place.index + PREFETCH_ROWS);
        }
        let record = place.leaf.record(place.index);
        let key = self.key.resize(self.fixed, self.fixed + record.key_len());
        place.leaf.write_rest(place.index, &record, key, self.fixed);
        record
    }

    /// Returns whether the current row is past the end of the range.
    fn is_beyond(&self) -> bool {
        let (span, _) = self.span.expect("a row was read from a group");
        let suffix = &self.key.bytes()[self.group_len..];
        if self.spans.reverse {
            match self.spans.from(span) {
                Bound::Unbounded => false,
                Bound::Included(lo) => suffix < lo,
                Bound::Excluded(lo) => suffix <= lo,
            }
        } else {
            match self.spans.to(span) {
                Bound::Unbounded => false,
                Bound::Included(hi) => suffix > hi,
                Bound::Excluded(hi) => suffix >= hi,
            }
        }
    }
}
