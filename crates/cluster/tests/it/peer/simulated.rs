//! Connections under breaks, delays, pauses and crashes: nodes that send requests and messages, and read each other's rows.
//!
//! Each node owns one row and has copies of the others'. A write is acknowledged when every reader has it, or certainly no longer
//! trusts its copy. A read of a copy must never return less than what was acknowledged. The ledger can check this, because nodes
//! run one at a time.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use larder_cluster::map::{Epoch, Incarnation, NodeId as PeerId};
use larder_cluster::peer::{
    Connection, ConnectionEvent, Exchange, Options as PeerOptions, Piece, PieceStatus, SendError,
    StreamId,
};
use larder_sim::{
    Input, Mark, Node, NodeId, Options, Output, Outputs, Plan, Random, Scene, Start, World,
    for_each_seed,
};

use super::support::{options, piece, requests, written};

const NODES: usize = 3;
const TICK_US: u64 = 7_000;
const LEASE_MS: u64 = 300;
const MARGIN_MS: u64 = 10;
/// An owner disconnects a reader that does not acknowledge for this time.
const PATIENCE_MS: u64 = 60;
const FAULTS_US: u64 = 3_000_000;
const END_US: u64 = 6_000_000;

fn peer_options(me: NodeId, incarnation: u64) -> PeerOptions {
    let mut options = options(me.0 as u32);
    options.local.incarnation = Incarnation(incarnation);
    options.local.lease_ms = LEASE_MS;
    options.ping_every_ms = 60;
    options.margin_ms = MARGIN_MS;
    options.silence_ms = 400;
    options.greeting_ms = 300;
    options.queued_bytes_max = 10_000;
    options
}

/// Global knowledge of the simulation.
#[derive(Default)]
struct Ledger {
    /// A deliberate bug: owners do not wait until readers have stopped trusting their copies. Tests must find it.
    is_hasty: bool,
    /// No new requests are sent.
    is_calm: Cell<bool>,
    totals: RefCell<Totals>,
}

#[derive(Debug, Default)]
struct Totals {
    requested: u64,
    executed: BTreeSet<u64>,
    not_done: BTreeSet<u64>,
    answered: u64,
    unknown: u64,
    cancelled: u64,
    exchanged: u64,
    /// For each node's row: the written and the acknowledged value.
    value: [u64; NODES],
    acknowledged: [u64; NODES],
    reads: u64,
    /// Number of reads where a copy existed and only the clock showed that it must not be trusted.
    found_out: u64,
    stale: u64,
    cut_off: u64,
}

#[derive(Debug, Clone)]
enum Message {
    Open(u64),
    Bytes(u64, Vec<u8>),
    Close(u64),
}

struct Link {
    socket: u64,
    connection: Connection,
    /// Sequence number for everything ordered: requests and exchange messages.
    sent: u64,
    received: u64,
    /// Open requests, with the number of pieces received.
    requested: BTreeMap<StreamId, (u64, u64)>,
    /// Pieces to acknowledge.
    untaken: Vec<StreamId>,
    /// Requests to answer, with the number of pieces sent.
    answering: BTreeMap<StreamId, (u64, u64)>,
    /// The value of this node's row that the peer has acknowledged.
    acked: u64,
    /// The time at which it was last sent.
    told_ms: u64,
    copy: Option<u64>,
}

struct Host {
    me: NodeId,
    ledger: Rc<Ledger>,
    incarnation: u64,
    random: Random,
    /// The reachable nodes, with the number of the last socket to each.
    wires: BTreeMap<NodeId, u64>,
    links: BTreeMap<NodeId, Link>,
    open_after_ms: u64,
    /// The times from which rows sent over ended connections are certainly no longer trusted, per node.
    forgotten_after_ms: BTreeMap<NodeId, u64>,
}

impl Node for Host {
    type Setup = Rc<Ledger>;
    type Message = Message;

