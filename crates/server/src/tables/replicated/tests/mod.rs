//! Places of several nodes in one thread: the test delivers their messages, models their disks, and changes the map.

mod random;
mod scenarios;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use larder_cluster::coordination::LeaseHandle;
use larder_cluster::map::{
    Change, ChangeId, DiskId, Incarnation, Map, NodeId, Registration, ReplicaFill, Roles, Settings,
    SlotRange, SyncChange, SyncChangeOrigin,
};
use larder_cluster::replication::{self, Message, Place, SlotMapChange};
use larder_join::Limits;
use larder_journal::Writer;
use larder_protocol::commands::{Command, Id, OwnedCommand, find};
use larder_protocol::config::{ClusterMode, Fsync, ServerConfig};
use larder_protocol::errors::Code;

use super::AdmitOutcome;
use super::carrier::Carrier;
use crate::Shared;
use crate::cluster::slot_requests::{collect_synced, plan_change};
use crate::cluster::{Life, View};
use crate::tables::model_disk::ModelDisk;
use crate::tables::{Gate, Refusal, Tables, open_stepped, refusal};

/// Messages in flight: sender, receiver, connection, bytes.
type InFlightMessages = VecDeque<(NodeId, NodeId, u64, Vec<u8>)>;

/// Puts the messages of a place in flight.
struct Pipe {
    me: NodeId,
    on_way: Rc<RefCell<InFlightMessages>>,
    /// The connection that this node has opened, by the node at the other end.
    own: Rc<RefCell<BTreeMap<NodeId, u64>>>,
}

impl Carrier for Pipe {
    fn connect(&self, _: NodeId) {}

    fn send_stream(&self, to: Place, message: &Message) {
        if let Some(connection) = self.own.borrow().get(&to.node) {
            self.send_answer(to, *connection, message);
        }
    }

    fn send_answer(&self, to: Place, connection: u64, message: &Message) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.on_way
            .borrow_mut()
            .push_back((self.me, to.node, connection, bytes));
    }
}

struct TestNode {
    disk: ModelDisk,
    incarnation: u64,
    own: Rc<RefCell<BTreeMap<NodeId, u64>>>,
    running: Option<RunningNode>,
}

struct RunningNode {
    tables: Tables,
    writer: Writer,
    shared: Arc<Shared>,
    view: Arc<View>,
    _folder: tempfile::TempDir,
}

/// A cluster of nodes with one core each.
struct TestCluster {
    nodes: BTreeMap<u32, TestNode>,
    on_way: Rc<RefCell<InFlightMessages>>,
    map: Map,
    connections: u64,
    /// The lease of each node when it next receives the map.
    held: LeaseHandle,
}

fn registration(node: u32, incarnation: u64) -> Registration {
    Registration {
        name: format!("n{node}").parse().unwrap(),
        incarnation: Incarnation(incarnation),
        disk: DiskId(u64::from(node)),
        resp: String::new(),
        http: String::new(),
        peer: String::new(),
        hostname: None,
        cores: 1,
        zone: String::new(),
        weight: 1,
        roles: Roles::Both,
    }
}

fn poll(tables: &Tables, gate: &mut Gate) -> Poll<std::io::Result<()>> {
    tables.poll_gate(gate, &mut Context::from_waker(Waker::noop()))
}

