//! Known pitfalls, one per test: two or three places whose messages the test delivers as it chooses.

use std::collections::{BTreeMap, VecDeque};

use larder_cluster::map::{Epoch, NodeId, Term};
use larder_cluster::replication::{
    Admission, Assignment, ExecutedChange, Limits, Message, Outcome, Outputs, Place, ReadWait,
    Record, ReplicaReply, Replication, ReplicationEvent, RowStore, SlotCopy, SlotMapChange, Ticket,
};

use super::host::{self, Table};

const SLOT: u16 = 7;

fn place(node: u32) -> Place {
    host::place(NodeId(node))
}

fn assigned(term: u64, owner: u32, in_sync: &[u32], filling: &[(u32, u64)]) -> Assignment {
    Assignment {
        term: Term(term),
        owner: Some(place(owner)),
        in_sync: in_sync.iter().map(|it| place(*it)).collect(),
        next_owner: None,
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
    events: Vec<ReplicationEvent>,
    asks: Vec<SlotMapChange>,
}

/// Places, and the messages in flight between them.
struct Scenario {
    nodes: BTreeMap<u32, Node>,
    on_way: VecDeque<(u32, u32, Message)>,
    now_ms: u64,
    limits: Limits,
}

impl Scenario {
    fn new(nodes: &[u32], limits: Limits) -> Scenario {
        let mut scenario = Scenario {
            limits,
            nodes: BTreeMap::new(),
            on_way: VecDeque::new(),
            now_ms: 1_000,
        };
        for node in nodes {
            scenario.start(*node, Vec::new());
        }
        for one in nodes {
            for other in nodes.iter().filter(|it| *it != one) {
                let now_ms = scenario.now_ms;
                scenario
                    .at(*one)
                    .replication
                    .handle_connect(place(*other), now_ms);
            }
        }
        scenario
    }

    fn at(&mut self, node: u32) -> &mut Node {
        self.nodes.get_mut(&node).expect("it is there")
    }

    /// Starts a process on a log.
    fn start(&mut self, node: u32, log: Vec<Record>) {
        let mut table = Table::default();
        let mut copies: BTreeMap<u16, Option<SlotCopy>> = BTreeMap::new();
        for record in &log {
            SlotCopy::replay(copies.entry(record.slot()).or_default(), record, &mut table);
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
            self.at(me)
                .replication
                .handle_disconnect(place(peer), now_ms);
            self.at(me).replication.handle_connect(place(peer), now_ms);
        }
    }

    fn map(&mut self, node: u32, assignment: &Assignment) {
        self.turn(node, |replication, table, now_ms, out| {
            let epoch = Epoch(assignment.term.0);
            replication.assign(epoch, SLOT, assignment, table, now_ms, out);
            replication.finish_assignment(epoch, out);
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
        it.replication.record_durable(it.log.len() as u64, &mut out);
        it.replication.flush(&it.table, now_ms, &mut out);
        it.log.append(&mut out.records);
        it.events.append(&mut out.events);
        it.asks.extend(out.requests.iter().map(|ask| ask.change));
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
                let changed = ExecutedChange {
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

    fn was_answered(&self, is: impl Fn(&ReplicaReply) -> bool) -> bool {
        self.on_way
            .iter()
            .any(|(_, _, it)| matches!(it, Message::Reply { reply, .. } if is(reply)))
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
fn settled(nodes: &[u32]) -> Scenario {
    settled_by(nodes, limits())
}

fn settled_by(nodes: &[u32], limits: Limits) -> Scenario {
    let mut scenario = Scenario::new(nodes, limits);
    for node in nodes {
        scenario.map(*node, &assigned(1, 1, &nodes[1..], &[]));
    }
    scenario.run();
    scenario
}

#[test]
fn a_change_is_acknowledged_when_all_in_sync_replicas_have_it() {
    let mut scenario = settled(&[1, 2, 3]);
    let ticket = scenario.set(1, "k", "v");
    scenario.run_if(|from, to| from != 3 && to != 3);
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Waiting);
    let read = scenario.at(1).replication.owner.read(SLOT, Some(b"k"), 0);
    assert!(matches!(
        read,
        ReadWait::After {
            acknowledged: Some(_),
            ..
        }
    ));
    let other = scenario
        .at(1)
        .replication
        .owner
        .read(SLOT, Some(b"other"), 0);
    assert_eq!(other, ReadWait::Now, "only reads of what is under way wait");
    scenario.run();
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Acknowledged);
}

/// The replica had received the map of the next term before the owner. It rejected a change of the old term, but acknowledged the
/// message. The owner took that for an acknowledgement of the change, and answered its client.
#[test]
fn a_change_rejected_by_a_replica_is_not_acknowledged() {
    let mut scenario = settled(&[1, 2]);
    scenario.map(2, &assigned(5, 1, &[2], &[(3, 5)]));
    let ticket = scenario.set(1, "k", "v");
    scenario.run();
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Waiting);
    scenario.map(1, &assigned(5, 1, &[2], &[(3, 5)]));
    scenario.run();
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Acknowledged);
    scenario.map(2, &assigned(6, 2, &[], &[]));
    assert_eq!(scenario.get(2, "k").as_deref(), Some("v"));
}

/// A fill was in progress when the term changed. The replica learned of the new term first, and rejected a chunk of rows of the
/// old term. The owner continued after that chunk in the new term, and the copy lacked its rows.
#[test]
fn a_fill_that_lost_a_chunk_to_a_new_term_restarts() {
    let mut scenario = settled(&[1, 2, 3]);
    scenario.map(1, &assigned(2, 1, &[2], &[]));
    scenario.run();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        scenario.set(1, key, "0123456789012345678901234567890123456789");
    }
    scenario.run();
    let filling = assigned(2, 1, &[2], &[(3, 2)]);
    scenario.map(3, &filling);
    scenario.map(1, &filling);
    // Some rows are in flight when the replica learns of the next term.
    for _ in 0..3 {
        let at = scenario
            .on_way
            .iter()
            .position(|(from, to, _)| (*from, *to) == (1, 3));
        let Some(at) = at else {
            scenario.run_if(|from, to| (from, to) == (3, 1));
            continue;
        };
        let (_, _, message) = scenario.on_way.remove(at).expect("just found");
        scenario.turn(3, |replication, table, now_ms, out| {
            replication.receive(place(1), message, table, now_ms, out);
        });
    }
    let next = assigned(3, 1, &[], &[(3, 2)]);
    scenario.map(3, &next);
    scenario.run();
    scenario.map(1, &next);
    scenario.run();
    scenario.pass_ms(1, 1_000);
    scenario.run();
    assert!(
        scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::AddReplica(place(3), Epoch(2)))
    );
    assert_eq!(scenario.nodes[&3].table, scenario.nodes[&1].table);
}

/// An owner received the map with a fill before the filled node, which then received the earlier maps one after the other. They
/// had the same term, because a fill does not change it, and did not name the node. The node discarded the rows that it had
/// received and acknowledged.
#[test]
fn a_replica_filled_before_it_sees_the_map_keeps_its_rows() {
    let mut scenario = settled(&[1, 2, 3]);
    scenario.map(1, &assigned(2, 1, &[2], &[]));
    scenario.map(3, &assigned(2, 1, &[2], &[]));
    scenario.set(1, "k", "value");
    scenario.run();
    let at_epoch = |scenario: &mut Scenario, node, epoch, assignment: &Assignment| {
        scenario.turn(node, |replication, table, now_ms, out| {
            replication.assign(Epoch(epoch), SLOT, assignment, table, now_ms, out);
        });
    };
    at_epoch(&mut scenario, 1, 4, &assigned(2, 1, &[2], &[(3, 4)]));
    scenario.run();
    scenario.pass_ms(1, 1_000);
    scenario.run();
    assert!(
        scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::AddReplica(place(3), Epoch(4)))
    );
    at_epoch(&mut scenario, 3, 3, &assigned(2, 1, &[2], &[]));
    assert_eq!(scenario.get(3, "k").as_deref(), Some("value"));
    // A map that is newer than the fill and does not name the node: the fill was aborted.
    at_epoch(&mut scenario, 3, 5, &assigned(2, 1, &[2], &[]));
    assert_eq!(scenario.get(3, "k"), None);
}

