//! A complete cluster under simulation: nodes with their leases, maps, controllers, rows and stores; a simulated etcd that fails
//! as well; clients, and an operator that pushes and drains. It checks:
//!
//! | during the run | at the end |
//! |---|---|
//! | each map follows from the previous one, terms never decrease | some order of the writes explains every read of rows, and the final rows |
//! | only a node with a lease changes the map as the controller | in one term of a slot, one node acknowledged writes |
//! | | every read of the store used one version, which had been live |
//! | | executed operator requests hold; all slots are at their target placement and accept writes; all nodes that need the live version have it |

mod agent;
pub mod joins;
mod node;
mod operator;
mod service;
mod stores;
mod view;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use larder_cluster::map::{Map, MemberState};
use larder_cluster::replication::{Bugs, RowStore};
use larder_sim::{
    Disk, Fault, Input, NodeId as At, Options, Output, Outputs, Plan, Random, Scene, Start, World,
    for_each_seed,
};
use larder_types::StoreName;

use crate::replication::client::{Client, check_history, check_one_owner_a_term};
use crate::replication::host::Table;
use crate::replication::wire::Wire;
use joins::PlantedBug;
use node::Node;
use operator::Operator;
use service::Service;

const SERVICE: At = At(0);
const FAULTS_US: u64 = 15_000_000;
const CALM_US: u64 = 40_000_000;
const LASTS_US_MAX: u64 = 4_000_000;
/// The time at which a disk is exchanged, if one is; other faults are over by then.
const EXCHANGE_US: u64 = 13_000_000;
/// The last period, in which every slot must have accepted writes. It is long, because clients look for owners at random, also at
/// removed nodes, which do not answer.
const LAST_US: u64 = 9_000_000;
/// No call starts after this time.
const QUIET_US: u64 = CALM_US - 1_000_000;
/// Slots with rows; the others are empty and move in the same way. Clients number them from 0.
const SLOTS: [u16; 3] = [100, 6_000, 12_000];

fn store_name() -> StoreName {
    "s".parse().expect("a name")
}

#[derive(Debug, Clone)]
struct Setup {
    /// The last of them joins later.
    nodes: usize,
    joins_us: u64,
    clients: usize,
    replicas: u8,
    zones: usize,
    syncs_always: bool,
    /// Nodes are drained and removed.
    moves: bool,
    service_fails: bool,
    /// A disk is replaced by an empty one, or by an earlier state.
    loses_a_disk: bool,
    think_us: u64,
    bugs: Bugs,
    planted: PlantedBugs,
    /// Nodes compute outputs, with this bug, and clients read them.
    joins: Option<PlantedBug>,
}

/// Deliberate bugs for the simulation to find.
#[derive(Debug, Clone, Copy, Default)]
struct PlantedBugs {
    /// A part of a read over several nodes uses the version that is live at that node.
    mixes_versions: bool,
    /// A version is readable as soon as it has been pulled.
    swaps_before_it_is_live: bool,
    /// A controller changes the map without comparing its candidacy.
    leads_without_a_lease: bool,
    /// A replica is reported as complete as soon as its fill has begun.
    reports_fills_early: bool,
}

impl Setup {
    fn draw(random: &mut Random) -> Setup {
        Setup {
            nodes: random.between(4, 5) as usize,
            joins_us: random.between(1, 12_000_000),
            clients: 3,
            replicas: random.between(2, 3) as u8,
            zones: random.between(1, 3) as usize,
            syncs_always: random.one_in(2),
            moves: random.one_in(2),
            service_fails: random.one_in(2),
            loses_a_disk: random.one_in(2),
            think_us: random.between(20_000, 80_000),
            bugs: Bugs::default(),
            planted: PlantedBugs::default(),
            joins: None,
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "there are few")]
enum Actor {
    Service(Service),
    Node(Node),
    Client(Client),
    Operator(Operator),
}

impl larder_sim::Node for Actor {
    type Setup = Setup;
    type Message = Wire;

    fn start(setup: &Setup, start: Start<'_>, out: &mut Outputs<Wire>) -> Actor {
        let me = start.me.0;
        if (1..=setup.nodes).contains(&me) {
            return Actor::Node(Node::start(setup, start, out));
        }
        out.push(Output::Wake(start.now_us + 1));
        match me {
            0 => Actor::Service(Service::new(setup, start.seed)),
            _ if me == setup.nodes + 1 => Actor::Operator(Operator::new(setup, start.seed)),
            _ => {
                let (think_us, nodes) = (setup.think_us, setup.nodes);
                let mut client = Client::new(me as u32, nodes, start.seed, think_us, QUIET_US);
                client.reads_outputs = setup.joins.is_some();
                Actor::Client(client)
            }
        }
    }

