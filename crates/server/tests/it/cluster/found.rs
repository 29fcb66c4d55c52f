//! Concurrent reads, writes and searches of objects through all nodes, while subspaces change and nodes are killed,
//! suspended or partitioned. `larder-validate` checks that some order of all calls explains every observed state of
//! each object.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use larder_protocol::resp::client::Reply;
use larder_testing::StopAtEnd;
use larder_types::Random;
use larder_validate::Span;
use larder_validate::objects::{Event, Searches, judge};

use super::harness::{Cluster, Options};
use super::histories::{cut_one_off, kill_two, stop_two};
use super::rows::wait_until_settled;
use crate::judged::finder::{Finder, Request, SUBSPACES, declaration};
use crate::judged::link::{Link, is_not_done};
use crate::resp::Client;
use crate::spaces::figure;

const OBJECTS: u32 = 16;
const CLIENTS: u16 = 5;
/// Number of replies between two faults, summed over all clients.
const CALLS: u64 = 400;
/// Number of objects that no client reads. They make the number of objects large enough for cuts by values.
const OTHERS: u64 = 1100;

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
        link.ask(&[words.to_vec()])
    }

    /// Continues with the next node.
    fn move_on(&mut self) {
        (self.link, self.at) = (None, self.at + 1);
    }

    fn call(&mut self, request: &Request) -> io::Result<()> {
        let begun = self.now();
        let answered = self.ask(&request.words);
        match &answered {
            Ok(reply) => {
                let span = Span::new(begun, self.now()).expect("time goes forwards");
                self.events
                    .extend(self.finder.answered(request, span, reply));
            }
            Err(why) if is_not_done(why) => self.finder.refused(),
            Err(_) => self.events.extend(self.finder.unanswered(request, begun)),
        }
        answered.map(|_| ())
    }

    fn act(&mut self, stop: &AtomicBool, done: &AtomicU64) {
        let glance: Vec<String> = ["HGET", "thing:0", "n"].map(str::to_owned).to_vec();
        while !stop.load(SeqCst) {
            let request = self.finder.next();
            if self.call(&request).is_ok() {
                done.fetch_add(1, SeqCst);
                continue;
            }
            // Sends only a cheap read until a node answers again.
            self.move_on();
            while !stop.load(SeqCst) && self.ask(&glance).is_err() {
                self.move_on();
                std::thread::yield_now();
            }
        }
    }

    /// Reads everything after all writes have ended.
    fn look_at_all(&mut self) {
        for request in Finder::last_looks(OBJECTS) {
            self.call(&request).expect("the cluster answers");
        }
    }

    /// Sends the words of a line, and returns whether the command succeeded. Any other reply must be an expected
    /// error.
    fn send(&mut self, line: &str) -> bool {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let answered = self.ask(&words);
        if answered.is_err() {
            self.move_on();
        }
        answered.is_ok()
    }

    /// Changes the subspaces of the space, and adds and drops an attribute.
    fn alter_at_random(&mut self, stop: &AtomicBool, switched: &AtomicU64) {
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
    fn drift(&mut self, stop: &AtomicBool) {
        for round in 0.. {
            for number in 0..OTHERS {
                let line = other(number, round);
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
fn other(number: u64, round: u64) -> String {
    let (city, n) = (1 + number % 9, 1 + number % 32 + 8 * round);
    format!("HSET thing:{} city c{city} n {n}", 1000 + number)
}

/// The concurrent changes.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Drift,
    Alter,
}

fn judged(beside: Beside, happens: impl FnOnce(&mut Cluster, &dyn Fn(&Cluster))) {
    let options = Options::new(3).set("tables.replicas", 2).proxied();
    // With two threads, some copies are on other cores of the same node, and some on other nodes.
    let threads = if beside == Beside::Alter { 2 } else { 1 };
    let options = options.set("server.threads", threads).peers_proxied();
    let Some(mut cluster) = options.start() else {
        return;
    };
    let nodes: Vec<SocketAddr> = (0..cluster.len()).map(|node| cluster.resp(node)).collect();
    let clock = Instant::now();
    let mut first = Caller::new(&nodes, clock, CLIENTS);
    first
        .ask(&declaration(SUBSPACES[0]))
        .expect("it is declared");
    if beside == Beside::Drift {
        (0..OTHERS).for_each(|number| assert!(first.send(&other(number, 0))));
    }
    wait_until_settled(&cluster);
    let (stop, done, switched) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut events = Vec::new();
    std::thread::scope(|scope| {
        let (nodes, stop, done, switched) = (&nodes, &stop, &done, &switched);
        let spawn = |session| {
            scope.spawn(move || {
                let mut caller = Caller::new(nodes, clock, session);
                caller.act(stop, done);
                caller.events
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(spawn).collect();
        scope.spawn(move || match beside {
            Beside::Drift => first.drift(stop),
            Beside::Alter => first.alter_at_random(stop, switched),
        });
        let stopping = StopAtEnd(stop);
        let go_on = |cluster: &Cluster| {
            let before = done.load(SeqCst);
            cluster.wait_for("calls are answered", || done.load(SeqCst) > before + CALLS);
        };
        go_on(&cluster);
        happens(&mut cluster, &go_on);
        go_on(&cluster);
        let mut client = Client::to(nodes[1]);
        cluster.wait_for("subspaces have become others", || match beside {
            Beside::Drift => figure(&mut client, "things", "cuts") >= Some(3.0),
            Beside::Alter => switched.load(SeqCst) >= 3,
        });
        drop(stopping);
        for client in clients {
            events.extend(client.join().expect("its claims hold"));
        }
    });
    wait_until_settled(&cluster);
    let mut last = Caller::new(&nodes, clock, CLIENTS + 1);
    last.look_at_all();
    events.extend(last.events);
    let judged = judge(&events, Searches::InRegions);
    assert!(
        judged.refused.is_empty(),
        "{}\n{}",
        judged.tell(&events, 1).join("\n"),
        cluster.logs()
    );
    let (all, undecided) = (events.len(), judged.undecided());
    eprintln!("{all} events, {undecided} undecided");
    assert!(undecided * 10 < all, "{undecided} of {all} are undecided");
}

/// Partitions a node from etcd and from the other nodes, and then only from the other nodes.
fn cut_off(cluster: &mut Cluster, go_on: &dyn Fn(&Cluster)) {
    cut_one_off(cluster, go_on);
    cluster.peer_proxy(2).cut();
    cluster.wait_for("it is told", || {
        cluster.get(0, "/readyz").1.contains("cannot be reached by")
    });
    cluster.peer_proxy(2).heal();
    wait_until_settled(cluster);
}

/// Moves slots to a new node and kills it. Then suspends one of the nodes that give up slots, and partitions etcd.
fn move_slots(cluster: &mut Cluster, go_on: &dyn Fn(&Cluster)) {
    let new = cluster.add("n4", Vec::new(), false);
    cluster.restart(new);
    cluster.wait_for("it is a member", || cluster.state(2, "n4") == "up");
    cluster.kill(new);
    cluster.wait_until_down(2, new);
    cluster.restart(new);
    cluster.stop(0);
    cluster.wait_until_down(2, 0);
    cluster.cont(0);
    go_on(cluster);
    (0..3).for_each(|node| cluster.etcd_proxy(node, 0).cut());
    for node in 0..3 {
        cluster.wait_for("it may have lost its lease", || {
            cluster.info(node, "cluster_lease_left_ms") == "0"
        });
    }
    (0..3).for_each(|node| cluster.etcd_proxy(node, 0).heal());
    wait_until_settled(cluster);
}

#[test]
fn nodes_are_killed_while_subspaces_are_cut_anew() {
    judged(Beside::Drift, kill_two);
}

#[test]
fn nodes_are_killed_while_subspaces_come_and_go() {
    judged(Beside::Alter, kill_two);
}

#[test]
fn nodes_stand_still_while_subspaces_are_cut_anew() {
    judged(Beside::Drift, stop_two);
}

#[test]
fn nodes_stand_still_while_subspaces_come_and_go() {
    judged(Beside::Alter, stop_two);
}

#[test]
fn nodes_are_cut_off_while_subspaces_are_cut_anew() {
    judged(Beside::Drift, cut_off);
}

#[test]
fn nodes_are_cut_off_while_subspaces_come_and_go() {
    judged(Beside::Alter, cut_off);
}

#[test]
fn slots_move_while_subspaces_are_cut_anew() {
    judged(Beside::Drift, move_slots);
}

#[test]
fn slots_move_while_subspaces_come_and_go() {
    judged(Beside::Alter, move_slots);
}