/// KIP-101: two replicas have different changes with the same number. The term of each change distinguishes them.
#[test]
fn a_replica_cuts_changes_that_the_new_owner_lacks() {
    let mut scenario = settled(&[1, 2, 3]);
    scenario.set(1, "k", "old");
    scenario.run();
    // Only node 3 receives these before the owner dies.
    let lost = scenario.set(1, "k", "lost");
    scenario.set(1, "l", "lost");
    scenario.run_if(|from, to| (from, to) == (1, 3) || (from, to) == (3, 1));
    assert_eq!(scenario.outcome(1, &lost), Outcome::Waiting);
    for node in [2, 3] {
        scenario.map(node, &assigned(2, 2, &[3], &[]));
    }
    let kept = scenario.set(2, "k", "new");
    scenario.run_if(|from, to| from != 1 && to != 1);
    assert_eq!(scenario.outcome(2, &kept), Outcome::Acknowledged);
    scenario.map(3, &assigned(3, 3, &[], &[]));
    assert_eq!(scenario.get(3, "k").as_deref(), Some("new"));
    assert_eq!(scenario.get(3, "l"), None);
}

/// The time of the map's change is not known. A write acknowledged without a replica whose addition was requested would be lost
/// if that replica became the owner.
#[test]
fn a_replica_counts_from_the_request_to_add_it() {
    let mut scenario = settled(&[1, 2]);
    let filling = assigned(2, 1, &[], &[(2, 2)]);
    scenario.map(1, &assigned(2, 1, &[], &[]));
    scenario.map(2, &filling);
    scenario.map(1, &filling);
    scenario.run();
    let before = scenario.set(1, "k", "alone");
    assert_eq!(scenario.outcome(1, &before), Outcome::Acknowledged);
    scenario.run();
    scenario.pass_ms(1, 1_000);
    assert!(
        scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::AddReplica(place(2), Epoch(2)))
    );
    let after = scenario.set(1, "k", "both");
    assert_eq!(scenario.outcome(1, &after), Outcome::Waiting);
    // The same holds if the connection breaks before the map changes: the copy is not discarded.
    scenario.reconnect(1, 2);
    scenario.turn(1, |_, _, _, _| ());
    scenario.run();
    assert_eq!(scenario.outcome(1, &after), Outcome::Acknowledged);
    assert!(
        !scenario
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
fn an_owner_with_an_old_disk_is_notified_that_it_is_behind() {
    let mut scenario = settled(&[1, 2]);
    scenario.set(1, "k", "first");
    scenario.run();
    let old = scenario.at(1).log.clone();
    scenario.set(1, "k", "second");
    scenario.run();
    scenario.set(1, "k", "third");
    scenario.run();
    scenario.start(1, old);
    scenario.map(1, &assigned(9, 1, &[2], &[]));
    scenario.reconnect(1, 2);
    scenario.turn(1, |_, _, _, _| ());
    scenario.run();
    assert!(
        scenario
            .at(1)
            .events
            .contains(&ReplicationEvent::OwnerBehind(SLOT))
    );
    let read = scenario.at(1).replication.owner.read(SLOT, Some(b"k"), 0);
    assert_eq!(read, ReadWait::NotOwner);
}

/// A disk that lost acknowledged changes: the owner detects it when it begins, and requests the replica's removal from the
/// in-sync set.
#[test]
fn a_replica_that_lost_its_tail_is_not_in_sync() {
    let mut scenario = settled(&[1, 2]);
    scenario.set(1, "k", "first");
    scenario.run();
    let old = scenario.at(2).log.clone();
    scenario.set(1, "k", "second");
    scenario.run();
    scenario.start(2, old);
    scenario.reconnect(1, 2);
    scenario.turn(1, |_, _, _, _| ());
    scenario.run_if(|from, _| from == 1);
    assert!(scenario.was_answered(|it| *it == ReplicaReply::MissingChanges));
    scenario.run();
    scenario.pass_ms(1, 10);
    assert!(
        scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::RemoveReplica(place(2)))
    );
}

