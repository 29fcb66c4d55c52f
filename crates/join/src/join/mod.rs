//! One join: its definition, its output rows, and the state that keeps them fresh.
//!
//! - `joins`: all joins of an engine.
//! - `node`: the source rows that a fill was computed from.
//! - `updater`: the outputs that depend on a source range.
//! - `target`: the part of a fill's state that writes need.
//! - `page`: the split of a join's rows.
//! - `run`: the state of one evaluation; `combine` applies the rows that it finds.
//! - `tracked`: the keys that clients cache.

pub(crate) mod combine;
pub(crate) mod joins;
pub(crate) mod node;
pub(crate) mod page;
pub(crate) mod run;
pub(crate) mod target;
pub(crate) mod tracked;
pub(crate) mod updater;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use crate::base::hash::ByteMap;
use crate::base::key_range::{KeyRange, is_successor};
use crate::base::pattern::SlotBounds;
use larder_types::prefetch;

use crate::base::rows::{GroupId, Rows};
use crate::base::slab::{Slab, Vacant};
use crate::base::status::Status;
use crate::join::node::{Context, Inner, Leaf};
use crate::join::page::Page;
use crate::join::target::Target;
use crate::join::tracked::Tracked;
use crate::join::updater::{Entry, Updaters};
use crate::language::definition::{Definition, Source};
use crate::operators::output::Output;

pub type JoinId = u32;
pub type TableId = u32;

pub struct Join {
    pub id: JoinId,
    pub name: String,
    pub definition: Definition,
    /// The plan: the source that is read at each level.
    pub order: Vec<usize>,
    /// The table of each level's source.
    pub tables: Vec<TableId>,
    pub table: TableId,
    /// The joins that this one depends on, directly or through others, in dependency order.
    pub upstream: Vec<JoinId>,
    pub output: Output,
    /// This join's part of the pages of the output's table, if it is read in pages.
    pub page: Option<Page>,
    pub status: Status,
    /// Fills that cover all keys with a prefix, by that prefix. Most reads are of one of these, or are inside a tail.
    pub prefix_fills: ByteMap<u32>,
    /// Other fills that reach to the end of a group of the output's table, by the group's prefix.
    pub tail_fills: ByteMap<u32>,
    pub fills: Slab<Fill>,
    /// Indexed by fill.
    pub targets: Vec<Target>,
    /// The fill that covers the end of each group of the output's table, as of the last lookup. Indexed by group
    /// number.
    pub fill_of_group: Vec<u32>,
    pub inner: Slab<Inner>,
    pub leaves: Slab<Leaf>,
    pub contexts: Slab<Context>,
    /// Indexed by level.
    pub updaters: Vec<Updaters>,
    /// Lists with changes that have not been applied to all entries.
    pub lists_with_backlog: Vec<(u8, u32)>,
    /// Fills that other fills were computed from, and that have pending rows or drained groups.
    pub unsettled: BTreeSet<u32>,
    /// Memory of fills and inner nodes, besides their records.
    pub heap_bytes: usize,
    /// Statistics.
    pub filled: u64,
    pub evicted: u64,
    pub converted: u64,
    /// Number of invalid aggregates that ranges omitted.
    pub left_out: Cell<u64>,
    /// True if the tables that it reads report their changes to it.
    pub is_subscribed: bool,
    /// Keys of the output that clients cache.
    pub tracked: Tracked,
}

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
    pub unsettled: Option<Box<Unsettled>>,
    /// Number of other joins' nodes that were computed from rows of this range. The fill is not dropped while it is
    /// positive.
    pub pins: u32,
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

/// The work that a fill needs before it can be read.
#[derive(Debug, Default)]
pub struct Unsettled {
    /// Rows of checked sources that were added (`true`) or removed, by node and the slots that they bind. A row that
    /// was added and removed again is not in the map.
    pub pending: BTreeMap<(u32, Box<[u8]>), bool>,
    /// Nodes whose source range was read only below a key, by level and number, with that key (see `unread`).
    pub unread: BTreeMap<(u8, u32), Box<[u8]>>,
    /// Groups to compute again, after all other work.
    pub drained: BTreeSet<Box<[u8]>>,
}

impl Unsettled {
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.unread.is_empty() && self.drained.is_empty()
    }
}

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

/// Fills that are not maintained have no nodes.
pub const NO_NODE: u32 = u32::MAX >> 1;

impl Fill {
    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_prefix {
            key.starts_with(&self.prefix)
        } else {
            self.range.contains(key)
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.prefix.len() + self.packed.len()
    }
}

