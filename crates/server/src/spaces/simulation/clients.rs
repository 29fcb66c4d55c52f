//! The clients of the simulation: several calls at a time, each in steps between which anything may happen.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use larder_join::{NO_OWNER, Shard};
use larder_space::copies::{Estimate, Route, RouteTargets, route};
use larder_space::object::{Hash, Object};
use larder_space::search::Search;
use larder_types::{object_row, row_slot};
use larder_validate::Span;
use larder_validate::objects::{Call, Condition, Event, ObjectWrite, State, search};

use super::PlantedBug;
use super::node::{SearchHits, state_of};
use super::world::{NODES, Simulation};

const OBJECTS: u32 = 10;
const CITIES: u64 = 4;
const NUMBERS: u64 = 8;
/// Number of concurrent calls.
const CALLS: usize = 5;

#[derive(Default)]
pub struct Clients {
    running: BTreeMap<usize, OpenCall>,
    last: usize,
    events: Vec<Event>,
    notes: u16,
    /// Writes that are committed and wait for the readers' acknowledgements: the call, the node, and the exchange's sequence
    /// number.
    unacknowledged: Vec<(usize, usize, u64)>,
}

/// A call in progress.
struct OpenCall {
    started: u64,
    state: CallState,
}

enum CallState {
    Write {
        object: u32,
        change: ObjectWrite,
    },
    /// The state that was read at a node in an incarnation. The changes executed there up to `upto` must be committed.
    Read {
        object: u32,
        saw: State,
        at: (usize, u64),
        upto: u64,
    },
    Search(SearchCall),
}

struct SearchCall {
    condition: Condition,
    search: Arc<Search>,
    parts: Vec<SearchPart>,
    route: SearchRoute,
}

#[derive(Clone, Copy, PartialEq)]
enum SearchRoute {
    Regions,
    /// By the map of this epoch.
    Owners(u64),
}

struct SearchPart {
    node: usize,
    /// The regions requested of a subspace; `None` requests all own objects.
    regions: Option<(u64, Vec<RangeInclusive<u16>>)>,
    state: PartState,
}

enum PartState {
    Asked,
    /// Found in an incarnation of the node, in copies of a generation, with `upto` changes executed.
    Waits {
        found: SearchHits,
        life: u64,
        generation: u64,
        upto: u64,
    },
    Done(SearchHits),
}

