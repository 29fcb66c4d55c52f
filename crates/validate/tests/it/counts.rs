use larder_validate::count::{Counts, Effect, Write};
use larder_validate::{Span, Verdict};

use crate::brute;
use crate::random::{Random, rounds};

fn add(delta: i32, start: u64, end: u64) -> Write {
    Write {
        span: Span::new(start, end).unwrap(),
        effect: Effect::Add(delta),
    }
}

fn set(value: i32, start: u64, end: u64) -> Write {
    Write {
        span: Span::new(start, end).unwrap(),
        effect: Effect::Set(value),
    }
}

/// Checks that every method yields `expected`, and that the oracle agrees.
#[track_caller]
fn check(initial: i32, writes: &[Write], read: (u64, u64), expected: &[i64]) {
    let read = Span::new(read.0, read.1).unwrap();
    assert_eq!(brute_force(initial, writes, read), expected, "the oracle");
    assert_judged(initial, writes, read, expected);
}

#[track_caller]
fn assert_judged(initial: i32, writes: &[Write], read: Span, expected: &[i64]) {
    let counts = Counts::new(initial, writes);
    let tell = || format!("from {initial}, {writes:?}, read {read:?}");
    assert_eq!(
        counts.acceptable(read, 1000).as_deref(),
        Some(expected),
        "{}",
        tell()
    );
    let around = expected.first().map_or(0, |v| v - 3)..=expected.last().map_or(0, |v| v + 3);
    for value in around {
        let verdict = if expected.contains(&value) {
            Verdict::Acceptable
        } else {
            Verdict::Unacceptable
        };
        assert_eq!(counts.judge(read, value), verdict, "{value} {}", tell());
    }
}

fn brute_force(initial: i32, writes: &[Write], read: Span) -> Vec<i64> {
    let writes: Vec<(Span, Effect)> = writes
        .iter()
        .map(|write| (write.span, write.effect))
        .collect();
    let apply = |value: &mut i64, effect: &Effect| match effect {
        Effect::Add(delta) => *value += i64::from(*delta),
        Effect::Set(to) => *value = i64::from(*to),
    };
    brute::states(&i64::from(initial), &writes, read, &apply)
        .into_iter()
        .collect()
}

#[test]
fn figure_10_of_the_paper_allows_two_and_not_three() {
    check(
        0,
        &[add(-1, 1, 3), add(1, 2, 4), add(2, 5, 6)],
        (0, 10),
        &[-1, 0, 1, 2],
    );
}

#[test]
fn calls_that_touch_are_concurrent() {
    check(0, &[add(1, 1, 2)], (0, 1), &[0, 1]);
    check(0, &[add(1, 1, 2)], (2, 3), &[0, 1]);
    check(0, &[add(1, 1, 2)], (3, 4), &[1]);
}

#[test]
fn a_write_of_no_duration_may_come_before_one_around_it() {
    check(0, &[add(1, 5, 8), add(-1, 7, 7)], (5, 7), &[-1, 0, 1]);
}

#[test]
fn two_deltas_of_two_never_make_an_odd_value() {
    check(0, &[add(2, 1, 9), add(2, 2, 8)], (3, 4), &[0, 2, 4]);
    check(0, &[add(2, 1, 9), add(3, 2, 8)], (3, 4), &[0, 2, 3, 5]);
}

#[test]
fn a_read_after_all_writes_has_one_possible_value() {
    check(
        7,
        &[add(-1, 1, 3), add(1, 2, 4), add(2, 5, 6)],
        (7, 9),
        &[9],
    );
    check(7, &[], (7, 9), &[7]);
}

#[test]
fn a_write_of_unknown_outcome_may_show_at_any_time_or_never() {
    let unknown = Write {
        span: Span::unanswered(2),
        effect: Effect::Add(1),
    };
    check(0, &[unknown], (0, 1), &[0]);
    check(0, &[unknown], (1000, 1001), &[0, 1]);
    check(0, &[unknown, add(-1, 5, 6)], (1000, 1001), &[-1, 0]);
    let unknown = Write {
        span: Span::unanswered(2),
        effect: Effect::Set(9),
    };
    check(0, &[unknown, add(1, 5, 6)], (8, 9), &[1, 9, 10]);
}

#[test]
fn an_absolute_write_hides_earlier_writes() {
    check(
        0,
        &[add(5, 1, 2), set(10, 4, 5), add(1, 7, 8)],
        (9, 9),
        &[11],
    );
    check(
        0,
        &[add(5, 1, 4), set(10, 4, 5), add(1, 7, 8)],
        (9, 9),
        &[11, 16],
    );
    check(0, &[set(1, 1, 4), set(2, 3, 6)], (7, 8), &[1, 2]);
    check(0, &[set(1, 1, 2), set(2, 3, 6)], (7, 8), &[2]);
}

