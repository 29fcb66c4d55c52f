//! A conditional, idempotent change of keys: it is applied completely or not at all, at most once despite retries, and only if
//! its comparisons hold.
//!
//! Invariants of a change that passes [`Change::check`]:
//!
//! 1. It compares the revision of a key that it writes, so it cannot be applied twice to the same state.
//! 2. In the same transaction, it writes its id to its writer's *mark*. A retry is answered with *done* if the mark still has
//!    this id. A writer whose reply was lost therefore retries to learn the outcome, and starts no other change under the same
//!    mark before that.
//! 3. It fits into one transaction of etcd with default settings.

use bytes::Bytes;

use super::{Entry, Error, LeaseId, Revision};

/// etcd's `--max-txn-ops` of 128, less one operation for the mark.
pub const OPERATIONS_MAX: usize = 127;

/// etcd's `--max-request-bytes` of 1.5 MiB, less a margin for its encoding.
pub const CHANGE_BYTES_MAX: usize = 1536 * 1024 - 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub mark: Mark,
    pub compares: Vec<Compare>,
    pub puts: Vec<Put>,
    pub deletes: Vec<String>,
}

/// The key to which a change writes its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    pub key: String,
    pub id: String,
}

/// A precondition of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key has not been written since this revision. Zero means that it does not exist.
    Unchanged { key: String, modified: Revision },
    /// The key has existed since this revision: the fence of a leader or lease holder.
    CreatedAt { key: String, created: Revision },
}

impl Compare {
    pub fn key(&self) -> &str {
        match self {
            Compare::Unchanged { key, .. } | Compare::CreatedAt { key, .. } => key,
        }
    }

    pub fn holds(&self, now: Option<&Entry>) -> bool {
        match self {
            Compare::Unchanged { modified, .. } => {
                *modified == now.map_or(Revision(0), |entry| entry.modified)
            }
            Compare::CreatedAt { created, .. } => {
                *created == now.map_or(Revision(0), |entry| entry.created)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    pub key: String,
    pub value: Bytes,
    pub lease: Option<LeaseId>,
}

/// The result of a change that the service answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change was applied at this revision, by this request or by an earlier one.
    Done(Revision),
    /// A comparison failed and nothing was applied. Contains the current entries of the compared keys, in their order.
    Conflict(Vec<Option<Entry>>),
}

impl Outcome {
    pub fn done(&self) -> Option<Revision> {
        match self {
            Outcome::Done(revision) => Some(*revision),
            Outcome::Conflict(_) => None,
        }
    }
}

impl Change {
    #[must_use]
    pub fn if_unchanged(mut self, key: impl Into<String>, modified: Revision) -> Change {
        let key = key.into();
        self.compares.push(Compare::Unchanged { key, modified });
        self
    }

    #[must_use]
    pub fn if_created_at(mut self, key: impl Into<String>, created: Revision) -> Change {
        let key = key.into();
        self.compares.push(Compare::CreatedAt { key, created });
        self
    }

    #[must_use]
    pub fn put(self, key: impl Into<String>, value: impl Into<Bytes>) -> Change {
        self.put_bound(key, value, None)
    }

    /// Puts a key that is deleted when the lease ends.
    #[must_use]
    pub fn put_bound(
        mut self,
        key: impl Into<String>,
        value: impl Into<Bytes>,
        lease: Option<LeaseId>,
    ) -> Change {
        self.puts.push(Put {
            key: key.into(),
            value: value.into(),
            lease,
        });
        self
    }

    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Change {
        self.deletes.push(key.into());
        self
    }

    /// Checks the invariants. Every back end calls this before it sends anything.
    ///
    /// # Errors
    /// [`Error::Refused`] with the violated invariant.
    pub fn check(&self) -> Result<(), Error> {
        let written = || {
            let puts = self.puts.iter().map(|put| put.key.as_str());
            puts.chain(self.deletes.iter().map(String::as_str))
        };
        let refused = |why: String| Err(Error::Refused(format!("change {}: {why}", self.mark.id)));
        let compares = |key: &str| {
            self.compares
                .iter()
                .any(|compare| matches!(compare, Compare::Unchanged { key: compared, .. } if compared == key))
        };
        if !written().any(compares) {
            return refused("it must compare the revision of a key that it writes".to_owned());
        }
        let mut keys: Vec<&str> = written().chain([self.mark.key.as_str()]).collect();
        keys.sort_unstable();
        if let Some(twice) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return refused(format!("it writes {} twice", twice[0]));
        }
        let operations = keys.len().max(self.compares.len());
        if operations > OPERATIONS_MAX {
            return refused(format!(
                "it has {operations} operations; one transaction has at most {OPERATIONS_MAX}"
            ));
        }
        let bytes = self.size_bytes();
        if bytes > CHANGE_BYTES_MAX {
            return refused(format!(
                "it has {bytes} bytes; one transaction has at most {CHANGE_BYTES_MAX}"
            ));
        }
        Ok(())
    }

    /// The approximate size in bytes, as etcd counts it.
    fn size_bytes(&self) -> usize {
        const EACH: usize = 64;
        let compares = self.compares.iter().map(|compare| compare.key().len() * 2);
        let puts = self.puts.iter().map(|put| put.key.len() + put.value.len());
        let deletes = self.deletes.iter().map(String::len);
        let mark = (self.mark.key.len() + self.mark.id.len()) * 2;
        compares
            .chain(puts)
            .chain(deletes)
            .map(|one| one + EACH)
            .sum::<usize>()
            + mark
            + EACH
    }
}

/// Assigns ids to changes. A writer makes one change at a time, and learns its outcome before the next.
#[derive(Clone, Debug)]
pub struct Writer {
    name: String,
    incarnation: u64,
    changes: u64,
}

impl Writer {
    /// Creates a writer with this name. `incarnation` is a number that no earlier process of this name used, such as its lease or
    /// a random number. Two concurrent tasks of one process need two names.
    pub fn new(name: impl Into<String>, incarnation: u64) -> Writer {
        Writer {
            name: name.into(),
            incarnation,
            changes: 0,
        }
    }

