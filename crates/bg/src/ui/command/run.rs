//! `bg run`: runs one trial.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::deck::{DeckOption, DeckSession};
use super::folder::{self, Folder};
use super::interrupt::on_interrupt;
use super::options::{SetupOptions, TrialOptions};
use super::outcome::{AllowedUnpredictable, CommandOutcome, judgements};
use super::{load, output, table};
use crate::coordinate::Fleet;
use crate::run::live::{Live, Watchable};
use crate::run::{Process, Setup, Tracing};
use crate::ui::deck::ObservedRunner;
use crate::verdict::agreement::Sla;
use crate::verdict::measure::{Load, Measurements, TrialRunner};

const EXAMPLES: &str = "\
Examples:
  bg run --store memory --threads 8 --duration 5s --trace /tmp/trace
  bg run --store null --threads 100 --mix symmetric-high-write --duration 10s
  bg run --store memory --threads 8 --duration 60s --sla '95% < 1ms, 0% unpredictable' --deck
  bg run --store postgres --rate 2000 --mix low-write --warmup 5s --duration 60s --json";

#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct RunArguments {
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
    allowed: AllowedUnpredictable,
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
struct RunJson<'a> {
    #[serde(flatten)]
    measured: &'a Measurements,
    writes_percent: f64,
    drift_percent: f64,
}

pub fn run(arguments: &RunArguments) -> Result<CommandOutcome, String> {
    let setup = arguments.setup(&[1.0])?;
    let mut process = Process::new(setup)?;
    process.check(&arguments.trial.trial())?;
    if arguments.online {
        process.validate_online();
    }
    let shown = arguments.show(process.setup(), process.live())?;
    let live = process.live().clone();
    on_interrupt(move || live.end())?;
    load::load_if_needed(&arguments.setup, &mut process, shown.as_ref())?;
    let measured = arguments.watch(&mut process, shown.as_ref())?;
    let failures = process.live().with_state(|seen| seen.failures.clone());
    let injected = process.setup().store.injected();
    arguments.print(&measured, &failures, &injected)
}

impl RunArguments {
    /// Returns all parameters of the trial except its load, for clients of these speeds together.
    ///
    /// # Errors
    ///
    /// A parameter is invalid; the message names it.
    pub fn setup(&self, speeds: &[f64]) -> Result<Setup, String> {
        let mut setup = self.setup.setup(self.trace.clone(), speeds)?;
        let judged = self.online || self.sla().is_some_and(Sla::needs_validation);
        if setup.tracing == Tracing::None && judged && !setup.store.skips_validation() {
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
    pub fn validates_online(&self) -> bool {
        self.online
    }

    /// Runs the trial with clients that act as one. `setup` is the one that a single client would have.
    ///
    /// # Errors
    ///
    /// The trial has no result.
    pub fn run_with(&self, fleet: &mut Fleet, setup: &Setup) -> Result<CommandOutcome, String> {
        let shown = self.show(setup, fleet.live())?;
        let measured = self.watch(fleet, shown.as_ref())?;
        let failures = fleet.live().with_state(|seen| seen.failures.clone());
        self.print(&measured, &failures, fleet.injected())
    }

    /// Opens the deck if requested.
    fn show(&self, setup: &Setup, live: &Arc<Live>) -> Result<Option<DeckSession>, String> {
        let address = self.deck.deck.as_deref();
        address
            .map(|address| DeckSession::open("run", address, setup, live, self.sla()))
            .transpose()
    }

    /// Runs the trial with a trial runner, and prints a line every second.
    fn watch(
        &self,
        runner: &mut dyn Watchable,
        shown: Option<&DeckSession>,
    ) -> Result<Measurements, String> {
        let quiet = self.quiet;
        let print_second = move |live: &Live| {
            if !quiet {
                live.with_state(|seen| output::err(format_args!("{}", table::format_second(seen))));
            }
        };
        let trial = self.trial.trial();
        match shown {
            None => {
                runner.watch(Box::new(print_second));
                runner.run(&trial)
            }
            Some(shown) => {
                shown.watch(runner, print_second);
                let ended = ObservedRunner::new(runner, shown.board.clone()).run(&trial);
                shown.failed(ended)
            }
        }
    }

    fn print(
        &self,
        measured: &Measurements,
        failures: &[(String, u64)],
        injected: &[(impl Display, u64)],
    ) -> Result<CommandOutcome, String> {
        let outcome = CommandOutcome::from_met(self.allowed.accepts_trial(measured, self.sla()));
        if self.json {
            let delivered = measured.delivered();
            let printed = RunJson {
                measured,
                writes_percent: 100.0 * delivered.writes(),
                drift_percent: 100.0 * delivered.drift(),
            };
            let text = serde_json::to_string(&printed).map_err(|why| why.to_string())?;
            output::out(format_args!("{text}"));
            return Ok(outcome);
        }
        print!("{}", table::format_result(measured));
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
        Ok(outcome)
    }
}
