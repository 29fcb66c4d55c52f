//! The rating: how much load a data store takes under an agreement.
//!
//! *SoAR* is the highest throughput among the loads that meet the agreement, *Socialites* the highest number of threads (or actions a
//! second) that meets it. [`rate`] finds them with few experiments; it sees the data store through [`Laboratory`] alone.
//!
//! ```text
//!   double ──(misses, or rises no more, twice)──► narrow ──(nothing to gain)──► confirm ──(met)──► rating
//!     │ misses at once                                                             │ missed
//!     ▼                                                                            ▼
//!   halve ──(misses at 1)──► rating 0                                          back off ──(met)──► narrow between
//! ```
//!
//! The report's search (its section on heuristic search, and Figure 13), made safe against noise. `search` doubles and narrows,
//! `confirm` runs the full duration and backs off, `noise` says when two throughputs differ.
//!
//! Invariants:
//!
//! 1. The rating's figures are those of one trial of the agreement's full duration that met it. Without such a trial it is zero.
//! 2. A load is never visited twice without need: what was run is remembered, and run again only where noise could have decided.
//! 3. The search looks below the last load that rose: the peak of throughput may lie on either side of it.
//! 4. A trial of the search that clearly misses ends early (`sla/early`); the confirming ones never do.
//! 5. A load that ends the doubling does so in two trials; of two that disagree the first is set aside, and that is noted.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::measure::{Laboratory, Load, Measured, Trial};
use crate::sla::{Sla, Verdict};

mod confirm;
mod noise;
mod search;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The highest throughput among loads that meet the agreement.
    Soar,
    /// The highest load that meets the agreement.
    Socialites,
}

/// What a load is a number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// Closed loop: emulated threads.
    Threads,
    /// Open loop: actions a second.
    Rate,
}

/// What to rate by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub sla: Sla,
    pub goal: Goal,
    pub over: Over,
    /// The load of the first experiment; at least 1.
    pub first: u64,
    /// No load above it is tried.
    pub most: u64,
    #[serde(skip)]
    pub warmup: Duration,
    /// Of each experiment of the search; the confirming one lasts as the agreement says.
    #[serde(skip)]
    pub trial: Duration,
    /// Part of the throughput (0.01 is a percent) that is not worth another experiment. Socialites are exact whatever it is.
    pub tolerance: f64,
    /// Trials of one load in the search, where noise could decide.
    pub trials_max: u32,
    /// Whether trials of the search go on that clearly miss the agreement.
    pub full_trials: bool,
}

impl Plan {
    pub fn new(sla: Sla, goal: Goal) -> Plan {
        Plan {
            sla,
            goal,
            over: Over::Threads,
            first: 1,
            most: 1 << 20,
            warmup: Duration::from_secs(1),
            trial: Duration::from_secs(3),
            tolerance: 0.01,
            trials_max: 3,
            full_trials: false,
        }
    }

    fn load(&self, load: u64) -> Load {
        match self.over {
            Over::Threads => Load::Threads(u32::try_from(load).unwrap_or(u32::MAX)),
            Over::Rate => Load::Rate(load as f64),
        }
    }
}

/// Why an experiment was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    Double,
    /// The first load missed: is there a smaller one?
    Halve,
    Narrow,
    /// Noise could have decided.
    Again,
    Confirm,
    /// The confirming trial missed: is there a smaller load that meets the agreement for as long?
    BackOff,
}

impl fmt::Display for Purpose {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Purpose::Double => "double",
            Purpose::Halve => "halve",
            Purpose::Narrow => "narrow",
            Purpose::Again => "again",
            Purpose::Confirm => "confirm",
            Purpose::BackOff => "back off",
        })
    }
}

/// A trial of the search and what came of it.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub load: u64,
    pub purpose: Purpose,
    /// Actions a second.
    pub throughput: f64,
    /// Of this trial alone.
    pub verdict: Verdict,
    /// It was clear before its time that it misses.
    pub ended_early: bool,
    pub measured: Measured,
}

/// What a data store is rated.
#[derive(Clone, Debug)]
pub struct Rating {
    /// Index into `experiments` of the trial that confirmed the rating; None for a rating of zero.
    pub confirmed: Option<usize>,
    /// In the order in which they were run.
    pub experiments: Vec<Experiment>,
    /// What the reader should know: set aside, backed off, the largest load allowed reached.
    pub notes: Vec<String>,
    pub end: End,
}

/// How the search ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Rated,
    /// Before it was done, as the caller wished.
    Interrupted,
    /// An experiment had no result, twice: why.
    Failed(String),
}

impl Rating {
    pub fn best(&self) -> Option<&Experiment> {
        self.confirmed.map(|index| &self.experiments[index])
    }

    /// Zero where no load meets the agreement, or the search did not end.
    pub fn load(&self) -> u64 {
        self.best().map_or(0, |best| best.load)
    }

    /// Of the confirming trial.
    pub fn throughput(&self) -> f64 {
        self.best().map_or(0.0, |best| best.throughput)
    }
}

/// Looks for the rating. `progress` is told each experiment as it ends, and says whether to go on; a laboratory that is over ends it, too.
pub fn rate(
    plan: &Plan,
    laboratory: &mut dyn Laboratory,
    progress: &mut dyn FnMut(&Experiment) -> bool,
) -> Rating {
    let mut bench = Bench {
        plan,
        laboratory,
        progress,
        experiments: Vec::new(),
        notes: Vec::new(),
    };
    let (confirmed, end) =
        match search::search(&mut bench).and_then(|found| confirm::confirm(&mut bench, found)) {
            Ok(confirmed) => (confirmed, End::Rated),
            Err(end) => (None, end),
        };
    Rating {
        confirmed,
        experiments: bench.experiments,
        notes: bench.notes,
        end,
    }
}

/// Runs experiments and writes them down.
struct Bench<'a> {
    plan: &'a Plan,
    laboratory: &'a mut dyn Laboratory,
    progress: &'a mut dyn FnMut(&Experiment) -> bool,
    experiments: Vec<Experiment>,
    notes: Vec<String>,
}

impl Bench<'_> {
    /// The index of the experiment.
    fn run(&mut self, load: u64, purpose: Purpose) -> Result<usize, End> {
        let confirms = matches!(purpose, Purpose::Confirm | Purpose::BackOff);
        let duration = match confirms {
            true => self.plan.sla.duration,
            false => self.plan.trial,
        };
        let trial = Trial {
            load: self.plan.load(load),
            warmup: self.plan.warmup,
            duration,
        };
        let plan = self.plan;
        let hopeless = |measured: &Measured, elapsed: Duration| {
            !confirms && !plan.full_trials && plan.sla.is_hopeless(measured, elapsed)
        };
        let measured = match self.laboratory.run_until(&trial, &hopeless) {
            Ok(measured) => measured,
            Err(_) if self.laboratory.is_over() => return Err(End::Interrupted),
            Err(why) => {
                self.note(format!(
                    "the trial of {load} had no result and was run again: {why}"
                ));
                let again = self.laboratory.run_until(&trial, &hopeless);
                again.map_err(End::Failed)?
            }
        };
        self.experiments.push(Experiment {
            load,
            purpose,
            throughput: measured.throughput(),
            verdict: self.plan.sla.judge_trial(&measured),
            ended_early: measured.duration < duration && !self.laboratory.is_over(),
            measured,
        });
        let index = self.experiments.len() - 1;
        if (self.progress)(&self.experiments[index]) && !self.laboratory.is_over() {
            Ok(index)
        } else {
            Err(End::Interrupted)
        }
    }

    fn note(&mut self, note: String) {
        self.notes.push(note);
    }
}
