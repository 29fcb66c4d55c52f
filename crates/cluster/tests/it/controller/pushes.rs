//! The lifecycle of pushes: each possible result.

use std::collections::BTreeMap;

use larder_cluster::controller::{Ask, Decision, Progress, Pulled};
use larder_cluster::map::{AskId, Change, ChangeId, Epoch, Incarnation, Map, NodeId};
use larder_types::{StoreName, VersionId};

use super::scene::{Scene, name};
use crate::maps::registration;

fn store() -> StoreName {
    "s".parse().expect("a name")
}

fn ready(digest: &str) -> Progress {
    Progress::Ready {
        digest: digest.into(),
    }
}

impl Scene {
    fn push(&mut self, id: &str, allow_missing_replicas: u32) {
        let ask = Ask::Push {
            store: store(),
            source: format!("s3://{id}"),
            digest: id.into(),
            allow_missing_replicas,
            options: BTreeMap::new(),
        };
        self.asks.push((AskId(id.into()), ask));
    }

    fn report(&mut self, number: u32, version: u64, progress: Progress) {
        let report = self.reports.entry(name(number)).or_default();
        report.incarnation = Incarnation(1);
        report.epoch = self.map.epoch();
        report
            .versions
            .retain(|it| it.version != VersionId(version));
        report.versions.push(Pulled {
            store: store(),
            version: VersionId(version),
            progress,
        });
    }

    fn live(&self) -> Option<u64> {
        Some(self.map.stores().get(&store())?.live.as_ref()?.version.0)
    }
}

#[test]
fn a_version_goes_live_when_the_last_holder_has_it_and_then_the_wish_is_answered() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    for number in [1, 2] {
        assert_eq!(scene.rest(), []);
        scene.report(number, 1, ready("a"));
    }
    assert_eq!((scene.rest(), scene.live()), (vec![], None));
    scene.report(3, 1, ready("a"));
    let answers = scene.rest();
    assert_eq!(
        answers,
        [(
            "a".to_owned(),
            Ok("version 1 of store s is live".to_owned())
        )]
    );
    assert_eq!(scene.live(), Some(1));
    // The reply was lost: the request is still stored, and is not executed twice.
    scene.push("a", 0);
    assert_eq!(scene.rest(), answers);
    assert_eq!(scene.map.stores()[&store()].next, VersionId(2));
}

#[test]
fn one_failure_ends_the_push_everywhere_and_so_does_another_digest() {
    let mut scene = Scene::new();
    for (progress, words) in [
        (
            Progress::Failed {
                why: "the disk is full".into(),
            },
            "node-0003: the disk is full",
        ),
        (ready("other"), "node-0003: it pulled digest other"),
    ] {
        let id = words.len().to_string();
        scene.push(&id, 0);
        scene.rest();
        let version = scene.map.stores()[&store()]
            .push
            .as_ref()
            .expect("it is pushed")
            .version
            .version
            .0;
        scene.report(1, version, ready(&id));
        scene.report(3, version, progress);
        let answers = scene.rest();
        let why = answers[0].1.as_ref().expect_err("it failed");
        assert!(why.contains(words), "{why}");
        assert_eq!(scene.live(), None);
    }
}

#[test]
fn as_many_as_allowed_may_miss_a_version_where_others_cover_their_slots() {
    let mut scene = Scene::new();
    scene.push("a", 1);
    scene.rest();
    scene.report(
        3,
        1,
        Progress::Failed {
            why: "no route".into(),
        },
    );
    scene.report(1, 1, ready("a"));
    assert_eq!(scene.rest(), []);
    scene.report(2, 1, ready("a"));
    assert!(scene.rest()[0].1.is_ok());
    assert_eq!(scene.map.stores()[&store()].lacking, [NodeId(3)]);
    scene.report(3, 1, ready("a"));
    scene.rest();
    assert_eq!(scene.map.stores()[&store()].lacking, [], "it has caught up");

    scene.push("b", 2);
    scene.rest();
    scene.report(
        2,
        2,
        Progress::Failed {
            why: "no route".into(),
        },
    );
    scene.report(
        3,
        2,
        Progress::Failed {
            why: "no route".into(),
        },
    );
    let answers = scene.rest();
    let why = answers[0]
        .1
        .as_ref()
        .expect_err("2 and 3 alone have some slots");
    assert!(why.contains("no other node has slot 5461"), "{why}");
    assert_eq!(scene.live(), Some(1));
}

#[test]
fn a_second_push_of_the_store_is_refused_by_name_while_the_first_goes_on() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    scene.push("b", 0);
    let answers = scene.rest();
    let why = answers[0].1.as_ref().expect_err("the first is under way");
    assert!(
        answers[0].0 == "b" && why.contains("from s3://a"),
        "{answers:?}"
    );
    (1..=3).for_each(|number| scene.report(number, 1, ready("a")));
    assert!(scene.rest()[0].1.is_ok());
}

