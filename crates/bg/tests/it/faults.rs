//! Tests that validation finds every fault injected into answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use larder_bg::model::draw::{self, Drawing};
use larder_bg::model::item::Kind;
use larder_bg::model::mix::Mix;
use larder_bg::model::population::Population;
use larder_bg::run::{Process, Setup, Tracing};
use larder_bg::verdict::measure::{Laboratory, Load, Measured, Trial};
use larder_validate::record::{Outcome, Record, What};
use larder_validate::set::Sketch;

use crate::end_state;
use crate::trial::{setup, trial};

const MIX: &str = "view-profile 15\nlist-friends 20\nview-friend-requests 10\nview-comments 10\n\
    invite-friend 15\naccept-friend-request 7\nreject-friend-request 6\nthaw-friendship 7\n\
    post-comment 6\ndelete-comment 4";

/// The injected faults and the measurements.
type Ran = (Vec<(&'static str, u64)>, Measured);

/// Numbers of workers to test: a single worker knows the order of all calls, several do not.
const WORKERS: [usize; 2] = [1, 3];

/// Many threads, so that calls overlap. Bounded by a count, so that a slow machine has as many faults.
const LOAD: Load = Load::Threads(50);
const CALLS: u64 = 6000;

fn run(workers: usize, settings: &[(&str, &str)]) -> Ran {
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
    setup.drawing = Drawing::of_all(draw::DEFAULT, members);
    setup.workers = workers;
    setup
}

fn of(injected: &[(&'static str, u64)], name: &str) -> u64 {
    let found = injected.iter().find(|(it, _)| *it == name);
    found.map_or(0, |(_, count)| *count)
}

/// Returns the number of unpredictable reads of one class.
fn of_class(measured: &Measured, class: &str) -> u64 {
    let reads = measured.reads.as_ref().unwrap();
    let found = reads.by_class.iter().find(|(name, _)| name == class);
    found.map_or(0, |(_, count)| *count)
}

/// Runs with each number of workers and returns the measurements. Checks that only this class was injected and that
/// every fault was found.
fn check_found_to_the_last(class: &str, rate: &str) -> [Measured; 2] {
    WORKERS.map(|workers| check_found(class, 20, run(workers, &[(class, rate)])))
}

#[track_caller]
fn check_found(class: &str, at_least: u64, (mut injected, measured): Ran) -> Measured {
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
fn no_fault_is_found_where_none_was_injected() {
    for workers in WORKERS {
        let (injected, measured) = run(workers, &[]);
        assert_eq!(injected, []);
        let reads = measured.reads.unwrap();
        assert!(reads.reads > 1000, "{reads:?}");
        assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
    }
}

#[test]
fn every_stale_answer_is_found_and_called_stale() {
    for measured in check_found_to_the_last("stale", "0.05") {
        let reads = measured.reads.as_ref().unwrap();
        assert_eq!(of_class(&measured, "stale"), reads.unpredictable);
        assert_eq!(reads.ages.iter().sum::<u64>(), reads.unpredictable);
    }
}

#[test]
fn every_lost_element_is_found() {
    check_found_to_the_last("lost", "0.05");
}

#[test]
fn every_phantom_is_found_and_called_one() {
    for measured in check_found_to_the_last("phantom", "0.05") {
        let reads = measured.reads.as_ref().unwrap();
        assert_eq!(of_class(&measured, "phantom"), reads.unpredictable);
    }
}

#[test]
fn every_duplicate_is_found() {
    check_found_to_the_last("duplicate", "0.05");
}

#[test]
fn every_fractured_list_is_found_and_called_so() {
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
            assert_eq!(reads.unpredictable, of(&store.injected(), "fractured"));
            assert_eq!(of_class(&measured, "fractured"), reads.unpredictable);
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
        assert!(of(&during, "lost-write") >= 20, "{during:?}");
        assert!(of(&during, "lost-write reads") >= 20, "{during:?}");
        let reads = measured.reads.unwrap();
        assert_eq!(reads.unpredictable, of(&during, "lost-write reads"));
        assert_eq!(reads.undecided, 0);

        let acknowledged = acknowledged(&population, &end_state::records(&trace));
        let (left, report) = end_state::judged(&*store, &population, &trace);
        let shown = of(&store.injected(), "lost-write reads") - of(&during, "lost-write reads");
        let refused = report.end_state.reads - report.end_state.acceptable;
        assert_eq!(report.end_state.reads, left.len() as u64);
        assert_eq!(refused, shown);
        let differ = |read: &&Record| {
            let elements = acknowledged[&read.item].iter().copied();
            match read.what {
                What::ReadCount(count) => count != elements.len() as i64,
                what => what != What::ReadSet(Sketch::of(population.seed, read.item, elements)),
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
        lists.insert(Kind::Friends.of(member.into()), friends.collect());
        let inviters = population.inviters_of(member).map(u64::from);
        lists.insert(Kind::Invitations.of(member.into()), inviters.collect());
    }
    for resource in 0..population.resource_count() {
        let comments = 0..u64::from(population.comments);
        lists.insert(Kind::Comments.of(resource), comments.collect());
    }
    let done = records.iter().filter(|it| it.outcome == Outcome::Done);
    let mut writes: Vec<&Record> = done.collect();
    // Writes of the same element do not overlap.
    writes.sort_by_key(|write| write.span);
    for write in writes {
        let list: &mut BTreeSet<u64> = lists.entry(write.item).or_default();
        match write.what {
            What::PutElement(element) => list.insert(element),
            What::RemoveElement(element) => list.remove(&element),
            _ => false,
        };
    }
    lists
}

#[test]
fn refusals_and_silence_are_counted_and_spoil_no_verdict() {
    let (injected, measured) = run(3, &[("error", "0.1"), ("unknown", "0.1")]);
    let sum = |count: fn(&larder_bg::verdict::measure::ActionMeasured) -> u64| -> u64 {
        measured.actions.iter().map(count).sum()
    };
    let of = |name| of(&injected, name);
    assert!(of("error") > 50 && of("unknown") > 20, "{injected:?}");
    assert_eq!(sum(|it| it.refused), of("error"));
    assert_eq!(sum(|it| it.unknown), of("unknown"));
    let reads = measured.reads.unwrap();
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
}

#[test]
fn calls_that_stall_longer_than_the_timeout_are_of_unknown_outcome() {
    let mut setup = setup(
        "faulty:memory",
        "symmetric-high-write",
        &[("stall", "0.02"), ("stall-for", "10s")],
    );
    setup.conduct.timeout = Duration::from_millis(20);
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
fn an_open_loop_shows_what_a_closed_one_omits() {
    let run = |load| {
        let mut setup = setup(
            "faulty:memory",
            "read-only",
            &[("stall", "0.01"), ("stall-for", "100ms")],
        );
        setup.workers = 1;
        setup.tracing = Tracing::None;
        setup.conduct.threads_max = 1;
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
fn an_open_loop_keeps_its_rate_and_counts_what_nobody_was_free_for() {
    let run = |rate, threads, settings: &[(&str, &str)]| {
        let mut setup = setup("faulty:memory", "read-only", settings);
        setup.tracing = Tracing::None;
        setup.conduct.threads_max = threads;
        let trial = Trial {
            load: Load::Rate(rate),
            ..trial(1, 1000)
        };
        Process::new(setup).unwrap().run(&trial).unwrap()
    };
    // If the machine stalls for a moment, the second has fewer calls, never more.
    let even = run(2000.0, 100, &[]);
    assert!((1000..2224).contains(&even.done()), "{}", even.done());
    assert!(even.unbegun < 500, "{}", even.unbegun);
    let overrun = run(2000.0, 2, &[("stall", "1"), ("stall-for", "20ms")]);
    assert!(overrun.done() < 150, "{}", overrun.done());
    let due = overrun.done() + overrun.unbegun;
    assert!((1700..2300).contains(&due), "{due}");
}
