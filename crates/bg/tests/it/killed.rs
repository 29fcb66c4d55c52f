//! Tests of larder under load with signals.
//!
//! - Killed with SIGKILL and restarted on its data: no acknowledged write is lost, and other writes are atomic.
//! - Stalled with SIGSTOP: calls without an answer have an unknown outcome, and the server continues after SIGCONT.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_bg::model::draw::{self, Drawing};
use larder_bg::model::mix::Mix;
use larder_bg::model::population::Population;
use larder_bg::run::{Process, RunOptions, Setup, Tracing};
use larder_bg::stores::Options;
use larder_bg::verdict::measure::{ActionMeasurements, Load, Measurements, Trial, TrialRunner};
use rustix::process::{Pid, Signal, kill_process};

use crate::conformance::open;
use crate::end_state;
use crate::killable::Killable;

impl Killable {
    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("our own child");
    }

    fn options(&self) -> Options {
        Options {
            address: Some(format!("127.0.0.1:{}", self.port)),
            connections: Some(2),
            ..Options::default()
        }
    }
}

/// Returns a process for a few members, half of whose calls write. The population is loaded.
fn loaded(options: &Options, timeout: Duration, tracing: Tracing) -> Process {
    let population = Arc::new(Population {
        members: 200,
        friends: 10,
        invitations: 2,
        resources: 5,
        comments: 1,
        ..Population::default()
    });
    let mix = "view-profile 20\nlist-friends 10\nview-friend-requests 10\nview-comments 10\n\
        invite-friend 14\naccept-friend-request 7\nreject-friend-request 7\nthaw-friendship 7\n\
        post-comment 8\ndelete-comment 7";
    let mut process = Process::new(Setup {
        store: Arc::from(open("larder", options)),
        mix: Mix::parse("half writes", mix).expect("a mix"),
        drawing: Drawing::for_all_members(draw::DEFAULT, population.members),
        population,
        run_options: RunOptions {
            timeout,
            ..RunOptions::default()
        },
        workers: 2,
        tracing,
        seed: 3,
    })
    .expect("valid options");
    process.load(&mut |_| {}).expect("loaded");
    process
}

fn failed(measured: &Measurements, count: fn(&ActionMeasurements) -> u64) -> u64 {
    measured.actions.iter().map(count).sum()
}

/// An upper bound; the awaited condition holds much earlier, even on a slow machine.
const MOST: Duration = Duration::from_secs(120);

/// Runs until the measurements after a second satisfy `is_done`.
fn run_until(process: &mut Process, is_done: impl Fn(&Measurements) -> bool) -> Measurements {
    let trial = Trial::timed(Load::Threads(40), Duration::ZERO, MOST);
    let measured = process.run_until(&trial, &|measured, _| is_done(measured));
    let measured = measured.expect("measured");
    assert!(measured.duration < MOST, "the condition was not reached");
    measured
}

/// The server is stopped for a second and then continues: calls in that time are not answered in time, and later calls
/// succeed.
#[test]
fn larder_resumes_after_a_stall_under_load() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Killable::start(&folder.path().join("data"));
    let timeout = Duration::from_millis(300);
    let mut process = loaded(&server.options(), timeout, Tracing::Scratch);
    let server = Rc::new(server);
    let mut signals = [Signal::STOP, Signal::CONT].into_iter();
    let stalled = server.clone();
    process.on_second(move |_| {
        if let Some(signal) = signals.next() {
            stalled.signal(signal);
        }
    });
    // The last second is after the stall, so answers show that the server continues.
    let measured = run_until(&mut process, |measured| {
        let last = measured.series.last();
        measured.series.len() > 2
            && measured.done() > 1000
            && failed(measured, |action| action.unknown) > 0
            && last.is_some_and(|last| last.latency.len() > last.failed)
    });
    assert_eq!(failed(&measured, |action| action.wrong), 0);
    let slowest = measured.actions.iter().map(|action| action.latency.max());
    assert!(slowest.max() >= Some(290_000_000), "the timeout");
    let reads = measured.reads.as_ref().expect("it was traced");
    assert!(reads.reads > 200, "{reads:?}");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
}

#[test]
fn larder_killed_under_load_keeps_acknowledged_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let server = Killable::start(&folder.path().join("data"));
    let options = server.options();
    let keep = Tracing::Keep(trace.clone());
    let mut process = loaded(&options, RunOptions::default().timeout, keep);
    let population = process.setup().population.clone();

    let server = Rc::new(RefCell::new(server));
    let killed = server.clone();
    let mut seconds = 0;
    process.on_second(move |_| {
        seconds += 1;
        if seconds < 3 {
            killed.borrow_mut().kill();
            killed.borrow_mut().start_again();
        }
    });
    // Calls were in flight when it was killed, and others were answered after the restart.
    let measured = run_until(&mut process, |measured| {
        let last = measured.series.last();
        measured.series.len() > 3
            && measured.done() > 1000
            && failed(measured, |action| action.unknown) > 0
            && last.is_some_and(|last| last.latency.len() > last.failed)
    });
    assert_eq!(failed(&measured, |action| action.wrong), 0);
    let reads = measured.reads.as_ref().expect("it was traced");
    assert!(reads.reads > 200, "{reads:?}");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");

    // Restart once more, so that the state is read from disk.
    server.borrow_mut().kill();
    server.borrow_mut().start_again();
    let store = open("larder", &options);
    let (left, report) = end_state::judged(&*store, &population, &trace);
    let read_count = left.len() as u64;
    assert_eq!(report.end_state.reads, read_count);
    assert_eq!(report.end_state.acceptable, read_count, "{report:?}");
}
