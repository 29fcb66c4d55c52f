//! Owners: which of several engines (shards) owns a key.
//!
//! The owner follows from the cluster slot of the key's leading column, the text between its first separator and the
//! second (`bob` in `post|bob|17`), or of the hash tag in that column (`{bob}`): so all rows of one column have one
//! owner, in every table, and what joins of one column need lies together.
//!
//! Tables whose rows come from elsewhere (see `supply`) have no owner: each engine keeps what it reads of them.

use larder_types::{SLOTS, slot_of};

use crate::base::key_range::{KeyRange, common_prefix};

/// One engine among several, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    pub index: u16,
    pub count: u16,
}

/// Who owns the keys of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    One(u16),
    /// The range spans columns: each shard has some of its keys.
    All,
}

/// A key's leading column; `true` if a separator ends it.
fn leading_column(key: &[u8]) -> (&[u8], bool) {
    let is_separator = |byte: &u8| matches!(byte, b'|' | b':');
    let Some(name) = key.iter().position(is_separator) else {
        return (key, false);
    };
    let rest = &key[name + 1..];
    match rest.iter().position(is_separator) {
        Some(end) => (&rest[..end], true),
        None => (rest, false),
    }
}

impl Shard {
    pub fn new(index: u16, count: u16) -> Self {
        Shard { index, count }
    }

    pub fn owner_of(self, key: &[u8]) -> u16 {
        if self.count == 1 {
            return 0;
        }
        let slot = u32::from(slot_of(leading_column(key).0));
        (slot * u32::from(self.count) / u32::from(SLOTS)) as u16
    }

    pub fn owns(self, key: &[u8]) -> bool {
        self.owner_of(key) == self.index
    }

    pub fn owner_of_range(self, lo: &[u8], hi: &[u8]) -> Owner {
        if self.count == 1 {
            return Owner::One(0);
        }
        let (prefix, is_point) = common_prefix(lo, hi);
        if is_point || leading_column(prefix).1 {
            Owner::One(self.owner_of(prefix))
        } else {
            Owner::All
        }
    }

    /// The other shards that have keys of a range.
    pub(crate) fn others(self, range: &KeyRange) -> impl Iterator<Item = u16> + use<> {
        let owner = self.owner_of_range(&range.lo, &range.hi);
        (0..self.count).filter(move |&other| {
            other != self.index && (owner == Owner::All || owner == Owner::One(other))
        })
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
}
