//! The parts of a report that people read.

use larder_validate::Span;
use larder_validate::record::{END_STATE, Outcome, Record, RecordKind};
use larder_validate::report::{Level, Names, Report, seconds};
use larder_validate::set::Sketch;
use larder_validate::trace::{Initial, Options, judge};

/// Members have the friends 1 and 2.
struct ReportInitial;

impl Initial for ReportInitial {
    fn count(&self, _: u64) -> i32 {
        2
    }

    fn set(&self, _: u64) -> Vec<u64> {
        vec![1, 2]
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

struct Members;

impl Names for Members {
    fn item(&self, item: u64) -> String {
        format!("friends of member {}", item & 0xff)
    }

    fn element(&self, _: u64, element: u64) -> String {
        format!("member {element}")
    }

    fn action(&self, action: u8) -> String {
        ["list-friends", "accept-friend-request", "view-profile"][usize::from(action)].to_owned()
    }

    fn origin(&self) -> u64 {
        1_000_000_000
    }
}

const ITEM: u64 = 1 << 56 | 17;
const SECOND: u64 = 1_000_000_000;

fn record(action: u8, start_ms: u64, end_ms: u64, what: RecordKind) -> Record {
    let instant = |ms: u64| SECOND + ms * 1_000_000;
    Record {
        item: ITEM,
        span: Span::new(instant(start_ms), instant(end_ms)).unwrap(),
        session: 40 + u32::from(action),
        action,
        outcome: Outcome::Done,
        what,
    }
}

fn list(elements: &[u64]) -> RecordKind {
    RecordKind::ReadSet(Sketch::of(9, ITEM, elements.iter().copied()))
}

fn report(records: &[Record]) -> Report {
    let options = Options {
        seed: 9,
        cores: 2,
        witnesses_max: 10,
    };
    judge(records, &ReportInitial, &options)
}

#[track_caller]
fn check(records: &[Record], sentences: &[&str]) {
    let report = report(records);
    let told: Vec<String> = report
        .witnesses
        .iter()
        .map(|witness| witness.describe(&Members))
        .collect();
    assert_eq!(told, sentences);
}

#[test]
fn a_stale_list_names_the_missing_member_and_the_write_that_added_it() {
    check(
        &[
            record(1, 100, 102, RecordKind::PutElement(88)),
            record(0, 203, 204, list(&[1, 2])),
        ],
        &[
            "list-friends (session 40) read friends of member 17 from 203.000 ms to 204.000 ms and saw 2 elements, \
             without member 88: stale by 101.000 ms, 1 write behind; member 88 put in by accept-friend-request \
             (session 41) from 100.000 ms, acknowledged at 102.000 ms",
        ],
    );
}

#[test]
fn a_wrong_count_names_the_acceptable_values_and_the_writes_in_flight() {
    let mut unknown = record(1, 150, 160, RecordKind::AddCount(1));
    unknown.outcome = Outcome::Unknown;
    check(
        &[unknown, record(2, 1203, 1204, RecordKind::ReadCount(9))],
        &[
            "view-profile (session 42) read friends of member 17 from 1.203000 s to 1.204000 s and saw 9: never acceptable; \
             acceptable: 2, 3; +1 by accept-friend-request (session 41) from 150.000 ms, outcome unknown",
        ],
    );
}

#[test]
fn unknown_duplicate_and_missing_members_are_named() {
    let told = |elements: &[u64]| {
        let report = report(&[
            record(1, 1, 2, RecordKind::PutElement(3)),
            record(0, 5, 6, list(elements)),
        ]);
        let sentence = report.witnesses[0].describe(&Members);
        let (_, after) = sentence.split_once("saw ").unwrap();
        after.split_once("; member 3").unwrap().0.to_owned()
    };
    assert_eq!(
        told(&[1, 2, 3, 999]),
        "4 elements, with member 999: no write produced this value"
    );
    assert_eq!(
        told(&[1, 2, 3, 2]),
        "4 elements, member 2 twice: never acceptable"
    );
    assert_eq!(
        told(&[1, 3]),
        "2 elements, without member 2: never acceptable"
    );
    assert_eq!(
        told(&[7, 8, 9]),
        "3 elements, too many of them wrong to identify: never acceptable"
    );
}

#[test]
fn reads_are_counted_by_action_and_by_kind_and_the_end_state_apart() {
    let mut records = vec![
        record(1, 100, 102, RecordKind::PutElement(88)),
        record(0, 203, 204, list(&[1, 2])),
        record(0, 203, 204, list(&[1, 2, 88])),
        record(2, 203, 204, RecordKind::ReadCount(3)),
        // Sizes follow from the list's changes.
        record(2, 203, 204, RecordKind::ReadCount(2)),
        record(END_STATE, 900, 901, list(&[1, 2])),
        record(END_STATE, 900, 901, list(&[1, 2, 88])),
    ];
    records[3].item = 2 << 56 | 17;
    let report = report(&records);
    let tally =
        |tally: &larder_validate::report::Tally| (tally.reads, tally.acceptable, tally.stale);
    assert_eq!(tally(&report.total), (4, 1, 2));
    assert_eq!(tally(&report.actions[&0]), (2, 1, 1));
    assert_eq!(tally(&report.actions[&2]), (2, 0, 1));
    assert_eq!(tally(&report.kinds[&1]), (3, 1, 2));
    assert_eq!(tally(&report.kinds[&2]), (1, 0, 0));
    assert_eq!(tally(&report.end_state), (2, 1, 1));
    assert_eq!(report.level(Level::Snapshot).judged, 2);
    // Three reads began 101 ms after the write: 27 bits.
    let curve: Vec<(u64, u64, f64)> = report.freshness.curve().collect();
    assert_eq!(curve, [(1 << 27, 3, 1.0 / 3.0)]);
}

#[test]
fn only_the_joint_level_rejects_a_profile_read_during_an_acceptance() {
    let acceptance = |kind: u64, delta| Record {
        item: kind << 56 | 17,
        ..record(1, 100, 200, RecordKind::AddCount(delta))
    };
    let profile = |friends, invitations| {
        let read = |kind: u64, value| Record {
            item: kind << 56 | 17,
            ..record(2, 150, 160, RecordKind::ReadCount(value))
        };
        [read(1, friends), read(2, invitations)]
    };
    let told = |friends, invitations| {
        let mut records = vec![acceptance(1, 1), acceptance(2, -1)];
        records.extend(profile(friends, invitations));
        let report = report(&records);
        assert_eq!(report.unpredictable(), 0);
        let joint = report.level(Level::Joint);
        assert_eq!(joint.judged, 1);
        joint.refused
    };
    assert_eq!(told(2, 2), 0);
    assert_eq!(told(3, 1), 0);
    assert_eq!(told(3, 2), 1);
    assert_eq!(told(2, 1), 1);
}

#[test]
fn times_are_formatted_in_readable_units() {
    let all = [0, 999, 1_500, 2_000_000, -3_000_000_000].map(seconds);
    assert_eq!(all, ["0 ns", "999 ns", "1.5 us", "2.000 ms", "-3.000000 s"]);
}
