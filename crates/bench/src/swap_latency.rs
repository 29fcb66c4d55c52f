//! The effect of pulls and swaps on readers: latency without them, and while versions are pulled at full speed and go
//! live.
//!
//! Copying files affects readers, whichever process does it: it uses memory, disk and caches, and in a virtual machine
//! the host must first back each page. A third part therefore measures a thread outside the server that only copies the
//! same files, with the same low priority and at the same rate.
//!
//! Reads are sent at a steady rate, and each is timed from its scheduled time. A stalled server is charged for every
//! read that had to wait.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use larder_batch::version::files::StreamingFile;
use larder_client::AdminClient;
use larder_protocol::resp::client;
use larder_types::Random;
use serde_json::json;

use crate::report::{self, median, spread};
use crate::server::publish;
use crate::store::VALUE_BYTES;
use crate::{Result, process, store};

#[derive(Args)]
pub struct SwapLatencyArgs {
    /// Number of records in each version, of 100 bytes each
    #[arg(long, default_value_t = 2_000_000)]
    keys: u64,
    /// Duration of each phase, in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Minimum time between the starts of two pulls, in seconds
    #[arg(long, default_value_t = 3.0)]
    swap_every: f64,
    /// Reads per second
    #[arg(long, default_value_t = 5_000)]
    rate: u64,
    /// Number of connections, used round-robin
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Rounds, each with a quiet and a busy phase
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder
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
    let (mut quiet, mut busy, mut copying) = (Vec::new(), Vec::new(), Vec::new());
    let (mut swaps, mut failed) = (0, 0);
    for round in 0..args.rounds {
        let reads = read_steadily(server.resp, args, &AtomicBool::new(true))?;
        raw.push(reads.line("quiet", round, 0));
        failed += reads.failed;
        quiet.push(reads);

        let (reads, swapped) = read_during(&server, args, |should_continue| {
            pull_versions(&server, &versions, args, should_continue)
        })?;
        raw.push(reads.line("busy", round, swapped));
        failed += reads.failed;
        swaps += swapped;
        busy.push(reads);

        let (reads, copies) = read_during(&server, args, |should_continue| {
            copy_versions(&versions, temp.path(), args, should_continue)
        })?;
        raw.push(reads.line("copying", round, copies));
        failed += reads.failed;
        copying.push(reads);
    }
    let rollbacks = roll_back(&server)?;
    raw.push(json!({"rollback_us": rollbacks}));

    let of = |parts: &[ReadLatencies], quantile: f64| {
        parts
            .iter()
            .map(|part| part.us(quantile))
            .collect::<Vec<f64>>()
    };
    let mut table = String::from(
        "| GET, us | quiet | while pulling and swapping | ratio | while files are only copied | ratio |\n|---|---|---|---|---|---|\n",
    );
    for quantile in [0.5, 0.99, 0.999, 1.0] {
        let (quiet, busy) = (of(&quiet, quantile), of(&busy, quantile));
        let copying = of(&copying, quantile);
        writeln!(
            table,
            "| {} | {} | {} | {:.2} | {} | {:.2} |",
            name(quantile),
            spread(&quiet, 1),
            spread(&busy, 1),
            median(&busy) / median(&quiet),
            spread(&copying, 1),
            median(&copying) / median(&quiet)
        )?;
    }
    let reads: u64 = quiet
        .iter()
        .chain(&busy)
        .chain(&copying)
        .map(|part| part.latency_ns.len())
        .sum();
    let markdown = format!(
        "## Reads while versions change\n\n{table}\n\
         {reads} reads, {swaps} swaps under load, **{failed} failed reads**; rollback {} us (as the server timed it).\n\n\
         {} records of 100 bytes per version, pulled from a local folder without a rate limit, at most one pull every {} s. {} reads per second over {} connections, \
         each timed from the time at which it was due. Parts of {} s, {} rounds, median (minimum-maximum). Server and readers share the machine's {} cores.\n\nCommand: `{}`\n",
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

struct ReadLatencies {
    latency_ns: Histogram<u64>,
    failed: u64,
}

impl ReadLatencies {
    fn new() -> Result<ReadLatencies> {
        Ok(ReadLatencies {
            // Up to a minute; `saturating_record` does not widen a histogram.
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
            failed: 0,
        })
    }

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

/// Reads at the requested rate until the time is over or `go_on` is false. Each connection has a thread, so a slow read
/// delays only the following reads of its own connection.
fn read_steadily(
    address: SocketAddr,
    args: &SwapLatencyArgs,
    should_continue: &AtomicBool,
) -> Result<ReadLatencies> {
    let started = Instant::now();
    let step = Duration::from_nanos(1_000_000_000 / args.rate.max(1));
    let mut all = ReadLatencies::new()?;
    std::thread::scope(|scope| -> Result<()> {
        let readers: Vec<_> = (0..args.connections)
            .map(|number| {
                let schedule = Schedule {
                    first: started + step * number as u32,
                    step: step * args.connections as u32,
                    end: started + Duration::from_secs(args.seconds),
                };
                scope.spawn(move || {
                    read_on_one(
                        address,
                        args.keys,
                        number as u64,
                        &schedule,
                        should_continue,
                    )
                    .map_err(|error| error.to_string())
                })
            })
            .collect();
        for reader in readers {
            let reads = reader.join().map_err(|_| "a reader panicked")??;
            all.latency_ns.add(&reads.latency_ns)?;
            all.failed += reads.failed;
        }
        Ok(())
    })?;
    Ok(all)
}

/// The scheduled times of one connection's reads.
struct Schedule {
    first: Instant,
    step: Duration,
    end: Instant,
}

fn read_on_one(
    address: SocketAddr,
    keys: u64,
    seed: u64,
    schedule: &Schedule,
    should_continue: &AtomicBool,
) -> Result<ReadLatencies> {
    let connect = || -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let mut stream = connect()?;
    let mut reads = ReadLatencies::new()?;
    let mut random = Random::new(7 + seed);
    let (mut request, mut reply) = (Vec::new(), [0; 6 + VALUE_BYTES + 2]);
    let mut due = schedule.first;
    while due < schedule.end && should_continue.load(Ordering::Relaxed) {
        request.clear();
        let key = store::redis_key(random.index(keys as usize) as u64);
        client::request(&mut request, &["GET", &key]);
        while Instant::now() < due {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
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
            // Reconnect, to discard the rest of an unexpected reply.
            reads.failed += 1;
            stream = connect()?;
        }
        due += schedule.step;
    }
    Ok(reads)
}

/// Reads at a steady rate while `work` runs, which must stop when its flag becomes false.
fn read_during(
    server: &process::Server,
    args: &SwapLatencyArgs,
    work: impl FnOnce(&AtomicBool) -> Result<u64> + Send,
) -> Result<(ReadLatencies, u64)> {
    let should_continue = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            let done = work(&should_continue).map_err(|error| error.to_string());
            should_continue.store(false, Ordering::Relaxed);
            done
        });
        let reads = read_steadily(server.resp, args, &should_continue);
        should_continue.store(false, Ordering::Relaxed);
        let done = working
            .join()
            .map_err(|_| "the thread beside the reads panicked")??;
        Ok((reads?, done))
    })
}

