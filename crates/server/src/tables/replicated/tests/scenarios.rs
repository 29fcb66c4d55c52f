//! Tests of single guarantees of replication.

use std::task::Poll;

use larder_cluster::coordination::LeaseHandle;
use larder_cluster::map::{Change, NodeId, SlotRange};
use larder_join::row_slot;
use larder_protocol::commands::{Id, OwnedCommand};
use larder_protocol::errors::Code;

use super::{TestCluster, admit, poll};
use crate::tables::Gate;

/// Removes the dead node from the map, with `to` as the new owner.
fn fail_over(world: &mut TestCluster, dead: u32, to: u32) {
    world.change(Change::MembersLost {
        nodes: vec![NodeId(dead)],
        owners: vec![(SlotRange::ALL, NodeId(to))],
        at_ms: 0,
    });
}

#[test]
fn a_write_is_acknowledged_when_owner_and_replica_have_it() {
    let mut world = TestCluster::new(2, 2);
    let mut early = world.set(1, "t|a|1", "early");
    assert!(
        !world.is_answered(1, &mut early),
        "the replica has not first_message"
    );
    world.run();
    assert!(world.is_answered(1, &mut early));
    let mut gate = world.set(1, "t|a|1", "v");
    let (value, mut reads) = world.get(1, "t|a|1").unwrap();
    assert_eq!(value.as_deref(), Some("v"));
    let (_, mut other) = world.get(1, "t|b|1").unwrap();
    assert!(world.is_answered(1, &mut other), "it shows nothing of it");
    assert!(!world.is_answered(1, &mut gate) && !world.is_answered(1, &mut reads));
    assert!(world.deliver_if(&|from, to| (from, to) == (1, 2)));
    assert!(!world.is_answered(1, &mut gate), "it is not acknowledged");
    world.run();
    assert!(world.is_answered(1, &mut gate) && world.is_answered(1, &mut reads));
}

#[test]
fn an_owner_with_an_expired_lease_serves_reads_that_its_replica_confirms() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let mut gate = world.set(1, "t|a|1", "v");
    world.run();
    assert!(world.is_answered(1, &mut gate));
    world.held = LeaseHandle::expired();
    world.apply_map(1);
    for _ in 0..2 {
        let (value, mut reads) = world.get(1, "t|a|1").unwrap();
        assert_eq!(value.as_deref(), Some("v"));
        let polled = poll(world.tables(1), &mut reads);
        assert!(polled.is_pending(), "{polled:?}");
        world.turn(1);
        world.run();
        assert!(world.is_answered(1, &mut reads));
    }
    let refused = world.write(1, &["SET", "t|a|1", "w"]).err().unwrap();
    assert_eq!(refused.0, Code::ClusterDown, "{}", refused.1);
    // A disconnected replica confirms nothing.
    let (_, mut reads) = world.get(1, "t|a|1").unwrap();
    world.cut(2);
    let polled = poll(world.tables(1), &mut reads);
    assert!(matches!(polled, Poll::Ready(Err(_))), "{polled:?}");
}

#[test]
fn an_admitted_command_of_several_writes_completes_after_the_lease_expires() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let refused = |world: &TestCluster, gate: &mut Gate, key: &'static str| {
        let written = world.tables(1).write(gate, |engine, now| {
            let written = engine.put(key.as_bytes(), b"v", now).unwrap();
            Ok(((), written.waits_for))
        });
        written.err().map(|why| why.refusal())
    };
    let words: [&[u8]; 4] = [b"t|a|1", b"v", b"t|a|2", b"v"];
    let command = OwnedCommand::of(Id::MSet, words.into_iter());
    let mut gate = Gate::default();
    admit(world.tables(1), command.command(), &mut gate).unwrap();
    assert_eq!(refused(&world, &mut gate, "t|a|1"), None);
    world.held = LeaseHandle::expired();
    world.apply_map(1);
    assert_eq!(refused(&world, &mut gate, "t|a|2"), None);
    assert_eq!(world.rows(1, "t|a|", "t|a}"), ["t|a|1=v", "t|a|2=v"]);
    let next = world.write(1, &["SET", "t|a|3", "w"]).err().unwrap();
    assert_eq!(next.0, Code::ClusterDown, "{}", next.1);
}