#[test]
fn a_silent_replica_counts_until_the_map_removes_it() {
    let mut scenario = settled(&[1, 2]);
    let ticket = scenario.set(1, "k", "v");
    scenario.on_way.clear();
    for _ in 0..20 {
        scenario.pass_ms(1, 100);
        scenario.on_way.clear();
    }
    assert!(
        scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::RemoveReplica(place(2)))
    );
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Waiting);
    scenario.map(1, &assigned(4, 1, &[], &[]));
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Acknowledged);
}

#[test]
fn a_stalled_owner_does_not_remove_replicas() {
    let mut scenario = settled(&[1, 2]);
    scenario.pass_ms(1, 100);
    scenario.set(1, "k", "v");
    scenario.pass_ms(1, 60_000);
    assert_eq!(scenario.at(1).asks, []);
}

/// Its ticks are far apart, because the process gets little CPU time.
#[test]
fn an_often_stalled_owner_reads_pending_messages_first() {
    let mut scenario = settled(&[1, 2]);
    scenario.set(1, "k", "v");
    scenario.pass_ms(1, 700);
    scenario.pass_ms(1, 700);
    scenario.pass_ms(1, 700);
    assert_eq!(scenario.at(1).asks, [], "what came may lie there unread");
    for _ in 0..5 {
        scenario.pass_ms(1, 700);
        scenario.on_way.clear();
    }
    assert!(
        scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::RemoveReplica(place(2)))
    );
}

