//! One node with one core: its slots, its copies and its messages, combined like in the tables.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use larder_join::{Engine, EngineMessage, Exchange, NO_OWNER, Shard, SlotOwners};
use larder_space::index::Objects;
use larder_space::object::Object;
use larder_space::query::Predicate;
use larder_space::search::Search;
use larder_types::{SLOTS, object_row, row_slot};
use larder_validate::objects::State;

use super::super::copies::SubscriptionRequest;
use super::super::walk::{sorted_table_names, table_end};
use super::super::{Backlog, Catalog, Spaces};
use super::PlantedBug;

/// The weight of a copy in a turn of the exchange.
const COPY_WEIGHT: usize = 128;

/// The result of a completed search: keys, and the state of each if known.
pub type SearchHits = Vec<(u32, Option<State>)>;

/// A write that was executed and is not committed.
pub struct Executed {
    pub row: Vec<u8>,
    pub value: Option<Vec<u8>>,
    /// The number of the client's call.
    pub call: usize,
    /// The exchange's sequence number up to which acknowledgements are awaited.
    pub export: u64,
}

pub struct SimulatedNode {
    pub engine: Engine,
    pub exchange: Exchange,
    pub spaces: Spaces,
    pub shard: Shard,
    pub catalog: Arc<Catalog>,
    /// The epoch of its map, and of the last map that changed owners.
    pub epoch: u64,
    pub owners_since: u64,
    /// Its lease is valid.
    pub has_lease: bool,
    pub executed: VecDeque<Executed>,
    pub executed_count: u64,
    pub settled: u64,
    /// Messages withheld until this many writes are settled: the receiver, and the owner's messages.
    kept: VecDeque<(u64, u16, Vec<EngineMessage>)>,
    planted: Option<PlantedBug>,
}

impl SimulatedNode {
    pub fn new(
        shard: Shard,
        catalog: &Arc<Catalog>,
        epoch: u64,
        planted: Option<PlantedBug>,
    ) -> SimulatedNode {
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        engine.record_changes(true);
        let mut exchange = Exchange::new(shard.clone());
        exchange.set_chunk_rows(3);
        exchange.pace_parts();
        exchange.change_owners(&mut engine, shard.clone(), epoch);
        let spaces = Spaces::default();
        spaces.apply_catalog(catalog, &engine, true);
        SimulatedNode {
            engine,
            exchange,
            spaces,
            shard,
            catalog: catalog.clone(),
            epoch,
            owners_since: epoch,
            has_lease: true,
            executed: VecDeque::new(),
            executed_count: 0,
            settled: 0,
            kept: VecDeque::new(),
            planted,
        }
    }

    pub fn owns(&self, slot: u16) -> bool {
        self.shard.owner_of_slot(slot) == self.shard.index
    }

    /// Applies a change of owners.
    pub fn change_owners(&mut self, owners: Arc<SlotOwners>, epoch: u64) {
        let shard = Shard::with_owners(self.shard.index, self.shard.count, owners);
        let is_other = |slot| self.shard.owner_of_slot(slot) != shard.owner_of_slot(slot);
        if (0..SLOTS).any(is_other) {
            self.owners_since = epoch;
        }
        self.exchange
            .change_owners(&mut self.engine, shard.clone(), epoch);
        if self.planted != Some(PlantedBug::IgnoresOwners) {
            self.spaces.owners_changed(&self.shard, &shard);
        }
        (self.shard, self.epoch) = (shard, epoch);
    }

    /// Starts a hand-over of slots: the node treats them as having no owner, and notifies their readers to discard the rows.
    /// Returns the sequence number to be acknowledged.
    pub fn release_slots(&mut self, is_leaving: impl Fn(u16) -> bool, epoch: u64) -> u64 {
        let owner = |slot| {
            if is_leaving(slot) {
                NO_OWNER
            } else {
                self.shard.owner_of_slot(slot)
            }
        };
        let owners: Vec<u16> = (0..SLOTS).map(owner).collect();
        self.change_owners(Arc::new(SlotOwners::new(owners)), epoch);
        let slots: Vec<(u16, u16)> = (0..SLOTS)
            .filter(|slot| is_leaving(*slot))
            .map(|slot| (slot, slot))
            .collect();
        self.exchange.withdraw(&slots)
    }

