//! Replication under simulation: servers with all kinds of failures, clients that read and write, and a checker of their
//! histories.

pub mod client;
mod codec;
pub mod host;
mod scenarios;
pub mod server;
mod service;
pub mod wire;

use std::panic::{AssertUnwindSafe, catch_unwind};

use larder_cluster::replication::{Bugs, RowStore};
use larder_sim::{
    Fault, Input, Node, NodeId as At, Options, Output, Outputs, Plan, Random, Scene, Start, World,
    for_each_seed,
};

use client::{Client, check_history, check_one_owner_a_term};
use host::Table;
use server::Server;
use service::{SLOTS, Service};
use wire::Wire;

const SERVICE: At = At(0);
const TTL_MS: u64 = 1_000;
const FAULTS_US: u64 = 8_000_000;
const CALM_US: u64 = 20_000_000;
/// The last period, in which every slot must have accepted writes.
const LAST_US: u64 = 3_000_000;
/// No call starts after this time.
const QUIET_US: u64 = CALM_US - 1_000_000;
/// Slots are moved until this time; after it, each accepts writes.
const MOVES_US: u64 = CALM_US - LAST_US;
const SERVICE_TICK_US: u64 = 50_000;

#[derive(Debug, Clone)]
pub struct Setup {
    servers: usize,
    clients: usize,
    replicas: u8,
    /// True if changes are synced before they are acknowledged, instead of only written to the operating system.
    syncs_always: bool,
    moves: bool,
    think_us: u64,
    counts_leases_from_answers: bool,
    bugs: Bugs,
}

impl Setup {
    fn draw(random: &mut Random) -> Setup {
        Setup {
            servers: random.between(3, 5) as usize,
            clients: 4,
            replicas: random.between(2, 3) as u8,
            syncs_always: random.one_in(2),
            moves: random.one_in(2),
            think_us: random.between(3_000, 30_000),
            counts_leases_from_answers: false,
            bugs: Bugs::default(),
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "there are few")]
enum Actor {
    Service(Service),
    Server(Server),
    Client(Client),
}

impl Node for Actor {
    type Setup = Setup;
    type Message = Wire;

    fn start(setup: &Setup, start: Start<'_>, out: &mut Outputs<Wire>) -> Actor {
        let me = start.me.0;
        if me == SERVICE.0 {
            out.push(Output::Wake(start.now_us + 1));
            let service = Service::new(setup.servers, setup.replicas, setup.moves, start.seed);
            return Actor::Service(service);
        }
        if me <= setup.servers {
            return Actor::Server(Server::start(setup, start, out));
        }
        out.push(Output::Wake(start.now_us + 1));
        let client = Client::new(
            me as u32,
            setup.servers,
            start.seed,
            setup.think_us,
            QUIET_US,
        );
        Actor::Client(client)
    }

    fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        match self {
            Actor::Server(server) => server.step(now_us, input, out),
            Actor::Client(client) => client.step(now_us, input, out),
            Actor::Service(service) => match input {
                Input::Tick => {
                    service.tick(now_us, out);
                    out.push(Output::Wake(now_us + SERVICE_TICK_US));
                }
                Input::Message(from, wire) | Input::Datagram(from, wire) => {
                    service.receive(now_us, from, wire, out);
                }
                _ => {}
            },
        }
    }
}

/// The parameters of a run.
struct Case {
    setup: Setup,
    options: Options,
    plan: Plan,
    random: Random,
}

fn world(seed: u64, is_traced: bool, change: &dyn Fn(&mut Case)) -> World<Actor> {
    let mut random = Random::stream(seed, 0);
    let setup = Setup::draw(&mut random);
    let servers: Vec<At> = (1..=setup.servers).map(At).collect();
    let scene = Scene {
        mortal: servers.clone(),
        linked: std::iter::once(SERVICE).chain(servers).collect(),
        every_us: 150_000,
        lasts_us_max: 3_000_000,
        // Without syncs, a power failure loses changes; separate tests cover that.
        power: setup.syncs_always,
    };
    let plan = Plan::draw(&mut random, &scene, 1_000_000, FAULTS_US);
    let options = Options::draw(&mut random, seed);
    let mut case = Case {
        setup,
        options,
        plan,
        random,
    };
    change(&mut case);
    let Case { setup, options, .. } = case;
    // The service and the clients use the world's time, so that histories have one clock.
    let nodes = 1 + setup.servers + setup.clients;
    let exact_clocks = std::iter::once(0).chain(1 + setup.servers..nodes);
    let options = Options {
        is_traced,
        exact_clocks: exact_clocks.map(At).collect(),
        ..options
    };
    World::new(nodes, setup, options, case.plan)
}

