//! `larder-bench newp`: a page as one read from larder, and as separate reads from Redis.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use larder_client::RespClient;
use larder_types::Random;
use serde_json::json;

use super::drive::{Store, StoreConnection, WINDOW};
use super::newp_larder::{JOINS, OnePage};
use super::newp_redis::RedisPages;
use super::pages::{Operation, Pages};
use super::services::{self, CLIENT_CORE, SERVER_CORE};
use super::workload::ReadChecksum;
use crate::Result;
use crate::process::{self, Server};
use crate::report::{self, median, spread};
use crate::twip::cpu_seconds;

/// The minimum number of pages per second, as a multiple of Redis's.
const BAR: f64 = 5.0;

#[derive(Args)]
pub struct NewpArgs {
    #[arg(long, default_value_t = 20_000)]
    articles: u32,
    #[arg(long, default_value_t = 10_000)]
    users: u32,
    /// Number of operations
    #[arg(long, default_value_t = 200_000)]
    operations: usize,
    /// Percentage of operations that are votes
    #[arg(long, default_value_t = 1)]
    vote_rate: usize,
    /// Percentage of operations that are comments
    #[arg(long, default_value_t = 1)]
    comment_rate: usize,
    /// Rounds; the systems alternate within each round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NewpSystem {
    Larder,
    Redis,
    RedisFew,
}

impl NewpSystem {
    fn title(self) -> &'static str {
        match self {
            NewpSystem::Larder => "larder, one read",
            NewpSystem::Redis => "Redis, separate reads",
            NewpSystem::RedisFew => "Redis, as few reads as it takes (HGETALL, MGET)",
        }
    }
}

struct NewpSample {
    pages_per_second: f64,
    server_cpu_s: f64,
    client_cpu_s: f64,
    resident_mb: f64,
}

pub fn run(args: &NewpArgs) -> Result<()> {
    if process::core_count() < 2 {
        return Err("this needs two cores: one for the server, one for the client".into());
    }
    let binary = process::larder_binary(args.larder.as_deref())?;
    process::pin_self(CLIENT_CORE)?;
    let rates = (args.vote_rate, args.comment_rate);
    let mut random = Random::new(args.seed);
    let pages = Pages::new(
        args.articles,
        args.users,
        args.operations,
        rates,
        &mut random,
    );
    let mut systems = vec![NewpSystem::Larder, NewpSystem::Redis, NewpSystem::RedisFew];
    if services::find("redis-server").is_none() {
        eprintln!(
            "Redis: skipped, redis-server is not installed (scripts/setup bench installs it)"
        );
        systems.truncate(1);
    }
    let mut results: Vec<(NewpSystem, Vec<NewpSample>)> =
        systems.iter().map(|which| (*which, Vec::new())).collect();
    let mut raw = Vec::new();
    for round in 0..args.rounds {
        for (which, samples) in &mut results {
            let sample = run_once(*which, &pages, &binary)?;
            raw.push(json!({
                "system": which.title(), "round": round, "pages_per_second": sample.pages_per_second,
                "server_cpu_s": sample.server_cpu_s, "client_cpu_s": sample.client_cpu_s, "resident_mb": sample.resident_mb,
            }));
            samples.push(sample);
        }
    }
    report::keep(
        args.out.as_deref(),
        "newp",
        &text(args, &pages, &results)?,
        &raw,
    )
}

/// One run on a new server.
fn run_once(which: NewpSystem, pages: &Pages, binary: &Path) -> Result<NewpSample> {
    let folder = tempfile::tempdir()?;
    if which == NewpSystem::Larder {
        let server = process::start_larder(binary, folder.path(), Some(SERVER_CORE), 1)?;
        let client = RespClient::new(server.resp.to_string());
        for (name, definition) in JOINS {
            client.command(&[b"JOIN.CREATE", name.as_bytes(), definition.as_bytes()])?;
        }
        return measure(which, pages, &server, &mut OnePage::new(pages.users));
    }
    let server = process::start_redis("redis-server", SERVER_CORE)?;
    let mut reads = RedisPages::new(pages.users, which == NewpSystem::RedisFew);
    measure(which, pages, &server, &mut reads)
}

