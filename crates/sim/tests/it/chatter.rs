//! Nodes that only count the messages from one another.

use std::collections::BTreeMap;

use larder_sim::{
    Fault, Input, Mark, Node, NodeId, Options, Output, Outputs, Plan, Random, Scene, Start, World,
    for_each_seed,
};

const NODES: usize = 4;
const TICK_US: u64 = 10_000;
const FAULTS_US: u64 = 3_000_000;
const END_US: u64 = 8_000_000;

/// Sends each peer ascending numbers from 1 over each connection, and datagrams in parallel.
struct Chatter {
    me: NodeId,
    peers: BTreeMap<NodeId, (u64, u64)>,
    clock_us: u64,
    received: u64,
    datagrams: u64,
}

impl Node for Chatter {
    type Setup = ();
    type Message = u64;

    fn start((): &(), start: Start<'_>, out: &mut Outputs<u64>) -> Chatter {
        out.push(Output::Wake(start.now_us + TICK_US));
        Chatter {
            me: start.me,
            peers: BTreeMap::new(),
            clock_us: start.now_us,
            received: 0,
            datagrams: 0,
        }
    }

    fn step(&mut self, now_us: u64, input: Input<u64>, out: &mut Outputs<u64>) {
        assert!(now_us >= self.clock_us, "a clock goes forward");
        self.clock_us = now_us;
        match input {
            Input::Tick => {
                for (peer, (sent, _)) in &mut self.peers {
                    *sent += 1;
                    out.push(Output::Send(*peer, *sent));
                }
                self.datagrams += 1;
                out.push(Output::Datagram(
                    NodeId((self.me.0 + 1) % NODES),
                    self.datagrams,
                ));
                out.push(Output::Append("log", vec![1; 10]));
                out.push(Output::Sync);
                out.push(Output::Wake(now_us + TICK_US));
            }
            Input::Connected(peer) => {
                let before = self.peers.insert(peer, (0, 0));
                assert_eq!(before, None, "the loss is reported first");
            }
            Input::Lost(peer) => {
                self.peers
                    .remove(&peer)
                    .expect("the connection was reported");
            }
            Input::Message(peer, number) => {
                let (_, last) = self.peers.get_mut(&peer).expect("connected");
                *last += 1;
                assert_eq!(
                    number, *last,
                    "a connection keeps its order, and loses nothing"
                );
                self.received += 1;
            }
            Input::Datagram(..) | Input::Synced(_) => {}
        }
    }
}

fn scene() -> Scene {
    let all: Vec<_> = (0..NODES).map(NodeId).collect();
    Scene {
        mortal: all.clone(),
        linked: all,
        every_us: 60_000,
        lasts_us_max: 500_000,
        power: true,
    }
}

fn world(seed: u64, is_traced: bool) -> World<Chatter> {
    let mut random = Random::stream(seed, 0);
    let plan = Plan::draw(&mut random, &scene(), 0, FAULTS_US);
    let options = Options {
        is_traced,
        ..Options::draw(&mut random, seed)
    };
    World::new(NODES, (), options, plan)
}

#[test]
fn connections_keep_their_order_and_all_faults_occur() {
    let mut marks: BTreeMap<Mark, u64> = BTreeMap::new();
    let gathered = std::cell::RefCell::new(&mut marks);
    for_each_seed(60, 2_000, |seed| {
        let mut world = world(seed, false);
        world.run_until(FAULTS_US);
        world.calm();
        world.run_until(END_US);
        for node in (0..NODES).map(NodeId) {
            let chatter = world.node(node).expect("all run in the end");
            assert_eq!(
                chatter.peers.len(),
                NODES - 1,
                "all are connected in the end"
            );
            assert!(chatter.peers.values().all(|(_, received)| *received > 0));
        }
        for (mark, count) in world.marks() {
            *gathered.borrow_mut().entry(*mark).or_default() += count;
        }
    });
    if std::env::var_os("LARDER_SIM_SEED").is_none() {
        for mark in [
            Mark::Killed,
            Mark::KilledWithin,
            Mark::LostPower,
            Mark::LostUnsynced,
            Mark::TornWrite,
            Mark::Paused,
            Mark::Blocked,
            Mark::HeldBack,
            Mark::ConnectionBroken,
            Mark::MessageLost,
            Mark::DatagramLost,
            Mark::DatagramRepeated,
            Mark::DatagramOvertaken,
            Mark::SlowSync,
        ] {
            assert!(
                marks.contains_key(&mark),
                "{mark:?} never happened: {marks:?}"
            );
        }
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed| {
        let mut world = world(seed, true);
        world.run_until(500_000);
        (world.plan().to_string(), world.trace())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_stalled_node_receives_all_messages_afterwards() {
    let quiet = Options {
        break_one_in: 0,
        ..Options::draw(&mut Random::stream(5, 0), 5)
    };
    let mut world: World<Chatter> = World::new(NODES, (), quiet, Plan::default());
    world.run_until(1_000_000);
    let before = world.node(NodeId(0)).expect("up").received;
    world.inflict(&Fault::Pause {
        node: NodeId(0),
        for_us: 1_000_000,
    });
    world.run_until(1_999_000);
    assert_eq!(world.node(NodeId(0)).expect("up").received, before);
    world.run_until(2_000_001);
    let after = world.node(NodeId(0)).expect("up").received;
    assert!(after > before + 200, "{before}, then {after}");
}
