//! The effects of map changes, and the changes that are rejected.

use larder_cluster::map::{
    Change, ChangeId, DefinitionKind, Departure, Difference, DiskId, Epoch, Incarnation, Lookup,
    Map, MemberState, NodeId, ReplicaFill, RequestId, Roles, SlotRange, SpaceSet, SyncChange,
    SyncChangeOrigin, Term, changed_slots,
};

use larder_types::{StoreName, VersionId};

use crate::maps::{apply, members, refused, registration, three};

const FIRST: SlotRange = SlotRange { from: 0, to: 5460 };

fn range(from: u16, to: u16) -> SlotRange {
    SlotRange::new(from, to)
}

fn lost(nodes: &[u32], owners: &[(SlotRange, u32)]) -> Change {
    Change::MembersLost {
        nodes: nodes.iter().copied().map(NodeId).collect(),
        owners: owners
            .iter()
            .map(|&(slots, node)| (slots, NodeId(node)))
            .collect(),
        at_ms: 9,
    }
}

fn back(number: u32, life: u64, disk: u64) -> Change {
    let mut registration = registration(number, &format!("zone-{}", number % 3), 1);
    registration.incarnation = Incarnation(life);
    registration.disk = DiskId(disk);
    Change::MemberReturned {
        node: NodeId(number),
        registration,
        at_ms: 20,
    }
}

fn sync(
    by: SyncChangeOrigin,
    slots: SlotRange,
    term: u64,
    out: &[u32],
    into: &[(u32, u64)],
) -> Change {
    let into = into.iter().map(|&(node, began)| ReplicaFill {
        node: NodeId(node),
        began: Epoch(began),
    });
    Change::SyncChanged {
        by,
        slots: vec![SyncChange {
            slots,
            term: Term(term),
            out: out.iter().copied().map(NodeId).collect(),
            into: into.collect(),
        }],
    }
}

/// Formats a slot's placement as `owner [in sync] filling -> goal`.
fn shown(map: &Map, slot: u16) -> String {
    let placed = &map.slots().of(slot).placement;
    let list = |nodes: Vec<u32>| {
        let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
        nodes.join(" ")
    };
    format!(
        "{} [{}] {{{}}} -> {}",
        list(placed.owner.iter().map(|it| it.0).collect()),
        list(placed.in_sync.iter().map(|it| it.0).collect()),
        list(placed.filling.iter().map(|it| it.node.0).collect()),
        list(placed.goal().iter().map(|it| it.0).collect()),
    )
}

#[test]
fn an_in_sync_replica_replaces_a_lost_owner_and_the_goal_stays() {
    let map = three();
    let why = refused(&map, lost(&[1], &[]));
    assert!(why.contains("the change names no new owner"), "{why}");
    let why = refused(&map, lost(&[1], &[(FIRST, 3)]));
    assert!(why.contains("3 is not in sync"), "{why}");
    let why = refused(
        &map,
        lost(&[1], &[(range(0, 9), 2), (range(5461, 5461), 3)]),
    );
    assert!(why.contains("an owner of slot 5461 is not lost"), "{why}");

    let after = apply(&map, lost(&[1], &[(FIRST, 2)]));
    assert_eq!(shown(&after, 0), "2 [] {} -> 1 2");
    assert_eq!(shown(&after, 16_383), "3 [] {} -> 3 1");
    assert_eq!(shown(&after, 6_000), "2 [3] {} -> 2 3");
    assert_eq!(after.slots().of(0).placement.term, Term(6));
    assert_eq!(
        after.slots().of(6_000).placement.term,
        Term(5),
        "nothing changed there"
    );
    assert!(!after.slots().of(0).placement.is_settled());
}

