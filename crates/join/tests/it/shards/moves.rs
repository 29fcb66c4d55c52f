//! Events in a cluster: links between shards break, shards restart, slots move, and shards learn of moves at different
//! times.

use std::sync::Arc;

use larder_join::{Engine, Exchange, NO_OWNER, Shard, SlotOwners, row_slot};

use super::{Coverage, Planted, Sent, World};

/// The owners of slots after the last move.
pub struct Moves {
    pub epoch: u64,
    owners: Vec<u16>,
    /// The latest epoch that each shard has learned.
    pub known_epochs: Vec<u64>,
}

impl Moves {
    pub fn new(cores: u16) -> Moves {
        let even = Shard::new(0, cores);
        Moves {
            epoch: 0,
            owners: (0..larder_types::SLOTS)
                .map(|slot| even.owner_of_slot(slot))
                .collect(),
            known_epochs: vec![0; usize::from(cores)],
        }
    }

    pub fn owner(&self, key: &[u8]) -> usize {
        usize::from(self.owners[usize::from(row_slot(key))])
    }

    pub fn shard(&self, index: usize) -> Shard {
        self.among(index, self.owners.clone())
    }

    fn among(&self, index: usize, owners: Vec<u16>) -> Shard {
        let owners = Arc::new(SlotOwners::new(owners));
        Shard::with_owners(index as u16, self.known_epochs.len() as u16, owners)
    }
}

impl World {
    /// Ends the connection of a reader to an owner; messages in flight are lost.
    pub(super) fn break_link(&mut self, reader: usize, owner: usize) {
        if reader == owner {
            return;
        }
        self.log.push(format!("link of {reader} to {owner} breaks"));
        // This message belongs to the connection, too.
        let is_of_owner = |sent: &Sent| match sent {
            Sent::Message(message) => message.is_from_owner(),
            Sent::Ended(_) => true,
        };
        self.cores[reader].in_flight[owner].retain(|sent| !is_of_owner(sent));
        self.cores[owner].in_flight[reader].retain(is_of_owner);
        let core = &mut self.cores[reader];
        if self.planted != Some(Planted::KeepsRowsOfLostOwner) {
            core.exchange
                .handle_owner_loss(&mut core.engine, owner as u16);
        }
        self.cores[owner].exchange.handle_reader_loss(reader as u16);
        self.coverage.broken += 1;
    }

    pub(super) fn break_some_link(&mut self) {
        let reader = self.random.below(self.cores.len());
        let owner = self.random.below(self.cores.len());
        self.break_link(reader, owner);
    }

    /// Restarts a shard: it has only its own rows.
    pub(super) fn restart(&mut self) {
        let core = self.random.below(self.cores.len());
        for other in 0..self.cores.len() {
            self.break_link(core, other);
            self.break_link(other, core);
        }
        let Some(moves) = &mut self.moves else { return };
        self.log.push(format!("{core} restarts"));
        moves.known_epochs[core] = moves.epoch;
        let (shard, epoch) = (moves.shard(core), moves.epoch);
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        engine.record_changes(true);
        if self.has_external {
            engine.declare_external(b"r|").unwrap();
        }
        for (name, definition) in &self.definitions {
            engine.create(name, definition, self.now).unwrap();
        }
        let base = self.model.base.iter();
        for (key, value) in base.filter(|(key, _)| moves.owner(key) == core) {
            if !(self.has_external && key.starts_with(b"r|")) {
                engine.put(key, value, self.now).unwrap();
            }
        }
        engine.take_changes();
        let mut exchange = Exchange::new(shard.clone());
        exchange.set_chunk_rows(1 + self.random.below(5) as u64);
        exchange.change_owners(&mut engine, shard, epoch);
        self.unacknowledged.retain(|(of, ..)| *of != core);
        let coming = std::mem::take(&mut self.cores[core].in_flight);
        self.cores[core] = super::Core {
            engine,
            exchange,
            in_flight: coming.iter().map(|_| Default::default()).collect(),
        };
        self.coverage.restarted += 1;
    }

