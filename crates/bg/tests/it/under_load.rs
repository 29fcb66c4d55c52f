//! Tests of data stores in other processes under concurrent load and with faults: the effects are measured and
//! validated.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use larder_bg::model::action::Action;
use larder_bg::model::draw::{self, Drawing};
use larder_bg::model::mix::Mix;
use larder_bg::model::population::Population;
use larder_bg::run::{Process, RunOptions, Setup, Tracing};
use larder_bg::stores::{self, Options};
use larder_bg::verdict::measure::{Load, Measurements, Trial, TrialRunner};
use rustix::process::Signal;

use crate::servers::{self, Server, ask_postgres};

/// Few members, so that many calls concern the same one. A third of the calls write.
fn setup(store: &str, options: &Options, timeout: Duration) -> Setup {
    let mix = "invite-friend 12\naccept-friend-request 6\nreject-friend-request 6\nthaw-friendship 6\n\
        post-comment 3\ndelete-comment 3\nview-comments 9\n\
        view-profile 20\nlist-friends 20\nview-friend-requests 10\nview-top-resources 5";
    let population = Population {
        members: 60,
        friends: 10,
        invitations: 3,
        resources: 2,
        comments: 2,
        image_size: Some(3000),
        ..Population::default()
    };
    Setup {
        store: Arc::from(stores::open(store, options).expect("opens")),
        mix: Mix::parse("writes", mix).expect("a mix"),
        drawing: Drawing::for_all_members(draw::DEFAULT, population.members),
        population: Arc::new(population),
        run_options: RunOptions {
            // Several threads view a member at the same time, so that readers share a cache entry.
            unique_reads: false,
            timeout,
            ..RunOptions::default()
        },
        workers: 2,
        tracing: Tracing::Scratch,
        seed: 1,
    }
}

/// Longer than any call takes on a server that is not stopped.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

fn loaded(store: &str, options: &Options, timeout: Duration) -> Process {
    let mut process = Process::new(setup(store, options, timeout)).expect("valid options");
    process.load(&mut |_| {}).expect("loaded");
    process
}

const LOAD: Load = Load::Threads(24);

/// An upper bound; the awaited condition holds much earlier, even on a slow machine.
const MOST: Duration = Duration::from_secs(120);

/// Runs until this number of actions was started.
fn run(process: &mut Process, actions: u64) -> Measurements {
    let measured = process.run(&Trial::counted(LOAD, actions));
    print_failures(process, measured.expect("a result"))
}

/// Runs until the measurements after a second satisfy `is_done`.
fn run_until(process: &mut Process, is_done: impl Fn(&Measurements) -> bool) -> Measurements {
    let trial = Trial::timed(LOAD, Duration::ZERO, MOST);
    let measured = process.run_until(&trial, &|measured, _| is_done(measured));
    let measured = print_failures(process, measured.expect("a result"));
    assert!(measured.duration < MOST, "the condition was not reached");
    measured
}

/// Returns whether some of the calls that ended in the last second were answered.
fn is_answering(measured: &Measurements) -> bool {
    let last = measured.series.last();
    last.is_some_and(|last| last.latency.len() > last.failed)
}

fn print_failures(process: &Process, measured: Measurements) -> Measurements {
    let failures = process.live().with_state(|seen| seen.failures.clone());
    eprintln!(
        "{} done, {:?} {failures:?}",
        measured.done(),
        measured.reads
    );
    measured
}

fn total(of: impl Fn(Action) -> u64) -> u64 {
    Action::ALL.into_iter().map(of).sum()
}

fn refused(measured: &Measurements) -> u64 {
    total(|action| measured.of(action).refused)
}

fn unknown(measured: &Measurements) -> u64 {
    total(|action| measured.of(action).unknown)
}

/// Checks that every answer is explained.
fn check_right(measured: &Measurements) {
    let reads = measured.reads.as_ref().expect("traced");
    assert!(reads.reads > 100, "{reads:?}");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
    let wrong = total(|action| measured.of(action).wrong);
    assert_eq!(wrong, 0, "answers of other bytes than were stored");
}

/// Checks also that there were no failures.
fn check_no_failures(measured: &Measurements) {
    check_right(measured);
    assert_eq!((refused(measured), unknown(measured)), (0, 0));
}