impl Join {
    pub fn new(
        id: JoinId,
        name: &str,
        definition: Definition,
        order: Vec<usize>,
        table: TableId,
        tables: Vec<TableId>,
    ) -> Self {
        let is_subscribed = definition.is_maintained();
        let updaters = order.iter().map(|_| Updaters::default()).collect();
        let rows = Rows::new(definition.shape.output.split(&definition.slots));
        Join {
            id,
            name: name.to_string(),
            definition,
            order,
            tables,
            table,
            upstream: Vec::new(),
            output: Output::new(rows),
            page: None,
            status: Status::default(),
            prefix_fills: ByteMap::default(),
            tail_fills: ByteMap::default(),
            fills: Slab::default(),
            targets: Vec::new(),
            fill_of_group: Vec::new(),
            inner: Slab::default(),
            leaves: Slab::default(),
            contexts: Slab::default(),
            updaters,
            lists_with_backlog: Vec::new(),
            unsettled: BTreeSet::new(),
            heap_bytes: 0,
            filled: 0,
            evicted: 0,
            converted: 0,
            left_out: Cell::default(),
            is_subscribed,
            tracked: Tracked::default(),
        }
    }

    /// Returns whether a number still identifies the fill with this serial.
    pub fn is_fill_current(&self, number: u32, serial: u32) -> bool {
        let fill = self.fills.at(number);
        fill.is_some_and(|fill| fill.serial == serial && !fill.is_vacant())
    }

    pub fn source(&self, level: usize) -> &Source {
        &self.definition.sources[self.order[level]]
    }

    pub fn last_level(&self) -> usize {
        self.order.len() - 1
    }

    /// Adds an updater. Returns the number of its list.
    pub fn add_updater(
        &mut self,
        level: usize,
        prefix: &[u8],
        elements: usize,
        entry: Entry,
        now: u64,
    ) -> u32 {
        let is_last = level == self.last_level();
        let (leaves, inner) = (&mut self.leaves, &mut self.inner);
        self.updaters[level].add(prefix, elements, entry, now, |entry, position| {
            store_position(leaves, inner, is_last, entry, position);
        })
    }

    pub fn remove_updater(&mut self, level: usize, list: u32, position: u32) {
        let is_last = level == self.last_level();
        let (leaves, inner) = (&mut self.leaves, &mut self.inner);
        self.updaters[level].remove(list, position, |entry, position| {
            store_position(leaves, inner, is_last, entry, position);
        });
    }

    /// Moves an entry past one more pending change of its list, which it reflects. Returns its new position.
    pub fn advance_entry(&mut self, level: usize, list: u32, at: usize, waiting: usize) -> usize {
        let is_last = level == self.last_level();
        let (leaves, inner) = (&mut self.leaves, &mut self.inner);
        self.updaters[level].lists.get_mut(list).advance_entry(
            at,
            waiting,
            &mut |entry, position| {
                store_position(leaves, inner, is_last, entry, position);
            },
        )
    }

    /// Returns the outstanding work of a fill, for additions.
    pub fn mark_unsettled(&mut self, fill: u32) -> &mut Unsettled {
        if self.fills.get(fill).pins > 0 {
            self.unsettled.insert(fill);
            self.tracked.mark_downstream_stale();
        }
        self.tracked.mark_range_stale(&self.fills.get(fill).range);
        self.targets[fill as usize].unsettled = true;
        self.fills.get_mut(fill).unsettled.get_or_insert_default()
    }

    /// Changes the number of other joins' nodes that were computed from rows of a fill.
    pub fn pin(&mut self, number: u32, change: i32) {
        let fill = self.fills.get_mut(number);
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

    /// Marks a fill as settled.
    pub fn mark_settled(&mut self, fill: u32) {
        self.fills.get_mut(fill).unsettled = None;
        self.targets[fill as usize].unsettled = false;
        self.unsettled.remove(&fill);
    }

    /// Returns the fill that covers the complete range, if there is one.
    pub fn covering(&self, range: &KeyRange) -> Option<u32> {
        if is_successor(&range.lo, &range.hi)
            && let Some(&number) = self.prefix_fills.get(&range.lo)
        {
            return Some(number);
        }
        if let Some(head) = self.output.rows.head(&range.lo) {
            if (range.hi.starts_with(head) || is_successor(head, &range.hi))
                && let Some(&number) = self.prefix_fills.get(head)
            {
                return Some(number);
            }
            if let Some(&number) = self.tail_fills.get(head) {
                let filled = &self.fills.get(number).range;
                if filled.lo <= range.lo && range.hi <= filled.hi {
                    return Some(number);
                }
            }
        }
        self.status.covering(&range.lo, &range.hi)
    }

    /// Returns the fill that covers the end of a group, or the complete group.
    pub fn fill_of_head(&self, head: &[u8]) -> Option<u32> {
        self.tail_fills
            .get(head)
            .or_else(|| self.prefix_fills.get(head))
            .copied()
    }

    /// Returns a filled range's key in `wholes` (`true`) or in `tails`.
    fn index_key<'r>(&self, range: &'r KeyRange) -> Option<(bool, &'r [u8])> {
        if is_successor(&range.lo, &range.hi) {
            return Some((true, &range.lo));
        }
        let head = self.output.rows.head(&range.lo)?;
        is_successor(head, &range.hi).then_some((false, head))
    }

