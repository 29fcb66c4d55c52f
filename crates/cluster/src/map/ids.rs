//! Names and numbers of a cluster that must not be mistaken for one another.

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
    /// The number that the map gives a member when it first joins: short, so that a map of
    /// thousands of slots stays small. It is never given again. 0 is nobody's.
    NodeId(u32)
}
number! {
    /// How many changes the map has seen.
    Epoch(u64)
}
number! {
    /// A slot's own number: the epoch at which its owner or its replicas in sync changed last.
    Term(u64)
}
number! {
    /// Which life of a node this is. It grows with each start, and whenever a node that lost its
    /// lease registers anew.
    Incarnation(u64)
}
number! {
    /// A cluster's identity: drawn at random when its map is created, and never changed. Two clusters of the same name differ in
    /// it. 0 in maps that were created before version 0.2.
    ClusterId(u64)
}
number! {
    /// What a data folder is known by: drawn at random when the folder is made. A node that comes
    /// back with another number has none of the rows that it had.
    DiskId(u64)
}

/// The name of a node, which never changes: 1 to 64 letters, digits, `_`, `-` and `.`, beginning
/// with a letter or a digit.
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

/// What a change is known by, drawn by who makes it. The map keeps that of the last change, so that
/// who got no reply reads the map and sees whether the change was made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChangeId(pub String);

impl fmt::Display for ChangeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a person's wish is known by (the key `asks/<id>`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AskId(pub String);

impl fmt::Display for AskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The slots `from` to `to`, both among them.
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

    /// How many slots these are.
    pub fn count(self) -> u32 {
        u32::from(self.to) + 1 - u32::from(self.from)
    }

    pub fn contains(self, slot: u16) -> bool {
        (self.from..=self.to).contains(&slot)
    }

    pub fn slots(self) -> impl Iterator<Item = u16> {
        self.from..=self.to
    }

    /// The slots that are in both.
    pub fn and(self, other: SlotRange) -> Option<SlotRange> {
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