    /// Removes rows that it does not own, and loads the rows of newly owned slots.
    pub fn take_rows<'a>(
        &mut self,
        rows: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
        is_new: &dyn Fn(&[u8]) -> bool,
    ) {
        let mut moved: Vec<Box<[u8]>> = Vec::new();
        for row in self.rows() {
            if !self.owns(row_slot(&row)) || is_new(&row) {
                self.engine.remove_unowned(&row);
                moved.push(row.into());
            }
        }
        for (row, value) in rows {
            if is_new(row) {
                self.engine
                    .adopt(row, value, None)
                    .expect("it is of a table");
                moved.push(row.as_slice().into());
            }
        }
        if self.planted != Some(PlantedBug::SkipsMovedObjects) {
            self.spaces.queue_moved(moved.into_iter());
        }
    }

    fn rows(&self) -> Vec<Vec<u8>> {
        let mut rows = Vec::new();
        let declared = self.catalog.space("things").expect("it is there");
        for table in sorted_table_names(&self.engine, &declared.definition) {
            self.engine
                .read_base_rows(&table, &table_end(&table), &mut |row, _, _| {
                    rows.push(row.to_vec());
                    ControlFlow::Continue(())
                });
        }
        rows
    }

    pub fn object(&self, key: &[u8]) -> Option<Object> {
        let (bytes, _) = self.engine.base_row(&object_row(key))?;
        Some(Object::decode(bytes).expect("it was encoded"))
    }

    /// Executes a write.
    pub fn write(&mut self, key: &[u8], object: Option<&Object>, call: usize) {
        let (row, value) = (object_row(key), object.map(Object::encode));
        let written = match &value {
            Some(value) => self.engine.put(&row, value, 0),
            None => self.engine.remove(&row, 0),
        };
        written.expect("it is of a table");
        let changes = self.engine.take_changes();
        self.spaces.apply_changes(&changes, &self.engine);
        let mut notifications = self.spaces.take_notifications();
        let space = &self.spaces.read().spaces["things"];
        if self.planted == Some(PlantedBug::SkipsStaleSubscribers) && space.regions().is_none() {
            notifications.clear();
        }
        for change in notifications {
            let value = change.value.as_deref();
            self.exchange
                .queue_part_change(&change.row, value, &change.readers, false);
        }
        self.exchange.end_transaction();
        self.executed_count += 1;
        let export = self.exchange.sequence();
        self.executed.push_back(Executed {
            row,
            value,
            call,
            export,
        });
    }

    /// Returns the messages to another node that may be sent now.
    pub fn take_out(&mut self, to: u16) -> Vec<EngineMessage> {
        let mut messages = self.exchange.drain_outgoing(to);
        let is_settled = self.settled == self.executed_count;
        if !is_settled {
            let (kept, free): (Vec<_>, Vec<_>) =
                messages.into_iter().partition(EngineMessage::is_from_owner);
            messages = free;
            if !kept.is_empty() {
                self.kept.push_back((self.executed_count, to, kept));
            }
        }
        messages
    }

    /// Returns withheld messages that may be sent now.
    pub fn release_committed(&mut self) -> Vec<(u16, Vec<EngineMessage>)> {
        let settled = self.settled;
        let free = self.kept.iter().take_while(|(upto, ..)| *upto <= settled);
        let free = free.count();
        let free = self.kept.drain(..free);
        free.map(|(_, to, messages)| (to, messages)).collect()
    }

    /// Discards uncommitted writes: they are lost, or another node continues them.
    pub fn drop_executed(&mut self) -> Vec<Executed> {
        self.kept.clear();
        self.settled = self.executed_count;
        self.executed.drain(..).collect()
    }

    /// Handles the end of the conversation in which this node reads rows of `owner`.
    pub fn owner_lost(&mut self, owner: u16) {
        self.exchange.handle_owner_loss(&mut self.engine, owner);
        if self.planted != Some(PlantedBug::KeepsStaleCopies) {
            self.spaces.owner_lost(owner, &self.shard);
        }
        // Copies may be swept in the same turn, or incrementally.
        while self.executed_count.is_multiple_of(2) && self.spaces.sweep_step(8) {}
    }

    pub fn reader_lost(&mut self, reader: u16) {
        self.exchange.handle_reader_loss(reader);
        if self.planted != Some(PlantedBug::SendsHeldMessages) {
            self.kept.retain(|(_, to, _)| *to != reader);
        }
    }

    /// Runs a maintenance turn: processes received messages, requests copies and supplies them.
    pub fn work(&mut self, rows: usize) {
        self.spaces.index_step(&self.engine, rows);
        let mut parts = self.spaces.copy_exchange();
        self.exchange
            .step_with(&mut self.engine, &mut parts, 0, 1 + rows * COPY_WEIGHT);
        self.spaces.sweep_step(rows);
        for request in self.spaces.drain_outgoing(&self.shard) {
            match request {
                SubscriptionRequest::Subscribe {
                    owner,
                    number,
                    part,
                } => self.exchange.request_part(owner, number, part),
                SubscriptionRequest::Unsubscribe(number) => self.exchange.end_part(number),
            }
        }
        // Otherwise it rests.
        if rows.is_multiple_of(2) {
            self.exchange.release_part_chunk();
            if self.spaces.read().backlog() == Backlog::Empty {
                self.spaces.copy_local_step(&self.engine, &self.shard, rows);
            }
        }
        self.engine.take_changes();
        self.exchange.acknowledge(&self.engine);
    }

    /// Processes everything that a search must not miss.
    pub fn catch_up(&self) {
        while self.spaces.index_step(&self.engine, 8) == Backlog::BlocksSearch {}
    }

    /// Searches the objects that it owns.
    pub fn search_objects(&self, search: &Arc<Search>) -> SearchHits {
        let all = self.spaces.read();
        let space = &all.spaces["things"];
        collect_hits(&space.index, &Rows(&self.engine), search)
    }

    /// Searches regions that it holds, and returns their generation; `None` if it does not hold all of them.
    pub fn search_copies(
        &self,
        id: u64,
        predicate: &Predicate,
        runs: &[std::ops::RangeInclusive<u16>],
        search: &Arc<Search>,
    ) -> Option<(SearchHits, u64)> {
        let mut all = self.spaces.write();
        let generation = all.copies.generation();
        let holder = all.copies.holder(id, 0)?;
        let is_ready = holder.is_ready(predicate, runs);
        if !is_ready && self.planted != Some(PlantedBug::AnswersUnready) {
            return None;
        }
        Some((
            collect_hits(holder.index(), holder.objects(), search),
            generation,
        ))
    }

    pub fn generation(&self) -> u64 {
        self.spaces.read().copies.generation()
    }
}