impl TestCluster {
    /// Creates `nodes` nodes. The first owns all slots, and the next `replicas - 1` are in sync.
    fn new(nodes: u32, replicas: u32) -> TestCluster {
        let settings = Settings {
            replicas: replicas as u8,
            ..Settings::default()
        };
        let mut world = TestCluster {
            nodes: BTreeMap::new(),
            on_way: Rc::default(),
            map: Map::new("test", settings),
            connections: 0,
            held: LeaseHandle::unlimited(),
        };
        for node in 1..=nodes {
            world.change(Change::MemberAdded {
                registration: registration(node, 1),
                at_ms: 0,
            });
            let disk = ModelDisk::new(node.into());
            let own = Rc::default();
            world.nodes.insert(
                node,
                TestNode {
                    disk,
                    incarnation: 1,
                    own,
                    running: None,
                },
            );
        }
        let all: Vec<NodeId> = (1..=nodes).map(NodeId).collect();
        let holders = all[..replicas as usize].to_vec();
        let admitted = Change::MembersAdmitted {
            nodes: all,
            at_ms: 0,
        };
        world.change(admitted);
        world.change(Change::PlacementReplaced {
            goals: vec![(SlotRange::ALL, holders)],
            outputs: Vec::new(),
            from: 1,
        });
        (1..=nodes).for_each(|node| world.start(node));
        (1..=nodes).for_each(|node| world.connect(node));
        (1..=nodes).for_each(|node| world.apply_map(node));
        world
    }

    fn change(&mut self, change: Change) {
        let applied = self.map.apply(&change, &ChangeId::default());
        self.map = applied.unwrap_or_else(|why| panic!("{change:?}: {why}"));
    }

    /// Starts a process on the node's disk.
    fn start(&mut self, node: u32) {
        let it = self.nodes.get_mut(&node).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut config = ServerConfig::default();
        config.server.data = folder.path().join("data");
        config.server.threads = 1;
        config.cluster.mode = ClusterMode::Etcd;
        config.tables.fsync = Fsync::EverySecond;
        let shared = Arc::new(Shared::new(config).unwrap());
        let (mut all, writer) = open_stepped(&shared, Arc::new(it.disk.clone())).unwrap();
        let tables = all.remove(0);
        tables.set_carrier(Rc::new(Pipe {
            me: NodeId(node),
            on_way: self.on_way.clone(),
            own: it.own.clone(),
        }));
        let replicated = tables.replicated.as_ref().unwrap();
        replicated.state.borrow_mut().limits = replication::Limits {
            silent_ms: 30,
            request_retry_ms: 5,
            heartbeat_ms: 3,
            chunk_bytes: 1_000,
            fill_bytes_per_second: 1 << 30,
            ..replication::Limits::default()
        };
        let view = Arc::new(View::initial(self.map.clone(), 1));
        it.running = Some(RunningNode {
            tables,
            writer,
            shared,
            view,
            _folder: folder,
        });
    }

    /// Kills the process: data that the kernel has is kept.
    fn kill(&mut self, node: u32) {
        self.cut(node);
        let it = self.nodes.get_mut(&node).unwrap();
        it.running = None;
        it.disk.restart_process();
    }

    /// Connects this node and all other running nodes, in both directions.
    fn connect(&mut self, node: u32) {
        let running = |it: &&u32| self.nodes[it].running.is_some();
        let others: Vec<u32> = self.nodes.keys().filter(running).copied().collect();
        for other in others.into_iter().filter(|other| *other != node) {
            for (from, to) in [(node, other), (other, node)] {
                self.connections += 1;
                let connection = self.connections;
                let it = &self.nodes[&from];
                it.own.borrow_mut().insert(NodeId(to), connection);
                self.tables(from)
                    .replication_connected(NodeId(to), connection);
            }
        }
    }

    /// Breaks all connections of a node; messages in flight are lost.
    fn cut(&mut self, node: u32) {
        self.on_way
            .borrow_mut()
            .retain(|(from, to, ..)| from.0 != node && to.0 != node);
        let others: Vec<u32> = self.nodes.keys().copied().collect();
        for other in others.into_iter().filter(|other| *other != node) {
            for (one, two) in [(node, other), (other, node)] {
                let lost = self.nodes[&one].own.borrow_mut().remove(&NodeId(two));
                let Some(connection) = lost else { continue };
                if let Some(running) = &self.nodes[&one].running {
                    running
                        .tables
                        .replication_disconnected(NodeId(two), connection);
                }
                if let Some(running) = &self.nodes[&two].running {
                    running
                        .tables
                        .replication_source_lost(NodeId(one), connection);
                }
            }
        }
    }

