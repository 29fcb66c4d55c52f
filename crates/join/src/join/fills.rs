//! The filled ranges of one join's output, and the indexes that find them.
//!
//! 1. Each fill has one status range, which equals its range. Status ranges do not overlap.
//! 2. `by_prefix` maps a prefix to the fill of all keys with it. `by_tail` maps the prefix of a group of the output's
//!    table to any other fill that reaches the group's end.
//! 3. The target of a fill states whether the fill has outstanding work. A number without a fill has an empty target.
//! 4. `unsettled` contains the pinned fills with outstanding work.
//! 5. `heap_bytes` is the memory of ranges, prefixes, index keys, pending rows and unread rests.
//! 6. A fill is removed after its nodes, and so after its pending rows and unread rests.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use larder_types::prefetch;

use crate::base::hash::ByteMap;
use crate::base::key_range::{KeyRange, is_successor};
use crate::base::pattern::SlotBounds;
use crate::base::rows::{GroupId, Rows};
use crate::base::slab::{Slab, Vacant};
use crate::base::status::Status;
use crate::join::target::Target;
use crate::join::tracked::Tracked;

/// A filled range of the output.
#[derive(Debug)]
pub struct Fill {
    pub range: KeyRange,
    /// The common prefix of all output keys in the range, in complete elements of the pattern.
    pub prefix: Box<[u8]>,
    pub elements: u8,
    /// True if the range consists of all keys with that prefix.
    pub is_prefix: bool,
    /// The slots that the range fixes, and their values.
    pub fixed: u32,
    pub packed: Box<[u8]>,
    /// Bounds on the first slot without a fixed value.
    pub bounds: Option<SlotBounds>,
    /// The node of the first level.
    pub root: u32,
    unsettled: Option<Box<Unsettled>>,
    /// Number of other joins' nodes that were computed from rows of this range, and of subscriptions to it. The fill is
    /// not evicted while it is positive.
    pins: u32,
    /// Distinguishes this fill from others that had the same number.
    pub serial: u32,
    pub filled_at: u64,
    /// Number of reads since the tick `opened`.
    pub reads: u64,
    pub opened: u64,
    /// Leaves in pull mode, whose rows are copied by reads (see `auto`).
    pub pulled: Vec<u32>,
    /// True if source changes are applied to the fill, whatever the join's mode (see `transient_fill`).
    pub is_maintained: bool,
}

/// A node, and the slots that a row of its source binds.
pub type PendingKey = (u32, Box<[u8]>);

/// The work that a fill needs before it can be read.
#[derive(Debug, Default)]
pub struct Unsettled {
    /// Rows of checked sources that were added (`true`) or removed. A row that was added and removed again is not in
    /// the map.
    pending: BTreeMap<PendingKey, bool>,
    /// Nodes whose source range was read only below a key, by level and number, with that key (see `unread`).
    unread: BTreeMap<(u8, u32), Box<[u8]>>,
    /// Groups to compute again, after all other work.
    pub drained: BTreeSet<Box<[u8]>>,
}

impl Unsettled {
    pub fn is_empty(&self) -> bool {
        self.has_read_all() && self.drained.is_empty()
    }

    /// Returns whether the fill reflects all rows of its sources, except in its drained groups.
    pub fn has_read_all(&self) -> bool {
        self.pending.is_empty() && self.unread.is_empty()
    }

    /// Returns the level and number of the first node with an unread rest.
    pub fn first_unread(&self) -> Option<(u8, u32)> {
        self.unread.first_key_value().map(|(node, _)| *node)
    }

    /// Returns whether a row is in the unread rest of a node.
    pub fn is_unread(&self, level: usize, node: u32, key: &[u8]) -> bool {
        let from = self.unread.get(&(level as u8, node));
        from.is_some_and(|from| *key >= **from)
    }
}

/// Fills that are not maintained have no nodes.
pub const NO_NODE: u32 = u32::MAX >> 1;