    /// Returns a new, empty change.
    pub fn change(&mut self) -> Change {
        self.changes += 1;
        Change {
            mark: Mark {
                key: format!("marks/{}", self.name),
                id: format!("{:016x}-{}", self.incarnation, self.changes),
            },
            compares: Vec::new(),
            puts: Vec::new(),
            deletes: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: &Change) -> String {
        change.check().expect_err("refused").to_string()
    }

    #[test]
    fn a_change_that_could_be_applied_twice_is_rejected() {
        let mut writer = Writer::new("a", 1);
        let blind = writer
            .change()
            .if_created_at("nodes/a", Revision(3))
            .put("map", "x");
        assert_eq!(
            refused(&blind),
            "change 0000000000000001-1: it must compare the revision of a key that it writes"
        );
        blind
            .if_unchanged("map", Revision(2))
            .check()
            .expect("it may");
        let twice = writer
            .change()
            .if_unchanged("map", Revision(0))
            .put("map", "x")
            .delete("map");
        assert!(refused(&twice).ends_with("it writes map twice"));
    }

    #[test]
    fn changes_beyond_the_limits_of_etcd_are_rejected_before_sending() {
        let mut writer = Writer::new("a", 1);
        let filled = |puts: usize, change: Change| {
            (0..puts).fold(change, |change, at| change.put(format!("asks/{at}"), "x"))
        };
        let base = writer.change().if_unchanged("asks/0", Revision(0));
        filled(OPERATIONS_MAX - 1, base.clone())
            .check()
            .expect("127 puts and the mark");
        assert!(refused(&filled(OPERATIONS_MAX, base.clone())).contains("128 operations"));
        let large = base.put("asks/0", vec![b'x'; CHANGE_BYTES_MAX]);
        assert!(refused(&large).contains("at most 1556480"));
    }
}
