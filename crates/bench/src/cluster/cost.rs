//! The cost of a cluster: CPU time of all servers per operation, for different numbers of nodes, for forwarded
//! requests, and compared with Redis Cluster.
//!
//! All nodes run on one core and the load generator on the other, so the results compare work, not speed. The cost of
//! an operation is the CPU time of all nodes divided by the number of answered operations. Rows are in a table, spread
//! over all slots by the hash tags of their keys, so every client of Redis Cluster knows the owner of each row.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use larder_types::Random;
use serde_json::{Value, json};

use super::servers::Cluster;
use crate::load::{self, Requests};
use crate::net::services;
use crate::report::{self, median, spread};
use crate::{Result, process, store};

/// The number of rows that share a hash tag, and therefore a slot.
const GROUP: u64 = 10;
/// The number of requests encoded in advance, divided among the nodes.
const REQUESTS: usize = 50_000;
/// The time limit until a new cluster accepts all writes.
const START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args)]
pub struct ClusterArgs {
    /// Cluster sizes to compare, in nodes
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    nodes: Vec<usize>,
    /// Number of rows, of 100 bytes each
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Connections, summed over all nodes
    #[arg(long, default_value_t = 48)]
    connections: usize,
    /// Outstanding requests on each connection (pipeline depth)
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    depths: Vec<usize>,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 1)]
    seconds: u64,
    /// Rounds; the deployments alternate within each round
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

impl ClusterArgs {
    fn load(&self, depth: usize) -> Load {
        Load {
            connections: self.connections,
            seconds: self.seconds,
            depth,
        }
    }
}

/// The kind of request.
#[derive(Clone, Copy, PartialEq)]
pub enum RequestKind {
    Get,
    /// Reads ten rows of one slot.
    MGet,
    Set,
}

impl RequestKind {
    fn name(self) -> &'static str {
        match self {
            RequestKind::Get => "GET",
            RequestKind::MGet => "MGET of 10",
            RequestKind::Set => "SET",
        }
    }

    fn requests(self) -> Requests {
        match self {
            RequestKind::Get => Requests::for_values(),
            RequestKind::MGet => Requests::for_arrays(GROUP as usize),
            RequestKind::Set => Requests::for_writes(),
        }
    }

    fn push(self, requests: &mut Requests, row: u64) {
        match self {
            RequestKind::Get => requests.push(&[b"GET", &key(row)]),
            RequestKind::Set => requests.push(&[b"SET", &key(row), &store::value(row, b'A')]),
            RequestKind::MGet => {
                let first = row - row % GROUP;
                let keys: Vec<Vec<u8>> = (first..first + GROUP).map(key).collect();
                let mut args: Vec<&[u8]> = vec![b"MGET"];
                args.extend(keys.iter().map(Vec::as_slice));
                requests.push(&args);
            }
        }
    }
}

fn key(row: u64) -> Vec<u8> {
    format!("row|{{{}}}|{:02}", row / GROUP, row % GROUP).into_bytes()
}

/// The load on a cluster.
pub struct Load {
    /// The total for all nodes.
    pub connections: usize,
    pub seconds: u64,
    /// The number of requests in flight on each connection.
    pub depth: usize,
}

/// One measurement.
pub struct CostSample {
    /// CPU time of all nodes per operation, in microseconds.
    pub cpu_us: f64,
    /// The share of the busiest node in that time.
    busiest: f64,
    pub per_second: f64,
    coordinator_cpu_s: f64,
}

