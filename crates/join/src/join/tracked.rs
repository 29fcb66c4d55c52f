//! The keys of a join's output that clients cache. `evaluate::tracked` reports them when their rows may have changed.

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::base::key_range::KeyRange;

/// The tracked keys of one join's output.
#[derive(Default)]
pub struct Tracked {
    keys: BTreeSet<Box<[u8]>>,
    stale: Vec<Box<[u8]>>,
    /// A fill that other joins were computed from has outstanding changes, so rows read from those joins may be stale.
    is_downstream_stale: bool,
}

impl Tracked {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn insert(&mut self, key: &[u8]) {
        self.keys.insert(key.into());
    }

    /// Reports a key, if it is tracked.
    pub fn mark_stale(&mut self, key: &[u8]) {
        if let Some(key) = self.keys.take(key) {
            self.stale.push(key);
        }
    }

    /// Reports the tracked keys of a range.
    pub fn mark_range_stale(&mut self, range: &KeyRange) {
        if self.keys.is_empty() {
            return;
        }
        let bounds = (
            Bound::Included(range.lo.clone()),
            Bound::Excluded(range.hi.clone()),
        );
        if range.lo < range.hi {
            self.stale.extend(self.keys.extract_if(bounds, |_| true));
        }
    }

    pub fn mark_downstream_stale(&mut self) {
        self.is_downstream_stale = true;
    }

    /// Returns whether [`Tracked::mark_downstream_stale`] was called since the last call of this function.
    pub fn take_downstream_stale(&mut self) -> bool {
        std::mem::take(&mut self.is_downstream_stale)
    }

    pub fn mark_all_stale(&mut self) {
        self.stale.extend(std::mem::take(&mut self.keys));
    }

    /// Moves the reported keys to `all`.
    pub fn take_stale(&mut self, all: &mut Vec<Box<[u8]>>) {
        all.append(&mut self.stale);
    }
}
