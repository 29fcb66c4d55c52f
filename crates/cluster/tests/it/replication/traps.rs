//! Known pitfalls, one per test: two or three places whose messages the test delivers as it chooses.

use std::collections::{BTreeMap, VecDeque};

use larder_cluster::map::{Epoch, NodeId, Term};
use larder_cluster::replication::{
    Admission, Answer, Assignment, Changed, Copy, Event, Limits, Message, Outcome, Outputs, Place,
    ReadWait, Record, Replication, Rows, Ticket, Wanted,
};

use super::host::Table;

const SLOT: u16 = 7;

fn place(node: u32) -> Place {
    Place {
        node: NodeId(node),
        core: 0,
    }
}

fn assigned(term: u64, owner: u32, in_sync: &[u32], filling: &[(u32, u64)]) -> Assignment {
    Assignment {
        term: Term(term),
        owner: Some(place(owner)),
        in_sync: in_sync.iter().map(|it| place(*it)).collect(),
        heir: None,
        filling: filling
            .iter()
            .map(|(it, began)| (place(*it), Epoch(*began)))
            .collect(),
    }
}

/// A place with its log and its rows.
struct Node {
    replication: Replication,
    table: Table,
    log: Vec<Record>,
    events: Vec<Event>,
    asks: Vec<Wanted>,
}

/// Places, and the messages in flight between them.
struct Trap {
    nodes: BTreeMap<u32, Node>,
    on_way: VecDeque<(u32, u32, Message)>,
    now_ms: u64,
    limits: Limits,
}

impl Trap {
    fn new(nodes: &[u32], limits: Limits) -> Trap {
        let mut trap = Trap {
            limits,
            nodes: BTreeMap::new(),
            on_way: VecDeque::new(),
            now_ms: 1_000,
        };
        for node in nodes {
            trap.start(*node, Vec::new());
        }
        for one in nodes {
            for other in nodes.iter().filter(|it| *it != one) {
                let now_ms = trap.now_ms;
                trap.at(*one).replication.connected(place(*other), now_ms);
            }
        }
        trap
    }

    fn at(&mut self, node: u32) -> &mut Node {
        self.nodes.get_mut(&node).expect("it is there")
    }

    /// Starts a process on a log.
    fn start(&mut self, node: u32, log: Vec<Record>) {
        let mut table = Table::default();
        let mut copies: BTreeMap<u16, Option<Copy>> = BTreeMap::new();
        for record in &log {
            Copy::replay(copies.entry(record.slot()).or_default(), record, &mut table);
        }
        let copies = copies
            .into_iter()
            .filter_map(|(slot, it)| Some((slot, it?)));
        let limits = self.limits.clone();
        let mut replication = Replication::new(place(node), limits, copies.collect());
        replication.owner.set_lease(u64::MAX);
        let started = Node {
            replication,
            table,
            log,
            events: Vec::new(),
            asks: Vec::new(),
        };
        self.nodes.insert(node, started);
    }

    /// Breaks and reopens the connections between two nodes; messages in flight are lost.
    fn reconnect(&mut self, one: u32, other: u32) {
        let ends = [one, other];
        self.on_way
            .retain(|(from, to, _)| !(ends.contains(from) && ends.contains(to)));
        let now_ms = self.now_ms;
        for (me, peer) in [(one, other), (other, one)] {
            self.at(me).replication.lost(place(peer), now_ms);
            self.at(me).replication.connected(place(peer), now_ms);
        }
    }

    fn map(&mut self, node: u32, assignment: &Assignment) {
        self.turn(node, |replication, table, now_ms, out| {
            let epoch = Epoch(assignment.term.0);
            replication.assign(epoch, SLOT, assignment, table, now_ms, out);
            replication.assigned_all(epoch, out);
        });
    }