    fn start(setup: &Rc<Ledger>, start: Start<'_>, out: &mut Outputs<Message>) -> Host {
        out.push(Output::Wake(start.now_us + TICK_US));
        let now_ms = start.now_us / 1_000;
        // The sends of an earlier incarnation are unknown, so all of them are waited for.
        let others = (0..NODES).map(NodeId).filter(|node| *node != start.me);
        let forgotten = others.map(|node| (node, now_ms + LEASE_MS + MARGIN_MS));
        Host {
            me: start.me,
            ledger: setup.clone(),
            incarnation: start.now_us,
            random: Random::stream(start.seed, 1),
            wires: BTreeMap::new(),
            links: BTreeMap::new(),
            open_after_ms: 0,
            forgotten_after_ms: forgotten.collect(),
        }
    }

    fn step(&mut self, now_us: u64, input: Input<Message>, out: &mut Outputs<Message>) {
        let now_ms = now_us / 1_000;
        // Before it receives what happened meanwhile.
        self.read(now_ms);
        let is_tick = matches!(input, Input::Tick);
        self.receive(input, now_ms);
        self.take_events(now_ms, out);
        if is_tick {
            out.push(Output::Wake(now_us + TICK_US));
            self.act(now_ms, out);
            self.write(now_ms);
            self.take_events(now_ms, out);
        }
        self.acknowledge(now_ms);
        self.read(now_ms);
        self.send(out);
    }
}