fn collect_hits(
    index: &larder_space::index::SpaceIndex,
    objects: &dyn Objects,
    search: &Arc<Search>,
) -> SearchHits {
    let mut run = index.search(search.clone(), 1 << 20);
    while !run.step(index, objects, 0, 1 << 20) {}
    let found = run.finish().expect("it is small");
    let entry = |key: &[u8]| {
        let mut state = None;
        let row = index.row(key).expect("it was found");
        objects.object(row, key, &mut |bytes| {
            state = Some(state_of(&Object::decode(bytes).expect("it was encoded")));
        });
        (number_of(key), Some(state.unwrap_or(State::NONE)))
    };
    found.finish(0).iter().map(|it| entry(it.key)).collect()
}

struct Rows<'a>(&'a Engine);

impl Objects for Rows<'_> {
    fn object(&self, _: u32, key: &[u8], read: &mut dyn FnMut(&[u8])) {
        if let Some((bytes, _)) = self.0.base_row(&object_row(key)) {
            read(bytes);
        }
    }
}

pub fn number_of(key: &[u8]) -> u32 {
    let text = std::str::from_utf8(key).expect("text");
    text["thing:".len()..].parse().expect("a number")
}

/// The state of an object: its city, its number and its note.
pub fn state_of(object: &Object) -> State {
    let Object::Hash(hash) = object else {
        panic!("only hashes are written");
    };
    let value = |name: &str| {
        let text = hash.get(name.as_bytes());
        let text = text.map_or("0", |text| std::str::from_utf8(text).expect("text"));
        text.trim_start_matches('c').parse().expect("a number")
    };
    State::of(["city", "n", "note"].map(value))
}
