//! The replicated data: changes of slots' rows with their sequence numbers, and the assignment of slots to nodes.

use std::fmt;
use std::sync::Arc;

use crate::map::{Epoch, NodeId, Placement, Term};

/// A core of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub node: NodeId,
    pub core: u16,
}

/// A key with its value, or without one if the row is removed. One allocation, shared by the log and all streams.
#[derive(Clone, PartialEq, Eq)]
pub struct Row {
    /// The key, followed by the value.
    bytes: Arc<[u8]>,
    key_size: u32,
    is_removed: bool,
}

impl Row {
    /// # Panics
    /// If the key has 4 GiB or more.
    pub fn new(key: &[u8], value: Option<&[u8]>) -> Row {
        let value_bytes = value.unwrap_or_default();
        let zeros = std::iter::repeat_n(0, key.len() + value_bytes.len());
        let mut bytes: Arc<[u8]> = zeros.collect();
        let own = Arc::get_mut(&mut bytes).expect("the allocation is new and not shared");
        own[..key.len()].copy_from_slice(key);
        own[key.len()..].copy_from_slice(value_bytes);
        Row {
            bytes,
            key_size: u32::try_from(key.len()).expect("keys are at most 64 KiB"),
            is_removed: value.is_none(),
        }
    }

    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_size as usize]
    }

    /// `None` if the row is removed.
    pub fn value(&self) -> Option<&[u8]> {
        let value = &self.bytes[self.key_size as usize..];
        (!self.is_removed).then_some(value)
    }

    pub fn size(&self) -> usize {
        self.bytes.len()
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match self.value() {
            Some(value) => write!(out, "{}={}", text(self.key()), text(value)),
            None => write!(out, "{} removed", text(self.key())),
        }
    }
}

/// A position in the history of a slot. Changes are numbered from 1, across owners, and each has the term in which it was made.
/// Two changes with the same number and term are identical, and so are all changes before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    pub term: Term,
    pub number: u64,
}

/// A change of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    pub at: Position,
    pub row: Row,
    /// The slot's next change belongs to the same transaction: both count, or neither.
    pub is_open: bool,
}

/// A change that was executed.
#[derive(Debug, Clone, Copy)]
pub struct ExecutedChange<'a> {
    pub key: &'a [u8],
    /// `None` if the row is removed.
    pub value: Option<&'a [u8]>,
    /// See [`Entry::is_open`]. The change that ends the transaction must follow in the same turn.
    pub is_open: bool,
}

/// The nodes of a slot according to the map, each as its place for this slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    pub term: Term,
    pub owner: Option<Place>,
    pub in_sync: Vec<Place>,
    /// The in-sync replica to which the owner should hand over the slot.
    pub next_owner: Option<Place>,
    /// With the epoch in which the fill began, which distinguishes it from earlier fills.
    pub filling: Vec<(Place, Epoch)>,
}

impl Assignment {
    /// Converts a slot's placement in the map. `place` returns a node's core for this slot.
    pub fn of(
        placement: &Placement,
        heir: Option<NodeId>,
        place: impl Fn(NodeId) -> Place,
    ) -> Assignment {
        Assignment {
            term: placement.term,
            owner: placement.owner.map(&place),
            in_sync: placement.in_sync.iter().map(|node| place(*node)).collect(),
            next_owner: heir.map(&place),
            filling: placement
                .filling
                .iter()
                .map(|it| (place(it.node), it.began))
                .collect(),
        }
    }

    pub fn includes(&self, place: Place) -> bool {
        self.owner == Some(place)
            || self.in_sync.contains(&place)
            || self.filling.iter().any(|(it, _)| *it == place)
    }
}

/// Access to the rows of slots in the host's storage: the engine for owned slots, separate storage for others.
pub trait RowStore {
    fn get(&self, slot: u16, key: &[u8]) -> Option<Vec<u8>>;
    /// Puts a row, or removes it.
    fn set(&mut self, slot: u16, key: &[u8], value: Option<&[u8]>);
    /// Removes all rows of a slot.
    fn clear(&mut self, slot: u16);
    /// Reads rows in key order, starting after `after`, until they have `bytes` bytes; at least one if there is any. Returns
    /// whether the last row was read.
    fn read(&self, slot: u16, after: Option<&[u8]>, bytes: usize, into: &mut Vec<Row>) -> bool;
}
