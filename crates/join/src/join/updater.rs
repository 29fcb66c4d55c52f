//! Updaters: the outputs that a change to a source range must be applied to.
//!
//! A filled output range leaves an updater on each source range that it was computed from. A source range is a prefix
//! of the source's keys, so the updaters of one source are in lists by prefix. To find its lists, a change hashes one
//! prefix of its key per prefix length in use, usually one. A list is one memory block, which fan-out scans.
//!
//! 1. An entry does not store its position; its node stores list and position, and is updated when the entry moves.
//!    Removal therefore takes constant time.
//! 2. A change that is too large to apply immediately waits in the list's queue, oldest first. It has been applied to
//!    the entries before its `done`, and not to the others. `done` never increases along the queue.
//! 3. Empty lists are removed.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::base::hash::ByteMap;
use crate::base::pattern::{Pattern, Slot};
use crate::base::rows::Value;
use crate::base::slab::{Slab, Vacant};

/// An event to apply to the entries of a list.
#[derive(Debug)]
pub enum Event {
    Row(Change),
    /// Switches the range between copying on reads and on writes (see `auto`).
    Convert {
        pulled: bool,
    },
}

/// A change of one row.
#[derive(Debug)]
pub struct Change {
    pub key: Box<[u8]>,
    pub old: Option<Value>,
    pub new: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub fill: u32,
    /// The node's number, with the flag [`PLAIN`].
    node: u32,
}

/// Set if the output key is the fill's prefix plus a suffix that all plain entries of the list share.
const PLAIN: u32 = 1 << 31;

impl Entry {
    pub fn new(fill: u32, node: u32, plain: bool) -> Self {
        Self {
            fill,
            node: if plain { node | PLAIN } else { node },
        }
    }

    pub fn node(self) -> u32 {
        self.node & !PLAIN
    }

    pub fn is_plain(self) -> bool {
        self.node & PLAIN != 0
    }
}

#[derive(Debug)]
pub struct QueuedEvent {
    pub event: Rc<Event>,
    /// The change's number among all deferred changes.
    pub sequence: u64,
    done: usize,
}

#[derive(Debug, Default)]
pub struct List {
    pub entries: Vec<Entry>,
    pub queue: VecDeque<QueuedEvent>,
    pub prefix: Box<[u8]>,
    pub elements: usize,
    /// True if rows are copied only by reads (see `auto`). While a conversion is queued, this is the mode of entries
    /// that it was not applied to.
    pub pulled: bool,
    /// Number of writes to the range since the time `since`.
    pub writes: u32,
    pub since: u64,
}

impl Vacant for List {
    fn vacant() -> Self {
        Self::default()
    }

    fn is_vacant(&self) -> bool {
        self.entries.is_empty()
    }
}

/// All updaters on one source of a join.
#[derive(Debug, Default)]
pub struct Updaters {
    lengths: Vec<Length>,
    pub lists: Slab<List>,
    bytes: usize,
}

#[derive(Debug)]
struct Length {
    elements: usize,
    lists: ByteMap<u32>,
}

/// Memory of a list, besides its entries.
const LIST_BYTES: usize = 24;

impl Updaters {
    /// Adds an entry to the list of a prefix with `elements` elements of the source's pattern.
    pub fn add(
        &mut self,
        prefix: &[u8],
        elements: usize,
        entry: Entry,
        now: u64,
        moved: impl FnMut(Entry, u32),
    ) -> u32 {
        let length = match self.lengths.iter_mut().position(|l| l.elements == elements) {
            Some(at) => &mut self.lengths[at],
            None => {
                self.lengths.push(Length {
                    elements,
                    lists: ByteMap::default(),
                });
                self.lengths.last_mut().expect("added above")
            }
        };
        let number = match length.lists.get(prefix) {
            Some(&number) => number,
            None => {
                let list = List {
                    prefix: prefix.into(),
                    elements,
                    since: now,
                    ..List::default()
                };
                self.bytes += prefix.len() * 2 + LIST_BYTES;
                let number = self.lists.insert(list);
                length.lists.insert(prefix.into(), number);
                number
            }
        };
        let list = self.lists.get_mut(number);
        let before = list.entries.capacity();
        list.push(entry, moved);
        self.bytes += (list.entries.capacity() - before) * size_of::<Entry>();
        number
    }

