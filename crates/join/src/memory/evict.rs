//! Evict: keeps memory under the limit by letting ranges go that can be had again: filled ones, supplied ones, and replicas of other
//! shards' rows. The [`clock`](crate::memory::clock) says which.
//!
//! A range that a long answer is being read from goes last: eviction copies its unread rows (see `base::moment`).
//!
//! A range goes with its rows, nodes and updaters, a large one from its end on and no more of it than need be; the next read fills it
//! again. When nothing can go and base rows alone fill the memory, a write is refused.

use crate::base::rows::ValuesOnDisk;
use crate::engine::Engine;
use crate::error::Error;
use crate::join::joins::Joins;
use crate::join::{JoinId, TableId};
use crate::memory::clock::{Fate, Found};
use crate::tables::table::Tables;

/// What a page may grow by to take one more row.
const PAGE_GROWTH_BYTES: usize = 4 << 10;

/// A range that can be had again. Its number may be another's by now: then it has another serial.
#[derive(Debug, Clone, Copy)]
pub struct Victim {
    pub number: u32,
    pub serial: u32,
    pub of: Holder,
}

/// Who holds it.
#[derive(Debug, Clone, Copy)]
pub enum Holder {
    Join(JoinId),
    /// A table whose rows come from elsewhere.
    Supplied(TableId),
    /// Rows of another shard.
    Replicas {
        table: TableId,
        owner: u16,
    },
}

impl Engine {
    /// Sets how much memory rows and all that keeps them fresh may take. `None`, as at first: any amount.
    pub fn set_memory_limit(&mut self, bytes: Option<usize>) {
        self.memory.limit_bytes = bytes;
        self.make_room();
    }

    /// Keeps long values of base rows on disk, of those that are written from now on and that no join reads.
    pub fn keep_values_on_disk(&mut self, on_disk: ValuesOnDisk) {
        self.tables.keep_values_on_disk(on_disk);
    }

    /// A fill is done, which may go again.
    pub(crate) fn remember_fill(&mut self, join: JoinId, number: u32, serial: u32) {
        self.memory.clock.clean(|victim| match victim.of {
            // It cannot be asked while it is computed, or others from it.
            Holder::Join(id) if self.joins.is_out(id) => true,
            _ => {
                let found = find(&mut self.joins, &mut self.tables, *victim);
                !matches!(found, Found::Gone)
            }
        });
        let of = Holder::Join(join);
        self.memory.clock.add(Victim { number, serial, of });
    }

    /// Evicts until memory is under the limit, or nothing is left that can go.
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
            self.memory.clock.goes_on(victim);
        }
        self.evict_down_to(limit, |_, _| false);
    }

    /// Evicts what `sets_aside` does not take out of the clock.
    fn evict_down_to(&mut self, limit: usize, mut sets_aside: impl FnMut(&Engine, Victim) -> bool) {
        let mut turns = self.memory.clock.turns_max();
        while turns > 0 && self.memory_bytes() > limit {
            let Some(victim) = self.memory.clock.take_next() else {
                return;
            };
            if sets_aside(self, victim) {
                continue;
            }
            let found = find(&mut self.joins, &mut self.tables, victim);
            if self.memory.clock.decide(victim, found) == Fate::Goes && !self.evict(victim) {
                self.memory.clock.goes_on(victim);
                continue;
            }
            turns -= 1;
        }
    }

    /// Whether a long answer has yet to read rows of a range.
    fn is_being_read(&self, victim: Victim) -> bool {
        let Victim { number, serial, of } = victim;
        match of {
            Holder::Join(id) => self.joins.get(id).is_some_and(|join| {
                join.fill_is_there(number, serial)
                    && join
                        .output
                        .rows
                        .is_being_read(&join.fills.get(number).range)
            }),
            Holder::Supplied(table) => {
                let state = &self.tables[table];
                let range = state
                    .supplied
                    .as_ref()
                    .and_then(|s| s.range(number, serial));
                range.is_some_and(|range| state.rows.is_being_read(range))
            }
            // Only fills read replicas.
            Holder::Replicas { .. } => false,
        }
    }

    /// Forgets all that can be filled again.
    pub fn evict_all(&mut self) {
        let limit = self.memory.limit_bytes.replace(0);
        self.make_room();
        self.memory.limit_bytes = limit;
    }

    /// Lets a victim go, or some rows of a large one; says whether it is gone.
    fn evict(&mut self, victim: Victim) -> bool {
        let number = victim.number;
        match victim.of {
            Holder::Join(id) => {
                let is_gone = self.with_join(id, |engine, join| {
                    let is_reread = join.targets[number as usize].is_reread;
                    let is_gone = engine.discard_some(join, number);
                    if is_gone {
                        engine.memory.clock.went(is_reread);
                        join.evicted += 1;
                    }
                    is_gone
                });
                return is_gone.unwrap_or(true);
            }
            Holder::Supplied(table) => self.evict_supplied(table, number),
            Holder::Replicas { table, owner } => self.evict_replicas(table, owner, number),
        }
        true
    }

    /// # Errors
    /// Base rows alone fill the memory limit.
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

/// Looks for a range where its holder has it.
fn find<'r>(joins: &'r mut Joins, tables: &'r mut Tables, victim: Victim) -> Found<'r> {
    let Victim { number, serial, of } = victim;
    let held = match of {
        Holder::Join(id) => {
            let join = joins.get_mut(id);
            let Some(join) = join.filter(|join| join.fill_is_there(number, serial)) else {
                return Found::Gone;
            };
            let pins = join.fills.get(number).pins;
            Some((pins, &mut join.targets[number as usize].visited))
        }
        Holder::Supplied(table) => {
            let supplied = tables[table].supplied.as_mut();
            supplied.and_then(|supplied| supplied.marks(number, serial))
        }
        Holder::Replicas { table, owner } => {
            let replicas = tables[table].replicas.as_mut();
            replicas.and_then(|replicas| replicas.of_mut(owner).marks(number, serial))
        }
    };
    match held {
        None => Found::Gone,
        Some((1.., _)) => Found::Pinned,
        Some((0, is_read)) => Found::Idle { is_read },
    }
}