/// The transfer of its bytes takes as long as the silence of a dead replica.
#[test]
fn a_large_row_in_flight_does_not_count_as_silence() {
    let limits = Limits {
        slowest_bytes_per_second: 100,
        ..limits()
    };
    let mut scenario = settled_by(&[1, 2], limits);
    let large = "x".repeat(1_000);
    let ticket = scenario.set(1, "k", &large);
    for _ in 0..50 {
        // Heartbeats follow the row, and are not acknowledged before it.
        scenario.pass_ms(1, 100);
    }
    assert_eq!(scenario.at(1).asks, []);
    scenario.run();
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Acknowledged);
    scenario.set(1, "k", "small");
    for _ in 0..20 {
        scenario.pass_ms(1, 100);
    }
    assert!(
        scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::RemoveReplica(place(2)))
    );
}

/// Two rows exceed the limit of unacknowledged bytes, and the in-sync replicas acknowledge them before the first is sent to the
/// replica being filled.
#[test]
fn a_fill_completes_while_large_rows_are_written() {
    let limits = Limits {
        unacknowledged_bytes_max: 64_000,
        ..limits()
    };
    let mut scenario = settled_by(&[1, 2], limits);
    let filling = assigned(2, 1, &[2], &[(3, 2)]);
    scenario.start(3, Vec::new());
    let now_ms = scenario.now_ms;
    for (one, other) in [(1, 3), (3, 1)] {
        scenario
            .at(one)
            .replication
            .handle_connect(place(other), now_ms);
    }
    let large = "x".repeat(32_000);
    scenario.set(1, "a", &large);
    scenario.set(1, "b", &large);
    scenario.run();
    for at in 0..10 {
        scenario.set(1, &format!("k{at}"), "small");
    }
    scenario.run();
    for node in [2, 3, 1] {
        scenario.map(node, &filling);
    }
    let mut is_filled = false;
    for _ in 0..50 {
        // In-sync replicas are faster.
        scenario.set(1, "a", &large);
        scenario.set(1, "b", &large);
        scenario.run_if(|from, to| from != 3 && to != 3);
        for _ in 0..8 {
            scenario.run_one();
            scenario.run_if(|from, to| from != 3 && to != 3);
        }
        scenario.pass_ms(1, 200);
        is_filled = scenario
            .at(1)
            .asks
            .contains(&SlotMapChange::AddReplica(place(3), Epoch(2)));
        if is_filled {
            break;
        }
    }
    assert!(is_filled, "the replica is never asked into those in sync");
}

