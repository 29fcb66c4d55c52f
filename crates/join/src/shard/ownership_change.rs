//! Changes of slot ownership, and loss of owners: drops the replicas of the affected rows and the outputs computed from
//! them, and nothing else.
//!
//! ```text
//!  slots ─► updater lists on their rows ─► fills computed from them ─► fills computed from those
//!                                                          └────── discarded, the last first ──────┘
//! ```
//!
//! An updater list begins with a prefix of a source's keys. It depends on the slot of that prefix; if the prefix has no
//! leading column, it depends on every slot. A replica range that spans leading columns is dropped as a whole, with
//! everything that was computed from any of it.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::key_range::KeyRange;
use crate::base::owner::{Shard, prefix_slot, range_slot};
use crate::budget::Budget;
use crate::engine::Engine;
use crate::join::{JoinId, TableId};

/// Fills by join.
type Fills = BTreeMap<JoinId, BTreeSet<u32>>;

/// A range of another shard's rows that this engine holds.
struct Copy {
    table: TableId,
    owner: u16,
    number: u32,
    range: KeyRange,
}

impl Engine {
    /// Changes the owners to those of `shard`. Replicas and outputs of slots whose owner changes are dropped, as if
    /// they had never been read; the caller handles own rows in these slots. Requires an earlier [`Engine::set_shard`].
    pub fn change_owners(&mut self, shard: Shard) {
        if let Some(own) = self.sharding.own.clone() {
            let is_moved = |slot| own.owner_of_slot(slot) != shard.owner_of_slot(slot);
            let is_any = own.owners().ne(shard.owners()) || (0..larder_types::SLOTS).any(is_moved);
            if is_any {
                self.discard_slots(&is_moved);
            }
        }
        self.sharding.own = Some(shard);
    }

    /// Drops the rows of an owner that no longer sends its changes, and the outputs computed from them.
    pub fn discard_owner(&mut self, owner: u16) {
        if let Some(own) = self.sharding.own.clone() {
            self.discard_slots(&|slot| own.owner_of_slot(slot) == owner);
        }
    }

    pub(crate) fn discard_slots(&mut self, is_moved: &dyn Fn(u16) -> bool) {
        let copies = self.copies_in(is_moved);
        let fills = self.computed_from(is_moved, &copies);
        let mut joins: Vec<JoinId> = fills.keys().copied().collect();
        // Joins furthest downstream come first, because they pin the rows that they were computed from.
        let upstream = |id: &JoinId| self.joins.get(*id).map_or(0, |join| join.upstream.len());
        joins.sort_by_key(|id| std::cmp::Reverse(upstream(id)));
        self.set_budget(Budget::unlimited());
        for id in joins {
            self.with_join(id, |engine, join| {
                engine.finish_lists(join);
                for &fill in &fills[&id] {
                    engine.discard(join, fill);
                }
            });
        }
        self.reads.deferred.retry_all();
        // No fill depends on them any more.
        for copy in copies {
            self.evict_replicas(copy.table, copy.owner, copy.number);
        }
    }

    /// Returns the fills that depend on rows in the slots or on `copies`, directly or through other joins.
    fn computed_from(&self, is_moved: &dyn Fn(u16) -> bool, copies: &[Copy]) -> Fills {
        let mut found = Fills::default();
        let mut joins: Vec<_> = self.joins.all().collect();
        joins.sort_by_key(|join| join.upstream.len());
        for join in joins {
            let mut fills = BTreeSet::new();
            for (level, &table) in join.tables.iter().enumerate() {
                let state = &self.tables[table];
                if state.supplied.is_some() {
                    continue;
                }
                let is_base = state.makers.is_empty();
                let removed: Vec<&KeyRange> = if is_base {
                    (copies.iter())
                        .filter(|copy| copy.table == table)
                        .map(|copy| &copy.range)
                        .collect()
                } else {
                    (state.makers.iter())
                        .filter_map(|maker| Some((self.joins.get(*maker)?, found.get(maker)?)))
                        .flat_map(|(join, fills)| fills.iter().map(move |fill| (join, *fill)))
                        .map(|(join, fill)| &join.fills.get(fill).range)
                        .collect()
                };
                for (_, list) in join.nodes.lists(level) {
                    let of = KeyRange::prefix(&list.prefix);
                    let is_hit = (is_base && prefix_slot(&list.prefix).is_none_or(is_moved))
                        || removed
                            .iter()
                            .any(|removed| removed.lo < of.hi && of.lo < removed.hi);
                    if is_hit {
                        fills.extend(list.entries.iter().map(|entry| entry.fill));
                    }
                }
            }
            if !fills.is_empty() {
                found.insert(join.id, fills);
            }
        }
        found
    }

    /// Returns the replica ranges that have, or may have, rows in the slots.
    fn copies_in(&self, is_moved: &dyn Fn(u16) -> bool) -> Vec<Copy> {
        let mut found = Vec::new();
        for (table, state) in self.tables.numbered() {
            let by_owner = state.replicas.iter().flat_map(|copies| &copies.by_owner);
            for (&owner, supplied) in by_owner {
                for (number, range) in supplied.numbered() {
                    if range_slot(&range.lo, &range.hi).is_none_or(is_moved) {
                        let range = range.clone();
                        found.push(Copy {
                            table,
                            owner,
                            number,
                            range,
                        });
                    }
                }
            }
        }
        found
    }
}