#[test]
fn the_first_holder_to_return_owns_a_slot_whose_holders_all_died() {
    let map = three();
    let dark = apply(&map, lost(&[1, 2], &[(range(5461, 10922), 3)]));
    assert_eq!(
        shown(&dark, 0),
        "1 [2] {} -> 1 2",
        "no replica could take over"
    );
    let lookup = Lookup::new(&dark);
    assert!(lookup.served_ranges().iter().all(|it| it.slots.from > 5460));

    let back_2 = apply(&dark, back(2, 2, 2));
    assert_eq!(shown(&back_2, 0), "2 [] {} -> 1 2");
    let back_1 = apply(&dark, back(1, 2, 1));
    assert_eq!(shown(&back_1, 0), "1 [] {} -> 1 2");
    // An owner that lost its disk has no rows, so the slot waits for the other node.
    let empty_1 = apply(&dark, back(1, 2, 99));
    assert_eq!(shown(&empty_1, 0), "2 [] {} -> 1 2");
    assert!(!empty_1.is_up(NodeId(2)));
    let why = refused(&empty_1, back(2, 2, 98));
    assert!(
        why.contains("--lose-rows") && why.contains("node-0002"),
        "{why}"
    );
    let why = refused(&empty_1, back(2, 1, 2));
    assert!(why.contains("not above incarnation 1"), "{why}");
}

#[test]
fn a_node_that_was_not_in_sync_does_not_become_owner_when_it_returns_first() {
    let map = three();
    let one = apply(&map, lost(&[1], &[(FIRST, 2)]));
    let none = apply(&one, lost(&[2], &[(range(5461, 10922), 3)]));
    let back_1 = apply(&none, back(1, 2, 1));
    assert_eq!(
        shown(&back_1, 0),
        "2 [] {} -> 1 2",
        "node 2 took writes that node 1 lacks"
    );
    let why = refused(
        &back_1,
        Change::FillsBegun {
            slots: vec![(FIRST, NodeId(1))],
        },
    );
    assert!(why.contains("is not up"), "{why}");

    let why = refused(&back_1, Change::RowsDiscarded { node: NodeId(3) });
    assert!(
        why.contains("only the rows of such a member can be discarded"),
        "{why}"
    );
    let given_up = apply(&back_1, Change::RowsDiscarded { node: NodeId(2) });
    assert_eq!(shown(&given_up, 0), " [] {} -> ");
    let goals = vec![(FIRST, vec![NodeId(1), NodeId(2)])];
    let taken = Change::PlacementReplaced {
        goals,
        outputs: Vec::new(),
        from: 1,
    };
    assert_eq!(shown(&apply(&given_up, taken), 0), "1 [] {} -> 1 2");
}

#[test]
fn a_slot_moves_without_ever_having_fewer_copies() {
    let goals = vec![(FIRST, vec![NodeId(3), NodeId(2)])];
    let taken = Change::PlacementReplaced {
        goals,
        outputs: Vec::new(),
        from: 8,
    };
    let map = apply(&three(), taken);
    assert_eq!(shown(&map, 0), "1 [2] {} -> 3 2");
    let map = apply(
        &map,
        Change::FillsBegun {
            slots: vec![(FIRST, NodeId(3))],
        },
    );
    assert_eq!(shown(&map, 0), "1 [2] {3} -> 3 2");
    assert_eq!(
        map.slots().of(0).placement.term,
        Term(5),
        "a filling changes no term"
    );
    let map = apply(
        &map,
        sync(SyncChangeOrigin::Owner(NodeId(1)), FIRST, 5, &[], &[(3, 7)]),
    );
    assert_eq!(shown(&map, 0), "1 [2 3] {} -> 3 2");
    let map = apply(
        &map,
        Change::OwnersMoved {
            slots: vec![(FIRST, NodeId(3))],
        },
    );
    assert_eq!(shown(&map, 0), "3 [1 2] {} -> 3 2");
    let why = refused(
        &map,
        Change::CopiesDropped {
            slots: vec![(FIRST, NodeId(2))],
        },
    );
    assert!(why.contains("is a target of them"), "{why}");
    let map = apply(
        &map,
        Change::CopiesDropped {
            slots: vec![(FIRST, NodeId(1))],
        },
    );
    assert_eq!(shown(&map, 0), "3 [2] {} -> 3 2");
    assert!(map.slots().of(0).placement.is_settled());
}