    /// Removes and returns the entry at a position of a list.
    pub fn remove(&mut self, number: u32, position: u32, moved: impl FnMut(Entry, u32)) -> Entry {
        let list = self.lists.get_mut(number);
        let before = list.entries.capacity();
        let entry = list.remove(position as usize, moved);
        self.bytes -= (before - list.entries.capacity()) * size_of::<Entry>();
        if list.entries.is_empty() && list.queue.is_empty() {
            self.remove_list(number);
        }
        entry
    }

    /// Removes an empty list.
    pub fn remove_list(&mut self, number: u32) {
        let list = self.lists.remove(number);
        self.bytes -=
            list.prefix.len() * 2 + LIST_BYTES + list.entries.capacity() * size_of::<Entry>();
        let at = self
            .lengths
            .iter()
            .position(|l| l.elements == list.elements)
            .expect("invariant: the list has a length");
        self.lengths[at].lists.remove(&list.prefix);
        if self.lengths[at].lists.is_empty() {
            self.lengths.swap_remove(at);
        }
    }

    /// Passes the lists to which a change of `key` applies to `found`.
    pub fn lists_for(
        &self,
        key: &[u8],
        pattern: &Pattern,
        slots: &[Slot],
        mut found: impl FnMut(u32),
    ) {
        for length in &self.lengths {
            if let Some(len) = pattern.prefix_len(key, length.elements, slots)
                && let Some(&list) = length.lists.get(&key[..len])
            {
                found(list);
            }
        }
    }

    /// Checks invariants 2 and 3, and that each list is found by its prefix.
    ///
    /// # Panics
    /// An invariant is broken.
    pub fn check(&self) {
        let mut named = 0;
        for length in &self.lengths {
            for (prefix, number) in &length.lists {
                let list = self.lists.get(*number);
                assert!(
                    list.prefix == *prefix && list.elements == length.elements,
                    "list {number} is found by its prefix"
                );
                assert!(
                    !list.entries.is_empty() || !list.queue.is_empty(),
                    "invariant 3: list {number}"
                );
                let done = list.queue.iter().map(|waiting| waiting.done);
                let limits = std::iter::once(list.entries.len()).chain(done);
                assert!(
                    limits.is_sorted_by(|one, next| one >= next),
                    "invariant 2: list {number}"
                );
                named += 1;
            }
        }
        assert_eq!(named, self.lists.len(), "each list is found by its prefix");
    }

    pub fn memory_bytes(&self) -> usize {
        let tables: usize = self
            .lengths
            .iter()
            .map(|l| l.lists.capacity() * (size_of::<(Box<[u8]>, u32)>() + 1))
            .sum();
        self.bytes + self.lists.memory_bytes() + tables
    }
}