    fn step(&mut self, now_us: u64, input: Input<Wire>, out: &mut Outputs<Wire>) {
        match self {
            Actor::Service(service) => service.step(now_us, input, out),
            Actor::Node(node) => node.step(now_us, input, out),
            Actor::Client(client) => client.step(now_us, input, out),
            Actor::Operator(operator) => operator.step(now_us, input, out),
        }
    }
}

struct Case {
    setup: Setup,
    options: Options,
    plan: Plan,
    random: Random,
}

/// A cluster, with the random numbers for the exchange of a disk.
struct Run {
    world: World<Actor>,
    random: Random,
}

fn prepare(seed: u64, is_traced: bool, change: &dyn Fn(&mut Case)) -> Run {
    let mut random = Random::stream(seed, 0);
    let setup = Setup::draw(&mut random);
    let nodes: Vec<At> = (1..=setup.nodes).map(At).collect();
    let scene = Scene {
        mortal: nodes.clone(),
        linked: std::iter::once(SERVICE).chain(nodes).collect(),
        every_us: 300_000,
        lasts_us_max: LASTS_US_MAX,
        // Without syncs, a power failure loses changes.
        power: setup.syncs_always,
    };
    let plan = Plan::draw(&mut random, &scene, 3_000_000, FAULTS_US);
    let options = Options::draw(&mut random, seed);
    let mut case = Case {
        setup,
        options,
        plan,
        random,
    };
    change(&mut case);
    if case.setup.loses_a_disk {
        let last_us = EXCHANGE_US - LASTS_US_MAX - 3_500_000;
        case.plan.0.retain(|(at_us, _)| *at_us < last_us);
    }
    let Case { setup, options, .. } = case;
    let all = 2 + setup.nodes + setup.clients;
    let exact_clocks = std::iter::once(0).chain(1 + setup.nodes..all);
    let options = Options {
        is_traced,
        exact_clocks: exact_clocks.map(At).collect(),
        ..options
    };
    Run {
        world: World::new(all, setup, options, case.plan),
        random: case.random,
    }
}

fn service(world: &World<Actor>) -> &Service {
    match world.node(SERVICE) {
        Some(Actor::Service(service)) => service,
        _ => panic!("the service runs"),
    }
}

fn map(world: &World<Actor>) -> &Map {
    service(world).map.as_ref().expect("there is a map")
}

fn node(world: &World<Actor>, at: usize) -> &Node {
    match world.node(At(at)) {
        Some(Actor::Node(node)) => node,
        _ => panic!("node {at} does not run in the end"),
    }
}

fn shown(world: &World<Actor>, at: usize) -> String {
    match world.node(At(at)) {
        Some(Actor::Node(node)) => node.shown(),
        _ => format!("{at} is down\n"),
    }
}

fn node_of(world: &World<Actor>, id: larder_cluster::map::NodeId) -> &Node {
    let name = map(world).name_of(id);
    node(world, name[1..].parse().expect("n and a number"))
}

fn clients(world: &World<Actor>) -> impl Iterator<Item = &Client> {
    let all = 2 + world.setup().nodes + world.setup().clients;
    (0..all).filter_map(|at| match world.node(At(at)) {
        Some(Actor::Client(client)) => Some(client),
        _ => None,
    })
}

fn operator(world: &World<Actor>) -> &Operator {
    match world.node(At(world.setup().nodes + 1)) {
        Some(Actor::Operator(operator)) => operator,
        _ => panic!("the operator is there"),
    }
}

fn check(run: &mut Run) {
    if run.world.setup().loses_a_disk {
        replace_disk(run);
    }
    let world = &mut run.world;
    world.run_until(FAULTS_US);
    world.calm();
    world.run_until(CALM_US);
    check_settled(world);
    check_versions(world);
    check_progress(world);
    let end = check_copies(world);
    check_one_owner_a_term(clients(world));
    check_history(clients(world), &SLOTS, &end, CALM_US);
    let read: u64 = clients(world).map(|client| client.outputs_read).sum();
    assert_eq!(
        world.setup().joins.is_some(),
        read > 0,
        "{read} outputs were read"
    );
}

/// A node returns with an empty disk, or with its disk of some seconds ago, while all others are healthy. Nothing is lost.
fn replace_disk(run: &mut Run) {
    let Run { world, random } = run;
    let victim = At(1 + random.index(world.setup().nodes - 1));
    world.run_until(random.between(3_000_000, 8_000_000));
    let copy: Disk = if random.one_in(2) {
        Disk::default()
    } else {
        world.disk(victim).clone()
    };
    let mut at_us = EXCHANGE_US;
    while at_us < FAULTS_US {
        world.run_until(at_us);
        at_us += 50_000;
        let name = format!("n{}", victim.0).parse().expect("a name");
        let Some(map) = &service(world).map else {
            continue;
        };
        let id = map.member_named(&name).map(|it| it.id);
        let is_alone = map.slots().runs().iter().any(|run| {
            let mut others = run.placement.holders().filter(|it| Some(*it) != id);
            !others.any(|it| map.is_up(it))
        });
        if is_alone {
            continue;
        }
        if world.node(victim).is_some() {
            let node = victim;
            world.inflict(&Fault::Kill {
                node,
                down_us: random.between(1, 5_000_000),
            });
        }
        if world.node(victim).is_none() {
            // An image of the current incarnation has the right numbers. An owner with it detects that it lacks changes, and an
            // operator must act.
            let life = world.disk(victim).read("identity");
            let is_image = life == copy.read("identity");
            world.set_disk(victim, if is_image { Disk::default() } else { copy });
            EXCHANGED.set(EXCHANGED.get() + 1);
            return;
        }
    }
}

thread_local! {
    static EXCHANGED: Cell<u64> = const { Cell::new(0) };
}

/// Checks that every node is up and has its target slots.
fn check_settled(world: &World<Actor>) {
    let map = map(world);
    let text = || map.to_text();
    for run in map.slots().runs() {
        assert!(
            run.placement.owner.is_some() && run.placement.is_settled(),
            "{} are not where they are to be: {:?} {}",
            run.slots,
            run.placement,
            text()
        );
    }
    for at in 1..=world.setup().nodes {
        let name = format!("n{at}").parse().expect("a name");
        match map.member_named(&name) {
            None => assert!(node(world, at).is_over, "n{at} is not a member"),
            Some(member) => {
                let mut runs = map.slots().runs().iter();
                let has = runs.any(|run| run.placement.is_holder(member.id));
                if node(world, at).is_over {
                    // It registered again just when it was removed, and learned of the removal only then: a new member, whose
                    // process has ended.
                    assert!(
                        member.state == MemberState::Down && !has,
                        "n{at} {}",
                        text()
                    );
                    continue;
                }
                assert_eq!(member.state, MemberState::Up, "n{at} {}", text());
                assert_eq!(has, member.leaving.is_none(), "n{at} {}", text());
            }
        }
    }
}

/// Checks that executed requests hold, and that every node that needs the live version has it.
fn check_versions(world: &World<Actor>) {
    let operator = operator(world);
    operator.check(&service(world).live);
    let map = map(world);
    let Some(store) = map.stores().get(&store_name()) else {
        return;
    };
    assert!(
        store.push.is_none() && store.lacking.is_empty(),
        "{}",
        map.to_text()
    );
    if let Some(live) = &store.live {
        for run in map.slots().runs() {
            for id in run.placement.holders() {
                let has = node_of(world, id).stores.have.get(&live.version);
                let has = has.is_some_and(|had| had.digest == live.digest);
                assert!(has, "{id} lacks what is live");
            }
        }
    }
    use larder_cluster::controller::ControllerRequest;
    let granted = operator.answers.iter().rev().find(|(request, answer)| {
        matches!(
            request,
            ControllerRequest::Push { .. } | ControllerRequest::RollBack { .. }
        ) && !answer.starts_with("no: ")
    });
    if let Some((ControllerRequest::Push { digest, .. }, answer)) = granted {
        let live = store.live.as_ref().map(|it| &it.digest);
        assert_eq!(
            live,
            Some(digest),
            "a version that went live ({answer}) is not live"
        );
    }
}

fn check_progress(world: &World<Actor>) {
    for (slot, real) in SLOTS.into_iter().enumerate() {
        let last = clients(world).map(|client| client.last_done_us[slot]).max();
        assert!(
            last > Some(CALM_US - LAST_US),
            "slot {real} takes no writes long after all faults ended; the last was at {last:?} us: {:?}",
            map(world).slots().of(real).placement
        );
    }
}

/// Collects the owners' rows, and checks that in-sync replicas have the same, including their tails.
fn check_copies(world: &World<Actor>) -> Table {
    let map = map(world);
    let mut end = Table::default();
    for slot in SLOTS {
        let placed = &map.slots().of(slot).placement;
        let owner = &node_of(world, placed.owner.expect("owned")).host;
        let rows = owner.table.0.get(&slot).cloned().unwrap_or_default();
        for node in &placed.in_sync {
            let host = &node_of(world, *node).host;
            let mut table = host.table.clone();
            let replication = host.replication.as_ref().expect("it runs");
            let copy = replication.replica.copy(slot).expect("a copy");
            for entry in &copy.tail {
                table.set(slot, entry.row.key(), entry.row.value());
            }
            let copied = table.0.get(&slot).cloned().unwrap_or_default();
            assert_eq!(copied, rows, "slot {slot}: {node} and its owner differ");
        }
        end.0.insert(slot, rows);
    }
    end
}

/// Runs a seed. If it fails, runs it again with a trace.
fn run(seed: u64, change: &dyn Fn(&mut Case)) {
    let again = || check(&mut prepare(seed, false, change));
    if catch_unwind(AssertUnwindSafe(again)).is_ok() {
        return;
    }
    let mut again = prepare(seed, true, change);
    let failed = catch_unwind(AssertUnwindSafe(|| check(&mut again)));
    let world = &again.world;
    eprintln!(
        "seed {seed}\n{:?}\n{:?}\nfaults:\n{}\nthe last that happened:\n{}\n{:?}\n{}\n{}",
        world.setup(),
        world.options(),
        world.plan(),
        world.trace(),
        world.marks(),
        service(world).held(),
        (1..=world.setup().nodes)
            .map(|at| shown(world, at))
            .collect::<String>()
    );
    if let Err(panic) = failed {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn under_random_faults_nothing_is_lost_or_mixed_and_the_cluster_recovers() {
    for_each_seed(100, 10_000, |seed| run(seed, &|_| {}));
}

/// The reply to the first attempt is lost, but the rollback was made. The next controller does not know that yet, and has no node
/// that could serve the version.
#[test]
fn a_completed_rollback_is_not_rejected() {
    run(3_188, &|_| {});
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
        check(&mut prepare(seed, false, &change));
    });
}

#[test]
fn the_simulation_detects_a_read_of_several_versions() {
    check_found(1, 100, |_| {}, |setup| setup.planted.mixes_versions = true);
}

#[test]
fn the_simulation_detects_a_read_of_a_version_that_is_not_live() {
    check_found(
        0,
        100,
        |_| {},
        |setup| setup.planted.swaps_before_it_is_live = true,
    );
}

#[test]
fn the_simulation_detects_a_controller_without_a_lease() {
    check_found(
        119,
        200,
        |_| {},
        |setup| setup.planted.leads_without_a_lease = true,
    );
}

#[test]
fn the_simulation_detects_a_replica_in_sync_too_early() {
    check_found(
        22,
        100,
        |_| {},
        |setup| setup.planted.reports_fills_early = true,
    );
}

#[test]
fn the_simulation_detects_an_early_acknowledgement() {
    check_found(
        3,
        100,
        |_| {},
        |setup| setup.bugs.acknowledges_before_all = true,
    );
}

fn with_joins(case: &mut Case) {
    case.setup.joins = Some(PlantedBug::None);
}

/// Reads of outputs are judged as reads of the rows that they show.
#[test]
fn under_random_faults_outputs_reflect_acknowledged_rows_of_other_nodes() {
    for_each_seed(40, 4_000, |seed| run(seed, &with_joins));
}

/// Messages between nodes are late and no connection breaks. A reader can therefore learn only from its lease that the owner gave it up.
fn with_late_messages(case: &mut Case) {
    with_cuts(case, |number| {
        let nodes = [At(1 + number % 4), At(1 + (number + 1) % 4)];
        let [from, to] = nodes;
        (3_500_000, vec![(from, to), (to, from)])
    });
}

/// Nothing fails but that messages are held up, for so long, between these nodes.
fn with_cuts(case: &mut Case, cut: impl Fn(usize) -> (u64, Vec<(At, At)>)) {
    with_joins(case);
    (case.setup.loses_a_disk, case.setup.service_fails) = (false, false);
    case.options.break_one_in = 0;
    case.options.break_after_us = LASTS_US_MAX;
    case.plan.0.clear();
    for number in 0..20 {
        let (for_us, links) = cut(number);
        let at_us = 3_000_000 + number as u64 * 600_000;
        let cuts = links.into_iter();
        let cuts = cuts.map(|(from, to)| (at_us, Fault::Cut { from, to, for_us }));
        case.plan.0.extend(cuts);
    }
}

fn check_join_bug_found(scenario: fn(&mut Case), bug: PlantedBug) {
    check_found(0, 30, scenario, |setup| setup.joins = Some(bug));
}

#[test]
fn the_simulation_detects_a_lost_message_with_changes() {
    check_join_bug_found(with_joins, PlantedBug::LosesChanges);
}

#[test]
fn the_simulation_detects_a_reader_that_never_expires_rows() {
    check_join_bug_found(with_late_messages, PlantedBug::NeverExpiresRows);
}

#[test]
fn the_simulation_detects_a_reply_before_outputs_reflect_the_write() {
    check_join_bug_found(with_late_messages, PlantedBug::RepliesEarly);
}