#[test]
fn the_in_sync_set_changes_only_with_the_current_term_and_fill() {
    let map = three();
    let owner = SyncChangeOrigin::Owner(NodeId(1));
    let why = refused(
        &map,
        sync(SyncChangeOrigin::Owner(NodeId(2)), FIRST, 5, &[2], &[]),
    );
    assert!(why.contains("node-0002 is not the owner"), "{why}");
    let why = refused(&map, sync(owner, FIRST, 4, &[2], &[]));
    assert!(why.contains("term 5") && why.contains("term 4"), "{why}");
    let why = refused(&map, sync(owner, range(0, 6_000), 5, &[2], &[]));
    assert!(why.contains("not the owner"), "{why}");

    let alone = apply(&map, sync(owner, FIRST, 5, &[2], &[]));
    assert_eq!(shown(&alone, 0), "1 [] {} -> 1 2");
    let again = vec![(FIRST, NodeId(2))];
    let first = apply(
        &alone,
        Change::FillsBegun {
            slots: again.clone(),
        },
    );
    let ended = apply(
        &first,
        Change::FillsEnded {
            slots: again.clone(),
        },
    );
    let second = apply(&ended, Change::FillsBegun { slots: again });
    // A late report on the first fill: the term is the same, but the fill is not.
    let why = refused(
        &second,
        sync(SyncChangeOrigin::Controller, FIRST, 6, &[], &[(2, 7)]),
    );
    assert!(why.contains("not being filled since epoch 7"), "{why}");
    let in_sync = apply(
        &second,
        sync(SyncChangeOrigin::Controller, FIRST, 6, &[], &[(2, 9)]),
    );
    assert_eq!(shown(&in_sync, 0), "1 [2] {} -> 1 2");
}

#[test]
fn a_stopping_node_hands_its_slots_to_in_sync_replicas_and_leaves_the_in_sync_set() {
    let map = three();
    assert_eq!(map.next_owner(0), None);
    let (node, stop) = (NodeId(1), |node| Change::MemberStopping { node });
    let stopping = apply(&map, stop(node));
    assert_eq!(
        stopping.member(node).expect("it is").display_state(),
        "stopping"
    );
    assert!(refused(&stopping, stop(node)).contains("already stopping"));
    assert_eq!(changed_slots(&map, &stopping), [FIRST]);
    assert_eq!(stopping.next_owner(0), Some(NodeId(2)));
    assert_eq!(stopping.next_owner(16_383), None, "it is node 3's");
    for slot in [0, 6_000, 16_383] {
        assert_eq!(
            Lookup::new(&stopping).next_owner(slot),
            stopping.next_owner(slot)
        );
    }
    let both = apply(&stopping, stop(NodeId(2)));
    assert_eq!(
        (both.next_owner(0), both.next_owner(6_000)),
        (None, Some(NodeId(3)))
    );
    let slots = vec![(FIRST, NodeId(2))];
    let moved = apply(&stopping, Change::OwnersMoved { slots });
    assert_eq!(shown(&moved, 0), "2 [] {} -> 1 2");
    assert_eq!(moved.next_owner(0), None);
    let gone = apply(&moved, lost(&[1], &[]));
    assert_eq!(shown(&gone, 16_383), "3 [] {} -> 3 1");
    let back = apply(&gone, back(1, 2, 1));
    assert_eq!(back.member(node).expect("it is").display_state(), "up");
}

#[test]
fn a_member_is_removed_only_if_unreferenced_and_its_number_is_not_reused() {
    let map = three();
    let why = refused(&map, Change::MemberRemoved { node: NodeId(2) });
    assert!(
        why.contains("node-0002 still holds, or is a target of, slots 0-5460"),
        "{why}"
    );
    let leaving = Some(Departure::Remove);
    let map = apply(
        &members(2, 1),
        Change::MemberLeaving {
            node: NodeId(2),
            leaving,
        },
    );
    assert_eq!(
        map.member(NodeId(2)).expect("it is").display_state(),
        "draining"
    );
    let map = apply(&map, Change::MemberRemoved { node: NodeId(2) });
    let added = Change::MemberAdded {
        registration: registration(2, "a", 1),
        at_ms: 5,
    };
    let map = apply(&map, added.clone());
    assert_eq!(map.members()[1].id, NodeId(3));
    let why = refused(&map, added);
    assert!(why.contains("node-0002 is already a member"), "{why}");
}

#[test]
fn a_base_node_cannot_become_a_compute_node_while_it_has_slots() {
    let mut registration = registration(1, "zone-1", 1);
    registration.roles = Roles::Compute;
    let node = NodeId(1);
    let why = refused(
        &three(),
        Change::MemberUpdated {
            node,
            registration: registration.clone(),
        },
    );
    assert!(why.contains("drain it first"), "{why}");
    let map = apply(&members(1, 1), Change::MemberUpdated { node, registration });
    let goals = vec![(SlotRange::ALL, vec![node])];
    let why = refused(
        &map,
        Change::PlacementReplaced {
            goals,
            outputs: Vec::new(),
            from: 1,
        },
    );
    assert!(why.contains("is not a base member"), "{why}");
}