fn service(world: &World<Actor>) -> &Service {
    match world.node(SERVICE) {
        Some(Actor::Service(service)) => service,
        _ => panic!("the service runs"),
    }
}

fn server(world: &World<Actor>, at: usize) -> &Server {
    match world.node(At(at)) {
        Some(Actor::Server(server)) => server,
        _ => panic!("server {at} does not run in the end"),
    }
}

fn clients(world: &World<Actor>) -> impl Iterator<Item = &Client> {
    let nodes = 1 + world.setup().servers + world.setup().clients;
    (0..nodes).filter_map(|at| match world.node(At(at)) {
        Some(Actor::Client(client)) => Some(client),
        _ => None,
    })
}

/// Runs to the end, and checks everything.
fn check(world: &mut World<Actor>) {
    world.run_until(FAULTS_US);
    world.calm();
    world.run_until(CALM_US);
    check_progress(world);
    let end = check_copies(world);
    check_one_owner_a_term(clients(world));
    let slots: Vec<u16> = (0..SLOTS).collect();
    check_history(clients(world), &slots, &end, CALM_US);
}

fn check_progress(world: &World<Actor>) {
    for slot in 0..usize::from(SLOTS) {
        let last = clients(world).map(|client| client.last_done_us[slot]).max();
        assert!(
            last > Some(CALM_US - LAST_US),
            "slot {slot} takes no writes long after all faults ended; the last was at {last:?} us"
        );
    }
    let map = &service(world).map;
    for slot in 0..SLOTS {
        let placed = &map.slots().of(slot).placement;
        assert_eq!(
            placed.holders().count(),
            usize::from(world.setup().replicas),
            "slot {slot} does not have all its replicas: {placed:?}"
        );
    }
}

/// Collects the owners' rows, and checks that in-sync replicas have the same, including their tails.
fn check_copies(world: &World<Actor>) -> Table {
    let map = &service(world).map;
    let mut end = Table::default();
    let at = |node| {
        let name = map.name_of(node);
        name[1..].parse::<usize>().expect("n and a number")
    };
    for slot in 0..SLOTS {
        let placed = &map.slots().of(slot).placement;
        let owner = server(world, at(placed.owner.expect("owned")));
        let replication = owner.host.replication.as_ref().expect("it runs");
        assert!(
            replication.owner.is_owner(slot),
            "slot {slot}: its owner does not know"
        );
        let rows = owner.host.table.0.get(&slot).cloned().unwrap_or_default();
        for node in &placed.in_sync {
            let replica = server(world, at(*node));
            let mut table = replica.host.table.clone();
            let replication = replica.host.replication.as_ref().expect("it runs");
            let copy = replication.replica.copy(slot).expect("a copy");
            // Changes in flight may be on either side, so only what both have is compared by number.
            for entry in &copy.tail {
                table.set(slot, entry.row.key(), entry.row.value());
            }
            let copied = table.0.get(&slot).cloned().unwrap_or_default();
            assert_eq!(
                copied,
                rows,
                "slot {slot}: replica n{} and its owner differ",
                at(*node)
            );
        }
        end.0.insert(slot, rows);
    }
    end
}