#[test]
fn only_the_owner_executes_commands_and_has_rows_in_its_engine() {
    let mut world = TestCluster::new(3, 2);
    world.run();
    world.set(1, "t|a|1", "v");
    world.run();
    for node in [2, 3] {
        let refused = world.write(node, &["SET", "t|a|1", "w"]).err().unwrap();
        assert_eq!(refused.0, Code::TryAgain, "{}", refused.1);
        assert!(world.get(node, "t|a|1").is_err());
        assert!(world.rows(node, "t|", "t}").is_empty());
    }
    let copied = |node: u32| {
        let replicated = world.tables(node).replicated.as_ref().unwrap();
        let state = replicated.state.borrow();
        let copy = state
            .replication
            .as_ref()
            .unwrap()
            .replica
            .copy(row_slot(b"t|a|1"));
        copy.map(|copy| copy.last().number)
    };
    assert_eq!([1, 2, 3].map(copied), [None, Some(1), None]);
}

#[test]
fn a_new_owner_has_acknowledged_rows_with_their_expiry_and_updates_joins() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let far = u64::MAX / 2;
    world.set(1, "post|ann|1", "a");
    world.set(1, "post|ann|2", "b");
    world.write(1, &["DEL", "post|ann|1"]).unwrap();
    world.set(1, "post|ann|3", "c");
    world
        .write(1, &["PEXPIREAT", "post|ann|3", &far.to_string()])
        .unwrap();
    world.write(1, &["PEXPIREAT", "post|ann|2", "1"]).unwrap();
    world.run();
    world.kill(1);
    fail_over(&mut world, 1, 2);
    let tables = world.tables(2);
    let feed = "feed|<user>|<id> = copy post|<user>|<id>";
    tables
        .write(&mut Default::default(), |engine, now| {
            engine.create("feed", feed, now).unwrap();
            Ok(((), None))
        })
        .ok()
        .unwrap();
    world.apply_map(2);
    assert_eq!(world.rows(2, "feed|ann|", "feed|ann}"), ["feed|ann|3=c"]);
    let expires_at = world
        .tables(2)
        .read(|engine, now| engine.expires_at(b"post|ann|3", now));
    assert_eq!(expires_at, Some(far));
    // No other node is in sync, so this node alone acknowledges the write.
    let mut gate = world.set(2, "post|ann|4", "d");
    assert!(world.is_answered(2, &mut gate));
    assert_eq!(
        world.rows(2, "feed|ann|", "feed|ann}"),
        ["feed|ann|3=c", "feed|ann|4=d"]
    );
}

#[test]
fn an_unknown_outcome_closes_the_connection_and_keeps_the_rows() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let mut first = world.set(1, "t|a|1", "kept");
    world.run();
    assert!(world.is_answered(1, &mut first));
    let mut gate = world.set(1, "t|a|1", "lost");
    world.set(1, "t|a|2", "lost");
    assert_eq!(world.rows(1, "t|", "t}").len(), 2);
    world.cut(1);
    fail_over(&mut world, 1, 2);
    world.apply_map(2);
    world.set(2, "t|a|3", "new");
    // The old owner returns with a new incarnation, and is filled.
    world.change(Change::MemberReturned {
        node: NodeId(1),
        registration: super::registration(1, 2),
        at_ms: 0,
    });
    world.nodes.get_mut(&1).unwrap().incarnation = 2;
    world.apply_map(1);
    assert!(world.rows(1, "t|", "t}").is_empty());
    let polled = super::poll(world.tables(1), &mut gate);
    assert!(matches!(polled, std::task::Poll::Ready(Err(_))));
    assert_eq!(world.rows(2, "t|", "t}"), ["t|a|1=kept", "t|a|3=new"]);
}

