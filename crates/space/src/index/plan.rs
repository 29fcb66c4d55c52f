//! How a search is answered, and what it did, as FT.EXPLAIN and FT.PROFILE show them.

use std::fmt;

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What objects are taken from, in words.
    pub access: String,
    /// How many objects will be looked at, about.
    pub candidates_estimated: u64,
    /// What each is then tested with, in words; empty if it needs no test.
    pub filter: String,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, about {} candidates",
            self.access, self.candidates_estimated
        )?;
        match self.filter.is_empty() {
            true => Ok(()),
            false => write!(f, ", filter {}", self.filter),
        }
    }
}

/// What a run has done so far.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub plan: Plan,
    pub steps: u64,
    /// Objects that were looked at.
    pub candidates: u64,
    /// Of these, the ones that the query holds for.
    pub found: u64,
    /// Stored objects that were read, for what is returned or grouped.
    pub objects_read: u64,
}

impl Profile {
    pub(super) fn new(plan: Plan) -> Profile {
        Profile {
            plan,
            steps: 0,
            candidates: 0,
            found: 0,
            objects_read: 0,
        }
    }
}
