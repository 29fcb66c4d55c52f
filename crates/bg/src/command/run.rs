//! `bg run`: one trial.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use super::deck::{DeckOption, Shown};
use super::options::{ConductOptions, PopulationOptions, StoreOptions};
use super::{load, table};
use crate::deck::Watched;
use crate::duration::duration;
use crate::measure::{Laboratory, Load, Measured, Trial};
use crate::run::live::Live;
use crate::run::{Process, Setup, Tracing};
use crate::sla::Sla;

const EXAMPLES: &str = "\
Examples:
  bg run --store memory --threads 8 --duration 5s --trace /tmp/trace
  bg run --store null --threads 100 --mix symmetric-high-write --duration 10s
  bg run --store memory --threads 8 --duration 60s --sla '95% < 1ms, 0% unpredictable' --deck
  bg run --store postgres --rate 2000 --mix low-write --warmup 5s --duration 60s --json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    store: StoreOptions,
    #[command(flatten)]
    population: PopulationOptions,
    #[command(flatten)]
    conduct: ConductOptions,
    /// Closed loop: so many emulated threads, each with one action at a time
    #[arg(long, default_value_t = 1, conflicts_with = "rate")]
    threads: u32,
    /// Open loop: so many actions a second, whatever the data store does
    #[arg(long)]
    rate: Option<f64>,
    /// How long is measured
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Before it, not measured
    #[arg(long, default_value = "0s", value_parser = duration)]
    warmup: Duration,
    /// Keep what was seen in this empty folder, and judge it
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Say whether the trial keeps this agreement; reads are judged where it speaks of them
    #[arg(long, value_name = "AGREEMENT")]
    sla: Option<Sla>,
    /// Judge reads while the trial runs, too; with --trace, or an agreement that speaks of them
    #[arg(long)]
    online: bool,
    /// Empty the data store and load it first
    #[arg(long)]
    pub(super) load: bool,
    #[command(flatten)]
    deck: DeckOption,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// No line each second
    #[arg(long)]
    quiet: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let setup = arguments.setup()?;
    let trial = arguments.trial();
    let sla = arguments.sla.as_ref();
    let mut process = Process::new(setup)?;
    process.check(&trial)?;
    if arguments.online {
        process.judge_online();
    }
    let address = arguments.deck.deck.as_deref();
    let shown = address
        .map(|address| Shown::open("run", address, &process, sla))
        .transpose()?;
    if arguments.load || process.setup().store.is_volatile() {
        match &shown {
            Some(shown) => shown.load(&mut process)?,
            None => process.load(&mut load::progress(Instant::now()))?,
        }
    }
    let live = process.live().clone();
    interrupt(move || live.stop())?;
    let quiet = arguments.quiet;
    let tell = move |live: &Live| {
        if !quiet {
            live.seen(|seen| eprintln!("{}", table::second(seen)));
        }
    };
    let measured = match &shown {
        Some(shown) => {
            shown.watch(&mut process, tell);
            let ended = Watched::new(&mut process, shown.board.clone()).run(&trial);
            shown.failed(ended)?
        }
        None => {
            process.on_second(tell);
            process.run(&trial)?
        }
    };
    arguments.print(&measured)?;
    if arguments.json {
        return Ok(());
    }
    for (why, count) in process.live().seen(|seen| seen.failures.clone()) {
        println!("{count} calls failed: {why}");
    }
    for (class, count) in process.setup().store.injected() {
        println!("{count} injected: {class}");
    }
    Ok(())
}

impl Arguments {
    /// All of the trial but its load.
    ///
    /// # Errors
    ///
    /// What cannot be, by name.
    pub fn setup(&self) -> Result<Setup, String> {
        let mut setup = self
            .conduct
            .setup(&self.store, &self.population, self.trace.clone())?;
        if setup.tracing == Tracing::None
            && self.sla.as_ref().is_some_and(Sla::wants_reads)
            && !setup.store.is_hollow()
        {
            setup.tracing = Tracing::Scratch;
        }
        Ok(setup)
    }

    fn trial(&self) -> Trial {
        Trial {
            load: match self.rate {
                Some(rate) => Load::Rate(rate),
                None => Load::Threads(self.threads),
            },
            warmup: self.warmup,
            duration: self.duration,
        }
    }

    /// The trial by whoever can run it.
    ///
    /// # Errors
    ///
    /// Why it has no result.
    pub fn run_with(&self, laboratory: &mut dyn Laboratory) -> Result<(), String> {
        if self.deck.deck.is_some() || self.online {
            return Err("--deck and --online are of one process, not of clients".to_owned());
        }
        let measured = laboratory.run(&self.trial())?;
        self.print(&measured)
    }

    fn print(&self, measured: &Measured) -> Result<(), String> {
        if self.json {
            let text = serde_json::to_string(measured).map_err(|why| why.to_string())?;
            println!("{text}");
            return Ok(());
        }
        print!("{}", table::result(measured));
        for clause in self
            .sla
            .iter()
            .flat_map(|sla| sla.judge_trial(measured).clauses)
        {
            println!("{} {clause}", if clause.met { "met   " } else { "missed" });
        }
        Ok(())
    }
}

/// Ctrl-C calls `end`, which lets things end with what they have; a second one ends everything.
pub fn interrupt(end: impl Fn() + Send + 'static) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| why.to_string())?;
    thread::spawn(move || {
        runtime.block_on(async {
            for count in 0.. {
                if tokio::signal::ctrl_c().await.is_err() {
                    return;
                }
                if count > 0 {
                    std::process::exit(130);
                }
                eprintln!("ending; once more to give up");
                end();
            }
        });
    });
    Ok(())
}