#[test]
fn a_push_goes_live_once_and_a_concurrent_push_is_rejected() {
    let begin = |ask: &str| Change::PushBegun {
        store: "s".parse().expect("a name"),
        request: RequestId(ask.into()),
        source: format!("s3://bucket/{ask}"),
        digest: "d".into(),
        allow_missing_replicas: 0,
        options: Default::default(),
        at_ms: 1,
    };
    let store: StoreName = "s".parse().expect("a name");
    let version = VersionId;
    let live = |number, lacking: &[u32]| Change::VersionLive {
        store: store.clone(),
        version: version(number),
        missing: lacking.iter().copied().map(NodeId).collect(),
    };
    let map = apply(&three(), begin("a"));
    let why = refused(&map, begin("b"));
    assert!(
        why.contains("version 1 of store s is being pushed, from s3://bucket/a"),
        "{why}"
    );
    let failed = Change::PushFailed {
        store: store.clone(),
        version: version(1),
        why: "gone".into(),
    };
    let map = apply(&map, failed);
    assert!(map.stores()[&store].live.is_none());
    let why = refused(&map, begin("a"));
    assert!(why.contains("has already ended"), "{why}");
    let map = apply(&map, begin("b"));
    let map = apply(&map, live(2, &[3]));
    let why = refused(&map, live(2, &[]));
    assert!(
        why.contains("version 2 of store s is not being pushed"),
        "{why}"
    );
    let map = apply(&apply(&map, begin("c")), live(3, &[]));
    let rolled = |to| Change::RolledBack {
        store: store.clone(),
        request: RequestId("r".into()),
        to: version(to),
        missing: vec![NodeId(3)],
    };
    let why = refused(&map, rolled(1));
    assert!(why.contains("it keeps [2]"), "{why}");
    let map = apply(&map, rolled(2));
    let it = &map.stores()[&store];
    assert_eq!(it.live.as_ref().expect("live").version, version(2));
    assert_eq!(it.kept[0].version, version(3));
    let caught = |nodes: &[u32]| Change::CaughtUp {
        store: store.clone(),
        version: version(2),
        nodes: nodes.iter().copied().map(NodeId).collect(),
    };
    let why = refused(&map, caught(&[2]));
    assert!(why.contains("do not all lack"), "{why}");
    assert_eq!(apply(&map, caught(&[3])).stores()[&store].lacking, []);
}

#[test]
fn definitions_are_numbered_and_a_name_is_defined_once() {
    let join = |text: &str| Change::DefinitionSet {
        kind: DefinitionKind::Join,
        name: "timeline".into(),
        text: text.into(),
        replace: false,
    };
    let map = apply(&three(), join("a = copy b"));
    let why = refused(&map, join("a = copy c"));
    assert!(
        why.contains("timeline already has another definition"),
        "{why}"
    );
    let replaced = apply(
        &map,
        Change::DefinitionSet {
            kind: DefinitionKind::Join,
            name: "timeline".into(),
            text: "a = copy c".into(),
            replace: true,
        },
    );
    let [before, after] = [&map, &replaced].map(|map| map.joins()["timeline"].clone());
    assert_eq!(after.text, "a = copy c");
    assert!(after.number > before.number, "nodes see that it is another");
    let undefine = Change::DefinitionDropped {
        kind: DefinitionKind::Join,
        name: "timeline".into(),
    };
    let map = apply(&map, undefine.clone());
    refused(&map, undefine);
    let map = apply(&map, join("a = copy c"));
    assert_eq!(map.joins()["timeline"].number, 2);
}

