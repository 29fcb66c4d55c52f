//! The world: time, messages in flight, and the nodes, executed until a given time.
//!
//! 1. The same options, plan and setup yield the same run.
//! 2. A crash may occur between two events, and within a step between any two of its outputs.
//! 3. A suspended node afterwards receives all inputs that arrived meanwhile, in order, with its clock advanced.
//! 4. Each fault that actually occurred is counted ([`World::marks`]): a plan alone proves nothing.

mod wires;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt::Write;

use crate::disk::Disk;
use crate::faults::{Fault, Plan};
use crate::links::{End, Links, direction_index};
use crate::node::{Input, Node, NodeId, Output, Outputs, Start};
use crate::random::Random;

/// The number of trace lines that are kept.
const TRACE_LINES: usize = 400;

#[derive(Debug, Clone)]
pub struct Options {
    pub seed: u64,
    /// Minimum and maximum latency of a message.
    pub delay_us: (u64, u64),
    /// One in this many connection messages breaks its connection; 0 disables this.
    pub break_one_in: u64,
    /// One in this many datagrams is lost; 0 disables this.
    pub lose_one_in: u64,
    /// One in this many datagrams is duplicated; 0 disables this.
    pub repeat_one_in: u64,
    /// Maximum time until a connection with a blocked direction breaks.
    pub break_after_us: u64,
    /// Maximum duration of a sync.
    pub sync_us: u64,
    /// Maximum clock drift in parts per million, and maximum initial clock offset.
    pub drift_ppm: u64,
    pub clocks_apart_us: u64,
    /// Nodes whose clocks show the world's time: those that record the times of their actions.
    pub exact_clocks: Vec<NodeId>,
    /// Record a trace.
    pub is_traced: bool,
}

impl Options {
    /// Draws options, which differ from seed to seed.
    pub fn draw(random: &mut Random, seed: u64) -> Options {
        let sometimes = |random: &mut Random, value: u64| value * random.below(2);
        Options {
            seed,
            delay_us: (random.between(10, 200), random.between(200, 5_000)),
            break_one_in: sometimes(random, 2_000),
            lose_one_in: sometimes(random, 10),
            repeat_one_in: sometimes(random, 10),
            break_after_us: random.between(1_000, 2_000_000),
            sync_us: random.between(1, 20_000),
            drift_ppm: sometimes(random, 1_000),
            clocks_apart_us: sometimes(random, 3_600_000_000),
            exact_clocks: Vec::new(),
            is_traced: false,
        }
    }
}

/// The kinds of events that are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    Killed,
    KilledWithin,
    LostPower,
    LostUnsynced,
    TornWrite,
    Paused,
    Blocked,
    HeldBack,
    ConnectionBroken,
    MessageLost,
    DatagramLost,
    DatagramRepeated,
    DatagramOvertaken,
    SlowSync,
    Started,
}

enum Event<M> {
    Arrive {
        connection: u64,
        from: NodeId,
        to: NodeId,
        message: M,
    },
    Datagram {
        from: NodeId,
        to: NodeId,
        sent: u64,
        message: M,
    },
    Connect(NodeId, NodeId),
    /// An end is notified that the connection is lost.
    Learn {
        connection: u64,
        node: NodeId,
        peer: NodeId,
    },
    /// Checks whether a direction has been blocked for too long.
    Tire {
        from: NodeId,
        to: NodeId,
        since: u64,
    },
    Wake(NodeId, u64),
    Synced(NodeId, u64, u64),
    Start(NodeId, bool),
    Resume(NodeId),
    Fault(usize),
    Unblock(NodeId, NodeId),
    Block(NodeId, NodeId),
}

