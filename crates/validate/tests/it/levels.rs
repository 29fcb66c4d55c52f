//! Compares the levels with the oracle on small histories.

use std::collections::BTreeSet;

use larder_validate::Span;
use larder_validate::record::{Outcome, Record, RecordKind};
use larder_validate::report::{Class, Failure, Level, Report};
use larder_validate::set::Sketch;
use larder_validate::trace::{Initial, Options, judge};

use crate::brute;
use crate::random::{Random, rounds};

const SEED: u64 = 21;
const FRIENDS: u64 = 1 << 56 | 17;
const INVITATIONS: u64 = 2 << 56 | 17;

/// The initial elements of lists; counts start at their number.
const FIRST: [u64; 2] = [1, 2];

struct LevelInitial;

impl Initial for LevelInitial {
    fn count(&self, _: u64) -> i32 {
        FIRST.len() as i32
    }

    fn set(&self, _: u64) -> Vec<u64> {
        FIRST.to_vec()
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

fn report(records: &[Record]) -> Report {
    let options = Options {
        seed: SEED,
        cores: 1,
        witnesses_max: 100,
    };
    judge(records, &LevelInitial, &options)
}

fn record(item: u64, span: Span, session: u32, what: RecordKind) -> Record {
    let unknown = span.end() == u64::MAX;
    Record {
        item,
        span,
        session,
        action: 0,
        outcome: if unknown {
            Outcome::Unknown
        } else {
            Outcome::Done
        },
        what,
    }
}

fn any_span(random: &mut Random) -> Span {
    let start = random.below(12);
    Span::new(start, start + random.pick(&[0, 1, 3, 8])).unwrap()
}

fn write_span(random: &mut Random) -> Span {
    let span = any_span(random);
    if random.one_in(6) {
        Span::unanswered(span.start())
    } else {
        span
    }
}

fn change(random: &mut Random, elements: bool) -> RecordKind {
    let element = 1 + random.below(4);
    match (elements, random.one_in(2)) {
        (true, true) => RecordKind::PutElement(element),
        (true, false) => RecordKind::RemoveElement(element),
        (false, true) => RecordKind::AddCount(1),
        (false, false) => RecordKind::AddCount(-1),
    }
}

fn sketch(elements: &BTreeSet<u64>) -> RecordKind {
    RecordKind::ReadSet(Sketch::of(SEED, FRIENDS, elements.iter().copied()))
}

/// A count, and the elements of a list.
type State = (i64, BTreeSet<u64>);

fn first() -> State {
    (FIRST.len() as i64, FIRST.into())
}

fn apply(state: &mut State, what: &RecordKind) {
    match what {
        RecordKind::AddCount(delta) => state.0 += i64::from(*delta),
        RecordKind::PutElement(element) => drop(state.1.insert(*element)),
        RecordKind::RemoveElement(element) => drop(state.1.remove(element)),
        other => panic!("{other:?} is no write"),
    }
}

/// Returns the possible states at a read, by all orders of the writes.
fn states(writes: &[Record], read: Span) -> BTreeSet<State> {
    let pairs: Vec<(Span, RecordKind)> = writes
        .iter()
        .map(|write| (write.span, write.what))
        .collect();
    brute::states(&first(), &pairs, read, &apply)
}

#[test]
fn reads_rejected_by_the_atomic_level_have_no_order() {
    let mut random = Random::new(31);
    let (mut refused, mut missed) = (0, 0);
    for _ in 0..rounds(10_000, 100_000) {
        let elements = random.one_in(2);
        let writes: Vec<Record> = (0..1 + random.below(4))
            .map(|_| {
                let span = write_span(&mut random);
                record(FRIENDS, span, 0, change(&mut random, elements))
            })
            .collect();
        let sizes = random.one_in(3);
        let reads: Vec<Record> = (0..1 + random.below(4))
            .map(|_| {
                let span = any_span(&mut random);
                let all: Vec<State> = states(&writes, span).into_iter().collect();
                let (count, list) = &all[random.below(all.len() as u64) as usize];
                let what = match (elements, sizes) {
                    (true, true) => RecordKind::ReadCount(list.len() as i64),
                    (true, false) => sketch(list),
                    (false, _) => RecordKind::ReadCount(*count),
                };
                record(FRIENDS, span, 0, what)
            })
            .collect();
        let records = [&writes[..], &reads[..]].concat();
        let report = report(&records);
        let tell = || format!("{records:?}: {report:?}");
        assert_eq!(report.total.acceptable, reads.len() as u64, "{}", tell());
        let calls: Vec<(Span, RecordKind)> =
            records.iter().map(|call| (call.span, call.what)).collect();
        let step = |state: &State, what: &RecordKind| {
            let mut next = state.clone();
            match what {
                RecordKind::ReadCount(size) if elements => {
                    (*size == state.1.len() as i64).then_some(next)
                }
                RecordKind::ReadCount(count) => (*count == state.0).then_some(next),
                RecordKind::ReadSet(_) => (*what == sketch(&state.1)).then_some(next),
                write => {
                    apply(&mut next, write);
                    Some(next)
                }
            }
        };
        let ordered = brute::has_order(&first(), &calls, &step);
        let level = report.level(Level::Atomic);
        assert_eq!(level.judged, reads.len() as u64);
        if level.refused > 0 {
            assert!(!ordered, "{}", tell());
            refused += 1;
        } else if !ordered {
            missed += 1;
        }
    }
    // The level is one-sided for counts and lists, but detects most violations.
    assert!(refused > 2 * missed, "{refused} found, {missed} not");
}

#[test]
fn a_wrong_value_is_classified_by_when_it_was_right() {
    let mut random = Random::new(32);
    let mut seen = [0; 5];
    for _ in 0..rounds(10_000, 100_000) {
        let elements = random.one_in(2);
        let writes: Vec<Record> = (0..1 + random.below(5))
            .map(|_| {
                let span = write_span(&mut random);
                record(FRIENDS, span, 0, change(&mut random, elements))
            })
            .collect();
        // Lists fracture mostly in long reads of frequently changing state.
        let span = if random.one_in(3) {
            Span::new(random.below(3), 16).unwrap()
        } else {
            any_span(&mut random)
        };
        let list: BTreeSet<u64> = (1..6).filter(|_| random.one_in(2)).collect();
        let size = random.below(6) as i64;
        let by_size = !elements || random.one_in(3);
        let read = if by_size {
            record(FRIENDS, span, 0, RecordKind::ReadCount(size))
        } else {
            record(FRIENDS, span, 0, sketch(&list))
        };
        let right = |states: &BTreeSet<State>| {
            states.iter().any(|state| match (by_size, elements) {
                (true, true) => state.1.len() as i64 == size,
                (true, false) => state.0 == size,
                (false, _) => state.1 == list,
            })
        };
        let at = |instant| right(&states(&writes, Span::new(instant, instant).unwrap()));
        let report = report(&[&writes[..], &[read]].concat());
        let tell = || format!("{writes:?}, {read:?}: {report:?}");
        if right(&states(&writes, span)) {
            assert_eq!(report.total.acceptable, 1, "{}", tell());
            continue;
        }
        let Some(Failure::Class(class)) = report.witnesses.first().map(|it| it.failure) else {
            panic!("{}", tell());
        };
        let last = (0..span.start()).rev().find(|instant| at(*instant));
        let after = (span.end() + 1..40).any(at);
        let apart = !by_size
            && (1..6).all(|element| {
                let mut around = span.start()..=span.end();
                around.any(|instant| {
                    let states = states(&writes, Span::new(instant, instant).unwrap());
                    let member = list.contains(&element);
                    states
                        .iter()
                        .any(|state| state.1.contains(&element) == member)
                })
            });
        let put = |element: u64| {
            FIRST.contains(&element)
                || writes
                    .iter()
                    .any(|write| write.what == RecordKind::PutElement(element))
        };
        let expected = match last {
            Some(last) => {
                let missed =
                    |write: &&Record| last <= write.span.end() && write.span.end() < span.start();
                Class::Stale {
                    age_ns: span.start() - last,
                    behind: writes.iter().filter(missed).count() as u64,
                }
            }
            None if apart => Class::Fractured,
            None if after => Class::Future,
            // One unknown element can be distinguished from an impossible combination.
            None if !by_size && list.iter().filter(|element| !put(**element)).count() == 1 => {
                assert!(matches!(class, Class::Phantom | Class::Never), "{}", tell());
                class
            }
            None => Class::Never,
        };
        assert_eq!(class, expected, "{}", tell());
        seen[match class {
            Class::Stale { .. } => 0,
            Class::Fractured => 1,
            Class::Future => 2,
            Class::Phantom => 3,
            Class::Never => 4,
            Class::Unclassified => panic!("used only online"),
        }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[test]
fn two_counts_read_by_one_call_are_validated_at_one_instant() {
    let mut random = Random::new(33);
    let mut found = [0; 2];
    for _ in 0..rounds(10_000, 100_000) {
        let elements = random.one_in(2);
        // The effect of each call on the friends and on the invitations: acceptances, thaws, invitations, rejections.
        let calls: Vec<(Span, (i32, i32))> = (0..1 + random.below(4))
            .map(|_| {
                let effect = random.pick(&[(1, -1), (-1, 0), (0, 1), (0, -1), (1, 0)]);
                (write_span(&mut random), effect)
            })
            .collect();
        let mut records = Vec::new();
        for (number, (span, effect)) in calls.iter().enumerate() {
            for (item, delta) in [(FRIENDS, effect.0), (INVITATIONS, effect.1)] {
                // Each call has elements of its own; those that it removes exist initially.
                let element = 100 + number as u64;
                let what = match (delta, elements) {
                    (0, _) => continue,
                    (_, false) => RecordKind::AddCount(delta),
                    (1, true) => RecordKind::PutElement(element),
                    _ => RecordKind::RemoveElement(element),
                };
                records.push(record(item, *span, 10 + number as u32, what));
            }
        }
        let span = any_span(&mut random);
        let apply = |state: &mut (i64, i64), effect: &(i32, i32)| {
            state.0 += i64::from(effect.0);
            state.1 += i64::from(effect.1);
        };
        let possible = brute::states(&(10, 10), &calls, span, &apply);
        let any = |axis: fn(&(i64, i64)) -> i64, random: &mut Random| {
            let all: Vec<i64> = possible.iter().map(axis).collect();
            random.pick(&all)
        };
        let seen = (any(|it| it.0, &mut random), any(|it| it.1, &mut random));
        records.push(record(FRIENDS, span, 7, RecordKind::ReadCount(seen.0)));
        records.push(record(INVITATIONS, span, 7, RecordKind::ReadCount(seen.1)));
        let options = Options {
            seed: SEED,
            cores: 1,
            witnesses_max: 9,
        };
        let report = judge(&records, &Ten { calls: &calls }, &options);
        let tell = || format!("{records:?}: {report:?}");
        assert_eq!(report.total.acceptable, 2, "{}", tell());
        let joint = report.level(Level::Joint);
        let expected = !possible.contains(&seen);
        assert_eq!(joint.judged, 1, "{}", tell());
        assert_eq!(joint.refused == 1, expected, "{}", tell());
        found[usize::from(expected)] += 1;
    }
    assert!(found[1] > 100, "{found:?}");
}

/// Ten friends and ten invitations, including those that the calls remove.
struct Ten<'a> {
    calls: &'a [(Span, (i32, i32))],
}

impl Initial for Ten<'_> {
    fn count(&self, _: u64) -> i32 {
        10
    }

    fn set(&self, item: u64) -> Vec<u64> {
        let taken = self.calls.iter().enumerate().filter(|(_, (_, effect))| {
            let delta = if item == FRIENDS { effect.0 } else { effect.1 };
            delta < 0
        });
        let mut list: Vec<u64> = taken.map(|(number, _)| 100 + number as u64).collect();
        list.extend(1..=10 - list.len() as u64);
        list
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

#[test]
fn later_reads_of_a_count_and_of_a_list_may_not_go_back() {
    let write = |what| record(FRIENDS, Span::new(10, 90).unwrap(), 1, what);
    let read = |start, what| record(FRIENDS, Span::new(start, start + 5).unwrap(), 2, what);
    let list = |elements: &[u64]| sketch(&elements.iter().copied().collect());
    for (change, new, old) in [
        (
            RecordKind::AddCount(1),
            RecordKind::ReadCount(3),
            RecordKind::ReadCount(2),
        ),
        (
            RecordKind::AddCount(-1),
            RecordKind::ReadCount(1),
            RecordKind::ReadCount(2),
        ),
        (RecordKind::PutElement(3), list(&[1, 2, 3]), list(&[1, 2])),
        (RecordKind::RemoveElement(2), list(&[1]), list(&[1, 2])),
        (
            RecordKind::PutElement(3),
            RecordKind::ReadCount(3),
            list(&[1, 2]),
        ),
        (
            RecordKind::WriteContent(7),
            RecordKind::ReadContent(7),
            RecordKind::ReadContent(0),
        ),
    ] {
        let refused = |first, second| {
            let report = report(&[write(change), read(20, first), read(30, second)]);
            assert_eq!(report.unpredictable(), 0);
            assert_eq!(report.level(Level::Atomic).judged, 2);
            let refused = report.level(Level::Atomic).refused;
            let witnesses = report.witnesses.iter();
            let back = witnesses.filter(|witness| witness.failure == Failure::WentBack);
            assert_eq!(back.count() as u64, refused);
            refused
        };
        assert_eq!(refused(new, old), 1, "{change:?}");
        assert_eq!(refused(old, new), 0, "{change:?}");
        assert_eq!(refused(new, new), 0, "{change:?}");
    }
}

/// Two writes are in flight throughout; two reads see different parts of them.
#[test]
fn two_reads_that_no_order_of_two_writes_explains_are_rejected() {
    let list = |elements: &[u64]| sketch(&elements.iter().copied().collect());
    let refused = |change: fn(u64) -> RecordKind, reads: [(u64, u64, RecordKind); 2]| {
        let writes =
            [3, 4].map(|element| record(FRIENDS, Span::new(10, 90).unwrap(), 1, change(element)));
        let reads = reads
            .map(|(start, end, what)| record(FRIENDS, Span::new(start, end).unwrap(), 2, what));
        let report = report(&[&writes[..], &reads[..]].concat());
        assert_eq!(report.unpredictable(), 0, "{report:?}");
        assert_eq!(report.level(Level::Atomic).judged, 2);
        // Each counts once at this level, and none at lower levels.
        let refused = report.level(Level::Atomic).refused;
        assert_eq!(report.rejected_up_to(Level::Atomic), refused);
        assert_eq!(report.rejected_up_to(Level::Snapshot), 0);
        refused
    };
    let put = |element| RecordKind::PutElement(element);
    let add = |_| RecordKind::AddCount(1);
    // One list with only the one element and one with only the other, in either order of the reads or concurrently.
    for second in [(30, 60), (20, 50), (60, 70), (11, 15)] {
        let (start, end) = second;
        let apart = [(20, 50, list(&[1, 2, 3])), (start, end, list(&[1, 2, 4]))];
        assert_eq!(refused(put, apart), 1, "{second:?}");
        let together = [(20, 50, list(&[1, 2, 3])), (start, end, list(&[1, 2, 3]))];
        assert_eq!(refused(put, together), 0, "{second:?}");
    }
    for change in [put as fn(u64) -> RecordKind, add] {
        let number = |first, second| {
            let (first, second) = (RecordKind::ReadCount(first), RecordKind::ReadCount(second));
            refused(change, [(20, 25, first), (30, 35, second)])
        };
        // The count falls from the maximum, or from one of two to none.
        assert_eq!((number(4, 3), number(4, 2), number(3, 2)), (1, 1, 1));
        for rising in [(2, 2), (2, 3), (3, 3), (3, 4), (2, 4), (4, 4)] {
            assert_eq!(number(rising.0, rising.1), 0, "{rising:?}");
        }
        // Concurrent reads may show either value first.
        let at_once = [
            (20, 35, RecordKind::ReadCount(4)),
            (30, 40, RecordKind::ReadCount(3)),
        ];
        assert_eq!(refused(change, at_once), 0);
    }
}

#[test]
fn a_read_is_counted_once_among_those_rejected_up_to_a_level() {
    let mut random = Random::new(34);
    let mut some = 0;
    for _ in 0..rounds(3_000, 30_000) {
        let elements = random.one_in(2);
        let writes: Vec<Record> = (0..1 + random.below(4))
            .map(|_| {
                let span = write_span(&mut random);
                record(FRIENDS, span, 0, change(&mut random, elements))
            })
            .collect();
        let reads: Vec<Record> = (0..1 + random.below(5))
            .map(|_| {
                let span = any_span(&mut random);
                let members: BTreeSet<u64> = (1..5).filter(|_| random.one_in(2)).collect();
                let what = if elements && random.one_in(2) {
                    sketch(&members)
                } else {
                    RecordKind::ReadCount(random.below(5) as i64)
                };
                record(FRIENDS, span, 0, what)
            })
            .collect();
        let report = report(&[&writes[..], &reads[..]].concat());
        let up_to = Level::ALL.map(|level| report.rejected_up_to(level));
        assert!(up_to.is_sorted(), "{up_to:?}");
        assert_eq!(
            report.rejected_up_to(Level::Snapshot),
            report.unpredictable()
        );
        let back = report.level(Level::Atomic).refused;
        assert_eq!(
            report.rejected_up_to(Level::Atomic),
            report.unpredictable() + back,
            "{report:?}"
        );
        assert!(up_to[4] <= reads.len() as u64, "{up_to:?}");
        some += u64::from(back > 0);
    }
    assert!(some > 10, "{some}");
}
