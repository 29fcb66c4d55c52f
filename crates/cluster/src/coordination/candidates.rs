//! Leader election: the oldest existing candidate is the leader.
//!
//! A candidate puts a key that is bound to its lease. The revision that created the key is the candidate's *fence*: the leader
//! compares it in each change that it makes ([`Change::if_created_at`]). Leadership cannot be assumed between changes: a leader
//! that was suspended while its key was deleted learns this when its next change is rejected.

use super::{Change, Entry, LeaseId, Mirror, Revision};

/// The prefix of the candidates' keys.
const PREFIX: &str = "controller/";

/// Extends a change to put a candidate's key, if it does not exist.
#[must_use]
pub fn put_candidate(change: Change, lease: LeaseId, name: &str) -> Change {
    let key = format!("{PREFIX}{lease}");
    change
        .if_unchanged(key.clone(), Revision(0))
        .put_bound(key, name.to_owned(), Some(lease))
}

/// Returns the leader according to this copy, if the copy includes the candidates.
pub fn leader(mirror: &Mirror) -> Option<&Entry> {
    let candidates = mirror
        .entries()
        .filter(|entry| entry.key.starts_with(PREFIX));
    candidates.min_by_key(|entry| entry.created)
}
