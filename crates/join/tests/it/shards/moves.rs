//! What a cluster adds: links between shards break, slots get other owners, and not all shards learn of it at the same moment.

use std::sync::Arc;

use larder_join::{Shard, SlotOwners, row_slot};

use super::{Seen, World};

/// Who owns what, as of the last move.
pub struct Moves {
    pub epoch: u64,
    owners: Vec<u16>,
    /// The epoch that each shard has learned of.
    pub known: Vec<u64>,
}

impl Moves {
    pub fn new(cores: u16) -> Moves {
        let even = Shard::new(0, cores);
        Moves {
            epoch: 0,
            owners: (0..larder_types::SLOTS)
                .map(|slot| even.owner_of_slot(slot))
                .collect(),
            known: vec![0; usize::from(cores)],
        }
    }

    pub fn owner(&self, key: &[u8]) -> usize {
        usize::from(self.owners[usize::from(row_slot(key))])
    }

    pub fn shard(&self, index: usize) -> Shard {
        let owners = SlotOwners::new(self.owners.clone());
        Shard::among(index as u16, self.known.len() as u16, Arc::new(owners))
    }
}

impl World {
    /// The conversation of a reader with an owner ends; what was on its way is lost.
    pub(super) fn break_link(&mut self, reader: usize, owner: usize) {
        if reader == owner {
            return;
        }
        self.log.push(format!("link of {reader} to {owner} breaks"));
        self.cores[reader].coming[owner].retain(|message| !message.is_of_owner());
        self.cores[owner].coming[reader].retain(|message| message.is_of_owner());
        let core = &mut self.cores[reader];
        core.exchange.owner_lost(&mut core.engine, owner as u16);
        self.cores[owner].exchange.reader_lost(reader as u16);
        self.seen.broken += 1;
    }

    pub(super) fn break_some_link(&mut self) {
        let reader = self.random.below(self.cores.len());
        let owner = self.random.below(self.cores.len());
        self.break_link(reader, owner);
    }

    /// A slot gets another owner, who has its rows. The one before lets go of all who read of it first, as it must.
    pub(super) fn move_slot(&mut self) {
        let to = self.random.below(self.cores.len());
        let key = match self.model.base.len() {
            0 => return,
            rows => self.model.base.keys().nth(self.random.below(rows)).cloned(),
        };
        let slot = row_slot(&key.unwrap_or_default());
        let Some(moves) = &mut self.moves else { return };
        let from = usize::from(moves.owners[usize::from(slot)]);
        if from == to {
            return;
        }
        moves.owners[usize::from(slot)] = to as u16;
        moves.epoch += 1;
        self.log
            .push(format!("slot {slot} moves from {from} to {to}"));
        for reader in 0..self.cores.len() {
            self.break_link(reader, from);
        }
        self.learn(from);
        self.learn(to);
        let is_its = |key: &[u8]| row_slot(key) == slot;
        let base = self.model.base.iter().filter(|(key, _)| is_its(key));
        let rows: Vec<_> = base
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        for (key, value) in rows {
            if self.is_elsewhere(&key) {
                continue;
            }
            let gone = self.cores[from].engine.remove(&key, self.now);
            assert_eq!(gone.unwrap().rows, 1, "the owner had its rows");
            self.cores[to].engine.put(&key, &value, self.now).unwrap();
        }
        // Nobody is told: they are the same rows.
        self.cores[from].engine.take_changes();
        self.cores[to].engine.take_changes();
        self.seen.moved += 1;
    }

    /// A shard learns who owns what by now.
    pub(super) fn learn(&mut self, core: usize) {
        let Some(moves) = &mut self.moves else { return };
        if moves.known[core] == moves.epoch {
            return;
        }
        moves.known[core] = moves.epoch;
        let (shard, epoch) = (moves.shard(core), moves.epoch);
        let core = &mut self.cores[core];
        core.exchange.change_owners(&mut core.engine, shard, epoch);
    }

    pub(super) fn learn_some(&mut self) {
        if self.moves.is_some() && self.random.chance(30) {
            let core = self.random.below(self.cores.len());
            self.learn(core);
        }
    }
}

impl Seen {
    pub(super) fn assert_moves(&self) {
        let told = format!("{} broken, {} moved", self.broken, self.moved);
        assert!(self.broken.min(self.moved) > 500, "{told}");
    }
}