    fn turn<T>(
        &mut self,
        node: u32,
        act: impl FnOnce(&mut Replication, &mut Table, u64, &mut Outputs) -> T,
    ) -> T {
        let (mut out, now_ms) = (Outputs::default(), self.now_ms);
        let it = self.nodes.get_mut(&node).expect("it is there");
        let done = act(&mut it.replication, &mut it.table, now_ms, &mut out);
        it.replication.flush(&it.table, now_ms, &mut out);
        it.log.append(&mut out.records);
        it.replication.durable(it.log.len() as u64, &mut out);
        it.replication.flush(&it.table, now_ms, &mut out);
        it.log.append(&mut out.records);
        it.events.append(&mut out.events);
        it.asks.extend(out.asks.iter().map(|ask| ask.what));
        for (to, message) in out.messages {
            self.on_way.push_back((node, to.node.0, message));
        }
        done
    }

    fn set(&mut self, node: u32, key: &str, value: &str) -> Ticket {
        self.set_together(node, &[(key, value)])
    }

    /// Executes a transaction.
    fn set_together(&mut self, node: u32, rows: &[(&str, &str)]) -> Ticket {
        self.turn(node, |replication, table, now_ms, out| {
            assert_eq!(replication.owner.may_write(SLOT, now_ms), Admission::Now);
            let mut ticket = None;
            for (at, (key, value)) in rows.iter().enumerate() {
                let before = table.get(SLOT, key.as_bytes());
                table.set(SLOT, key.as_bytes(), Some(value.as_bytes()));
                let changed = Changed {
                    key: key.as_bytes(),
                    value: Some(value.as_bytes()),
                    is_open: at + 1 < rows.len(),
                };
                ticket = Some(replication.change(SLOT, changed, before, out));
            }
            ticket.expect("there are rows")
        })
    }

    fn get(&self, node: u32, key: &str) -> Option<String> {
        let value = self.nodes[&node].table.get(SLOT, key.as_bytes());
        value.map(|it| String::from_utf8(it).expect("text"))
    }

    fn outcome(&mut self, node: u32, ticket: &Ticket) -> Outcome {
        self.at(node).replication.owner.outcome(ticket)
    }

    /// Delivers the messages that the test allows, until there are none.
    fn run_if(&mut self, passes: impl Fn(u32, u32) -> bool) {
        while let Some(at) = self
            .on_way
            .iter()
            .position(|(from, to, _)| passes(*from, *to))
        {
            let (from, to, message) = self.on_way.remove(at).expect("just found");
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            let message = Message::decode(&bytes).expect("its own bytes");
            self.turn(to, |replication, table, now_ms, out| {
                replication.receive(place(from), message, table, now_ms, out);
            });
        }
    }

    fn run(&mut self) {
        self.run_if(|_, _| true);
    }

    fn run_one(&mut self) {
        let is_first = std::cell::Cell::new(true);
        self.run_if(|_, _| is_first.replace(false));
    }

    fn pass_ms(&mut self, node: u32, ms: u64) {
        self.now_ms += ms;
        self.turn(node, |replication, _, now_ms, out| {
            replication.tick(now_ms, out)
        });
    }

    fn was_answered(&self, is: impl Fn(&Answer) -> bool) -> bool {
        self.on_way
            .iter()
            .any(|(_, _, it)| matches!(it, Message::Answer { answer, .. } if is(answer)))
    }
}

fn limits() -> Limits {
    Limits {
        chunk_bytes: 1,
        window_bytes: 60,
        fill_window_bytes: 30,
        ..Limits::default()
    }
}

/// Node 1 owns the slot; the others are in sync.
fn settled(nodes: &[u32]) -> Trap {
    settled_by(nodes, limits())
}

fn settled_by(nodes: &[u32], limits: Limits) -> Trap {
    let mut trap = Trap::new(nodes, limits);
    for node in nodes {
        trap.map(*node, &assigned(1, 1, &nodes[1..], &[]));
    }
    trap.run();
    trap
}

#[test]
fn a_change_is_acknowledged_when_all_in_sync_have_it() {
    let mut trap = settled(&[1, 2, 3]);
    let ticket = trap.set(1, "k", "v");
    trap.run_if(|from, to| from != 3 && to != 3);
    assert_eq!(trap.outcome(1, &ticket), Outcome::Waiting);
    let read = trap.at(1).replication.owner.read(SLOT, Some(b"k"), 0);
    assert!(matches!(
        read,
        ReadWait::After {
            acknowledged: Some(_),
            ..
        }
    ));
    let other = trap.at(1).replication.owner.read(SLOT, Some(b"other"), 0);
    assert_eq!(other, ReadWait::Now, "only reads of what is under way wait");
    trap.run();
    assert_eq!(trap.outcome(1, &ticket), Outcome::Acknowledged);
}