/// Runs a seed. If it fails, runs it again with a trace.
fn run(seed: u64, change: &dyn Fn(&mut Case)) {
    if catch_unwind(AssertUnwindSafe(|| check(&mut world(seed, false, change)))).is_ok() {
        return;
    }
    let mut again = world(seed, true, change);
    let failed = catch_unwind(AssertUnwindSafe(|| check(&mut again)));
    eprintln!(
        "seed {seed}\n{:?}\n{:?}\nfaults:\n{}\nthe last that happened:\n{}\n{:?}",
        again.setup(),
        again.options(),
        again.plan(),
        again.trace(),
        again.marks()
    );
    if let Err(panic) = failed {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn under_random_faults_no_acknowledged_write_is_lost_and_service_resumes() {
    for_each_seed(100, 10_000, |seed| run(seed, &|_| {}));
}

/// Checks that one of these seeds from `first` on finds a deliberate bug, and that the same run succeeds without it.
fn check_found(first: u64, seeds: u64, scenario: impl Fn(&mut Case), plant: impl Fn(&mut Setup)) {
    larder_sim::check_found(first, seeds, |seed, is_planted| {
        let change = |case: &mut Case| {
            scenario(case);
            if is_planted {
                plant(&mut case.setup);
            }
        };
        check(&mut world(seed, false, &change));
    });
}

#[test]
fn the_simulation_detects_early_acknowledgement_by_the_owner() {
    check_found(
        11,
        150,
        |_| {},
        |setup| setup.bugs.acknowledges_before_all = true,
    );
}

#[test]
fn the_simulation_detects_a_replica_that_acknowledges_before_logging() {
    check_found(
        4,
        150,
        |_| {},
        |setup| setup.bugs.acknowledges_before_logging = true,
    );
}

/// The power of all nodes fails. The first to return is the owner, without the changes that only the others had synced.
#[test]
fn the_simulation_detects_an_owner_that_ignores_its_own_log() {
    let blackouts = |case: &mut Case| {
        case.setup.syncs_always = true;
        case.options.sync_us = 50_000;
        case.setup.think_us = 3_000;
        let all: Vec<At> = (1..=case.setup.servers).map(At).collect();
        only(case, 800_000, |_, _| Fault::Blackout {
            nodes: all.clone(),
            down_us: 500_000,
        });
    };
    check_found(3, 150, blackouts, |setup| setup.bugs.ignores_own_log = true);
}

#[test]
fn the_simulation_detects_a_replica_that_ignores_terms() {
    check_found(431, 1000, |_| {}, |setup| setup.bugs.ignores_terms = true);
}

#[test]
fn the_simulation_detects_a_promotion_without_reconciliation() {
    check_found(
        0,
        150,
        |_| {},
        |setup| setup.bugs.promotes_without_reconciling = true,
    );
}

#[test]
fn the_simulation_detects_reads_of_uncommitted_changes() {
    check_found(4, 150, |_| {}, |setup| setup.bugs.reads_uncommitted = true);
}

/// Servers that are suspended for longer than their lease while a renewal is in flight: its answer waits in their sockets when
/// they resume.
fn pauses(case: &mut Case) {
    slow(case);
    case.setup.moves = false;
    case.options.lose_one_in = 3;
    only(case, 400_000, |node, word| Fault::Pause {
        node,
        for_us: 1_000_000 + word % 1_000_000,
    });
}

#[test]
fn servers_stalled_for_longer_than_their_lease_lose_nothing() {
    for_each_seed(20, 2_000, |seed| run(seed, &pauses));
}

#[test]
fn the_simulation_detects_a_lease_counted_from_the_reply() {
    check_found(185, 400, pauses, |setup| {
        setup.counts_leases_from_answers = true
    });
}

/// Owners that die with different changes in flight to different replicas.
fn kills(case: &mut Case) {
    slow(case);
    case.setup.moves = true;
    only(case, 600_000, |node, word| Fault::Kill {
        node,
        down_us: 1_000_000 + word % 2_000_000,
    });
}

#[test]
fn owners_that_die_with_changes_in_flight_lose_nothing() {
    for_each_seed(20, 2_000, |seed| run(seed, &kills));
}

#[test]
fn the_simulation_detects_a_replica_that_keeps_its_tail() {
    check_found(150, 1000, kills, |setup| setup.bugs.keeps_tail = true);
}

/// Faults of one kind at a fixed interval, each of one server.
fn only(case: &mut Case, every_us: u64, fault: impl Fn(At, u64) -> Fault) {
    let servers = case.setup.servers as u64;
    let mut plan = Vec::new();
    let mut at = 1_000_000;
    while at < FAULTS_US {
        let node = At(case.random.between(1, servers) as usize);
        plan.push((at, fault(node, case.random.word())));
        at += case.random.between(every_us / 2, every_us * 2);
    }
    case.plan = Plan(plan);
}

/// A slow network, so that much is in flight when something fails.
fn slow(case: &mut Case) {
    case.options.delay_us = (1_000, 60_000);
    case.setup.think_us = 3_000;
    case.setup.replicas = 3;
    case.setup.servers = 3;
}
