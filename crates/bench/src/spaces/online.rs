//! `larder-bench space-online`: the effect of changing a space's subspaces on clients.
//!
//! Clients send requests at a fixed rate, regardless of the servers. A request that waits behind a slow one therefore
//! counts as slow too.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use larder_types::Random;
use serde_json::json;

use super::deployment::{Request, SpaceDeployment, load};
use super::hotels::{Hotels, price_text};
use crate::Result;
use crate::cluster::servers::Cluster;
use crate::process;
use crate::report::{self, verdict};

#[derive(Args)]
pub struct SpaceOnlineArgs {
    #[arg(long, default_value_t = 256_000)]
    hotels: usize,
    /// Number of servers, with one thread each, all on one core
    #[arg(long, default_value_t = 4)]
    servers: usize,
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Operations per second, summed over all clients
    #[arg(long, default_value_t = 2_000.0)]
    rate: f64,
    /// Seconds before each change during which only the operations run
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Number of changes of subspaces
    #[arg(long, default_value_t = 6)]
    changes: usize,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder, as `<name>.md` and `<name>.jsonl`
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "space-online")]
    name: String,
}

const REQUESTS: usize = 20_000;
/// The number of writes of a price in ten operations.
const WRITES: usize = 2;
const TIMES_BAR: f64 = 2.0;
/// The subspaces between which the space alternates. They have none in common, so each is filled completely.
const LAYOUTS: [&[&str]; 2] = [
    &["city:8", "price:4,stars:2"],
    &["city:6,stars:2", "price:5"],
];

const QUIET: usize = 0;
const CHANGING: usize = 1;
const PHASES: [&str; 2] = ["quiet", "while subspaces change"];
const KINDS: [&str; 2] = ["search", "write"];

/// The measurements of the clients, by phase and kind.
struct ClientLatencies {
    latencies: Vec<[Histogram<u64>; 2]>,
    failed: Vec<String>,
}

impl ClientLatencies {
    fn new() -> Result<ClientLatencies> {
        let mut latencies = Vec::new();
        for _ in PHASES {
            latencies.push([Histogram::new(3)?, Histogram::new(3)?]);
        }
        Ok(ClientLatencies {
            latencies,
            failed: Vec::new(),
        })
    }

    fn add(&mut self, other: ClientLatencies) -> Result<()> {
        for (own, other) in self.latencies.iter_mut().zip(other.latencies) {
            for (own, other) in own.iter_mut().zip(other) {
                own.add(other)?;
            }
        }
        self.failed.extend(other.failed);
        Ok(())
    }
}

pub fn run(args: &SpaceOnlineArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    let hotels = Hotels::generate(args.hotels, 1);
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::start_larder(&binary, folder.path(), args.servers, 1)?;
    let deployed = SpaceDeployment::at(&cluster.nodes[0].resp.to_string())?;
    super::systems::declare(&deployed)?;
    let writes = (0..hotels.all.len()).map(|it| deployed.request(&hotels.words(it)));
    load(&deployed, &writes.collect::<Vec<_>>())?;
    deployed.apply_subspaces(&texts(LAYOUTS[1]))?;
    let requests = requests(&deployed, &hotels);
    let (phase, is_over, all) = (
        AtomicUsize::new(QUIET),
        AtomicBool::new(false),
        Mutex::new(ClientLatencies::new()?),
    );
    let changes = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..args.clients)
            .map(|client| {
                let (deployed, requests, phase, is_over) = (&deployed, &requests, &phase, &is_over);
                scope.spawn(move || {
                    let each = Duration::from_secs_f64(args.clients as f64 / args.rate);
                    let seen = run_client(deployed, requests, client, each, phase, is_over);
                    seen.map_err(|error| error.to_string())
                })
            })
            .collect();
        let changes = changes(args, &deployed, &phase);
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let seen = client.join().map_err(|_| "a client has panicked")??;
            all.lock().map_err(|_| "a client has panicked")?.add(seen)?;
        }
        changes
    })?;
    let seen = all.into_inner().map_err(|_| "a client has panicked")?;
    write_report(args, &seen, &changes)
}

fn texts(lists: &[&str]) -> Vec<String> {
    lists.iter().map(|it| (*it).to_owned()).collect()
}

fn requests(deployed: &SpaceDeployment, hotels: &Hotels) -> Vec<(usize, Request)> {
    let mut random = Random::new(23);
    let requests = (0..REQUESTS).map(|_| {
        let number = hotels.any(&mut random);
        let city = hotels.all[number].value("city");
        let low = 2000 + random.index(43_200) as u32;
        let (from, to) = (price_text(low), price_text(low + 4800));
        if random.index(10) < WRITES {
            let words = ["HSET", &Hotels::key(number), "price", &from];
            return (1, deployed.request(&words.map(str::to_owned)));
        }
        let query = match random.index(2) {
            0 => format!("@city:{{{city}}}"),
            _ => format!("@city:{{{city}}} @price:[{from} {to}]"),
        };
        let words = ["FT.SEARCH", "hotels", &query, "LIMIT", "0", "20"];
        (0, deployed.request(&words.map(str::to_owned)))
    });
    requests.collect()
}

