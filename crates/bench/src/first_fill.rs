//! What others notice of a large first fill: one client reads what a join has yet to compute from a million rows, and another
//! one reads and writes other rows meanwhile, one request at a time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use hdrhistogram::Histogram;
use larder_client::{RespClient, RespOptions};
use serde_json::json;

use crate::report::{self, median, spread};
use crate::{Result, process};

#[derive(Args)]
pub struct FirstFillArgs {
    /// Source rows
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Fills of each kind
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The binary larder [default: built beside this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw numbers into this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What is read first: a name for it, the join, and the request.
/// The last one is of one moment, and is handed out in one piece.
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
    let server = process::start_larder(&binary, &temp.path().join("data"), Some(0), 1)?;
    process::pin_self(1)?;
    let options = RespOptions {
        timeout: std::time::Duration::from_secs(120),
        ..RespOptions::default()
    };
    let client = || RespClient::with_options(server.resp.to_string(), options.clone());
    let reader = client();
    load(&reader, args.rows)?;

    let mut raw = Vec::new();
    let mut table = String::from(
        "| first read | takes, ms | others' requests meanwhile | their p99, us | their longest, ms |\n|---|---|---|---|---|\n",
    );
    let quiet = others(&client(), &AtomicBool::new(false), 20_000)?;
    let mut longest_ms: f64 = 0.0;
    let fills = CASES.len() - 1;
    for (at, (name, joins, request)) in CASES.into_iter().enumerate() {
        let (mut took, mut counts, mut p99, mut longest) = (vec![], vec![], vec![], vec![]);
        for _ in 0..args.rounds {
            for (number, join) in joins.iter().enumerate() {
                command(&reader, &["JOIN.CREATE", &format!("j{number}"), join])?;
            }
            let (ended, other) = (AtomicBool::new(false), client());
            other.command(&[b"PING"])?;
            let (seen, took_ms) = std::thread::scope(|scope| {
                let others = scope
                    .spawn(|| others(&other, &ended, u64::MAX).map_err(|error| error.to_string()));
                let begun = Instant::now();
                let read = command(&reader, request);
                let took_ms = begun.elapsed().as_secs_f64() * 1e3;
                ended.store(true, Ordering::Release);
                read?;
                let seen = others.join().map_err(|_| "the other client panicked")?;
                Result::Ok((seen?, took_ms))
            })?;
            took.push(took_ms);
            counts.push(seen.len() as f64);
            p99.push(seen.value_at_quantile(0.99) as f64 / 1e3);
            longest.push(seen.max() as f64 / 1e6);
            raw.push(json!({"case": name, "ms": took_ms, "requests": seen.len(),
                "p99_ns": seen.value_at_quantile(0.99), "longest_ns": seen.max()}));
            for number in (0..joins.len()).rev() {
                command(&reader, &["JOIN.DROP", &format!("j{number}")])?;
            }
        }
        if at < fills {
            longest_ms = longest.iter().copied().fold(longest_ms, f64::max);
        }
        writeln!(
            table,
            "| {name} | {} | {:.0} | {} | {} |",
            spread(&took, 0),
            median(&counts),
            spread(&p99, 0),
            spread(&longest, 1)
        )?;
    }
    let markdown = format!(
        "# A large first fill beside others\n\n{} source rows; one client reads what a join has yet to compute from them all, another one \
         reads and writes rows of its own, one request at a time.\n\n{table}\nWith no fill under way: p99 {:.0} us, longest {:.1} ms.\n\n\
         Longest that anybody waited for a fill: {longest_ms:.1} ms; bar: <= 50 ms; {}. The last line is not only a fill: its answer is \
         of one moment, and its million rows are put together in one piece.\n\nServer of one thread on core 0, clients on core 1. \
         {} rounds, median (minimum-maximum).\n\nCommand: `{}`\n",
        args.rows,
        quiet.value_at_quantile(0.99) as f64 / 1e3,
        quiet.max() as f64 / 1e6,
        if longest_ms <= 50.0 { "met" } else { "missed" },
        args.rounds,
        report::command(),
    );
    report::keep(args.out.as_deref(), "first-fill", &markdown, &raw)
}

fn command(client: &RespClient, words: &[&str]) -> Result<()> {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    client.command(&words)?;
    Ok(())
}

fn load(client: &RespClient, rows: u64) -> Result<()> {
    let authors = 1_000;
    for start in (0..rows).step_by(200) {
        let mut words: Vec<Vec<u8>> = vec![b"MSET".to_vec()];
        for row in start..rows.min(start + 200) {
            let author = row % authors;
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
    command(client, &["SET", "s|ann|0000", "1"])?;
    for author in 0..authors {
        command(client, &["SET", &format!("f|ann|{author:04}"), "1"])?;
    }
    Ok(())
}

/// Reads and writes rows of its own until the other one has ended, or so often; how long each request took, in ns.
fn others(client: &RespClient, ended: &AtomicBool, times: u64) -> Result<Histogram<u64>> {
    let mut seen = Histogram::new(3)?;
    let mut number = 0;
    while !ended.load(Ordering::Acquire) && number < times {
        number += 1;
        let key = format!("own|{:04}", number % 1000);
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