fn at(address: String, settings: &[(&str, &str)]) -> Options {
    let settings = settings.iter();
    Options {
        address: Some(address),
        connections: Some(4),
        settings: settings
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

fn at_postgres(server: &Server, settings: &[(&str, &str)]) -> Options {
    let address = format!("postgres://postgres@{}/postgres", server.address());
    at(address, settings)
}

#[test]
fn postgres_is_correct_in_every_layout() {
    let Some(database) = servers::database() else {
        return;
    };
    for settings in [
        [("layout", "basic"), ("rows", "2")],
        [("layout", "aggregate"), ("rows", "1")],
    ] {
        let options = at(database.address(), &settings);
        check_no_failures(&run(&mut loaded("postgres", &options, LONG_TIMEOUT), 3000));
    }
}

#[test]
fn leases_keep_the_cache_consistent_and_a_ttl_does_not() {
    let (Some(database), Some(cache)) = (servers::database(), servers::memcached()) else {
        return;
    };
    let cache = ("memcached", &*cache.address());
    let options = at(database.address(), &[cache, ("consistency", "lease")]);
    check_no_failures(&run(
        &mut loaded("postgres+memcached", &options, LONG_TIMEOUT),
        3000,
    ));

    let settings = [cache, ("consistency", "ttl"), ("ttl", "200ms")];
    let options = at(database.address(), &settings);
    let mut process = loaded("postgres+memcached", &options, LONG_TIMEOUT);
    let measured = run_until(&mut process, |measured| measured.done() > 3000);
    let reads = measured.reads.expect("traced");
    assert!(reads.unpredictable > 0, "{reads:?}");
    let stale = reads.by_class.iter().find(|(class, _)| class == "stale");
    assert!(stale.is_some_and(|(_, count)| *count > 0), "{reads:?}");
    // No stale read is much older than 200 ms. Ages are counted by their number of bits: 2^29 ns are 537 ms.
    assert_eq!(reads.ages[30..].iter().sum::<u64>(), 0, "{:?}", reads.ages);
}

#[test]
fn mongodb_is_correct_under_load() {
    let Some(server) = servers::mongo() else {
        return;
    };
    let options = at(server.address(), &[]);
    check_no_failures(&run(&mut loaded("mongodb", &options, LONG_TIMEOUT), 3000));
}

#[test]
fn lost_connections_cause_unknown_outcomes_and_are_reopened() {
    let Some(server) = servers::postgres() else {
        return;
    };
    let mut process = loaded("postgres", &at_postgres(&server, &[]), LONG_TIMEOUT);
    let port = server.port;
    process.on_second(move |_| {
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'bg'";
        ask_postgres(port, cut).expect("asked");
    });
    let measured = run_until(&mut process, |measured| {
        let is_long_enough = measured.series.len() > 2 && measured.done() > 500;
        is_long_enough && unknown(measured) > 0 && is_answering(measured)
    });
    check_right(&measured);
}

#[test]
fn a_stalled_server_causes_unknown_outcomes_until_it_resumes() {
    let Some(server) = servers::mongo() else {
        return;
    };
    let mut process = loaded("mongodb", &at(server.address(), &[]), SHORT_TIMEOUT);
    let pid = server.pid();
    let mut signals = [Signal::STOP, Signal::CONT].into_iter();
    process.on_second(move |_| {
        if let Some(signal) = signals.next() {
            rustix::process::kill_process(pid, signal).expect("our own child");
        }
    });
    let measured = run_until(&mut process, |measured| {
        let is_long_enough = measured.series.len() > 2 && measured.done() > 500;
        is_long_enough && unknown(measured) > 0 && is_answering(measured)
    });
    check_right(&measured);
}

#[test]
fn a_stopped_server_causes_rejections_and_the_trial_ends() {
    let Some(server) = servers::postgres() else {
        return;
    };
    let mut process = loaded("postgres", &at_postgres(&server, &[]), LONG_TIMEOUT);
    let mut server = Some(server);
    process.on_second(move |_| drop(server.take()));
    let measured = run_until(&mut process, |measured| {
        measured.done() > 500 && refused(measured) > 0
    });
    check_right(&measured);
}

#[test]
fn without_its_cache_reads_are_correct_and_writes_are_rejected() {
    let (Some(database), Some(cache)) = (servers::database(), servers::memcached()) else {
        return;
    };
    let memcached = ("memcached", &*cache.address());
    let mut process = loaded(
        "postgres+memcached",
        &at(database.address(), &[memcached]),
        LONG_TIMEOUT,
    );
    let mut cache = Some(cache);
    process.on_second(move |_| drop(cache.take()));
    // Writes are rejected after the first second, and reads continue after that.
    let measured = run_until(&mut process, |measured| {
        let is_long_enough = measured.series.len() > 1 && measured.done() > 500;
        is_long_enough && refused(measured) > 0 && is_answering(measured)
    });
    check_right(&measured);
}

/// Answers every request at this address with the same bytes. Returns the address.
fn serve_garbage(address: &str, garbage: &'static [u8]) -> String {
    let listener = TcpListener::bind(address).expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            std::thread::spawn(move || {
                let mut request = [0; 65536];
                while stream.read(&mut request).is_ok_and(|size| size > 0)
                    && stream.write_all(garbage).is_ok()
                {}
            });
        }
    });
    address
}

#[test]
fn garbage_replies_count_as_failed_calls() {
    let (Some(database), Some(good)) = (servers::database(), servers::memcached()) else {
        return;
    };
    // Loads through a working cache, then runs with a cache in its place that returns values that were never stored.
    let cache = good.address();
    let options = at(database.address(), &[("memcached", &cache)]);
    drop(loaded("postgres+memcached", &options, LONG_TIMEOUT));
    drop(good);
    serve_garbage(&cache, b"VA 5 f0 c1\r\nhello\r\n");
    let process = Process::new(setup("postgres+memcached", &options, SHORT_TIMEOUT));
    let measured = run(&mut process.expect("valid options"), 200);
    let reads = measured.reads.as_ref().expect("traced");
    assert_eq!(reads.unpredictable, 0);
    assert_eq!(measured.done(), 0);
    assert!(refused(&measured) > 0);
}

#[test]
fn a_data_store_that_sends_garbage_is_rejected_before_a_trial() {
    for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 64]] {
        let address = serve_garbage("127.0.0.1:0", garbage);
        let setup = setup("mongodb", &at(address, &[]), SHORT_TIMEOUT);
        let mut process = Process::new(setup).expect("valid options");
        let error = process
            .run(&Trial::counted(LOAD, 1))
            .expect_err("the contents are unknown");
        assert!(error.contains("mongodb"), "{error}");
    }
}
