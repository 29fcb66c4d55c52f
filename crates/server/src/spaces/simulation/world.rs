//! The nodes, the map, the messages in flight, and the events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use larder_join::{EngineMessage, NO_OWNER, Shard, SlotOwners};
use larder_sim::Random;
use larder_space::copies::{RegionFields, Regions};
use larder_space::schema::{Alteration, Definition};
use larder_types::{SLOTS, row_slot};
use larder_validate::objects::Event;

use super::super::record;
use super::super::{Catalog, DeclaredSpace};
use super::PlantedBug;
use super::clients::Clients;
use super::node::SimulatedNode;

pub const NODES: usize = 4;
const BLOCKS: usize = 8;

/// Counts of events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    pub runs: u32,
    pub answered: usize,
    pub undecided: usize,
    pub by_regions: u32,
    pub by_owners: u32,
    pub not_ready: u32,
    pub cut: u32,
    pub down: u32,
    pub moved: u32,
    pub switched: u32,
    pub cancelled: u32,
    pub recut: u32,
    /// The number of these after which the order of regions differs from that of their slots.
    pub reordered: u32,
}

impl Coverage {
    pub fn merge(self, other: &Coverage) -> Coverage {
        Coverage {
            runs: self.runs + other.runs,
            answered: self.answered + other.answered,
            undecided: self.undecided + other.undecided,
            by_regions: self.by_regions + other.by_regions,
            by_owners: self.by_owners + other.by_owners,
            not_ready: self.not_ready + other.not_ready,
            cut: self.cut + other.cut,
            down: self.down + other.down,
            moved: self.moved + other.moved,
            switched: self.switched + other.switched,
            cancelled: self.cancelled + other.cancelled,
            recut: self.recut + other.recut,
            reordered: self.reordered + other.reordered,
        }
    }
}

/// The map of one epoch.
#[derive(Clone)]
pub struct Map {
    pub epoch: u64,
    pub blocks: Vec<u16>,
    /// The epoch since which each block has its owner.
    terms: Vec<u64>,
    pub up: [bool; NODES],
    pub owners: Arc<SlotOwners>,
    pub catalog: Arc<Catalog>,
}

pub fn block_of(slot: u16) -> usize {
    usize::from(slot) * BLOCKS / usize::from(SLOTS)
}

/// The conversation in which one node reads rows of another.
#[derive(Default)]
struct Channel {
    number: u64,
    /// The number that the owner uses.
    owners: Option<u64>,
    to_owner: VecDeque<(u64, Option<EngineMessage>)>,
    to_reader: VecDeque<(u64, EngineMessage)>,
    is_cut: bool,
    /// The reader trusts the rows that it received.
    trusts: bool,
}

struct SlotMove {
    block: usize,
    from: usize,
    to: usize,
    export: u64,
}

pub struct Simulation {
    pub nodes: Vec<SimulatedNode>,
    /// One flag per node: true if the node runs. A stopped node has lost all its data.
    pub runs: [bool; NODES],
    /// The number of times that each node was down.
    pub lives: [u64; NODES],
    pub maps: Vec<Map>,
    pub random: Random,
    pub planted: Option<PlantedBug>,
    pub clock: u64,
    pub coverage: Coverage,
    /// One in this many possible events happens.
    pub rarity: u64,
    /// The committed rows.
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// By reader and owner.
    channels: BTreeMap<(usize, usize), Channel>,
    /// By node and block, the term of the node's rows.
    terms: [[u64; BLOCKS]; NODES],
    moving: Option<SlotMove>,
    clients: Clients,
}

const SHAPES: [&str; 4] = [
    "SUBSPACES 2 city n",
    "SUBSPACES 1 city,n",
    "SUBSPACES 3 city:1 n:2 city,n",
    "SUBSPACES 0",
];

