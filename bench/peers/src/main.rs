//! `bench-stores`: larder's stores beside other engines, in one run on one machine.
//!
//! ```text
//!  data (CSV) ──> for each round, each engine in a child of its own: build ──> warm ──> cold
//!                                        └──> raw.jsonl ──> report: summary.md
//! ```
//!
//! Read `engine` for what is compared, `measure` for how, `report` for what is made of it. Rounds take
//! the engines in turns, so that noise on the machine meets all of them.

mod child;
mod data;
mod engine;
mod engines;
mod evaluation;
mod host;
mod measure;
mod report;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use child::{Step, Usage};
use data::DataSet;
use engine::{Entry, Result};
use measure::{Built, Cold, Counts, Warm};
use report::RawLine;

/// Compares larder's stores with LMDB, RocksDB, cdb, sparkey, a perfect hash and Voldemort's layout
#[derive(Parser)]
#[command(name = "bench-stores")]
struct Args {
    /// Keys of data set d1 (values of 100 bytes)
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// Keys of data set d2 (values of 1024 bytes) [default: a tenth of --keys]
    #[arg(long)]
    keys_d2: Option<u64>,
    /// Data sets to run
    #[arg(long, value_delimiter = ',', default_value = "d1,d2")]
    data: Vec<String>,
    /// Engines to run [default: all]
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Rounds of builds, and of lookups
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Untimed lookups of each kind; a tenth of them are timed singly
    #[arg(long, default_value_t = 3_000_000)]
    lookups: usize,
    /// Lookups with an empty page cache
    #[arg(long, default_value_t = 2_000)]
    cold_lookups: usize,
    /// Folder for data and temporary files; 30 GB at full size
    #[arg(long, default_value = "target/bench-stores")]
    work: PathBuf,
    /// Folder for results: <out>/<date>-<host>/
    #[arg(long, default_value = "bench/runs")]
    out: PathBuf,
    /// Name of the machine in the results [default: its name]
    #[arg(long)]
    host: Option<String>,
    /// Redo Voldemort's evaluation instead: builds of so many GB, such as 1,2,4,8
    #[arg(long, value_delimiter = ',', value_name = "GB")]
    evaluation: Vec<u64>,
    /// With --evaluation: the size at which is read
    #[arg(long, default_value_t = 2, value_name = "GB")]
    read_size: u64,
    /// With --evaluation: reads a second
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1000,2000,4000,8000,16000"
    )]
    rates: Vec<u64>,
    /// With --evaluation: seconds of reads at each rate
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// With --evaluation: the binary larder
    #[arg(long, default_value = "target/release/larder")]
    larder: PathBuf,
    /// Only make summary.md again, from the raw.jsonl of this folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    #[arg(long, hide = true)]
    step: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match (&args.step, &args.report) {
        (Some(step), _) => step_in_child(step),
        (None, Some(folder)) => report::write(folder),
        (None, None) => run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-stores: {error}");
            ExitCode::FAILURE
        }
    }
}

fn step_in_child(step: &str) -> Result<()> {
    println!("{}", child::perform(&serde_json::from_str(step)?)?);
    Ok(())
}

fn run(args: &Args) -> Result<()> {
    let entries = select_entries(args)?;
    fs::create_dir_all(&args.work)?;
    let work = args.work.canonicalize()?;
    let folder = args.out.join(format!(
        "{}-{}",
        host::today(),
        args.host.clone().unwrap_or_else(host::name)
    ));
    fs::create_dir_all(&folder)?;
    if !args.evaluation.is_empty() {
        return evaluation::run(&evaluation::Options {
            sizes_gb: args.evaluation.clone(),
            read_gb: args.read_size,
            rates: args.rates.clone(),
            seconds: args.seconds,
            larder: args.larder.clone(),
            work,
            folder,
            command: command(),
        });
    }
    let mut run = Run {
        raw: fs::File::create(folder.join("raw.jsonl"))?,
        counts: Counts {
            untimed: args.lookups,
            timed: args.lookups / 10,
            cold: args.cold_lookups,
        },
        work,
        failed: HashSet::new(),
    };
    run.write(&RawLine::Host {
        facts: host::describe(&run.work)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        command: command(),
    })?;
    for name in &args.data {
        let data = run.data_set(args, name)?;
        run.write(&RawLine::Data {
            data: data.clone(),
            counts: run.counts,
        })?;
        for round in 0..args.rounds {
            for entry in rotate(&entries, round) {
                run.build(entry, &data, round)?;
            }
        }
        for round in 0..args.rounds {
            for entry in rotate(&entries, round) {
                run.warm(entry, &data, round)?;
            }
        }
        for round in 0..args.rounds.min(2) {
            for entry in rotate(&entries, round) {
                run.cold(entry, &data, round)?;
            }
        }
        for entry in &entries {
            let _ = fs::remove_dir_all(run.folder(&data, entry.name));
        }
        report::write(&folder)?;
    }
    println!("results are in {}", folder.display());
    Ok(())
}

fn select_entries(args: &Args) -> Result<Vec<Entry>> {
    let mut entries = engine::all();
    for name in &args.engines {
        if !entries.iter().any(|entry| entry.name == name) {
            let known: Vec<_> = entries.iter().map(|entry| entry.name).collect();
            return Err(
                format!("no engine is called {name}; there are {}", known.join(", ")).into(),
            );
        }
    }
    if !args.engines.is_empty() {
        entries.retain(|entry| args.engines.iter().any(|name| name == entry.name));
    }
    Ok(entries)
}

/// The command that does this run again.
fn command() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.is_empty() {
        "make bench-stores".into()
    } else {
        format!("make bench-stores ARGS='{}'", args.join(" "))
    }
}

