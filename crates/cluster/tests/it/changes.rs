//! The effects of map changes, and the changes that are rejected.

use larder_cluster::map::{
    AskId, AtTerm, By, Change, ChangeId, Difference, DiskId, Epoch, Filling, Incarnation, Leaving,
    Lookup, Map, NodeId, Roles, SlotRange, SpaceSet, State, Term, What, placed_anew,
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

fn sync(by: By, slots: SlotRange, term: u64, out: &[u32], into: &[(u32, u64)]) -> Change {
    let into = into.iter().map(|&(node, began)| Filling {
        node: NodeId(node),
        began: Epoch(began),
    });
    Change::SyncChanged {
        by,
        slots: vec![AtTerm {
            slots,
            term: Term(term),
            out: out.iter().copied().map(NodeId).collect(),
            into: into.collect(),
        }],
    }
}

/// Formats a slot's placement as `owner [in sync] filling -> goal`.
fn shown(map: &Map, slot: u16) -> String {
    let placed = &map.slots().of(slot).placed;
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
fn a_lost_owner_is_replaced_by_a_replica_in_sync_and_what_is_to_be_stays() {
    let map = three();
    let why = refused(&map, lost(&[1], &[]));
    assert!(why.contains("nobody is made the owner"), "{why}");
    let why = refused(&map, lost(&[1], &[(FIRST, 3)]));
    assert!(why.contains("3 is not in sync"), "{why}");
    let why = refused(
        &map,
        lost(&[1], &[(range(0, 9), 2), (range(5461, 5461), 3)]),
    );
    assert!(why.contains("owner who is not lost"), "{why}");

    let after = apply(&map, lost(&[1], &[(FIRST, 2)]));
    assert_eq!(shown(&after, 0), "2 [] {} -> 1 2");
    assert_eq!(shown(&after, 16_383), "3 [] {} -> 3 1");
    assert_eq!(shown(&after, 6_000), "2 [3] {} -> 2 3");
    assert_eq!(after.slots().of(0).placed.term, Term(6));
    assert_eq!(
        after.slots().of(6_000).placed.term,
        Term(5),
        "nothing changed there"
    );
    assert!(!after.slots().of(0).placed.is_settled());
}

#[test]
fn where_all_who_have_a_slot_die_together_the_first_to_return_owns_it() {
    let map = three();
    let dark = apply(&map, lost(&[1, 2], &[(range(5461, 10922), 3)]));
    assert_eq!(shown(&dark, 0), "1 [2] {} -> 1 2", "nobody could take over");
    let lookup = Lookup::new(&dark);
    assert!(lookup.served().iter().all(|it| it.slots.from > 5460));

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
    assert!(why.contains("life 1"), "{why}");
}

#[test]
fn a_node_that_lags_behind_others_writes_is_no_owner_when_it_returns_first() {
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

    let why = refused(&back_1, Change::RowsGivenUp { node: NodeId(3) });
    assert!(why.contains("only then"), "{why}");
    let given_up = apply(&back_1, Change::RowsGivenUp { node: NodeId(2) });
    assert_eq!(shown(&given_up, 0), " [] {} -> ");
    let goals = vec![(FIRST, vec![NodeId(1), NodeId(2)])];
    let taken = Change::PlacementTaken {
        goals,
        outputs: Vec::new(),
        from: 1,
    };
    assert_eq!(shown(&apply(&given_up, taken), 0), "1 [] {} -> 1 2");
}

#[test]
fn a_slot_moves_without_a_moment_of_fewer_copies() {
    let goals = vec![(FIRST, vec![NodeId(3), NodeId(2)])];
    let taken = Change::PlacementTaken {
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
        map.slots().of(0).placed.term,
        Term(5),
        "a filling changes no term"
    );
    let map = apply(&map, sync(By::Owner(NodeId(1)), FIRST, 5, &[], &[(3, 7)]));
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
    assert!(why.contains("is to have them"), "{why}");
    let map = apply(
        &map,
        Change::CopiesDropped {
            slots: vec![(FIRST, NodeId(1))],
        },
    );
    assert_eq!(shown(&map, 0), "3 [2] {} -> 3 2");
    assert!(map.slots().of(0).placed.is_settled());
}

#[test]
fn only_who_knows_the_term_and_the_filling_changes_who_is_in_sync() {
    let map = three();
    let owner = By::Owner(NodeId(1));
    let why = refused(&map, sync(By::Owner(NodeId(2)), FIRST, 5, &[2], &[]));
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
    let why = refused(&second, sync(By::Controller, FIRST, 6, &[], &[(2, 7)]));
    assert!(why.contains("not being filled since epoch 7"), "{why}");
    let in_sync = apply(&second, sync(By::Controller, FIRST, 6, &[], &[(2, 9)]));
    assert_eq!(shown(&in_sync, 0), "1 [2] {} -> 1 2");
}

#[test]
fn a_node_that_stops_gives_what_it_owns_to_who_is_in_sync_and_nobody_waits_for_it() {
    let map = three();
    assert_eq!(map.heir(0), None);
    let (node, stop) = (NodeId(1), |node| Change::MemberStopping { node });
    let stopping = apply(&map, stop(node));
    assert_eq!(stopping.member(node).expect("it is").shown(), "stopping");
    assert!(refused(&stopping, stop(node)).contains("stops already"));
    assert_eq!(placed_anew(&map, &stopping), [FIRST]);
    assert_eq!(stopping.heir(0), Some(NodeId(2)));
    assert_eq!(stopping.heir(16_383), None, "it is node 3's");
    for slot in [0, 6_000, 16_383] {
        assert_eq!(Lookup::new(&stopping).heir(slot), stopping.heir(slot));
    }
    let both = apply(&stopping, stop(NodeId(2)));
    assert_eq!((both.heir(0), both.heir(6_000)), (None, Some(NodeId(3))));
    let slots = vec![(FIRST, NodeId(2))];
    let moved = apply(&stopping, Change::OwnersMoved { slots });
    assert_eq!(shown(&moved, 0), "2 [] {} -> 1 2");
    assert_eq!(moved.heir(0), None);
    let gone = apply(&moved, lost(&[1], &[]));
    assert_eq!(shown(&gone, 16_383), "3 [] {} -> 3 1");
    let back = apply(&gone, back(1, 2, 1));
    assert_eq!(back.member(node).expect("it is").shown(), "up");
}

#[test]
fn a_member_goes_only_when_nothing_names_it_and_its_number_is_not_given_again() {
    let map = three();
    let why = refused(&map, Change::MemberGone { node: NodeId(2) });
    assert!(
        why.contains("node-0002 still has, or is to have, slots 0-5460"),
        "{why}"
    );
    let leaving = Some(Leaving::Remove);
    let map = apply(
        &members(2, 1),
        Change::MemberLeaving {
            node: NodeId(2),
            leaving,
        },
    );
    assert_eq!(map.member(NodeId(2)).expect("it is").shown(), "draining");
    let map = apply(&map, Change::MemberGone { node: NodeId(2) });
    let added = Change::MemberAdded {
        registration: registration(2, "a", 1),
        at_ms: 5,
    };
    let map = apply(&map, added.clone());
    assert_eq!(map.members()[1].id, NodeId(3));
    let why = refused(&map, added);
    assert!(why.contains("node-0002 is a member already"), "{why}");
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
        Change::PlacementTaken {
            goals,
            outputs: Vec::new(),
            from: 1,
        },
    );
    assert!(why.contains("no member that may have slots"), "{why}");
}

#[test]
fn a_push_goes_live_once_and_a_second_push_of_the_store_waits() {
    let begin = |ask: &str| Change::PushBegun {
        store: "s".parse().expect("a name"),
        ask: AskId(ask.into()),
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
        lacking: lacking.iter().copied().map(NodeId).collect(),
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
    assert!(why.contains("has ended already"), "{why}");
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
        ask: AskId("r".into()),
        to: version(to),
        lacking: vec![NodeId(3)],
    };
    let why = refused(&map, rolled(1));
    assert!(why.contains("these are: [2]"), "{why}");
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
    let join = |text: &str| Change::Defined {
        what: What::Join,
        name: "timeline".into(),
        text: text.into(),
        replace: false,
    };
    let map = apply(&three(), join("a = copy b"));
    let why = refused(&map, join("a = copy c"));
    assert!(why.contains("timeline is defined already"), "{why}");
    let replaced = apply(
        &map,
        Change::Defined {
            what: What::Join,
            name: "timeline".into(),
            text: "a = copy c".into(),
            replace: true,
        },
    );
    let [before, after] = [&map, &replaced].map(|map| map.joins()["timeline"].clone());
    assert_eq!(after.text, "a = copy c");
    assert!(after.number > before.number, "nodes see that it is another");
    let undefine = Change::Undefined {
        what: What::Join,
        name: "timeline".into(),
    };
    let map = apply(&map, undefine.clone());
    refused(&map, undefine);
    let map = apply(&map, join("a = copy c"));
    assert_eq!(map.joins()["timeline"].number, 2);
}

#[test]
fn names_of_spaces_change_together_and_only_from_what_they_were() {
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
    assert!(why.contains("hotels stands for has changed"), "{why}");
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
        Some(State::Down)
    );
}

