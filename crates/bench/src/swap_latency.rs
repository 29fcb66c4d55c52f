//! What readers notice of pulls and swaps: latency quiet, and while versions are pulled at full speed and go live.
//!
//! Reads come at a steady rate, and each is timed from the moment it was due: a server that stalls is charged for
//! every read that had to wait.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use larder_client::AdminClient;
use serde_json::json;

use crate::report::{self, median, spread};
use crate::server::publish;
use crate::store::{Random, VALUE_BYTES};
use crate::{Result, load, process, store};

#[derive(Args)]
pub struct SwapLatencyArgs {
    /// Records of 100 bytes in each version
    #[arg(long, default_value_t = 2_000_000)]
    keys: u64,
    /// Seconds of each part
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Seconds from one pull's begin to the next one's, at least
    #[arg(long, default_value_t = 3.0)]
    swap_every: f64,
    /// Reads a second
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
    /// Connections that the reads take in turn
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Rounds of quiet and busy
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The binary larder [default: built beside this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw numbers into this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &SwapLatencyArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    let temp = tempfile::tempdir()?;
    let versions = [temp.path().join("A"), temp.path().join("B")];
    store::build(&versions[0], args.keys, b'A')?;
    store::build(&versions[1], args.keys, b'B')?;
    let server = process::start_larder(&binary, &temp.path().join("data"), None, 0)?;
    publish(&server, &versions[0])?;
    publish(&server, &versions[1])?;

    let mut raw = Vec::new();
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    let (mut swaps, mut failed) = (0, 0);
    for round in 0..args.rounds {
        let reads = read_steadily(server.resp, args, &AtomicBool::new(true))?;
        raw.push(reads.line("quiet", round, 0));
        failed += reads.failed;
        quiet.push(reads);

        let go_on = AtomicBool::new(true);
        let (reads, swapped) = std::thread::scope(|scope| -> Result<(Reads, u64)> {
            let pulls = scope.spawn(|| {
                let swapped = pull_in_turns(&server, &versions, args, &go_on)
                    .map_err(|error| error.to_string());
                go_on.store(false, Ordering::Relaxed);
                swapped
            });
            let reads = read_steadily(server.resp, args, &go_on);
            go_on.store(false, Ordering::Relaxed);
            let swapped = pulls.join().map_err(|_| "the pulls panicked")??;
            Ok((reads?, swapped))
        })?;
        raw.push(reads.line("busy", round, swapped));
        failed += reads.failed;
        swaps += swapped;
        busy.push(reads);
    }
    let rollbacks = roll_back(&server)?;
    raw.push(json!({"rollback_us": rollbacks}));

    let of = |parts: &[Reads], quantile: f64| {
        parts
            .iter()
            .map(|part| part.us(quantile))
            .collect::<Vec<f64>>()
    };
    let mut table = String::from(
        "| GET, us | quiet | while pulling and swapping | ratio |\n|---|---|---|---|\n",
    );
    for quantile in [0.5, 0.99, 0.999, 1.0] {
        let (quiet, busy) = (of(&quiet, quantile), of(&busy, quantile));
        writeln!(
            table,
            "| {} | {} | {} | {:.2} |",
            name(quantile),
            spread(&quiet, 1),
            spread(&busy, 1),
            median(&busy) / median(&quiet)
        )?;
    }
    let reads: u64 = quiet
        .iter()
        .chain(&busy)
        .map(|part| part.latency_ns.len())
        .sum();
    let markdown = format!(
        "## Reads while versions change\n\n{table}\n\
         {reads} reads, {swaps} swaps under load, **{failed} failed reads**; rollback {} us (as the server timed it).\n\n\
         {} records of 100 bytes a version, pulled from a local folder without a limit, a pull every {} s at the earliest; {} reads a second over {} connections, \
         each timed from the moment it was due; parts of {} s, {} rounds, median (minimum-maximum). Server and readers share the machine's {} cores.\n\nCommand: `{}`\n",
        spread(&rollbacks, 0),
        args.keys,
        args.swap_every,
        args.rate,
        args.connections,
        args.seconds,
        args.rounds,
        process::core_count(),
        report::command(),
    );
    report::keep(args.out.as_deref(), "swap-latency", &markdown, &raw)
}

fn name(quantile: f64) -> String {
    if quantile == 1.0 {
        "largest".into()
    } else {
        format!("p{}", quantile * 100.0)
    }
}

struct Reads {
    latency_ns: Histogram<u64>,
    failed: u64,
}

impl Reads {
    fn us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }

    fn line(&self, part: &str, round: usize, swaps: u64) -> serde_json::Value {
        json!({
            "part": part, "round": round, "reads": self.latency_ns.len(), "failed": self.failed, "swaps": swaps,
            "p50_us": self.us(0.5), "p99_us": self.us(0.99), "p999_us": self.us(0.999), "max_us": self.us(1.0),
        })
    }
}

/// Reads at the rate asked for, until time is up or `go_on` is false.
fn read_steadily(address: SocketAddr, args: &SwapLatencyArgs, go_on: &AtomicBool) -> Result<Reads> {
    let mut streams = Vec::new();
    for _ in 0..args.connections {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        streams.push(stream);
    }
    let mut reads = Reads {
        latency_ns: Histogram::new(3)?,
        failed: 0,
    };
    let mut random = Random(7);
    let (mut request, mut reply) = (Vec::new(), [0; 6 + VALUE_BYTES + 2]);
    let step = Duration::from_nanos(1_000_000_000 / args.rate.max(1));
    let started = Instant::now();
    let mut due = started;
    while due.duration_since(started) < Duration::from_secs(args.seconds)
        && go_on.load(Ordering::Relaxed)
    {
        request.clear();
        load::encode(
            &mut request,
            &[b"GET", store::redis_key(random.below(args.keys)).as_bytes()],
        );
        while Instant::now() < due {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        let turn = reads.latency_ns.len() as usize % streams.len();
        let stream = &mut streams[turn];
        let good = stream
            .write_all(&request)
            .and_then(|()| stream.read_exact(&mut reply))
            .is_ok()
            && reply.starts_with(b"$100\r\n")
            && matches!(reply[6], b'A' | b'B');
        reads
            .latency_ns
            .saturating_record(due.elapsed().as_nanos() as u64);
        if !good {
            // What is left of an unexpected reply is lost with its connection.
            reads.failed += 1;
            streams[turn] = TcpStream::connect(address)?;
        }
        due += step;
    }
    Ok(reads)
}

/// Pulls the versions in turn, each going live, until `go_on` is false.
fn pull_in_turns(
    server: &process::Server,
    versions: &[PathBuf],
    args: &SwapLatencyArgs,
    go_on: &AtomicBool,
) -> Result<u64> {
    let mut swapped = 0;
    while go_on.load(Ordering::Relaxed) {
        let started = Instant::now();
        publish(server, &versions[swapped as usize % versions.len()])?;
        swapped += 1;
        while go_on.load(Ordering::Relaxed) && started.elapsed().as_secs_f64() < args.swap_every {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(swapped)
}

/// Rolls back and forth; how long the server took for each, in microseconds.
fn roll_back(server: &process::Server) -> Result<Vec<f64>> {
    let admin = AdminClient::new(
        server
            .http
            .as_deref()
            .ok_or("this server has no HTTP API")?,
    )?;
    let store = store::NAME.parse()?;
    let mut took_us = Vec::new();
    for _ in 0..5 {
        let swap = admin.rollback(&store, None)?;
        took_us.push(swap.took_us as f64);
        admin.swap(
            &store,
            swap.previous.ok_or("a rollback left no previous version")?,
        )?;
    }
    Ok(took_us)
}
