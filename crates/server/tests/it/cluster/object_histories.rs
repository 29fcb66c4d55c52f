//! Concurrent reads, writes and searches of objects through all nodes, while subspaces change and nodes are killed,
//! suspended or partitioned. `larder-validate` checks that some order of all calls explains every observed state of
//! each object.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use larder_protocol::resp::client::Reply;
use larder_testing::SetOnDrop;
use larder_types::Random;
use larder_validate::Span;
use larder_validate::objects::{Event, SearchMode, judge};

use super::harness::{Cluster, Options};
use super::histories::{kill_two, partition_one, stop_two};
use super::rows::wait_until_settled;
use crate::resp::Client;
use crate::spaces::info_number;
use crate::validation::finder::{Finder, Request, SUBSPACES, declaration};
use crate::validation::link::{Link, had_no_effect};

const OBJECTS: u32 = 16;
const CLIENTS: u16 = 5;
/// Number of replies between two faults, summed over all clients.
const CALLS: u64 = 400;
/// Number of objects that no client reads. They make the number of objects large enough for cuts by values.
const BACKGROUND_OBJECTS: u64 = 1100;

/// A client that uses any node that answers.
struct Caller<'a> {
    nodes: &'a [SocketAddr],
    at: usize,
    link: Option<Link>,
    clock: Instant,
    finder: Finder,
    events: Vec<Event>,
}

