//! Distinct types for the names and numbers of a cluster.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use larder_types::SLOTS;
use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number! {
    /// A member's number, which the map assigns when the member first joins. It is short, so that a map with thousands of runs
    /// stays small. Numbers are never reused. 0 is not assigned.
    NodeId(u32)
}
number! {
    /// The version number of the map: the number of changes made so far.
    Epoch(u64)
}
number! {
    /// A slot's term: the epoch at which its owner or its in-sync set last changed.
    Term(u64)
}
number! {
    /// The incarnation of a node. It increases with each start, and whenever a node that lost its lease registers again.
    Incarnation(u64)
}
number! {
    /// A cluster's identity: drawn at random when its map is created, and never changed. It distinguishes clusters of the same
    /// name. 0 in maps that were created before version 0.2.
    ClusterId(u64)
}
number! {
    /// The identity of a data folder: drawn at random when the folder is created. A node that returns with another number has
    /// none of its previous rows.
    DiskId(u64)
}

/// The name of a node, which never changes: 1 to 64 letters, digits, `_`, `-` and `.`, beginning with a letter or a digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

impl NodeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<NodeName, String> {
        let first_ok = text
            .as_bytes()
            .first()
            .is_some_and(u8::is_ascii_alphanumeric);
        let rest_ok = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
        if first_ok && rest_ok && text.len() <= 64 {
            return Ok(NodeName(text.into()));
        }
        let shown: String = text.chars().take(80).collect();
        Err(format!(
            "node name {shown:?} is not allowed; use 1 to 64 letters, digits, '_', '-' or '.', beginning with a letter or digit"
        ))
    }
}

impl TryFrom<String> for NodeName {
    type Error = String;

    fn try_from(text: String) -> Result<NodeName, String> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0.as_ref().to_owned()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeName({})", self.0)
    }
}

/// The id of a change, chosen by the node that makes it. The map contains the id of its last change, so that a node that received
/// no reply can read from the map whether its change was made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeId(pub String);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of an operator request (the key `asks/<id>`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestId(pub String);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The slots `from` to `to`, both inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(u16, u16)", into = "(u16, u16)")]
pub struct SlotRange {
    pub from: u16,
    pub to: u16,
}

impl SlotRange {
    pub const ALL: SlotRange = SlotRange {
        from: 0,
        to: SLOTS - 1,
    };

    pub fn new(from: u16, to: u16) -> SlotRange {
        SlotRange { from, to }
    }

    /// The number of slots.
    pub fn count(self) -> u32 {
        u32::from(self.to) + 1 - u32::from(self.from)
    }

    pub fn contains(self, slot: u16) -> bool {
        (self.from..=self.to).contains(&slot)
    }

    pub fn slots(self) -> impl Iterator<Item = u16> {
        self.from..=self.to
    }

    /// The intersection of both ranges.
    pub fn intersection(self, other: SlotRange) -> Option<SlotRange> {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (from <= to).then_some(SlotRange { from, to })
    }
}

impl From<(u16, u16)> for SlotRange {
    fn from((from, to): (u16, u16)) -> SlotRange {
        SlotRange { from, to }
    }
}

impl From<SlotRange> for (u16, u16) {
    fn from(range: SlotRange) -> (u16, u16) {
        (range.from, range.to)
    }
}

impl fmt::Display for SlotRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from == self.to {
            write!(f, "slot {}", self.from)
        } else {
            write!(f, "slots {}-{}", self.from, self.to)
        }
    }
}
