//! Scenarios of members that join, die, and are replaced, drained and removed.

use larder_cluster::controller::{Ask, Decision};
use larder_cluster::map::{AskId, Change, DiskId, Incarnation, NodeId, Roles, SlotRange, State};

use super::scene::{Scene, name};
use crate::maps::registration;

fn owners(scene: &Scene) -> Vec<u32> {
    let runs = scene.map.slots().runs().iter();
    let mut owners: Vec<u32> = runs
        .flat_map(|run| run.placed.owner)
        .map(|it| it.0)
        .collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

fn holds(scene: &Scene, node: u32) -> bool {
    scene
        .map
        .slots()
        .runs()
        .iter()
        .any(|run| run.placed.names(NodeId(node)))
}

#[test]
fn a_dead_node_is_followed_at_once_in_one_change_and_replaced_after_a_time() {
    let mut scene = Scene::new();
    scene.register(registration(4, "zone-1", 1));
    scene.settle();
    assert_eq!(owners(&scene), [1, 2, 3, 4]);
    let epoch = scene.map.epoch();
    scene.registered.remove(&name(2));
    assert!(matches!(
        scene.decide(),
        Decision::Change {
            change: Change::MembersLost { .. },
            ..
        }
    ));
    scene.settle();
    assert_eq!(
        scene.map.epoch().0,
        epoch.0 + 1,
        "one change, and nothing else until it has been away for long"
    );
    assert_eq!(owners(&scene), [1, 3, 4]);
    assert!(
        scene
            .map
            .slots()
            .runs()
            .iter()
            .any(|run| run.placed.holders().count() == 1)
    );
    let Decision::Nothing {
        look_again_at_ms, ..
    } = scene.decide()
    else {
        panic!("it waits");
    };
    scene.now_ms = look_again_at_ms.expect("it knows how long");
    scene.settle();
    assert!(!holds(&scene, 2));
    assert!(
        scene
            .map
            .slots()
            .runs()
            .iter()
            .all(|run| run.placed.holders().count() == 2)
    );
}

#[test]
fn several_that_die_at_once_are_one_change_and_slots_of_nobody_wait_for_the_first_to_return() {
    let mut scene = Scene::new();
    scene.registered.remove(&name(1));
    scene.registered.remove(&name(2));
    scene.settle();
    assert_eq!(owners(&scene), [1, 3], "node 1 and 2 alone had some");
    let Decision::Nothing { blocked, .. } = scene.decide() else {
        panic!("it waits");
    };
    assert!(blocked[0].contains("start node-0001 again"), "{blocked:?}");
    let mut back = registration(2, "zone-2", 1);
    back.incarnation = Incarnation(2);
    scene.register(back);
    scene.settle();
    assert_eq!(owners(&scene), [2, 3]);
    let Decision::Nothing { blocked, .. } = scene.decide() else {
        panic!("it waits");
    };
    assert_eq!(blocked, [""; 0]);
}

#[test]
fn a_node_that_returns_before_its_death_was_seen_loses_its_slots_all_the_same() {
    let mut scene = Scene::new();
    let mut back = registration(1, "zone-1", 1);
    back.incarnation = Incarnation(2);
    scene.register(back);
    scene.step();
    assert_eq!(
        scene.map.member(NodeId(1)).expect("it is").state,
        State::Down
    );
    assert!(!owners(&scene).contains(&1));
    scene.settle();
    assert_eq!(
        owners(&scene),
        [1, 2, 3],
        "it is filled again, and owns what it is to own"
    );
}

#[test]
fn an_empty_disk_under_an_old_name_is_no_replica_and_a_person_is_asked_where_it_was_the_only_one() {
    let mut scene = Scene::new();
    scene.registered.clear();
    scene.settle();
    for number in [1, 2, 3] {
        let mut back = registration(number, &format!("zone-{}", number % 3), 1);
        back.incarnation = Incarnation(2);
        if number != 3 {
            back.disk = DiskId(1000 + u64::from(number));
        }
        scene.register(back);
    }
    scene.settle();
    // Only nodes 1 and 2 held slots 0 to 5460. The first of them to be examined is admitted without rows, so the other is then
    // the only holder.
    let Decision::Nothing { blocked, .. } = scene.decide() else {
        panic!("it waits");
    };
    assert!(
        blocked.iter().any(|words| words.contains("--lose-rows")),
        "{blocked:?}"
    );
    let down: Vec<u32> = scene
        .map
        .members()
        .iter()
        .filter(|it| it.state == State::Down)
        .map(|it| it.id.0)
        .collect();
    assert_eq!(down.len(), 1, "{blocked:?}");
    let ask = Ask::Remove {
        node: name(down[0]),
        lose_rows: true,
    };
    scene.asks.push((AskId("lose".into()), ask));
    scene.settle();
    scene.asks.push((
        AskId("keep".into()),
        Ask::Keep {
            node: name(down[0]),
        },
    ));
    scene.settle();
    assert_eq!(owners(&scene), [1, 2, 3]);
}

#[test]
fn a_drained_node_ends_without_slots_and_a_removed_one_is_forgotten_when_its_process_has_ended() {
    let mut scene = Scene::new();
    scene.register(registration(4, "zone-2", 1));
    scene.settle();
    scene
        .asks
        .push((AskId("drain".into()), Ask::Drain { node: name(2) }));
    scene.settle();
    assert!(!holds(&scene, 2));
    assert_eq!(
        scene.map.member(NodeId(2)).expect("it is").shown(),
        "draining"
    );
    scene.asks.push((
        AskId("remove".into()),
        Ask::Remove {
            node: name(2),
            lose_rows: false,
        },
    ));
    scene.settle();
    assert!(
        scene.map.member(NodeId(2)).is_some(),
        "its process would register anew"
    );
    scene.registered.remove(&name(2));
    scene.settle();
    assert!(scene.map.member(NodeId(2)).is_none());
    assert_eq!(owners(&scene), [1, 3, 4]);
}

#[test]
fn nodes_that_compute_alone_get_outputs_at_once_and_never_slots() {
    let mut scene = Scene::new();
    assert_eq!(scene.map.outputs().len(), 0, "owners compute");
    for number in [4, 5] {
        let mut compute = registration(number, "zone-1", 1);
        compute.roles = Roles::Compute;
        scene.register(compute);
    }
    scene.settle();
    let share = |scene: &Scene, node: u32| -> u32 {
        let of_node = scene.map.outputs().filter(|(_, it)| *it == NodeId(node));
        of_node.map(|(slots, _)| SlotRange::count(slots)).sum()
    };
    for node in 1..=5 {
        let share = share(&scene, node);
        assert!((3100..3500).contains(&share), "{node}: {share}");
    }
    assert!(!holds(&scene, 4) && !holds(&scene, 5));
    let before: Vec<u32> = (1..=5).map(|node| share(&scene, node)).collect();
    scene.registered.remove(&name(4));
    scene.settle();
    assert_eq!(share(&scene, 4), 0, "others compute at once");
    assert!(
        (1..=5)
            .filter(|&node| node != 4)
            .all(|node| share(&scene, node) >= before[node as usize - 1])
    );
}

#[test]
fn slots_are_given_out_when_enough_nodes_have_come_and_then_to_all_of_them() {
    let mut scene = Scene::empty(3);
    for number in [1, 2] {
        scene.register(registration(number, "zone-1", 1));
        scene.settle();
        assert_eq!(owners(&scene), [0; 0]);
    }
    scene.register(registration(3, "zone-1", 1));
    scene.settle();
    assert_eq!(owners(&scene), [1, 2, 3]);
    assert!(
        scene
            .map
            .slots()
            .runs()
            .iter()
            .all(|run| run.placed.is_settled()),
        "nobody has rows yet: nothing is filled"
    );
}

/// The node had a lease and therefore received slots. No owner could fill it, and the slots waited for it.
#[test]
fn a_new_node_that_most_cannot_reach_is_given_nothing_until_they_can() {
    let mut scene = Scene::new();
    let tell = |scene: &mut Scene, by: &[u32]| {
        for number in 1..=3 {
            let incarnation = scene.registered[&name(number)].incarnation;
            let report = scene.reports.entry(name(number)).or_default();
            report.incarnation = incarnation;
            report.unreached.clear();
            if by.contains(&number) {
                let why = "no route to host".to_owned();
                report.unreached.insert(name(4), why);
            }
        }
    };
    tell(&mut scene, &[1, 3]);
    scene.register(registration(4, "zone-1", 1));
    scene.rest();
    assert!(scene.map.is_up(NodeId(4)) && !holds(&scene, 4));
    assert_eq!(owners(&scene), [1, 2, 3]);
    tell(&mut scene, &[2]);
    scene.rest();
    assert!(holds(&scene, 4), "most reach it");
    scene.settle();
    let waiting = |owner: u32| {
        let runs = scene.map.slots().runs().iter();
        let mut waiting = runs.filter(|run| {
            let placed = &run.placed;
            placed.owner == Some(NodeId(owner))
                && placed.goal().contains(&NodeId(4))
                && !placed.is_holder(NodeId(4))
                && placed.filling(NodeId(4)).is_none()
        });
        waiting.next().is_some()
    };
    assert_eq!(
        [1, 2, 3].map(waiting),
        [false, true, false],
        "who cannot reach it does not begin"
    );
    tell(&mut scene, &[1, 2, 3]);
    scene.rest();
    assert!(holds(&scene, 4), "what it has it keeps");
    tell(&mut scene, &[]);
    scene.settle();
    assert_eq!(owners(&scene), [1, 2, 3, 4]);
}