/// The replica had received the map of the next term before the owner. It rejected a change of the old term, but acknowledged the
/// message. The owner took that for an acknowledgement of the change, and answered its client.
#[test]
fn a_change_that_a_replica_refuses_is_not_acknowledged_by_it() {
    let mut trap = settled(&[1, 2]);
    trap.map(2, &assigned(5, 1, &[2], &[(3, 5)]));
    let ticket = trap.set(1, "k", "v");
    trap.run();
    assert_eq!(trap.outcome(1, &ticket), Outcome::Waiting);
    trap.map(1, &assigned(5, 1, &[2], &[(3, 5)]));
    trap.run();
    assert_eq!(trap.outcome(1, &ticket), Outcome::Acknowledged);
    trap.map(2, &assigned(6, 2, &[], &[]));
    assert_eq!(trap.get(2, "k").as_deref(), Some("v"));
}

/// A fill was in progress when the term changed. The replica learned of the new term first, and rejected a chunk of rows of the
/// old term. The owner continued after that chunk in the new term, and the copy lacked its rows.
#[test]
fn a_filling_that_lost_a_chunk_to_a_new_term_begins_anew() {
    let mut trap = settled(&[1, 2, 3]);
    trap.map(1, &assigned(2, 1, &[2], &[]));
    trap.run();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        trap.set(1, key, "0123456789012345678901234567890123456789");
    }
    trap.run();
    let filling = assigned(2, 1, &[2], &[(3, 2)]);
    trap.map(3, &filling);
    trap.map(1, &filling);
    // Some rows are in flight when the replica learns of the next term.
    for _ in 0..3 {
        let at = trap
            .on_way
            .iter()
            .position(|(from, to, _)| (*from, *to) == (1, 3));
        let Some(at) = at else {
            trap.run_if(|from, to| (from, to) == (3, 1));
            continue;
        };
        let (_, _, message) = trap.on_way.remove(at).expect("just found");
        trap.turn(3, |replication, table, now_ms, out| {
            replication.receive(place(1), message, table, now_ms, out);
        });
    }
    let next = assigned(3, 1, &[], &[(3, 2)]);
    trap.map(3, &next);
    trap.run();
    trap.map(1, &next);
    trap.run();
    trap.pass_ms(1, 1_000);
    trap.run();
    assert!(trap.at(1).asks.contains(&Wanted::Into(place(3), Epoch(2))));
    assert_eq!(trap.nodes[&3].table, trap.nodes[&1].table);
}

/// An owner received the map with a fill before the filled node, which then received the earlier maps one after the other. They
/// had the same term, because a fill does not change it, and did not name the node. The node discarded the rows that it had
/// received and acknowledged.
#[test]
fn a_replica_that_is_filled_before_it_sees_the_map_keeps_what_it_is_given() {
    let mut trap = settled(&[1, 2, 3]);
    trap.map(1, &assigned(2, 1, &[2], &[]));
    trap.map(3, &assigned(2, 1, &[2], &[]));
    trap.set(1, "k", "value");
    trap.run();
    let at_epoch = |trap: &mut Trap, node, epoch, assignment: &Assignment| {
        trap.turn(node, |replication, table, now_ms, out| {
            replication.assign(Epoch(epoch), SLOT, assignment, table, now_ms, out);
        });
    };
    at_epoch(&mut trap, 1, 4, &assigned(2, 1, &[2], &[(3, 4)]));
    trap.run();
    trap.pass_ms(1, 1_000);
    trap.run();
    assert!(trap.at(1).asks.contains(&Wanted::Into(place(3), Epoch(4))));
    at_epoch(&mut trap, 3, 3, &assigned(2, 1, &[2], &[]));
    assert_eq!(trap.get(3, "k").as_deref(), Some("value"));
    // A map that is newer than the fill and does not name the node: the fill was aborted.
    at_epoch(&mut trap, 3, 5, &assigned(2, 1, &[2], &[]));
    assert_eq!(trap.get(3, "k"), None);
}

