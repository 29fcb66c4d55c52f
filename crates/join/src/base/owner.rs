//! Owners: which of several engines (shards) owns a key.
//!
//! The owner follows from the cluster slot of the key's leading column, the text between its first separator and the
//! second (`bob` in `post|bob|17`), or of the hash tag in that column (`{bob}`): so all rows of one column have one
//! owner, in every table, and what joins of one column need lies together.
//!
//! The engines of one process share the slots evenly. Those of a cluster are told who owns each ([`SlotOwners`]), and told
//! anew when that changes (see `shard::moved`).
//!
//! Tables whose rows come from elsewhere (see `supply`) have no owner: each engine keeps what it reads of them.

use std::sync::Arc;

use larder_types::{SLOTS, leading_column, row_slot};

use crate::base::key_range::{KeyRange, common_prefix};

/// The owner of what nobody owns.
pub const NOBODY: u16 = u16::MAX;

/// One engine among several, by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    pub index: u16,
    /// How many engines there are, also such that own nothing.
    pub count: u16,
    /// `None`: each owns as many slots as any other.
    owners: Option<Arc<SlotOwners>>,
}

/// Which engine owns each slot.
#[derive(Debug, PartialEq, Eq)]
pub struct SlotOwners {
    /// By slot; [`NOBODY`] where it has no owner.
    by_slot: Box<[u16]>,
    /// Those that own any, in their order.
    all: Box<[u16]>,
}

impl SlotOwners {
    /// `by_slot` has an owner for each of the 16,384 slots, or [`NOBODY`].
    pub fn new(by_slot: Vec<u16>) -> SlotOwners {
        assert_eq!(by_slot.len(), usize::from(SLOTS), "one owner a slot");
        let mut all = by_slot.clone();
        // Neighbours mostly have one owner.
        all.dedup();
        all.sort_unstable();
        all.dedup();
        SlotOwners {
            by_slot: by_slot.into(),
            all: all.into(),
        }
    }

    pub fn of(&self, slot: u16) -> u16 {
        self.by_slot[usize::from(slot)]
    }
}

/// Who owns the keys of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    One(u16),
    /// The range spans columns: each shard has some of its keys.
    All,
}

/// What all keys with the leading column of this key begin with; and whether more may follow: a key without a separator behind its
/// leading column is alone. Groups of one slot follow each other in the order of their keys.
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

/// The slot of all keys of a range, if they are of one leading column.
pub fn range_slot(lo: &[u8], hi: &[u8]) -> Option<u16> {
    let (prefix, is_point) = common_prefix(lo, hi);
    (is_point || leading_column(prefix).1).then(|| row_slot(prefix))
}

/// The slot of all keys that begin with some bytes, if they are of one leading column.
pub(crate) fn prefix_slot(prefix: &[u8]) -> Option<u16> {
    leading_column(prefix).1.then(|| row_slot(prefix))
}

impl Shard {
    /// One of `count` engines that share the slots evenly.
    pub fn new(index: u16, count: u16) -> Self {
        Shard {
            index,
            count,
            owners: None,
        }
    }

    /// One of `count` engines that own what they are told.
    pub fn among(index: u16, count: u16, owners: Arc<SlotOwners>) -> Self {
        let owners = Some(owners);
        Shard {
            index,
            count,
            owners,
        }
    }

    /// [`NOBODY`] where the key has no owner.
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
            Some(owners) => owners.of(slot),
            None => (u32::from(slot) * u32::from(self.count) / u32::from(SLOTS)) as u16,
        }
    }

    /// Whether it was told just these owners: `false` says nothing.
    pub fn goes_by(&self, told: &Arc<SlotOwners>) -> bool {
        let owners = self.owners.as_ref();
        owners.is_some_and(|owners| Arc::ptr_eq(owners, told))
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

    /// All engines that own any keys. [`NOBODY`] is among them if some keys have no owner.
    pub fn owners(&self) -> impl Iterator<Item = u16> + use<> {
        let told = self.owners.clone();
        let count = told
            .as_ref()
            .map_or(usize::from(self.count), |told| told.all.len());
        (0..count).map(move |at| told.as_ref().map_or(at as u16, |told| told.all[at]))
    }

    /// The other shards that have keys of a range.
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
    fn a_column_has_one_owner_in_every_table_and_however_it_is_asked_for() {
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
    fn groups_of_a_slot_follow_each_other_as_their_keys_do() {
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
    fn owners_that_are_told_have_what_they_are_told() {
        let mut by_slot = vec![7; usize::from(SLOTS)];
        by_slot[usize::from(row_slot(b"post|bob|1"))] = 2;
        by_slot[usize::from(row_slot(b"post|eve|1"))] = NOBODY;
        let shard = Shard::among(7, 9, Arc::new(SlotOwners::new(by_slot)));
        let owner = |key: &str| shard.owner_of(key.as_bytes());
        assert_eq!(
            [owner("t|bob|5"), owner("t|eve|5"), owner("t|ann|5")],
            [2, NOBODY, 7]
        );
        let others =
            |lo: &[u8], hi: &[u8]| -> Vec<u16> { shard.others(&KeyRange::new(lo, hi)).collect() };
        assert_eq!(others(b"t|bob|", b"t|bob}"), [2]);
        assert!(others(b"t|ann|", b"t|ann}").is_empty());
        assert_eq!(others(b"t|", b"t}"), [2, NOBODY]);
    }
}