impl List {
    /// Adds an entry that reflects all queued changes, because it was computed from the current rows.
    fn push(&mut self, entry: Entry, mut moved: impl FnMut(Entry, u32)) {
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.entries.len() / 8 + 1);
        }
        self.entries.push(entry);
        let mut at = self.entries.len() - 1;
        moved(entry, at as u32);
        for waiting in 0..self.queue.len() {
            at = self.advance_entry(at, waiting, &mut moved);
        }
    }

    fn remove(&mut self, position: usize, mut moved: impl FnMut(Entry, u32)) -> Entry {
        let entry = self.entries[position];
        let mut at = position;
        for waiting in (0..self.queue.len()).rev() {
            if at < self.queue[waiting].done {
                self.queue[waiting].done -= 1;
                let last = self.queue[waiting].done;
                self.swap(at, last, &mut moved);
                at = last;
            }
        }
        let last = self.entries.len() - 1;
        self.swap(at, last, &mut moved);
        self.entries.pop();
        if self.entries.len() * 2 < self.entries.capacity() {
            self.entries
                .shrink_to(self.entries.len() + self.entries.len() / 8);
        }
        entry
    }

    /// Moves the entry at `at` past queued change number `waiting`, which it reflects. Returns its new position.
    pub fn advance_entry(
        &mut self,
        at: usize,
        waiting: usize,
        moved: &mut impl FnMut(Entry, u32),
    ) -> usize {
        let done = self.queue[waiting].done;
        assert!(at >= done, "invariant 2");
        self.swap(at, done, moved);
        self.queue[waiting].done += 1;
        done
    }

    fn swap(&mut self, a: usize, b: usize, moved: &mut impl FnMut(Entry, u32)) {
        if a != b {
            self.entries.swap(a, b);
            moved(self.entries[a], a as u32);
            moved(self.entries[b], b as u32);
        }
    }

    pub fn enqueue(&mut self, event: Rc<Event>, sequence: u64) {
        self.queue.push_back(QueuedEvent {
            event,
            sequence,
            done: 0,
        });
    }

    /// Returns the next entries, at most `budget`, that the oldest queued change must be applied to, and marks them as
    /// done.
    pub fn advance(&mut self, budget: usize) -> Option<(Rc<Event>, std::ops::Range<usize>)> {
        let waiting = self.queue.front_mut()?;
        let start = waiting.done;
        let end = self.entries.len().min(start.saturating_add(budget));
        waiting.done = end;
        Some((waiting.event.clone(), start..end))
    }

    /// Removes the oldest queued change if it was applied to all entries.
    pub fn retire(&mut self) -> Option<u64> {
        let done = self.queue.front()?.done == self.entries.len();
        if !done {
            return None;
        }
        let waiting = self.queue.pop_front()?;
        if let Event::Convert { pulled } = *waiting.event {
            self.pulled = pulled;
        }
        Some(waiting.sequence)
    }

    /// Returns whether an entry that reflects the first `seen` queued changes is copied only by reads.
    pub fn is_pulled(&self, seen: usize) -> bool {
        let converted = |waiting: &QueuedEvent| match *waiting.event {
            Event::Convert { pulled } => Some(pulled),
            Event::Row(_) => None,
        };
        let last = self.queue.iter().take(seen).rev().find_map(converted);
        last.unwrap_or(self.pulled)
    }

    /// Returns the index of the first queued change that was not applied to the entry at `at`.
    pub fn next_event(&self, at: usize) -> usize {
        self.queue
            .iter()
            .position(|w| at >= w.done)
            .unwrap_or(self.queue.len())
    }

    /// Returns the index of the first entry that does not reflect all queued changes.
    pub fn first_stale_entry(&self) -> usize {
        self.queue.back().map_or(self.entries.len(), |w| w.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_queue_positions_through_insertions_and_removals() {
        let mut list = List::default();
        let mut seen: Vec<(u32, usize)> = Vec::new();
        let change = Rc::new(Event::Convert { pulled: true });
        let mut state = 7_u32;
        let mut random = |n: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as usize % n
        };
        let mut next = 0;
        let mut events = 0;
        for _ in 0..2_000 {
            match random(5) {
                0 | 1 => {
                    list.push(Entry::new(next, 0, false), |_, _| {});
                    seen.push((next, events));
                    next += 1;
                }
                2 if !list.entries.is_empty() => {
                    let at = random(list.entries.len());
                    let fill = list.entries[at].fill;
                    list.remove(at, |_, _| {});
                    seen.retain(|(f, _)| *f != fill);
                }
                3 if list.queue.len() < 4 => {
                    list.enqueue(change.clone(), 0);
                    events += 1;
                }
                _ => {
                    if let Some((_, range)) = list.advance(random(3)) {
                        for entry in &list.entries[range] {
                            seen.iter_mut().find(|(f, _)| *f == entry.fill).unwrap().1 += 1;
                        }
                        while list.retire().is_some() {}
                    }
                }
            }
            for (at, entry) in list.entries.iter().enumerate() {
                let has = seen.iter().find(|(f, _)| *f == entry.fill).unwrap().1;
                let waiting = list.queue.len();
                assert_eq!(
                    has,
                    events - waiting + list.next_event(at),
                    "entry {} at {at}",
                    entry.fill
                );
            }
        }
    }
}