/// KIP-101: two replicas have different changes with the same number. The term of each change distinguishes them.
#[test]
fn a_replica_cuts_what_the_new_owner_has_not() {
    let mut trap = settled(&[1, 2, 3]);
    trap.set(1, "k", "old");
    trap.run();
    // Only node 3 receives these before the owner dies.
    let lost = trap.set(1, "k", "lost");
    trap.set(1, "l", "lost");
    trap.run_if(|from, to| (from, to) == (1, 3) || (from, to) == (3, 1));
    assert_eq!(trap.outcome(1, &lost), Outcome::Waiting);
    for node in [2, 3] {
        trap.map(node, &assigned(2, 2, &[3], &[]));
    }
    let kept = trap.set(2, "k", "new");
    trap.run_if(|from, to| from != 1 && to != 1);
    assert_eq!(trap.outcome(2, &kept), Outcome::Acknowledged);
    trap.map(3, &assigned(3, 3, &[], &[]));
    assert_eq!(trap.get(3, "k").as_deref(), Some("new"));
    assert_eq!(trap.get(3, "l"), None);
}

/// The time of the map's change is not known. A write acknowledged without a replica whose addition was requested would be lost
/// if that replica became the owner.
#[test]
fn a_replica_counts_from_the_moment_in_which_it_is_asked_for() {
    let mut trap = settled(&[1, 2]);
    let filling = assigned(2, 1, &[], &[(2, 2)]);
    trap.map(1, &assigned(2, 1, &[], &[]));
    trap.map(2, &filling);
    trap.map(1, &filling);
    trap.run();
    let before = trap.set(1, "k", "alone");
    assert_eq!(trap.outcome(1, &before), Outcome::Acknowledged);
    trap.run();
    trap.pass_ms(1, 1_000);
    assert!(trap.at(1).asks.contains(&Wanted::Into(place(2), Epoch(2))));
    let after = trap.set(1, "k", "both");
    assert_eq!(trap.outcome(1, &after), Outcome::Waiting);
    // The same holds if the connection breaks before the map changes: the copy is not discarded.
    trap.reconnect(1, 2);
    trap.turn(1, |_, _, _, _| ());
    trap.run();
    assert_eq!(trap.outcome(1, &after), Outcome::Acknowledged);
    assert!(
        !trap
            .at(2)
            .log
            .iter()
            .rev()
            .take(3)
            .any(|it| matches!(it, Record::Clear { .. }))
    );
}

/// Schedule 19: the owner has an old disk, and nothing else shows it.
#[test]
fn an_owner_with_an_old_disk_is_told_that_it_is_behind() {
    let mut trap = settled(&[1, 2]);
    trap.set(1, "k", "first");
    trap.run();
    let old = trap.at(1).log.clone();
    trap.set(1, "k", "second");
    trap.run();
    trap.set(1, "k", "third");
    trap.run();
    trap.start(1, old);
    trap.map(1, &assigned(9, 1, &[2], &[]));
    trap.reconnect(1, 2);
    trap.turn(1, |_, _, _, _| ());
    trap.run();
    assert!(trap.at(1).events.contains(&Event::Behind(SLOT)));
    let read = trap.at(1).replication.owner.read(SLOT, Some(b"k"), 0);
    assert_eq!(read, ReadWait::NotOwner);
}

/// A disk that lost acknowledged changes: the owner detects it when it begins, and requests the replica's removal from the
/// in-sync set.
#[test]
fn a_replica_that_lost_its_tail_is_not_in_sync() {
    let mut trap = settled(&[1, 2]);
    trap.set(1, "k", "first");
    trap.run();
    let old = trap.at(2).log.clone();
    trap.set(1, "k", "second");
    trap.run();
    trap.start(2, old);
    trap.reconnect(1, 2);
    trap.turn(1, |_, _, _, _| ());
    trap.run_if(|from, _| from == 1);
    assert!(trap.was_answered(|it| *it == Answer::Lacks));
    trap.run();
    trap.pass_ms(1, 10);
    assert!(trap.at(1).asks.contains(&Wanted::Out(place(2))));
}

