//! The nodes of all fills of a join, and the updaters that lead from source rows to them.
//!
//! 1. Each node has one entry in an updater list of its level, and stores its list and position.
//! 2. Each node is the root of one fill, or the child of one inner node of the same fill at the level before.
//! 3. A context belongs to one leaf.
//! 4. `backlog` contains the lists with queued changes, each once.
//! 5. `heap_bytes` is the memory of bound slots, children and contexts, besides their records.

use std::rc::Rc;

use crate::base::pattern::{Pattern, Slot};
use crate::base::slab::{Slab, Vacant};
use crate::join::fills::Fills;
use crate::join::node::{Context, Inner, Leaf, NO_CONTEXT};
use crate::join::updater::{Entry, Event, List, Updaters};

pub struct Nodes {
    inner: Slab<Inner>,
    leaves: Slab<Leaf>,
    contexts: Slab<Context>,
    /// Indexed by level.
    updaters: Vec<Updaters>,
    /// Level and number of each list with changes that have not been applied to all entries.
    backlog: Vec<(u8, u32)>,
    heap_bytes: usize,
}

/// The updater list of a new node: that of a prefix with this number of elements of the source's pattern.
pub struct ListKey<'k> {
    pub prefix: &'k [u8],
    pub elements: usize,
    pub now: u64,
}