    /// The owner of a slot withdraws it: it sends no more rows of it, and waits until no shard has outputs computed
    /// from it.
    fn withdraw(&mut self, slot: u16, from: usize) {
        let Some(moves) = &mut self.moves else { return };
        moves.epoch += 1;
        moves.known_epochs[from] = moves.epoch;
        let mut owners = moves.owners.clone();
        owners[usize::from(slot)] = NO_OWNER;
        let (shard, epoch) = (moves.among(from, owners), moves.epoch);
        let core = &mut self.cores[from];
        if self.planted != Some(Planted::AnswersForMovedSlot) {
            core.exchange.change_owners(&mut core.engine, shard, epoch);
        }
        let change = core.exchange.withdraw(&[(slot, slot)]);
        for round in 0.. {
            if self.cores[from].exchange.is_acknowledged(change) {
                break;
            }
            assert!(round < 10_000, "seed {}: never forgotten", self.seed);
            // Reads continue meanwhile.
            self.begin_reading();
            for core in 0..self.cores.len() {
                self.flush(core);
            }
            self.deliver(3);
        }
        self.coverage.withdrawn += 1;
    }

    /// Moves a slot to another owner, with its rows. The old owner withdraws it from all readers first, as it must.
    pub(super) fn move_slot(&mut self) {
        let to = self.random.below(self.cores.len());
        let key = match self.model.base.len() {
            0 => return,
            rows => self.model.base.keys().nth(self.random.below(rows)).cloned(),
        };
        let key = key.unwrap_or_default();
        let slot = row_slot(&key);
        let Some(moves) = &mut self.moves else { return };
        let from = usize::from(moves.owners[usize::from(slot)]);
        if from == to {
            return;
        }
        let is_planned = self.random.chance(60);
        if is_planned && self.planted != Some(Planted::MovesWithoutWithdrawal) {
            self.withdraw(slot, from);
        }
        let Some(moves) = &mut self.moves else { return };
        moves.owners[usize::from(slot)] = to as u16;
        moves.epoch += 1;
        self.log
            .push(format!("slot {slot} moves from {from} to {to}"));
        for reader in 0..self.cores.len() {
            if !is_planned {
                self.break_link(reader, from);
            }
        }
        self.learn(from);
        self.learn(to);
        let is_its = |key: &[u8]| row_slot(key) == slot;
        let base = self.model.base.iter().filter(|(key, _)| is_its(key));
        let rows: Vec<_> = base
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        for (key, value) in rows {
            if self.is_external(&key) {
                continue;
            }
            let removed = self.cores[from].engine.remove(&key, self.now);
            assert_eq!(removed.unwrap().rows, 1, "the owner had its rows");
            self.cores[to].engine.put(&key, &value, self.now).unwrap();
        }
        // The changes are not exported: the rows are the same.
        self.cores[from].engine.take_changes();
        self.cores[to].engine.take_changes();
        self.coverage.moved += 1;
        if self.random.chance(70) && !self.is_external(&key) {
            // Write before other shards learn of the move.
            let value = self.random.pick(&["1", "12", "y"]);
            self.log.push(format!("write it again: {value}"));
            let engine = &mut self.cores[to].engine;
            let written = engine.put(&key, value.as_bytes(), self.now).unwrap();
            self.model.base.insert(key, value.into());
            self.export_write(to, written.waits_for, false);
            // Shards that have not learned of the move must not have stale rows.
            let is_late = |known: &u64| *known < self.moves.as_ref().map_or(0, |all| all.epoch);
            let known = self.moves.iter().flat_map(|moves| &moves.known_epochs);
            let late = known.clone().position(is_late);
            for _ in 0..8 {
                self.check_on(late);
            }
        }
    }

    /// Makes a shard learn the current owners.
    pub(super) fn learn(&mut self, core: usize) {
        let Some(moves) = &mut self.moves else { return };
        if moves.known_epochs[core] == moves.epoch {
            return;
        }
        moves.known_epochs[core] = moves.epoch;
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

impl Coverage {
    pub(super) fn assert_moves(&self) {
        let Coverage {
            broken,
            moved,
            withdrawn,
            restarted,
            ended,
            ..
        } = self;
        let least = broken.min(moved).min(withdrawn).min(restarted).min(ended);
        let summary = format!(
            "{broken} broken, {moved} moved, {withdrawn} withdrawn, {restarted} restarted, {ended} ended"
        );
        assert!(*least > 200, "{summary}");
    }
}