/// Copies the files of the versions in turn, durably like a pull. Keeps as many copies as the server keeps versions.
fn copy_versions(
    versions: &[PathBuf],
    folder: &Path,
    args: &SwapLatencyArgs,
    should_continue: &AtomicBool,
) -> Result<u64> {
    const NICE: i32 = 15;
    const KEPT: u64 = 3;
    // SAFETY: the call takes only integers; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
    let place = |number: u64| folder.join(format!("copy-{number}"));
    let mut copies = 0;
    while should_continue.load(Ordering::Relaxed) {
        let started = Instant::now();
        let to = place(copies);
        std::fs::create_dir(&to)?;
        for entry in std::fs::read_dir(&versions[copies as usize % versions.len()])? {
            let entry = entry?;
            let path = to.join(entry.file_name());
            let mut copy = StreamingFile::for_serving(File::create_new(&path)?, 0);
            std::io::copy(&mut File::open(entry.path())?, &mut copy)?;
            copy.finish(&path)?;
        }
        if copies >= KEPT {
            std::fs::remove_dir_all(place(copies - KEPT))?;
        }
        copies += 1;
        sleep_until(started, args.swap_every, should_continue);
    }
    for number in copies.saturating_sub(KEPT)..copies {
        std::fs::remove_dir_all(place(number))?;
    }
    Ok(copies)
}

fn sleep_until(started: Instant, seconds: f64, should_continue: &AtomicBool) {
    while should_continue.load(Ordering::Relaxed) && started.elapsed().as_secs_f64() < seconds {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Pulls the versions in turn, making each live, until `go_on` is false.
fn pull_versions(
    server: &process::Server,
    versions: &[PathBuf],
    args: &SwapLatencyArgs,
    should_continue: &AtomicBool,
) -> Result<u64> {
    let mut swapped = 0;
    while should_continue.load(Ordering::Relaxed) {
        let started = Instant::now();
        publish(server, &versions[swapped as usize % versions.len()])?;
        swapped += 1;
        sleep_until(started, args.swap_every, should_continue);
    }
    Ok(swapped)
}

/// Rolls back and forth. Returns the server's time for each rollback, in microseconds.
fn roll_back(server: &process::Server) -> Result<Vec<f64>> {
    let admin = AdminClient::new(
        server
            .http
            .as_deref()
            .ok_or("this server has no HTTP API")?,
    )?;
    let store = store::NAME.parse()?;
    let newest = admin.store(&store)?.live.ok_or("nothing is live")?;
    let mut took_us = Vec::new();
    for _ in 0..5 {
        took_us.push(admin.rollback(&store, None)?.took_us as f64);
        admin.swap(&store, newest)?;
    }
    Ok(took_us)
}
