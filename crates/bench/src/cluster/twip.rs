//! Timelines over 1, 2, 4 and 8 nodes.
//!
//! The client knows the cluster map, as cluster clients do. It checks a timeline at the owner of the reader's slot,
//! which also has the reader's subscriptions. It sends a post to the poster's node, from which every node with a
//! follower receives it. The load and the expected results are those of `twip-net`.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::RespClient;
use larder_types::{Random, row_slot};
use serde_json::{Value, json};

use super::cost;
use super::servers::Cluster;
use crate::Result;
use crate::net::drive::WINDOW;
use crate::net::larder::{Larder, Mode};
use crate::net::services::{CLIENT_CORE, SERVER_CORE};
use crate::net::timelines::{Connection, Servers, System};
use crate::net::twip::{Run, run_operations};
use crate::net::workload::Workload;
use crate::process;
use crate::report::{self, median, spread};
use crate::twip_graph;

/// The maximum cost on eight nodes, as a multiple of that on one.
const COST_BAR: f64 = 1.6;
/// The maximum load of the busiest of eight nodes, as a multiple of the mean.
const BUSIEST_BAR: f64 = 1.3;
/// The time limit until all nodes know a join.
const DECLARE_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of rows written to verify that a cluster accepts writes.
const FIRST_ROWS: u64 = 2_000;