impl<'a> Caller<'a> {
    fn new(nodes: &'a [SocketAddr], clock: Instant, session: u16) -> Caller<'a> {
        Caller {
            nodes,
            at: session.into(),
            link: None,
            clock,
            finder: Finder::new(session, OBJECTS, 1),
            events: Vec::new(),
        }
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    fn ask(&mut self, words: &[String]) -> io::Result<Reply> {
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(Link::connect(self.nodes[self.at % self.nodes.len()])?),
        };
        link.call(&[words.to_vec()])
    }

    /// Continues with the next node.
    fn switch_node(&mut self) {
        (self.link, self.at) = (None, self.at + 1);
    }

    fn call(&mut self, request: &Request) -> io::Result<()> {
        let started = self.now();
        let result = self.ask(&request.words);
        match &result {
            Ok(reply) => {
                let span = Span::new(started, self.now())
                    .expect("a span that does not end before it starts");
                self.events
                    .extend(self.finder.record_reply(request, span, reply));
            }
            Err(why) if had_no_effect(why) => self.finder.record_rejected(),
            Err(_) => self
                .events
                .extend(self.finder.record_lost(request, started)),
        }
        result.map(|_| ())
    }

    fn run(&mut self, stop: &AtomicBool, done: &AtomicU64) {
        let probe: Vec<String> = ["HGET", "thing:0", "n"].map(str::to_owned).to_vec();
        while !stop.load(SeqCst) {
            let request = self.finder.next();
            if self.call(&request).is_ok() {
                done.fetch_add(1, SeqCst);
                continue;
            }
            // Sends only a cheap read until a node answers again.
            self.switch_node();
            while !stop.load(SeqCst) && self.ask(&probe).is_err() {
                self.switch_node();
                std::thread::yield_now();
            }
        }
    }

    /// Reads everything after all writes have ended.
    fn read_end_state(&mut self) {
        for request in Finder::final_reads(OBJECTS) {
            self.call(&request).expect("the cluster answers");
        }
    }

    /// Sends the words of a line, and returns whether the command succeeded. Any other reply must be an expected
    /// error.
    fn send(&mut self, line: &str) -> bool {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let result = self.ask(&words);
        if result.is_err() {
            self.switch_node();
        }
        result.is_ok()
    }

    /// Changes the subspaces of the space, and adds and drops an attribute.
    fn alter_randomly(&mut self, stop: &AtomicBool, switched: &AtomicU64) {
        let mut random = Random::new(11);
        while !stop.load(SeqCst) {
            let one = match random.below(10) {
                0 => "SCHEMA ADD color TAG",
                1 => "SCHEMA DROP color",
                2 => "SUBSPACES CANCEL",
                3 => "SUBSPACES 0",
                at @ 4..=6 => SUBSPACES[at as usize % SUBSPACES.len()],
                _ => "SUBSPACES SWITCH",
            };
            let is_done = self.send(&format!("FT.ALTER things {one}"));
            if is_done && one.ends_with("SWITCH") {
                switched.fetch_add(1, SeqCst);
            }
        }
    }

    /// Changes all other objects repeatedly, so that the distribution of their values drifts and subspaces are cut
    /// again.
    fn shift_values(&mut self, stop: &AtomicBool) {
        for round in 0.. {
            for number in 0..BACKGROUND_OBJECTS {
                let line = background_put(number, round);
                while !stop.load(SeqCst) && !self.send(&line) {
                    std::thread::yield_now();
                }
            }
            if stop.load(SeqCst) {
                return;
            }
        }
    }
}

/// Half of these objects have values in the range of the validated objects.
fn background_put(number: u64, round: u64) -> String {
    let (city, n) = (1 + number % 9, 1 + number % 32 + 8 * round);
    format!("HSET thing:{} city c{city} n {n}", 1000 + number)
}

/// The concurrent changes.
#[derive(Clone, Copy, PartialEq)]
enum BackgroundLoad {
    ShiftValues,
    Alter,
}

fn check_history(
    load: BackgroundLoad,
    inject_faults: impl FnOnce(&mut Cluster, &dyn Fn(&Cluster)),
) {
    let options = Options::new(3).set("tables.replicas", 2).proxied();
    // With two threads, some copies are on other cores of the same node, and some on other nodes.
    let threads = if load == BackgroundLoad::Alter { 2 } else { 1 };
    let options = options.set("server.threads", threads).peers_proxied();
    let Some(mut cluster) = options.start() else {
        return;
    };
    let nodes: Vec<SocketAddr> = (0..cluster.len()).map(|node| cluster.resp(node)).collect();
    let clock = Instant::now();
    let mut first = Caller::new(&nodes, clock, CLIENTS);
    first
        .ask(&declaration(SUBSPACES[0]))
        .expect("the space is created");
    if load == BackgroundLoad::ShiftValues {
        (0..BACKGROUND_OBJECTS).for_each(|number| assert!(first.send(&background_put(number, 0))));
    }
    wait_until_settled(&cluster);
    let (stop, done, switched) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut events = Vec::new();
    std::thread::scope(|scope| {
        let (nodes, stop, done, switched) = (&nodes, &stop, &done, &switched);
        let spawn = |session| {
            scope.spawn(move || {
                let mut caller = Caller::new(nodes, clock, session);
                caller.run(stop, done);
                caller.events
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(spawn).collect();
        scope.spawn(move || match load {
            BackgroundLoad::ShiftValues => first.shift_values(stop),
            BackgroundLoad::Alter => first.alter_randomly(stop, switched),
        });
        let stopping = SetOnDrop(stop);
        let wait_for_calls = |cluster: &Cluster| {
            let before = done.load(SeqCst);
            cluster.wait_for("calls return", || done.load(SeqCst) > before + CALLS);
        };
        wait_for_calls(&cluster);
        inject_faults(&mut cluster, &wait_for_calls);
        wait_for_calls(&cluster);
        let mut client = Client::to(nodes[1]);
        cluster.wait_for("the subspaces have changed", || match load {
            BackgroundLoad::ShiftValues => info_number(&mut client, "things", "cuts") >= Some(3.0),
            BackgroundLoad::Alter => switched.load(SeqCst) >= 3,
        });
        drop(stopping);
        for client in clients {
            events.extend(client.join().expect("the client thread succeeds"));
        }
    });
    wait_until_settled(&cluster);
    let mut last = Caller::new(&nodes, clock, CLIENTS + 1);
    last.read_end_state();
    events.extend(last.events);
    let verdict = judge(&events, SearchMode::InRegions);
    assert!(
        verdict.refused.is_empty(),
        "{}\n{}",
        verdict.describe_rejected(&events, 1).join("\n"),
        cluster.logs()
    );
    let (all, undecided) = (events.len(), verdict.undecided());
    eprintln!("{all} events, {undecided} undecided");
    assert!(undecided * 10 < all, "{undecided} of {all} are undecided");
}

/// Partitions a node from etcd and from the other nodes, and then only from the other nodes.
fn partition_and_report(cluster: &mut Cluster, wait_for_calls: &dyn Fn(&Cluster)) {
    partition_one(cluster, wait_for_calls);
    cluster.peer_proxy(2).cut();
    cluster.wait_for("the node is reported as unreachable", || {
        cluster.get(0, "/readyz").1.contains("cannot be reached by")
    });
    cluster.peer_proxy(2).heal();
    wait_until_settled(cluster);
}

/// Moves slots to a new node and kills it. Then suspends one of the nodes that give up slots, and partitions etcd.
fn move_slots(cluster: &mut Cluster, wait_for_calls: &dyn Fn(&Cluster)) {
    let new = cluster.add("n4", Vec::new(), false);
    cluster.restart(new);
    cluster.wait_for("the new node is a member", || {
        cluster.state(2, "n4") == "up"
    });
    cluster.kill(new);
    cluster.wait_until_down(2, new);
    cluster.restart(new);
    cluster.suspend(0);
    cluster.wait_until_down(2, 0);
    cluster.resume(0);
    wait_for_calls(cluster);
    (0..3).for_each(|node| cluster.etcd_proxy(node, 0).cut());
    for node in 0..3 {
        cluster.wait_for("the lease may have expired", || {
            cluster.info(node, "cluster_lease_left_ms") == "0"
        });
    }
    (0..3).for_each(|node| cluster.etcd_proxy(node, 0).heal());
    wait_until_settled(cluster);
}

#[test]
fn searches_are_consistent_while_nodes_die_and_subspaces_are_recut() {
    check_history(BackgroundLoad::ShiftValues, kill_two);
}

#[test]
fn searches_are_consistent_while_nodes_die_and_subspaces_change() {
    check_history(BackgroundLoad::Alter, kill_two);
}

#[test]
fn searches_are_consistent_while_nodes_are_suspended_and_subspaces_are_recut() {
    check_history(BackgroundLoad::ShiftValues, stop_two);
}

#[test]
fn searches_are_consistent_while_nodes_are_suspended_and_subspaces_change() {
    check_history(BackgroundLoad::Alter, stop_two);
}

#[test]
fn searches_are_consistent_while_nodes_are_partitioned_and_subspaces_are_recut() {
    check_history(BackgroundLoad::ShiftValues, partition_and_report);
}

#[test]
fn searches_are_consistent_while_nodes_are_partitioned_and_subspaces_change() {
    check_history(BackgroundLoad::Alter, partition_and_report);
}

#[test]
fn searches_are_consistent_while_slots_move_and_subspaces_are_recut() {
    check_history(BackgroundLoad::ShiftValues, move_slots);
}

#[test]
fn searches_are_consistent_while_slots_move_and_subspaces_change() {
    check_history(BackgroundLoad::Alter, move_slots);
}