/// The map notifies the new owner first; the begin of its stream notifies the old one.
#[test]
fn an_owner_that_is_replaced_drops_its_rows_and_computed_rows() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let feed = "feed|<user>|<id> = copy post|<user>|<id>";
    for node in [1, 2] {
        let tables = world.tables(node);
        let made = tables.write(&mut Default::default(), |engine, now| {
            engine.create("feed", feed, now).unwrap();
            Ok(((), None))
        });
        made.ok().unwrap();
    }
    world.set(1, "post|ann|1", "a");
    world.run();
    assert_eq!(world.rows(1, "feed|ann|", "feed|ann}"), ["feed|ann|1=a"]);
    world.change(Change::PlacementReplaced {
        goals: vec![(SlotRange::ALL, vec![NodeId(2), NodeId(1)])],
        outputs: Vec::new(),
        from: 2,
    });
    world.change(Change::OwnersMoved {
        slots: vec![(SlotRange::ALL, NodeId(2))],
    });
    world.apply_map(2);
    world.run();
    assert!(world.rows(1, "post|", "post}").is_empty());
    let computed: u64 = world.tables(1).read(|engine, _| engine.list())[0].rows;
    assert_eq!(computed, 0, "nothing computed is left");
    assert!(world.write(1, &["SET", "post|ann|2", "b"]).is_err());
    let mut gate = world.set(2, "post|ann|2", "b");
    world.run();
    assert!(world.is_answered(2, &mut gate), "the old owner is in sync");
    world.apply_map(1);
    world.run();
    let rows = world.rows(2, "feed|ann|", "feed|ann}");
    assert_eq!(rows, ["feed|ann|1=a", "feed|ann|2=b"]);
}

#[test]
fn a_restarted_node_has_its_copies_and_owns_nothing_until_the_map_assigns_it() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    for at in 0..50 {
        world.set(1, &format!("t|{at}|x"), &format!("{at}"));
    }
    world.run();
    for node in [1, 2] {
        world.kill(node);
        world.start(node);
        assert!(world.rows(node, "t|", "t}").is_empty());
        let replicated = world.tables(node).replicated.as_ref().unwrap();
        // Commits are reported lazily: the other changes are in the tails.
        let state = replicated.state.borrow();
        let tails: usize = state.recovered.values().map(|copy| copy.tail.len()).sum();
        assert_eq!(state.copies.count().0 + tails, 50, "node {node}");
    }
    // Both nodes were dead: the first that returns has every acknowledged write.
    world.change(Change::MembersLost {
        nodes: vec![NodeId(1), NodeId(2)],
        owners: Vec::new(),
        at_ms: 0,
    });
    world.change(Change::MemberReturned {
        node: NodeId(2),
        registration: super::registration(2, 2),
        at_ms: 0,
    });
    world.nodes.get_mut(&2).unwrap().incarnation = 2;
    world.apply_map(2);
    assert_eq!(world.rows(2, "t|", "t}").len(), 50);
}

#[test]
fn a_snapshot_has_each_slot_at_its_mark_in_the_log() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    for at in 0..30 {
        world.set(1, &format!("t|{at}|x"), "old");
    }
    world.run();
    world.tick();
    world.run();
    // Two changes that no replica has yet: the snapshot has the former rows, and the changes.
    world.set(1, "t|3|x", "new");
    world.write(1, &["DEL", "t|4|x"]).unwrap();
    [1, 2].iter().for_each(|node| world.snapshot(*node));
    world.set(1, "t|5|x", "later");
    world.run();
    let rows = world.rows(1, "t|", "t}");
    assert_eq!(rows.len(), 29);
    for node in [1, 2] {
        world.kill(node);
        world.start(node);
        assert!(world.tables(node).journal.sizes().snapshot_bytes > 0);
    }
    world.connect(1);
    world.change(Change::MembersLost {
        nodes: vec![NodeId(1), NodeId(2)],
        owners: Vec::new(),
        at_ms: 0,
    });
    for node in [2, 1] {
        world.change(Change::MemberReturned {
            node: NodeId(node),
            registration: super::registration(node, 2),
            at_ms: 0,
        });
        world.nodes.get_mut(&node).unwrap().incarnation = 2;
        world.apply_map(node);
        let owner = world.map.slots().of(0).placement.owner.unwrap().0;
        assert_eq!(world.rows(owner, "t|", "t}"), rows, "of node {owner}");
    }
}