#[test]
fn lookups_and_differences_say_what_the_map_says() {
    let map = three();
    let lookup = Lookup::new(&map);
    for slot in 0..16_384 {
        assert_eq!(lookup.placed(slot), &map.slots().of(slot).placed);
        assert_eq!(lookup.computes(slot), lookup.placed(slot).owner);
    }
    let held = lookup.held(NodeId(2)).expect("it has some");
    assert_eq!(
        (&held.owned[..], &held.in_sync[..]),
        (&[range(5461, 10_922)][..], &[FIRST][..])
    );
    assert_eq!(lookup.served().len(), 3);
    assert_eq!(lookup.served()[0].replicas, [NodeId(2)]);
    assert_eq!(
        lookup.id_of(&"node-0003".parse().expect("a name")),
        Some(NodeId(3))
    );

    let goals = vec![(range(100, 199), vec![NodeId(3), NodeId(2)])];
    let outputs = vec![(range(0, 99), NodeId(1)), (range(100, 16_383), NodeId(2))];
    let goal = apply(
        &map,
        Change::PlacementTaken {
            goals,
            outputs,
            from: 8,
        },
    );
    assert_eq!(Lookup::new(&goal).computes(100), Some(NodeId(2)));
    let difference = Difference::between(&map, &goal);
    assert!(
        difference.slots.is_empty() && difference.other,
        "a goal changes nothing yet"
    );
    assert_eq!(placed_anew(&map, &goal), [range(100, 199)]);
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
    let anew: Vec<u16> = placed_anew(&map, &dead)
        .into_iter()
        .flat_map(|it| it.slots())
        .collect();
    let differs = |slot: &u16| map.slots().of(*slot).placed != dead.slots().of(*slot).placed;
    assert_eq!(anew, (0..16_384).filter(differs).collect::<Vec<u16>>());
    let lookup = Lookup::new(&dead);
    let alone = &lookup.served()[0];
    assert_eq!((alone.owner, alone.replicas.len()), (NodeId(2), 0));
}