#[test]
fn a_planned_move_neither_loses_nor_duplicates_changes() {
    let mut scenario = settled(&[1, 2]);
    let ticket = scenario.set(1, "k", "v");
    scenario.at(1).replication.owner.hand_over(SLOT, place(2));
    scenario.pass_ms(1, 1_000);
    assert_eq!(
        scenario.at(1).asks,
        [],
        "not while something is unacknowledged"
    );
    let may = scenario.at(1).replication.owner.may_write(SLOT, 0);
    assert_eq!(may, Admission::Later);
    scenario.run();
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Acknowledged);
    scenario.pass_ms(1, 1_000);
    // Immediately, and again while the map does not show it.
    let wanted = SlotMapChange::MoveOwnership(place(2), Epoch(1));
    assert_eq!(scenario.at(1).asks, [wanted, wanted]);
    let read = scenario.at(1).replication.owner.read(SLOT, None, 0);
    assert_eq!(read, ReadWait::Later, "it may be another's already");
    for node in [1, 2] {
        scenario.map(node, &assigned(3, 2, &[1], &[]));
    }
    let next = scenario.set(2, "k", "w");
    scenario.run();
    assert_eq!(scenario.outcome(2, &next), Outcome::Acknowledged);
    // And back, during a write that the other node lacks.
    let cut = scenario.set(2, "k", "cut");
    scenario.on_way.clear();
    for node in [1, 2] {
        scenario.map(node, &assigned(4, 1, &[2], &[]));
    }
    scenario.run();
    assert_eq!(scenario.outcome(2, &cut), Outcome::Unknown);
    let last = scenario.set(1, "l", "x");
    scenario.run();
    scenario.set(1, "l", "y");
    scenario.run();
    assert_eq!(scenario.outcome(1, &last), Outcome::Acknowledged);
    let values = [1, 2].map(|node| scenario.get(node, "k"));
    assert_eq!(values, ["w", "w"].map(|it| Some(it.to_owned())));
}

#[test]
fn without_a_lease_writes_are_rejected_and_reads_are_confirmed() {
    let mut scenario = settled(&[1, 2]);
    scenario.set(1, "k", "v");
    scenario.run();
    scenario.at(1).replication.owner.set_lease(500);
    let owner = &scenario.at(1).replication.owner;
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
    let ask = |scenario: &mut Scenario| {
        scenario.turn(1, |replication, _, now_ms, out| {
            replication
                .owner
                .confirm(SLOT, now_ms, out)
                .expect("it follows")
        })
    };
    let asked = ask(&mut scenario);
    assert_eq!(
        scenario.at(1).replication.owner.is_confirmed(&asked),
        Outcome::Waiting
    );
    scenario.run();
    assert_eq!(
        scenario.at(1).replication.owner.is_confirmed(&asked),
        Outcome::Acknowledged
    );
    // The other node is now the owner.
    scenario.map(2, &assigned(2, 2, &[], &[]));
    let asked = ask(&mut scenario);
    scenario.run();
    assert_eq!(
        scenario.at(1).replication.owner.is_confirmed(&asked),
        Outcome::Unknown
    );
}

/// The last change before the end of a fill had been acknowledged, but not the end itself: the replica was added to the in-sync
/// set before it had all rows.
#[test]
fn a_fill_is_complete_when_its_end_is_acknowledged() {
    let mut scenario = settled(&[1, 2]);
    let filling = assigned(2, 1, &[], &[(2, 2)]);
    scenario.map(1, &assigned(2, 1, &[], &[]));
    scenario.map(2, &filling);
    scenario.map(1, &filling);
    // The replica begins, and receives nothing further.
    scenario.run_if(|from, _| from == 1);
    scenario.run_if(|from, _| from == 2);
    scenario.pass_ms(1, 1_000);
    assert_eq!(scenario.at(1).asks, []);
    scenario.run();
    scenario.pass_ms(1, 1_000);
    assert_eq!(
        scenario.at(1).asks,
        [SlotMapChange::AddReplica(place(2), Epoch(2))]
    );
}

