//! What is replicated: rows of slots, each change with its number, and who has them.

use std::fmt;
use std::sync::Arc;

use crate::map::{Epoch, NodeId, Placed, Term};

/// A core of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub node: NodeId,
    pub core: u16,
}

/// A key with its value, or with none if it is removed: one allocation, shared by the log and all streams.
#[derive(Clone, PartialEq, Eq)]
pub struct Row {
    /// The key, then the value.
    bytes: Arc<[u8]>,
    key_size: u32,
    is_removed: bool,
}

impl Row {
    /// # Panics
    /// If the key is 4 GiB long.
    pub fn new(key: &[u8], value: Option<&[u8]>) -> Row {
        let value_bytes = value.unwrap_or_default();
        let zeros = std::iter::repeat_n(0, key.len() + value_bytes.len());
        let mut bytes: Arc<[u8]> = zeros.collect();
        let own = Arc::get_mut(&mut bytes).expect("nobody else has it");
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

    /// None: the row is removed.
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

/// A place in the history of a slot: changes are numbered from 1 on, whoever owns it, and each has the term in which it was made.
/// Two changes with the same number and term are the same, and so is all that is before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    pub term: Term,
    pub number: u64,
}

/// A change of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub at: Position,
    pub row: Row,
    /// The slot's next change is of the same transaction: both count, or neither.
    pub is_open: bool,
}

/// A change that was executed.
#[derive(Debug, Clone, Copy)]
pub struct Changed<'a> {
    pub key: &'a [u8],
    /// None: the row is removed.
    pub value: Option<&'a [u8]>,
    /// See [`Entry::is_open`]. The change that ends the transaction must come in the same turn.
    pub is_open: bool,
}

/// Who has a slot by the map, each node by its place for this slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    pub term: Term,
    pub owner: Option<Place>,
    pub in_sync: Vec<Place>,
    /// Who of these the owner is to give the slot to.
    pub heir: Option<Place>,
    /// With the epoch in which the filling began, which tells it from earlier ones.
    pub filling: Vec<(Place, Epoch)>,
}

impl Assignment {
    /// What the map says of a slot, and who the owner is to give it to; `place` knows how many cores each node has.
    pub fn of(
        placed: &Placed,
        heir: Option<NodeId>,
        place: impl Fn(NodeId) -> Place,
    ) -> Assignment {
        Assignment {
            term: placed.term,
            owner: placed.owner.map(&place),
            in_sync: placed.in_sync.iter().map(|node| place(*node)).collect(),
            heir: heir.map(&place),
            filling: placed
                .filling
                .iter()
                .map(|it| (place(it.node), it.began))
                .collect(),
        }
    }

    pub fn names(&self, place: Place) -> bool {
        self.owner == Some(place)
            || self.in_sync.contains(&place)
            || self.filling.iter().any(|(it, _)| *it == place)
    }
}

/// The rows of slots, wherever the host keeps them: those of own slots in its engine, others beside it.
pub trait Rows {
    fn get(&self, slot: u16, key: &[u8]) -> Option<Vec<u8>>;
    /// Puts a row, or removes it.
    fn set(&mut self, slot: u16, key: &[u8], value: Option<&[u8]>);
    /// Removes all rows of a slot.
    fn clear(&mut self, slot: u16);
    /// Rows in the order of their keys, from behind `after` on, until they have so many bytes; at least one if there is one.
    /// Says whether the last is among them.
    fn read(&self, slot: u16, after: Option<&[u8]>, bytes: usize, into: &mut Vec<Row>) -> bool;
}
