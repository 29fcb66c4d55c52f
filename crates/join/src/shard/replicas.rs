//! Replicas: base rows that other shards own, copied here because joins read them.
//!
//! ```text
//!  fill ─► evaluate ─► has_replicas ─┬─ present: scan own rows and replicas together
//!                                     └─ absent: recorded, requested (see `exchange`), and the read is retried
//! ```
//!
//! 1. An owner's rows are complete inside the ranges that it supplied, and it sends every change in them. A change
//!    outside is ignored: the row arrives with its range.
//! 2. The nodes of a fill pin the rows that it was computed from. Dropped ranges are unsubscribed from.
//! 3. Only fills read replicas. Clients' reads of base tables see own rows.

use std::collections::BTreeMap;

use crate::base::key_range::{Flow, KeyRange};
use crate::base::owner::{Owner, Shard};
use crate::base::rows::Value;
use crate::engine::{Engine, WriteOutcome};
use crate::join::TableId;
use crate::memory::evict::{RangeHolder, Victim};
use crate::tables::replicas::Replicas;

impl Engine {
    /// Makes this engine one of several. Must be called while the engine is empty; later changes use
    /// [`Engine::change_owners`].
    pub fn set_shard(&mut self, shard: Shard) {
        self.sharding.own = (shard.count > 1).then_some(shard);
    }

    pub fn shard(&self) -> Option<&Shard> {
        self.sharding.own.as_ref()
    }

    /// Returns whether a fill can read all rows of a base table's range. Missing ranges are recorded.
    pub(crate) fn has_replicas(&mut self, table: TableId, range: &KeyRange) -> bool {
        let Some(shard) = &self.sharding.own else {
            return true;
        };
        let state = &mut self.tables[table];
        if !state.makers.is_empty() || state.supplied.is_some() || range.is_empty() {
            return true;
        }
        let mut is_complete = true;
        for owner in shard.others(range) {
            let replicas = state.replicas.get_or_insert_with(|| {
                Box::new(Replicas {
                    rows: state.rows.new_like(),
                    by_owner: BTreeMap::default(),
                })
            });
            for gap in replicas.of_mut(owner).read(range) {
                is_complete = false;
                self.reads.needs.remote.push((owner, gap));
            }
        }
        is_complete
    }

    /// Returns the ranges of other shards that were dropped since the last call. The caller unsubscribes from them.
    pub fn take_unsubscribed(&mut self) -> Vec<(u16, KeyRange)> {
        std::mem::take(&mut self.sharding.unsubscribed)
    }

    /// Stores all rows of a range that their owner has sent. Returns whether the range may still be needed.
    pub fn supply_replicas(
        &mut self,
        owner: u16,
        range: &KeyRange,
        rows: impl Iterator<Item = (Box<[u8]>, Box<[u8]>)>,
    ) -> bool {
        let Some(table) = self.tables.of_key(&range.lo) else {
            return false;
        };
        let Some(replicas) = &mut self.tables[table].replicas else {
            return false;
        };
        let gaps = replicas.of_mut(owner).read(range);
        for gap in &gaps {
            let serial = self.memory.next_serial();
            let number = replicas.of_mut(owner).insert(gap, serial);
            let of = RangeHolder::Replicas { table, owner };
            self.memory.clock.add(Victim {
                number,
                serial,
                holder: of,
            });
        }
        for (key, value) in rows {
            if gaps.iter().any(|gap| gap.contains(&key)) {
                replicas.rows.put_bytes(&key, &value);
            }
        }
        true
    }

    /// Applies a change that a shard has sent. It is ignored if that shard no longer owns the row.
    pub fn apply_replica(
        &mut self,
        from: u16,
        key: &[u8],
        value: Option<&[u8]>,
        now: u64,
    ) -> WriteOutcome {
        self.begin(now);
        let before = self.writes.backlog.last_change();
        let nothing = WriteOutcome {
            rows: 0,
            waits_for: None,
        };
        let (Some(shard), Some(table)) = (&self.sharding.own, self.tables.of_key(key)) else {
            return nothing;
        };
        let Some(replicas) = &mut self.tables[table].replicas else {
            return nothing;
        };
        if shard.owner_of(key) != from || !replicas.of_mut(from).holds(key) {
            return nothing;
        }
        let value = value.map(Value::new);
        let old = match &value {
            Some(value) => replicas.rows.replace(key, value),
            None => replicas.rows.remove(key),
        };
        if old.is_some() || value.is_some() {
            self.propagate_change(table, key, old.as_ref(), value.as_ref());
        }
        self.make_room();
        self.write_outcome(1, before)
    }

    /// Number of outputs that the last operation updated.
    pub(crate) fn outputs_updated(&self) -> usize {
        let rows = self.step_limits.step_rows;
        rows.map_or(0, |rows| rows.saturating_sub(self.budget.left()))
    }

    /// The last change that was deferred.
    pub(crate) fn last_change(&self) -> u64 {
        self.writes.backlog.last_change()
    }

    /// Drops a range of replicas.
    pub(crate) fn evict_replicas(&mut self, table: TableId, owner: u16, number: u32) {
        let (Some(shard), Some(replicas)) = (&self.sharding.own, &mut self.tables[table].replicas)
        else {
            return;
        };
        let range = replicas.of_mut(owner).remove(number);
        match shard.owner_of_range(&range.lo, &range.hi) {
            Owner::One(_) => {
                replicas.rows.remove_range(&range.lo, &range.hi);
            }
            Owner::All => {
                let mut keys: Vec<Box<[u8]>> = Vec::new();
                let _ = replicas
                    .rows
                    .read(&range.lo, &range.hi, false, &mut |key, _| {
                        if shard.owner_of(key) == owner {
                            keys.push(key.into());
                        }
                        Flow::Continue(())
                    });
                for key in keys {
                    replicas.rows.remove(&key);
                }
            }
        }
        self.sharding.unsubscribed.push((owner, range));
    }

    /// Drops all replicas of a table, if no join reads it any more or joins now compute it.
    pub(crate) fn release_replicas(&mut self, table: TableId) {
        let is_source = |join: &crate::join::Join| join.tables.contains(&table);
        let state = &self.tables[table];
        if state.makers.is_empty() && self.joins.all().any(is_source) {
            return;
        }
        let Some(replicas) = self.tables[table].replicas.take() else {
            return;
        };
        for (owner, supplied) in replicas.by_owner {
            let ranges = supplied.ranges().map(|range| (owner, range.clone()));
            self.sharding.unsubscribed.extend(ranges);
        }
    }

    /// Number of other shards' rows held.
    pub fn replica_count(&self) -> u64 {
        let replicas = self
            .tables
            .iter()
            .filter_map(|table| table.replicas.as_ref());
        replicas.map(|replicas| replicas.rows.len()).sum()
    }
}