impl Simulation {
    pub fn new(seed: u64, planted: Option<PlantedBug>) -> Simulation {
        let mut random = Random::stream(seed, 1);
        let shape = SHAPES[random.index(3)];
        let line = format!("things PREFIX 1 thing: {shape} REGIONS 16 SCHEMA city TAG n NUMERIC");
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let definition = Definition::parse_create(&words).expect("it is one");
        let catalog = catalog_of(&definition, None);
        let blocks: Vec<u16> = (0..BLOCKS).map(|block| (block % NODES) as u16).collect();
        let map = Map {
            epoch: 1,
            owners: owners_of(&blocks),
            blocks,
            terms: vec![1; BLOCKS],
            up: [true; NODES],
            catalog,
        };
        let node = |index| {
            let shard = Shard::with_owners(index as u16, NODES as u16, map.owners.clone());
            SimulatedNode::new(shard, &map.catalog, 1, planted)
        };
        let pairs = (0..NODES).flat_map(|a| (0..NODES).map(move |b| (a, b)));
        let new_channel = |pair| {
            let channel = Channel {
                to_owner: VecDeque::from([(0, None)]),
                trusts: true,
                ..Channel::default()
            };
            (pair, channel)
        };
        Simulation {
            nodes: (0..NODES).map(node).collect(),
            runs: [true; NODES],
            lives: [0; NODES],
            maps: vec![map],
            random,
            planted,
            clock: 0,
            rarity: 1,
            coverage: Coverage {
                runs: 1,
                ..Coverage::default()
            },
            rows: BTreeMap::new(),
            channels: pairs.filter(|(a, b)| a != b).map(new_channel).collect(),
            terms: [[1; BLOCKS]; NODES],
            moving: None,
            clients: Clients::default(),
        }
    }

    pub fn map(&self) -> &Map {
        self.maps.last().expect("there is one")
    }

    pub fn events(&self) -> Vec<Event> {
        self.clients.events()
    }

    pub fn coverage(&mut self) -> Coverage {
        self.coverage.answered = self.clients.answered();
        self.coverage
    }

