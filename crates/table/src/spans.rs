//! Determines the groups that a key range touches, and the part of each.
//!
//! A range within one group, such as a timeline's, is resolved from its bounds alone, without reading the order of
//! the groups. This applies if both bounds begin with the group's prefix, or if the upper bound is the least key
//! after the group (`tline|ann|` to `tline|ann}`).

use std::cmp::Ordering;
use std::ops::Bound;

use crate::groups::{Groups, group_at};
use crate::split::Split;
use crate::tree::Place;

#[derive(Clone, Copy)]
pub(crate) struct Spans<'k> {
    lo: RangeEnd<'k>,
    hi: RangeEnd<'k>,
    pub(crate) reverse: bool,
    /// Only the group of the low end can have rows in the range.
    single: bool,
    started: bool,
    done: bool,
    /// The position of the last returned group in the order.
    at: Option<Place>,
    only: Option<Span>,
}

/// A group that the range touches, and which of the range's ends lie in it.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) group: u32,
    lo_inside: bool,
    hi_inside: bool,
}

/// One end of the range.
#[derive(Clone, Copy)]
struct RangeEnd<'k> {
    key: &'k [u8],
    kind: EndKind,
    /// The length of the key's group.
    group_len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EndKind {
    Open,
    Included,
    Excluded,
}

impl<'k> RangeEnd<'k> {
    fn new(split: Split, bound: Bound<&'k [u8]>) -> RangeEnd<'k> {
        let (key, kind): (&[u8], _) = match bound {
            Bound::Unbounded => (&[], EndKind::Open),
            Bound::Included(key) => (key, EndKind::Included),
            Bound::Excluded(key) => (key, EndKind::Excluded),
        };
        RangeEnd {
            key,
            kind,
            group_len: split.group_len(key),
        }
    }

    fn group(&self) -> &'k [u8] {
        &self.key[..self.group_len]
    }

    fn within(&self, inside: bool) -> Bound<&'k [u8]> {
        let suffix = &self.key[self.group_len..];
        match self.kind {
            EndKind::Included if inside => Bound::Included(suffix),
            EndKind::Excluded if inside => Bound::Excluded(suffix),
            _ => Bound::Unbounded,
        }
    }

    /// Compares a group's prefix with this end; returns `open` for an open end.
    fn compare(&self, prefix: &[u8], open: Ordering) -> Ordering {
        if self.kind == EndKind::Open {
            open
        } else {
            prefix.cmp(self.group())
        }
    }
}

impl<'k> Spans<'k> {
    pub(crate) fn new(
        split: Split,
        lo: Bound<&'k [u8]>,
        hi: Bound<&'k [u8]>,
        reverse: bool,
    ) -> Spans<'k> {
        Spans {
            lo: RangeEnd::new(split, lo),
            hi: RangeEnd::new(split, hi),
            reverse,
            single: is_single(split, lo, hi),
            started: false,
            done: is_empty(lo, hi),
            at: None,
            only: None,
        }
    }

    /// Returns the next group, in ascending or descending order.
    pub(crate) fn next(&mut self, groups: &Groups) -> Option<Span> {
        if self.done {
            return None;
        }
        if let Some(span) = self.only {
            self.done = true;
            return Some(span);
        }
        if self.single {
            self.done = true;
            let group = groups.find(self.lo.group())?;
            let hi_inside = self.hi.group() == self.lo.group();
            return Some(Span {
                group,
                lo_inside: true,
                hi_inside,
            });
        }
        let order = groups.order()?;
        let started = std::mem::replace(&mut self.started, true);
        self.at = match (self.at, self.reverse) {
            (None, _) if started => None,
            (Some(at), false) => order.next(at),
            (Some(at), true) => order.previous(at),
            (None, false) if self.lo.kind == EndKind::Open => Some(order.first()),
            (None, false) => order.at_or_after(self.lo.group(), false),
            (None, true) if self.hi.kind == EndKind::Open => Some(order.last()),
            (None, true) => order.at_or_before(self.hi.group(), false),
        };
        let group = group_at(self.at?);
        let prefix = groups.get(group).prefix();
        let lo = self.lo.compare(prefix, Ordering::Greater);
        let hi = self.hi.compare(prefix, Ordering::Less);
        if lo == Ordering::Less || hi == Ordering::Greater {
            self.done = true;
            return None;
        }
        Some(Span {
            group,
            lo_inside: lo == Ordering::Equal,
            hi_inside: hi == Ordering::Equal,
        })
    }

    /// Returns the rows of one group from one suffix up to, but not including, another, or to the group's end.
    pub(crate) fn within(
        group: u32,
        lo: &'k [u8],
        hi: Option<&'k [u8]>,
        reverse: bool,
    ) -> Spans<'k> {
        let end = |key, kind| RangeEnd {
            key,
            kind,
            group_len: 0,
        };
        Spans {
            lo: end(lo, EndKind::Included),
            hi: match hi {
                Some(hi) => end(hi, EndKind::Excluded),
                None => end(&[], EndKind::Open),
            },
            reverse,
            single: true,
            started: false,
            done: false,
            at: None,
            only: Some(Span {
                group,
                lo_inside: true,
                hi_inside: true,
            }),
        }
    }

    /// Returns all rows of one group.
    pub(crate) fn all_of(group: u32, reverse: bool) -> Spans<'k> {
        let mut spans = Spans::within(group, &[], None, reverse);
        spans.lo.kind = EndKind::Open;
        spans
    }

    /// Returns the part of the range that lies in one of its groups.
    pub(crate) fn only(&self, span: Span) -> Spans<'k> {
        Spans {
            done: false,
            only: Some(span),
            ..*self
        }
    }

    /// Returns the lower bound of the suffixes of a group's rows in the range.
    pub(crate) fn from(&self, span: Span) -> Bound<&'k [u8]> {
        match self.lo.within(span.lo_inside) {
            // The empty suffix bounds nothing: the group is covered completely, and is counted or removed without
            // reading its rows.
            Bound::Included([]) => Bound::Unbounded,
            from => from,
        }
    }

    /// Returns the upper bound of the suffixes of a group's rows in the range.
    pub(crate) fn to(&self, span: Span) -> Bound<&'k [u8]> {
        self.hi.within(span.hi_inside)
    }
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

fn is_single(split: Split, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> bool {
    if split == Split::None {
        return true;
    }
    let (Bound::Included(lo) | Bound::Excluded(lo), Bound::Included(end) | Bound::Excluded(end)) =
        (lo, hi)
    else {
        return false;
    };
    let Some(prefix) = split.full_group_len(lo).map(|len| &lo[..len]) else {
        return false;
    };
    end.starts_with(prefix) || matches!(hi, Bound::Excluded(_)) && is_successor(prefix, end)
}

/// Returns whether `key` is the least key after all that begin with the prefix, whose last byte is not 0xff.
fn is_successor(prefix: &[u8], key: &[u8]) -> bool {
    match (prefix, key) {
        ([start @ .., last], [key_start @ .., key_last]) => {
            start == key_start && last.checked_add(1) == Some(*key_last)
        }
        _ => false,
    }
}
