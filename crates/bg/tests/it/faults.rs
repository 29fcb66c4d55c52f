//! Faults put into answers, and found by validation: to the last one.

use std::sync::Arc;
use std::time::Duration;

use larder_bg::draw::{self, Drawing};
use larder_bg::measure::{Laboratory, Load, Measured, Trial};
use larder_bg::mix::Mix;
use larder_bg::run::{Process, Tracing};

use crate::trial::{setup, trial};

const MIX: &str = "view-profile 15\nlist-friends 20\nview-friend-requests 10\nview-comments 10\n\
    invite-friend 15\naccept-friend-request 7\nreject-friend-request 6\nthaw-friendship 7\n\
    post-comment 6\ndelete-comment 4";

/// A second's worth of calls that overlap, on one worker; what was injected, and what came of it.
fn run(settings: &[(&str, &str)], threads: u32) -> (Vec<(&'static str, u64)>, Measured) {
    run_mix(MIX, 200, settings, threads)
}

fn run_mix(
    mix: &str,
    members: u32,
    settings: &[(&str, &str)],
    threads: u32,
) -> (Vec<(&'static str, u64)>, Measured) {
    let mut all = vec![("delay", "1ms")];
    all.extend(settings);
    let mut setup = setup("faulty:memory", "read-only", &all);
    setup.mix = Mix::parse("faults", mix).unwrap();
    Arc::make_mut(&mut setup.population).members = members;
    setup.drawing = Drawing::of_all(draw::DEFAULT, members);
    setup.workers = 1;
    let store = setup.store.clone();
    let measured = Process::new(setup)
        .unwrap()
        .run(&trial(threads, 700))
        .unwrap();
    (store.injected(), measured)
}

/// Unpredictable reads of one class.
fn of_class(measured: &Measured, class: &str) -> u64 {
    let reads = measured.reads.as_ref().unwrap();
    let found = reads.by_class.iter().find(|(name, _)| name == class);
    found.map_or(0, |(_, count)| *count)
}

fn check_found_to_the_last(class: &str, rate: &str, threads: u32, at_least: u64) -> Measured {
    check_found(class, run(&[(class, rate)], threads), at_least)
}

fn check_found(
    class: &str,
    (injected, measured): (Vec<(&'static str, u64)>, Measured),
    at_least: u64,
) -> Measured {
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
    let (injected, measured) = run(&[], 50);
    assert_eq!(injected, []);
    let reads = measured.reads.unwrap();
    assert!(reads.reads > 1000, "{reads:?}");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
}

#[test]
fn every_stale_answer_is_found_and_called_stale() {
    let measured = check_found_to_the_last("stale", "0.05", 50, 20);
    let reads = measured.reads.as_ref().unwrap();
    assert_eq!(of_class(&measured, "stale"), reads.unpredictable);
    assert_eq!(reads.ages.iter().sum::<u64>(), reads.unpredictable);
}

#[test]
fn every_lost_element_is_found() {
    check_found_to_the_last("lost", "0.05", 50, 20);
}

#[test]
fn every_phantom_is_found_and_called_one() {
    let measured = check_found_to_the_last("phantom", "0.05", 50, 20);
    let reads = measured.reads.as_ref().unwrap();
    assert_eq!(of_class(&measured, "phantom"), reads.unpredictable);
}

#[test]
fn every_duplicate_is_found() {
    check_found_to_the_last("duplicate", "0.05", 50, 20);
}

#[test]
fn every_fractured_list_is_found_and_nearly_all_are_called_so() {
    // Few members, so that lists change while they are read.
    let mix = "list-friends 20\ninvite-friend 30\naccept-friend-request 30\nthaw-friendship 20";
    let ran = run_mix(mix, 30, &[("fractured", "0.5")], 25);
    let measured = check_found("fractured", ran, 5);
    let all = measured.reads.as_ref().unwrap().unpredictable;
    // One may look as the list did once before.
    assert!(
        of_class(&measured, "fractured") * 10 >= all * 8,
        "{measured:?}"
    );
}

#[test]
fn refusals_and_silence_are_counted_and_spoil_no_verdict() {
    let (injected, measured) = run(&[("error", "0.1"), ("unknown", "0.1")], 50);
    let sum = |count: fn(&larder_bg::measure::ActionMeasured) -> u64| -> u64 {
        measured.actions.iter().map(count).sum()
    };
    let of = |name| injected.iter().find(|(it, _)| *it == name).unwrap().1;
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
    let measured = Process::new(setup).unwrap().run(&trial(8, 300)).unwrap();
    let unknown: u64 = measured.actions.iter().map(|it| it.unknown).sum();
    assert_eq!(store.injected(), [("stall", unknown)]);
    assert!(unknown > 10, "{unknown}");
    let reads = measured.reads.unwrap();
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
}

/// What a stalling store does to latencies: the closed loop asks less while it waits, the open loop does not.
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
        let trial = Trial {
            load,
            warmup: Duration::ZERO,
            duration: Duration::from_millis(1500),
        };
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
    let even = run(2000.0, 100, &[]);
    let apart = (even.done() as f64 - 2000.0).abs();
    assert!(apart < 5.0 * 2000f64.sqrt(), "{}", even.done());
    assert_eq!(even.unbegun, 0);
    let overrun = run(2000.0, 2, &[("stall", "1"), ("stall-for", "20ms")]);
    assert!(overrun.done() < 150, "{}", overrun.done());
    let due = overrun.done() + overrun.unbegun;
    assert!((1700..2300).contains(&due), "{due}");
}