#[test]
fn a_silent_replica_is_asked_out_and_waited_for_until_the_map_says_so() {
    let mut trap = settled(&[1, 2]);
    let ticket = trap.set(1, "k", "v");
    trap.on_way.clear();
    for _ in 0..20 {
        trap.pass_ms(1, 100);
        trap.on_way.clear();
    }
    assert!(trap.at(1).asks.contains(&Wanted::Out(place(2))));
    assert_eq!(trap.outcome(1, &ticket), Outcome::Waiting);
    trap.map(1, &assigned(4, 1, &[], &[]));
    assert_eq!(trap.outcome(1, &ticket), Outcome::Acknowledged);
}

#[test]
fn an_owner_that_stood_still_asks_nobody_out_for_it() {
    let mut trap = settled(&[1, 2]);
    trap.pass_ms(1, 100);
    trap.set(1, "k", "v");
    trap.pass_ms(1, 60_000);
    assert_eq!(trap.at(1).asks, []);
}

/// Its ticks are far apart, because the process gets little CPU time.
#[test]
fn an_owner_that_often_stands_still_hears_first_and_judges_then() {
    let mut trap = settled(&[1, 2]);
    trap.set(1, "k", "v");
    trap.pass_ms(1, 700);
    trap.pass_ms(1, 700);
    trap.pass_ms(1, 700);
    assert_eq!(trap.at(1).asks, [], "what came may lie there unread");
    for _ in 0..5 {
        trap.pass_ms(1, 700);
        trap.on_way.clear();
    }
    assert!(trap.at(1).asks.contains(&Wanted::Out(place(2))));
}

/// The transfer of its bytes takes as long as the silence of a dead replica.
#[test]
fn a_large_row_on_its_way_is_no_silence() {
    let limits = Limits {
        slowest_bytes_per_second: 100,
        ..limits()
    };
    let mut trap = settled_by(&[1, 2], limits);
    let large = "x".repeat(1_000);
    let ticket = trap.set(1, "k", &large);
    for _ in 0..50 {
        // Heartbeats follow the row, and are not acknowledged before it.
        trap.pass_ms(1, 100);
    }
    assert_eq!(trap.at(1).asks, []);
    trap.run();
    assert_eq!(trap.outcome(1, &ticket), Outcome::Acknowledged);
    trap.set(1, "k", "small");
    for _ in 0..20 {
        trap.pass_ms(1, 100);
    }
    assert!(trap.at(1).asks.contains(&Wanted::Out(place(2))));
}

/// Two rows exceed the limit of unacknowledged bytes, and the in-sync replicas acknowledge them before the first is sent to the
/// replica being filled.
#[test]
fn a_filling_ends_while_large_rows_are_written() {
    let limits = Limits {
        unacknowledged_bytes_max: 64_000,
        ..limits()
    };
    let mut trap = settled_by(&[1, 2], limits);
    let filling = assigned(2, 1, &[2], &[(3, 2)]);
    trap.start(3, Vec::new());
    let now_ms = trap.now_ms;
    for (one, other) in [(1, 3), (3, 1)] {
        trap.at(one).replication.connected(place(other), now_ms);
    }
    let large = "x".repeat(32_000);
    trap.set(1, "a", &large);
    trap.set(1, "b", &large);
    trap.run();
    for at in 0..10 {
        trap.set(1, &format!("k{at}"), "small");
    }
    trap.run();
    for node in [2, 3, 1] {
        trap.map(node, &filling);
    }
    let mut is_filled = false;
    for _ in 0..50 {
        // In-sync replicas are faster.
        trap.set(1, "a", &large);
        trap.set(1, "b", &large);
        trap.run_if(|from, to| from != 3 && to != 3);
        for _ in 0..8 {
            trap.run_one();
            trap.run_if(|from, to| from != 3 && to != 3);
        }
        trap.pass_ms(1, 200);
        is_filled = trap.at(1).asks.contains(&Wanted::Into(place(3), Epoch(2)));
        if is_filled {
            break;
        }
    }
    assert!(is_filled, "the replica is never asked into those in sync");
}