#[derive(Args)]
pub struct ClusterTwipArgs {
    /// Cluster sizes to compare, in nodes; the first is the baseline
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    nodes: Vec<usize>,
    /// Number of operations
    #[arg(long, default_value_t = 500_000)]
    operations: usize,
    /// Number of users in the generated graph
    #[arg(long, default_value_t = 10_000)]
    users: usize,
    /// Rounds; the deployments alternate within each round
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Maximum number of outstanding requests per node
    #[arg(long, default_value_t = WINDOW)]
    window: usize,
    /// Apply the window to all nodes together instead of to each node
    #[arg(long)]
    one_window: bool,
    /// Number of newest ticks that checks do not read, because their posts may still be in flight
    #[arg(long, default_value_t = 100_000)]
    held_back: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

struct TwipClusterSample {
    /// CPU time of all nodes per operation, in microseconds.
    cpu_us: f64,
    /// The CPU time of the busiest node, as a multiple of the mean.
    busiest: f64,
    per_second: f64,
    coordinator_cpu_s: f64,
}

pub fn run(args: &ClusterTwipArgs) -> Result<()> {
    if process::core_count() < 2 {
        return Err("this needs two cores: one for the nodes, one for the client".into());
    }
    let most = args.nodes.iter().max().ok_or("--nodes names none")?;
    let in_flight = (args.window * most) as u64;
    if args.held_back < 2 * in_flight {
        return Err(format!(
            "--held-back must be at least {}: posts may be under way for so long",
            2 * in_flight
        )
        .into());
    }
    let binary = process::larder_binary(args.larder.as_deref())?;
    let mut random = Random::new(args.seed);
    let graph = twip_graph::generate(args.users, &mut random);
    let workload = Workload::new(&graph, args.operations, args.held_back, &mut random);
    drop(graph);
    let run = Run {
        operations: args.operations,
        expected: workload.expected(args.operations),
        workload: &workload,
    };
    let mut samples: Vec<Vec<TwipClusterSample>> = args.nodes.iter().map(|_| Vec::new()).collect();
    let mut raw = Vec::new();
    for round in 0..args.rounds {
        for (&nodes, samples) in args.nodes.iter().zip(&mut samples) {
            let window = if args.one_window {
                args.window
            } else {
                args.window * nodes
            };
            let sample = run_once(&binary, nodes, &run, window)?;
            raw.push(to_json(nodes, round, &sample));
            eprintln!("{}", raw[raw.len() - 1]);
            samples.push(sample);
        }
    }
    let markdown = markdown(args, &workload, &samples)?;
    report::keep(args.out.as_deref(), "cluster-twip", &markdown, &raw)
}

/// One run, on new nodes.
fn run_once(binary: &Path, nodes: usize, run: &Run, window: usize) -> Result<TwipClusterSample> {
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::start_larder(binary, folder.path(), nodes, 1)?;
    cost::fill(&cluster, FIRST_ROWS)?;
    declare(&cluster)?;
    let of_user = (0..run.workload.users).map(|user| {
        let slot = row_slot(format!("t|{user:08}|").as_bytes());
        cluster.owners[usize::from(slot)]
    });
    let of_user = of_user.collect();
    let line = |address: SocketAddr| -> Result<(Box<dyn System>, Connection)> {
        Ok((
            Box::new(Larder::new(Mode::Join)),
            Connection::open(address)?,
        ))
    };
    let lines = cluster.nodes.iter().map(|node| line(node.resp));
    let mut servers = Servers::many(lines.collect::<Result<_>>()?, of_user, window);
    let clock = || {
        let coordinator = cluster.coordinator_cpu_s()?;
        Ok((cluster.cpu_s()?, coordinator, Instant::now()))
    };
    let title = format!("{nodes} nodes");
    let [before, after] = run_operations(run, &title, &mut servers, clock)?;
    let spent = after.0.iter().zip(&before.0);
    let spent: Vec<f64> = spent.map(|(after, before)| after - before).collect();
    let all: f64 = spent.iter().sum::<f64>().max(0.01);
    let busiest = spent.iter().copied().fold(0.0, f64::max);
    Ok(TwipClusterSample {
        cpu_us: all * 1e6 / run.operations as f64,
        busiest: busiest / all * nodes as f64,
        per_second: run.operations as f64 / (after.2 - before.2).as_secs_f64(),
        coordinator_cpu_s: after.1 - before.1,
    })
}

/// Declares the timeline at one node, and waits until all nodes know it.
fn declare(cluster: &Cluster) -> Result<()> {
    let join = Larder::new(Mode::Join).join().ok_or("it has a join")?;
    let client = |at: usize| RespClient::new(cluster.nodes[at].resp.to_string());
    client(0).command(&[b"JOIN.CREATE", b"timeline", join.as_bytes()])?;
    let began = Instant::now();
    for at in 0..cluster.nodes.len() {
        while client(at).command(&[b"JOIN.INFO", b"timeline"]).is_err() {
            if began.elapsed() > DECLARE_TIMEOUT {
                return Err("a node has not received a join".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn to_json(nodes: usize, round: usize, sample: &TwipClusterSample) -> Value {
    json!({
        "nodes": nodes, "round": round, "cpu_us": sample.cpu_us, "busiest": sample.busiest,
        "per_second": sample.per_second, "coordinator_cpu_s": sample.coordinator_cpu_s,
    })
}

fn markdown(
    args: &ClusterTwipArgs,
    workload: &Workload,
    all: &[Vec<TwipClusterSample>],
) -> Result<String> {
    let of = |samples: &[TwipClusterSample], what: fn(&TwipClusterSample) -> f64| -> Vec<f64> {
        samples.iter().map(what).collect()
    };
    let cost: fn(&TwipClusterSample) -> f64 = |sample| sample.cpu_us;
    let busiest: fn(&TwipClusterSample) -> f64 = |sample| sample.busiest;
    let first = median(&of(&all[0], cost));
    let [posts, subscriptions, checks] = workload.kinds(args.operations);
    let mut text = format!(
        "## Twip over several nodes\n\n{} users, {} subscriptions; {} operations: {posts} posts, {subscriptions} subscriptions, {checks} checks, the rest logouts. \
         A client with the map sends requests for a user's timeline, subscriptions and posts to the node that owns the user's slot.\n\n\
         | nodes | CPU of all nodes an operation, us | times that of {} | busiest node, in equal shares | operations/s |\n|---|---|---|---|---|\n",
        args.users, workload.subscriptions, args.operations, args.nodes[0]
    );
    for (nodes, samples) in args.nodes.iter().zip(all) {
        let costs = of(samples, cost);
        writeln!(
            text,
            "| {nodes} | {} | {:.2} | {} | {} |",
            spread(&costs, 2),
            median(&costs) / first,
            spread(&of(samples, busiest), 2),
            spread(&of(samples, |sample| sample.per_second), 0),
        )?;
    }
    if let Some(at) = args.nodes.iter().position(|nodes| *nodes == 8) {
        let ratio = median(&of(&all[at], cost)) / first;
        let busiest = median(&of(&all[at], busiest));
        writeln!(
            text,
            "\n| at 8 nodes | measured | bar | |\n|---|---|---|---|\n| CPU an operation, times that of {} | {ratio:.2} | <= {COST_BAR} | {} |\n\
             | busiest node, of an eighth of all | {busiest:.2} | <= {BUSIEST_BAR} | {} |",
            args.nodes[0],
            report::verdict(ratio <= COST_BAR),
            report::verdict(busiest <= BUSIEST_BAR)
        )?;
    }
    let coordinator: f64 = all.iter().flatten().map(|it| it.coordinator_cpu_s).sum();
    writeln!(
        text,
        "\nAll nodes on core {SERVER_CORE} with one thread each, the client on core {CLIENT_CORE}, one connection to each node, at most {} requests in flight {}; one copy of each row. {} rounds in turns, median \
         (minimum-maximum). The rows that checks read, and all timelines at the end, equal those computed from the operations alone. etcd's CPU time in all of it: \
         {coordinator:.2} s.\n\nCommand: `{}`",
        args.window,
        if args.one_window {
            "in all"
        } else {
            "for each"
        },
        args.rounds,
        report::command()
    )?;
    Ok(text)
}