#[test]
fn a_push_of_which_nobody_tells_is_given_up_and_one_that_goes_on_slowly_is_not() {
    let mut scene = Scene::new();
    let silence_ms = scene.map.settings().push_silence_ms;
    scene.push("a", 0);
    scene.rest();
    for step in 1..=4 {
        scene.report(
            1,
            1,
            Progress::Pulling {
                bytes: step * 100,
                of_bytes: 1_000,
            },
        );
        scene.now_ms += silence_ms / 2;
        assert_eq!(scene.rest(), []);
    }
    scene.now_ms += silence_ms;
    let answers = scene.rest();
    let why = answers[0].1.as_ref().expect_err("silence");
    assert!(
        why.contains("no node told of progress for 1800 seconds; waiting for node-0001"),
        "{why}"
    );
}

#[test]
fn a_node_that_dies_during_a_push_is_not_waited_for() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    scene.rest();
    scene.report(1, 1, ready("a"));
    scene.report(2, 1, ready("a"));
    scene.registered.remove(&name(3));
    assert!(
        scene.rest()[0].1.is_ok(),
        "its slots have owners who have the version"
    );
    assert_eq!(scene.live(), Some(1));
}

#[test]
fn a_rollback_needs_nodes_that_have_the_version() {
    let mut scene = Scene::new();
    for version in [1, 2] {
        let id = format!("push-{version}");
        scene.push(&id, 0);
        scene.rest();
        (1..=3).for_each(|number| scene.report(number, version, ready(&id)));
        scene.rest();
    }
    assert_eq!(scene.live(), Some(2));
    let roll_back = |scene: &mut Scene, id: &str| {
        scene.asks.push((
            AskId(id.into()),
            Ask::RollBack {
                store: store(),
                to: None,
            },
        ));
        scene.rest()
    };
    let kept = scene.reports.clone();
    for number in [1, 2] {
        scene.report(
            number,
            1,
            Progress::Failed {
                why: "damaged".into(),
            },
        );
    }
    let answers = roll_back(&mut scene, "r1");
    assert!(
        answers[0]
            .1
            .as_ref()
            .is_err_and(|why| why.contains("no node that has slot 0")),
        "{answers:?}"
    );
    scene.reports = kept;
    assert!(roll_back(&mut scene, "r2")[0].1.is_ok());
    assert_eq!(scene.live(), Some(1));
}

#[test]
fn a_controller_that_stops_at_any_step_is_followed_by_one_that_ends_alike() {
    // The controller is stateless. The next one can lack only the reply to the last change, which the map contains.
    let mut scene = Scene::new();
    scene.push("a", 0);
    let mut steps = 0;
    while let Decision::Change { change, .. } = scene.decide() {
        let id = ChangeId(format!("{steps}"));
        let after = scene.map.apply(&change, &id).expect("it fits");
        assert_eq!(after.last_change(), &id);
        scene.map = Map::from_text(&after.to_text()).expect("a map");
        let next = scene.decide();
        assert!(
            !matches!(&next, Decision::Change { change: next, .. } if *next == change),
            "{next:?}"
        );
        let again = scene.map.apply(&change, &id);
        assert!(
            again.is_err() || matches!(change, Change::PlacementTaken { .. }),
            "{change:?} is not made twice"
        );
        steps += 1;
    }
    assert!(steps > 0);
}

#[test]
fn a_node_that_is_given_slots_counts_only_when_it_has_pulled_their_partitions() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    scene.rest();
    for number in [1, 2, 3] {
        scene.report(number, 1, ready("a"));
    }
    scene.rest();
    assert_eq!(scene.live(), Some(1));
    scene.register(registration(4, "zone-1", 1));
    scene.rest();
    let filled = |scene: &Scene| {
        let runs = scene.map.slots().runs().iter();
        runs.filter(|run| !run.placed.filling.is_empty()).count()
    };
    let before = filled(&scene);
    assert!(before > 0, "the fourth node is given slots");
    scene.report(4, 1, ready("a"));
    let report = scene.reports.get_mut(&name(4)).expect("it reported");
    report.epoch = Epoch(1);
    scene.tell_that_all_are_filled();
    scene.rest();
    assert_eq!(filled(&scene), before, "what it has is of the slots before");
    while filled(&scene) > 0 {
        scene.report(4, 1, ready("a"));
        scene.tell_that_all_are_filled();
        scene.rest();
    }
    let member = scene.map.member_named(&name(4)).expect("a member").id;
    let runs = scene.map.slots().runs();
    assert!(runs.iter().any(|run| run.placed.owner == Some(member)));
}
