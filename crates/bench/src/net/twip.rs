//! `larder-bench twip-net`: timelines by larder's join, and by clients that fan out.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use larder_client::RespClient;
use larder_types::Random;
use serde_json::{Value, json};

use super::drive::WINDOW;
use super::larder::{Larder, Mode};
use super::memcached::Memcached;
use super::postgres::Postgres;
use super::redis::Redis;
use super::services::{self, CLIENT_CORE, SERVER_CORE};
use super::timelines::{Connection, Servers, System};
use super::workload::{FOREVER, Operation, ReadChecksum, Workload};
use crate::Result;
use crate::process::{self, Server};
use crate::report::{self, median, spread};
use crate::twip::{START, cpu_seconds};
use crate::twip_graph;

#[derive(Args)]
pub struct TwipNetArgs {
    /// Systems to compare
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = TwipSystem::value_variants().to_vec())]
    systems: Vec<TwipSystem>,
    /// Number of operations
    #[arg(long, default_value_t = 500_000)]
    operations: usize,
    /// Number of operations for PostgreSQL: a prefix of the common sequence
    #[arg(long, default_value_t = 150_000)]
    postgres_operations: usize,
    /// Number of users in the generated graph
    #[arg(long, default_value_t = 10_000)]
    users: usize,
    /// A file with lines `follower followed`, used instead of the generated graph; .gz files are decompressed
    #[arg(long)]
    edges: Option<PathBuf>,
    /// Rounds; the systems alternate within each round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Rounds for the slow systems, pull and PostgreSQL
    #[arg(long, default_value_t = 1)]
    slow_rounds: usize,
    /// Number of newest ticks that checks do not read, because their posts may still be in flight
    #[arg(long, default_value_t = 100_000)]
    held_back: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder, as `<name>.md` and `<name>.jsonl`
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "twip")]
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TwipSystem {
    Join,
    ClientPush,
    Redis,
    Memcached,
    Auto,
    Pull,
    Postgres,
}

impl TwipSystem {
    fn title(self) -> &'static str {
        match self {
            TwipSystem::Join => "larder, join",
            TwipSystem::Auto => "larder, join `auto`",
            TwipSystem::Pull => "larder, join `pull`",
            TwipSystem::ClientPush => "larder, client fans out",
            TwipSystem::Redis => "Redis, client fans out",
            TwipSystem::Memcached => "memcached, client fans out",
            TwipSystem::Postgres => "PostgreSQL, triggers",
        }
    }

    fn is_slow(self) -> bool {
        matches!(self, TwipSystem::Pull | TwipSystem::Postgres)
    }

    fn program(self) -> Option<&'static str> {
        match self {
            TwipSystem::Redis => Some("redis-server"),
            TwipSystem::Memcached => Some("memcached"),
            TwipSystem::Postgres => Some("initdb"),
            _ => None,
        }
    }

    /// Returns the minimum throughput of the join, as a multiple of this system's.
    fn min_ratio(self) -> Option<f64> {
        match self {
            TwipSystem::Redis => Some(4.5),
            TwipSystem::Memcached => Some(3.5),
            TwipSystem::ClientPush => Some(2.0),
            TwipSystem::Pull => Some(9.0),
            _ => None,
        }
    }
}

/// The maximum CPU time of the join's server in the default run.
const CPU_SECONDS_BAR: f64 = 1.5;

struct TwipSample {
    seconds: f64,
    server_cpu_s: f64,
    client_cpu_s: f64,
    resident_mb: f64,
    operations: usize,
}

impl TwipSample {
    fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

/// The operations of a run, and the expected results.
pub struct Run<'a> {
    pub workload: &'a Workload,
    pub operations: usize,
    pub expected: (ReadChecksum, ReadChecksum),
}

pub fn run(args: &TwipNetArgs) -> Result<()> {
    if process::core_count() < 2 {
        return Err("this needs two cores: one for the server, one for the client".into());
    }
    if args.held_back < 2 * WINDOW as u64 {
        return Err(format!("--held-back must be at least {}: a client that fans out has {WINDOW} requests under way", 2 * WINDOW).into());
    }
    let binary = process::larder_binary(args.larder.as_deref())?;
    process::pin_self(CLIENT_CORE)?;
    let mut random = Random::new(args.seed);
    let graph = match &args.edges {
        Some(path) => twip_graph::read(path)?,
        None => twip_graph::generate(args.users, &mut random),
    };
    let workload = Workload::new(&graph, args.operations, args.held_back, &mut random);
    drop(graph);
    let run_of = |which: TwipSystem| {
        let operations = match which {
            TwipSystem::Postgres => args.postgres_operations.min(args.operations),
            _ => args.operations,
        };
        Run {
            operations,
            expected: workload.expected(operations),
            workload: &workload,
        }
    };
    let mut results: Vec<(TwipSystem, Run, Vec<TwipSample>)> = Vec::new();
    for &which in &args.systems {
        match which.program() {
            Some(program) if services::find(program).is_none() => {
                eprintln!(
                    "{}: skipped, {program} is not installed (scripts/setup-bench installs it)",
                    which.title()
                );
            }
            _ => results.push((which, run_of(which), Vec::new())),
        }
    }
    let mut raw = Vec::new();
    for round in 0..args.rounds.max(args.slow_rounds) {
        for (which, run, samples) in &mut results {
            let rounds = if which.is_slow() {
                args.slow_rounds
            } else {
                args.rounds
            };
            if round < rounds {
                let sample = run_once(*which, run, &binary)?;
                raw.push(raw_line(*which, round, &sample));
                eprintln!("{}", raw[raw.len() - 1]);
                samples.push(sample);
            }
        }
    }
    let text = text(args, &workload, &results)?;
    report::keep(args.out.as_deref(), &args.name, &text, &raw)
}