impl Clients {
    /// All calls. Those that have not ended may have been executed.
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.events.clone();
        for running in self.running.values() {
            if let CallState::Write { object, change } = running.state {
                let call = Call::Change { change, held: None };
                let span = Span::unanswered(running.started);
                events.push(Event { object, span, call });
            }
        }
        events
    }

    pub fn answered(&self) -> usize {
        self.events.len()
    }

    pub fn committed(&mut self, call: usize, at: usize, export: u64) {
        self.unacknowledged.push((call, at, export));
    }

    pub fn step(&mut self, world: &mut Simulation) {
        let open = self
            .running
            .values()
            .filter(|it| it.started + 400 > world.clock)
            .count();
        if open < CALLS && world.random.one_in(3) {
            return self.begin(world);
        }
        self.answer_writes(world);
        let calls: Vec<usize> = self.running.keys().copied().collect();
        if !calls.is_empty() {
            let call = calls[world.random.index(calls.len())];
            self.advance_call(call, world);
        }
    }

    /// Starts no more random calls: current calls finish, then everything is read.
    pub fn run_quiet_round(&mut self, round: u32, world: &mut Simulation) {
        if round + 1 < 4 {
            return;
        }
        let condition = |city: u16| Condition::any().within(0, city, city);
        let cities =
            (1..=CITIES as u16).map(|city| (format!("@city:{{c{city}}}"), condition(city)));
        let all = [("*".to_owned(), Condition::any())];
        for (query, condition) in cities.chain(all) {
            self.begin_search(&query, condition, world);
        }
        for object in 0..OBJECTS {
            self.begin_read(object, world);
        }
        for _ in 0..2_000 {
            world.clock += 1;
            for node in 0..NODES {
                world.commit_with(node, self);
            }
            self.step_open(world);
        }
        let is_search = |it: &&OpenCall| !matches!(it.state, CallState::Write { .. });
        let left = self.running.values().filter(is_search).count();
        assert_eq!(left, 0, "a search or a read never ends");
    }

    fn step_open(&mut self, world: &mut Simulation) {
        self.answer_writes(world);
        let calls: Vec<usize> = self.running.keys().copied().collect();
        calls
            .into_iter()
            .for_each(|call| self.advance_call(call, world));
    }

    fn answer_writes(&mut self, world: &Simulation) {
        let planted = world.planted;
        let is_acknowledged = |(_, at, export): &(usize, usize, u64)| {
            world.runs[*at] && world.nodes[*at].exchange.is_acknowledged(*export)
                || planted == Some(PlantedBug::AnswersBeforeHolders)
        };
        let (answered, left): (Vec<_>, Vec<_>) =
            self.unacknowledged.drain(..).partition(is_acknowledged);
        self.unacknowledged = left;
        for (call, ..) in answered {
            let Some(running) = self.running.remove(&call) else {
                continue;
            };
            if let CallState::Write { object, change } = running.state {
                let call = Call::Change { change, held: None };
                self.end(running.started, world.clock, object, call);
            }
        }
    }

    fn end(&mut self, started: u64, ended: u64, object: u32, call: Call) {
        let span = Span::new(started, ended).expect("the clock is monotonic");
        self.events.push(Event { object, span, call });
    }

    fn begin(&mut self, world: &mut Simulation) {
        let object = world.random.below(OBJECTS.into()) as u32;
        match world.random.below(10) {
            0..=4 => self.begin_write(object, world),
            5 | 6 => self.begin_read(object, world),
            _ => {
                let (city, n) = (
                    1 + world.random.below(CITIES),
                    1 + world.random.below(NUMBERS),
                );
                let (to, until) = ((city + 1).min(CITIES), n + world.random.below(3));
                let is = |at: usize, first: u64, last: u64| {
                    Condition::any().within(at, first as u16, last as u16)
                };
                let (query, condition) = match world.random.below(5) {
                    0 | 1 => (format!("@city:{{c{city}}}"), is(0, city, city)),
                    2 => (format!("@city:{{c{city}|c{to}}}"), is(0, city, to)),
                    3 => (format!("@n:[{n} {until}]"), is(1, n, until)),
                    _ => (
                        format!("@city:{{c{city}}} @n:[{n} {n}]"),
                        is(0, city, city).within(1, n as u16, n as u16),
                    ),
                };
                self.begin_search(&query, condition, world);
            }
        }
    }

    fn add(&mut self, world: &Simulation, state: CallState) -> usize {
        self.last += 1;
        let started = world.clock;
        self.running.insert(self.last, OpenCall { started, state });
        self.last
    }

    /// The node that owns this object, if it may serve it.
    fn owner(object: u32, world: &Simulation) -> Option<usize> {
        let slot = row_slot(&object_row(&key(object)));
        let own = |node: &usize| {
            world.runs[*node] && world.nodes[*node].has_lease && world.nodes[*node].owns(slot)
        };
        (0..NODES).find(own)
    }

    fn begin_write(&mut self, object: u32, world: &mut Simulation) {
        let Some(at) = Clients::owner(object, world) else {
            return;
        };
        self.notes = self.notes % 60_000 + 1;
        let values = [
            1 + world.random.below(CITIES) as u16,
            1 + world.random.below(NUMBERS) as u16,
            self.notes,
        ];
        let which = world.random.below(8);
        let change = match which {
            0 => ObjectWrite::removal(),
            _ => ObjectWrite {
                sets: [0, 1, 2].map(|at| (which >> at & 1 == 1).then_some(values[at])),
                ..ObjectWrite::default()
            },
        };
        let key = key(object);
        let mut hash = match world.nodes[at].object(&key) {
            Some(Object::Hash(hash)) if which > 0 => hash,
            _ => Hash::default(),
        };
        for (at, value) in change.sets.iter().enumerate() {
            if let Some(value) = value.filter(|value| *value > 0) {
                let city = if at == 0 { "c" } else { "" };
                hash.set(
                    ["city", "n", "note"][at].as_bytes(),
                    format!("{city}{value}"),
                );
            }
        }
        let object_now = (which > 0).then_some(Object::Hash(hash));
        let call = self.add(world, CallState::Write { object, change });
        world.nodes[at].write(&key, object_now.as_ref(), call);
        if world.random.one_in(2) {
            world.flush(at);
        }
    }

    fn begin_read(&mut self, object: u32, world: &mut Simulation) {
        let Some(at) = Clients::owner(object, world) else {
            return;
        };
        let node = &world.nodes[at];
        let saw = node
            .object(&key(object))
            .map_or(State::NONE, |it| state_of(&it));
        let (at, upto) = ((at, world.lives[at]), node.executed_count);
        self.add(
            world,
            CallState::Read {
                object,
                saw,
                at,
                upto,
            },
        );
    }

    fn begin_search(&mut self, query: &str, condition: Condition, world: &mut Simulation) {
        let declared = world.declared();
        let words: [&[u8]; 5] = [query.as_bytes(), b"LIMIT", b"0", b"1000", b"NOCONTENT"];
        let search = Search::parse(&words, &declared.definition).expect("it is one");
        let mut search = SearchCall {
            condition,
            search: Arc::new(search),
            parts: Vec::new(),
            route: SearchRoute::Regions,
        };
        // The node uses the map that it has.
        let asker = world.random.index(NODES);
        if !world.runs[asker] {
            return;
        }
        let is_begun = search.search_regions(asker, world) || search.search_owners(asker, world);
        if is_begun {
            self.add(world, CallState::Search(search));
        }
    }

    fn advance_call(&mut self, call: usize, world: &mut Simulation) {
        let Some(mut running) = self.running.remove(&call) else {
            return;
        };
        match &mut running.state {
            CallState::Write { .. } => {}
            CallState::Read {
                object,
                saw,
                at,
                upto,
            } => {
                if world.lives[at.0] != at.1 {
                    return;
                }
                if world.nodes[at.0].settled >= *upto {
                    let call = Call::Read(*saw);
                    return self.end(running.started, world.clock, *object, call);
                }
            }
            CallState::Search(open) => match open.advance(world) {
                CallProgress::Pending => {}
                CallProgress::Refused => return,
                CallProgress::Done => {
                    match open.route {
                        SearchRoute::Regions => world.coverage.by_regions += 1,
                        SearchRoute::Owners(_) => world.coverage.by_owners += 1,
                    }
                    let span =
                        Span::new(running.started, world.clock).expect("the clock is monotonic");
                    let found: SearchHits = open.found();
                    self.events
                        .extend(search(span, open.condition, &found, OBJECTS));
                    return;
                }
            },
        }
        self.running.insert(call, running);
    }
}

