//! `larder-bench spaces`: reads of hotels by key and by attributes, and updates, compared with PostgreSQL with the best
//! indexes, and with MariaDB and SQLite with the same indexes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::drive::{DriveResult, drive};
use super::hotels::Hotels;
use super::sqlite::{Sqlite, version};
use super::systems::{INDEXES_OF_LARDER, Larder, MariaDb, Postgres, Question, System};
use crate::Result;
use crate::net::services::{self, CLIENT_CORE, SERVER_CORE};
use crate::process::{self, Server};
use crate::report::{self, median, spread, verdict};

#[derive(Args)]
pub struct SpacesArgs {
    #[arg(long, default_value_t = 256_000)]
    hotels: usize,
    /// Number of connections per client
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Rounds; the systems alternate, each on its own server
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder, as `<name>.md` and `<name>.jsonl`
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "spaces")]
    name: String,
}

/// The number of distinct requests of each kind, which are sent repeatedly.
const REQUESTS: usize = 20_000;
/// The numbers of requests in flight on a connection.
const DEPTHS: [usize; 2] = [1, 16];
/// The minimum pipelined throughput, as a multiple of PostgreSQL's.
const PIPELINED_BAR: f64 = 3.0;

/// The durability of an acknowledged write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// On disk within a second; PostgreSQL's within three tenths of a second.
    EverySecond,
    /// On disk.
    EveryWrite,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SpaceSystem {
    Larder,
    Postgres,
    MariaDb,
    /// In this process: there is no server, and no pipelining.
    Sqlite,
}

const ALL: [SpaceSystem; 4] = [
    SpaceSystem::Larder,
    SpaceSystem::Postgres,
    SpaceSystem::MariaDb,
    SpaceSystem::Sqlite,
];

/// One measurement of a question.
struct QuestionSample {
    which: SpaceSystem,
    durable: Durability,
    question: Question,
    depth: usize,
    /// Replies per second of the server's CPU time, and per second of elapsed time.
    per_cpu_s: f64,
    per_s: f64,
    p99_us: f64,
}

pub fn run(args: &SpacesArgs) -> Result<()> {
    if process::core_count() < 2 {
        return Err("this needs two cores: one for the server, one for the client".into());
    }
    let binary = process::larder_binary(args.larder.as_deref())?;
    process::pin_self(CLIENT_CORE)?;
    let hotels = Hotels::generate(args.hotels, 1);
    let mut samples = Vec::new();
    let mut raw = Vec::new();
    for round in 0..args.rounds {
        for durable in [Durability::EverySecond, Durability::EveryWrite] {
            for which in ALL {
                for sample in measure(args, &binary, &hotels, which, durable)? {
                    raw.push(raw_line(round, &sample));
                    eprintln!("{}", raw[raw.len() - 1]);
                    samples.push(sample);
                }
            }
        }
    }
    let text = text(args, &samples)?;
    report::keep(args.out.as_deref(), &args.name, &text, &raw)
}

fn start(
    which: SpaceSystem,
    durable: Durability,
    binary: &Path,
    folder: &Path,
) -> Result<(Server, Box<dyn System>)> {
    match which {
        SpaceSystem::Larder => {
            let fsync = match durable {
                Durability::EverySecond => "tables.fsync=everysec",
                Durability::EveryWrite => "tables.fsync=always",
            };
            let settings = [fsync.to_owned()];
            let server =
                process::start_larder_with(binary, folder, Some(SERVER_CORE), 1, &settings)?;
            let system = Box::new(Larder {
                address: server.resp,
                indexes: INDEXES_OF_LARDER,
            });
            Ok((server, system))
        }
        SpaceSystem::Postgres => {
            let commit = match durable {
                Durability::EverySecond => "synchronous_commit=off",
                Durability::EveryWrite => "synchronous_commit=on",
            };
            let server = services::start_postgres_with(folder, &["fsync=on", commit])?;
            let system = Box::new(Postgres(server.resp));
            Ok((server, system))
        }
        SpaceSystem::MariaDb => {
            let flush = match durable {
                Durability::EverySecond => 2,
                Durability::EveryWrite => 1,
            };
            let server = services::start_mariadb(folder)?;
            let system = Box::new(MariaDb(server.resp, flush));
            Ok((server, system))
        }
        SpaceSystem::Sqlite => Err("SQLite is no server".into()),
    }
}