/// The window closed in the middle of a transaction, and the owner died. The replica's part of the transaction was never
/// acknowledged, and must not become visible.
#[test]
fn an_incomplete_transaction_does_not_outlive_its_owner() {
    let mut scenario = settled(&[1, 2]);
    scenario.set_together(1, &[("a", "old"), ("b", "old")]);
    scenario.run();
    let long = "x".repeat(80);
    let ticket = scenario.set_together(1, &[("a", &long), ("b", &long)]);
    // The first half arrives and is acknowledged; the second does not arrive.
    let sent = scenario.on_way.len();
    scenario.run_if(|from, _| from == 1);
    assert_eq!(sent, 1, "the window takes one row");
    let copy = scenario.at(2).replication.replica.copy(SLOT).cloned();
    let copy = copy.expect("it is in sync");
    assert_eq!((copy.last().number, copy.last_transaction_end()), (3, 2));
    scenario.run_if(|_, to| to == 1);
    assert_eq!(scenario.outcome(1, &ticket), Outcome::Waiting);
    scenario.map(2, &assigned(2, 2, &[], &[]));
    let values = ["a", "b"].map(|key| scenario.get(2, key));
    assert_eq!(values, ["old", "old"].map(|it| Some(it.to_owned())));
    // The cut is also in its log.
    let log = std::mem::take(&mut scenario.at(2).log);
    scenario.start(2, log);
    let copy = scenario.at(2).replication.replica.copy(SLOT).expect("kept");
    assert_eq!(copy.last().number, 2);
}

/// A node that was filled at full speed delayed all others: rows of 256 KiB took longer than a request, and such messages
/// followed each other without a pause.
#[test]
fn a_fill_sends_at_the_configured_rate() {
    let limits = Limits {
        chunk_bytes: 1_000,
        fill_bytes_per_second: 1_000_000,
        ..Limits::default()
    };
    let mut scenario = settled_by(&[1, 2], limits);
    scenario.map(1, &assigned(2, 1, &[], &[]));
    let keys: Vec<String> = (0..100).map(|at| format!("{at:03}")).collect();
    for key in &keys {
        scenario.set(1, key, &"v".repeat(1_000));
    }
    let filling = assigned(2, 1, &[], &[(2, 2)]);
    scenario.map(2, &filling);
    scenario.map(1, &filling);
    scenario.run();
    let count = |scenario: &Scenario| {
        keys.iter()
            .filter(|key| scenario.get(2, key).is_some())
            .count()
    };
    let first = count(&scenario);
    assert!((1..=20).contains(&first), "{first} of 20 ms");
    assert!(scenario.at(1).replication.owner.is_fill_throttled());
    for round in 1..100 {
        let before = count(&scenario);
        scenario.pass_ms(1, 10);
        scenario.run();
        let more = count(&scenario) - before;
        assert!(more <= 10, "{more} of 10 ms");
        if before + more == keys.len() {
            assert!(round > 5 && !scenario.at(1).replication.owner.is_fill_throttled());
            return;
        }
        assert!(more > 0, "it goes on");
    }
    panic!("it ends");
}

/// With `min_copies` of 2, the only replica was removed while a change was in flight. The new map left no replica to wait for,
/// and the change was acknowledged with one copy.
#[test]
fn a_change_in_flight_when_too_few_copies_remain_is_not_acknowledged() {
    let mut scenario = settled(&[1, 2]);
    scenario.at(1).replication.owner.set_min_copies(2);
    let before = scenario.set(1, "k", "before");
    scenario.run();
    let under_way = scenario.set(1, "k", "under way");
    scenario.map(1, &assigned(2, 1, &[], &[]));
    assert_eq!(scenario.outcome(1, &before), Outcome::Acknowledged);
    assert_eq!(scenario.outcome(1, &under_way), Outcome::Unknown);
    let admission = scenario.at(1).replication.owner.may_write(SLOT, 0);
    let too_few = Admission::TooFewCopies {
        copies: 1,
        needed: 2,
    };
    assert_eq!(admission, too_few);
    // Another node has been filled.
    scenario.map(1, &assigned(3, 1, &[2], &[]));
    let after = scenario.set(1, "k", "after");
    assert_eq!(scenario.outcome(1, &under_way), Outcome::Unknown);
    assert_eq!(scenario.outcome(1, &after), Outcome::Waiting);
}