struct Place<N: Node> {
    node: Option<N>,
    disk: Disk,
    /// The number of the current process; events for other processes are ignored.
    life: u64,
    clock_start: u64,
    clock_ppm: u64,
    is_paused: bool,
    /// Queued inputs, each with the number of its connection.
    inbox: VecDeque<(Input<N::Message>, u64)>,
    /// The connection to each peer that the process knows and considers intact; 0 for none. A suspended process may
    /// write to one that was lost long ago.
    held_good: Vec<u64>,
    /// The process dies in its next step with outputs, and stays down for this time.
    dies_within: Option<u64>,
    syncs_not_before: u64,
}

/// Nodes, and everything between them.
pub struct World<N: Node> {
    setup: N::Setup,
    options: Options,
    plan: Plan,
    random: Random,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Slot)>>,
    events: Vec<Option<Event<N::Message>>>,
    free: Vec<usize>,
    places: Vec<Place<N>>,
    links: Links<N::Message>,
    connections: u64,
    latest_datagram: Vec<u64>,
    marks: BTreeMap<Mark, u64>,
    trace: VecDeque<String>,
    is_calm: bool,
}

/// The index of an event.
type Slot = usize;

impl<N: Node> World<N> {
    /// Starts nodes on empty disks, with connections between all of them.
    pub fn new(nodes: usize, setup: N::Setup, options: Options, plan: Plan) -> World<N> {
        let mut random = Random::stream(options.seed, 1);
        let places = (0..nodes).map(|_| Place {
            node: None,
            disk: Disk::default(),
            life: 0,
            clock_start: random.below(options.clocks_apart_us + 1),
            clock_ppm: 1_000_000 - options.drift_ppm + random.below(2 * options.drift_ppm + 1),
            is_paused: false,
            inbox: VecDeque::new(),
            held_good: vec![0; nodes],
            dies_within: None,
            syncs_not_before: 0,
        });
        let mut world = World {
            places: places.collect(),
            setup,
            random,
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            links: Links::new(nodes),
            connections: 0,
            latest_datagram: vec![0; nodes * nodes],
            marks: BTreeMap::new(),
            trace: VecDeque::new(),
            is_calm: false,
            options,
            plan,
        };
        for node in (0..nodes).map(NodeId) {
            world.schedule(0, Event::Start(node, false));
        }
        for (fault, at) in (0..world.plan.0.len())
            .map(|at| (at, world.plan.0[at].0))
            .collect::<Vec<_>>()
        {
            world.schedule(at, Event::Fault(fault));
        }
        world
    }

