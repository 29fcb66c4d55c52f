//! Replicas: copies of base rows that other shards own and that joins of this shard read. `shard::replicas` adds and
//! removes them.

use std::collections::BTreeMap;

use crate::base::key_range::{Flow, KeyRange};
use crate::base::owner::{Owner, Shard};
use crate::base::rows::{Rows, Value};
use crate::tables::supplied_ranges::SuppliedRanges;

/// The replicas of one table.
pub struct Replicas {
    pub rows: Rows,
    /// The ranges held, per owner.
    pub by_owner: BTreeMap<u16, SuppliedRanges>,
}

impl Replicas {
    pub fn memory_bytes(&self) -> usize {
        let ranges: usize = self
            .by_owner
            .values()
            .map(SuppliedRanges::memory_bytes)
            .sum();
        self.rows.memory_bytes() + ranges
    }

    pub fn pin(&mut self, shard: &Shard, range: &KeyRange, change: i32) {
        for owner in shard.others(range) {
            self.of_mut(owner).pin(range, change);
        }
    }

    pub fn of_mut(&mut self, owner: u16) -> &mut SuppliedRanges {
        self.by_owner.entry(owner).or_default()
    }

    /// Like [`Replicas::scan`], in either direction. Returns `false`, without reading, if `reverse` is set and the
    /// range has several owners.
    pub fn scan_from(
        &self,
        shard: &Shard,
        own: &Rows,
        range: &KeyRange,
        reverse: bool,
        each: &mut dyn FnMut(&[u8], &Value) -> Flow,
    ) -> bool {
        let rows = match shard.owner_of_range(&range.lo, &range.hi) {
            _ if !reverse => {
                let _ = self.scan(shard, own, range, each);
                return true;
            }
            Owner::One(owner) if owner == shard.index => own,
            Owner::One(_) => &self.rows,
            Owner::All => return false,
        };
        let _ = rows.scan(&range.lo, &range.hi, true, each);
        true
    }

    /// Passes own rows and replicas to `each`, in key order.
    pub fn scan(
        &self,
        shard: &Shard,
        own: &Rows,
        range: &KeyRange,
        each: &mut dyn FnMut(&[u8], &Value) -> Flow,
    ) -> Flow {
        let (lo, hi) = (&*range.lo, &*range.hi);
        match shard.owner_of_range(lo, hi) {
            Owner::One(owner) if owner == shard.index => own.scan(lo, hi, false, each),
            Owner::One(_) => self.rows.scan(lo, hi, false, each),
            Owner::All if self.rows.is_empty() => own.scan(lo, hi, false, each),
            Owner::All => {
                let mut replicas = self.rows.cursor(lo, hi, false);
                let mut next = || {
                    let key = replicas.next().map(|(key, _)| Box::<[u8]>::from(key))?;
                    Some((key, replicas.value()))
                };
                let mut replica = next();
                own.scan(lo, hi, false, &mut |key, value| {
                    while let Some((other, value)) = replica.take_if(|(other, _)| **other < *key) {
                        replica = next();
                        each(&other, &value)?;
                    }
                    each(key, value)
                })?;
                while let Some((key, value)) = replica.take() {
                    replica = next();
                    each(&key, &value)?;
                }
                Flow::Continue(())
            }
        }
    }
}