#[test]
fn a_removed_process_returns_as_a_new_member_without_rows() {
    let mut world = TestCluster::new(1, 1);
    let mut gate = world.set(1, "t|a|1", "of the member before");
    assert!(world.is_answered(1, &mut gate));
    // The node stalls for longer than its lease; an operator removes it, and it continues.
    let (before, now) = (NodeId(1), NodeId(2));
    world.change(Change::MembersLost {
        nodes: vec![before],
        owners: Vec::new(),
        at_ms: 0,
    });
    world.change(Change::RowsDiscarded { node: before });
    world.change(Change::MemberRemoved { node: before });
    world.change(Change::MemberAdded {
        registration: super::registration(1, 2),
        at_ms: 0,
    });
    world.change(Change::MembersAdmitted {
        nodes: vec![now],
        at_ms: 0,
    });
    world.change(Change::PlacementReplaced {
        goals: vec![(SlotRange::ALL, vec![now])],
        outputs: Vec::new(),
        from: 2,
    });
    world.nodes.get_mut(&1).unwrap().incarnation = 2;
    world.apply_map_as(1, now);
    assert!(world.rows(1, "t|", "t}").is_empty());
    let mut gate = world.set(1, "t|b|1", "of the member now");
    assert!(world.is_answered(1, &mut gate));
    world.kill(1);
    world.start(1);
    world.change(Change::MembersLost {
        nodes: vec![now],
        owners: Vec::new(),
        at_ms: 0,
    });
    world.change(Change::MemberReturned {
        node: now,
        registration: super::registration(1, 3),
        at_ms: 0,
    });
    world.nodes.get_mut(&1).unwrap().incarnation = 3;
    world.apply_map_as(1, now);
    assert_eq!(world.rows(1, "t|", "t}"), ["t|b|1=of the member now"]);
}

#[test]
fn a_transaction_of_one_slot_is_one_batch_and_one_change_for_readers() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let slot = row_slot(b"t|{a}|1");
    let mut gate = world
        .write(1, &["MSET", "t|{a}|1", "x", "t|{a}|2", "y", "t|{a}|1", "z"])
        .unwrap();
    world.run();
    assert!(world.is_answered(1, &mut gate));
    let replicated = world.tables(2).replicated.as_ref().unwrap();
    let state = replicated.state.borrow();
    let copy = state.replication.as_ref().unwrap().replica.copy(slot);
    let tail = &copy.unwrap().tail;
    let open: Vec<bool> = tail.iter().map(|entry| entry.is_open).collect();
    assert_eq!(
        open,
        [true, false],
        "the row that changed twice is sent once"
    );
}

#[test]
fn a_new_replica_is_filled_during_writes_and_then_is_in_sync() {
    let mut world = TestCluster::new(3, 2);
    world.run();
    for at in 0..100 {
        world.set(1, &format!("t|{at}|x"), &format!("{at}"));
        world.set(1, &format!("t|{{one}}|{at}"), &"long ".repeat(100));
    }
    world.run();
    world.change(Change::PlacementReplaced {
        goals: vec![(SlotRange::ALL, vec![NodeId(1), NodeId(3)])],
        outputs: Vec::new(),
        from: 2,
    });
    world.change(Change::FillsBegun {
        slots: vec![(SlotRange::ALL, NodeId(3))],
    });
    (1..=3).for_each(|node| world.apply_map(node));
    let slots = u64::from(larder_types::SLOTS);
    let replicas = world.nodes[&1].running.as_ref().unwrap().view.replicas();
    assert_eq!(
        (replicas.in_sync, replicas.filling, replicas.missing),
        (slots, slots, 0)
    );
    for at in 0..2_000 {
        world.deliver_if(&|_, _| true);
        if at % 100 == 0 {
            world.set(1, &format!("t|{{one}}|{}", at / 100), "new");
            world.tick();
        }
    }
    for _ in 0..50 {
        world.run();
        world.tick();
        if world.grant(1) {
            [1, 3].iter().for_each(|node| world.apply_map(*node));
        }
    }
    let placed = &world.map.slots().of(row_slot(b"t|{one}|1")).placement;
    assert_eq!(placed.in_sync, [NodeId(2), NodeId(3)]);
    let replicas = world.nodes[&1].running.as_ref().unwrap().view.replicas();
    assert_eq!((replicas.in_sync, replicas.filling), (2 * slots, 0));
    world.run();
    let figures = world.tables(1).replication_stats();
    assert_eq!((figures.filled, figures.unacknowledged), (slots, 0));
    world.set(1, "t|{one}|1", "newer");
    let waits = world.tables(1).replication_stats();
    assert_eq!(waits.unacknowledged, 1);
    assert!(waits.unacknowledged_bytes > 0);
    world.run();
    let acknowledged = world.tables(1).replication_stats().acknowledged;
    assert_eq!(
        acknowledged,
        figures.acknowledged + 2,
        "one of each replica"
    );
    let rows = world.rows(1, "t|", "t}");
    assert_eq!(rows.len(), 200);
    world.kill(1);
    fail_over(&mut world, 1, 3);
    world.apply_map(3);
    assert_eq!(world.rows(3, "t|", "t}"), rows);
}