impl Nodes {
    pub fn new(levels: usize) -> Nodes {
        Nodes {
            inner: Slab::default(),
            leaves: Slab::default(),
            contexts: Slab::default(),
            updaters: (0..levels).map(|_| Updaters::default()).collect(),
            backlog: Vec::new(),
            heap_bytes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.leaves.len() + self.inner.len()
    }

    #[inline]
    pub fn inner(&self, number: u32) -> &Inner {
        self.inner.get(number)
    }

    #[inline]
    pub fn leaf(&self, number: u32) -> &Leaf {
        self.leaves.get(number)
    }

    #[inline]
    pub fn context(&self, leaf: &Leaf) -> Option<&Context> {
        (leaf.context != NO_CONTEXT).then(|| self.contexts.get(leaf.context))
    }

    #[inline]
    pub fn list(&self, level: usize, number: u32) -> &List {
        self.updaters[level].lists.get(number)
    }

    #[inline]
    pub fn list_mut(&mut self, level: usize, number: u32) -> &mut List {
        self.updaters[level].lists.get_mut(number)
    }

    /// Returns the lists of a level that have entries.
    pub fn lists(&self, level: usize) -> impl Iterator<Item = (u32, &List)> {
        self.updaters[level].lists.iter()
    }

    /// Returns whether a list has entries. The number may be that of a removed list.
    pub fn has_list(&self, level: usize, number: u32) -> bool {
        let list = self.updaters[level].lists.at(number);
        list.is_some_and(|list| !list.is_vacant())
    }

    /// Passes the lists to which a change of `key` applies to `found`.
    #[inline]
    pub fn lists_for(
        &self,
        level: usize,
        key: &[u8],
        pattern: &Pattern,
        slots: &[Slot],
        found: impl FnMut(u32),
    ) {
        self.updaters[level].lists_for(key, pattern, slots, found);
    }

    /// Returns the lists with queued changes.
    #[inline]
    pub fn backlog(&self) -> &[(u8, u32)] {
        &self.backlog
    }

    fn last_level(&self) -> usize {
        self.updaters.len() - 1
    }

    /// Adds a leaf of a fill. `is_plain` is a property of its [`Entry`].
    pub fn add_leaf(
        &mut self,
        fill: u32,
        context: Option<Context>,
        is_plain: bool,
        list: &ListKey<'_>,
    ) -> u32 {
        let context = context.map_or(NO_CONTEXT, |context| {
            self.heap_bytes += context.packed.len();
            self.contexts.insert(context)
        });
        let node = self.leaves.insert(Leaf {
            list: u32::MAX,
            position: 0,
            context,
        });
        let list = self.add_entry(self.last_level(), list, Entry::new(fill, node, is_plain));
        self.leaves.get_mut(node).list = list;
        node
    }

    /// Adds an inner node, which has no children yet.
    pub fn add_inner(&mut self, inner: Inner, list: &ListKey<'_>) -> u32 {
        self.heap_bytes += inner.packed.len();
        let (fill, level) = (inner.fill, usize::from(inner.level));
        let node = self.inner.insert(inner);
        let list = self.add_entry(level, list, Entry::new(fill, node, false));
        self.inner.get_mut(node).list = list;
        node
    }

    pub fn remove_leaf(&mut self, node: u32) {
        let leaf = self.leaves.remove(node);
        if leaf.context != NO_CONTEXT {
            let context = self.contexts.remove(leaf.context);
            self.free(context.packed.len());
        }
        self.remove_entry(self.last_level(), node, leaf.list, leaf.position);
    }

    /// Removes an inner node. The caller removes its children.
    pub fn remove_inner(&mut self, node: u32) -> Inner {
        let inner = self.inner.remove(node);
        self.free(inner.packed.len() + inner.children.memory_bytes());
        self.remove_entry(usize::from(inner.level), node, inner.list, inner.position);
        inner
    }

    pub fn add_child(&mut self, node: u32, packed: &[u8], child: u32) {
        self.heap_bytes += self.inner.get_mut(node).children.insert(packed, child);
    }

    /// Reserves memory for `more` children.
    pub fn reserve_children(&mut self, node: u32, more: usize) {
        self.heap_bytes += self.inner.get_mut(node).children.reserve(more);
    }

    /// Removes and returns the child whose row binds these slots.
    pub fn remove_child(&mut self, node: u32, packed: &[u8]) -> Option<u32> {
        let (child, freed) = self.inner.get_mut(node).children.remove(packed)?;
        self.free(freed);
        Some(child)
    }

    fn free(&mut self, bytes: usize) {
        let left = self.heap_bytes.checked_sub(bytes);
        self.heap_bytes = left.expect("invariant 5: freed memory was counted");
    }

    /// Adds an updater. Returns the number of its list.
    fn add_entry(&mut self, level: usize, list: &ListKey<'_>, entry: Entry) -> u32 {
        let is_last = level == self.last_level();
        let (leaves, inner) = (&mut self.leaves, &mut self.inner);
        self.updaters[level].add(
            list.prefix,
            list.elements,
            entry,
            list.now,
            |entry, position| store_position(leaves, inner, is_last, entry, position),
        )
    }

    fn remove_entry(&mut self, level: usize, node: u32, list: u32, position: u32) {
        let is_last = level == self.last_level();
        let (leaves, inner) = (&mut self.leaves, &mut self.inner);
        let entry = self.updaters[level].remove(list, position, |entry, position| {
            store_position(leaves, inner, is_last, entry, position);
        });
        assert_eq!(entry.node(), node, "invariant 1");
    }

    /// Moves an entry past one more queued change of its list, which it reflects. Returns its new position.
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

    /// Queues an event, to be applied to the entries of a list in steps. Returns whether the list is new in the backlog.
    pub fn enqueue(&mut self, level: usize, number: u32, event: Event, sequence: u64) -> bool {
        let list = self.updaters[level].lists.get_mut(number);
        let is_first = list.queue.is_empty();
        if is_first {
            self.backlog.push((level as u8, number));
        }
        list.enqueue(Rc::new(event), sequence);
        is_first
    }

    /// Removes a list with an empty queue from the backlog.
    pub fn remove_from_backlog(&mut self, level: u8, number: u32) {
        self.backlog.retain(|list| *list != (level, number));
        let updaters = &mut self.updaters[usize::from(level)];
        let list = updaters.lists.get(number);
        assert!(list.queue.is_empty(), "invariant 4");
        if list.entries.is_empty() {
            updaters.remove_list(number);
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let updaters = self.updaters.iter().map(Updaters::memory_bytes);
        self.inner.memory_bytes()
            + self.leaves.memory_bytes()
            + self.contexts.memory_bytes()
            + updaters.sum::<usize>()
            + self.heap_bytes
    }

    /// Returns whether a node of a level belongs to a fill.
    pub fn is_node_of(&self, fill: u32, level: usize, node: u32) -> bool {
        let (list, position) = if level == self.last_level() {
            match self.leaves.at(node) {
                Some(leaf) if !leaf.is_vacant() => (leaf.list, leaf.position),
                _ => return false,
            }
        } else {
            match self.inner.at(node) {
                Some(inner) if !inner.is_vacant() && usize::from(inner.level) == level => {
                    (inner.list, inner.position)
                }
                _ => return false,
            }
        };
        let entry = self.list(level, list).entries.get(position as usize);
        entry.is_some_and(|entry| entry.node() == node && entry.fill == fill)
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// An invariant is broken.
    pub fn check(&self, fills: &Fills) {
        let (mut entries, mut heap_bytes, mut children, mut contexts) = (0, 0, 0, 0);
        for (level, updaters) in self.updaters.iter().enumerate() {
            updaters.check();
            for (number, list) in updaters.lists.iter() {
                assert!(
                    list.queue.is_empty() || self.backlog.contains(&(level as u8, number)),
                    "invariant 4: list {number} of level {level}"
                );
                entries += list.entries.len();
                for entry in &list.entries {
                    let is_node = self.is_node_of(entry.fill, level, entry.node());
                    assert!(is_node, "invariant 1: {entry:?} of level {level}");
                }
            }
        }
        assert_eq!(entries, self.len(), "invariant 1");
        for (at, (level, number)) in self.backlog.iter().enumerate() {
            let list = self.list(usize::from(*level), *number);
            assert!(!list.queue.is_empty(), "invariant 4");
            let is_repeated = self.backlog[..at].contains(&(*level, *number));
            assert!(!is_repeated, "invariant 4");
        }
        for (_, inner) in self.inner.iter() {
            heap_bytes += inner.packed.len() + inner.children.memory_bytes();
            for child in inner.children.nodes() {
                let is_node = self.is_node_of(inner.fill, usize::from(inner.level) + 1, child);
                assert!(is_node, "invariant 2: {inner:?}");
                children += 1;
            }
        }
        for (number, fill) in fills.iter() {
            if let Some(root) = fill.root() {
                assert!(
                    self.is_node_of(number, 0, root),
                    "invariant 2: fill {number}"
                );
                children += 1;
            }
            for leaf in &fill.pulled {
                let is_leaf = self.is_node_of(number, self.last_level(), *leaf);
                assert!(is_leaf, "a fill's leaf in pull mode exists");
            }
        }
        assert_eq!(children, self.len(), "invariant 2");
        for (_, leaf) in self.leaves.iter() {
            if let Some(context) = self.context(leaf) {
                assert!(!context.is_vacant(), "invariant 3");
                heap_bytes += context.packed.len();
                contexts += 1;
            }
        }
        assert_eq!(contexts, self.contexts.len(), "invariant 3");
        assert_eq!(heap_bytes, self.heap_bytes, "invariant 5");
    }
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
