//! Adds a fourth node to a cluster of three under load: the latency of requests during the change, and the amount of
//! moved data.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use larder_client::RespClient;
use larder_protocol::http::{ClusterSettingsChange, ClusterStatus};
use larder_protocol::resp::client::Reply;
use larder_testing::SetOnDrop;
use larder_types::{Random, SLOTS, row_slot};
use serde_json::json;

use super::nodes::Nodes;
use super::probes::Service;
use crate::report::{self, median};
use crate::{Result, process, store};

const LATENCY_BAR: f64 = 2.0;
const MOVED_BAR: f64 = 1.1;
const NODES: usize = 3;
const COPIES: usize = 2;
/// The number of rows written by one request while the cluster is filled.
const BATCH: u64 = 200;
/// The number of reading clients. As many others write.
const CLIENTS: u64 = 2;
/// The pause between two requests of a client.
const PACE: Duration = Duration::from_millis(2);
/// The polling interval. Requests for the status are load on the nodes too.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time after which requests that were due during the change have completed.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// The time limit for filling a node.
const FILL_TIMEOUT: Duration = Duration::from_secs(120);
const PHASES: [&str; 3] = ["before", "while it is filled", "after"];

#[derive(Args)]
pub struct ClusterGrowthArgs {
    /// Number of rows, of 100 bytes each
    #[arg(long, default_value_t = 300_000)]
    rows: u64,
    /// Seconds to measure before the node starts, and after it is filled
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Rounds, each with a new cluster
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Value of the setting `fill_slots_at_once` [default: larder's default]
    #[arg(long)]
    fill_slots_at_once: Option<u16>,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

struct GrowthSample {
    /// The 99th percentile in microseconds, by phase, for reads and writes.
    p99_us: [[u64; 2]; 3],
    requests: [u64; 3],
    failed: usize,
    filled_s: f64,
    /// The bytes of the rows that were copied, as a multiple of the necessary bytes.
    moved: f64,
    moved_bytes: u64,
}

pub fn run(args: &ClusterGrowthArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    let mut samples = Vec::new();
    let mut raw = Vec::new();
    for round in 0..args.rounds {
        let folder = tempfile::tempdir()?;
        let settings = [format!("tables.replicas={COPIES}")];
        let nodes = Nodes::start(&binary, folder.path(), NODES, &settings, false)?;
        if let Some(slots) = args.fill_slots_at_once {
            nodes.set(ClusterSettingsChange {
                fill_slots_at_once: Some(slots),
                ..ClusterSettingsChange::default()
            })?;
        }
        let sample = run_round(args, nodes)?;
        raw.push(json!({
            "round": round, "p99_us": sample.p99_us, "requests": sample.requests, "failed": sample.failed, "filled_s": sample.filled_s,
            "moved": sample.moved, "moved_bytes": sample.moved_bytes,
        }));
        eprintln!("{}", raw[raw.len() - 1]);
        samples.push(sample);
    }
    report::keep(
        args.out.as_deref(),
        "cluster-growth",
        &markdown(args, &samples)?,
        &raw,
    )
}

fn run_round(args: &ClusterGrowthArgs, mut nodes: Nodes) -> Result<GrowthSample> {
    let addresses = nodes.addresses();
    let bytes = fill(&addresses, args.rows)?;
    let (stop, phase) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (seen, grown) = std::thread::scope(|scope| {
        let stopping = SetOnDrop(&stop);
        let clients: Vec<_> = (0..2 * CLIENTS)
            .map(|client| {
                let (addresses, stop, phase) = (&addresses, &stop, &phase);
                scope.spawn(move || drive(client, args.rows, addresses, stop, phase))
            })
            .collect();
        let grown = add_node(args, &mut nodes, &bytes, &phase);
        drop(stopping);
        let seen = clients.into_iter().map(|it| it.join().expect("it goes on"));
        (seen.collect::<Vec<Client>>(), grown)
    });
    let (filled_s, moved_bytes) = grown?;
    let of = |phase: usize, is_write: bool| {
        let mut all = histogram();
        for client in seen.iter().filter(|it| it.is_write == is_write) {
            all += &client.latency_us[phase];
        }
        all
    };
    let p99 = |phase, is_write| of(phase, is_write).value_at_quantile(0.99);
    let least = bytes.iter().sum::<u64>() as f64 * COPIES as f64 / (NODES + 1) as f64;
    Ok(GrowthSample {
        p99_us: [0, 1, 2].map(|phase| [false, true].map(|is_write| p99(phase, is_write))),
        requests: [0, 1, 2].map(|phase| of(phase, false).len() + of(phase, true).len()),
        failed: seen.iter().map(|client| client.failed).sum(),
        filled_s,
        moved: moved_bytes as f64 / least,
        moved_bytes,
    })
}

/// Starts a fourth node under load, and waits until it has its share. Returns the time this takes, and the bytes of the
/// copied rows.
fn add_node(
    args: &ClusterGrowthArgs,
    nodes: &mut Nodes,
    bytes: &[u64],
    phase: &AtomicUsize,
) -> Result<(f64, u64)> {
    let pause = || std::thread::sleep(Duration::from_secs(args.seconds));
    pause();
    let mut had = copies(&nodes.status(0)?);
    phase.store(1, Ordering::Relaxed);
    let began = Instant::now();
    nodes.add()?;
    let mut moved = 0;
    loop {
        // A copy that did not exist before was copied, including one that was abandoned and started again.
        let status = nodes.status(0)?;
        let has = copies(&status);
        let new = (has.iter().zip(&had)).map(|(has, had)| u64::from((has & !had).count_ones()));
        moved += new
            .zip(bytes)
            .map(|(copies, bytes)| copies * bytes)
            .sum::<u64>();
        had = has;
        let newest = status.members.iter().find(|it| it.name == nodes.newest());
        if newest.is_some_and(|it| it.slots_owned > 0) && nodes.is_settled() {
            break;
        }
        if began.elapsed() > FILL_TIMEOUT {
            return Err(format!("the fourth node is not filled: {status:?}").into());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let filled_s = began.elapsed().as_secs_f64();
    // Requests that were delayed by the change still count for this phase.
    std::thread::sleep(DRAIN_TIME);
    phase.store(2, Ordering::Relaxed);
    pause();
    Ok((filled_s, moved))
}

/// Returns the members that have each slot, or are being filled with it, as bits in the order of joining.
fn copies(status: &ClusterStatus) -> Vec<u64> {
    let bit = |node: &String| {
        let at = status.members.iter().position(|it| it.name == *node);
        at.map_or(0, |at| 1 << at)
    };
    let mut copies = vec![0; usize::from(SLOTS)];
    for run in &status.slots {
        let holders = run.owner.iter().chain(&run.in_sync).chain(&run.filling);
        let all: u64 = holders.map(bit).fold(0, |all, bit| all | bit);
        copies[usize::from(run.from)..=usize::from(run.to)].fill(all);
    }
    copies
}

fn key(row: u64) -> String {
    format!("row|{row:08}|")
}

/// Writes all rows. Returns the bytes of each slot.
fn fill(addresses: &[String], rows: u64) -> Result<Vec<u64>> {
    let mut bytes = vec![0; usize::from(SLOTS)];
    let client = RespClient::new(&*addresses[0]);
    for first in (0..rows).step_by(BATCH as usize) {
        let rows = first..rows.min(first + BATCH);
        let rows: Vec<_> = rows
            .map(|row| (key(row), store::value(row, b'A')))
            .collect();
        let sets = rows
            .iter()
            .map(|(key, value)| [&b"SET"[..], key.as_bytes(), value]);
        let sets: Vec<[&[u8]; 3]> = sets.collect();
        let sets: Vec<&[&[u8]]> = sets.iter().map(|it| &it[..]).collect();
        for reply in client.pipeline(&sets)? {
            if !matches!(reply, Reply::Simple(_)) {
                return Err(format!("a SET is answered by {reply:?}").into());
            }
        }
        for (key, value) in &rows {
            bytes[usize::from(row_slot(key.as_bytes()))] += (key.len() + value.len()) as u64;
        }
    }
    Ok(bytes)
}

/// The measurements of a client.
struct Client {
    is_write: bool,
    /// By phase, measured from the time a request was due.
    latency_us: [Histogram<u64>; 3],
    failed: usize,
}

/// Reads or writes random rows, one at a time and at a steady rate, through each node in turn.
fn drive(
    number: u64,
    rows: u64,
    addresses: &[String],
    stop: &AtomicBool,
    phase: &AtomicUsize,
) -> Client {
    let mut random = Random::new(number + 1);
    let nodes: Vec<RespClient> = addresses.iter().map(|it| RespClient::new(&**it)).collect();
    let mut seen = Client {
        is_write: number % 2 == 1,
        latency_us: [histogram(), histogram(), histogram()],
        failed: 0,
    };
    let mut due = Instant::now();
    for node in nodes.iter().cycle() {
        due += PACE;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let row = random.below(rows);
        let (key, value) = (key(row), store::value(row, b'A'));
        let parts: &[&[u8]] = if seen.is_write {
            &[b"SET", key.as_bytes(), &value]
        } else {
            &[b"GET", key.as_bytes()]
        };
        let now = phase.load(Ordering::Relaxed);
        let is_answered = match node.command(parts) {
            Ok(Reply::Bulk(_)) => !seen.is_write,
            Ok(Reply::Simple(_)) => seen.is_write,
            _ => false,
        };
        seen.failed += usize::from(!is_answered);
        seen.latency_us[now].saturating_record(due.elapsed().as_micros() as u64);
    }
    seen
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).expect("these bounds are in order")
}

fn markdown(args: &ClusterGrowthArgs, samples: &[GrowthSample]) -> Result<String> {
    let spread = |of: &dyn Fn(&GrowthSample) -> f64, digits| {
        let all: Vec<f64> = samples.iter().map(of).collect();
        report::spread(&all, digits)
    };
    let mut text = String::from(
        "## A fourth node joins three, under load\n\n| | requests | p99 of reads, us | p99 of writes, us |\n|---|---|---|---|\n",
    );
    for (phase, name) in PHASES.into_iter().enumerate() {
        writeln!(
            text,
            "| {name} | {} | {} | {} |",
            spread(&|it| it.requests[phase] as f64, 0),
            spread(&|it| it.p99_us[phase][0] as f64, 0),
            spread(&|it| it.p99_us[phase][1] as f64, 0),
        )?;
    }
    let ratio = |which: usize| {
        let of = |it: &GrowthSample| it.p99_us[1][which] as f64 / it.p99_us[0][which] as f64;
        median(&samples.iter().map(of).collect::<Vec<_>>())
    };
    let moved = median(&samples.iter().map(|it| it.moved).collect::<Vec<_>>());
    text += "\n| | measured | bar | |\n|---|---|---|---|\n";
    for (what, measured, bar) in [
        (
            "p99 of reads while it is filled, times that before",
            ratio(0),
            LATENCY_BAR,
        ),
        (
            "p99 of writes while it is filled, times that before",
            ratio(1),
            LATENCY_BAR,
        ),
        (
            "bytes copied, times the least that must be",
            moved,
            MOVED_BAR,
        ),
    ] {
        let verdict = report::verdict(measured <= bar);
        writeln!(text, "| {what} | {measured:.2} | <= {bar} | {verdict} |")?;
    }
    writeln!(
        text,
        "\nIt was started, and had its share, in {} s; {} MB of rows were copied. Requests that failed: {}.\n\n\
         {} rows of 100 bytes on three nodes with `tables.replicas = {COPIES}`, all nodes, etcd and the clients on the machine's cores together. {CLIENTS} clients read and {CLIENTS} write, \
         one request every {} ms each, through each of the three nodes in turn; latency is from when a request was due, and \
         two seconds after it was filled count as while. {} rounds, each with a cluster of its own, {} s before and \
         after; median (minimum-maximum). The least that must be copied is the fourth node's share: {COPIES} of {} of all copies.\n\nCommand: `{}`",
        spread(&|it| it.filled_s, 1),
        spread(&|it| it.moved_bytes as f64 / 1e6, 1),
        samples.iter().map(|it| it.failed).sum::<usize>(),
        args.rows,
        PACE.as_millis(),
        args.rounds,
        args.seconds,
        COPIES * (NODES + 1),
        report::command()
    )?;
    Ok(text)
}
