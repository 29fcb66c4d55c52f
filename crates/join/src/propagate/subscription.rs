//! Subscriptions: every change of a base or computed row in a range is recorded for subscribers.
//!
//! ```text
//!  subscribe ──► the range is filled and its fills are pinned ──► each change of a row ──► recorded ──► taken by the host
//!     ▲                                                                │
//!     └── refresh: settle pending changes, fill dropped parts ◄────────┘ changes of checked sources are applied lazily
//! ```
//!
//! 1. Changes of one row are reported in order. Rows that a fill adds are not changes.
//! 2. A fill in a subscribed range is not evicted.
//! 3. Changes of replicas are not reported: their owner reports them.

use std::collections::BTreeMap;

use crate::base::hash::ByteMap;
use crate::base::key_range::KeyRange;
use crate::engine::Engine;
use crate::join::{JoinId, TableId};

/// A change of a visible row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowChange {
    pub key: Box<[u8]>,
    /// True if the row exists now.
    pub exists: bool,
}

#[derive(Default)]
pub(crate) struct Subscriptions {
    pub all: BTreeMap<u64, Subscription>,
    prefixes: PrefixCounts,
    next: u64,
    row_changes: Vec<RowChange>,
}

/// The key prefixes of subscriptions, with the number of subscriptions to each.
#[derive(Default)]
struct PrefixCounts {
    counts: ByteMap<u32>,
    /// The lengths of the prefixes, with the number of prefixes of each.
    lengths: BTreeMap<usize, u32>,
}

impl PrefixCounts {
    fn add(&mut self, prefix: &[u8]) {
        *self.counts.entry(prefix.into()).or_default() += 1;
        *self.lengths.entry(prefix.len()).or_default() += 1;
    }

    fn remove(&mut self, prefix: &[u8]) {
        if let Some(count) = self.counts.get_mut(prefix) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(prefix);
            }
        }
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    fn matches(&self, key: &[u8]) -> bool {
        let mut fitting = self.lengths.keys().map_while(|&length| key.get(..length));
        fitting.any(|beginning| self.counts.contains_key(beginning))
    }
}

pub(crate) struct Subscription {
    pub table: TableId,
    pub range: KeyRange,
    pub pins: Vec<Pin>,
}

/// A fill that must not be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin {
    pub join: JoinId,
    pub fill: u32,
    pub serial: u32,
}

impl Subscriptions {
    /// Adds a subscription. Returns its number.
    pub fn add(&mut self, subscription: Subscription) -> u64 {
        let number = self.next;
        self.next += 1;
        self.prefixes.add(&subscription.range.lo);
        self.all.insert(number, subscription);
        number
    }

    pub fn remove(&mut self, number: u64) -> Option<Subscription> {
        let subscription = self.all.remove(&number)?;
        self.prefixes.remove(&subscription.range.lo);
        Some(subscription)
    }
}

impl Engine {
    /// Records the change of a visible row, if there is a subscription to it.
    pub(crate) fn record_row_change(&mut self, table: TableId, key: &[u8], exists: bool) {
        let is_base = self.tables[table].makers.is_empty();
        let is_copy = is_base
            && self
                .sharding
                .own
                .as_ref()
                .is_some_and(|shard| !shard.owns(key));
        if is_copy || !self.subscriptions.prefixes.matches(key) {
            return;
        }
        let key = key.into();
        self.subscriptions
            .row_changes
            .push(RowChange { key, exists });
    }

    pub fn has_row_changes(&self) -> bool {
        !self.subscriptions.row_changes.is_empty()
    }

    /// Returns the changes of subscribed rows since the last call, in order.
    pub fn take_row_changes(&mut self) -> Vec<RowChange> {
        std::mem::take(&mut self.subscriptions.row_changes)
    }
}
