//! What the coordination service holds: keys with values, each change of them numbered by a revision.

use std::fmt;

use bytes::Bytes;

/// The number of a change. The service counts all changes of all keys in one line, and never counts back.
/// Zero comes before the first change: a key that was changed last at revision zero does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease, as the service numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    /// As a key's part: sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Bytes,
    /// Since when it has existed without a break: the token of a candidacy or of a registration.
    pub created: Revision,
    /// When its value was written last.
    pub modified: Revision,
    /// It goes when this lease ends.
    pub lease: Option<LeaseId>,
}

/// A change of one key that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub key: String,
    pub revision: Revision,
    /// The key as it is from this revision on; `None`: it was deleted.
    pub entry: Option<Entry>,
}

/// One key, or all that begin alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keys {
    One(String),
    /// All that begin with this text; the empty text means all keys of the cluster.
    Below(String),
}

impl Keys {
    pub fn one(key: impl Into<String>) -> Keys {
        Keys::One(key.into())
    }

    pub fn below(prefix: impl Into<String>) -> Keys {
        Keys::Below(prefix.into())
    }

    pub fn contain(&self, key: &str) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Below(prefix) => key.starts_with(prefix.as_str()),
        }
    }

    /// The key itself, or what all of them begin with.
    pub fn text(&self) -> &str {
        match self {
            Keys::One(text) | Keys::Below(text) => text,
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keys::One(key) => f.write_str(key),
            Keys::Below(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// Keys as they were together at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: Revision,
    /// In the order of their keys.
    pub entries: Vec<Entry>,
}

/// What is enough to find out whether a copy misses something, without the values; see [`super::Mirror::agrees`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    pub revision: Revision,
    /// How many of the keys exist.
    pub count: u64,
    /// Those that were written after the revision asked about, and when.
    pub written: Vec<(String, Revision)>,
}
