//! Tests of trials on data stores in this process, from the draws to validation.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_bg::model::action::Action;
use larder_bg::model::draw::{self, Drawing};
use larder_bg::model::mix::Mix;
use larder_bg::model::population::Population;
use larder_bg::run::{Process, RunOptions, Setup, Tracing};
use larder_bg::stores;
use larder_bg::stores::contract::{Client, Reply, Store};
use larder_bg::verdict::judge;
use larder_bg::verdict::measure::{Load, Measurements, Trial, TrialRunner};

use crate::end_state;

pub fn setup(store: &str, mix: &str, settings: &[(&str, &str)]) -> Setup {
    let options = stores::Options {
        settings: settings
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        ..Default::default()
    };
    let population = Population {
        members: 200,
        friends: 10,
        invitations: 2,
        resources: 6,
        comments: 1,
        ..Population::default()
    };
    Setup {
        store: Arc::from(stores::open(store, &options).unwrap()),
        mix: Mix::open(mix).unwrap(),
        drawing: Drawing::for_all_members(draw::DEFAULT, population.members),
        population: Arc::new(population),
        run_options: RunOptions::default(),
        workers: 2,
        tracing: Tracing::Scratch,
        seed: 1,
    }
}

pub fn trial(threads: u32, milliseconds: u64) -> Trial {
    let duration = Duration::from_millis(milliseconds);
    Trial::timed(Load::Threads(threads), Duration::ZERO, duration)
}

pub fn check_all_explained(measured: &Measurements) {
    let reads = measured.reads.as_ref().expect("it was traced");
    assert!(reads.reads > 100, "{reads:?}");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
    for action in Action::ALL {
        let one = measured.of(action);
        assert_eq!(
            (one.refused, one.unknown, one.wrong),
            (0, 0, 0),
            "{action:?}"
        );
    }
}

#[test]
fn a_correct_store_has_no_unpredictable_reads_under_any_mix() {
    for mix in [
        "symmetric-high-write",
        "high-write",
        "comments",
        "sessions",
        "feeds",
        "write-only",
    ] {
        for unique_reads in [true, false] {
            let mut setup = setup("memory", mix, &[]);
            setup.run_options.unique_reads = unique_reads;
            if mix == "write-only" {
                setup.mix = Mix::parse(
                    mix,
                    "invite-friend 30\naccept-friend-request 15\nreject-friend-request 10\nthaw-friendship 15\n\
                     view-profile 15\nlist-friends 10\nview-friend-requests 5",
                )
                .unwrap();
            }
            let expected: Vec<Action> = setup.mix.actions().collect();
            let trial = Trial::counted(Load::Threads(20), 5000);
            let measured = Process::new(setup).unwrap().run(&trial).unwrap();
            check_all_explained(&measured);
            for action in expected {
                assert!(measured.of(action).done() > 0, "{mix}: no {action:?}");
            }
            assert_eq!(measured.sessions > 0, mix == "sessions");
        }
    }
}

#[test]
fn a_second_trial_is_validated_from_the_end_state_of_the_first() {
    let mut process = Process::new(setup("memory", "comments", &[])).unwrap();
    for _ in 0..3 {
        check_all_explained(&process.run(&trial(5, 50)).unwrap());
    }
}

/// Threads that think at the end of the trial start no further call and keep no comment taken.
#[test]
fn no_call_starts_after_the_end_of_its_trial() {
    let folder = tempfile::tempdir().unwrap();
    let mut setup = setup("faulty:memory", "sessions", &[("delay", "2ms")]);
    setup.run_options.think = Duration::from_millis(3);
    setup.tracing = Tracing::Keep(folder.path().to_owned());
    let mut process = Process::new(setup).unwrap();
    for trace in [folder.path().to_owned(), folder.path().join("trial-2")] {
        check_all_explained(&process.run(&trial(40, 200)).unwrap());
        let mut records = end_state::records(&trace).into_iter();
        let late = records.find(|record| record.span.start() >= 200_000_000);
        assert_eq!(late, None);
    }
}

#[test]
fn a_kept_trace_can_be_validated_and_a_truncated_one_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let mut setup = setup("memory", "comments", &[]);
    setup.tracing = Tracing::Keep(folder.path().to_owned());
    let measured = Process::new(setup).unwrap().run(&trial(5, 50)).unwrap();
    let judged = |folder: &Path| judge::judge_folder(folder, 1);
    assert_eq!(judged(folder.path()).ok(), measured.reads);
    let file = folder.path().join("worker-001.trace");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 64]).unwrap();
    let error = judged(folder.path()).unwrap_err();
    assert!(
        error.contains("worker-001.trace: the trace has no footer"),
        "{error}"
    );
}