impl Vacant for Fill {
    fn vacant() -> Self {
        Fill {
            range: KeyRange::new(&[], &[]),
            prefix: Box::default(),
            elements: 0,
            is_prefix: false,
            fixed: 0,
            packed: Box::default(),
            bounds: None,
            root: NO_NODE,
            unsettled: None,
            pins: 0,
            serial: 0,
            filled_at: 0,
            reads: 0,
            opened: 0,
            pulled: Vec::new(),
            is_maintained: false,
        }
    }

    fn is_vacant(&self) -> bool {
        self.range.hi.is_empty()
    }
}

impl Fill {
    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_prefix {
            key.starts_with(&self.prefix)
        } else {
            self.range.contains(key)
        }
    }

    #[inline]
    pub fn unsettled(&self) -> Option<&Unsettled> {
        self.unsettled.as_deref()
    }

    #[inline]
    pub fn pins(&self) -> u32 {
        self.pins
    }

    pub fn root(&self) -> Option<u32> {
        (self.root != NO_NODE).then_some(self.root)
    }

    /// Creates the record of a fill that was not computed yet.
    pub fn new(range: KeyRange, serial: u32) -> Fill {
        Fill {
            range,
            serial,
            ..Fill::vacant()
        }
    }

    fn heap_bytes(&self) -> usize {
        self.prefix.len() + self.packed.len()
    }
}

#[derive(Default)]
pub struct Fills {
    records: Slab<Fill>,
    status: Status,
    by_prefix: ByteMap<u32>,
    by_tail: ByteMap<u32>,
    /// Indexed by fill.
    targets: Vec<Target>,
    /// The fill that covers the end of each group of the output's table, as of the last lookup. Indexed by group
    /// number.
    of_group: Vec<u32>,
    unsettled: BTreeSet<u32>,
    heap_bytes: usize,
}