    pub fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            self.clock += 1;
            self.step(true);
        }
    }

    /// Ends all faults, lets all calls finish, and then reads everything again.
    pub fn settle(&mut self) {
        for node in 0..NODES {
            self.restart_node(node);
        }
        for round in 0..4 {
            for _ in 0..1_500 {
                self.clock += 1;
                self.step(false);
            }
            for node in 0..NODES {
                self.learn(node, self.maps.len() - 1);
            }
            let mut clients = std::mem::take(&mut self.clients);
            clients.run_quiet_round(round, self);
            self.clients = clients;
        }
    }

    fn step(&mut self, is_wild: bool) {
        let node = self.random.index(NODES);
        match self.random.below(100) {
            0..=29 => self.deliver(),
            30..=49 if self.runs[node] => {
                let rows = 1 + self.random.index(6);
                self.nodes[node].work(rows);
                self.flush(node);
            }
            50..=58 => self.commit(node),
            59..=62 => self.learn_next_map(node),
            63..=66 => self.notice_lost_channels(),
            67 => self.advance_slot_move(),
            68..=70 if is_wild => {
                // At rarity 1, no random number is drawn for this.
                if self.rarity == 1 {
                    self.execute_random_event(node);
                } else if self.random.one_in(self.rarity) {
                    if self.random.one_in(2) {
                        self.change_layout()
                    } else {
                        self.execute_random_event(node)
                    }
                }
            }
            71..=99 => {
                let mut clients = std::mem::take(&mut self.clients);
                clients.step(self);
                self.clients = clients;
            }
            _ => {}
        }
    }

    fn execute_random_event(&mut self, node: usize) {
        match self.random.below(12) {
            0..=2 => {
                let other = self.random.index(NODES);
                self.cut(node, other);
            }
            3 => self.stop_node(node),
            4 | 5 => self.restart_node(node),
            6 | 7 => self.start_slot_move(),
            8 | 9 => self.change_layout(),
            _ => self.recut_regions(),
        }
    }

    /// Sends a node's pending messages.
    pub fn flush(&mut self, from: usize) {
        for to in (0..NODES).filter(|to| *to != from) {
            let messages = self.nodes[from].take_out(to as u16);
            self.send(from, to, messages);
        }
    }

    fn send(&mut self, from: usize, to: usize, messages: Vec<EngineMessage>) {
        for message in messages {
            if message.is_from_owner() {
                let channel = self.channels.get_mut(&(to, from)).expect("all are there");
                if let (Some(number), false) = (channel.owners, channel.is_cut) {
                    channel.to_reader.push_back((number, message));
                }
            } else {
                let channel = self.channels.get_mut(&(from, to)).expect("all are there");
                if !channel.is_cut {
                    channel.to_owner.push_back((channel.number, Some(message)));
                }
            }
        }
    }

    fn deliver(&mut self) {
        let waiting: Vec<(usize, usize)> = self
            .channels
            .iter()
            .filter(|(_, channel)| !channel.to_owner.is_empty() || !channel.to_reader.is_empty())
            .map(|(pair, _)| *pair)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let (reader, owner) = waiting[self.random.index(waiting.len())];
        let channel = self.channels.get_mut(&(reader, owner)).expect("just seen");
        let is_to_owner = channel.to_reader.is_empty() || self.random.one_in(2);
        let count = 1 + self.random.below(3);
        for _ in 0..count {
            if is_to_owner && self.runs[owner] {
                let Some((number, message)) = channel.to_owner.pop_front() else {
                    return;
                };
                if channel.owners.is_some_and(|present| number < present) {
                    continue;
                }
                if channel.owners.is_none_or(|present| number > present) {
                    // The reader announces that it has discarded everything received before.
                    channel.owners = Some(number);
                    self.nodes[owner].reader_lost(reader as u16);
                }
                if let Some(message) = message {
                    self.nodes[owner].exchange.receive(reader as u16, message);
                }
            } else if !is_to_owner && self.runs[reader] {
                let Some((number, message)) = channel.to_reader.pop_front() else {
                    return;
                };
                if number == channel.number {
                    self.nodes[reader].exchange.receive(owner as u16, message);
                }
            }
        }
    }

    fn cut(&mut self, reader: usize, owner: usize) {
        if let Some(channel) = self.channels.get_mut(&(reader, owner)) {
            channel.is_cut = true;
            channel.to_owner.clear();
            channel.to_reader.clear();
            self.coverage.cut += 1;
        }
    }

    /// A node notices that a conversation has ended.
    fn notice_lost_channels(&mut self) {
        let (reader, owner) = (self.random.index(NODES), self.random.index(NODES));
        let what = self.random.below(3);
        let Some(channel) = self.channels.get_mut(&(reader, owner)) else {
            return;
        };
        if !channel.is_cut {
            return;
        }
        match what {
            // Its lease ends.
            0 => channel.trusts = false,
            1 => self.restart_channel(reader, owner),
            _ => {
                let may = !channel.trusts || self.planted == Some(PlantedBug::StopsWaitingEarly);
                if may && self.runs[owner] && channel.owners.take().is_some() {
                    self.nodes[owner].reader_lost(reader as u16);
                }
            }
        }
    }

    /// A reader discards the rows that it received, and starts another conversation.
    fn restart_channel(&mut self, reader: usize, owner: usize) {
        if !self.runs[reader] || reader == owner {
            return;
        }
        self.nodes[reader].owner_lost(owner as u16);
        // Rows from a node without a lease must not be trusted, because another node may own them.
        let acts = self.nodes[owner].has_lease;
        let channel = self
            .channels
            .get_mut(&(reader, owner))
            .expect("all are there");
        channel.number += 1;
        (channel.is_cut, channel.trusts) = (!acts, acts);
        channel.to_reader.clear();
        channel.to_owner = VecDeque::from([(channel.number, None)]);
    }

    /// Returns whether a node has certainly received all changes of all data that it received.
    pub fn is_subscribed(&self, reader: usize) -> bool {
        let own = self.channels.iter().filter(|((of, _), _)| *of == reader);
        { own }.all(|(_, channel)| channel.trusts)
    }

    fn commit(&mut self, at: usize) {
        let mut clients = std::mem::take(&mut self.clients);
        self.commit_with(at, &mut clients);
        self.clients = clients;
    }

    /// Commits a node's next change on the replicas of its slots.
    pub fn commit_with(&mut self, at: usize, clients: &mut Clients) {
        let node = &mut self.nodes[at];
        if !self.runs[at] || !node.has_lease {
            return;
        }
        if let Some(executed) = node.executed.pop_front() {
            node.settled += 1;
            set_row(&mut self.rows, executed.row, executed.value);
            clients.committed(executed.call, at, executed.export);
        }
        for (to, messages) in self.nodes[at].release_committed() {
            self.send(at, usize::from(to), messages);
        }
    }

    fn publish(&mut self, change: impl FnOnce(&mut Map)) {
        let mut map = self.map().clone();
        map.epoch += 1;
        let before = map.blocks.clone();
        change(&mut map);
        map.owners = owners_of(&map.blocks);
        for (block, owner) in before.iter().enumerate() {
            if map.blocks[block] != *owner {
                map.terms[block] = map.epoch;
            }
        }
        self.maps.push(map);
    }

    fn learn_next_map(&mut self, node: usize) {
        let from = self
            .maps
            .iter()
            .position(|map| map.epoch > self.nodes[node].epoch);
        if let Some(from) = from {
            let map = from + self.random.index(self.maps.len() - from);
            self.learn(node, map);
        }
    }

    /// A node receives a map.
    fn learn(&mut self, at: usize, map: usize) {
        if !self.runs[at] || self.nodes[at].epoch >= self.maps[map].epoch {
            return;
        }
        let map = self.maps[map].clone();
        let node = &mut self.nodes[at];
        node.spaces.apply_catalog(&map.catalog, &node.engine, false);
        node.catalog = map.catalog.clone();
        node.change_owners(map.owners.clone(), map.epoch);
        // For blocks with a new term, it loads the rows of their replicas.
        let mut is_new = [false; BLOCKS];
        for (block, owner) in map.blocks.iter().enumerate() {
            is_new[block] = usize::from(*owner) == at && self.terms[at][block] != map.terms[block];
            if is_new[block] {
                self.terms[at][block] = map.terms[block];
            }
        }
        let rows = self.rows.iter();
        node.take_rows(rows, &|row| is_new[block_of(row_slot(row))]);
        for other in (0..NODES).filter(|other| !map.up[*other] && *other != at) {
            self.restart_channel(at, other);
        }
    }

    /// A node's lease ends. The node may lose everything, or continue without a lease.
    fn stop_node(&mut self, at: usize) {
        let up = self.map().up;
        let is_up = |node: &usize| up[*node];
        if !is_up(&at) || (0..NODES).filter(is_up).count() < 3 {
            return;
        }
        self.coverage.down += 1;
        self.lives[at] += 1;
        self.nodes[at].has_lease = false;
        // No node trusts its rows when other nodes may serve them.
        for other in (0..NODES).filter(|other| *other != at) {
            self.cut(other, at);
            let channel = self.channels.get_mut(&(other, at)).expect("all are there");
            channel.trusts = false;
        }
        // Its replicas have a prefix of the uncommitted writes.
        let left = self.nodes[at].drop_executed();
        let kept = self.random.index(left.len() + 1);
        for executed in left.into_iter().take(kept) {
            set_row(&mut self.rows, executed.row, executed.value);
        }
        if self.random.one_in(2) {
            self.runs[at] = false;
            for other in (0..NODES).filter(|other| *other != at) {
                self.cut(at, other);
                let channel = self.channels.get_mut(&(at, other)).expect("all are there");
                channel.trusts = false;
            }
        }
        let others: Vec<usize> = (0..NODES)
            .filter(|node| *node != at && is_up(node))
            .collect();
        let heirs: Vec<u16> = (0..BLOCKS)
            .map(|_| others[self.random.index(others.len())] as u16)
            .collect();
        if let Some(moving) = &mut self.moving {
            if moving.to == at {
                moving.to = moving.from;
            }
            if moving.from == at {
                let (block, to) = (moving.block, heirs[moving.block]);
                self.moving = None;
                self.publish(|map| map.blocks[block] = to);
            }
        }
        self.publish(|map| {
            map.up[at] = false;
            for (block, owner) in map.blocks.iter_mut().enumerate() {
                if usize::from(*owner) == at {
                    *owner = heirs[block];
                }
            }
        });
    }

    /// The node gets a lease again.
    fn restart_node(&mut self, at: usize) {
        if self.map().up[at] {
            return;
        }
        self.publish(|map| map.up[at] = true);
        if !self.runs[at] {
            let map = self.map();
            let shard = Shard::with_owners(at as u16, NODES as u16, map.owners.clone());
            self.nodes[at] = SimulatedNode::new(shard, &map.catalog, map.epoch, self.planted);
            self.runs[at] = true;
            self.terms[at] = [0; BLOCKS];
            for other in (0..NODES).filter(|other| *other != at) {
                self.restart_channel(at, other);
                let channel = self.channels.get_mut(&(other, at)).expect("all are there");
                channel.owners = None;
            }
        }
        self.learn(at, self.maps.len() - 1);
        self.nodes[at].has_lease = true;
    }

    fn start_slot_move(&mut self) {
        let block = self.random.index(BLOCKS);
        let (from, to) = (self.map().blocks[block], self.random.index(NODES));
        let is_up = self.map().up[to] && from != NO_OWNER;
        let from = usize::from(from);
        // Only the current owner moves a block.
        if self.moving.is_some() || !is_up || from == to {
            return;
        }
        self.learn(from, self.maps.len() - 1);
        self.publish(|map| map.blocks[block] = NO_OWNER);
        let epoch = self.map().epoch;
        let node = &mut self.nodes[from];
        let export = node.release_slots(|slot| block_of(slot) == block, epoch);
        self.moving = Some(SlotMove {
            block,
            from,
            to,
            export,
        });
        self.flush(from);
    }

    /// Completes a move once all writes of the block are committed and all readers have discarded its rows.
    fn advance_slot_move(&mut self) {
        let Some(moving) = &self.moving else { return };
        let node = &self.nodes[moving.from];
        let is_of = |row: &[u8]| block_of(row_slot(row)) == moving.block;
        let is_kept = node.executed.iter().all(|it| !is_of(&it.row));
        let is_acknowledged = node.exchange.is_acknowledged(moving.export);
        if is_kept && is_acknowledged {
            let (block, to) = (moving.block, moving.to as u16);
            self.moving = None;
            self.publish(|map| map.blocks[block] = to);
            self.coverage.moved += 1;
        }
    }

    pub fn declared(&self) -> Arc<DeclaredSpace> {
        self.map()
            .catalog
            .space("things")
            .expect("it is there")
            .clone()
    }

    /// Starts, completes or cancels a change of subspaces.
    fn change_layout(&mut self) {
        let declared = self.declared();
        let definition = &declared.definition;
        let before = declared.regions.as_deref().cloned().unwrap_or_default();
        let number = self.map().epoch;
        let (altered, number) = if definition.layout.filling.is_none() {
            let shape = SHAPES[self.random.index(SHAPES.len())];
            let words: Vec<&[u8]> = shape.split(' ').map(str::as_bytes).collect();
            let Ok(Alteration::Begin(filling)) = definition.parse_subspaces(&words) else {
                panic!("it begins");
            };
            (definition.with_filling(Some(filling)), number)
        } else if self.random.one_in(3) {
            self.coverage.cancelled += 1;
            (definition.with_filling(None), 0)
        } else {
            self.coverage.switched += 1;
            (
                definition
                    .with_filling_applied()
                    .expect("it is being filled"),
                0,
            )
        };
        let regions = before.with_definition(&altered, number).expect("it fits");
        let catalog = catalog_of(&altered, Some(&regions));
        self.publish(|map| map.catalog = catalog);
    }

    /// Cuts all subspaces by the objects' sampled values.
    fn recut_regions(&mut self) {
        let declared = self.declared();
        let Some(regions) = declared.regions.clone() else {
            return;
        };
        let of = |subspace: usize| {
            let dimensions = regions.subspace(subspace).expect("there").dimensions();
            dimensions.iter().map(|it| it.attribute).collect()
        };
        let attributes: Vec<Vec<_>> = (0..regions.count()).map(of).collect();
        let weight = 1 + self.random.below(5);
        // Half of the cuts assume a single owner, as if all owners had changed since.
        let blocks = if self.random.one_in(2) {
            self.map().blocks.clone()
        } else {
            vec![0; BLOCKS]
        };
        let cut = regions.recut(
            &attributes,
            &|attribute| sample(attribute.0, weight),
            &|slot| (blocks[block_of(slot)], 0),
        );
        let catalog = catalog_of(&declared.definition, Some(&cut));
        self.publish(|map| map.catalog = catalog);
        self.coverage.recut += 1;
        self.coverage.reordered += u32::from(cut.required_fields() == RegionFields::Orders);
    }
}

