//! Scenarios of members that join, die, and are replaced, drained and removed.

use larder_cluster::controller::{ControllerRequest, Decision};
use larder_cluster::map::{
    Change, DiskId, Incarnation, MemberState, NodeId, RequestId, Roles, SlotRange,
};

use super::scene::{Scene, name};
use crate::maps::registration;

fn owners(scene: &Scene) -> Vec<u32> {
    let runs = scene.map.slots().runs().iter();
    let mut owners: Vec<u32> = runs
        .flat_map(|run| run.placement.owner)
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
        .any(|run| run.placement.includes(NodeId(node)))
}

#[test]
fn replicas_take_over_from_a_dead_node_in_one_change_and_it_is_replaced_later() {
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
            .any(|run| run.placement.holders().count() == 1)
    );
    let Decision::Wait {
        wake_at_ms: look_again_at_ms,
        ..
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
            .all(|run| run.placement.holders().count() == 2)
    );
}

#[test]
fn simultaneous_deaths_are_one_change_and_slots_without_holders_wait_for_a_return() {
    let mut scene = Scene::new();
    scene.registered.remove(&name(1));
    scene.registered.remove(&name(2));
    scene.settle();
    assert_eq!(owners(&scene), [1, 3], "node 1 and 2 alone had some");
    let Decision::Wait { blocked, .. } = scene.decide() else {
        panic!("it waits");
    };
    assert!(blocked[0].contains("start node-0001 again"), "{blocked:?}");
    let mut back = registration(2, "zone-2", 1);
    back.incarnation = Incarnation(2);
    scene.register(back);
    scene.settle();
    assert_eq!(owners(&scene), [2, 3]);
    let Decision::Wait { blocked, .. } = scene.decide() else {
        panic!("it waits");
    };
    assert_eq!(blocked, [""; 0]);
}

#[test]
fn a_node_that_restarts_before_its_death_is_detected_still_loses_its_slots() {
    let mut scene = Scene::new();
    let mut back = registration(1, "zone-1", 1);
    back.incarnation = Incarnation(2);
    scene.register(back);
    scene.step();
    assert_eq!(
        scene.map.member(NodeId(1)).expect("it is").state,
        MemberState::Down
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
fn an_empty_disk_is_no_replica_and_a_sole_copy_blocks_on_the_operator() {
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
    let Decision::Wait { blocked, .. } = scene.decide() else {
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
        .filter(|it| it.state == MemberState::Down)
        .map(|it| it.id.0)
        .collect();
    assert_eq!(down.len(), 1, "{blocked:?}");
    let request = ControllerRequest::Remove {
        node: name(down[0]),
        lose_rows: true,
    };
    scene.requests.push((RequestId("lose".into()), request));
    scene.settle();
    scene.requests.push((
        RequestId("keep".into()),
        ControllerRequest::Keep {
            node: name(down[0]),
        },
    ));
    scene.settle();
    assert_eq!(owners(&scene), [1, 2, 3]);
}

#[test]
fn a_drained_node_loses_its_slots_and_a_removed_one_leaves_the_map_when_its_process_ends() {
    let mut scene = Scene::new();
    scene.register(registration(4, "zone-2", 1));
    scene.settle();
    scene.requests.push((
        RequestId("drain".into()),
        ControllerRequest::Drain { node: name(2) },
    ));
    scene.settle();
    assert!(!holds(&scene, 2));
    assert_eq!(
        scene.map.member(NodeId(2)).expect("it is").display_state(),
        "draining"
    );
    scene.requests.push((
        RequestId("remove".into()),
        ControllerRequest::Remove {
            node: name(2),
            lose_rows: false,
        },
    ));
    scene.settle();
    assert!(
        scene.map.member(NodeId(2)).is_some(),
        "its process would register again"
    );
    scene.registered.remove(&name(2));
    scene.settle();
    assert!(scene.map.member(NodeId(2)).is_none());
    assert_eq!(owners(&scene), [1, 3, 4]);
}

#[test]
fn compute_only_nodes_get_outputs_immediately_and_never_slots() {
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
    assert_eq!(share(&scene, 4), 0, "other nodes compute immediately");
    assert!(
        (1..=5)
            .filter(|&node| node != 4)
            .all(|node| share(&scene, node) >= before[node as usize - 1])
    );
}

#[test]
fn slots_are_first_placed_when_enough_nodes_have_registered() {
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
            .all(|run| run.placement.is_settled()),
        "no node has rows yet: nothing is filled"
    );
}

/// The node had a lease and therefore received slots. No owner could fill it, and the slots waited for it.
#[test]
fn a_new_node_receives_no_slots_while_most_holders_cannot_reach_it() {
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
    scene.run_until_idle();
    assert!(scene.map.is_up(NodeId(4)) && !holds(&scene, 4));
    assert_eq!(owners(&scene), [1, 2, 3]);
    tell(&mut scene, &[2]);
    scene.run_until_idle();
    assert!(holds(&scene, 4), "most reach it");
    scene.settle();
    let waiting = |owner: u32| {
        let runs = scene.map.slots().runs().iter();
        let mut waiting = runs.filter(|run| {
            let placed = &run.placement;
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
        "an owner that cannot reach the node does not begin fills"
    );
    tell(&mut scene, &[1, 2, 3]);
    scene.run_until_idle();
    assert!(holds(&scene, 4), "the node keeps its slots");
    tell(&mut scene, &[]);
    scene.settle();
    assert_eq!(owners(&scene), [1, 2, 3, 4]);
}