#[test]
fn a_planned_move_loses_and_doubles_nothing() {
    let mut trap = settled(&[1, 2]);
    let ticket = trap.set(1, "k", "v");
    trap.at(1).replication.owner.hand_over(SLOT, place(2));
    trap.pass_ms(1, 1_000);
    assert_eq!(trap.at(1).asks, [], "not while something is unacknowledged");
    let may = trap.at(1).replication.owner.may_write(SLOT, 0);
    assert_eq!(may, Admission::Later);
    trap.run();
    assert_eq!(trap.outcome(1, &ticket), Outcome::Acknowledged);
    trap.pass_ms(1, 1_000);
    // Immediately, and again while the map does not show it.
    let wanted = Wanted::Move(place(2), Epoch(1));
    assert_eq!(trap.at(1).asks, [wanted, wanted]);
    let read = trap.at(1).replication.owner.read(SLOT, None, 0);
    assert_eq!(read, ReadWait::Later, "it may be another's already");
    for node in [1, 2] {
        trap.map(node, &assigned(3, 2, &[1], &[]));
    }
    let next = trap.set(2, "k", "w");
    trap.run();
    assert_eq!(trap.outcome(2, &next), Outcome::Acknowledged);
    // And back, during a write that the other node lacks.
    let cut = trap.set(2, "k", "cut");
    trap.on_way.clear();
    for node in [1, 2] {
        trap.map(node, &assigned(4, 1, &[2], &[]));
    }
    trap.run();
    assert_eq!(trap.outcome(2, &cut), Outcome::Unknown);
    let last = trap.set(1, "l", "x");
    trap.run();
    trap.set(1, "l", "y");
    trap.run();
    assert_eq!(trap.outcome(1, &last), Outcome::Acknowledged);
    let values = [1, 2].map(|node| trap.get(node, "k"));
    assert_eq!(values, ["w", "w"].map(|it| Some(it.to_owned())));
}

#[test]
fn nothing_is_taken_without_a_lease_and_reads_are_confirmed() {
    let mut trap = settled(&[1, 2]);
    trap.set(1, "k", "v");
    trap.run();
    trap.at(1).replication.owner.set_lease(500);
    let owner = &trap.at(1).replication.owner;
    assert_eq!(owner.may_write(SLOT, 499), Admission::Now);
    assert_eq!(owner.may_write(SLOT, 500), Admission::NoLease);
    let read = owner.read(SLOT, Some(b"k"), 500);
    assert_eq!(
        read,
        ReadWait::After {
            acknowledged: None,
            confirmed: true
        }
    );
    let ask = |trap: &mut Trap| {
        trap.turn(1, |replication, _, now_ms, out| {
            replication
                .owner
                .confirm(SLOT, now_ms, out)
                .expect("it follows")
        })
    };
    let asked = ask(&mut trap);
    assert_eq!(
        trap.at(1).replication.owner.is_confirmed(&asked),
        Outcome::Waiting
    );
    trap.run();
    assert_eq!(
        trap.at(1).replication.owner.is_confirmed(&asked),
        Outcome::Acknowledged
    );
    // The other node is now the owner.
    trap.map(2, &assigned(2, 2, &[], &[]));
    let asked = ask(&mut trap);
    trap.run();
    assert_eq!(
        trap.at(1).replication.owner.is_confirmed(&asked),
        Outcome::Unknown
    );
}

/// The last change before the end of a fill had been acknowledged, but not the end itself: the replica was added to the in-sync
/// set before it had all rows.
#[test]
fn a_filling_is_over_when_its_end_is_acknowledged() {
    let mut trap = settled(&[1, 2]);
    let filling = assigned(2, 1, &[], &[(2, 2)]);
    trap.map(1, &assigned(2, 1, &[], &[]));
    trap.map(2, &filling);
    trap.map(1, &filling);
    // The replica begins, and receives nothing further.
    trap.run_if(|from, _| from == 1);
    trap.run_if(|from, _| from == 2);
    trap.pass_ms(1, 1_000);
    assert_eq!(trap.at(1).asks, []);
    trap.run();
    trap.pass_ms(1, 1_000);
    assert_eq!(trap.at(1).asks, [Wanted::Into(place(2), Epoch(2))]);
}

