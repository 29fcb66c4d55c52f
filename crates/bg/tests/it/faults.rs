//! Tests that validation finds every fault injected into answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use larder_bg::model::draw::{self, Drawing};
use larder_bg::model::item::Kind;
use larder_bg::model::mix::Mix;
use larder_bg::model::population::Population;
use larder_bg::run::{Process, Setup, Tracing};
use larder_bg::verdict::measure::{Load, Measurements, Trial, TrialRunner};
use larder_validate::record::{Outcome, Record, RecordKind};
use larder_validate::set::Sketch;

use crate::end_state;
use crate::trial::{setup, trial};

const MIX: &str = "view-profile 15\nlist-friends 20\nview-friend-requests 10\nview-comments 10\n\
    invite-friend 15\naccept-friend-request 7\nreject-friend-request 6\nthaw-friendship 7\n\
    post-comment 6\ndelete-comment 4";

/// The injected faults and the measurements.
type FaultyRun = (Vec<(&'static str, u64)>, Measurements);

/// Numbers of workers to test: a single worker knows the order of all calls, several do not.
const WORKERS: [usize; 2] = [1, 3];

/// Many threads, so that calls overlap. Bounded by a count, so that a slow machine has as many faults.
const LOAD: Load = Load::Threads(50);
const CALLS: u64 = 6000;

fn run(workers: usize, settings: &[(&str, &str)]) -> FaultyRun {
    let setup = setup_mix(workers, MIX, 200, settings);
    let store = setup.store.clone();
    let counted = Trial::counted(LOAD, CALLS);
    let measured = Process::new(setup).unwrap().run(&counted).unwrap();
    (store.injected(), measured)
}

fn setup_mix(workers: usize, mix: &str, members: u32, settings: &[(&str, &str)]) -> Setup {
    let mut all = vec![("delay", "1ms")];
    all.extend(settings);
    let mut setup = setup("faulty:memory", "read-only", &all);
    setup.mix = Mix::parse("faults", mix).unwrap();
    Arc::make_mut(&mut setup.population).members = members;
    setup.drawing = Drawing::for_all_members(draw::DEFAULT, members);
    setup.workers = workers;
    setup
}

fn injected_count(injected: &[(&'static str, u64)], name: &str) -> u64 {
    let found = injected.iter().find(|(it, _)| *it == name);
    found.map_or(0, |(_, count)| *count)
}

/// Returns the number of unpredictable reads of one class.
fn count_of_class(measured: &Measurements, class: &str) -> u64 {
    let reads = measured.reads.as_ref().unwrap();
    let found = reads.by_class.iter().find(|(name, _)| name == class);
    found.map_or(0, |(_, count)| *count)
}

/// Runs with each number of workers and returns the measurements. Checks that only this class was injected and that
/// every fault was found.
fn check_all_found(class: &str, rate: &str) -> [Measurements; 2] {
    WORKERS.map(|workers| check_found(class, 20, run(workers, &[(class, rate)])))
}

#[track_caller]
fn check_found(class: &str, at_least: u64, (mut injected, measured): FaultyRun) -> Measurements {
    injected.retain(|(name, _)| *name != "barred");
    let [(name, count)] = injected[..] else {
        panic!("{class}: {injected:?}");
    };
    let reads = measured.reads.as_ref().unwrap();
    assert_eq!(name, class);
    assert!(count >= at_least, "{class}: only {count} injected");
    assert_eq!(reads.unpredictable, count, "{class}: {reads:?}");
    assert_eq!(reads.undecided, 0);
    measured
}

#[test]
fn no_fault_is_found_if_none_was_injected() {
    for workers in WORKERS {
        let (injected, measured) = run(workers, &[]);
        assert_eq!(injected, []);
        let reads = measured.reads.unwrap();
        assert!(reads.reads > 1000, "{reads:?}");
        assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
    }
}

#[test]
fn every_stale_answer_is_found_and_classified() {
    for measured in check_all_found("stale", "0.05") {
        let reads = measured.reads.as_ref().unwrap();
        assert_eq!(count_of_class(&measured, "stale"), reads.unpredictable);
        assert_eq!(reads.ages.iter().sum::<u64>(), reads.unpredictable);
    }
}

#[test]
fn every_lost_element_is_found() {
    check_all_found("lost", "0.05");
}

#[test]
fn every_phantom_is_found_and_classified() {
    for measured in check_all_found("phantom", "0.05") {
        let reads = measured.reads.as_ref().unwrap();
        assert_eq!(count_of_class(&measured, "phantom"), reads.unpredictable);
    }
}

#[test]
fn every_duplicate_is_found() {
    check_all_found("duplicate", "0.05");
}

#[test]
fn every_fractured_list_is_found_and_classified() {
    // Few members, so that lists change while they are read.
    let mix = "list-friends 20\ninvite-friend 30\naccept-friend-request 30\nthaw-friendship 20";
    for workers in WORKERS {
        // On a slow machine few calls overlap, so repeat the trial on new data stores until there are enough faults.
        let mut found = 0;
        for _ in 0..50 {
            let setup = setup_mix(workers, mix, 30, &[("fractured", "0.5")]);
            let store = setup.store.clone();
            let measured = Process::new(setup).unwrap().run(&trial(25, 500)).unwrap();
            let reads = measured.reads.as_ref().unwrap();
            assert_eq!(
                reads.unpredictable,
                injected_count(&store.injected(), "fractured")
            );
            assert_eq!(count_of_class(&measured, "fractured"), reads.unpredictable);
            assert_eq!(reads.undecided, 0);
            found += reads.unpredictable;
            if found >= 5 {
                break;
            }
        }
        assert!(found >= 5, "only {found} injected");
    }
}

/// Compares the final state with a sequential replay of the writes, an independent way to the same number.
#[test]
fn every_read_and_every_list_that_shows_a_lost_write_is_found() {
    for workers in WORKERS {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let mut setup = setup_mix(workers, MIX, 200, &[("lost-write", "0.03")]);
        setup.tracing = Tracing::Keep(trace.clone());
        let (store, population) = (setup.store.clone(), setup.population.clone());
        let counted = Trial::counted(LOAD, CALLS);
        let measured = Process::new(setup).unwrap().run(&counted).unwrap();
        let during = store.injected();
        assert!(injected_count(&during, "lost-write") >= 20, "{during:?}");
        assert!(
            injected_count(&during, "lost-write reads") >= 20,
            "{during:?}"
        );
        let reads = measured.reads.unwrap();
        assert_eq!(
            reads.unpredictable,
            injected_count(&during, "lost-write reads")
        );
        assert_eq!(reads.undecided, 0);

        let acknowledged = acknowledged(&population, &end_state::records(&trace));
        let (left, report) = end_state::judged(&*store, &population, &trace);
        let shown = injected_count(&store.injected(), "lost-write reads")
            - injected_count(&during, "lost-write reads");
        let refused = report.end_state.reads - report.end_state.acceptable;
        assert_eq!(report.end_state.reads, left.len() as u64);
        assert_eq!(refused, shown);
        let differ = |read: &&Record| {
            let elements = acknowledged[&read.item].iter().copied();
            match read.what {
                RecordKind::ReadCount(count) => count != elements.len() as i64,
                what => {
                    what != RecordKind::ReadSet(Sketch::of(population.seed, read.item, elements))
                }
            }
        };
        assert_eq!(left.iter().filter(differ).count() as u64, refused);
    }
}

/// Returns the lists that result from all acknowledged writes.
fn acknowledged(population: &Population, records: &[Record]) -> BTreeMap<u64, BTreeSet<u64>> {
    let mut lists = BTreeMap::new();
    for member in 0..population.members {
        let friends = population.friends_of(member).map(u64::from);
        lists.insert(Kind::Friends.item(member.into()), friends.collect());
        let inviters = population.inviters_of(member).map(u64::from);
        lists.insert(Kind::Invitations.item(member.into()), inviters.collect());
    }
    for resource in 0..population.resource_count() {
        let comments = 0..u64::from(population.comments);
        lists.insert(Kind::Comments.item(resource), comments.collect());
    }
    let done = records.iter().filter(|it| it.outcome == Outcome::Done);
    let mut writes: Vec<&Record> = done.collect();
    // Writes of the same element do not overlap.
    writes.sort_by_key(|write| write.span);
    for write in writes {
        let list: &mut BTreeSet<u64> = lists.entry(write.item).or_default();
        match write.what {
            RecordKind::PutElement(element) => list.insert(element),
            RecordKind::RemoveElement(element) => list.remove(&element),
            _ => false,
        };
    }
    lists
}

#[test]
fn rejections_and_timeouts_are_counted_and_cause_no_unpredictable_reads() {
    let (injected, measured) = run(3, &[("error", "0.1"), ("unknown", "0.1")]);
    let sum = |count: fn(&larder_bg::verdict::measure::ActionMeasurements) -> u64| -> u64 {
        measured.actions.iter().map(count).sum()
    };
    let of = |name| injected_count(&injected, name);
    assert!(of("error") > 50 && of("unknown") > 20, "{injected:?}");
    assert_eq!(sum(|it| it.refused), of("error"));
    assert_eq!(sum(|it| it.unknown), of("unknown"));
    let reads = measured.reads.unwrap();
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
}

#[test]
fn calls_longer_than_the_timeout_have_an_unknown_outcome() {
    let mut setup = setup(
        "faulty:memory",
        "symmetric-high-write",
        &[("stall", "0.02"), ("stall-for", "10s")],
    );
    setup.run_options.timeout = Duration::from_millis(20);
    let store = setup.store.clone();
    let counted = Trial::counted(Load::Threads(8), 1500);
    let measured = Process::new(setup).unwrap().run(&counted).unwrap();
    let unknown: u64 = measured.actions.iter().map(|it| it.unknown).sum();
    assert_eq!(store.injected(), [("stall", unknown)]);
    assert!(unknown > 10, "{unknown}");
    let reads = measured.reads.unwrap();
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
}

/// With a store that stalls, the closed loop makes fewer calls while it waits; the open loop does not.
#[test]
fn an_open_loop_measures_delays_that_a_closed_loop_omits() {
    let run = |load| {
        let mut setup = setup(
            "faulty:memory",
            "read-only",
            &[("stall", "0.01"), ("stall-for", "100ms")],
        );
        setup.workers = 1;
        setup.tracing = Tracing::None;
        setup.run_options.threads_max = 1;
        let trial = Trial::timed(load, Duration::ZERO, Duration::from_millis(1500));
        let measured = Process::new(setup).unwrap().run(&trial).unwrap();
        let slow: u64 = measured
            .actions
            .iter()
            .map(|it| it.calls() - it.within(20_000_000))
            .sum();
        slow as f64 / measured.done() as f64
    };
    let (closed, open) = (run(Load::Threads(1)), run(Load::Rate(300.0)));
    assert!(closed < 0.02, "closed: {closed}");
    assert!(open > 0.05, "open: {open}");
}

#[test]
fn an_open_loop_keeps_its_rate_and_counts_missed_starts() {
    let run = |rate, threads, settings: &[(&str, &str)]| {
        let mut setup = setup("faulty:memory", "read-only", settings);
        setup.tracing = Tracing::None;
        setup.run_options.threads_max = threads;
        let trial = Trial {
            load: Load::Rate(rate),
            ..trial(1, 1000)
        };
        Process::new(setup).unwrap().run(&trial).unwrap()
    };
    // If the machine stalls for a moment, the second has fewer calls, never more.
    let even = run(2000.0, 100, &[]);
    assert!((1000..2224).contains(&even.done()), "{}", even.done());
    assert!(even.missed_starts < 500, "{}", even.missed_starts);
    let overrun = run(2000.0, 2, &[("stall", "1"), ("stall-for", "20ms")]);
    assert!(overrun.done() < 150, "{}", overrun.done());
    let due = overrun.done() + overrun.missed_starts;
    assert!((1700..2300).contains(&due), "{due}");
}
