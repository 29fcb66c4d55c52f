//! The clients of the simulation: several calls at a time, each in steps between which anything may happen.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use larder_join::{NOBODY, Shard};
use larder_space::copies::{Estimate, Places, Route, route};
use larder_space::object::{Hash, Object};
use larder_space::search::Search;
use larder_types::{object_row, row_slot};
use larder_validate::Span;
use larder_validate::objects::{Call, Change, Condition, Event, State, search};

use super::Planted;
use super::node::{Found, state_of};
use super::world::{NODES, World};

const OBJECTS: u32 = 10;
const CITIES: u64 = 4;
const NUMBERS: u64 = 8;
/// Number of concurrent calls.
const CALLS: usize = 5;

#[derive(Default)]
pub struct Clients {
    running: BTreeMap<usize, Running>,
    last: usize,
    events: Vec<Event>,
    notes: u16,
    /// Writes that are committed and wait for the readers' acknowledgements: the call, the node, and the exchange's sequence
    /// number.
    told: Vec<(usize, usize, u64)>,
}

/// A call in progress.
struct Running {
    begun: u64,
    what: What,
}

enum What {
    Write {
        object: u32,
        change: Change,
    },
    /// The state that was read at a node in an incarnation. The changes executed there up to `upto` must be committed.
    Read {
        object: u32,
        saw: State,
        at: (usize, u64),
        upto: u64,
    },
    Search(Searching),
}

struct Searching {
    condition: Condition,
    search: Arc<Search>,
    parts: Vec<Part>,
    by: By,
}

#[derive(Clone, Copy, PartialEq)]
enum By {
    Regions,
    /// By the map of this epoch.
    Owners(u64),
}

struct Part {
    node: usize,
    /// The regions requested of a subspace; `None` requests all own objects.
    regions: Option<(u64, Vec<RangeInclusive<u16>>)>,
    state: PartState,
}

enum PartState {
    Asked,
    /// Found in an incarnation of the node, in copies of a generation, with `upto` changes executed.
    Waits {
        found: Found,
        life: u64,
        generation: u64,
        upto: u64,
    },
    Done(Found),
}

impl Clients {
    /// All calls. Those that have not ended may have been executed.
    pub fn events(&self) -> Vec<Event> {
        let mut events = self.events.clone();
        for running in self.running.values() {
            if let What::Write { object, change } = running.what {
                let call = Call::Change { change, held: None };
                let span = Span::unanswered(running.begun);
                events.push(Event { object, span, call });
            }
        }
        events
    }

    pub fn answered(&self) -> usize {
        self.events.len()
    }

    pub fn committed(&mut self, call: usize, at: usize, told: u64) {
        self.told.push((call, at, told));
    }

    pub fn step(&mut self, world: &mut World) {
        let open = self
            .running
            .values()
            .filter(|it| it.begun + 400 > world.clock)
            .count();
        if open < CALLS && world.random.one_in(3) {
            return self.begin(world);
        }
        self.answer_writes(world);
        let calls: Vec<usize> = self.running.keys().copied().collect();
        if !calls.is_empty() {
            let call = calls[world.random.index(calls.len())];
            self.go_on(call, world);
        }
    }

    /// Starts no more random calls: current calls finish, then everything is read.
    pub fn calm(&mut self, round: u32, world: &mut World) {
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
        let is_search = |it: &&Running| !matches!(it.what, What::Write { .. });
        let left = self.running.values().filter(is_search).count();
        assert_eq!(left, 0, "a search or a read never ends");
    }

    fn step_open(&mut self, world: &mut World) {
        self.answer_writes(world);
        let calls: Vec<usize> = self.running.keys().copied().collect();
        calls.into_iter().for_each(|call| self.go_on(call, world));
    }

    fn answer_writes(&mut self, world: &World) {
        let planted = world.planted;
        let is_told = |(_, at, told): &(usize, usize, u64)| {
            world.runs[*at] && world.nodes[*at].exchange.is_acknowledged(*told)
                || planted == Some(Planted::AnswersUntold)
        };
        let (answered, left): (Vec<_>, Vec<_>) = self.told.drain(..).partition(is_told);
        self.told = left;
        for (call, ..) in answered {
            let Some(running) = self.running.remove(&call) else {
                continue;
            };
            if let What::Write { object, change } = running.what {
                let call = Call::Change { change, held: None };
                self.end(running.begun, world.clock, object, call);
            }
        }
    }

    fn end(&mut self, begun: u64, ended: u64, object: u32, call: Call) {
        let span = Span::new(begun, ended).expect("time goes on");
        self.events.push(Event { object, span, call });
    }