pub fn run(args: &ClusterArgs) -> Result<()> {
    if process::core_count() < 2 {
        return Err("this needs two cores: one for the servers, one for the load".into());
    }
    let binary = process::larder_binary(args.larder.as_deref())?;
    let folder = tempfile::tempdir()?;
    let mut raw = Vec::new();
    let mut clusters = Vec::new();
    for &nodes in &args.nodes {
        let data = folder.path().join(format!("larder-{nodes}"));
        let cluster = Cluster::start_larder(&binary, &data, nodes, 1)?;
        fill(&cluster, args.rows)?;
        clusters.push((format!("larder, {nodes}"), cluster));
    }
    if let Some(redis) = services::find("redis-server") {
        for (name, logs) in [
            ("Redis Cluster, 3", false),
            ("Redis Cluster, 3, with a log", true),
        ] {
            let cluster = Cluster::start_redis(&redis, folder.path(), 3, logs)?;
            fill(&cluster, args.rows)?;
            clusters.push((name.to_owned(), cluster));
        }
    }
    let mut markdown = format!(
        "## A cluster's cost\n\nMicroseconds of CPU time of all nodes for an operation that is sent to the row's owner: median (minimum-maximum). \
         {} rows of 100 bytes, {} connections in all, {} s each, {} rounds in turns; all nodes on core 0 with one thread each, the load on core 1.\n\n",
        args.rows, args.connections, args.seconds, args.rounds
    );
    for &depth in &args.depths {
        writeln!(
            markdown,
            "### {depth} under way on each connection\n\n| cluster, nodes | GET | MGET of 10 | SET | busiest node's share of GETs |\n|---|---|---|---|---|"
        )?;
        let all = [RequestKind::Get, RequestKind::MGet, RequestKind::Set];
        let mut samples: Vec<[Vec<CostSample>; 3]> =
            clusters.iter().map(|_| Default::default()).collect();
        for _ in 0..args.rounds {
            for (at, (name, cluster)) in clusters.iter().enumerate() {
                for (which, what) in all.into_iter().enumerate() {
                    let requests = requests_by_owner(cluster, args.rows, what);
                    let sample = measure(cluster, &requests, &args.load(depth))?;
                    raw.push(to_json(name, what, "direct", depth, &sample));
                    samples[at][which].push(sample);
                }
            }
        }
        for ((name, _), of) in clusters.iter().zip(&samples) {
            let cost =
                |which: usize| spread(&of[which].iter().map(|it| it.cpu_us).collect::<Vec<_>>(), 2);
            let busiest: Vec<f64> = of[0].iter().map(|it| it.busiest).collect();
            writeln!(
                markdown,
                "| {name} | {} | {} | {} | {:.2} |",
                cost(0),
                cost(1),
                cost(2),
                median(&busiest)
            )?;
        }
        writeln!(markdown)?;
    }
    if let Some((name, cluster)) = clusters
        .iter()
        .find(|(_, cluster)| cluster.nodes.len() == 2)
    {
        markdown += &measure_forwarded(name, cluster, args, &mut raw)?;
    }
    let coordinator: f64 = raw
        .iter()
        .filter_map(|line| line["coordinator_cpu_s"].as_f64())
        .sum();
    let seconds = args.seconds as usize * raw.len();
    writeln!(
        markdown,
        "etcd's CPU time in all {seconds} seconds of measurement: {coordinator:.1} s; it keeps leases alive; requests do not use it.\n\nCommand: `{}`",
        report::command()
    )?;
    report::keep(args.out.as_deref(), "cluster", &markdown, &raw)
}

/// Compares requests for rows of one node, sent to that node and to the other one.
fn measure_forwarded(
    name: &str,
    cluster: &Cluster,
    args: &ClusterArgs,
    raw: &mut Vec<Value>,
) -> Result<String> {
    let mut markdown = String::from(
        "### A forwarded request\n\nMicroseconds of CPU time of two nodes for a request that is sent to the owner, and for one that is sent to the other node.\n\n\
         | in flight | request | direct | forwarded | ratio |\n|---|---|---|---|---|\n",
    );
    for &depth in &args.depths {
        for what in [RequestKind::Get, RequestKind::Set] {
            let (mut direct, mut forwarded) = (Vec::new(), Vec::new());
            let requests = requests_of_owner(cluster, args.rows, what, 0);
            for _ in 0..args.rounds {
                for (node, samples) in [(0, &mut direct), (1, &mut forwarded)] {
                    let servers = [(cluster.nodes[node].resp, &requests)];
                    let sample = measure_servers(cluster, &servers, &args.load(depth))?;
                    let way = ["direct", "forwarded"][node];
                    raw.push(to_json(name, what, way, depth, &sample));
                    samples.push(sample.cpu_us);
                }
            }
            let ratio = median(&forwarded) / median(&direct);
            let name = what.name();
            writeln!(
                markdown,
                "| {depth} | {name} | {} | {} | {ratio:.2} |",
                spread(&direct, 2),
                spread(&forwarded, 2)
            )?;
        }
    }
    markdown.push('\n');
    Ok(markdown)
}