#[test]
fn validation_equals_brute_force_over_all_orders() {
    let mut random = Random::new(1);
    let palettes: [&[Effect]; 6] = [
        &[Effect::Add(1), Effect::Add(-1)],
        &[Effect::Add(2), Effect::Add(-2), Effect::Add(0)],
        &[
            Effect::Add(-3),
            Effect::Add(-1),
            Effect::Add(2),
            Effect::Add(5),
        ],
        &[Effect::Set(1), Effect::Set(2), Effect::Set(3)],
        &[
            Effect::Set(10),
            Effect::Set(20),
            Effect::Add(1),
            Effect::Add(-1),
            Effect::Add(4),
        ],
        &[
            Effect::Set(100),
            Effect::Add(1),
            Effect::Add(-1),
            Effect::Add(1),
            Effect::Add(-1),
        ],
    ];
    for _ in 0..rounds(20_000, 200_000) {
        let palette = random.pick(&palettes);
        // Few timestamps cause ties, many cause gaps.
        let stamps = random.pick(&[4, 8, 16]);
        let span = |random: &mut Random| {
            let start = random.below(stamps);
            let size = random.pick(&[0, 1, 2, 5]);
            Span::new(start, start + random.below(size + 1)).unwrap()
        };
        let writes: Vec<Write> = (0..random.below(6))
            .map(|_| {
                let unknown = random.one_in(8);
                let span = if unknown {
                    Span::unanswered(random.below(stamps))
                } else {
                    span(&mut random)
                };
                Write {
                    span,
                    effect: random.pick(palette),
                }
            })
            .collect();
        let read = span(&mut random);
        let initial = random.below(3) as i32 - 1;
        let expected = brute_force(initial, &writes, read);
        assert_judged(initial, &writes, read, &expected);
        check_times(initial, &writes, read, &expected);
    }
}

/// Compares the last instant before the read and the first after it at which a value is acceptable with a scan over
/// all instants.
fn check_times(initial: i32, writes: &[Write], read: Span, expected: &[i64]) {
    let counts = Counts::new(initial, writes);
    let at = |instant| brute_force(initial, writes, Span::new(instant, instant).unwrap());
    for value in expected[0] - 2..=expected[0] + 2 {
        if expected.contains(&value) {
            continue;
        }
        let last = (0..read.start())
            .rev()
            .find(|instant| at(*instant).contains(&value));
        let first = (read.end() + 1..40).find(|instant| at(*instant).contains(&value));
        let tell = || format!("{value} from {initial}, {writes:?}, read {read:?}");
        assert_eq!(
            counts.last_acceptable_before(read.start(), value),
            last,
            "{}",
            tell()
        );
        assert_eq!(
            counts.first_acceptable_after(read.end(), value),
            first,
            "{}",
            tell()
        );
    }
}

#[test]
fn too_many_sums_are_undecided_but_bounds_still_exclude_values() {
    let mut random = Random::new(2);
    let writes: Vec<Write> = (0..40)
        .map(|_| add(random.below(1 << 30) as i32 + 1, 5, 9))
        .collect();
    let total: i64 = writes
        .iter()
        .map(|write| match write.effect {
            Effect::Add(delta) => i64::from(delta),
            Effect::Set(_) => 0,
        })
        .sum();
    let counts = Counts::new(0, &writes);
    let read = Span::new(6, 7).unwrap();
    assert_eq!(counts.judge(read, total + 1), Verdict::Unacceptable);
    assert_eq!(counts.judge(read, total), Verdict::Acceptable);
    assert_eq!(counts.judge(read, total / 2), Verdict::Undecided);
    assert_eq!(counts.acceptable(read, 1000), None);
}

#[test]
fn hot_items_and_extreme_numbers_are_handled() {
    // All writes are in flight together, and each read spans all events: a checker that scans would need 10^10 steps.
    let many = 100_000;
    let writes: Vec<Write> = (0..many)
        .map(|i| add(if i % 2 == 0 { 1 } else { -1 }, i, many * 2 - i % 7))
        .collect();
    let counts = Counts::new(0, &writes);
    let read = Span::new(0, many * 3).unwrap();
    for value in 0..many as i64 {
        let verdict = if value <= many as i64 / 2 {
            Verdict::Acceptable
        } else {
            Verdict::Unacceptable
        };
        assert_eq!(counts.judge(read, value), verdict);
    }
    let writes: Vec<Write> = (0..4)
        .map(|_| Write {
            span: Span::unanswered(u64::MAX),
            effect: Effect::Add(i32::MIN),
        })
        .collect();
    let counts = Counts::new(i32::MIN, &writes);
    let read = Span::unanswered(0);
    assert_eq!(
        counts.judge(read, i64::from(i32::MIN) * 5),
        Verdict::Acceptable
    );
    for value in [i64::MIN, i64::MAX] {
        assert_eq!(counts.judge(read, value), Verdict::Unacceptable);
        assert_eq!(counts.last_acceptable_before(0, value), None);
    }
}