impl Host {
    fn receive(&mut self, input: Input<Message>, now_ms: u64) {
        match input {
            Input::Connected(peer) => {
                self.wires.insert(peer, 0);
            }
            Input::Lost(peer) => {
                self.wires.remove(&peer);
                if let Some(link) = self.links.get_mut(&peer) {
                    link.connection.record_failure("the wire was lost");
                }
            }
            Input::Message(peer, Message::Open(socket)) => {
                assert!(!self.links.contains_key(&peer), "one at a time");
                let options = peer_options(self.me, self.incarnation);
                let connection = Connection::accept(options, now_ms);
                self.wires.insert(peer, socket);
                self.links.insert(peer, Link::new(socket, connection));
            }
            Input::Message(peer, message) => {
                let Some(link) = self.links.get_mut(&peer) else {
                    return;
                };
                match message {
                    Message::Bytes(socket, bytes) if socket == link.socket => {
                        link.connection.buffer().extend_from_slice(&bytes);
                        link.connection.record_received(now_ms);
                    }
                    Message::Close(socket) if socket == link.socket => {
                        link.connection
                            .record_failure("the other closed its socket");
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn take_events(&mut self, now_ms: u64, out: &mut Outputs<Message>) {
        for link in self.links.values_mut() {
            link.connection.tick(now_ms);
            while let Some(event) = link.connection.next_event(now_ms) {
                link.take(event, self.me, &self.ledger, now_ms);
            }
        }
        let ended = self
            .links
            .extract_if(.., |_, link| link.connection.is_ended());
        for (peer, mut link) in ended.collect::<Vec<_>>() {
            assert!(
                link.requested.is_empty(),
                "all requests ended: {:?}",
                link.requested
            );
            // The reason of the rejection, if any.
            let bytes = written(&mut link.connection, usize::MAX);
            if !bytes.is_empty() {
                out.push(Output::Send(peer, Message::Bytes(link.socket, bytes)));
            }
            out.push(Output::Send(peer, Message::Close(link.socket)));
            let forgotten = self.forgotten_after_ms.entry(peer).or_default();
            *forgotten = (*forgotten).max(link.connection.forgotten_after_ms());
            self.open_after_ms = now_ms + 20;
        }
    }

    /// The actions of a tick: sockets, requests, responses, cancellations.
    fn act(&mut self, now_ms: u64, out: &mut Outputs<Message>) {
        for (peer, socket) in &mut self.wires {
            // The node with the lower id connects.
            let is_free = !self.links.contains_key(peer) && now_ms >= self.open_after_ms;
            if self.me < *peer && is_free {
                *socket += 1;
                out.push(Output::Send(*peer, Message::Open(*socket)));
                let options = peer_options(self.me, self.incarnation);
                let to = PeerId(peer.0 as u32);
                let connection = Connection::connect(options, to, Incarnation(0), now_ms);
                self.links.insert(*peer, Link::new(*socket, connection));
            }
        }
        for link in self.links.values_mut() {
            link.act(&mut self.random, &self.ledger);
        }
    }

    /// Writes the node's own row, and sends it to all peers.
    fn write(&mut self, now_ms: u64) {
        let mut totals = self.ledger.totals.borrow_mut();
        let me = self.me.0;
        if totals.acknowledged[me] == totals.value[me] && self.random.one_in(3) {
            totals.value[me] += 1;
            for link in self.links.values_mut() {
                link.change(totals.value[me], now_ms);
            }
        }
        // A peer that does not acknowledge is disconnected.
        for link in self.links.values_mut() {
            let is_late = link.acked < totals.value[me] && now_ms >= link.told_ms + PATIENCE_MS;
            if is_late && link.connection.peer().is_some() {
                link.connection.refuse("you acknowledge nothing");
                totals.cut_off += 1;
            }
        }
    }

    fn acknowledge(&mut self, now_ms: u64) {
        let mut totals = self.ledger.totals.borrow_mut();
        let value = totals.value[self.me.0];
        let all_have_it = self
            .links
            .values()
            .all(|link| link.connection.peer().is_none() || link.acked == value);
        let all_forgot = self.forgotten_after_ms.values().all(|it| now_ms >= *it);
        if all_have_it && (all_forgot || self.ledger.is_hasty) {
            totals.acknowledged[self.me.0] = value;
        }
    }

    fn read(&self, now_ms: u64) {
        let mut totals = self.ledger.totals.borrow_mut();
        for (owner, link) in &self.links {
            let Some(copy) = link.copy else {
                continue;
            };
            if now_ms >= link.connection.subscribed_until_ms() {
                totals.found_out += 1;
                continue;
            }
            totals.reads += 1;
            if copy < totals.acknowledged[owner.0] {
                totals.stale += 1;
            }
        }
    }

    /// Passes random amounts of bytes to the sockets.
    fn send(&mut self, out: &mut Outputs<Message>) {
        for (peer, link) in &mut self.links {
            let most = self.random.between(1, 3_000) as usize;
            let bytes = written(&mut link.connection, most);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let size = self.random.between(1, rest.len() as u64) as usize;
                let (part, after) = rest.split_at(size);
                rest = after;
                out.push(Output::Send(
                    *peer,
                    Message::Bytes(link.socket, part.to_vec()),
                ));
            }
        }
    }
}

impl Link {
    fn new(socket: u64, connection: Connection) -> Link {
        Link {
            socket,
            connection,
            sent: 0,
            received: 0,
            requested: BTreeMap::new(),
            untaken: Vec::new(),
            answering: BTreeMap::new(),
            acked: 0,
            told_ms: 0,
            copy: None,
        }
    }

    /// Adds a sequence number to an ordered message.
    fn numbered(&mut self, number: u64) -> String {
        self.sent += 1;
        format!("{} {number}", self.sent)
    }

    fn in_order(&mut self, bytes: &[u8]) -> u64 {
        let text = std::str::from_utf8(bytes).expect("text");
        let (sequence, number) = text.split_once(' ').expect("two numbers");
        self.received += 1;
        assert_eq!(sequence.parse(), Ok(self.received), "in order, none lost");
        number.parse().expect("a number")
    }

    fn exchange(&mut self, epoch: u64, number: u64) {
        let bytes = self.numbered(number).into_bytes().into();
        let message = Exchange {
            from_core: 0,
            to_core: 0,
            conversation: epoch,
            bytes,
        };
        // An error means that the connection has ended, which is reported separately.
        let _ = self.connection.exchange(message);
    }

    /// Sends this node's row to the peer.
    fn change(&mut self, value: u64, now_ms: u64) {
        self.told_ms = now_ms;
        if self.connection.peer().is_some() {
            self.exchange(CHANGE, value);
        }
    }

    fn take(&mut self, event: ConnectionEvent, me: NodeId, ledger: &Ledger, now_ms: u64) {
        let mut totals = ledger.totals.borrow_mut();
        match event {
            ConnectionEvent::Hello(_) => {
                self.connection
                    .admit(Some(Incarnation(0)), Epoch(1), now_ms);
                drop(totals);
                self.begin(me, ledger, now_ms);
            }
            ConnectionEvent::Ready(_) => {
                drop(totals);
                self.begin(me, ledger, now_ms);
            }
            ConnectionEvent::Requests(id, requests) => {
                let number = self.in_order(&requests.batch);
                assert!(totals.executed.insert(number), "{number} is executed twice");
                assert!(!totals.not_done.contains(&number), "{number} is not done");
                self.answering.insert(id, (number, 0));
            }
            ConnectionEvent::Reply(id, piece) => {
                let (number, pieces) = self.requested.get_mut(&id).expect("it waits for an answer");
                let expected = format!("{number}.{pieces}");
                assert_eq!(piece.bytes, expected.as_bytes());
                *pieces += 1;
                match piece.status {
                    PieceStatus::Partial => self.untaken.push(id),
                    _ => {
                        self.requested.remove(&id);
                        totals.answered += 1;
                    }
                }
            }
            ConnectionEvent::Cancelled(id) => {
                self.answering.remove(&id).expect("it was requested");
            }
            ConnectionEvent::Writable(id) => {
                assert!(self.answering.contains_key(&id));
            }
            ConnectionEvent::Exchange(message) => {
                let number = self.in_order(&message.bytes);
                totals.exchanged += 1;
                match message.conversation {
                    CHANGE => {
                        self.copy = Some(number);
                        self.exchange(ACK, number);
                    }
                    _ => self.acked = number,
                }
            }
            ConnectionEvent::Replicate(_) => unreachable!("no node sends any"),
            ConnectionEvent::Ended(ended) => {
                self.copy = None;
                for id in ended.unsent {
                    let (number, pieces) = self.requested.remove(&id).expect("reported once");
                    assert_eq!(pieces, 0);
                    assert!(!totals.executed.contains(&number), "{number} was executed");
                    totals.not_done.insert(number);
                }
                for id in ended.unknown {
                    self.requested.remove(&id).expect("reported once");
                    totals.unknown += 1;
                }
                self.answering.clear();
            }
        }
    }

    /// The peer receives this node's row first, and is waited for from then on.
    fn begin(&mut self, me: NodeId, ledger: &Ledger, now_ms: u64) {
        let value = ledger.totals.borrow().value[me.0];
        self.change(value, now_ms);
    }

    fn act(&mut self, random: &mut Random, ledger: &Ledger) {
        let mut totals = ledger.totals.borrow_mut();
        for _ in 0..random.below(4) {
            if ledger.is_calm.get() || self.connection.check_can_request() != Ok(()) {
                break;
            }
            totals.requested += 1;
            let number = totals.requested;
            let text = self.numbered(number);
            let id = self
                .connection
                .send_requests(requests(&text))
                .expect("room");
            self.requested.insert(id, (number, 0));
        }
        // Consumers are occasionally slow.
        if random.one_in(2) {
            self.untaken
                .drain(..)
                .for_each(|id| self.connection.acknowledge_piece(id));
        }
        if random.one_in(8)
            && let Some(id) = self.requested.keys().nth(random.below(8) as usize).copied()
        {
            self.connection.cancel(id);
            self.requested.remove(&id);
            self.untaken.retain(|other| *other != id);
            totals.cancelled += 1;
        }
        let connection = &mut self.connection;
        self.answering.retain(|id, (number, pieces)| {
            while random.one_in(2) || ledger.is_calm.get() {
                let last = if *pieces == *number % 7 {
                    PieceStatus::Complete
                } else {
                    PieceStatus::Partial
                };
                let next: Piece = piece(last, &format!("{number}.{pieces}"));
                match connection.send_reply(*id, next) {
                    Ok(()) if last == PieceStatus::Complete => return false,
                    Ok(()) => *pieces += 1,
                    Err(SendError::Full) => return true,
                    Err(SendError::Closed) => panic!("a closed connection is reported"),
                }
            }
            true
        });
    }
}

/// The kinds of exchange messages, encoded in the conversation number.
const CHANGE: u64 = 1;
const ACK: u64 = 2;

fn run(seed: u64, is_hasty: bool) -> (Rc<Ledger>, World<Host>) {
    let all: Vec<_> = (0..NODES).map(NodeId).collect();
    let scene = Scene {
        mortal: all.clone(),
        linked: all,
        every_us: 100_000,
        lasts_us_max: 700_000,
        power: false,
    };
    let mut random = Random::stream(seed, 0);
    let plan = Plan::draw(&mut random, &scene, 0, FAULTS_US);
    let ledger = Rc::new(Ledger {
        is_hasty,
        ..Ledger::default()
    });
    let options = Options::draw(&mut random, seed);
    let mut world = World::new(NODES, ledger.clone(), options, plan);
    world.run_until(FAULTS_US);
    (ledger, world)
}

#[test]
fn requests_end_once_in_order_and_reads_reflect_acknowledged_writes() {
    let total = RefCell::new(Totals::default());
    let marks = RefCell::new(BTreeSet::new());
    for_each_seed(60, 3_000, |seed| {
        let (ledger, mut world) = run(seed, false);
        world.calm();
        world.run_until(END_US - 1_000_000);
        ledger.is_calm.set(true);
        let before = ledger.totals.borrow().acknowledged;
        world.run_until(END_US);
        for node in (0..NODES).map(NodeId) {
            let host = world.node(node).expect("all run in the end");
            assert_eq!(host.links.len(), NODES - 1, "all are connected in the end");
            for link in host.links.values() {
                assert!(
                    link.requested.is_empty(),
                    "all requests are answered: {:?}",
                    link.requested
                );
            }
        }
        let totals = ledger.totals.borrow();
        assert_eq!(totals.stale, 0, "{}\n{totals:?}", world.plan());
        let went_on = (0..NODES).all(|node| totals.acknowledged[node] > before[node]);
        assert!(went_on, "writes go on in the end: {totals:?}");
        let mut total = total.borrow_mut();
        total.answered += totals.answered;
        total.unknown += totals.unknown;
        total.not_done.extend(totals.not_done.iter());
        total.cancelled += totals.cancelled;
        total.reads += totals.reads;
        total.found_out += totals.found_out;
        total.cut_off += totals.cut_off;
        marks.borrow_mut().extend(world.marks().keys().copied());
    });
    if std::env::var_os("LARDER_SIM_SEED").is_none() {
        let total = total.borrow();
        assert!(total.answered > 1_000 && total.unknown > 100, "{total:?}");
        assert!(
            total.not_done.len() > 10 && total.cancelled > 100,
            "{total:?}"
        );
        assert!(total.reads > 1_000 && total.found_out > 100, "{total:?}");
        assert!(total.cut_off > 10, "{total:?}");
        for mark in [
            Mark::Paused,
            Mark::ConnectionBroken,
            Mark::HeldBack,
            Mark::Killed,
        ] {
            assert!(marks.borrow().contains(&mark), "{mark:?} never happened");
        }
    }
}

/// Verifies the check above: without the owner's wait, it fails.
#[test]
fn the_simulation_detects_an_owner_that_ignores_the_lease() {
    let stale = (0..60).map(|seed| run(seed, true).0.totals.borrow().stale);
    assert!(stale.sum::<u64>() > 0);
}
