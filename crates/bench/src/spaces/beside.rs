//! `larder-bench spaces`: hotels by key and by attributes, and updates, beside PostgreSQL with the best indexes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::drive::{Driven, drive};
use super::hotels::Hotels;
use super::systems::{Larder, Postgres, Question, System};
use crate::Result;
use crate::net::services::{self, CLIENT_CORE, SERVER_CORE};
use crate::process::{self, Server};
use crate::report::{self, median, spread, verdict};

#[derive(Args)]
pub struct SpacesArgs {
    #[arg(long, default_value_t = 256_000)]
    hotels: usize,
    /// Connections of each client
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Rounds; the systems take turns, each on a server of its own
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The binary larder [default: built beside this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw numbers into this folder, under this name
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "spaces")]
    name: String,
}

/// Requests of each kind, which are sent again and again.
const REQUESTS: usize = 20_000;
/// Requests that a connection has under way.
const DEPTHS: [usize; 2] = [1, 16];
/// Pipelined, at least so many times PostgreSQL's.
const PIPELINED_BAR: f64 = 3.0;

/// How durable an answered write is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durable {
    /// On disk within a second; PostgreSQL's within three tenths.
    Soon,
    /// On disk.
    Now,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Larder,
    Postgres,
}

/// What was measured of one question.
struct Sample {
    which: Which,
    durable: Durable,
    question: Question,
    depth: usize,
    /// Answers for each second of the server's CPU time, and of the clock.
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
        for durable in [Durable::Soon, Durable::Now] {
            for which in [Which::Larder, Which::Postgres] {
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
    which: Which,
    durable: Durable,
    binary: &Path,
    folder: &Path,
) -> Result<(Server, Box<dyn System>)> {
    match which {
        Which::Larder => {
            let fsync = match durable {
                Durable::Soon => "tables.fsync=everysec",
                Durable::Now => "tables.fsync=always",
            };
            let settings = [fsync.to_owned()];
            let server =
                process::start_larder_with(binary, folder, Some(SERVER_CORE), 1, &settings)?;
            let system = Box::new(Larder {
                address: server.resp,
                indexes: "INDEX 3 city city,price address",
            });
            Ok((server, system))
        }
        Which::Postgres => {
            let commit = match durable {
                Durable::Soon => "synchronous_commit=off",
                Durable::Now => "synchronous_commit=on",
            };
            let server = services::start_postgres_with(folder, &["fsync=on", commit])?;
            let system = Box::new(Postgres(server.resp));
            Ok((server, system))
        }
    }
}

/// All questions, or where each write is on disk when it is answered, updates alone.
fn measure(
    args: &SpacesArgs,
    binary: &Path,
    hotels: &Hotels,
    which: Which,
    durable: Durable,
) -> Result<Vec<Sample>> {
    let folder = tempfile::tempdir()?;
    let (server, system) = start(which, durable, binary, folder.path())?;
    system.load(hotels)?;
    let mut samples = Vec::new();
    for question in Question::ALL {
        if durable == Durable::Now && question != Question::Update {
            continue;
        }
        let asked = system.asked(question, hotels, REQUESTS);
        for depth in DEPTHS {
            let lines = (0..args.connections).map(|_| system.connect());
            let lines = lines.collect::<Result<Vec<_>>>()?;
            // Processors and connections are warm before the clock starts.
            let (_, lines) = drive(lines, &asked, depth, Duration::from_millis(300))?;
            let before = server.cpu_s()?;
            let took = Duration::from_secs_f64(args.seconds);
            let (driven, lines) = drive(lines, &asked, depth, took)?;
            let cpu_s = server.cpu_s()? - before;
            drop(lines);
            let Driven {
                answered,
                elapsed,
                latencies,
            } = driven;
            samples.push(Sample {
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

fn raw_line(round: usize, sample: &Sample) -> Value {
    json!({
        "round": round, "system": sample.which.title(), "durable": sample.durable.title(), "question": sample.question.title(),
        "depth": sample.depth, "per_cpu_s": sample.per_cpu_s, "per_s": sample.per_s, "p99_us": sample.p99_us,
    })
}

impl Which {
    fn title(self) -> &'static str {
        match self {
            Which::Larder => "larder",
            Which::Postgres => "PostgreSQL",
        }
    }
}

impl Durable {
    fn title(self) -> &'static str {
        match self {
            Durable::Soon => "soon",
            Durable::Now => "now",
        }
    }
}

fn text(args: &SpacesArgs, samples: &[Sample]) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "## Hotels by their attributes, beside PostgreSQL\n")?;
    writeln!(
        text,
        "{} generated hotels of ten attributes, fifty in each city; one server process on one core, {} connections over loopback from another. \
         PostgreSQL has B-trees on the key, on city and address and on city and price, and prepared statements; larder has indexes of city, of city and price and of address; rows are answered whole by both. \
         Answers for each second of the server's CPU time (all its processes), median (minimum-maximum) of {} rounds of {} s; each answer's number of \
         rows is checked.\n",
        args.hotels, args.connections, args.rounds, args.seconds
    )?;
    for depth in DEPTHS {
        writeln!(
            text,
            "### {}\n",
            if depth == 1 {
                "One request at a time".to_owned()
            } else {
                format!("{depth} requests at a time")
            }
        )?;
        writeln!(
            text,
            "| | larder /CPU s | PostgreSQL /CPU s | times | bar | | larder /s | PostgreSQL /s | p99 us | PostgreSQL's |"
        )?;
        writeln!(text, "|---|---|---|---|---|---|---|---|---|---|")?;
        for durable in [Durable::Soon, Durable::Now] {
            for question in Question::ALL {
                let of = |which: Which, figure: fn(&Sample) -> f64| -> Vec<f64> {
                    let samples = samples.iter().filter(|it| {
                        (it.which, it.durable, it.question, it.depth)
                            == (which, durable, question, depth)
                    });
                    samples.map(figure).collect()
                };
                let own = of(Which::Larder, |it| it.per_cpu_s);
                let other = of(Which::Postgres, |it| it.per_cpu_s);
                if own.is_empty() {
                    continue;
                }
                let times = median(&own) / median(&other);
                let bar = if depth == 1 {
                    question.bar()
                } else {
                    PIPELINED_BAR
                };
                let title = match (question, durable) {
                    (Question::Update, Durable::Soon) => "update, on disk soon",
                    (Question::Update, Durable::Now) => "update, on disk when answered",
                    _ => question.title(),
                };
                let at = |which, figure| median(&of(which, figure));
                writeln!(
                    text,
                    "| {title} | {} | {} | {times:.2} | {bar} | {} | {:.0} | {:.0} | {:.0} | {:.0} |",
                    spread(&own, 0),
                    spread(&other, 0),
                    verdict(times >= bar),
                    at(Which::Larder, |it| it.per_s),
                    at(Which::Postgres, |it| it.per_s),
                    at(Which::Larder, |it| it.p99_us),
                    at(Which::Postgres, |it| it.p99_us),
                )?;
            }
        }
        writeln!(text)?;
    }
    writeln!(text, "Command: `{}`", report::command())?;
    Ok(text)
}