fn raw_line(which: TwipSystem, round: usize, sample: &TwipSample) -> Value {
    json!({
        "system": which.title(), "round": round, "operations": sample.operations, "seconds": sample.seconds,
        "server_cpu_s": sample.server_cpu_s, "client_cpu_s": sample.client_cpu_s, "resident_mb": sample.resident_mb,
    })
}

/// One run on a new server.
fn run_once(which: TwipSystem, run: &Run, binary: &Path) -> Result<TwipSample> {
    let folder = tempfile::tempdir()?;
    let of_larder = |mode| -> Result<(Server, Box<dyn System>, Connection)> {
        let server = process::start_larder(binary, folder.path(), Some(SERVER_CORE), 1)?;
        let system = Larder::new(mode);
        if let Some(join) = system.join() {
            let client = RespClient::new(server.resp.to_string());
            client.command(&[b"JOIN.CREATE", b"timeline", join.as_bytes()])?;
        }
        let connection = Connection::open(server.resp)?;
        Ok((server, Box::new(system), connection))
    };
    let (server, system, connection): (Server, Box<dyn System>, Connection) = match which {
        TwipSystem::Join => of_larder(Mode::Join)?,
        TwipSystem::Auto => of_larder(Mode::Auto)?,
        TwipSystem::Pull => of_larder(Mode::Pull)?,
        TwipSystem::ClientPush => of_larder(Mode::ClientPush)?,
        TwipSystem::Redis => {
            let server = process::start_redis("redis-server", SERVER_CORE)?;
            let connection = Connection::open(server.resp)?;
            (server, Box::new(Redis::default()), connection)
        }
        TwipSystem::Memcached => {
            let server = services::start_memcached()?;
            let connection = Connection::open(server.resp)?;
            (server, Box::new(Memcached), connection)
        }
        TwipSystem::Postgres => {
            let server = services::start_postgres(folder.path())?;
            let connection = Postgres::connect(server.resp)?;
            (server, Box::new(Postgres), connection)
        }
    };
    // PostgreSQL's processes end with their connections, which must be dropped before the server.
    measure(which, run, &server, &mut Servers::one(system, connection))
}

fn measure(
    which: TwipSystem,
    run: &Run,
    server: &Server,
    servers: &mut Servers,
) -> Result<TwipSample> {
    let clock = || Ok((server.cpu_s()?, cpu_seconds(), Instant::now()));
    let [before, after] = run_operations(run, which.title(), servers, clock)?;
    Ok(TwipSample {
        seconds: (after.2 - before.2).as_secs_f64(),
        server_cpu_s: after.0 - before.0,
        client_cpu_s: after.1 - before.1,
        resident_mb: server.resident_bytes()? as f64 / 1e6,
        operations: run.operations,
    })
}

/// Runs the operations and verifies the results. Returns the values of `clock` before and after the operations.
pub fn run_operations<T>(
    run: &Run,
    title: &str,
    servers: &mut Servers,
    clock: impl Fn() -> Result<T>,
) -> Result<[T; 2]> {
    let workload = run.workload;
    servers.load(&workload.followers)?;
    let all = |since, until| -> Vec<Operation> {
        let checks = workload.active.iter();
        checks
            .map(|&user| Operation::Check { user, since, until })
            .collect()
    };
    // Read the timelines of active users before the clock starts.
    servers.operate(&all(START - 1_000_000, START))?;
    let before = clock()?;
    let seen = servers.operate(&workload.operations[..run.operations])?;
    let after = clock()?;
    let last = servers.operate(&all(0, FOREVER))?;
    for (what, seen, expected) in [
        ("checks", seen, run.expected.0),
        ("whole timelines", last, run.expected.1),
    ] {
        if seen != expected {
            return Err(format!("{title}: {what} read {seen:?} instead of {expected:?}").into());
        }
    }
    Ok([before, after])
}