/// Like [`measure`], in this process.
fn measure_sqlite(
    args: &SpacesArgs,
    hotels: &Hotels,
    durable: Durability,
) -> Result<Vec<QuestionSample>> {
    let folder = tempfile::tempdir()?;
    let sqlite = Sqlite::load(folder.path(), hotels, durable == Durability::EveryWrite)?;
    let time = Duration::from_secs_f64(args.seconds);
    let mut samples = Vec::new();
    for question in Question::ALL {
        if durable == Durability::EveryWrite && question != Question::Update {
            continue;
        }
        sqlite.drive(question, hotels, Duration::from_millis(300))?;
        let requests = sqlite.drive(question, hotels, time)?;
        samples.push(QuestionSample {
            which: SpaceSystem::Sqlite,
            durable,
            question,
            depth: 1,
            per_cpu_s: requests.answered as f64 / requests.cpu_s,
            per_s: requests.answered as f64 / requests.elapsed.as_secs_f64(),
            p99_us: requests.latencies.value_at_quantile(0.99) as f64 / 1e3,
        });
    }
    Ok(samples)
}

/// Measures all questions, or only updates if each write is synced before it is acknowledged.
fn measure(
    args: &SpacesArgs,
    binary: &Path,
    hotels: &Hotels,
    which: SpaceSystem,
    durable: Durability,
) -> Result<Vec<QuestionSample>> {
    if which == SpaceSystem::Sqlite {
        return measure_sqlite(args, hotels, durable);
    }
    let folder = tempfile::tempdir()?;
    let (server, system) = start(which, durable, binary, folder.path())?;
    system.load(hotels)?;
    let mut samples = Vec::new();
    for question in Question::ALL {
        if durable == Durability::EveryWrite && question != Question::Update {
            continue;
        }
        let requests = system.build_requests(question, hotels, REQUESTS);
        for depth in DEPTHS {
            let lines = (0..args.connections).map(|_| system.connect());
            let lines = lines.collect::<Result<Vec<_>>>()?;
            // Warm up processors and connections before the clock starts.
            let (_, lines) = drive(lines, &requests, depth, Duration::from_millis(300))?;
            let before = server.cpu_s()?;
            let took = Duration::from_secs_f64(args.seconds);
            let (driven, lines) = drive(lines, &requests, depth, took)?;
            let cpu_s = server.cpu_s()? - before;
            drop(lines);
            let DriveResult {
                answered,
                elapsed,
                latencies,
            } = driven;
            samples.push(QuestionSample {
                which,
                durable,
                question,
                depth,
                per_cpu_s: answered as f64 / cpu_s,
                per_s: answered as f64 / elapsed.as_secs_f64(),
                p99_us: latencies.value_at_quantile(0.99) as f64,
            });
        }
    }
    Ok(samples)
}

fn raw_line(round: usize, sample: &QuestionSample) -> Value {
    json!({
        "round": round, "system": sample.which.title(), "durable": sample.durable.title(), "question": sample.question.title(),
        "depth": sample.depth, "per_cpu_s": sample.per_cpu_s, "per_s": sample.per_s, "p99_us": sample.p99_us,
    })
}

impl SpaceSystem {
    fn title(self) -> &'static str {
        match self {
            SpaceSystem::Larder => "larder",
            SpaceSystem::Postgres => "PostgreSQL",
            SpaceSystem::MariaDb => "MariaDB",
            SpaceSystem::Sqlite => "SQLite",
        }
    }
}

impl Durability {
    fn title(self) -> &'static str {
        match self {
            Durability::EverySecond => "soon",
            Durability::EveryWrite => "now",
        }
    }
}

/// The figures of one system, question and depth, over all rounds.
struct Figures<'a> {
    samples: &'a [QuestionSample],
    durable: Durability,
    question: Question,
    depth: usize,
}

impl Figures<'_> {
    fn all(&self, which: SpaceSystem, figure: fn(&QuestionSample) -> f64) -> Vec<f64> {
        let samples = self.samples.iter().filter(|it| {
            (it.which, it.durable, it.question, it.depth)
                == (which, self.durable, self.question, self.depth)
        });
        samples.map(figure).collect()
    }

    fn median(&self, which: SpaceSystem, figure: fn(&QuestionSample) -> f64) -> f64 {
        median(&self.all(which, figure))
    }

    fn title(&self) -> &'static str {
        match (self.question, self.durable) {
            (Question::Update, Durability::EverySecond) => "update, on disk soon",
            (Question::Update, Durability::EveryWrite) => "update, on disk when answered",
            _ => self.question.title(),
        }
    }
}