#[test]
fn invalid_options_are_rejected_by_name_before_the_trial() {
    let rejection = |setup: Setup, trial: Trial| {
        Process::new(setup)
            .and_then(|mut process| process.run(&trial))
            .unwrap_err()
    };
    let memory = || setup("memory", "comments", &[]);
    assert!(rejection(memory(), trial(0, 50)).contains("--threads 0"));
    assert!(rejection(memory(), trial(5, 0)).contains("--duration 0"));
    assert!(
        rejection(memory(), trial(201, 50))
            .contains("201 threads need as many members, but there are 200")
    );
    let mut none = memory();
    Arc::make_mut(&mut none.population).resources = 0;
    assert!(rejection(none, trial(5, 50)).contains("--resources 0: the mix comments"));
    let mut odd = memory();
    Arc::make_mut(&mut odd.population).friends = 9;
    assert!(rejection(odd, trial(5, 50)).contains("--friends 9: must be even"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes"), "mine").unwrap();
    let mut full = memory();
    full.tracing = Tracing::Keep(folder.path().to_owned());
    assert!(rejection(full, trial(5, 50)).contains("is not empty"));
    assert!(
        stores::open("nosuch", &Default::default())
            .err()
            .unwrap()
            .contains("--store nosuch")
    );
}

#[test]
fn threads_may_change_and_a_trial_may_end_early() {
    let mut setup = setup("memory", "read-only", &[]);
    setup.tracing = Tracing::None;
    let mut process = Process::new(setup).unwrap();
    let live = process.live().clone();
    process.on_second(
        move |live| match live.with_state(|seen| (seen.threads, seen.now_ns)) {
            (4, _) => live.set_threads(2),
            _ => live.stop(),
        },
    );
    let measured = process.run(&trial(4, 60_000)).unwrap();
    assert!(
        measured.duration < Duration::from_secs(30),
        "{:?}",
        measured.duration
    );
    assert!(measured.done() > 0 && measured.series.len() >= 2);
    assert_eq!(live.with_state(|seen| seen.threads), 2);
}

/// A data store that outlives the process that loaded it.
pub struct PersistentStore(pub Arc<dyn Store>);

impl Store for PersistentStore {
    fn name(&self) -> &'static str {
        "kept"
    }

    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()> {
        self.0.create(population)
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        self.0.note(name)
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        self.0.put_note(name, text)
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        self.0.put_note_if_absent(name, text)
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        self.0.connect(population)
    }
}

fn due(measured: &Measurements) -> u64 {
    let all = measured.actions.iter();
    all.map(|it| it.calls() + it.skipped).sum()
}

#[test]
fn a_trial_bounded_by_a_count_measures_exactly_that_many_actions() {
    for workers in [1, 3] {
        for load in [Load::Threads(7), Load::Rate(100_000.0)] {
            let mut setup = setup("memory", "sessions", &[]);
            setup.workers = workers;
            setup.run_options.threads_max = 20;
            let mut process = Process::new(setup).unwrap();
            let counted = Trial::counted(load, 1000);
            assert_eq!(due(&process.run(&counted).unwrap()), 1000);
            // The writes of the warm-up are part of the initial state of the trial.
            let warmed = Trial {
                warmup_actions: Some(500),
                ..counted
            };
            let measured = process.run(&warmed).unwrap();
            assert_eq!(due(&measured), 1000);
            assert_eq!(measured.missed_starts, 0);
            check_all_explained(&measured);
        }
    }
}

/// A member without invitations performs the reads before the action that needs one.
#[test]
fn a_session_that_cannot_finish_performs_its_first_actions() {
    let mut setup = setup("memory", "sessions", &[]);
    setup.mix = Mix::parse("accepting", "accept 100").unwrap();
    setup.population = Arc::new(Population {
        invitations: 0,
        ..Population::clone(&setup.population)
    });
    // Seven actions per session.
    let trial = Trial::counted(Load::Threads(1), 700);
    let measured = Process::new(setup).unwrap().run(&trial).unwrap();
    for action in [
        Action::ViewProfile,
        Action::ViewTopResources,
        Action::ListFriends,
        Action::ViewFriendRequests,
    ] {
        assert_eq!(measured.of(action).done(), 100, "{action:?}");
    }
    assert_eq!(measured.of(Action::AcceptFriendRequest).calls(), 0);
    assert_eq!(measured.of(Action::AcceptFriendRequest).skipped, 100);
    assert_eq!(measured.sessions, 0);
    check_all_explained(&measured);
}

#[test]
fn warm_up_is_not_measured() {
    let mut process = Process::new(setup("memory", "read-only", &[])).unwrap();
    let trial = Trial {
        warmup: Duration::from_millis(150),
        ..trial(4, 50)
    };
    let measured = process.run(&trial).unwrap();
    assert_eq!(measured.duration, Duration::from_millis(50));
    let traced = measured.reads.unwrap().reads;
    assert!(measured.actions.iter().map(|it| it.calls()).sum::<u64>() < traced * 3 / 4);
    assert_eq!(measured.series.len(), 1);
}

#[test]
fn observers_see_validated_reads_during_the_trial() {
    let mut setup = setup("memory", "symmetric-high-write", &[]);
    // Few calls, so that online validation keeps up even with little processor time.
    setup.run_options.between = Duration::from_millis(1);
    let mut process = Process::new(setup).unwrap();
    process.validate_online();
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    process.on_second({
        let seen = seen.clone();
        move |live| {
            let judged = live.with_state(|seen| seen.total.reads.clone());
            seen.borrow_mut().push(judged);
        }
    });
    let mut trial = trial(4, 3500);
    trial.warmup = Duration::from_millis(500);
    let measured = process.run(&trial).unwrap();
    check_all_explained(&measured);
    let all = measured.reads.as_ref().unwrap().reads;
    let seen = seen.borrow();
    let early: Vec<_> = seen[..seen.len() - 1].iter().flatten().collect();
    let last = early.last().expect("reads were validated before the end");
    assert!(last.reads > 100 && last.reads < all, "{last:?} of {all}");
    for judged in early {
        assert_eq!(
            (judged.unpredictable, judged.undecided),
            (0, 0),
            "{judged:?}"
        );
    }
}