    pub fn now_us(&self) -> u64 {
        self.now
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    pub fn setup(&self) -> &N::Setup {
        &self.setup
    }

    /// Returns the node; `None` while it is down.
    pub fn node(&self, node: NodeId) -> Option<&N> {
        self.places[node.0].node.as_ref()
    }

    pub fn disk(&self, node: NodeId) -> &Disk {
        &self.places[node.0].disk
    }

    /// Gives a node that is down another disk: an earlier one of its own, or an empty one.
    ///
    /// # Panics
    /// If the node is up.
    pub fn set_disk(&mut self, node: NodeId, disk: Disk) {
        assert!(self.places[node.0].node.is_none(), "it is in use");
        self.places[node.0].disk = disk;
        self.places[node.0].disk.settle();
    }

    /// Returns how often each fault actually occurred.
    pub fn marks(&self) -> &BTreeMap<Mark, u64> {
        &self.marks
    }

    /// Returns the last lines of the trace, if the options enable it.
    pub fn trace(&self) -> String {
        let lines = self.trace.iter().map(String::as_str);
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Runs until the given time.
    pub fn run_until(&mut self, until_us: u64) {
        while self
            .queue
            .peek()
            .is_some_and(|Reverse((at, ..))| *at <= until_us)
        {
            let Reverse((at, _, slot)) = self.queue.pop().expect("just seen");
            self.now = at;
            let event = self.events[slot].take().expect("once");
            self.free.push(slot);
            self.handle_event(event);
        }
        self.now = self.now.max(until_us);
    }

    /// Ends all faults: links are open, and all processes run or restart soon.
    pub fn calm(&mut self) {
        self.is_calm = true;
        self.trace_line(|| "calm".to_owned());
        let nodes = self.places.len();
        for from in (0..nodes).map(NodeId) {
            self.places[from.0].dies_within = None;
            self.places[from.0].syncs_not_before = 0;
            if self.places[from.0].is_paused {
                self.schedule(self.now, Event::Resume(from));
            }
            for to in (0..nodes).map(NodeId).filter(|to| *to != from) {
                if self.links.direction(from, to).blocks > 0 {
                    self.links.direction(from, to).blocks = 1;
                    self.unblock(from, to);
                }
            }
        }
    }

    /// Injects a fault now.
    pub fn inflict(&mut self, fault: &Fault) {
        self.trace_line(|| format!("fault {fault:?}"));
        match fault {
            Fault::Kill { node, down_us } => self.kill(*node, *down_us, false),
            Fault::KillWithin { node, down_us } => {
                self.places[node.0].dies_within = Some(*down_us);
            }
            Fault::PowerLoss { node, down_us } => self.kill(*node, *down_us, true),
            Fault::Blackout { nodes, down_us } => {
                for node in nodes {
                    let down = self.random.between(1, *down_us);
                    self.kill(*node, down, true);
                }
            }
            Fault::Pause { node, for_us } => {
                let place = &mut self.places[node.0];
                if place.node.is_some() && !place.is_paused {
                    place.is_paused = true;
                    self.mark(Mark::Paused);
                    self.schedule(self.now + for_us, Event::Resume(*node));
                }
            }
            Fault::Cut { from, to, for_us } => {
                self.block(*from, *to);
                self.schedule(self.now + for_us, Event::Unblock(*from, *to));
            }
            Fault::Isolate { nodes, for_us } => {
                for (from, to) in self.around(nodes) {
                    self.block(from, to);
                    self.schedule(self.now + for_us, Event::Unblock(from, to));
                }
            }
            Fault::SwizzleClog { nodes, step_us } => {
                let mut freed = nodes.clone();
                self.random.shuffle(&mut freed);
                for (at, node) in nodes.iter().enumerate() {
                    let stop = self.now + step_us * at as u64;
                    let place = freed
                        .iter()
                        .position(|other| other == node)
                        .expect("the same");
                    let free = self.now + step_us * (nodes.len() + place) as u64;
                    for (from, to) in self.around(&[*node]) {
                        self.schedule(stop, Event::Block(from, to));
                        self.schedule(free, Event::Unblock(from, to));
                    }
                }
            }
            Fault::Break { a, b } => self.break_connection(*a, *b),
            Fault::SlowDisk { node, for_us } => {
                self.places[node.0].syncs_not_before = self.now + for_us;
            }
        }
    }

    fn schedule(&mut self, at: u64, event: Event<N::Message>) {
        let slot = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(slot) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.order += 1;
        self.queue.push(Reverse((at, self.order, slot)));
    }

    fn mark(&mut self, mark: Mark) {
        *self.marks.entry(mark).or_default() += 1;
    }

    fn trace_line(&mut self, line: impl FnOnce() -> String) {
        if self.options.is_traced {
            if self.trace.len() == TRACE_LINES {
                self.trace.pop_front();
            }
            let mut text = format!("{:>10.3} ", self.now as f64 / 1e3);
            write!(text, "{}", line()).expect("into a string");
            self.trace.push_back(text);
        }
    }

    fn delay(&mut self) -> u64 {
        let (first, last) = self.options.delay_us;
        self.random.between(first, last.max(first))
    }

    fn handle_event(&mut self, event: Event<N::Message>) {
        match event {
            Event::Arrive {
                connection,
                from,
                to,
                message,
            } => {
                let pair = self.links.pair(from, to);
                if pair.connection != connection {
                    self.mark(Mark::MessageLost);
                    return;
                }
                let way = &mut pair.ways[direction_index(from, to)];
                if way.blocks > 0 {
                    way.held.push_back(message);
                    self.mark(Mark::HeldBack);
                    return;
                }
                if pair.ends[direction_index(to, from)] == End::Notified(connection) {
                    self.deliver(to, Input::Message(from, message));
                }
            }
            Event::Datagram {
                from,
                to,
                sent,
                message,
            } => {
                if self.links.direction(from, to).blocks > 0 {
                    self.mark(Mark::DatagramLost);
                    return;
                }
                let latest = &mut self.latest_datagram[from.0 * self.places.len() + to.0];
                let is_late = sent < *latest;
                *latest = sent.max(*latest);
                if is_late {
                    self.mark(Mark::DatagramOvertaken);
                }
                self.deliver(to, Input::Datagram(from, message));
            }
            Event::Connect(a, b) => self.connect(a, b),
            Event::Learn {
                connection,
                node,
                peer,
            } => self.notify_connected(connection, node, peer),
            Event::Tire { from, to, since } => {
                let way = self.links.direction(from, to);
                if way.blocks > 0 && way.blocked_since == since {
                    self.break_connection(from, to);
                }
            }
            Event::Wake(node, life) if self.places[node.0].life == life => {
                self.deliver(node, Input::Tick);
            }
            Event::Synced(node, life, upto) if self.places[node.0].life == life => {
                self.places[node.0].disk.sync(upto);
                self.deliver(node, Input::Synced(upto));
            }
            Event::Wake(..) | Event::Synced(..) => {}
            Event::Start(node, lost_power) => self.start(node, lost_power),
            Event::Resume(node) => self.resume(node),
            Event::Fault(at) if !self.is_calm => {
                let fault = self.plan.0[at].1.clone();
                self.inflict(&fault);
            }
            Event::Fault(_) => {}
            Event::Unblock(from, to) => self.unblock(from, to),
            Event::Block(from, to) if !self.is_calm => self.block(from, to),
            Event::Block(..) => {}
        }
    }

    fn deliver(&mut self, to: NodeId, input: Input<N::Message>) {
        self.deliver_on(to, input, 0);
    }

    /// Delivers an input about this connection, unless the node is down.
    fn deliver_on(&mut self, to: NodeId, input: Input<N::Message>, connection: u64) {
        let place = &mut self.places[to.0];
        if place.node.is_none() {
            return;
        }
        if place.is_paused {
            place.inbox.push_back((input, connection));
            return;
        }
        self.step(to, input, connection);
    }

    fn clock(&self, node: NodeId) -> u64 {
        if self.options.exact_clocks.contains(&node) {
            return self.now;
        }
        let place = &self.places[node.0];
        let passed = u128::from(self.now) * u128::from(place.clock_ppm) / 1_000_000;
        place.clock_start + passed as u64
    }

    fn step(&mut self, to: NodeId, input: Input<N::Message>, connection: u64) {
        self.trace_line(|| format!("{} <- {input:?}", to.0));
        if let Input::Connected(peer) | Input::Lost(peer) = input {
            self.places[to.0].held_good[peer.0] = connection;
        }
        let now = self.clock(to);
        let mut out = self.outputs();
        let node = self.places[to.0].node.as_mut().expect("it is up");
        node.step(now, input, &mut out);
        self.execute_outputs(to, out);
    }

    fn outputs(&self) -> Outputs<N::Message> {
        Outputs {
            list: Vec::new(),
            is_traced: self.options.is_traced,
        }
    }

    fn execute_outputs(&mut self, node: NodeId, mut out: Outputs<N::Message>) {
        let dies = if out.list.is_empty() {
            None
        } else {
            self.places[node.0].dies_within.take()
        };
        if dies.is_some() {
            let done = self.random.index(out.list.len());
            out.list.truncate(done);
            self.mark(Mark::KilledWithin);
        }
        for output in out.list {
            self.execute_output(node, output);
        }
        if let Some(down_us) = dies {
            self.kill(node, down_us, false);
        }
    }

    fn execute_output(&mut self, from: NodeId, output: Output<N::Message>) {
        match output {
            Output::Send(to, message) => self.send(from, to, message),
            Output::Datagram(to, message) => {
                if self.random.one_in(self.options.lose_one_in) && !self.is_calm {
                    self.mark(Mark::DatagramLost);
                    return;
                }
                if self.random.one_in(self.options.repeat_one_in) {
                    self.mark(Mark::DatagramRepeated);
                    self.send_datagram(from, to, message.clone());
                }
                self.send_datagram(from, to, message);
            }
            Output::Append(file, bytes) => self.places[from.0].disk.append(file, bytes),
            Output::Replace(file, bytes) => self.places[from.0].disk.replace(file, bytes),
            Output::Sync => {
                let took = self.random.between(1, self.options.sync_us);
                let place = &self.places[from.0];
                let (life, upto) = (place.life, place.disk.changes());
                let at = (self.now + took).max(place.syncs_not_before);
                if place.syncs_not_before > self.now {
                    self.mark(Mark::SlowSync);
                }
                self.schedule(at, Event::Synced(from, life, upto));
            }
            Output::Wake(local) => {
                let place = &self.places[from.0];
                let passed = u128::from(local.saturating_sub(place.clock_start));
                let at = if self.options.exact_clocks.contains(&from) {
                    local
                } else {
                    (passed * 1_000_000).div_ceil(u128::from(place.clock_ppm)) as u64
                };
                let (at, life) = (at.max(self.now + 1), place.life);
                self.schedule(at, Event::Wake(from, life));
            }
            Output::Note(line) => self.trace_line(|| format!("{} -- {line}", from.0)),
        }
    }

    fn start(&mut self, me: NodeId, lost_power: bool) {
        self.trace_line(|| format!("{} starts", me.0));
        self.mark(Mark::Started);
        let now_us = self.clock(me);
        let seed = self.random.word();
        let mut out = self.outputs();
        let place = &mut self.places[me.0];
        assert!(place.node.is_none(), "it is down");
        place.life += 1;
        let start = Start {
            me,
            now_us,
            seed,
            disk: &place.disk,
            lost_power,
        };
        place.node = Some(N::start(&self.setup, start, &mut out));
        self.execute_outputs(me, out);
        for other in (0..self.places.len())
            .map(NodeId)
            .filter(|other| *other != me)
        {
            self.seek(me, other);
        }
    }

    fn kill(&mut self, node: NodeId, down_us: u64, power: bool) {
        let place = &mut self.places[node.0];
        if place.node.is_none() {
            return;
        }
        place.node = None;
        place.life += 1;
        place.is_paused = false;
        place.inbox.clear();
        place.held_good.fill(0);
        place.dies_within = None;
        if power {
            let (lost, torn) = place.disk.lose_power(&mut self.random);
            self.mark(Mark::LostPower);
            if lost {
                self.mark(Mark::LostUnsynced);
            }
            if torn {
                self.mark(Mark::TornWrite);
            }
        } else {
            place.disk.end_process();
            self.mark(Mark::Killed);
        }
        self.trace_line(|| format!("{} is dead, power lost: {power}", node.0));
        for other in (0..self.places.len())
            .map(NodeId)
            .filter(|other| *other != node)
        {
            self.break_connection(node, other);
            self.links.pair(node, other).ends[direction_index(node, other)] = End::None;
        }
        self.schedule(self.now + down_us.max(1), Event::Start(node, power));
    }

    fn resume(&mut self, node: NodeId) {
        if !std::mem::take(&mut self.places[node.0].is_paused) {
            return;
        }
        self.trace_line(|| format!("{} goes on", node.0));
        while let Some((input, connection)) = self.places[node.0].inbox.pop_front() {
            self.step(node, input, connection);
            if self.places[node.0].node.is_none() {
                return;
            }
        }
    }
}