/// Runs one client, which sends each operation at its scheduled time.
fn run_client(
    deployed: &SpaceDeployment,
    requests: &[(usize, Request)],
    client: usize,
    each: Duration,
    phase: &AtomicUsize,
    is_over: &AtomicBool,
) -> Result<ClientLatencies> {
    let mut seen = ClientLatencies::new()?;
    let mut streams = deployed.connect()?;
    let mut random = Random::new(client as u64 + 1);
    let mut at = random.index(requests.len());
    let mut due = Instant::now() + each.mul_f64(random.index(1000) as f64 / 1000.0);
    while !is_over.load(Ordering::Relaxed) {
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            std::thread::sleep(wait);
        }
        let now = phase.load(Ordering::Relaxed);
        let (kind, request) = &requests[at % requests.len()];
        match request.send(&mut streams, at) {
            Ok(()) => {
                let us = due.elapsed().as_micros() as u64;
                seen.latencies[now][*kind].record(us.max(1))?;
            }
            Err(error) => {
                seen.failed.push(error.to_string());
                streams = deployed.connect()?;
            }
        }
        (at, due) = (at + 1, due + each);
    }
    Ok(seen)
}

/// Changes the subspaces repeatedly. Returns the duration of each change.
fn changes(
    args: &SpaceOnlineArgs,
    deployed: &SpaceDeployment,
    phase: &AtomicUsize,
) -> Result<Vec<f64>> {
    let mut took = Vec::new();
    // Warm up connections and processors.
    std::thread::sleep(Duration::from_secs(1));
    for change in 0..args.changes {
        phase.store(QUIET, Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs_f64(args.seconds));
        phase.store(CHANGING, Ordering::Relaxed);
        let started = Instant::now();
        deployed.begin_subspaces(&texts(LAYOUTS[change % LAYOUTS.len()]))?;
        deployed.switch_subspaces()?;
        took.push(started.elapsed().as_secs_f64());
        // The old subspaces are freed in this phase too.
        std::thread::sleep(Duration::from_secs(1));
    }
    Ok(took)
}

fn write_report(args: &SpaceOnlineArgs, seen: &ClientLatencies, changes: &[f64]) -> Result<()> {
    let mut text = format!(
        "## A space gets other subspaces while it is used\n\n{} generated hotels on {} servers of one thread each, all on one core; {} clients on another core. Together they execute {} operations per second; two of ten change a price. \
         The space gets two other subspaces {} times (FT.ALTER .. SUBSPACES, then SWITCH when they are complete); one change takes {:.1} s in the median. A latency is measured from the time at which an operation is due.\n\n\
         | | | operations | p50 us | p99 us | p99.9 us | most us |\n|---|---|---|---|---|---|---|\n",
        args.hotels,
        args.servers,
        args.clients,
        args.rate,
        changes.len(),
        report::median(changes)
    );
    let mut raw = Vec::new();
    for (kind, name) in KINDS.iter().enumerate() {
        for (phase, during) in PHASES.iter().enumerate() {
            let it = &seen.latencies[phase][kind];
            let at = |quantile: f64| it.value_at_quantile(quantile);
            writeln!(
                text,
                "| {name} | {during} | {} | {} | {} | {} | {} |",
                it.len(),
                at(0.5),
                at(0.99),
                at(0.999),
                it.max()
            )?;
            raw.push(json!({
                "kind": name, "during": during, "operations": it.len(), "p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999), "max_us": it.max(),
            }));
        }
    }
    writeln!(text)?;
    for (kind, name) in KINDS.iter().enumerate() {
        let p99 = |phase: usize| seen.latencies[phase][kind].value_at_quantile(0.99) as f64;
        let times = p99(CHANGING) / p99(QUIET);
        writeln!(
            text,
            "{name}: p99 is {times:.2} times that of quiet (bar {TIMES_BAR}; {}).\n",
            verdict(times <= TIMES_BAR)
        )?;
    }
    writeln!(
        text,
        "Requests that failed: {} (bar 0; {}).",
        seen.failed.len(),
        verdict(seen.failed.is_empty())
    )?;
    if let Some(first) = seen.failed.first() {
        writeln!(text, "The first: {first}")?;
    }
    raw.push(json!({"failed": seen.failed, "changes_s": changes}));
    writeln!(text, "\nCommand: `{}`", report::command())?;
    report::keep(args.out.as_deref(), &args.name, &text, &raw)
}
