//! Tests of measurements: addition and the JSON format.

use std::time::Duration;

use larder_bg::model::action::Action;
use larder_bg::stores::contract::Failure;
use larder_bg::verdict::measure::{
    Effort, Level, Measurements, ReadValidation, SecondMeasurements,
};

fn measured() -> Measurements {
    let mut measured = Measurements::new(Duration::from_millis(1500));
    let views = &mut measured.actions[Action::ViewProfile as usize];
    for micros in [3, 5, 70, 900, 123_456] {
        views.record(micros * 1000, None);
    }
    views.record(1_000, Some(&Failure::Refused("no".to_owned())));
    views.record(2_000_000_000, Some(&Failure::Unknown("late".to_owned())));
    measured.actions[Action::ThawFriendship as usize].skipped = 4;
    let mut judged = ReadValidation {
        reads: 7,
        unpredictable: 2,
        by_class: vec![("stale".to_owned(), 2)],
        ages: vec![0, 0, 2],
        witnesses: vec!["a".to_owned()],
        ..ReadValidation::default()
    };
    judged.by_level[Level::Counts as usize] = Some(1);
    measured.reads = Some(judged);
    let mut moment = SecondMeasurements::new();
    moment.latency.record(5_000).unwrap();
    measured.series.push(moment);
    measured.effort = Some(Effort {
        cpu: Duration::from_millis(700),
        processors: 2,
        busiest_worker: 0.5,
        others: None,
        stolen: None,
    });
    measured
}

#[test]
fn failed_calls_are_not_within_any_time() {
    let measured = measured();
    let views = measured.of(Action::ViewProfile);
    assert_eq!((views.calls(), views.done()), (7, 5));
    assert_eq!((views.refused, views.unknown), (1, 1));
    assert_eq!(views.within(1_000), 0);
    assert_eq!(views.within(5_000), 2);
    assert_eq!(views.within(u64::MAX), 5);
}

#[test]
fn results_round_trip_through_json() {
    let measured = measured();
    let text = serde_json::to_string(&measured).unwrap();
    let again: Measurements = serde_json::from_str(&text).unwrap();
    // The lowest value of a histogram bucket stands for the whole bucket, so compare the second serialization with the
    // first.
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
    let (before, after) = (
        measured.of(Action::ViewProfile),
        again.of(Action::ViewProfile),
    );
    assert_eq!(before.within(900_000), after.within(900_000));
    assert_eq!(before.latency.len(), after.latency.len());
    assert_eq!(again.of(Action::ThawFriendship).skipped, 4);
    assert_eq!(again.reads, measured.reads);
    assert_eq!(again.effort, measured.effort);
    let odd = text.replace("view-profile", "view-profiles");
    let error = serde_json::from_str::<Measurements>(&odd).unwrap_err();
    assert!(error.to_string().contains("`view-profiles`"), "{error}");
}

#[test]
fn results_of_clients_add_up() {
    let mut sum = measured();
    sum.add(&measured());
    assert_eq!(sum.done(), 10);
    assert_eq!(sum.of(Action::ViewProfile).failed.len(), 4);
    let reads = sum.reads.unwrap();
    assert_eq!((reads.reads, reads.unpredictable), (14, 4));
    assert_eq!(reads.by_level, [Some(2), None, None, None, None]);
    assert_eq!(reads.by_class, [("stale".to_owned(), 4)]);
    assert_eq!(reads.ages, [0, 0, 4]);
    assert_eq!(sum.series[0].latency.len(), 2);
    let effort = sum.effort.unwrap();
    assert_eq!((effort.processors, effort.busiest_worker), (4, 0.5));
}
