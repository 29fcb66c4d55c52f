//! Tests of agreements: parsing, errors with their column, and evaluation.

use std::time::Duration;

use larder_bg::model::action::Action;
use larder_bg::stores::contract::Failure;
use larder_bg::verdict::agreement::{Clause, Sla};
use larder_bg::verdict::measure::{Level, Measurements, ReadValidation};

fn parse(text: &str) -> Sla {
    text.parse().unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn an_agreement_is_parsed_clause_by_clause() {
    let sla = parse(
        "95% < 100ms, view-profile: 99% <= 0.5 ms,p99.9<2s, list-friends:p50 < 80us, 1% errors,
         post-comment: 0% errors, 0.1% unpredictable, 0% unpredictable at counts, 90s",
    );
    let within = |action, percent, micros| Clause::Within {
        action,
        percent,
        limit: Duration::from_micros(micros),
    };
    assert_eq!(
        sla.clauses,
        [
            within(None, 95.0, 100_000),
            within(Some(Action::ViewProfile), 99.0, 500),
            within(None, 99.9, 2_000_000),
            within(Some(Action::ListFriends), 50.0, 80),
            Clause::Errors {
                action: None,
                percent: 1.0
            },
            Clause::Errors {
                action: Some(Action::PostComment),
                percent: 0.0
            },
            Clause::Unpredictable {
                percent: 0.1,
                level: Level::Snapshot
            },
            Clause::Unpredictable {
                percent: 0.0,
                level: Level::Counts
            },
        ]
    );
    assert_eq!(sla.duration, Duration::from_secs(90));
    assert_eq!(parse(&sla.to_string()), sla);
    let short = parse("95% < 100ms");
    assert_eq!(short.duration, Sla::DURATION);
    // Failed calls are always limited, even without a clause.
    assert_eq!(short.to_string(), "95% < 100ms, 0.01% errors, 60s");
    assert_eq!(parse(&short.to_string()), short);
    let of_one = parse("post-comment: 0% errors, 5% drift");
    assert_eq!(
        of_one.to_string(),
        "post-comment: 0% errors, 5% drift, 0.01% errors, 60s"
    );
}

#[test]
fn a_syntax_error_has_its_column() {
    let cases = [
        ("", 1, "expected a clause"),
        ("60s", 4, "has no condition"),
        ("95% < 100", 10, "a unit"),
        ("95% < , 60s", 7, "expected a time"),
        ("95% 100ms", 5, "expected `<`"),
        ("101% < 1s", 1, "at most 100"),
        ("0% < 1s", 6, "always met"),
        ("95% < 0ms", 7, "out of range"),
        ("95% < 1s; 60s", 9, "a comma or the end"),
        ("95% < 1s, 60s, 70s", 16, "duplicate duration"),
        ("95% < 1s, 95% < 1s", 11, "duplicate clause"),
        ("view-profil: 95% < 1s", 1, "unknown action `view-profil`"),
        ("95% < 1s, view-profile 95% < 1s", 24, "a colon"),
        ("view-profile: 1% unpredictable", 18, "only for all reads"),
        ("view-profile: 60s", 15, "complete agreement"),
        ("1% unpredictable at noon", 21, "counts, members, snapshot"),
        ("1% unpredictable or so", 18, "`at` and a level"),
        ("view-profile: 1% drift", 18, "complete mix"),
        ("1.2.3% < 1s", 1, "`1.2.3` is not a number"),
        ("p101 < 1s", 2, "a percentile"),
        ("95% < 1s,", 10, "expected a clause"),
    ];
    for (text, column, why) in cases {
        let error = text.parse::<Sla>().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("column {column}: ")) && error.contains(why),
            "{error}"
        );
    }
    let error = "95% < , 60s".parse::<Sla>().unwrap_err().to_string();
    assert_eq!(
        error,
        "column 7: expected a time such as 100ms\n  95% < , 60s\n        ^"
    );
}

/// Returns the measurements of profile views: `quick` answers after a millisecond, `slow` answers after a second, and
/// `refused` immediate rejections.
fn trial(quick: u64, slow: u64, refused: u64) -> Measurements {
    let mut measured = Measurements::new(Duration::from_secs(1));
    let views = &mut measured.actions[Action::ViewProfile as usize];
    (0..quick).for_each(|_| views.record(1_000_000, None));
    (0..slow).for_each(|_| views.record(1_000_000_000, None));
    let no = Failure::Refused(String::new());
    (0..refused).for_each(|_| views.record(1_000, Some(&no)));
    measured
}

#[test]
fn failed_calls_miss_every_time_limit() {
    let sla = parse("95% < 2ms, 4% errors");
    let met = sla.judge_trial(&trial(96, 0, 4));
    assert!(met.met, "{}", met.reason());
    let missed = sla.judge_trial(&trial(90, 0, 10));
    assert_eq!(
        missed.reason(),
        "95% < 2ms: 90.00% of 100 calls; 4% errors: 10.00% of 100 calls"
    );
}