#[test]
fn a_silent_replica_is_removed_from_the_in_sync_set() {
    let mut world = TestCluster::new(3, 3);
    world.run();
    world.kill(3);
    let mut gate = world.set(1, "t|a|1", "v");
    world.run();
    assert!(!world.is_answered(1, &mut gate));
    let started = std::time::Instant::now();
    while !world.grant(1) {
        assert!(
            started.elapsed().as_secs() < 20,
            "no request removes it from the in-sync set"
        );
        std::thread::yield_now();
        world.tick();
        world.run();
    }
    let placed = &world.map.slots().of(row_slot(b"t|a|1")).placement;
    assert_eq!(placed.in_sync, [NodeId(2)]);
    (1..=2).for_each(|node| world.apply_map(node));
    world.run();
    assert!(world.is_answered(1, &mut gate));
}

/// A connection broke and was replaced within a turn: acknowledgements of the old stream must not be taken for
/// acknowledgements of the new one.
#[test]
fn messages_queued_for_a_connection_are_not_sent_over_the_next() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    for at in 0..20 {
        world.set(1, &format!("t|{at}|x"), "v");
        world.run();
    }
    // A message that needs no journal is acknowledged at the end of the same turn.
    let beats = |world: &mut TestCluster| {
        let is_there = |world: &TestCluster| {
            let on_way = world.on_way.borrow();
            on_way.iter().any(|message| message.1 == NodeId(2))
        };
        while !is_there(world) {
            world.tick();
        }
        let mut on_way = world.on_way.borrow_mut();
        std::mem::take(&mut *on_way)
    };
    let take = |world: &TestCluster,
                (from, to, connection, bytes): (NodeId, NodeId, u64, Vec<u8>)| {
        let from = larder_cluster::replication::Place {
            node: from,
            core: 0,
        };
        let tables = world.tables(to.0);
        tables
            .replication_received(from, connection, &bytes)
            .unwrap();
    };
    let mut is_beat = false;
    for message in beats(&mut world) {
        if message.1 == NodeId(2) {
            is_beat = true;
            take(&world, message);
        }
    }
    assert!(is_beat);
    world.cut(1);
    world.connect(1);
    world.turn(1);
    let first_message = world.on_way.borrow_mut().pop_front().unwrap();
    assert_eq!((first_message.0, first_message.1), (NodeId(1), NodeId(2)));
    let connection = first_message.2;
    take(&world, first_message);
    world.turn(2);
    let mut sequences = Vec::new();
    for (from, _, over, bytes) in &*world.on_way.borrow() {
        let message = larder_cluster::replication::Message::decode(bytes).unwrap();
        if let (NodeId(2), larder_cluster::replication::Message::Acknowledged { sequence }) =
            (*from, message)
        {
            assert_eq!(*over, connection);
            sequences.push(sequence);
        }
    }
    assert_eq!(sequences, [1]);
}

