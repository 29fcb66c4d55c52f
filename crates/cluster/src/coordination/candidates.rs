//! Leader election: the oldest existing candidate is the leader.
//!
//! A candidate puts a key that is bound to its lease. The revision that created the key is the candidate's *fence*: the leader
//! compares it in each change that it makes ([`Change::while_since`]). Leadership cannot be assumed between changes: a leader
//! that was suspended while its key was deleted learns this when its next change is rejected.

use super::{Change, Entry, LeaseId, Mirror, Revision};

/// The prefix of the candidates' keys.
const BELOW: &str = "controller/";

/// Extends a change to put a candidate's key, if it does not exist.
#[must_use]
pub fn candidacy(change: Change, lease: LeaseId, name: &str) -> Change {
    let key = format!("{BELOW}{lease}");
    change
        .unless_changed(key.clone(), Revision(0))
        .put_bound(key, name.to_owned(), Some(lease))
}

/// Returns the leader according to this copy, if the copy includes the candidates.
pub fn leader(mirror: &Mirror) -> Option<&Entry> {
    let candidates = mirror
        .entries()
        .filter(|entry| entry.key.starts_with(BELOW));
    candidates.min_by_key(|entry| entry.created)
}
