//! The effect of a large first fill on other clients. One client reads outputs that a join must first compute from a
//! million rows. Meanwhile, another client reads and writes other rows, one request at a time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use hdrhistogram::Histogram;
use larder_client::{Reply, RespClient, RespOptions};
use serde_json::json;

use crate::large_work::{self, Case};
use crate::report::{self, median, spread};
use crate::{Result, process};

#[derive(Args)]
pub struct FirstFillArgs {
    /// Number of source rows
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Number of fills of each kind
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Run only the cases whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The cases of a first read: a name, the join, and the request.
const CASES: [(&str, &[&str], &[&str]); 6] = [
    (
        "one count of all votes",
        &["n|all = count vote|<row:8>|<author:4>"],
        &["GET", "n|all"],
    ),
    (
        "counts of 1,000 authors",
        &["karma|<author:4> = count vote|<row:8>|<author>"],
        &["RANGE", "karma|", "karma}", "LIMIT", "10"],
    ),
    (
        "a timeline of one author with all posts",
        &["t|<user>|<time:8>|<poster:4> = check s|<user>|<poster> copy p|<poster>|<time>"],
        &["RANGE", "t|ann|", "t|ann}", "LIMIT", "10"],
    ),
    (
        "a timeline of 1,000 authors",
        &["m|<user>|<row:8>|<author:4> = check f|<user>|<author> copy q|<author>|<row>"],
        &["RANGE", "m|ann|", "m|ann}", "LIMIT", "10"],
    ),
    (
        "a count of that timeline",
        &[
            "m|<user>|<row:8>|<author:4> = check f|<user>|<author> copy q|<author>|<row>",
            "c|<user> = count m|<user>|<row:8>|<author:4>",
        ],
        &["GET", "c|ann"],
    ),
    (
        "all rows of that timeline, sent",
        &["m|<user>|<row:8>|<author:4> = check f|<user>|<author> copy q|<author>|<row>"],
        &["RANGE", "m|ann|", "m|ann}"],
    ),
];

pub fn run(args: &FirstFillArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    let temp = tempfile::tempdir()?;
    let start = |name: &str, settings: &[String]| {
        process::start_larder_with(&binary, &temp.path().join(name), Some(0), 1, settings)
    };
    let server = start("data", &[])?;
    process::pin_self(1)?;
    let client = connect(&server);
    load(&client, args.rows)?;
    let quiet = run_other_client(&connect(&server), "own|", &AtomicBool::new(false), 20_000)?;
    let mut bench = FillBench {
        args,
        raw: Vec::new(),
        longest_ms: 0.0,
    };
    let is_wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only));
    let mut fills = heading("first read");
    for (name, joins, request) in CASES {
        if is_wanted(name) {
            let case = Case {
                name,
                joins,
                work: request,
                ..large_work::EMPTY
            };
            fills += &bench.measure(&server, &client, &case)?;
        }
    }
    let mut works = heading("work");
    let mut large = large_work::CASES.iter().peekable();
    while let Some(case) = large.next() {
        if !is_wanted(case.name) {
            continue;
        }
        works += &if large.peek().is_some() {
            bench.measure(&server, &client, case)?
        } else {
            // The memory suffices for the existing rows and one of the two timelines.
            let bytes = memory_bytes(&client)? + args.rows * 32;
            let small = start("small", &[format!("tables.memory={bytes}")])?;
            let client = connect(&small);
            load(&client, args.rows)?;
            bench.measure(&small, &client, case)?
        };
    }
    let FillBench {
        raw, longest_ms, ..
    } = bench;
    let markdown = format!(
        "# Large work and other clients\n\n{} source rows; one client reads, computes or drops them all; another one reads and writes \
         its own rows at the same time, one request after another.\n\n## Outputs that a join has not computed yet\n\n{fills}\n## Other large work\n\n{works}\n\
         Without other work: p99 {:.0} us, longest {:.1} ms.\n\n\
         Longest wait of the other client: {longest_ms:.1} ms; bar: <= 50 ms; {}.\n\n\
         Server of one thread on core 0, clients on core 1. {} rounds, median (minimum-maximum).\n\nCommand: `{}`\n",
        args.rows,
        quiet.value_at_quantile(0.99) as f64 / 1e3,
        quiet.max() as f64 / 1e6,
        if longest_ms <= 50.0 { "met" } else { "missed" },
        args.rounds,
        report::command(),
    );
    report::keep(args.out.as_deref(), "first-fill", &markdown, &raw)
}

struct FillBench<'a> {
    args: &'a FirstFillArgs,
    raw: Vec<serde_json::Value>,
    /// The longest wait of any client.
    longest_ms: f64,
}

fn heading(first: &str) -> String {
    format!(
        "| {first} | takes, ms | others' requests meanwhile | their p99, us | their longest, ms |\n|---|---|---|---|---|\n"
    )
}

fn connect(server: &process::Server) -> RespClient {
    let options = RespOptions {
        timeout: std::time::Duration::from_secs(120),
        ..RespOptions::default()
    };
    RespClient::with_options(server.resp.to_string(), options)
}