/// Only the differences between maps are applied, and here there are none.
#[test]
fn a_copy_whose_fill_was_aborted_before_its_map_arrived_is_dropped() {
    let mut world = TestCluster::new(3, 2);
    world.run();
    world.set(1, "t|a|1", "v");
    world.run();
    let slot = row_slot(b"t|a|1");
    let range = SlotRange::new(slot, slot);
    let slots = vec![(range, NodeId(3))];
    world.change(Change::PlacementReplaced {
        goals: vec![
            (SlotRange::new(0, slot - 1), vec![NodeId(1), NodeId(2)]),
            (range, vec![NodeId(1), NodeId(2), NodeId(3)]),
            (
                SlotRange::new(slot + 1, larder_types::SLOTS - 1),
                vec![NodeId(1), NodeId(2)],
            ),
        ],
        outputs: Vec::new(),
        from: 2,
    });
    world.change(Change::FillsBegun {
        slots: slots.clone(),
    });
    world.apply_map(1);
    world.run();
    let copies = |world: &TestCluster| world.tables(3).copies_bytes();
    assert!(
        copies(&world) > 0,
        "it is filled under a map that it has not received"
    );
    world.change(Change::FillsEnded { slots });
    world.change(Change::PlacementReplaced {
        goals: vec![(SlotRange::ALL, vec![NodeId(1), NodeId(2)])],
        outputs: Vec::new(),
        from: 3,
    });
    world.apply_map(3);
    assert_eq!(copies(&world), 0);
}

#[test]
fn keys_are_not_listed_while_a_slot_changes_owners() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let mut gate = world.set(1, "t|a|1", "v");
    world.run();
    assert!(world.is_answered(1, &mut gate));
    let lists = |world: &TestCluster, node: u32| {
        let commands: [(Id, &[&[u8]]); 3] =
            [(Id::Keys, &[b"*"]), (Id::Scan, &[b"0"]), (Id::DbSize, &[])];
        commands.map(|(id, args)| {
            let owned = OwnedCommand::of(id, args.iter().copied());
            admit(world.tables(node), owned.command(), &mut Gate::default()).is_ok()
        })
    };
    assert_eq!(lists(&world, 1), [true; 3]);
    let slot = row_slot(b"t|a|1");
    let slots = SlotRange::new(slot, slot);
    let epoch = world.map.epoch().0;
    world.change(Change::PlacementReplaced {
        goals: vec![(slots, vec![NodeId(2), NodeId(1)])],
        outputs: Vec::new(),
        from: 2,
    });
    world.apply_map(1);
    world.turn(1);
    assert_eq!(
        lists(&world, 1),
        [false; 3],
        "node 2 may own the row by now"
    );
    assert!(world.tables(1).ensure_owner_since(epoch).is_err());
    assert!(world.grant(1), "the slot is given away");
    world.apply_map(1);
    world.apply_map(2);
    world.run();
    assert_eq!((lists(&world, 1), lists(&world, 2)), ([true; 3], [true; 3]));
    assert!(
        world.tables(1).ensure_owner_since(epoch).is_err(),
        "its rows are fewer now"
    );
    assert_eq!(world.rows(1, "t|", "t}"), [""; 0]);
    assert_eq!(world.rows(2, "t|", "t}"), ["t|a|1=v"]);
}

#[test]
fn writes_acknowledged_by_all_replicas_leave_no_state() {
    let mut world = TestCluster::new(2, 2);
    world.run();
    let value = "v".repeat(100);
    for number in 0..1_000 {
        let mut gate = world.set(1, &format!("t|{}|1", number % 50), &value);
        assert!(!world.is_answered(1, &mut gate));
        world.run();
        assert!(world.is_answered(1, &mut gate));
    }
    let figures = world.tables(1).replication_stats();
    let unacknowledged = (figures.unacknowledged, figures.unacknowledged_bytes);
    assert_eq!(unacknowledged, (0, 0));
    let state = world.tables(1).replicated.as_ref().unwrap().state.borrow();
    assert_eq!(
        (state.changes.executed, state.changes.settled),
        (1_000, 1_000)
    );
    assert!(state.changes.waiting.is_empty() && state.log.appended.is_empty());
}
