//! The lifecycle of pushes: each possible result.

use std::collections::BTreeMap;

use larder_cluster::controller::{ControllerRequest, Decision, Progress, VersionProgress};
use larder_cluster::map::{Change, ChangeId, Epoch, Incarnation, Map, NodeId, RequestId};
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
        let request = ControllerRequest::Push {
            store: store(),
            source: format!("s3://{id}"),
            digest: id.into(),
            allow_missing_replicas,
            options: BTreeMap::new(),
        };
        self.requests.push((RequestId(id.into()), request));
    }

    fn report(&mut self, number: u32, version: u64, progress: Progress) {
        let report = self.reports.entry(name(number)).or_default();
        report.incarnation = Incarnation(1);
        report.epoch = self.map.epoch();
        report
            .versions
            .retain(|it| it.version != VersionId(version));
        report.versions.push(VersionProgress {
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
fn a_version_goes_live_when_the_last_holder_has_it_and_the_request_is_answered() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    for number in [1, 2] {
        assert_eq!(scene.run_until_idle(), []);
        scene.report(number, 1, ready("a"));
    }
    assert_eq!((scene.run_until_idle(), scene.live()), (vec![], None));
    scene.report(3, 1, ready("a"));
    let answers = scene.run_until_idle();
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
    assert_eq!(scene.run_until_idle(), answers);
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
        scene.run_until_idle();
        let version = scene.map.stores()[&store()]
            .push
            .as_ref()
            .expect("it is pushed")
            .version
            .version
            .0;
        scene.report(1, version, ready(&id));
        scene.report(3, version, progress);
        let answers = scene.run_until_idle();
        let why = answers[0].1.as_ref().expect_err("it failed");
        assert!(why.contains(words), "{why}");
        assert_eq!(scene.live(), None);
    }
}

#[test]
fn the_allowed_number_of_holders_may_lack_a_version_if_others_cover_their_slots() {
    let mut scene = Scene::new();
    scene.push("a", 1);
    scene.run_until_idle();
    scene.report(
        3,
        1,
        Progress::Failed {
            why: "no route".into(),
        },
    );
    scene.report(1, 1, ready("a"));
    assert_eq!(scene.run_until_idle(), []);
    scene.report(2, 1, ready("a"));
    assert!(scene.run_until_idle()[0].1.is_ok());
    assert_eq!(scene.map.stores()[&store()].lacking, [NodeId(3)]);
    scene.report(3, 1, ready("a"));
    scene.run_until_idle();
    assert_eq!(scene.map.stores()[&store()].lacking, [], "it has caught up");

    scene.push("b", 2);
    scene.run_until_idle();
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
    let answers = scene.run_until_idle();
    let why = answers[0]
        .1
        .as_ref()
        .expect_err("2 and 3 alone have some slots");
    assert!(why.contains("no other node has slot 5461"), "{why}");
    assert_eq!(scene.live(), Some(1));
}

#[test]
fn a_second_push_of_a_store_is_rejected_while_the_first_is_in_progress() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    scene.push("b", 0);
    let answers = scene.run_until_idle();
    let why = answers[0].1.as_ref().expect_err("the first is under way");
    assert!(
        answers[0].0 == "b" && why.contains("from s3://a"),
        "{answers:?}"
    );
    (1..=3).for_each(|number| scene.report(number, 1, ready("a")));
    assert!(scene.run_until_idle()[0].1.is_ok());
}

#[test]
fn a_push_without_progress_is_aborted_and_a_slow_one_is_not() {
    let mut scene = Scene::new();
    let silence_ms = scene.map.settings().push_silence_ms;
    scene.push("a", 0);
    scene.run_until_idle();
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
        assert_eq!(scene.run_until_idle(), []);
    }
    scene.now_ms += silence_ms;
    let answers = scene.run_until_idle();
    let why = answers[0].1.as_ref().expect_err("silence");
    assert!(
        why.contains("no node reported progress for 1800 seconds; waiting for node-0001"),
        "{why}"
    );
}

#[test]
fn a_push_does_not_wait_for_a_node_that_dies() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    scene.run_until_idle();
    scene.report(1, 1, ready("a"));
    scene.report(2, 1, ready("a"));
    scene.registered.remove(&name(3));
    assert!(
        scene.run_until_idle()[0].1.is_ok(),
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
        scene.run_until_idle();
        (1..=3).for_each(|number| scene.report(number, version, ready(&id)));
        scene.run_until_idle();
    }
    assert_eq!(scene.live(), Some(2));
    let roll_back = |scene: &mut Scene, id: &str| {
        scene.requests.push((
            RequestId(id.into()),
            ControllerRequest::RollBack {
                store: store(),
                to: None,
            },
        ));
        scene.run_until_idle()
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
fn a_controller_replaced_at_any_step_reaches_the_same_result() {
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
            again.is_err() || matches!(change, Change::PlacementReplaced { .. }),
            "{change:?} is not made twice"
        );
        steps += 1;
    }
    assert!(steps > 0);
}

#[test]
fn a_new_holder_counts_only_once_it_has_pulled_the_partitions_of_its_slots() {
    let mut scene = Scene::new();
    scene.push("a", 0);
    scene.run_until_idle();
    for number in [1, 2, 3] {
        scene.report(number, 1, ready("a"));
    }
    scene.run_until_idle();
    assert_eq!(scene.live(), Some(1));
    scene.register(registration(4, "zone-1", 1));
    scene.run_until_idle();
    let filled = |scene: &Scene| {
        let runs = scene.map.slots().runs().iter();
        runs.filter(|run| !run.placement.filling.is_empty()).count()
    };
    let before = filled(&scene);
    assert!(before > 0, "the fourth node is given slots");
    scene.report(4, 1, ready("a"));
    let report = scene.reports.get_mut(&name(4)).expect("it reported");
    report.epoch = Epoch(1);
    scene.report_fills_complete();
    scene.run_until_idle();
    assert_eq!(
        filled(&scene),
        before,
        "the pulled partitions are of the previous slots"
    );
    while filled(&scene) > 0 {
        scene.report(4, 1, ready("a"));
        scene.report_fills_complete();
        scene.run_until_idle();
    }
    let member = scene.map.member_named(&name(4)).expect("a member").id;
    let runs = scene.map.slots().runs();
    assert!(runs.iter().any(|run| run.placement.owner == Some(member)));
}
