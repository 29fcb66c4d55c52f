//! Histories of several concurrent clients, validated by `larder-validate`: some order of the writes must explain
//! every read of tables and joins.
//!
//! Lists, counts and contents are validated at levels 0 to 2, and numbers that transactions change together also at
//! level 4. Writes without a reply may or may not have happened. The validator must also detect wrong results of
//! servers behind a faulty proxy.

pub mod actor;
pub mod finder;
pub mod link;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use larder_validate::record::{Outcome, Record};
use larder_validate::report::{Level, Plain, Report};
use larder_validate::trace::{Empty, Options, judge};

use crate::killable::Killable;
use crate::support::TestServer;
use actor::{Actor, SEED};
use link::{Proxy, ProxyFault};

fn report(records: &[Record]) -> Report {
    let options = Options {
        seed: SEED,
        cores: 1,
        witnesses_max: 5,
    };
    judge(records, &Empty, &options)
}

/// Runs `clients` actors with `calls` calls each, and returns their records.
fn history(addr: SocketAddr, clock: Instant, clients: u32, calls: u32, lose: u64) -> Vec<Record> {
    let actors: Vec<_> = (0..clients)
        .map(|session| {
            thread::spawn(move || {
                let mut actor = Actor::connect(addr, clock, session, lose);
                for _ in 0..calls {
                    actor.act().expect("the server answers");
                }
                actor.records
            })
        })
        .collect();
    let ended = actors.into_iter().map(|actor| actor.join().expect("ended"));
    ended.flatten().collect()
}

/// Returns the records of a complete read after all writes have ended.
fn read_end_state(addr: SocketAddr, clock: Instant) -> Vec<Record> {
    let mut actor = Actor::connect(addr, clock, u32::MAX, 0);
    actor.read_end_state();
    actor.records
}

#[track_caller]
pub fn check_explained(records: &[Record]) -> Report {
    let report = report(records);
    let witnesses: Vec<String> = report
        .witnesses
        .iter()
        .map(|it| it.describe(&Plain))
        .collect();
    let total = &report.total;
    assert_eq!(
        (total.unpredictable(), total.undecided),
        (0, 0),
        "{witnesses:#?}"
    );
    assert_eq!(
        report.end_state.acceptable, report.end_state.reads,
        "{witnesses:#?}"
    );
    assert!(report.end_state.reads > 0);
    let joint = report.level(Level::Joint);
    assert!(joint.judged > 0, "{report:?}");
    assert_eq!(joint.refused, 0, "{witnesses:#?}");
    report
}

#[test]
fn concurrent_reads_are_explained_by_the_writes() {
    for threads in [1, 2, 3] {
        let server = TestServer::with(|config| config.server.threads = threads);
        let addr = server.server().resp_addr();
        actor::prepare(addr);
        let clock = Instant::now();
        let mut records = history(addr, clock, 6, 4000, 0);
        records.extend(read_end_state(addr, clock));
        let report = check_explained(&records);
        assert!(report.total.reads > 10_000, "{report:?}");
    }
}

#[test]
fn writes_in_flight_on_lost_connections_are_atomic() {
    for threads in [1, 2] {
        let server = TestServer::with(|config| config.server.threads = threads);
        let addr = server.server().resp_addr();
        actor::prepare(addr);
        let clock = Instant::now();
        let mut records = history(addr, clock, 6, 2000, 200);
        let lost = records.iter().filter(|it| it.outcome == Outcome::Unknown);
        assert!(lost.count() > 5);
        records.extend(read_end_state(addr, clock));
        check_explained(&records);
    }
}

#[test]
fn a_server_killed_under_load_keeps_acknowledged_writes() {
    const ROUNDS: u32 = 3;
    const CLIENTS: u32 = 4;
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = Killable::start(&folder.path().join("data"));
    let addr = SocketAddr::from(([127, 0, 0, 1], server.port));
    actor::prepare(addr);
    let clock = Instant::now();
    let mut records = Vec::new();
    for round in 0..ROUNDS {
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            let actors: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let done = &done;
                    scope.spawn(move || {
                        let session = round * CLIENTS + client;
                        let mut actor = Actor::connect(addr, clock, session, 0);
                        // Continues until the server is killed.
                        while actor.act().is_ok() {
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                        actor.records
                    })
                })
                .collect();
            while done.load(Ordering::SeqCst) < 1500 {
                thread::yield_now();
            }
            server.kill();
            for actor in actors {
                records.extend(actor.join().expect("ended"));
            }
        });
        server.start_again();
    }
    let unanswered = records.iter().filter(|it| it.outcome == Outcome::Unknown);
    assert!(unanswered.count() > 0, "nothing was under way");
    records.extend(read_end_state(addr, clock));
    check_explained(&records);
}

/// Returns the validator's report of a history behind a proxy with the fault `fault`, and the number of faulty
/// replies.
fn run_with_fault(fault: ProxyFault) -> (Report, u64) {
    let server = TestServer::with(|config| config.server.threads = 2);
    let proxy = Proxy::start(server.server().resp_addr(), fault);
    actor::prepare(server.server().resp_addr());
    let clock = Instant::now();
    let mut records = history(proxy.addr, clock, 6, 1000, 0);
    records.extend(read_end_state(server.server().resp_addr(), clock));
    (report(&records), proxy.faulty())
}

#[test]
fn stale_replies_are_detected() {
    for command in ["RANGE", "GET"] {
        let (report, faulty) = run_with_fault(ProxyFault::Replay(command));
        let found = report.total.unpredictable();
        assert!(found > 0 && found <= faulty, "{found} of {faulty}");
        assert!(report.total.stale > 0, "{report:?}");
        assert!(!report.witnesses.is_empty());
        assert_eq!(report.end_state.acceptable, report.end_state.reads);
    }
}

#[test]
fn acknowledged_but_lost_writes_are_detected() {
    let (report, faulty) = run_with_fault(ProxyFault::Swallow("SET"));
    assert!(faulty > 0);
    assert!(report.total.unpredictable() > 0, "{report:?}");
}
