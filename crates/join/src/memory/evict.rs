//! Evict: keeps memory under the limit by forgetting filled ranges, and supplied ones, that were not read for long.
//!
//! Ranges stand in a ring. The evictor passes along it: a range that was read again since it last came by stays, another
//! goes, with its rows, nodes and updaters, a large one from its end on and no more of it than need be; the next read fills it again. A range that others were computed from stays
//! until they are gone. When nothing can go and base rows alone fill the memory, a write is refused.
//!
//! Where more is read in turn than fits, the oldest range is always the one that will be read next, and all would go in
//! vain. That shows: ranges go that were never read again. While most do, new ranges line up as the next to go instead,
//! and what is there stays and is found; one in a few still lines up at the end, so that what is read more in time
//! comes in (bimodal insertion: Qureshi and others, Adaptive Insertion Policies, ISCA 2007).

use std::collections::VecDeque;

use crate::engine::Engine;
use crate::error::Error;
use crate::join::JoinId;
use crate::tables::table::TableId;

/// What a page may grow by to take one more row.
const PAGE_GROWTH_BYTES: usize = 4 << 10;

#[derive(Debug, Clone, Copy)]
pub enum Victim {
    Fill {
        join: JoinId,
        number: u32,
        serial: u32,
    },
    Supplied {
        table: TableId,
        number: u32,
        serial: u32,
    },
    /// Rows of another shard.
    Guests {
        table: TableId,
        owner: u16,
        number: u32,
        serial: u32,
    },
}

#[derive(Debug, Default)]
pub struct Ring {
    victims: VecDeque<Victim>,
    /// Clean up when there are this many.
    clean_at: usize,
    /// How many of the last ranges that went were never read again, in 256ths: recent ones weigh more.
    in_vain: u32,
    added: u32,
}

/// New ranges are the next to go when so many went in vain.
const IN_VAIN_MANY: u32 = 192;
/// But one in so many.
const ONE_IN: u32 = 16;

enum Verdict {
    Gone,
    Stays,
    Goes,
}

impl Ring {
    pub fn add(&mut self, victim: Victim) {
        self.added = self.added.wrapping_add(1);
        if self.in_vain < IN_VAIN_MANY || self.added.is_multiple_of(ONE_IN) {
            self.victims.push_back(victim);
        } else {
            self.victims.push_front(victim);
        }
    }

    fn gone(&mut self, in_vain: bool) {
        self.in_vain = self.in_vain - self.in_vain / 32 + if in_vain { 8 } else { 0 };
    }

    pub fn memory_bytes(&self) -> usize {
        self.victims.capacity() * size_of::<Victim>()
    }
}

impl Engine {
    /// Sets how much memory rows and all that keeps them fresh may take. `None`, as at first: any amount.
    pub fn set_memory_limit(&mut self, bytes: Option<usize>) {
        self.limit_bytes = bytes;
        self.make_room();
    }

    pub(crate) fn remember_fill(&mut self, join: JoinId, number: u32, serial: u32) {
        if self.ring.victims.len() >= self.ring.clean_at.max(64) {
            let mut victims = std::mem::take(&mut self.ring.victims);
            victims.retain(|v| !matches!(self.judge(*v, false), Verdict::Gone) || is_of(*v, join));
            self.ring.clean_at = victims.len() * 2;
            self.ring.victims = victims;
        }
        self.ring.add(Victim::Fill {
            join,
            number,
            serial,
        });
    }

    /// Evicts until memory is under the limit, or nothing is left that can go.
    pub(crate) fn make_room(&mut self) {
        let Some(limit) = self.limit_bytes else {
            return;
        };
        let mut passes = self.ring.victims.len() * 2 + 1;
        while passes > 0 && self.memory_bytes() > limit {
            let Some(victim) = self.ring.victims.pop_front() else {
                return;
            };
            match self.judge(victim, true) {
                Verdict::Gone => {}
                Verdict::Stays => self.ring.victims.push_back(victim),
                Verdict::Goes => {
                    if !self.evict(victim) {
                        self.ring.victims.push_front(victim);
                        continue;
                    }
                }
            }
            passes -= 1;
        }
    }

    /// Forgets all that can be filled again.
    pub fn evict_all(&mut self) {
        let limit = self.limit_bytes.replace(0);
        self.make_room();
        self.limit_bytes = limit;
    }

    fn judge(&mut self, victim: Victim, takes_marks: bool) -> Verdict {
        let (pins, visited) = match victim {
            Victim::Fill {
                join,
                number,
                serial,
            } => {
                let join = self.joins.get_mut(join);
                let Some(join) = join.filter(|join| join.fill_is_there(number, serial)) else {
                    return Verdict::Gone;
                };
                let pins = join.fills.get(number).pins;
                (pins, &mut join.targets[number as usize].visited)
            }
            Victim::Supplied {
                table,
                number,
                serial,
            } => {
                let Some(supplied) = &mut self.tables[table].supplied else {
                    return Verdict::Gone;
                };
                let here = supplied.at_mut(number);
                let Some(here) = here.filter(|h| h.serial == serial && !h.range.hi.is_empty())
                else {
                    return Verdict::Gone;
                };
                (here.pins, &mut here.visited)
            }
            Victim::Guests {
                table,
                owner,
                number,
                serial,
            } => {
                let Some(guests) = &mut self.tables[table].guests else {
                    return Verdict::Gone;
                };
                let here = guests.of_mut(owner).at_mut(number);
                let Some(here) = here.filter(|h| h.serial == serial && !h.range.hi.is_empty())
                else {
                    return Verdict::Gone;
                };
                (here.pins, &mut here.visited)
            }
        };
        if pins > 0 {
            return Verdict::Stays;
        }
        if *visited {
            *visited = !takes_marks;
            return Verdict::Stays;
        }
        Verdict::Goes
    }

    /// Lets a victim go, or some rows of a large one; says whether it is gone.
    fn evict(&mut self, victim: Victim) -> bool {
        match victim {
            Victim::Fill {
                join: id, number, ..
            } => {
                let is_gone = self.with_join(id, |engine, join| {
                    let is_reread = join.targets[number as usize].is_reread;
                    let is_gone = engine.discard_some(join, number);
                    if is_gone {
                        engine.ring.gone(!is_reread);
                        join.evicted += 1;
                    }
                    is_gone
                });
                return is_gone.unwrap_or(true);
            }
            Victim::Supplied { table, number, .. } => self.evict_supplied(table, number),
            Victim::Guests {
                table,
                owner,
                number,
                ..
            } => self.evict_guests(table, owner, number),
        }
        true
    }

    /// # Errors
    /// Base rows alone fill the memory limit.
    pub(crate) fn refuse_beyond_limit(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let Some(limit) = self.limit_bytes else {
            return Ok(());
        };
        let more = key.len() + value.len() + PAGE_GROWTH_BYTES;
        if self.memory_bytes() + more <= limit {
            return Ok(());
        }
        self.limit_bytes = Some(limit.saturating_sub(more));
        self.make_room();
        self.limit_bytes = Some(limit);
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

/// A join that is being filled cannot be asked.
fn is_of(victim: Victim, id: JoinId) -> bool {
    matches!(victim, Victim::Fill { join, .. } if join == id)
}