#[test]
fn names_of_spaces_change_atomically_and_only_from_the_expected_values() {
    let set = |name: &str, before: Option<&str>, record: Option<&str>| SpaceSet {
        name: name.to_owned(),
        before: before.map(str::to_owned),
        record: record.map(str::to_owned),
    };
    let sets = |sets: Vec<SpaceSet>| Change::SpacesSet { sets };
    let map = apply(
        &three(),
        sets(vec![
            set("hotels", None, Some("A")),
            set("inns", None, Some("hotels")),
        ]),
    );
    assert_eq!(map.spaces().len(), 2);
    let late = sets(vec![
        set("inns", Some("hotels"), None),
        set("hotels", None, Some("B")),
    ]);
    let why = refused(&map, late);
    assert!(
        why.contains("the definition of hotels has changed"),
        "{why}"
    );
    let map = apply(
        &map,
        sets(vec![
            set("inns", Some("hotels"), None),
            set("hotels", Some("A"), Some("B")),
        ]),
    );
    assert_eq!(map.spaces()["hotels"], "B");
    assert!(!map.spaces().contains_key("inns"));
    assert_eq!(Map::from_text(&map.to_text()).expect("a map"), map);
}

#[test]
fn a_change_whose_reply_was_lost_is_found_in_the_map() {
    let map = three();
    let id = ChangeId("mine".into());
    let change = lost(&[1], &[(FIRST, 2)]);
    let after = map.apply(&change, &id).expect("it fits");
    let text = after.to_text();
    assert_eq!(Map::from_text(&text).expect("a map").last_change(), &id);
    assert_eq!(
        after.member(NodeId(1)).map(|it| it.state),
        Some(MemberState::Down)
    );
}

#[test]
fn lookups_and_differences_agree_with_the_map() {
    let map = three();
    let lookup = Lookup::new(&map);
    for slot in 0..16_384 {
        assert_eq!(lookup.placement(slot), &map.slots().of(slot).placement);
        assert_eq!(lookup.compute_node(slot), lookup.placement(slot).owner);
    }
    let held = lookup.slots_of(NodeId(2)).expect("it has some");
    assert_eq!(
        (&held.owned[..], &held.in_sync[..]),
        (&[range(5461, 10_922)][..], &[FIRST][..])
    );
    assert_eq!(lookup.served_ranges().len(), 3);
    assert_eq!(lookup.served_ranges()[0].replicas, [NodeId(2)]);
    assert_eq!(
        lookup.id_of(&"node-0003".parse().expect("a name")),
        Some(NodeId(3))
    );

    let goals = vec![(range(100, 199), vec![NodeId(3), NodeId(2)])];
    let outputs = vec![(range(0, 99), NodeId(1)), (range(100, 16_383), NodeId(2))];
    let goal = apply(
        &map,
        Change::PlacementReplaced {
            goals,
            outputs,
            from: 8,
        },
    );
    assert_eq!(Lookup::new(&goal).compute_node(100), Some(NodeId(2)));
    let difference = Difference::between(&map, &goal);
    assert!(
        difference.slots.is_empty() && difference.other,
        "a goal changes nothing yet"
    );
    assert_eq!(changed_slots(&map, &goal), [range(100, 199)]);
    let filling = apply(
        &goal,
        Change::FillsBegun {
            slots: vec![(range(100, 149), NodeId(3))],
        },
    );
    let difference = Difference::between(&map, &filling);
    assert_eq!(difference.slots.len(), 1);
    assert_eq!(difference.slots[0].slots, range(100, 149));
    assert!(!difference.slots[0].is_term_new());

    let dead = apply(&filling, lost(&[1], &[(FIRST, 2)]));
    let difference = Difference::between(&map, &dead);
    assert_eq!(difference.updated, [NodeId(1)]);
    let owners: Vec<_> = difference
        .slots
        .iter()
        .filter(|it| it.is_owner_new())
        .collect();
    assert_eq!(owners.len(), 1);
    assert_eq!(owners[0].slots, FIRST);
    let terms: u32 = difference.slots.iter().map(|it| it.slots.count()).sum();
    assert_eq!(terms, 5461 + 5461);
    let changed: Vec<u16> = changed_slots(&map, &dead)
        .into_iter()
        .flat_map(|it| it.slots())
        .collect();
    let differs = |slot: &u16| map.slots().of(*slot).placement != dead.slots().of(*slot).placement;
    assert_eq!(changed, (0..16_384).filter(differs).collect::<Vec<u16>>());
    let lookup = Lookup::new(&dead);
    let alone = &lookup.served_ranges()[0];
    assert_eq!((alone.owner, alone.replicas.len()), (NodeId(2), 0));
}