    fn begin(&mut self, world: &mut World) {
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

    fn add(&mut self, world: &World, what: What) -> usize {
        self.last += 1;
        let begun = world.clock;
        self.running.insert(self.last, Running { begun, what });
        self.last
    }

    /// The node that owns this object, if it may serve it.
    fn owner(object: u32, world: &World) -> Option<usize> {
        let slot = row_slot(&object_row(&key(object)));
        let own = |node: &usize| {
            world.runs[*node] && world.nodes[*node].has_lease && world.nodes[*node].owns(slot)
        };
        (0..NODES).find(own)
    }

    fn begin_write(&mut self, object: u32, world: &mut World) {
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
            0 => Change::removal(),
            _ => Change {
                sets: [0, 1, 2].map(|at| (which >> at & 1 == 1).then_some(values[at])),
                ..Change::default()
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
        let call = self.add(world, What::Write { object, change });
        world.nodes[at].write(&key, object_now.as_ref(), call);
        if world.random.one_in(2) {
            world.flush(at);
        }
    }

    fn begin_read(&mut self, object: u32, world: &mut World) {
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
            What::Read {
                object,
                saw,
                at,
                upto,
            },
        );
    }

    fn begin_search(&mut self, query: &str, condition: Condition, world: &mut World) {
        let declared = world.declared();
        let words: [&[u8]; 5] = [query.as_bytes(), b"LIMIT", b"0", b"1000", b"NOCONTENT"];
        let search = Search::parse(&words, &declared.definition).expect("it is one");
        let mut searching = Searching {
            condition,
            search: Arc::new(search),
            parts: Vec::new(),
            by: By::Regions,
        };
        // The node uses the map that it has.
        let asker = world.random.index(NODES);
        if !world.runs[asker] {
            return;
        }
        let is_begun = searching.ask_regions(asker, world) || searching.ask_owners(asker, world);
        if is_begun {
            self.add(world, What::Search(searching));
        }
    }

    fn go_on(&mut self, call: usize, world: &mut World) {
        let Some(mut running) = self.running.remove(&call) else {
            return;
        };
        match &mut running.what {
            What::Write { .. } => {}
            What::Read {
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
                    return self.end(running.begun, world.clock, *object, call);
                }
            }
            What::Search(searching) => match searching.go_on(world) {
                Going::On => {}
                Going::Refused => return,
                Going::Done => {
                    match searching.by {
                        By::Regions => world.seen.by_regions += 1,
                        By::Owners(_) => world.seen.by_owners += 1,
                    }
                    let span = Span::new(running.begun, world.clock).expect("time goes on");
                    let found: Found = searching.found();
                    self.events
                        .extend(search(span, searching.condition, &found, OBJECTS));
                    return;
                }
            },
        }
        self.running.insert(call, running);
    }
}

enum Going {
    On,
    Refused,
    Done,
}

/// All nodes have equal costs, so that a search contacts as few as possible.
struct Alike<'a>(&'a Shard);

impl Places<u16> for Alike<'_> {
    fn owners(&self) -> usize {
        self.0.owners().count()
    }

    fn holder(&self, slot: u16) -> Option<u16> {
        Some(self.0.owner_of_slot(slot)).filter(|owner| *owner != NOBODY)
    }

    fn asking_us(&self, places: Option<&mut dyn Iterator<Item = &u16>>) -> f64 {
        places.map_or(self.owners(), |places| places.count()) as f64
    }

    fn estimate(&self) -> Estimate {
        Estimate::default()
    }
}

impl Searching {
    fn found(&self) -> Found {
        let parts = self.parts.iter().flat_map(|part| match &part.state {
            PartState::Done(found) => found.clone(),
            _ => Vec::new(),
        });
        parts.collect()
    }

    fn ask_regions(&mut self, asker: usize, world: &World) -> bool {
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
            &Alike(&node.shard),
        );
        let Route::Regions { subspace, requests } = route else {
            return false;
        };
        let id = regions.id(subspace);
        let part = |(node, runs): (u16, _)| Part {
            node: node.into(),
            regions: Some((id, runs)),
            state: PartState::Asked,
        };
        self.parts = requests.into_iter().map(part).collect();
        self.by = By::Regions;
        true
    }

    /// Returns `false` if a node owns nothing, or if a block has no owner.
    fn ask_owners(&mut self, asker: usize, world: &World) -> bool {
        let epoch = world.nodes[asker].epoch;
        let map = world.maps.iter().find(|map| map.epoch == epoch);
        let map = map.expect("it has heard of it");
        if map.blocks.contains(&NOBODY) {
            return false;
        }
        let mut owners = map.blocks.clone();
        owners.sort_unstable();
        owners.dedup();
        let part = |node: u16| Part {
            node: node.into(),
            regions: None,
            state: PartState::Asked,
        };
        self.parts = owners.into_iter().map(part).collect();
        self.by = By::Owners(epoch);
        true
    }

    fn go_on(&mut self, world: &mut World) -> Going {
        let left: Vec<usize> = (0..self.parts.len())
            .filter(|at| !matches!(self.parts[*at].state, PartState::Done(_)))
            .collect();
        if left.is_empty() {
            return Going::Done;
        }
        let at = left[world.random.index(left.len())];
        match self.step(at, world) {
            true => Going::On,
            false if self.by != By::Regions => Going::Refused,
            false => {
                // Continues as without subspaces.
                world.seen.not_ready += 1;
                let asker = world.random.index(NODES);
                if world.runs[asker] && self.ask_owners(asker, world) {
                    Going::On
                } else {
                    Going::Refused
                }
            }
        }
    }

    /// Advances one part. Returns `false` if its node cannot answer.
    fn step(&mut self, at: usize, world: &mut World) -> bool {
        let part = &mut self.parts[at];
        let node = part.node;
        if !world.runs[node] {
            return false;
        }
        let is_owner = |world: &World| match self.by {
            By::Regions => true,
            By::Owners(epoch) => {
                let node = &world.nodes[node];
                let is_of_map = node.epoch >= epoch && node.owners_since <= epoch;
                world.planted == Some(Planted::MixesMaps) || is_of_map
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
                        match node.find_held(*id, predicate, runs, &self.search) {
                            Some(found) => found,
                            None => return false,
                        }
                    }
                    None => {
                        node.catch_up();
                        (node.find_owned(&self.search), 0)
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
                if !is_fresh && world.planted != Some(Planted::LooksOnce) {
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
