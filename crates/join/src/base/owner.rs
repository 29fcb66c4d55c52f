//! Ownership of keys by engines (shards).
//!
//! A key's owner is the owner of the hash slot of its leading column, the text between its first and second separator
//! (`bob` in `post|bob|17`), or of the hash tag in that column (`{bob}`). All rows of one column, in every table,
//! therefore have one owner, and a join over that column needs only that engine's rows.
//!
//! The engines of a single node share the slots evenly. In a cluster, each engine is given the owner of each slot
//! ([`SlotOwners`]), and again after each change (see `shard::moved`).
//!
//! Tables with rows from a database (see `supply`) have no owner: each engine keeps the rows that it reads.

use std::sync::Arc;

use larder_types::{SLOTS, leading_column, row_slot};

use crate::base::key_range::{KeyRange, common_prefix};

/// The owner of a slot without an owner.
pub const NO_OWNER: u16 = u16::MAX;

/// One of several engines, identified by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    pub index: u16,
    /// Number of engines, including those that own nothing.
    pub count: u16,
    /// `None`: the slots are divided evenly.
    owners: Option<Arc<SlotOwners>>,
}

/// The owner of each slot.
#[derive(Debug, PartialEq, Eq)]
pub struct SlotOwners {
    /// Indexed by slot; [`NO_OWNER`] if a slot has no owner.
    by_slot: Box<[u16]>,
    /// The engines that own slots, in ascending order.
    all: Box<[u16]>,
}

impl SlotOwners {
    /// `by_slot` has one entry for each of the 16,384 slots: its owner or [`NO_OWNER`].
    pub fn new(by_slot: Vec<u16>) -> SlotOwners {
        assert_eq!(by_slot.len(), usize::from(SLOTS), "one owner per slot");
        let mut all = by_slot.clone();
        // Adjacent slots mostly have the same owner.
        all.dedup();
        all.sort_unstable();
        all.dedup();
        SlotOwners {
            by_slot: by_slot.into(),
            all: all.into(),
        }
    }

    pub fn owner_of(&self, slot: u16) -> u16 {
        self.by_slot[usize::from(slot)]
    }
}

/// The owner of a range of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    One(u16),
    /// The range spans leading columns: each shard may own some of its keys.
    All,
}

/// Returns the common prefix of all keys with this key's leading column, and whether more bytes may follow. A key
/// without a separator after its leading column is a group of its own. Groups of the same slot are in key order.
pub fn column_group(key: &[u8]) -> (&[u8], bool) {
    let (column, is_ended) = leading_column(key);
    if !is_ended {
        return (key, false);
    }
    let is_separator = |byte: &u8| matches!(byte, b'|' | b':');
    let name = match key.iter().position(is_separator) {
        Some(end) => end + 1,
        None => 0,
    };
    let end = name + column.len();
    (&key[..=end], true)
}

/// Returns the slot of all keys of a range, if they share one leading column.
pub fn range_slot(lo: &[u8], hi: &[u8]) -> Option<u16> {
    let (prefix, is_point) = common_prefix(lo, hi);
    (is_point || leading_column(prefix).1).then(|| row_slot(prefix))
}

/// Returns the slot of all keys with a prefix, if they share one leading column.
pub(crate) fn prefix_slot(prefix: &[u8]) -> Option<u16> {
    leading_column(prefix).1.then(|| row_slot(prefix))
}

impl Shard {
    /// Creates one of `count` engines that share the slots evenly.
    pub fn new(index: u16, count: u16) -> Self {
        Shard {
            index,
            count,
            owners: None,
        }
    }

    /// Creates one of `count` engines with explicit owners.
    pub fn with_owners(index: u16, count: u16, owners: Arc<SlotOwners>) -> Self {
        let owners = Some(owners);
        Shard {
            index,
            count,
            owners,
        }
    }

    /// Returns the owner of `key`, or [`NO_OWNER`].
    #[inline]
    pub fn owner_of(&self, key: &[u8]) -> u16 {
        match self.count {
            1 => 0,
            _ => self.owner_of_slot(row_slot(key)),
        }
    }

    #[inline]
    pub fn owner_of_slot(&self, slot: u16) -> u16 {
        match &self.owners {
            Some(owners) => owners.owner_of(slot),
            None => (u32::from(slot) * u32::from(self.count) / u32::from(SLOTS)) as u16,
        }
    }

    /// Returns whether the shard uses this very table of owners. A different table may have the same content.
    pub fn uses_owners(&self, by_slot: &Arc<SlotOwners>) -> bool {
        let owners = self.owners.as_ref();
        owners.is_some_and(|owners| Arc::ptr_eq(owners, by_slot))
    }

