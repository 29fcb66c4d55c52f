//! Validation during a run yields the same results as validation afterwards, and retains little.

use std::collections::BTreeSet;

use larder_validate::Span;
use larder_validate::record::{Outcome, Record, RecordKind};
use larder_validate::report::{Report, Tally};
use larder_validate::set::Sketch;
use larder_validate::trace::{BATCH, Initial, OnlineValidator, Options, judge};

use crate::random::{Random, rounds};

const SEED: u64 = 5;

const OPTIONS: Options = Options {
    seed: SEED,
    cores: 1,
    witnesses_max: 0,
};

/// Counts of 4, the elements 1 to 4, content 0.
struct OnlineInitial;

impl Initial for OnlineInitial {
    fn count(&self, _: u64) -> i32 {
        4
    }

    fn set(&self, _: u64) -> Vec<u64> {
        vec![1, 2, 3, 4]
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

/// Generates calls by two identities on four kinds of items, some with wrong results; each is a group of records.
fn calls(random: &mut Random, count: u64, gap: u64, size: u64) -> Vec<Vec<Record>> {
    let kinds = random.pick(&[&[1, 2][..], &[1, 2, 3, 4], &[3], &[4], &[1]]);
    (0..count)
        .map(|number| {
            let start = 100 + number * gap + random.below(gap * 3);
            let span = Span::new(start, start + random.below(size)).unwrap();
            let identity = random.below(2);
            let write = random.one_in(3);
            let outcome = match random.below(30) {
                0 => Outcome::Unknown,
                1 => Outcome::NotDone,
                _ => Outcome::Done,
            };
            let record = |kind: u64, what| Record {
                item: kind << 56 | identity,
                span,
                session: number as u32,
                action: (number % 3) as u8,
                outcome,
                what,
            };
            let element = 1 + random.below(6);
            let content = 1 + random.below(4) * number / 4;
            let elements: BTreeSet<u64> = (1..7).filter(|_| random.one_in(2)).collect();
            let list = |kind: u64, elements: &BTreeSet<u64>| {
                let item = kind << 56 | identity;
                RecordKind::ReadSet(Sketch::of(SEED, item, elements.iter().copied()))
            };
            let size = random.below(6) as i64;
            let absolute = random.one_in(40);
            match (random.pick(kinds), write) {
                // Counted by number, two together; sometimes absolute.
                (1, true) if absolute => vec![record(1, RecordKind::SetCount(3))],
                (1, true) => vec![
                    record(1, RecordKind::AddCount(1)),
                    record(2, RecordKind::AddCount(-1)),
                ],
                (1, false) => vec![
                    record(1, RecordKind::ReadCount(size)),
                    record(2, RecordKind::ReadCount(8 - size)),
                ],
                (2, true) => vec![record(
                    2,
                    RecordKind::AddCount(random.pick(&[1, 1, 1, 1, 2])),
                )],
                (2, false) => vec![record(2, RecordKind::ReadCount(size))],
                (3, true) if random.one_in(2) => vec![record(3, RecordKind::PutElement(element))],
                (3, true) => vec![record(3, RecordKind::RemoveElement(element))],
                (3, false) if random.one_in(3) => vec![record(3, RecordKind::ReadCount(size))],
                (3, false) => vec![record(3, list(3, &elements))],
                (_, true) => vec![record(4, RecordKind::WriteContent(content))],
                (_, false) => vec![record(4, RecordKind::ReadContent(random.below(number + 1)))],
            }
        })
        .collect()
}

/// Returns the part of a report that does not depend on the rest of the trace.
fn told(report: &Report) -> impl PartialEq + std::fmt::Debug {
    let tally = |tally: &Tally| {
        let others = tally.future + tally.phantom + tally.never + tally.unclassified;
        (
            (tally.reads, tally.acceptable, tally.undecided),
            (tally.stale, tally.fractured, others),
        )
    };
    let actions: Vec<_> = report.actions.values().map(tally).collect();
    let kinds: Vec<_> = report.kinds.values().map(tally).collect();
    (
        (report.writes, actions, kinds, report.levels),
        (report.ages.clone(), report.versions_behind.clone()),
        report.freshness.clone(),
    )
}

/// Feeds calls in a random order that respects the watermark: each after it ended.
fn online(random: &mut Random, calls: &[Vec<Record>], history_ns: u64) -> (Report, usize) {
    let mut online = OnlineValidator::new(&OnlineInitial, &OPTIONS, history_ns);
    let mut waiting: Vec<&Vec<Record>> = calls.iter().collect();
    waiting.sort_by_key(|call| std::cmp::Reverse(call[0].span.start()));
    // Started, but not fed yet.
    let mut outstanding: Vec<&Vec<Record>> = Vec::new();
    let mut most = 0;
    while !waiting.is_empty() || !outstanding.is_empty() {
        if let Some(call) = waiting.last()
            && (outstanding.is_empty() || outstanding.len() < 20 && random.one_in(2))
        {
            outstanding.push(call);
            waiting.pop();
        } else {
            let now = waiting.last().map_or(u64::MAX, |call| call[0].span.start());
            // A random call, but none stays outstanding forever.
            let oldest = (0..outstanding.len()).min_by_key(|at| outstanding[*at][0].span.start());
            let some = match outstanding.len() {
                20 => oldest.unwrap(),
                all => random.below(all as u64) as usize,
            };
            let call = outstanding.swap_remove(some);
            online.feed(call);
            let starts = outstanding.iter().map(|call| call[0].span.start());
            let watermark = starts.min().unwrap_or(u64::MAX).min(now);
            online.advance(watermark);
            if random.one_in(3) {
                online.report();
                most = most.max(online.retained_records());
            }
        }
    }
    (online.finish(), most)
}

#[test]
fn any_feeding_order_gives_the_verdicts_of_the_whole_trace() {
    let mut random = Random::new(41);
    let (mut refused, mut back, mut apart, mut undecided) = (0, 0, 0, 0);
    for _ in 0..rounds(3_000, 60_000) {
        let size = random.pick(&[3, 20, 60]);
        let count = 5 + random.below(60);
        let calls = calls(&mut random, count, 4, size);
        let offline = judge(&calls.concat(), &OnlineInitial, &OPTIONS);
        let (online, _) = online(&mut random, &calls, u64::MAX);
        assert_eq!(told(&online), told(&offline), "{:#?}", calls.concat());
        refused += offline.unpredictable();
        back += offline.levels[3].refused;
        apart += offline.levels[4].refused;
        undecided += offline.levels[3].undecided;
    }
    assert!(refused > 1000 && back > 100 && apart > 10 && undecided > 100);
}

#[test]
fn validation_without_history_gives_the_same_verdicts_without_ages() {
    let mut random = Random::new(42);
    for _ in 0..rounds(500, 5_000) {
        let calls = calls(&mut random, 60, 4, 20);
        let offline = judge(&calls.concat(), &OnlineInitial, &OPTIONS);
        let (online, _) = online(&mut random, &calls, 0);
        assert_eq!(online.levels, offline.levels);
        assert_eq!(online.total.acceptable, offline.total.acceptable);
        assert_eq!(online.freshness, offline.freshness);
        assert_eq!(online.unpredictable(), offline.unpredictable());
    }
}

#[test]
fn memory_depends_on_calls_in_flight_and_not_on_the_length_of_the_run() {
    let mut random = Random::new(43);
    let mut held = |count: u64, history_ns: u64| {
        // No unknown outcomes, because those stay in flight forever.
        let mut calls = calls(&mut random, count, 4, 30);
        let all = calls.iter_mut().flatten();
        all.for_each(|record| record.outcome = Outcome::Done);
        online(&mut random, &calls, history_ns).1
    };
    let (short, long) = (held(1_000, 0), held(30_000, 0));
    assert!(long < short * 3 && long < 500, "{short}, then {long}");
    let (short, long) = (held(2_000, 1_000), held(30_000, 1_000));
    assert!(long < short * 3 && long < 4_000, "{short}, then {long}");
}

#[test]
fn reads_do_not_accumulate_between_reports() {
    let mut online = OnlineValidator::new(&OnlineInitial, &OPTIONS, 0);
    for number in 0..4 * BATCH as u64 {
        online.feed(&[Record {
            item: (1 << 56) + number % 100,
            span: Span::new(number, number + 5).unwrap(),
            session: 0,
            action: 0,
            outcome: Outcome::Done,
            what: RecordKind::ReadCount(4),
        }]);
        online.advance(number);
        assert!(online.retained_records() <= BATCH + 10);
    }
    assert_eq!(online.finish().total.acceptable, 4 * BATCH as u64);
}