impl Fills {
    #[inline]
    pub fn get(&self, number: u32) -> &Fill {
        self.records.get(number)
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut Fill {
        self.records.get_mut(number)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Fill)> {
        self.records.iter()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the filled ranges.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Returns the pinned fills with outstanding work.
    pub fn unsettled(&self) -> &BTreeSet<u32> {
        &self.unsettled
    }

    /// Returns whether a number still identifies the fill with this serial.
    pub fn is_current(&self, number: u32, serial: u32) -> bool {
        let fill = self.records.at(number);
        fill.is_some_and(|fill| fill.serial == serial && !fill.is_vacant())
    }

    #[inline]
    pub fn target(&self, number: u32) -> &Target {
        &self.targets[number as usize]
    }

    #[inline]
    pub fn target_mut(&mut self, number: u32) -> &mut Target {
        &mut self.targets[number as usize]
    }

    /// Returns the target of a number from [`Fills::of_group`], which may have no fill.
    #[inline]
    pub fn target_at(&self, number: u32) -> Option<&Target> {
        self.targets.get(number as usize)
    }

    /// Returns the fill that covers the end of a group, as of the last lookup.
    pub fn of_group(&self, group: GroupId) -> Option<u32> {
        self.of_group.get(group.index()).copied()
    }

    /// Returns the fill that covers all keys with a prefix.
    pub fn of_prefix(&self, prefix: &[u8]) -> Option<u32> {
        self.by_prefix.get(prefix).copied()
    }

    /// Returns the fill that covers the end of a group, or the complete group.
    pub fn of_head(&self, head: &[u8]) -> Option<u32> {
        self.by_tail
            .get(head)
            .or_else(|| self.by_prefix.get(head))
            .copied()
    }

    /// Returns the fill that covers the complete range, if there is one.
    pub fn covering(&self, range: &KeyRange, rows: &Rows) -> Option<u32> {
        if is_successor(&range.lo, &range.hi)
            && let Some(&number) = self.by_prefix.get(&range.lo)
        {
            return Some(number);
        }
        if let Some(head) = rows.head(&range.lo) {
            if (range.hi.starts_with(head) || is_successor(head, &range.hi))
                && let Some(&number) = self.by_prefix.get(head)
            {
                return Some(number);
            }
            if let Some(&number) = self.by_tail.get(head) {
                let filled = &self.records.get(number).range;
                if filled.lo <= range.lo && range.hi <= filled.hi {
                    return Some(number);
                }
            }
        }
        self.status.covering(&range.lo, &range.hi)
    }

    pub fn insert(&mut self, fill: Fill, rows: &Rows) -> u32 {
        self.heap_bytes += fill.heap_bytes();
        let number = self.records.insert(fill);
        self.add_coverage(number, rows);
        self.update_target(number, rows);
        number
    }

    /// Removes a fill whose nodes were removed.
    pub fn remove(&mut self, number: u32, rows: &Rows) -> Fill {
        self.remove_coverage(number, rows);
        let fill = self.records.remove(number);
        self.free(fill.heap_bytes());
        self.unsettled.remove(&number);
        let has_work = fill.unsettled().is_some_and(|work| !work.has_read_all());
        assert!(!has_work && fill.pulled.is_empty(), "invariant 6");
        assert!(self.len() > 0 || self.heap_bytes == 0, "invariant 5");
        fill
    }

    /// Cuts off a fill at a key. Returns the removed part of its range.
    pub fn truncate(&mut self, number: u32, at: Box<[u8]>, rows: &Rows) -> KeyRange {
        let marks = self.targets[number as usize];
        self.remove_coverage(number, rows);
        let fill = self.records.get_mut(number);
        let removed = KeyRange {
            hi: std::mem::replace(&mut fill.range.hi, at.clone()),
            lo: at,
        };
        fill.is_prefix = false;
        if let Some(unsettled) = &mut fill.unsettled {
            unsettled.drained.retain(|group| *group < removed.lo);
        }
        self.add_coverage(number, rows);
        self.targets[number as usize].keep_marks(&marks);
        removed
    }

    /// Records that a fill's range is filled.
    fn add_coverage(&mut self, number: u32, rows: &Rows) {
        let range = &self.records.get(number).range;
        self.status.insert(range, number);
        if let Some((is_prefix, key)) = index_key(range, rows) {
            let bytes = index_bytes(key);
            let index = if is_prefix {
                &mut self.by_prefix
            } else {
                &mut self.by_tail
            };
            let before = index.insert(key.into(), number);
            assert!(before.is_none(), "invariant 2: no other fill has this end");
            self.heap_bytes += bytes;
        }
        self.heap_bytes += range.lo.len() + range.hi.len();
    }

    fn remove_coverage(&mut self, number: u32, rows: &Rows) {
        let range = &self.records.get(number).range;
        self.status.remove(range);
        let mut bytes = range.lo.len() + range.hi.len();
        if let Some((is_prefix, key)) = index_key(range, rows) {
            let index = if is_prefix {
                &mut self.by_prefix
            } else {
                &mut self.by_tail
            };
            let known = index.remove(key);
            assert_eq!(known, Some(number), "invariant 2");
            bytes += index_bytes(key);
        }
        self.free(bytes);
        self.targets[number as usize] = Target::default();
    }

    /// Looks up the group of a fill's prefix, for fan-out and reads.
    pub fn update_target(&mut self, number: u32, rows: &Rows) {
        let mut target = Target::new(self.records.get(number), rows);
        let at = number as usize;
        if at >= self.targets.len() {
            self.targets
                .reserve_exact((at + 1 - self.targets.len()).max(self.targets.len() / 8 + 4));
            self.targets.resize(at + 1, Target::default());
        }
        target.keep_marks(&self.targets[at]);
        self.targets[at] = target;
        if let Some(group) = target.group
            && target.is_tail
        {
            let group = group.index();
            if group >= self.of_group.len() {
                self.of_group.reserve_exact(
                    (group + 1 - self.of_group.len()).max(self.of_group.len() / 8 + 4),
                );
                self.of_group.resize(group + 1, u32::MAX);
            }
            self.of_group[group] = number;
        }
    }

    /// Prefetches the number of the fill that covers a group.
    pub fn prefetch_of_group(&self, group: GroupId) {
        if let Some(fill) = self.of_group.get(group.index()) {
            prefetch(fill);
        }
    }

    /// Prefetches the target of the fill that covers a group.
    pub fn prefetch_target(&self, group: GroupId) {
        let fill = self.of_group.get(group.index());
        if let Some(target) = fill.and_then(|&fill| self.targets.get(fill as usize)) {
            prefetch(target);
        }
    }

    /// Changes the number of other joins' nodes that were computed from rows of a fill.
    pub fn pin(&mut self, number: u32, change: i32) {
        let fill = self.records.get_mut(number);
        fill.pins = fill
            .pins
            .checked_add_signed(change)
            .expect("invariant: pinned ranges are not dropped");
        if fill.pins > 0 && fill.unsettled.is_some() {
            self.unsettled.insert(number);
        } else if fill.pins == 0 {
            self.unsettled.remove(&number);
        }
    }

    /// Marks a fill as unsettled. Returns its outstanding work, for additions.
    #[inline]
    pub fn mark_unsettled(&mut self, number: u32, tracked: &mut Tracked) -> &mut Unsettled {
        let fill = self.records.get_mut(number);
        if fill.pins > 0 {
            self.unsettled.insert(number);
            tracked.mark_downstream_stale();
        }
        tracked.mark_range_stale(&fill.range);
        self.targets[number as usize].unsettled = true;
        fill.unsettled.get_or_insert_default()
    }

    /// Marks a fill as settled, if it has no outstanding work. Returns whether it is settled.
    pub fn settle(&mut self, number: u32) -> bool {
        let fill = self.records.get_mut(number);
        if fill.unsettled().is_some_and(|work| !work.is_empty()) {
            return false;
        }
        fill.unsettled = None;
        self.targets[number as usize].unsettled = false;
        self.unsettled.remove(&number);
        true
    }

    /// Records that a row of a checked source was added or removed. The two cancel each other. The fill must be marked
    /// as unsettled.
    #[inline]
    pub fn toggle_pending(&mut self, number: u32, key: PendingKey, is_added: bool) {
        let bytes = pending_bytes(&key.1);
        let pending = &mut self
            .records
            .get_mut(number)
            .unsettled
            .get_or_insert_default()
            .pending;
        match pending.remove(&key) {
            Some(before) => {
                assert_ne!(
                    before, is_added,
                    "additions and removals of a row alternate"
                );
                self.free(bytes);
            }
            None => {
                pending.insert(key, is_added);
                self.heap_bytes += bytes;
            }
        }
    }

    /// Removes and returns the first pending row of a fill, or the first after `skipped`.
    pub fn take_pending(
        &mut self,
        number: u32,
        skipped: Option<&PendingKey>,
    ) -> Option<(PendingKey, bool)> {
        let pending = &mut self.records.get_mut(number).unsettled.as_mut()?.pending;
        let next = match skipped {
            None => pending.pop_first()?,
            Some(skipped) => {
                let after = (Bound::Excluded(skipped), Bound::Unbounded);
                let key = pending.range(after).next()?.0.clone();
                pending.remove_entry(&key)?
            }
        };
        self.free(pending_bytes(&next.0.1));
        Some(next)
    }

    /// Removes the pending rows of a node.
    pub fn drop_pending(&mut self, number: u32, node: u32) {
        let Some(unsettled) = &mut self.records.get_mut(number).unsettled else {
            return;
        };
        let range = (node, Box::default())..(node + 1, Box::default());
        let removed = unsettled.pending.extract_if(range, |_, _| true);
        let bytes = removed.map(|((_, packed), _)| pending_bytes(&packed)).sum();
        self.free(bytes);
    }

    /// Records that a node's range was read only below the key `from`. The fill must be marked as unsettled.
    pub fn add_unread(&mut self, number: u32, level: usize, node: u32, from: Box<[u8]>) {
        self.heap_bytes += pending_bytes(&from);
        let unsettled = self
            .records
            .get_mut(number)
            .unsettled
            .get_or_insert_default();
        let before = unsettled.unread.insert((level as u8, node), from);
        assert!(before.is_none(), "the entry was removed before it was read");
    }

    /// Removes and returns the key at which a node's unread rest begins.
    pub fn take_unread(&mut self, number: u32, level: usize, node: u32) -> Option<Box<[u8]>> {
        let unsettled = self.records.get_mut(number).unsettled.as_mut()?;
        let from = unsettled.unread.remove(&(level as u8, node))?;
        self.free(pending_bytes(&from));
        Some(from)
    }

    #[inline]
    fn free(&mut self, bytes: usize) {
        let left = self.heap_bytes.checked_sub(bytes);
        self.heap_bytes = left.expect("invariant 5: freed memory was counted");
    }

    pub fn memory_bytes(&self) -> usize {
        self.status.memory_bytes()
            + self.records.memory_bytes()
            + self.targets.capacity() * size_of::<Target>()
            + self.of_group.capacity() * size_of::<u32>()
            + self.heap_bytes
    }

    /// Checks invariants 1 to 5. `is_node` returns whether a node of a level belongs to a fill.
    ///
    /// # Panics
    /// An invariant is broken.
    pub fn check(&self, rows: &Rows, is_node: impl Fn(u32, usize, u32) -> bool, last: usize) {
        let (mut heap_bytes, mut indexed, mut unsettled) = (0, 0, BTreeSet::new());
        let mut end: &[u8] = &[];
        for number in self.status.numbers() {
            let range = &self.get(number).range;
            assert!(!self.get(number).is_vacant(), "invariant 1: {number}");
            assert!(
                *end <= *range.lo && range.lo < range.hi,
                "invariant 1: {range:?}"
            );
            end = &range.hi;
            assert_eq!(
                self.status.covering(&range.lo, &range.hi),
                Some(number),
                "invariant 1"
            );
        }
        assert_eq!(self.status.len(), self.len(), "invariant 1");
        for (number, fill) in self.iter() {
            heap_bytes += fill.heap_bytes() + fill.range.lo.len() + fill.range.hi.len();
            if let Some((is_prefix, key)) = index_key(&fill.range, rows) {
                let index = if is_prefix {
                    &self.by_prefix
                } else {
                    &self.by_tail
                };
                assert_eq!(index.get(key), Some(&number), "invariant 2");
                heap_bytes += index_bytes(key);
                indexed += 1;
            }
            assert_eq!(
                self.target(number).unsettled,
                fill.unsettled.is_some(),
                "invariant 3"
            );
            let Some(work) = fill.unsettled() else {
                continue;
            };
            if fill.pins > 0 {
                unsettled.insert(number);
            }
            for (node, packed) in work.pending.keys() {
                heap_bytes += pending_bytes(packed);
                assert!(
                    (0..last).any(|level| is_node(number, level, *node)),
                    "invariant 6"
                );
            }
            for ((level, node), from) in &work.unread {
                heap_bytes += pending_bytes(from);
                assert!(is_node(number, usize::from(*level), *node), "invariant 6");
            }
        }
        assert_eq!(
            self.by_prefix.len() + self.by_tail.len(),
            indexed,
            "invariant 2"
        );
        for (at, target) in self.targets.iter().enumerate() {
            let exists = self
                .records
                .at(at as u32)
                .is_some_and(|fill| !fill.is_vacant());
            assert!(
                exists || (target.group.is_none() && !target.unsettled),
                "invariant 3"
            );
        }
        assert_eq!(self.unsettled, unsettled, "invariant 4");
        assert_eq!(self.heap_bytes, heap_bytes, "invariant 5");
    }
}

/// Returns a filled range's key in `by_prefix` (`true`) or in `by_tail`.
fn index_key<'r>(range: &'r KeyRange, rows: &Rows) -> Option<(bool, &'r [u8])> {
    if is_successor(&range.lo, &range.hi) {
        return Some((true, &range.lo));
    }
    let head = rows.head(&range.lo)?;
    is_successor(head, &range.hi).then_some((false, head))
}

/// Memory of a key in an index, in bytes.
fn index_bytes(key: &[u8]) -> usize {
    key.len() + 32
}

/// Memory of a pending row or an unread rest, in bytes.
fn pending_bytes(packed: &[u8]) -> usize {
    packed.len() + 72
}
