//! Tests of which runs may act on a data store: only those that know its contents, however much or little earlier runs
//! changed.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;

use larder_bg::model::mix::Mix;
use larder_bg::model::population::Population;
use larder_bg::run::Process;
use larder_bg::stores::contract::Store;
use larder_bg::stores::load;
use larder_bg::stores::notes::LoadNote;
use larder_bg::stores::{self, Options};
use larder_bg::verdict::measure::{Measurements, TrialRunner};

use crate::conformance::run;
use crate::larder::Larder;
use crate::servers;
use crate::trial::{PersistentStore, setup, trial};

/// Returns a process for a data store with the population of `trial::setup`.
fn process(store: &Arc<dyn Store>, mix: &str) -> Process {
    let mut setup = setup("memory", mix, &[]);
    setup.store = store.clone();
    Process::new(setup).expect("valid options")
}

fn loaded(store: &Arc<dyn Store>) {
    process(store, "comments")
        .load(&mut |_| {})
        .expect("loaded");
}

fn persistent_memory() -> Arc<dyn Store> {
    let memory = stores::open("memory", &Options::default()).expect("opens");
    Arc::new(PersistentStore(Arc::from(memory)))
}

fn check_explained(measured: &Measurements) {
    let reads = measured.reads.as_ref().expect("it was traced");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
    let wrong: u64 = measured.actions.iter().map(|one| one.wrong).sum();
    assert_eq!(wrong, 0);
}

/// Runs a later run, which must be rejected, and returns the reason.
fn expect_rejection(store: &Arc<dyn Store>, mix: &str) -> String {
    let why = process(store, mix).run(&trial(4, 20)).expect_err("refused");
    assert!(
        why.contains("bg load") && why.contains("--load"),
        "says what to do: {why}"
    );
    why
}

/// Uses comments and posts, which the sample of profiles does not show. Without the notes, validation of a second run
/// would report a correct data store as wrong.
fn only_the_writing_run_may_continue(store: &Arc<dyn Store>) {
    for mix in ["comments", "feeds"] {
        loaded(store);
        // A run that only reads leaves the data store unchanged.
        for _ in 0..2 {
            check_explained(&process(store, "read-only").run(&trial(4, 60)).unwrap());
        }
        let mut first = process(store, mix);
        for _ in 0..2 {
            check_explained(&first.run(&trial(4, 60)).unwrap());
        }
        for later in [mix, "read-only"] {
            let why = expect_rejection(store, later);
            assert!(why.contains("another run has written to"), "{why}");
        }
        check_explained(&first.run(&trial(4, 60)).unwrap());
        loaded(store);
        check_explained(&process(store, mix).run(&trial(4, 60)).unwrap());
        let why = first.run(&trial(4, 20)).unwrap_err();
        assert!(why.contains("another process has reloaded"), "{why}");
    }
}

fn at(name: &str, address: String, settings: &[(&str, &str)]) -> Arc<dyn Store> {
    let settings = settings.iter();
    let options = Options {
        address: Some(address),
        connections: None,
        settings: settings
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
    };
    Arc::from(stores::open(name, &options).expect("opens"))
}

#[test]
fn only_the_writing_run_may_continue_with_memory() {
    only_the_writing_run_may_continue(&persistent_memory());
}

#[test]
fn only_the_writing_run_may_continue_with_larder() {
    let server = Larder::start(1);
    only_the_writing_run_may_continue(&at("larder", server.address(), &[]));
}

#[test]
fn only_the_writing_run_may_continue_with_redis() {
    let Some(server) = servers::redis() else {
        return;
    };
    only_the_writing_run_may_continue(&at("redis", server.address(), &[]));
}

#[test]
fn only_the_writing_run_may_continue_with_mongodb() {
    let Some(server) = servers::mongo() else {
        return;
    };
    only_the_writing_run_may_continue(&at("mongodb", server.address(), &[]));
}

#[test]
fn only_the_writing_run_may_continue_with_postgres() {
    let (Some(database), Some(cache)) = (servers::database(), servers::memcached()) else {
        return;
    };
    let basic = at("postgres", database.address(), &[]);
    only_the_writing_run_may_continue(&basic);
    // Data with another layout, or behind a cache, is not what this store would read.
    let one = at("postgres", database.address(), &[("rows", "1")]);
    let cache = cache.address();
    let cached = at(
        "postgres+memcached",
        database.address(),
        &[("memcached", &cache)],
    );
    loaded(&basic);
    for other in [&one, &cached] {
        let why = expect_rejection(other, "read-only");
        assert!(
            why.contains("was loaded with the layout postgres layout=basic rows=2"),
            "{why}"
        );
    }
    only_the_writing_run_may_continue(&one);
    only_the_writing_run_may_continue(&cached);
}