fn text(
    args: &TwipNetArgs,
    workload: &Workload,
    results: &[(TwipSystem, Run, Vec<TwipSample>)],
) -> Result<String> {
    let mut text = String::new();
    let graph = args.edges.as_ref().map_or_else(
        || format!("generated, seed {}", args.seed),
        |path| path.file_name().unwrap_or_default().display().to_string(),
    );
    let [posts, subscriptions, checks] = workload.kinds(args.operations);
    writeln!(text, "## Twip over the network\n")?;
    writeln!(
        text,
        "Graph: {graph}; {} users, {} subscriptions. {} operations: {posts} posts, {subscriptions} subscriptions, {checks} checks, the rest \
         logouts and repeated subscriptions.\n",
        workload.users, workload.subscriptions, args.operations,
    )?;
    let join = results
        .iter()
        .find(|(which, _, samples)| *which == TwipSystem::Join && !samples.is_empty());
    let rates = |samples: &[TwipSample]| samples.iter().map(TwipSample::rate).collect::<Vec<f64>>();
    let join_rate = join.map(|(_, _, samples)| median(&rates(samples)));
    writeln!(
        text,
        "| system | operations/s | the join's throughput is | bar | | server CPU s | client CPU s | server, resident MB |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|")?;
    for (which, run, samples) in results.iter().filter(|(_, _, samples)| !samples.is_empty()) {
        let of = |what: fn(&TwipSample) -> f64| samples.iter().map(what).collect::<Vec<f64>>();
        let times = join_rate.map(|rate| rate / median(&rates(samples)));
        let bar = which.min_ratio().filter(|_| times.is_some());
        let verdict = bar.zip(times).map_or(
            "",
            |(bar, times)| if times >= bar { "met" } else { "missed" },
        );
        let short = if run.operations < args.operations {
            format!(" (first {})", run.operations)
        } else {
            String::new()
        };
        writeln!(
            text,
            "| {}{short} | {} | {} | {} | {verdict} | {} | {} | {} |",
            which.title(),
            spread(&rates(samples), 0),
            times.map_or_else(String::new, |times| format!("{times:.2} times")),
            bar.map_or_else(String::new, |bar| format!(">= {bar}")),
            spread(&of(|sample| sample.server_cpu_s), 2),
            spread(&of(|sample| sample.client_cpu_s), 2),
            spread(&of(|sample| sample.resident_mb), 0),
        )?;
    }
    let is_default = args.edges.is_none() && args.users == 10_000 && args.operations == 500_000;
    if let Some((_, _, samples)) = join.filter(|_| is_default) {
        let cpu = median(
            &samples
                .iter()
                .map(|sample| sample.server_cpu_s)
                .collect::<Vec<f64>>(),
        );
        let verdict = if cpu <= CPU_SECONDS_BAR {
            "met"
        } else {
            "missed"
        };
        writeln!(
            text,
            "\nServer CPU with the join: {cpu:.2} s; bar: <= {CPU_SECONDS_BAR} s; {verdict}."
        )?;
    }
    let rows: Vec<String> = results
        .iter()
        .map(|(_, run, _)| run.expected.0.rows.to_string())
        .collect();
    writeln!(
        text,
        "\nServer on core {SERVER_CORE}, client on core {CLIENT_CORE}, one connection over loopback, at most {WINDOW} requests under way before a \
         new operation starts. {} rounds in turns ({} for pull and PostgreSQL), median (minimum-maximum). CPU time is user and system, of all the \
         server's processes. Neither Redis nor memcached writes to disk; larder journals (`everysec`); PostgreSQL runs without fsync.",
        args.rounds, args.slow_rounds,
    )?;
    writeln!(
        text,
        "Answers: rows that checks read, by system: {}; each system's rows, and the whole timelines of all active users at the end, equal those \
         computed from the operations alone.\n\nCommand: `{}`",
        rows.join(", "),
        report::command(),
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_returns_the_expected_rows() {
        let mut random = Random::new(5);
        let graph = twip_graph::generate(200, &mut random);
        let workload = Workload::new(&graph, 30_000, 2 * WINDOW as u64, &mut random);
        let run = Run {
            workload: &workload,
            operations: 30_000,
            expected: workload.expected(30_000),
        };
        assert!(run.expected.0.rows > 1000, "{:?}", run.expected);
        let mut systems = vec![TwipSystem::Redis, TwipSystem::Memcached];
        if std::env::var_os("LARDER_SLOW_TESTS").is_some() {
            systems.push(TwipSystem::Postgres);
        }
        for which in systems {
            if let Some(program) = which.program()
                && services::find(program).is_none()
            {
                eprintln!("skipped: {program} is not installed");
                continue;
            }
            run_once(which, &run, Path::new("no larder is started")).expect("answers are right");
        }
        let wrong = Run {
            expected: (ReadChecksum::default(), run.expected.1),
            ..run
        };
        if services::find("redis-server").is_some() {
            let text = run_once(TwipSystem::Redis, &wrong, Path::new("")).err();
            let text = text.expect("wrong answers end the run").to_string();
            assert!(text.contains("checks read"), "{text}");
        }
    }
}