/// Returns all figures of a depth, in the order of the tables.
fn measured(samples: &[QuestionSample], depth: usize) -> Vec<Figures<'_>> {
    let both = [Durability::EverySecond, Durability::EveryWrite].into_iter();
    let all = both.flat_map(|durable| {
        Question::ALL.map(|question| Figures {
            samples,
            durable,
            question,
            depth,
        })
    });
    all.filter(|it| !it.all(SpaceSystem::Larder, |it| it.per_s).is_empty())
        .collect()
}

fn text(args: &SpacesArgs, samples: &[QuestionSample]) -> Result<String> {
    let mut text = format!(
        "## Hotels by their attributes, beside PostgreSQL, MariaDB and SQLite\n\n{} generated hotels of ten attributes, fifty in each city; one server process on one core, {} connections over loopback from another. \
         PostgreSQL and MariaDB have B-trees on the key, on city and address and on city and price, and prepared statements; larder has indexes of city, of city and price and of address; all systems return complete rows. \
         Answers for each second of the server's CPU time (all its processes), median (minimum-maximum) of {} rounds of {} s; each answer's number of \
         rows is checked. SQLite {} has the same B-trees and is queried in process, by one thread that reads each column of each row: no server, no client, no connection.\n",
        args.hotels,
        args.connections,
        args.rounds,
        args.seconds,
        version()?
    );
    for depth in DEPTHS {
        let heading = match depth {
            1 => "One request at a time".to_owned(),
            depth => format!("{depth} requests at a time"),
        };
        writeln!(
            text,
            "\n### {heading}\n\n| | larder /CPU s | PostgreSQL /CPU s | times | bar | | larder /s | PostgreSQL /s | p99 us | PostgreSQL's |\n|---|---|---|---|---|---|---|---|---|---|"
        )?;
        for of in measured(samples, depth) {
            let own = of.all(SpaceSystem::Larder, |it| it.per_cpu_s);
            let other = of.all(SpaceSystem::Postgres, |it| it.per_cpu_s);
            let times = median(&own) / median(&other);
            let bar = if depth == 1 {
                of.question.bar()
            } else {
                PIPELINED_BAR
            };
            writeln!(
                text,
                "| {} | {} | {} | {times:.2} | {bar} | {} | {:.0} | {:.0} | {:.0} | {:.0} |",
                of.title(),
                spread(&own, 0),
                spread(&other, 0),
                verdict(times >= bar),
                of.median(SpaceSystem::Larder, |it| it.per_s),
                of.median(SpaceSystem::Postgres, |it| it.per_s),
                of.median(SpaceSystem::Larder, |it| it.p99_us),
                of.median(SpaceSystem::Postgres, |it| it.p99_us),
            )?;
        }
        writeln!(
            text,
            "\n| | MariaDB /CPU s | larder, times | MariaDB's p99 us | SQLite in process /CPU s | larder, times | SQLite's p99 us |\n|---|---|---|---|---|---|---|"
        )?;
        for of in measured(samples, depth) {
            let own = of.median(SpaceSystem::Larder, |it| it.per_cpu_s);
            let maria = of.all(SpaceSystem::MariaDb, |it| it.per_cpu_s);
            let sqlite = of.all(SpaceSystem::Sqlite, |it| it.per_cpu_s);
            write!(
                text,
                "| {} | {} | {:.2} | {:.0} |",
                of.title(),
                spread(&maria, 0),
                own / median(&maria),
                of.median(SpaceSystem::MariaDb, |it| it.p99_us),
            )?;
            if sqlite.is_empty() {
                writeln!(text, " - | - | - |")?
            } else {
                writeln!(
                    text,
                    " {} | {:.2} | {:.0} |",
                    spread(&sqlite, 0),
                    own / median(&sqlite),
                    of.median(SpaceSystem::Sqlite, |it| it.p99_us),
                )?
            }
        }
    }
    writeln!(text, "\nCommand: `{}`", report::command())?;
    Ok(text)
}