    fn tables(&self, node: u32) -> &Tables {
        &self.nodes[&node].running.as_ref().expect("it runs").tables
    }

    /// Delivers the map to the node.
    fn apply_map(&mut self, node: u32) {
        self.apply_map_as(node, NodeId(node));
    }

    /// Delivers the map, in which the node is this member.
    fn apply_map_as(&mut self, node: u32, me: NodeId) {
        let (map, held) = (self.map.clone(), self.held.clone());
        let it = self.nodes.get_mut(&node).unwrap();
        let running = it.running.as_mut().expect("it runs");
        let life = Life {
            incarnation: Incarnation(it.incarnation),
            disk: DiskId(u64::from(node)),
            held,
            unproven: None,
        };
        running.view = Arc::new(running.view.next(map, me, Some(life)));
        running.tables.apply_view(&running.view);
        self.turn(node);
    }

    /// Ends a turn.
    fn turn(&mut self, node: u32) {
        if let Some(running) = &mut self.nodes.get_mut(&node).unwrap().running {
            running.tables.end_replication_turn();
            running.writer.step();
            running.tables.end_replication_turn();
        }
    }

    /// Makes a snapshot.
    fn snapshot(&mut self, node: u32) {
        let it = self.nodes.get_mut(&node).unwrap();
        let running = it.running.as_mut().expect("it runs");
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        runtime.block_on(running.tables.snapshot());
        while running.tables.journal.snapshot_running() {
            running.writer.step();
            std::thread::yield_now();
        }
        assert_eq!(running.tables.snapshot_failure(), None);
    }

    /// Delivers the first message in flight that `passes` allows. Returns whether there was one.
    fn deliver_if(&mut self, passes: &dyn Fn(u32, u32) -> bool) -> bool {
        let mut on_way = self.on_way.borrow_mut();
        let Some(at) = on_way
            .iter()
            .position(|(from, to, ..)| passes(from.0, to.0))
        else {
            return false;
        };
        let (from, to, connection, bytes) = on_way.remove(at).unwrap();
        drop(on_way);
        if self.nodes[&to.0].running.is_some() {
            let from = Place {
                node: from,
                core: 0,
            };
            let taken = self
                .tables(to.0)
                .replication_received(from, connection, &bytes);
            taken.expect("its own bytes");
            self.turn(to.0);
        }
        true
    }

    fn run(&mut self) {
        while self.deliver_if(&|_, _| true) {}
    }

    /// Lets time pass at all nodes.
    fn tick(&mut self) {
        let nodes: Vec<u32> = self.nodes.keys().copied().collect();
        for node in nodes {
            if let Some(running) = &self.nodes[&node].running {
                let replicated = running.tables.replicated.as_ref().unwrap();
                replicated.state.borrow_mut().ticked_ms = 0;
            }
            self.turn(node);
        }
    }

    /// Applies the map changes that an owner requests. Returns whether there were any.
    fn grant(&mut self, node: u32) -> bool {
        let Some(running) = &self.nodes[&node].running else {
            return false;
        };
        let requests = running.shared.tables.slot_requests.drain();
        let mut is_any = false;
        let into = requests.iter().filter_map(|request| match request.change {
            SlotMapChange::AddReplica(place, _) => Some(((request.slot, place.node), *request)),
            _ => None,
        });
        // Apply the report like the controller.
        let mut slots: Vec<SyncChange> =
            collect_synced(&self.map, NodeId(node), &mut into.collect())
                .into_iter()
                .map(|it| SyncChange {
                    slots: it.slots,
                    term: it.term,
                    out: Vec::new(),
                    into: vec![ReplicaFill {
                        node: it.node,
                        began: it.began,
                    }],
                })
                .collect();
        // One request per slot; the others will be repeated.
        slots.sort_by_key(|it| it.slots.from);
        let mut next = 0;
        slots.retain(|it| {
            let is_free = it.slots.from >= next;
            if is_free {
                next = it.slots.to + 1;
            }
            is_free
        });
        if !slots.is_empty() {
            let by = SyncChangeOrigin::Controller;
            self.change(Change::SyncChanged { by, slots });
            is_any = true;
        }
        while let Some(change) = plan_change(&self.map, NodeId(node), &requests) {
            self.change(change);
            is_any = true;
        }
        is_any
    }