fn to_json(
    cluster: &str,
    what: RequestKind,
    way: &str,
    depth: usize,
    sample: &CostSample,
) -> Value {
    json!({
        "cluster": cluster, "request": what.name(), "way": way, "depth": depth, "cpu_us": sample.cpu_us,
        "busiest": sample.busiest, "per_second": sample.per_second, "coordinator_cpu_s": sample.coordinator_cpu_s,
    })
}

/// Returns requests for random rows, grouped by owner.
pub fn requests_by_owner(cluster: &Cluster, rows: u64, what: RequestKind) -> Vec<Requests> {
    (0..cluster.nodes.len())
        .map(|node| requests_of_owner(cluster, rows, what, node))
        .collect()
}

fn requests_of_owner(cluster: &Cluster, rows: u64, what: RequestKind, node: usize) -> Requests {
    let mut random = Random::new(node as u64 + 1);
    let mut requests = what.requests();
    let mut count = 0;
    while count < REQUESTS / cluster.nodes.len() {
        let row = random.below(rows);
        if cluster.owner_of(&key(row)) == node {
            what.push(&mut requests, row);
            count += 1;
        }
    }
    requests
}

/// Writes every row at its owner.
pub fn fill(cluster: &Cluster, rows: u64) -> Result<()> {
    let mut requests: Vec<Requests> = cluster
        .nodes
        .iter()
        .map(|_| RequestKind::Set.requests())
        .collect();
    for row in 0..rows {
        RequestKind::Set.push(&mut requests[cluster.owner_of(&key(row))], row);
    }
    for (node, requests) in cluster.nodes.iter().zip(&requests) {
        // New nodes do not accept writes for all their slots yet.
        let started = Instant::now();
        while let Err(error) = load::send_all(node.resp, requests) {
            if started.elapsed() > START_TIMEOUT {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

pub fn measure(cluster: &Cluster, requests: &[Requests], load: &Load) -> Result<CostSample> {
    let addresses = cluster.nodes.iter().map(|node| node.resp);
    let servers: Vec<_> = addresses.zip(requests).collect();
    measure_servers(cluster, &servers, load)
}

fn measure_servers(
    cluster: &Cluster,
    servers: &[(SocketAddr, &Requests)],
    load: &Load,
) -> Result<CostSample> {
    let depth = load.depth;
    let each = (load.connections / servers.len()).max(1);
    load::drive_all(servers, each, depth, Duration::from_millis(300))?;
    let (before, coordinator) = (cluster.cpu_s()?, cluster.coordinator_cpu_s()?);
    let (answered, took) =
        load::drive_all(servers, each, depth, Duration::from_secs(load.seconds))?;
    let after = cluster.cpu_s()?;
    let spent: Vec<f64> = after
        .iter()
        .zip(&before)
        .map(|(after, before)| after - before)
        .collect();
    let all: f64 = spent.iter().sum::<f64>().max(0.01);
    Ok(CostSample {
        cpu_us: all * 1e6 / answered as f64,
        busiest: spent.iter().copied().fold(0.0, f64::max) / all,
        per_second: answered as f64 / took.as_secs_f64(),
        coordinator_cpu_s: cluster.coordinator_cpu_s()? - coordinator,
    })
}
