//! The tree of nodes of a fill: the source rows that it was computed from, so that it can be maintained and taken back.
//!
//! ```text
//! fill t|ann|…  ──►  Inner: rows of s|ann|…        (a checked source: one child per row that has been applied)
//!                      ├── bob ──► Leaf: rows of p|bob|…
//!                      └── cid ──► Leaf: rows of p|cid|…   (the value's source: its rows are the output's)
//! ```
//!
//! 1. The children of an inner node are the checked rows that the output reflects. Later changes are in the fill's
//!    pending entries. The output can therefore be taken back exactly, whatever the source contains now.
//! 2. Each node has one entry in an updater list of its source, and stores its list and position.

use std::collections::BTreeMap;

use crate::base::pattern::{Slot, ids};
use crate::base::slab::Vacant;

/// A node on a checked source.
#[derive(Debug)]
pub struct Inner {
    pub fill: u32,
    pub level: u8,
    pub list: u32,
    pub position: u32,
    /// The slots that were bound when the node was reached, and their values.
    pub bound: u32,
    pub packed: Box<[u8]>,
    pub children: Children,
}

impl Vacant for Inner {
    fn vacant() -> Self {
        Inner {
            fill: u32::MAX,
            level: 0,
            list: u32::MAX,
            position: 0,
            bound: 0,
            packed: Box::default(),
            children: Children::Short {
                keys: Vec::new(),
                nodes: Vec::new(),
            },
        }
    }

    fn is_vacant(&self) -> bool {
        self.fill == u32::MAX
    }
}

/// A node on the value's source.
#[derive(Debug)]
pub struct Leaf {
    pub list: u32,
    pub position: u32,
    /// Slot values that are neither in the fill's prefix nor in the source's key, or [`NO_CONTEXT`].
    pub context: u32,
}

pub const NO_CONTEXT: u32 = u32::MAX;

impl Vacant for Leaf {
    fn vacant() -> Self {
        Leaf {
            list: u32::MAX,
            position: 0,
            context: NO_CONTEXT,
        }
    }

    fn is_vacant(&self) -> bool {
        self.list == u32::MAX
    }
}

/// Slot values that a leaf cannot derive from its fill and its source's keys.
#[derive(Debug, Default)]
pub struct Context {
    pub slots: u32,
    pub packed: Box<[u8]>,
}

impl Vacant for Context {
    fn vacant() -> Self {
        Self::default()
    }

    fn is_vacant(&self) -> bool {
        self.slots == 0
    }
}

/// Children, by the slots that their row binds.
#[derive(Debug)]
pub enum Children {
    /// Sorted numbers, for slots of at most eight bytes in total.
    Short {
        keys: Vec<u64>,
        nodes: Vec<u32>,
    },
    Long(BTreeMap<Box<[u8]>, u32>),
}

/// Memory of a child, besides the bytes of a long key.
const SHORT_BYTES: usize = size_of::<u64>() + size_of::<u32>();
const LONG_BYTES: usize = 40;

impl Children {
    /// Creates a container for children that bind `slots`.
    pub fn new(slots: u32, table: &[Slot]) -> Self {
        let width = ids(slots).try_fold(0, |sum, id| table[id as usize].width.map(|w| sum + w));
        match width {
            Some(width) if width <= 8 => Children::Short {
                keys: Vec::new(),
                nodes: Vec::new(),
            },
            _ => Children::Long(BTreeMap::new()),
        }
    }

    /// Adds a child. Returns the additional memory in bytes.
    pub fn insert(&mut self, packed: &[u8], node: u32) -> usize {
        match self {
            Children::Short { keys, nodes } => {
                let before = keys.capacity();
                let key = short(packed);
                let at = keys.partition_point(|k| *k < key);
                if keys.len() == keys.capacity() {
                    keys.reserve_exact(keys.len() / 8 + 2);
                    nodes.reserve_exact(keys.capacity() - nodes.len());
                }
                keys.insert(at, key);
                nodes.insert(at, node);
                (keys.capacity() - before) * SHORT_BYTES
            }
            Children::Long(map) => {
                map.insert(packed.into(), node);
                packed.len() + LONG_BYTES
            }
        }
    }

    /// Reserves memory for `more` children. Returns the additional memory in bytes.
    pub fn reserve(&mut self, more: usize) -> usize {
        let Children::Short { keys, nodes } = self else {
            return 0;
        };
        let before = keys.capacity();
        keys.reserve_exact(more);
        nodes.reserve_exact(more);
        (keys.capacity() - before) * SHORT_BYTES
    }

    /// Removes a child. Returns its node and the memory freed, in bytes.
    pub fn remove(&mut self, packed: &[u8]) -> Option<(u32, usize)> {
        match self {
            Children::Short { keys, nodes } => {
                let at = keys.binary_search(&short(packed)).ok()?;
                keys.remove(at);
                Some((nodes.remove(at), 0))
            }
            Children::Long(map) => map
                .remove(packed)
                .map(|node| (node, packed.len() + LONG_BYTES)),
        }
    }

    /// Passes all children to `each`, with the packed slots that they bind. `width` is the total width of short slots.
    pub fn drain(self, width: usize, mut each: impl FnMut(&[u8], u32)) {
        match self {
            Children::Short { keys, nodes } => {
                for (key, node) in keys.into_iter().zip(nodes) {
                    each(&key.to_be_bytes()[8 - width..], node);
                }
            }
            Children::Long(map) => map
                .into_iter()
                .for_each(|(packed, node)| each(&packed, node)),
        }
    }

    /// Iterates over the children's nodes.
    pub fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        let (short, long) = match self {
            Children::Short { nodes, .. } => (Some(nodes), None),
            Children::Long(map) => (None, Some(map.values())),
        };
        short
            .into_iter()
            .flatten()
            .chain(long.into_iter().flatten())
            .copied()
    }

    pub fn memory_bytes(&self) -> usize {
        match self {
            Children::Short { keys, .. } => keys.capacity() * SHORT_BYTES,
            Children::Long(map) => map.keys().map(|k| k.len() + LONG_BYTES).sum(),
        }
    }
}

fn short(packed: &[u8]) -> u64 {
    packed
        .iter()
        .fold(0, |word, &byte| word << 8 | u64::from(byte))
}