    /// Executes a command that changes rows.
    fn write(&mut self, node: u32, words: &[&str]) -> Result<Gate, Refusal> {
        let id = find(words[0].as_bytes()).expect("a command").id;
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let owned = OwnedCommand::of(id, words[1..].iter().copied());
        let command = owned.command();
        let tables = self.tables(node);
        let mut gate = Gate::default();
        admit(tables, command, &mut gate)?;
        execute(tables, command, &mut gate)?;
        self.turn(node);
        Ok(gate)
    }

    fn set(&mut self, node: u32, key: &str, value: &str) -> Gate {
        self.write(node, &["SET", key, value]).expect("it is taken")
    }

    fn is_answered(&self, node: u32, gate: &mut Gate) -> bool {
        matches!(poll(self.tables(node), gate), Poll::Ready(Ok(())))
    }

    /// Reads like a client. The gate shows whether the reply can be sent.
    fn get(&mut self, node: u32, key: &str) -> Result<(Option<String>, Gate), Refusal> {
        let owned = OwnedCommand::of(Id::Get, [key.as_bytes()].into_iter());
        let tables = self.tables(node);
        let mut gate = Gate::default();
        admit(tables, owned.command(), &mut gate)?;
        let mut value = None;
        let done = tables.read(|engine, now| {
            engine.get(key.as_bytes(), now, &mut |it| {
                value = Some(String::from_utf8_lossy(it).into_owned());
            })
        });
        done.map_err(refusal)?.done().expect("no join is read");
        Ok((value, gate))
    }

    fn rows(&self, node: u32, lo: &str, hi: &str) -> Vec<String> {
        let mut rows = Vec::new();
        let (lo, hi) = (lo.as_bytes(), hi.as_bytes());
        self.tables(node).read(|engine, now| {
            let read = engine.range(lo, hi, Limits::default(), now, &mut |key, value| {
                rows.push(String::from_utf8([key, b"=", value].concat()).unwrap());
                ControlFlow::Continue(())
            });
            read.unwrap().done().expect("all is here");
        });
        rows
    }
}

/// Reports commands that must be retried as errors.
fn admit(tables: &Tables, command: Command<'_>, gate: &mut Gate) -> Result<(), Refusal> {
    match tables.admit(command, gate, false)? {
        AdmitOutcome::Now => Ok(()),
        AdmitOutcome::Later => Err((Code::ClusterDown, "the slot is given away".to_owned())),
    }
}

/// Executes the few commands that these tests use.
fn execute(tables: &Tables, command: Command<'_>, gate: &mut Gate) -> Result<(), Refusal> {
    let args: Vec<&[u8]> = command.args().collect();
    tables
        .write(gate, |engine, now| {
            match command.id() {
                Id::Set => drop(engine.put(args[1], args[2], now).map_err(refusal)?),
                Id::Del => drop(engine.remove(args[1], now).map_err(refusal)?),
                Id::MSet => {
                    for pair in args[1..].chunks(2) {
                        engine.put(pair[0], pair[1], now).map_err(refusal)?;
                    }
                }
                Id::PExpireAt => {
                    let at = std::str::from_utf8(args[2]).unwrap().parse().unwrap();
                    engine.expire(args[1], Some(at), now).map_err(refusal)?;
                }
                _ => unreachable!("no test uses it"),
            }
            Ok(((), None))
        })
        .map_err(crate::tables::NoReply::refusal)
}