/// Returns the memory use of the tables.
fn memory_bytes(client: &RespClient) -> Result<u64> {
    let info = match client.command(&[b"INFO", b"tables"])? {
        Reply::Bulk(info) => info,
        other => return Err(format!("INFO answers {other:?}").into()),
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    let value = info
        .lines()
        .find_map(|line| line.strip_prefix("tables_memory_bytes:"));
    Ok(value
        .ok_or("INFO does not return the memory of the tables")?
        .trim()
        .parse()?)
}

impl FillBench<'_> {
    /// Executes a piece of work several times. Returns a line of the report.
    fn measure(
        &mut self,
        server: &process::Server,
        reader: &RespClient,
        case: &Case,
    ) -> Result<String> {
        let (mut took, mut counts, mut p99, mut longest) = (vec![], vec![], vec![], vec![]);
        for _ in 0..self.args.rounds {
            for (number, join) in case.joins.iter().enumerate() {
                command(reader, &["JOIN.CREATE", &format!("j{number}"), join])?;
            }
            let (ended, other) = (AtomicBool::new(false), connect(server));
            other.command(&[b"PING"])?;
            (case.before)(reader, self.args.rows)?;
            let (seen, took_ms) = std::thread::scope(|scope| {
                let others = scope.spawn(|| {
                    run_other_client(&other, case.beside, &ended, u64::MAX)
                        .map_err(|error| error.to_string())
                });
                let started = Instant::now();
                let done = command(reader, case.work);
                let took_ms = started.elapsed().as_secs_f64() * 1e3;
                // Data that is dropped after the reply must not delay other clients either.
                std::thread::sleep(AFTER);
                ended.store(true, Ordering::Release);
                done?;
                let seen = others.join().map_err(|_| "the other client panicked")?;
                Result::Ok((seen?, took_ms))
            })?;
            took.push(took_ms);
            counts.push(seen.len() as f64);
            p99.push(seen.value_at_quantile(0.99) as f64 / 1e3);
            longest.push(seen.max() as f64 / 1e6);
            self.raw.push(
                json!({"case": case.name, "ms": took_ms, "requests": seen.len(),
                "p99_ns": seen.value_at_quantile(0.99), "longest_ns": seen.max()}),
            );
            for number in (0..case.joins.len()).rev() {
                // The work itself may have dropped the join.
                let _ = command(reader, &["JOIN.DROP", &format!("j{number}")]);
            }
            large_work::put_back(reader, case, self.args.rows)?;
        }
        self.longest_ms = longest.iter().copied().fold(self.longest_ms, f64::max);
        Ok(format!(
            "| {} | {} | {:.0} | {} | {} |\n",
            case.name,
            spread(&took, 0),
            median(&counts),
            spread(&p99, 0),
            spread(&longest, 1)
        ))
    }
}

pub fn command(client: &RespClient, words: &[&str]) -> Result<()> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    client.command(&words)?;
    Ok(())
}

/// The time for which the other client continues after the reply.
const AFTER: std::time::Duration = std::time::Duration::from_millis(250);

/// The number of authors with posts.
pub const AUTHORS: u64 = 1_000;

fn load(client: &RespClient, rows: u64) -> Result<()> {
    load_posts(client, rows)?;
    command(client, &["SET", "s|ann|0000", "1"])?;
    for author in 0..AUTHORS {
        command(client, &["SET", &format!("f|ann|{author:04}"), "1"])?;
    }
    Ok(())
}

pub fn load_posts(client: &RespClient, rows: u64) -> Result<()> {
    for start in (0..rows).step_by(200) {
        let mut words: Vec<Vec<u8>> = vec![b"MSET".to_vec()];
        for row in start..rows.min(start + 200) {
            let author = row % AUTHORS;
            for key in [
                format!("vote|{row:08}|{author:04}"),
                format!("p|0000|{row:08}"),
                format!("q|{author:04}|{row:08}"),
            ] {
                words.extend([key.into_bytes(), b"1".to_vec()]);
            }
        }
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        client.command(&words)?;
    }
    Ok(())
}

/// Reads and writes its own rows until `ended` is set or `times` requests were sent. Returns the latencies in
/// nanoseconds.
fn run_other_client(
    client: &RespClient,
    table: &str,
    ended: &AtomicBool,
    times: u64,
) -> Result<Histogram<u64>> {
    let mut seen = Histogram::new(3)?;
    let mut number = 0;
    while !ended.load(Ordering::Acquire) && number < times {
        number += 1;
        let key = format!("{table}{:07}", number % 1000);
        let words: &[&[u8]] = match number % 2 {
            0 => &[b"GET", key.as_bytes()],
            _ => &[b"SET", key.as_bytes(), b"value"],
        };
        let asked = Instant::now();
        client.command(words)?;
        seen.record(asked.elapsed().as_nanos() as u64)?;
    }
    Ok(seen)
}