enum CallProgress {
    Pending,
    Refused,
    Done,
}

/// All nodes have equal costs, so that a search contacts as few as possible.
struct UniformCosts<'a>(&'a Shard);

impl RouteTargets<u16> for UniformCosts<'_> {
    fn owners(&self) -> usize {
        self.0.owners().count()
    }

    fn holder(&self, slot: u16) -> Option<u16> {
        Some(self.0.owner_of_slot(slot)).filter(|owner| *owner != NO_OWNER)
    }

    fn contact_us(&self, places: Option<&mut dyn Iterator<Item = &u16>>) -> f64 {
        places.map_or(self.owners(), |places| places.count()) as f64
    }

    fn estimate(&self) -> Estimate {
        Estimate::default()
    }
}

impl SearchCall {
    fn found(&self) -> SearchHits {
        let parts = self.parts.iter().flat_map(|part| match &part.state {
            PartState::Done(found) => found.clone(),
            _ => Vec::new(),
        });
        parts.collect()
    }

    fn search_regions(&mut self, asker: usize, world: &Simulation) -> bool {
        let node = &world.nodes[asker];
        let declared = node.catalog.space("things").expect("it is there");
        let Some(regions) = node.spaces.regions(declared) else {
            return false;
        };
        let predicate = &self.search.predicate;
        let route = route(
            &regions,
            predicate,
            &declared.definition,
            &UniformCosts(&node.shard),
        );
        let Route::Regions { subspace, requests } = route else {
            return false;
        };
        let id = regions.id(subspace);
        let part = |(node, runs): (u16, _)| SearchPart {
            node: node.into(),
            regions: Some((id, runs)),
            state: PartState::Asked,
        };
        self.parts = requests.into_iter().map(part).collect();
        self.route = SearchRoute::Regions;
        true
    }