fn measure<S: Store<Operation = Operation>>(
    which: NewpSystem,
    pages: &Pages,
    server: &Server,
    store: &mut S,
) -> Result<NewpSample> {
    let mut connection = StoreConnection::open(server.resp)?;
    connection.run(
        store,
        (0..pages.articles).map(|article| Operation::Article { article }),
    )?;
    connection.run(store, pages.initial.iter().copied())?;
    let all = || (0..pages.articles).map(|article| Operation::Read { article });
    // Read all pages before the clock starts.
    connection.run(store, all())?;
    let (cpu, client_cpu, started) = (server.cpu_s()?, cpu_seconds(), Instant::now());
    let seen = connection.run(store, pages.operations.iter().copied())?;
    let sample = NewpSample {
        pages_per_second: pages.reads() as f64 / started.elapsed().as_secs_f64(),
        server_cpu_s: server.cpu_s()? - cpu,
        client_cpu_s: cpu_seconds() - client_cpu,
        resident_mb: server.resident_bytes()? as f64 / 1e6,
    };
    let last = connection.run(store, all())?;
    let expected = pages.expected();
    // With Redis, other requests may change a page between its two rounds of reads.
    if which == NewpSystem::Larder {
        check(which, "pages", seen, expected.0)?;
    }
    check(which, "all pages at the end", last, expected.1)?;
    Ok(sample)
}

fn check(which: NewpSystem, what: &str, seen: ReadChecksum, expected: ReadChecksum) -> Result<()> {
    if seen == expected {
        return Ok(());
    }
    Err(format!(
        "{}: {what} show {seen:?} instead of {expected:?}",
        which.title()
    )
    .into())
}

fn text(
    args: &NewpArgs,
    pages: &Pages,
    results: &[(NewpSystem, Vec<NewpSample>)],
) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "## Newp: a page as one read\n")?;
    writeln!(
        text,
        "{} articles of {} users, {} votes and comments before the clock starts; {} operations, of which {} read a page, {} % vote and {} % comment. \
         A page has {:.1} parts on average: article, score, comments, karma of who wrote each.\n",
        pages.articles,
        pages.users,
        pages.initial.len(),
        pages.operations.len(),
        pages.reads(),
        args.vote_rate,
        args.comment_rate,
        pages.expected().1.rows as f64 / f64::from(pages.articles),
    )?;
    let rates = |samples: &[NewpSample]| {
        samples
            .iter()
            .map(|one| one.pages_per_second)
            .collect::<Vec<f64>>()
    };
    let larder = median(&rates(&results[0].1));
    writeln!(
        text,
        "| system | pages/s | larder's are | bar | | server CPU s | client CPU s | server, resident MB |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|")?;
    for (which, samples) in results {
        let times = larder / median(&rates(samples));
        let (bar, verdict) = match which {
            NewpSystem::Redis => (
                format!(">= {BAR}"),
                if times >= BAR { "met" } else { "missed" },
            ),
            _ => (String::new(), ""),
        };
        let of = |what: fn(&NewpSample) -> f64| samples.iter().map(what).collect::<Vec<f64>>();
        writeln!(
            text,
            "| {} | {} | {times:.2} times | {bar} | {verdict} | {} | {} | {} |",
            which.title(),
            spread(&rates(samples), 0),
            spread(&of(|one| one.server_cpu_s), 2),
            spread(&of(|one| one.client_cpu_s), 2),
            spread(&of(|one| one.resident_mb), 0),
        )?;
    }
    writeln!(
        text,
        "\nServer on core {SERVER_CORE}, client on core {CLIENT_CORE}, one connection over loopback, at most {WINDOW} requests under way before a \
         new operation starts. {} rounds in turns, median (minimum-maximum). Redis does not write to disk; larder journals (`everysec`).\n\
         Answers: all pages at the end equal those computed from the operations alone, in each system; larder's also during the run, each page as \
         of its request. (A page that takes two rounds shows some of what was written between them.)\n\nCommand: `{}`",
        args.rounds,
        report::command(),
    )?;
    Ok(text)
}
