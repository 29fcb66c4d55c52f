//! `bg run`: runs one trial.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::deck::{DeckOption, Shown};
use super::ending::{Allowed, Ending, judgements};
use super::folder::{self, Folder};
use super::interrupt::on_interrupt;
use super::options::{SetupOptions, TrialOptions};
use super::{load, say, table};
use crate::coordinate::Fleet;
use crate::run::live::{Live, Watchable};
use crate::run::{Process, Setup, Tracing};
use crate::ui::deck::Watched;
use crate::verdict::agreement::Sla;
use crate::verdict::measure::{Laboratory, Load, Measured};

const EXAMPLES: &str = "\
Examples:
  bg run --store memory --threads 8 --duration 5s --trace /tmp/trace
  bg run --store null --threads 100 --mix symmetric-high-write --duration 10s
  bg run --store memory --threads 8 --duration 60s --sla '95% < 1ms, 0% unpredictable' --deck
  bg run --store postgres --rate 2000 --mix low-write --warmup 5s --duration 60s --json";

#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct Arguments {
    #[command(flatten)]
    pub(super) setup: SetupOptions,
    #[command(flatten)]
    trial: TrialOptions,
    /// Write a trace to this empty folder, and validate it
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Validate reads, already while the trial runs
    #[arg(long)]
    online: bool,
    #[command(flatten)]
    allowed: Allowed,
    #[command(flatten)]
    deck: DeckOption,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Do not print a line every second
    #[arg(long)]
    quiet: bool,
}

/// The JSON of a result: the measurements, and statistics of the delivered mix.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    measured: &'a Measured,
    writes_percent: f64,
    drift_percent: f64,
}

pub fn run(arguments: &Arguments) -> Result<Ending, String> {
    let setup = arguments.setup(&[1.0])?;
    let mut process = Process::new(setup)?;
    process.check(&arguments.trial.trial())?;
    if arguments.online {
        process.judge_online();
    }
    let shown = arguments.show(process.setup(), process.live())?;
    let live = process.live().clone();
    on_interrupt(move || live.end())?;
    load::first(&arguments.setup, &mut process, shown.as_ref())?;
    let measured = arguments.watch(&mut process, shown.as_ref())?;
    let failures = process.live().seen(|seen| seen.failures.clone());
    let injected = process.setup().store.injected();
    arguments.print(&measured, &failures, &injected)
}

impl Arguments {
    /// Returns all parameters of the trial except its load, for clients of these speeds together.
    ///
    /// # Errors
    ///
    /// A parameter is invalid; the message names it.
    pub fn setup(&self, speeds: &[f64]) -> Result<Setup, String> {
        let mut setup = self.setup.setup(self.trace.clone(), speeds)?;
        let judged = self.online || self.sla().is_some_and(Sla::wants_reads);
        if setup.tracing == Tracing::None && judged && !setup.store.is_hollow() {
            setup.tracing = Tracing::Scratch;
        }
        Ok(setup)
    }

    /// See [`Work::confine`](super::coordinator::Work::confine).
    pub fn confine(&mut self, folder: Option<&Folder>) -> Result<(), String> {
        self.setup.confine(folder)?;
        if let Some(trace) = &mut self.trace {
            *trace = folder::confine(folder, "--trace", trace)?;
        }
        Ok(())
    }

    fn sla(&self) -> Option<&Sla> {
        self.trial.sla.as_ref()
    }

    /// Returns whether reads are also validated while the trial runs.
    pub fn judges_online(&self) -> bool {
        self.online
    }

    /// Runs the trial with clients that act as one. `setup` is the one that a single client would have.
    ///
    /// # Errors
    ///
    /// The trial has no result.
    pub fn run_with(&self, fleet: &mut Fleet, setup: &Setup) -> Result<Ending, String> {
        let shown = self.show(setup, fleet.live())?;
        let measured = self.watch(fleet, shown.as_ref())?;
        let failures = fleet.live().seen(|seen| seen.failures.clone());
        self.print(&measured, &failures, fleet.injected())
    }

    /// Opens the deck if requested.
    fn show(&self, setup: &Setup, live: &Arc<Live>) -> Result<Option<Shown>, String> {
        let address = self.deck.deck.as_deref();
        address
            .map(|address| Shown::open("run", address, setup, live, self.sla()))
            .transpose()
    }

    /// Runs the trial on a laboratory, and prints a line every second.
    fn watch(
        &self,
        laboratory: &mut dyn Watchable,
        shown: Option<&Shown>,
    ) -> Result<Measured, String> {
        let quiet = self.quiet;
        let tell = move |live: &Live| {
            if !quiet {
                live.seen(|seen| say::err(format_args!("{}", table::second(seen))));
            }
        };
        let trial = self.trial.trial();
        match shown {
            None => {
                laboratory.watch(Box::new(tell));
                laboratory.run(&trial)
            }
            Some(shown) => {
                shown.watch(laboratory, tell);
                let ended = Watched::new(laboratory, shown.board.clone()).run(&trial);
                shown.failed(ended)
            }
        }
    }

    fn print(
        &self,
        measured: &Measured,
        failures: &[(String, u64)],
        injected: &[(impl Display, u64)],
    ) -> Result<Ending, String> {
        let ending = Ending::of(self.allowed.trial(measured, self.sla()));
        if self.json {
            let delivered = measured.delivered();
            let printed = Printed {
                measured,
                writes_percent: 100.0 * delivered.writes(),
                drift_percent: 100.0 * delivered.drift(),
            };
            let text = serde_json::to_string(&printed).map_err(|why| why.to_string())?;
            say::out(format_args!("{text}"));
            return Ok(ending);
        }
        print!("{}", table::result(measured));
        if let Load::Threads(_) = self.trial.trial().load {
            println!("{}", table::CLOSED_LOOP);
        }
        // The implied limit of errors is only printed if it was missed.
        let judged = judgements(measured, self.sla()).into_iter();
        for clause in judged.filter(|clause| self.sla().is_some() || !clause.met) {
            println!("{} {clause}", if clause.met { "met   " } else { "missed" });
        }
        for (why, count) in failures {
            println!("{count} calls failed: {why}");
        }
        for (class, count) in injected {
            println!("{count} injected: {class}");
        }
        Ok(ending)
    }
}
