//! Who leads: of the candidates that are there, the oldest.
//!
//! A candidate puts a key bound to its lease; the revision that created it is its *fence*, which it compares in each change that it
//! makes as the leader ([`Change::while_since`]). To lead is not a fact that one can hold on to: a leader whose key went
//! while it was stopped finds out by its next change, which is refused.

use super::{Change, Entry, LeaseId, Mirror, Revision};

/// Where candidates stand.
const BELOW: &str = "controller/";

/// Makes a change one that puts a candidate's key, if it is not there yet.
#[must_use]
pub fn candidacy(change: Change, lease: LeaseId, name: &str) -> Change {
    let key = format!("{BELOW}{lease}");
    change
        .unless_changed(key.clone(), Revision(0))
        .put_bound(key, name.to_owned(), Some(lease))
}

/// The candidate that leads by what this copy knows, if it follows candidates.
pub fn leader(mirror: &Mirror) -> Option<&Entry> {
    let candidates = mirror
        .entries()
        .filter(|entry| entry.key.starts_with(BELOW));
    candidates.min_by_key(|entry| entry.created)
}
