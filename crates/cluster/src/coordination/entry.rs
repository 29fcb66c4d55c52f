//! The coordination service's data: keys with values, where a revision numbers each change.

use std::fmt;

use bytes::Bytes;

/// The number of a change. The service numbers all changes of all keys in one sequence that never decreases. Zero precedes the
/// first change: a key with modification revision zero does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The service's number of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    /// As part of a key: sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Bytes,
    /// The revision since which the key has existed without interruption. Serves as the fence of a candidate or a registration.
    pub created: Revision,
    /// The revision of the last write of its value.
    pub modified: Revision,
    /// The lease whose end deletes the key.
    pub lease: Option<LeaseId>,
}

/// An applied change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEvent {
    pub key: String,
    pub revision: Revision,
    /// The entry from this revision on; `None` if the key was deleted.
    pub entry: Option<Entry>,
}

/// One key, or all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Keys {
    One(String),
    /// All keys with this prefix. The empty prefix selects all keys of the cluster.
    Prefix(String),
}

impl Keys {
    pub fn one(key: impl Into<String>) -> Keys {
        Keys::One(key.into())
    }

    pub fn with_prefix(prefix: impl Into<String>) -> Keys {
        Keys::Prefix(prefix.into())
    }

    pub fn contains(&self, key: &str) -> bool {
        match self {
            Keys::One(one) => one == key,
            Keys::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }

    /// Returns the key, or the prefix.
    pub fn text(&self) -> &str {
        match self {
            Keys::One(text) | Keys::Prefix(text) => text,
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keys::One(key) => f.write_str(key),
            Keys::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

/// The state of several keys at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub revision: Revision,
    /// Sorted by key.
    pub entries: Vec<Entry>,
}

/// The data that suffices to detect whether a copy is incomplete, without values. See [`super::Mirror::agrees`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentWrites {
    pub revision: Revision,
    /// The number of existing keys.
    pub count: u64,
    /// The keys written after the requested revision, with their revisions.
    pub written: Vec<(String, Revision)>,
}
