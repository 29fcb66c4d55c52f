//! Simulates several cores on one thread, with the order of turns and messages determined by a seed. It checks three
//! properties: some order of the writes explains what clients read, each transaction is visible completely or not at
//! all, and every pause ends.
//!
//! ```text
//!   client ── bytes, in memory ──► session ─┐                       ┌─► inbox ──► core 1: its tasks
//!                                 core 0: its tasks ── message ──► Network
//!                                                                   └─► inbox ──► core 2: its tasks
//! ```
//!
//! Each core runs the server's own code, from the session to the journal. Its tasks are a [`tokio::task::LocalSet`]
//! that is polled in the order of the seed. A `Network` replaces the queues between the cores. It guarantees only what
//! `CoreMessage` guarantees: messages from one core to another arrive in order. No thread runs and no timer fires; the
//! journal uses the model disk of its own tests. Grants and the pieces of replies return through the server's own
//! channels, without delay.
//!
//! `world` contains the cores and chooses the next turn. `actor` is a client, and `link` its end of a connection.
//! `spaces` simulates clients of a space whose subspaces change while they search.

mod actor;
#[path = "../../../tests/it/validation/finder.rs"]
mod finder;
mod link;
mod network;
mod spaces;
mod world;

use std::cell::Cell;
use std::rc::Rc;

use larder_sim::{Random, for_each_seed};
use larder_validate::record::{Outcome, Record, RecordKind};
use larder_validate::report::{Level, Plain, Report};
use larder_validate::trace::{Empty, Options, judge};

use actor::{CallHistory, SKETCHES, TableClient};
use world::CoreWorld;

const CLIENTS: u32 = 4;

/// Checks that some order of the writes explains every read, including the final state.
fn check_explained(records: &[Record]) -> Report {
    let options = Options {
        seed: SKETCHES,
        cores: 1,
        witnesses_max: 5,
    };
    let report = judge(records, &Empty, &options);
    let witnesses: Vec<String> = report
        .witnesses
        .iter()
        .map(|it| it.describe(&Plain))
        .collect();
    let (total, end) = (&report.total, &report.end_state);
    let unexplained = end.reads - end.acceptable;
    let bad = (total.unpredictable(), total.undecided, unexplained);
    assert_eq!(bad, (0, 0, 0), "{witnesses:#?}");
    assert_eq!(report.level(Level::Joint).refused, 0, "{witnesses:#?}");
    assert!(end.reads > 0);
    report
}

fn is_write(record: &Record) -> bool {
    !matches!(
        record.what,
        RecordKind::ReadCount(_) | RecordKind::ReadSet(_) | RecordKind::ReadContent(_)
    )
}

/// Returns a world with declared joins.
fn prepare_world(seed: u64, cores: usize) -> CoreWorld {
    let delay_max = [0, 5, 40][seed as usize % 3];
    let mut world = CoreWorld::new(seed, cores, delay_max);
    let actor = TableClient::new(&world, &CallHistory::default(), seed, 1000);
    world.start_client(actor.prepare());
    world.run();
    world.check_all_ended();
    world
}

/// Reads the final state, after all writes.
fn read_end_state(world: &mut CoreWorld, history: &CallHistory) {
    let actor = TableClient::new(world, history, 0, 1001);
    world.start_client(actor.read_end_state());
    world.run();
    world.check_all_ended();
}

#[test]
fn reads_are_explained_and_transactions_are_atomic_in_any_event_order() {
    let (judged, pauses) = (Cell::new(0), Cell::new(0));
    for_each_seed(200, 20_000, |seed| {
        let mut world = prepare_world(seed, 2 + seed as usize % 3);
        let history = CallHistory::default();
        for client in 0..CLIENTS {
            let actor = TableClient::new(&world, &history, seed, client);
            // Some connections are lost during calls.
            let lost_one_in = [0, 30][client as usize % 2];
            world.start_client(actor.with_lost_replies(lost_one_in).act(25));
        }
        world.run();
        world.check_all_ended();
        read_end_state(&mut world, &history);
        let report = check_explained(&history.take());
        judged.set(judged.get() + report.level(Level::Joint).judged);
        pauses.set(pauses.get() + world.pauses());
    });
    // Checks that the tested situations occurred.
    assert!(judged.get() > 0 && pauses.get() > 0);
}

/// Simulates a server shutdown: in whichever order the cores leave, the journal has all acknowledged writes, and each
/// transaction completely or not at all.
#[test]
fn cores_that_leave_in_any_order_leave_a_complete_journal() {
    let unanswered = Cell::new(0);
    for_each_seed(100, 10_000, |seed| {
        let (cores, mut random) = (2 + seed as usize % 3, Random::stream(seed, 4));
        let mut world = prepare_world(seed, cores);
        let history = CallHistory::default();
        for client in 0..CLIENTS {
            let actor = TableClient::new(&world, &history, seed, client);
            world.start_client(actor.act(40));
        }
        let mut order: Vec<usize> = (0..cores).collect();
        random.shuffle(&mut order);
        let mut first_left_at = None;
        for core in order {
            let turns = Cell::new(20 + random.below(300));
            world.run_until(|_| turns.replace(turns.get().saturating_sub(1)) == 0);
            first_left_at.get_or_insert(world.clock.next());
            world.leave(core);
        }
        let (disk, ended_at) = (world.disk.clone(), world.clock.next());
        drop(world);
        let records = history.take();
        let lost = records.iter().filter(|it| it.outcome == Outcome::Unknown);
        unanswered.set(unanswered.get() + lost.count());
        let mut world = CoreWorld::on(disk, seed, cores, 0);
        world.clock.advance_to(ended_at);
        // For a while, the remaining cores may see a part of the work of a coordinator that left.
        let counts = |it: &Record| is_write(it) || Some(it.span.end()) <= first_left_at;
        let history = CallHistory::of(records.into_iter().filter(counts).collect());
        read_end_state(&mut world, &history);
        check_explained(&history.take());
    });
    assert!(unanswered.get() > 0, "no write was in flight");
}

#[test]
fn endless_pauses_starve_no_client() {
    for_each_seed(10, 2_000, |seed| {
        let mut world = prepare_world(seed, 3);
        let history = CallHistory::default();
        let (keeps_running, left) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(3)));
        for writer in 0..4 {
            let actor = TableClient::new(&world, &history, seed, 100 + writer);
            world.start_client(actor.write_twins_while(keeps_running.clone()));
        }
        for client in 0..3 {
            let actor = TableClient::new(&world, &history, seed, client);
            let (keeps_running, left) = (keeps_running.clone(), left.clone());
            world.start_client(async move {
                actor.act(10).await;
                left.set(left.get() - 1);
                keeps_running.set(left.get() > 0);
            });
        }
        world.run();
        world.check_all_ended();
        read_end_state(&mut world, &history);
        check_explained(&history.take());
    });
}