/// The window closed in the middle of a transaction, and the owner died. The replica's part of the transaction was never
/// acknowledged, and must not become visible.
#[test]
fn half_of_a_transaction_does_not_outlive_its_owner() {
    let mut trap = settled(&[1, 2]);
    trap.set_together(1, &[("a", "old"), ("b", "old")]);
    trap.run();
    let long = "x".repeat(80);
    let ticket = trap.set_together(1, &[("a", &long), ("b", &long)]);
    // The first half arrives and is acknowledged; the second does not arrive.
    let sent = trap.on_way.len();
    trap.run_if(|from, _| from == 1);
    assert_eq!(sent, 1, "the window takes one row");
    let copy = trap.at(2).replication.replica.copy(SLOT).cloned();
    let copy = copy.expect("it is in sync");
    assert_eq!((copy.last().number, copy.last_whole()), (3, 2));
    trap.run_if(|_, to| to == 1);
    assert_eq!(trap.outcome(1, &ticket), Outcome::Waiting);
    trap.map(2, &assigned(2, 2, &[], &[]));
    let values = ["a", "b"].map(|key| trap.get(2, key));
    assert_eq!(values, ["old", "old"].map(|it| Some(it.to_owned())));
    // The cut is also in its log.
    let log = std::mem::take(&mut trap.at(2).log);
    trap.start(2, log);
    let copy = trap.at(2).replication.replica.copy(SLOT).expect("kept");
    assert_eq!(copy.last().number, 2);
}

/// A node that was filled at full speed delayed all others: rows of 256 KiB took longer than a request, and such messages
/// followed each other without a pause.
#[test]
fn a_filling_sends_what_the_time_that_passed_allows() {
    let limits = Limits {
        chunk_bytes: 1_000,
        fill_bytes_per_second: 1_000_000,
        ..Limits::default()
    };
    let mut trap = settled_by(&[1, 2], limits);
    trap.map(1, &assigned(2, 1, &[], &[]));
    let keys: Vec<String> = (0..100).map(|at| format!("{at:03}")).collect();
    for key in &keys {
        trap.set(1, key, &"v".repeat(1_000));
    }
    let filling = assigned(2, 1, &[], &[(2, 2)]);
    trap.map(2, &filling);
    trap.map(1, &filling);
    trap.run();
    let count = |trap: &Trap| keys.iter().filter(|key| trap.get(2, key).is_some()).count();
    let first = count(&trap);
    assert!((1..=20).contains(&first), "{first} of 20 ms");
    assert!(trap.at(1).replication.owner.waits_to_fill());
    for round in 1..100 {
        let before = count(&trap);
        trap.pass_ms(1, 10);
        trap.run();
        let more = count(&trap) - before;
        assert!(more <= 10, "{more} of 10 ms");
        if before + more == keys.len() {
            assert!(round > 5 && !trap.at(1).replication.owner.waits_to_fill());
            return;
        }
        assert!(more > 0, "it goes on");
    }
    panic!("it ends");
}

/// With `min_copies` of 2, the only replica was removed while a change was in flight. The new map left no replica to wait for,
/// and the change was acknowledged with one copy.
#[test]
fn a_change_under_way_when_too_few_copies_are_left_is_not_acknowledged() {
    let mut trap = settled(&[1, 2]);
    trap.at(1).replication.owner.set_min_copies(2);
    let before = trap.set(1, "k", "before");
    trap.run();
    let under_way = trap.set(1, "k", "under way");
    trap.map(1, &assigned(2, 1, &[], &[]));
    assert_eq!(trap.outcome(1, &before), Outcome::Acknowledged);
    assert_eq!(trap.outcome(1, &under_way), Outcome::Unknown);
    let admission = trap.at(1).replication.owner.may_write(SLOT, 0);
    let too_few = Admission::TooFewCopies {
        copies: 1,
        needed: 2,
    };
    assert_eq!(admission, too_few);
    // Another node has been filled.
    trap.map(1, &assigned(3, 1, &[2], &[]));
    let after = trap.set(1, "k", "after");
    assert_eq!(trap.outcome(1, &under_way), Outcome::Unknown);
    assert_eq!(trap.outcome(1, &after), Outcome::Waiting);
}