    pub fn owns(&self, key: &[u8]) -> bool {
        self.owner_of(key) == self.index
    }

    pub fn owner_of_range(&self, lo: &[u8], hi: &[u8]) -> Owner {
        if self.count == 1 {
            return Owner::One(0);
        }
        match range_slot(lo, hi) {
            Some(slot) => Owner::One(self.owner_of_slot(slot)),
            None => Owner::All,
        }
    }

    /// Returns all engines that own slots, and [`NO_OWNER`] if some slots have no owner.
    pub fn owners(&self) -> impl Iterator<Item = u16> + use<> {
        let table = self.owners.clone();
        let count = table
            .as_ref()
            .map_or(usize::from(self.count), |told| told.all.len());
        (0..count).map(move |at| table.as_ref().map_or(at as u16, |owners| owners.all[at]))
    }

    /// Returns the other shards that may own keys of a range.
    pub(crate) fn others(&self, range: &KeyRange) -> impl Iterator<Item = u16> + use<> {
        let (one, all) = match self.owner_of_range(&range.lo, &range.hi) {
            Owner::One(one) => (Some(one), None),
            Owner::All => (None, Some(self.owners())),
        };
        let index = self.index;
        let found = one.into_iter().chain(all.into_iter().flatten());
        found.filter(move |&other| other != index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_column_has_one_owner_in_every_table_and_in_every_form_of_range() {
        let shard = Shard::new(0, 5);
        for user in ["ann", "bob", "{x}1", "", "u:"] {
            let owner = shard.owner_of(format!("post|{user}").as_bytes());
            let user = user.trim_end_matches(':');
            for key in [
                format!("post|{user}|17"),
                format!("tline:{user}:1|{{y}}"),
                format!("t|{user}|"),
            ] {
                assert_eq!(shard.owner_of(key.as_bytes()), owner, "{key}");
            }
            for (lo, hi) in [
                (format!("post|{user}|"), format!("post|{user}}}")),
                (format!("post|{user}|1"), format!("post|{user}|2")),
                (format!("post:{user}:1"), format!("post:{user};")),
                (format!("post|{user}"), format!("post|{user}\0")),
            ] {
                let of_range = shard.owner_of_range(lo.as_bytes(), hi.as_bytes());
                assert_eq!(of_range, Owner::One(owner), "{lo}..{hi}");
            }
        }
        assert_eq!(shard.owner_of(b"a|{x}1|2"), shard.owner_of(b"b|{x}2"));
        for (lo, hi) in [
            ("post|", "post}"),
            ("post|bob", "post|boc"),
            ("post|bob", "post|bob}"),
            ("post|bob", "post|bob|"),
        ] {
            let of_range = shard.owner_of_range(lo.as_bytes(), hi.as_bytes());
            assert_eq!(of_range, Owner::All, "{lo}..{hi}");
        }
    }

    #[test]
    fn groups_of_a_slot_sort_like_their_keys() {
        let groups: [(&str, &str, bool); 6] = [
            ("post|bob|17", "post|bob|", true),
            ("post:bob:17|x", "post:bob:", true),
            ("post|bob", "post|bob", false),
            ("post||", "post||", true),
            ("post|", "post|", false),
            ("post", "post", false),
        ];
        for (key, group, is_open) in groups {
            assert_eq!(column_group(key.as_bytes()), (group.as_bytes(), is_open));
        }
        let mut keys = [
            "t|a", "t|a:5", "t|a|", "t|a|5", "t|a<|1", "t|ab|1", "t:a|1", "t|a|5|6",
        ];
        keys.sort_unstable();
        let groups = keys.map(|key| column_group(key.as_bytes()).0);
        assert!(groups.is_sorted(), "{groups:?}");
    }

    #[test]
    fn explicit_owners_own_their_assigned_slots() {
        let mut by_slot = vec![7; usize::from(SLOTS)];
        by_slot[usize::from(row_slot(b"post|bob|1"))] = 2;
        by_slot[usize::from(row_slot(b"post|eve|1"))] = NO_OWNER;
        let shard = Shard::with_owners(7, 9, Arc::new(SlotOwners::new(by_slot)));
        let owner = |key: &str| shard.owner_of(key.as_bytes());
        assert_eq!(
            [owner("t|bob|5"), owner("t|eve|5"), owner("t|ann|5")],
            [2, NO_OWNER, 7]
        );
        let others =
            |lo: &[u8], hi: &[u8]| -> Vec<u16> { shard.others(&KeyRange::new(lo, hi)).collect() };
        assert_eq!(others(b"t|bob|", b"t|bob}"), [2]);
        assert!(others(b"t|ann|", b"t|ann}").is_empty());
        assert_eq!(others(b"t|", b"t}"), [2, NO_OWNER]);
    }
}