    /// Looks up the group of a fill's prefix, for fan-out and reads.
    pub fn update_target(&mut self, number: u32) {
        let fill = self.fills.get(number);
        let mut target = Target::new(fill, &self.output.rows);
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
            if group >= self.fill_of_group.len() {
                self.fill_of_group.reserve_exact(
                    (group + 1 - self.fill_of_group.len()).max(self.fill_of_group.len() / 8 + 4),
                );
                self.fill_of_group.resize(group + 1, u32::MAX);
            }
            self.fill_of_group[group] = number;
        }
    }

    /// Prefetches the number of the fill that covers a group.
    pub fn prefetch_fill(&self, group: GroupId) {
        if let Some(fill) = self.fill_of_group.get(group.index()) {
            prefetch(fill);
        }
    }

    /// Prefetches the target of the fill that covers a group.
    pub fn prefetch_target(&self, group: GroupId) {
        let fill = self.fill_of_group.get(group.index());
        if let Some(target) = fill.and_then(|&fill| self.targets.get(fill as usize)) {
            prefetch(target);
        }
    }

    /// Records that a fill's range is filled.
    pub fn add_coverage(&mut self, number: u32) {
        let range = &self.fills.get(number).range;
        self.status.insert(range, number);
        if let Some((is_whole, name)) = self.index_key(range) {
            let (bytes, name) = (tail_bytes(name), name.into());
            let before = if is_whole {
                self.prefix_fills.insert(name, number)
            } else {
                self.tail_fills.insert(name, number)
            };
            if before.is_none() {
                self.heap_bytes += bytes;
            }
        }
        self.heap_bytes += range.lo.len() + range.hi.len();
    }

    pub fn remove_coverage(&mut self, number: u32) {
        let range = &self.fills.get(number).range;
        self.tracked.mark_range_stale(range);
        self.status.remove(range);
        if let Some((is_whole, name)) = self.index_key(range) {
            let bytes = tail_bytes(name);
            let known = if is_whole {
                &mut self.prefix_fills
            } else {
                &mut self.tail_fills
            };
            if known.get(name) == Some(&number) {
                known.remove(name);
                self.heap_bytes -= bytes;
            }
        }
        self.heap_bytes -= range.lo.len() + range.hi.len();
        self.targets[number as usize] = Target::default();
    }

    pub fn memory_bytes(&self) -> usize {
        self.output.memory_bytes()
            + self.status.memory_bytes()
            + self.fills.memory_bytes()
            + self.targets.capacity() * size_of::<Target>()
            + self.fill_of_group.capacity() * size_of::<u32>()
            + self.inner.memory_bytes()
            + self.leaves.memory_bytes()
            + self.contexts.memory_bytes()
            + self.heap_bytes
            + self
                .updaters
                .iter()
                .map(Updaters::memory_bytes)
                .sum::<usize>()
    }
}

fn tail_bytes(head: &[u8]) -> usize {
    head.len() + 32
}

/// Memory of a pending entry, in bytes.
pub fn pending_bytes(packed: &[u8]) -> usize {
    packed.len() + 72
}

/// Stores an entry's position in its node.
fn store_position(
    leaves: &mut Slab<Leaf>,
    inner: &mut Slab<Inner>,
    is_last: bool,
    entry: Entry,
    position: u32,
) {
    // An entry that is being removed first moves to the end of the list; its node no longer exists then.
    if is_last {
        if let Some(leaf) = leaves.at_mut(entry.node()) {
            leaf.position = position;
        }
    } else if let Some(inner) = inner.at_mut(entry.node()) {
        inner.position = position;
    }
}