    /// Returns `false` if a node owns nothing, or if a block has no owner.
    fn search_owners(&mut self, asker: usize, world: &Simulation) -> bool {
        let epoch = world.nodes[asker].epoch;
        let map = world.maps.iter().find(|map| map.epoch == epoch);
        let map = map.expect("the node has received it");
        if map.blocks.contains(&NO_OWNER) {
            return false;
        }
        let mut owners = map.blocks.clone();
        owners.sort_unstable();
        owners.dedup();
        let part = |node: u16| SearchPart {
            node: node.into(),
            regions: None,
            state: PartState::Asked,
        };
        self.parts = owners.into_iter().map(part).collect();
        self.route = SearchRoute::Owners(epoch);
        true
    }

    fn advance(&mut self, world: &mut Simulation) -> CallProgress {
        let left: Vec<usize> = (0..self.parts.len())
            .filter(|at| !matches!(self.parts[*at].state, PartState::Done(_)))
            .collect();
        if left.is_empty() {
            return CallProgress::Done;
        }
        let at = left[world.random.index(left.len())];
        match self.step(at, world) {
            true => CallProgress::Pending,
            false if self.route != SearchRoute::Regions => CallProgress::Refused,
            false => {
                // Continues as without subspaces.
                world.coverage.not_ready += 1;
                let asker = world.random.index(NODES);
                if world.runs[asker] && self.search_owners(asker, world) {
                    CallProgress::Pending
                } else {
                    CallProgress::Refused
                }
            }
        }
    }

    /// Advances one part. Returns `false` if its node cannot answer.
    fn step(&mut self, at: usize, world: &mut Simulation) -> bool {
        let part = &mut self.parts[at];
        let node = part.node;
        if !world.runs[node] {
            return false;
        }
        let is_owner = |world: &Simulation| match self.route {
            SearchRoute::Regions => true,
            SearchRoute::Owners(epoch) => {
                let node = &world.nodes[node];
                let is_of_map = node.epoch >= epoch && node.owners_since <= epoch;
                world.planted == Some(PlantedBug::MixesMaps) || is_of_map
            }
        };
        match &mut part.state {
            PartState::Asked => {
                if !world.nodes[node].has_lease || !is_owner(world) {
                    return false;
                }
                let life = world.lives[node];
                let node = &world.nodes[node];
                let upto = node.executed_count;
                let (found, generation) = match &part.regions {
                    Some((id, runs)) => {
                        let predicate = &self.search.predicate;
                        match node.search_copies(*id, predicate, runs, &self.search) {
                            Some(found) => found,
                            None => return false,
                        }
                    }
                    None => {
                        node.catch_up();
                        (node.search_objects(&self.search), 0)
                    }
                };
                part.state = PartState::Waits {
                    found,
                    life,
                    generation,
                    upto,
                };
                true
            }
            PartState::Waits {
                found,
                life,
                generation,
                upto,
            } => {
                if world.lives[node] != *life {
                    return false;
                }
                if world.nodes[node].settled < *upto {
                    return true;
                }
                let is_fresh = match part.regions {
                    Some(_) => {
                        let is_same = world.nodes[node].generation() == *generation;
                        is_same && world.is_subscribed(node)
                    }
                    None => world.nodes[node].has_lease && is_owner(world),
                };
                if !is_fresh && world.planted != Some(PlantedBug::SkipsRecheck) {
                    return false;
                }
                part.state = PartState::Done(std::mem::take(found));
                true
            }
            PartState::Done(_) => true,
        }
    }
}

fn key(object: u32) -> Vec<u8> {
    format!("thing:{object}").into_bytes()
}