/// Ordered sample values of an attribute, with different weights.
fn sample(attribute: u16, weight: u64) -> Vec<(Vec<u8>, u64)> {
    use larder_space::base::number::Number;
    use larder_space::base::ordered::Scalar;
    let value = |at: u64| match attribute {
        0 => Scalar::Bytes(format!("c{at}").into_bytes()),
        _ => Scalar::Number(Number::Int(at as i64)),
    };
    let values = (1..=8).map(|at| (value(at).encoded(), if at % 3 == 0 { weight } else { 1 }));
    values.collect()
}

fn set_row(rows: &mut BTreeMap<Vec<u8>, Vec<u8>>, row: Vec<u8>, value: Option<Vec<u8>>) {
    match value {
        Some(value) => rows.insert(row, value),
        None => rows.remove(&row),
    };
}

fn owners_of(blocks: &[u16]) -> Arc<SlotOwners> {
    let owner = |slot: u16| blocks[block_of(slot)];
    Arc::new(SlotOwners::new((0..SLOTS).map(owner).collect()))
}

fn catalog_of(definition: &Definition, regions: Option<&Regions>) -> Arc<Catalog> {
    let record = record::encode_space(definition, 1, true, regions);
    let (catalog, unread) = Catalog::decode([("things", &record[..])].into_iter());
    assert!(unread.is_empty(), "{unread:?}");
    Arc::new(catalog)
}