/// Every round begins with another engine.
fn rotate(entries: &[Entry], round: u32) -> impl Iterator<Item = &Entry> {
    let begin = round as usize * 5 % entries.len().max(1);
    entries[begin..].iter().chain(&entries[..begin])
}

struct Run {
    raw: fs::File,
    counts: Counts,
    work: PathBuf,
    /// Data sets and engines that failed on them. A failure is reported once; the engine is then omitted for that data set.
    failed: HashSet<(String, &'static str)>,
}

impl Run {
    fn data_set(&self, args: &Args, name: &str) -> Result<DataSet> {
        let (keys, value_bytes) = match name {
            "d1" => (args.keys, 100),
            "d2" => (args.keys_d2.unwrap_or(args.keys / 10), 1024),
            _ => return Err(format!("no data set is called {name}; there are d1 and d2").into()),
        };
        let csv = self.work.join(format!("{keys}x{value_bytes}.csv"));
        let data = DataSet {
            name: name.to_owned(),
            keys,
            value_bytes,
            csv,
        };
        eprintln!("{name}: {keys} keys, values of {value_bytes} bytes");
        child::run::<()>(&Step::Generate { data: data.clone() })?;
        Ok(data)
    }

    fn folder(&self, data: &DataSet, engine: &str) -> PathBuf {
        self.work.join(format!("{}-{engine}", data.name))
    }

    fn write(&mut self, line: &RawLine) -> Result<()> {
        writeln!(self.raw, "{}", serde_json::to_string(line)?)?;
        Ok(())
    }

    fn build(&mut self, entry: &Entry, data: &DataSet, round: u32) -> Result<()> {
        if entry.reads_from.is_some() || self.has_failed(entry, data) {
            return Ok(());
        }
        let out = self.folder(data, entry.name);
        clear_folder(&out)?;
        // All find the input in the page cache, and a disk that is idle.
        std::io::copy(&mut fs::File::open(&data.csv)?, &mut std::io::sink())?;
        // SAFETY: `sync` takes nothing.
        unsafe { libc::sync() };
        let step = Step::Build {
            engine: entry.name.into(),
            data: data.clone(),
            out: out.clone(),
        };
        let done: Result<(Built, Usage)> = child::run(&step);
        if entry.build_only {
            let _ = fs::remove_dir_all(out);
        }
        if let Some((built, usage)) = self.record_failure(done, entry, data, "build")? {
            eprintln!(
                "{} round {round} {:24} build {:8.2} s, peak {:6} MB",
                data.name,
                entry.name,
                built.build_s,
                usage.peak_bytes / 1_000_000
            );
            self.write(&RawLine::Build {
                data: data.name.clone(),
                engine: entry.name.into(),
                round,
                built,
                usage,
            })?;
        }
        Ok(())
    }

    fn warm(&mut self, entry: &Entry, data: &DataSet, round: u32) -> Result<()> {
        if entry.build_only || self.has_failed(entry, data) {
            return Ok(());
        }
        let out = self.folder(data, entry.reads_from.unwrap_or(entry.name));
        let step = Step::Warm {
            engine: entry.name.into(),
            data: data.clone(),
            out,
            counts: self.counts,
            seed: 1000 + u64::from(round),
        };
        let done: Result<(Warm, Usage)> = child::run(&step);
        if let Some((warm, _)) = self.record_failure(done, entry, data, "lookups")? {
            eprintln!(
                "{} round {round} {:24} hit {:6.0} ns, p99 {:6.0}, miss {:6.0}",
                data.name, entry.name, warm.hit_ns_mean, warm.hit_ns_p99, warm.miss_ns_mean
            );
            self.write(&RawLine::Warm {
                data: data.name.clone(),
                engine: entry.name.into(),
                round,
                warm,
            })?;
        }
        Ok(())
    }

    fn cold(&mut self, entry: &Entry, data: &DataSet, round: u32) -> Result<()> {
        if entry.build_only || self.has_failed(entry, data) {
            return Ok(());
        }
        let out = self.folder(data, entry.reads_from.unwrap_or(entry.name));
        let step = Step::Cold {
            engine: entry.name.into(),
            data: data.clone(),
            out,
            counts: self.counts,
            seed: 2000 + u64::from(round),
        };
        let done: Result<(Cold, Usage)> = child::run(&step);
        if let Some((cold, _)) = self.record_failure(done, entry, data, "cold lookups")? {
            eprintln!(
                "{} round {round} {:24} cold hit {:6.1} us, {:5.2} reads",
                data.name, entry.name, cold.hit_us_mean, cold.hit_disk_reads
            );
            self.write(&RawLine::Cold {
                data: data.name.clone(),
                engine: entry.name.into(),
                round,
                cold,
            })?;
        }
        Ok(())
    }

    fn has_failed(&self, entry: &Entry, data: &DataSet) -> bool {
        let failed = |engine| self.failed.contains(&(data.name.clone(), engine));
        failed(entry.name) || entry.reads_from.is_some_and(failed)
    }

    /// Records the failure of an engine. The report names it, and the other engines continue.
    fn record_failure<T>(
        &mut self,
        done: Result<T>,
        entry: &Entry,
        data: &DataSet,
        doing: &str,
    ) -> Result<Option<T>> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) => {
                eprintln!("{} {:24} {doing} failed: {error}", data.name, entry.name);
                self.failed.insert((data.name.clone(), entry.name));
                self.write(&RawLine::Failed {
                    data: data.name.clone(),
                    engine: entry.name.into(),
                    reason: format!("{doing}: {error}"),
                })?;
                Ok(None)
            }
        }
    }
}

fn clear_folder(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(fs::create_dir_all(folder)?)
}
