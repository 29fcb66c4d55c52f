//! Compares one core of larder with one core of redis-server: GETs per second, and per second of the server's CPU time.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use larder_client::AdminClient;
use larder_protocol::http::{PullRequest, PullState};
use larder_types::StoreName;
use serde_json::json;

use crate::load::{self, Requests};
use crate::process::{self, Server};
use crate::report::{self, median, spread};
use crate::{Result, store};

#[derive(Args)]
pub struct ServerArgs {
    /// Number of records, of 100 bytes each
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Number of connections at each depth
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Outstanding requests on each connection (pipeline depth)
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    depths: Vec<usize>,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Rounds; the servers alternate within each round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// The server to compare with: any program that implements SET and GET
    #[arg(long, default_value = "redis-server")]
    redis: String,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

struct ServerSample {
    requests_per_second: f64,
    requests_per_cpu_second: f64,
}

pub fn run(args: &ServerArgs) -> Result<()> {
    if process::core_count() < 2 {
        return Err("this needs two cores: one for the server, one for the load".into());
    }
    let binary = process::larder_binary(args.larder.as_deref())?;
    let temp = tempfile::tempdir()?;
    let larder = process::start_larder(&binary, &temp.path().join("data"), Some(0), 1)?;
    store::build(&temp.path().join("version"), args.keys, b'A')?;
    publish(&larder, &temp.path().join("version"))?;
    let redis = process::start_redis(&args.redis, 0)?;
    process::pin_self(1)?;
    load::fill(redis.resp, args.keys)?;
    let requests = Requests::new(args.keys, 200_000);

    let mut raw = Vec::new();
    let mut table = String::from(
        "| depth | larder, requests/s | redis, requests/s | ratio | larder, requests/CPU s | redis, requests/CPU s | ratio |\n|---|---|---|---|---|---|---|\n",
    );
    for &depth in &args.depths {
        let mut samples: [Vec<ServerSample>; 2] = [Vec::new(), Vec::new()];
        for round in 0..args.rounds {
            for turn in 0..2 {
                let which = (turn + round) % 2;
                let server = [&larder, &redis][which];
                let sample = measure(server, &requests, args, depth)?;
                raw.push(json!({
                    "server": (["larder", "redis"][which]), "depth": depth, "round": round, "connections": args.connections,
                    "requests_per_second": sample.requests_per_second, "requests_per_cpu_second": sample.requests_per_cpu_second,
                }));
                samples[which].push(sample);
            }
        }
        let of = |which: usize, what: fn(&ServerSample) -> f64| {
            samples[which].iter().map(what).collect::<Vec<f64>>()
        };
        let rate: fn(&ServerSample) -> f64 = |sample| sample.requests_per_second;
        let efficiency: fn(&ServerSample) -> f64 = |sample| sample.requests_per_cpu_second;
        writeln!(
            table,
            "| {depth} | {} | {} | {:.2} | {} | {} | {:.2} |",
            spread(&of(0, rate), 0),
            spread(&of(1, rate), 0),
            median(&of(0, rate)) / median(&of(1, rate)),
            spread(&of(0, efficiency), 0),
            spread(&of(1, efficiency), 0),
            median(&of(0, efficiency)) / median(&of(1, efficiency)),
        )?;
    }
    let markdown = format!(
        "## Server: GETs on one core\n\n{table}\n\
         {} records of 100 bytes, {} connections over loopback, server on core 0, load on core 1, {} s each, {} rounds in turns, median (minimum-maximum). \
         CPU time of the whole process, from /proc/PID/stat. If the load generator is the limit, compare requests per CPU second.\n\nCommand: `{}`\n",
        args.keys,
        args.connections,
        args.seconds,
        args.rounds,
        report::command(),
    );
    report::keep(args.out.as_deref(), "server", &markdown, &raw)
}

fn measure(
    server: &Server,
    requests: &Requests,
    args: &ServerArgs,
    depth: usize,
) -> Result<ServerSample> {
    load::drive(
        server.resp,
        requests,
        args.connections,
        depth,
        Duration::from_millis(300),
    )?;
    let before = server.cpu_s()?;
    let (answered, took) = load::drive(
        server.resp,
        requests,
        args.connections,
        depth,
        Duration::from_secs(args.seconds),
    )?;
    let cpu_s = server.cpu_s()? - before;
    Ok(ServerSample {
        requests_per_second: answered as f64 / took.as_secs_f64(),
        requests_per_cpu_second: answered as f64 / cpu_s.max(0.01),
    })
}

/// Lets a server pull a version, and waits until it is live.
pub fn publish(server: &Server, version: &std::path::Path) -> Result<()> {
    let http = server.http.as_deref();
    publish_at(http.ok_or("this server has no HTTP API")?, version)
}

/// Like [`publish`], by the address of the HTTP API.
pub fn publish_at(http: &str, version: &std::path::Path) -> Result<()> {
    let admin = AdminClient::new(http)?;
    let store: StoreName = store::NAME.parse()?;
    let request = PullRequest {
        source: version.display().to_string(),
        gates: None,
        activate: true,
        allow_missing_replicas: 0,
    };
    let mut pull = admin.pull(&store, &request)?;
    while !pull.state.has_ended() {
        std::thread::sleep(Duration::from_millis(5));
        pull = admin.pull_status(&pull)?;
    }
    match (pull.state, pull.error) {
        (PullState::Done, _) => Ok(()),
        (state, error) => Err(format!("the pull ended as {}: {error:?}", state.name()).into()),
    }
}