/// A store that rejects all of a few writes is fast and has no unpredictable read.
#[test]
fn failures_miss_an_agreement_without_an_error_clause() {
    let verdict = parse("95% < 2ms").judge_trial(&trial(999, 0, 1));
    assert_eq!(verdict.reason(), "0.01% errors: 0.10% of 1000 calls");
    assert!(
        parse("95% < 2ms, 1% errors")
            .judge_trial(&trial(999, 0, 1))
            .met
    );
}

#[test]
fn an_agreement_can_apply_to_each_client() {
    let mut both = trial(180, 20, 0);
    both.clients = vec![trial(100, 0, 0), trial(80, 20, 0)];
    assert!(parse("90% < 2ms").judge_trial(&both).met);
    let missed = parse("90% < 2ms, per-client").judge_trial(&both);
    assert_eq!(missed.reason(), "90% < 2ms: 80.00% of 100 calls");
    let sla = parse("per-client, 90% < 2ms, 1% errors, 5s");
    assert_eq!(sla.to_string(), "90% < 2ms, 1% errors, per-client, 5s");
    assert_eq!(parse(&sla.to_string()), sla);
    // A single process is its own only client.
    assert!(sla.judge_trial(&trial(100, 0, 0)).met);
}

#[test]
fn an_agreement_can_limit_the_drift() {
    let mut measured = trial(900, 0, 0);
    measured.actions[Action::AcceptFriendRequest as usize].skipped = 100;
    let missed = parse("5% drift").judge_trial(&measured);
    assert_eq!(missed.reason(), "5% drift: 10.00% of 900 calls");
    assert!(parse("10% drift").judge_trial(&measured).met);
}

#[test]
fn clauses_of_an_action_consider_only_its_calls() {
    let sla = parse("50% < 2ms, view-profile: 90% < 2ms, list-friends: 99% < 1us");
    let verdict = sla.judge_trial(&trial(89, 11, 0));
    let met: Vec<bool> = verdict.clauses.iter().map(|one| one.met).collect();
    // No friends were listed, so that clause is ignored.
    assert_eq!(met, [true, false, true, true]);
    assert_eq!(
        verdict.reason(),
        "view-profile: 90% < 2ms: 89.00% of 100 calls"
    );
}

#[test]
fn a_near_miss_is_reported_in_counts() {
    let verdict = parse("99.99% < 2ms").judge_trial(&trial(199_970, 30, 0));
    assert_eq!(verdict.reason(), "99.99% < 2ms: 199970 of 200000 calls");
}

#[test]
fn clauses_without_measurements_are_not_met() {
    let nothing = Measurements::new(Duration::from_secs(1));
    assert!(!parse("95% < 1s").judge_trial(&nothing).met);
    let sla = parse("95% < 1s, 1% unpredictable");
    let verdict = sla.judge_trial(&trial(10, 0, 0));
    assert_eq!(verdict.reason(), "1% unpredictable: no validated reads");
    let sla = parse("1% unpredictable at atomic");
    let mut measured = trial(10, 0, 0);
    measured.reads = Some(ReadValidation {
        reads: 10,
        ..ReadValidation::default()
    });
    assert!(!sla.judge_trial(&measured).met);
    measured.reads.as_mut().unwrap().by_level[Level::Atomic as usize] = Some(0);
    assert!(sla.judge_trial(&measured).met);
}

#[test]
fn wrong_bytes_are_unpredictable() {
    let sla = parse("0.1% unpredictable");
    let mut measured = trial(1000, 0, 0);
    measured.reads = Some(ReadValidation {
        reads: 1000,
        unpredictable: 1,
        ..ReadValidation::default()
    });
    assert!(sla.judge_trial(&measured).met);
    measured.actions[Action::ViewProfile as usize].wrong = 1;
    assert!(!sla.judge_trial(&measured).met);
}

#[test]
fn verdicts_are_unsure_only_near_the_limit() {
    let sla = parse("95% < 2ms");
    let sure = |quick, slow| sla.judge_trial(&trial(quick, slow, 0)).is_sure();
    assert!(sure(9_700, 300) && sure(9_300, 700));
    assert!(!sure(9_510, 490) && !sure(9_490, 510));
    // With few calls, a miss may be due to chance. No better result is possible than all calls in time.
    assert!(!sure(9, 1) && sure(10, 0));
    // With no unpredictable read at all, chance plays no part at this limit.
    let sla = parse("0% unpredictable");
    let mut measured = trial(10_000, 0, 0);
    measured.reads = Some(ReadValidation {
        reads: 10_000,
        ..ReadValidation::default()
    });
    assert!(sla.judge_trial(&measured).is_sure());
}

#[test]
fn tallies_of_trials_add_up() {
    let sla = parse("95% < 2ms");
    let mut pooled = sla.tally(&trial(940, 60, 0));
    assert!(!sla.judge(&pooled).met);
    pooled[0].add(sla.tally(&trial(970, 30, 0))[0]);
    let verdict = sla.judge(&pooled);
    assert!(verdict.met);
    assert_eq!(verdict.clauses[0].of, 2000);
}
