//! Eviction: keeps memory under the limit by dropping ranges that can be recreated: filled ranges, supplied ranges, and
//! replicas of other shards' rows. The [`clock`](crate::memory::clock) selects them.
//!
//! A range with an unfinished long read is evicted last, because its unread rows must be copied (see `base::moment`).
//!
//! A range is dropped with its rows, nodes and updaters; a large one from its end, and only as much as necessary. The
//! next read fills it again. If nothing can be evicted and base rows alone fill the memory, a write is rejected.

use crate::base::rows::ValuesOnDisk;
use crate::engine::Engine;
use crate::error::Error;
use crate::join::joins::Joins;
use crate::join::{JoinId, TableId};
use crate::memory::clock::{Decision, RangeState};
use crate::tables::table::Tables;

/// Maximum growth of a page for one more row.
const PAGE_GROWTH_BYTES: usize = 4 << 10;

/// A range that can be recreated. If its number was reused, the serial differs.
#[derive(Debug, Clone, Copy)]
pub struct Victim {
    pub number: u32,
    pub serial: u32,
    pub holder: RangeHolder,
}

/// The owner of a range.
#[derive(Debug, Clone, Copy)]
pub enum RangeHolder {
    Join(JoinId),
    /// A table with rows from an external source.
    Supplied(TableId),
    /// Replicas of another shard's rows.
    Replicas {
        table: TableId,
        owner: u16,
    },
}

impl Engine {
    /// Sets the memory limit of rows and of the state that keeps them fresh. `None`, the default, means no limit.
    pub fn set_memory_limit(&mut self, bytes: Option<usize>) {
        self.memory.limit_bytes = bytes;
        self.make_room();
    }

    /// Stores long values of base rows on disk, if they are written from now on and no join reads them.
    pub fn keep_values_on_disk(&mut self, on_disk: ValuesOnDisk) {
        self.tables.keep_values_on_disk(on_disk);
    }

    /// Registers a new fill for eviction.
    pub(crate) fn register_fill(&mut self, join: JoinId, number: u32, serial: u32) {
        self.memory.clock.clean(|victim| match victim.holder {
            // The join is being modified, or another join is computed from it; its state is unknown.
            RangeHolder::Join(id) if self.joins.is_checked_out(id) => true,
            _ => {
                let found = find(&mut self.joins, &mut self.tables, *victim);
                !matches!(found, RangeState::Gone)
            }
        });
        let of = RangeHolder::Join(join);
        self.memory.clock.add(Victim {
            number,
            serial,
            holder: of,
        });
    }

    /// Evicts until memory is under the limit, or nothing can be evicted.
    pub(crate) fn make_room(&mut self) {
        let Some(limit) = self.memory.limit_bytes else {
            return;
        };
        let mut being_read = Vec::new();
        self.evict_down_to(limit, |engine, victim| {
            let is_spared = engine.is_being_read(victim);
            if is_spared {
                being_read.push(victim);
            }
            is_spared
        });
        if being_read.is_empty() {
            return;
        }
        for victim in being_read.into_iter().rev() {
            self.memory.clock.put_back(victim);
        }
        self.evict_down_to(limit, |_, _| false);
    }

    /// Evicts ranges except those for which `skips` returns true, which it removes from the clock.
    fn evict_down_to(&mut self, limit: usize, mut skips: impl FnMut(&Engine, Victim) -> bool) {
        let mut turns = self.memory.clock.turns_max();
        while turns > 0 && self.memory_bytes() > limit {
            let Some(victim) = self.memory.clock.take_next() else {
                return;
            };
            if skips(self, victim) {
                continue;
            }
            let found = find(&mut self.joins, &mut self.tables, victim);
            if self.memory.clock.decide(victim, found) == Decision::Evict && !self.evict(victim) {
                self.memory.clock.put_back(victim);
                continue;
            }
            turns -= 1;
        }
    }

    /// Returns whether a long read has unread rows in a range.
    fn is_being_read(&self, victim: Victim) -> bool {
        let Victim {
            number,
            serial,
            holder: of,
        } = victim;
        match of {
            RangeHolder::Join(id) => self.joins.get(id).is_some_and(|join| {
                join.fills.is_current(number, serial)
                    && join
                        .output
                        .rows
                        .is_being_read(&join.fills.get(number).range)
            }),
            RangeHolder::Supplied(table) => {
                let state = &self.tables[table];
                let range = state
                    .supplied
                    .as_ref()
                    .and_then(|s| s.range(number, serial));
                range.is_some_and(|range| state.rows.is_being_read(range))
            }
            // Only fills read replicas.
            RangeHolder::Replicas { .. } => false,
        }
    }

    /// Drops everything that can be recreated.
    pub fn evict_all(&mut self) {
        let limit = self.memory.limit_bytes.replace(0);
        self.make_room();
        self.memory.limit_bytes = limit;
    }

    /// Drops a range, or some rows of a large one. Returns whether it is gone.
    fn evict(&mut self, victim: Victim) -> bool {
        let number = victim.number;
        match victim.holder {
            RangeHolder::Join(id) => {
                let is_gone = self.with_join(id, |engine, join| {
                    let is_reread = join.fills.target(number).is_reread;
                    let is_gone = engine.discard_some(join, number);
                    if is_gone {
                        engine.memory.clock.record_eviction(is_reread);
                        join.statistics.evicted += 1;
                    }
                    is_gone
                });
                return is_gone.unwrap_or(true);
            }
            RangeHolder::Supplied(table) => self.evict_supplied(table, number),
            RangeHolder::Replicas { table, owner } => self.evict_replicas(table, owner, number),
        }
        true
    }

    /// # Errors
    /// Base rows alone exceed the memory limit.
    pub(crate) fn refuse_beyond_limit(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let Some(limit) = self.memory.limit_bytes else {
            return Ok(());
        };
        let more = key.len() + value.len() + PAGE_GROWTH_BYTES;
        if self.memory_bytes() + more <= limit {
            return Ok(());
        }
        self.memory.limit_bytes = Some(limit.saturating_sub(more));
        self.make_room();
        self.memory.limit_bytes = Some(limit);
        let memory_bytes = self.memory_bytes() + more;
        if memory_bytes <= limit {
            return Ok(());
        }
        Err(Error::OutOfMemory {
            memory_bytes,
            limit_bytes: limit,
        })
    }
}

/// Looks up a range.
fn find<'r>(joins: &'r mut Joins, tables: &'r mut Tables, victim: Victim) -> RangeState<'r> {
    let Victim {
        number,
        serial,
        holder: of,
    } = victim;
    let state = match of {
        RangeHolder::Join(id) => {
            let join = joins.get_mut(id);
            let Some(join) = join.filter(|join| join.fills.is_current(number, serial)) else {
                return RangeState::Gone;
            };
            let pins = join.fills.get(number).pins();
            Some((pins, &mut join.fills.target_mut(number).visited))
        }
        RangeHolder::Supplied(table) => {
            let supplied = tables[table].supplied.as_mut();
            supplied.and_then(|supplied| supplied.eviction_state(number, serial))
        }
        RangeHolder::Replicas { table, owner } => {
            let replicas = tables[table].replicas.as_mut();
            replicas.and_then(|replicas| replicas.of_mut(owner).eviction_state(number, serial))
        }
    };
    match state {
        None => RangeState::Gone,
        Some((1.., _)) => RangeState::Pinned,
        Some((0, is_read)) => RangeState::Idle { is_read },
    }
}