#[test]
fn a_different_population_is_rejected_by_option() {
    let store = persistent_memory();
    let why = expect_rejection(&store, "read-only");
    assert!(why.contains("contains no population"), "{why}");
    loaded(&store);
    let mut other = setup("memory", "comments", &[]);
    other.store = store.clone();
    other.population = Arc::new(Population {
        members: 300,
        comments: 2,
        ..Population::clone(&other.population)
    });
    let why = Process::new(other).unwrap().run(&trial(4, 20)).unwrap_err();
    assert!(
        why.contains("--members 200 instead of 300, --comments 1 instead of 2"),
        "{why}"
    );
    check_explained(&process(&store, "comments").run(&trial(4, 60)).unwrap());
}

#[test]
fn an_interrupted_load_can_be_continued_or_repeated_but_not_used() {
    let store = persistent_memory();
    let population = process(&store, "comments").setup().population.clone();
    run(async {
        store.create(&population).await.expect("created");
        let begin = LoadNote::new(&*store, &population).begin(&*store).await;
        begin.expect("noted");
    });
    let why = expect_rejection(&store, "read-only");
    assert!(why.contains("is incomplete"), "{why}");
    let continue_load = |population: &Arc<Population>| {
        load::load_from(0, &store, population, 1, &mut |_| {
            std::ops::ControlFlow::Continue(())
        })
    };
    let other = Arc::new(Population {
        seed: 2,
        ..Population::clone(&population)
    });
    let why = continue_load(&other).unwrap_err();
    assert!(why.contains("--seed 1 instead of 2"), "{why}");
    continue_load(&population).expect("loaded");
    check_explained(&process(&store, "comments").run(&trial(4, 60)).unwrap());
    // A load cannot resume on a data store that a run has changed.
    let why = continue_load(&population).unwrap_err();
    assert!(why.contains("a run has written to kept"), "{why}");
    let why = load::load_from(0, &persistent_memory(), &population, 1, &mut |_| {
        std::ops::ControlFlow::Continue(())
    });
    assert!(
        why.unwrap_err()
            .contains("kept contains no interrupted load")
    );
}

#[test]
fn one_of_two_concurrent_writing_runs_is_rejected() {
    let store = persistent_memory();
    loaded(&store);
    let ended: Vec<_> = std::thread::scope(|scope| {
        let runs = [(); 2].map(|()| {
            scope.spawn(|| {
                process(&store, "comments")
                    .run(&trial(4, 100))
                    .map(|measured| measured.reads)
            })
        });
        runs.into_iter()
            .map(|run| run.join().expect("no panic"))
            .collect()
    });
    let mut refusals = ended.iter().filter_map(|ended| ended.as_ref().err());
    let why = refusals.next().expect("one is refused");
    // Rejected because of the other run's name, or because of its changes.
    assert!(why.contains("since it was loaded"), "{why}");
    assert_eq!(refusals.next(), None);
}

#[test]
fn a_trial_disturbed_by_another_writer_or_loader_has_no_result() {
    type Meanwhile = fn(&Arc<dyn Store>);
    let writes: Meanwhile = |store| {
        process(store, "comments").run(&trial(4, 20)).unwrap();
    };
    for (meanwhile, expected) in [
        (writes, "another run wrote to kept"),
        (loaded, "another process loaded kept"),
    ] {
        let store = persistent_memory();
        loaded(&store);
        let mut reader = process(&store, "read-only");
        let shared = store.clone();
        // After the check and just before the start.
        reader.before_start(move || {
            meanwhile(&shared);
            Ok(())
        });
        let why = reader.run(&trial(4, 20)).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn clients_of_one_coordinator_are_one_run() {
    let store = persistent_memory();
    loaded(&store);
    let mut clients = ["one", "one", "two"].map(|run| {
        let mut setup = setup("memory", "comments", &[]);
        setup.store = store.clone();
        // Each of several clients changes only its own members, which the others do not view.
        setup.mix = Mix::parse("comments", "post-comment 50\nview-comments 50").expect("a mix");
        let mut client = Process::new(setup).expect("valid options");
        client.set_run_name(run);
        client
    });
    for client in &mut clients[..2] {
        client.run(&trial(4, 20)).unwrap();
    }
    let why = clients[2].run(&trial(4, 20)).unwrap_err();
    assert!(why.contains("another run has written to"), "{why}");
}

#[test]
fn a_killed_run_leaves_its_write_note() {
    let server = Larder::start(1);
    let store = at("larder", server.address(), &[]);
    loaded(&store);
    let mut bg = Command::new(env!("CARGO_BIN_EXE_bg"));
    bg.args(["run", "--store", "larder", "--mix", "comments"]);
    bg.args(["--at", &server.address(), "--duration", "1h"]);
    bg.args(["--members", "200", "--friends", "10", "--invitations", "2"]);
    bg.args(["--resources", "6", "--comments", "1"]);
    let mut child = bg.stderr(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let second = |line: std::io::Result<String>| line.expect("text").contains("threads");
    assert!(lines.any(second), "it runs for a second");
    child.kill().expect("our own child");
    child.wait().expect("ended");
    let why = expect_rejection(&store, "read-only");
    assert!(why.contains("another run has written to"), "{why}");
}
