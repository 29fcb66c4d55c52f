//! The rating: how much load a data store takes under an agreement.
//!
//! *SoAR* is the highest throughput among the loads that meet the agreement, *Socialites* the highest number of threads (or actions a
//! second) that meets it. [`rate`] finds them with few experiments; it sees the data store through [`Laboratory`] alone.
//!
//! ```text
//!   double ──(misses, or rises no more, twice)──► narrow ──(nothing to gain)──► choose ──► confirm ──(met)──► rating
//!     │ misses at once                                                                     │ missed   ▲
//!     ▼                                                                                    ▼          │ another did more
//!   halve ──(misses at 1)──► rating 0                                                  back off ──────┘
//! ```
//!
//! The report's search (its section on heuristic search, and Figure 13), made safe against noise. `search` doubles and narrows, `choose` runs again
//! what noise could have put in a wrong order, `confirm` runs the full duration and backs off, `noise` says when two throughputs differ. Then `report`: what is kept of
//! a rating, and `compare`: two of them side by side.
//!
//! Invariants:
//!
//! 1. The rating's figures are those of one trial of the agreement's full duration that met it. Without such a trial it is zero.
//! 2. A load is never visited twice without need: what was run is remembered, and run again only where noise could have decided.
//! 3. The search looks below the last load that rose: the peak of throughput may lie on either side of it.
//! 4. A trial of the search that clearly misses ends early (`agreement/early`); the confirming ones never do.
//! 5. No load that met the agreement did more than the rating, by more than noise, unless a trial of the full duration said otherwise or
//!    a note says that none was run.
//! 6. A load that ends the doubling does so in two trials; of two that disagree the first is set aside, and that is noted.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::verdict::agreement::{Sla, Verdict};
use crate::verdict::measure::{Laboratory, Load, Measured, Trial};
use search::Search;

mod choose;
pub mod compare;
mod confirm;
mod noise;
pub mod report;
mod search;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The highest throughput among loads that meet the agreement.
    Soar,
    /// The highest load that meets the agreement.
    Socialites,
}

/// What a load is a number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Over {
    /// Closed loop: emulated threads.
    Threads,
    /// Open loop: actions a second.
    Rate,
}

/// What to rate by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The search ends in time for a rating that is confirmed after so long; None: when nothing is to be gained.
    #[serde(skip)]
    pub within: Option<Duration>,
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
            within: None,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// What several trials of one load came to: how far a rating may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub trials: usize,
    /// Actions a second.
    pub least: f64,
    pub most: f64,
    /// Standard deviation, relative to the mean; zero of one trial.
    pub deviation: f64,
}

impl Spread {
    /// None of none.
    pub fn of(throughputs: &[f64]) -> Option<Spread> {
        let freedom = throughputs.len().checked_sub(1)?;
        let mean = noise::mean(throughputs).max(f64::MIN_POSITIVE);
        let squares = throughputs.iter().map(|one| (one / mean - 1.0).powi(2));
        Some(Spread {
            trials: throughputs.len(),
            least: throughputs.iter().copied().fold(f64::INFINITY, f64::min),
            most: throughputs.iter().copied().fold(0.0, f64::max),
            deviation: (squares.sum::<f64>() / freedom.max(1) as f64).sqrt(),
        })
    }
}

impl Experiment {
    /// Whether it was of the agreement's full duration.
    fn confirms(&self) -> bool {
        matches!(self.purpose, Purpose::Confirm | Purpose::BackOff)
    }
}

impl Rating {
    /// Of all trials of the load that is rated, those of the search too.
    pub fn spread(&self) -> Option<Spread> {
        let load = self.best()?.load;
        let same = self.experiments.iter().filter(|one| one.load == load);
        let throughputs: Vec<f64> = same
            .filter(|one| one.verdict.met)
            .map(|one| one.throughput)
            .collect();
        Spread::of(&throughputs)
    }

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
    let began = laboratory.now();
    let mut bench = Bench {
        plan,
        laboratory,
        progress,
        experiments: Vec::new(),
        notes: Vec::new(),
        longer: Duration::ZERO,
        began,
        asked: Duration::ZERO,
        told_late: false,
    };
    let (confirmed, end) = match Search::over(&mut bench).run_to_a_rating() {
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

/// Rates with trials of each of these durations, ascending and at least one, until two ratings in a row differ by no more than the tolerance. Returns the last
/// rating and its plan.
pub fn rate_until_alike(
    plan: &Plan,
    trials: &[Duration],
    laboratory: &mut dyn Laboratory,
    progress: &mut dyn FnMut(&Experiment) -> bool,
) -> (Plan, Rating) {
    let mut before: Option<(Duration, f64)> = None;
    let mut rated = None;
    for &trial in trials {
        let plan = Plan {
            trial,
            ..plan.clone()
        };
        let mut rating = rate(&plan, laboratory, progress);
        let throughput = rating.throughput();
        let mut settled = rating.end != End::Rated;
        if let Some((shorter, other)) = before {
            rating.notes.push(format!(
                "trials of {} s led to {throughput:.0} actions a second, those of {} s to {other:.0}",
                trial.as_secs_f64(),
                shorter.as_secs_f64(),
            ));
            settled |= (throughput - other).abs() <= plan.tolerance * other;
        }
        before = Some((trial, throughput));
        rated = Some((plan, rating));
        if settled {
            break;
        }
    }
    rated.expect("there is at least one duration")
}

/// Runs experiments and writes them down.
struct Bench<'a> {
    plan: &'a Plan,
    laboratory: &'a mut dyn Laboratory,
    progress: &'a mut dyn FnMut(&Experiment) -> bool,
    experiments: Vec<Experiment>,
    notes: Vec<String>,
    /// Trials of the search last so long, where shorter ones had no calls.
    longer: Duration,
    /// When the rating began, by the laboratory's clock.
    began: Duration,
    /// How long all trials so far should have taken.
    asked: Duration,
    told_late: bool,
}

/// A trial without calls is run again twice as long, unless that is longer than this and than the agreement's.
const LONGEST: Duration = Duration::from_secs(60);

impl Bench<'_> {
    /// Whether another trial of the search would leave too little time for the confirming one.
    fn is_late(&mut self) -> bool {
        let Some(within) = self.plan.within else {
            return false;
        };
        let spent = self.laboratory.now().saturating_sub(self.began);
        // Connecting and judging take their time, too.
        let slower = match self.asked.is_zero() {
            true => 1.0,
            false => (spent.as_secs_f64() / self.asked.as_secs_f64()).max(1.0),
        };
        let plan = self.plan;
        let due = 2 * plan.warmup + plan.trial.max(self.longer) + plan.sla.duration;
        let late = spent + due.mul_f64(slower) > within;
        if late && !self.told_late {
            self.told_late = true;
            self.note(format!(
                "the search ended to be done within {} s: another load may be better",
                within.as_secs_f64()
            ));
        }
        late
    }

    /// The index of the experiment.
    fn run(&mut self, load: u64, purpose: Purpose) -> Result<usize, End> {
        let confirms = matches!(purpose, Purpose::Confirm | Purpose::BackOff);
        let asked = match confirms {
            true => self.plan.sla.duration,
            false => self.plan.trial.max(self.longer),
        };
        let longest = LONGEST.max(self.plan.sla.duration);
        let mut duration = asked;
        let measured = loop {
            let measured = self.measure(load, duration, confirms)?;
            let calls: u64 = measured.actions.iter().map(|one| one.calls()).sum();
            if calls > 0 && duration > asked {
                self.note(format!(
                    "no call began in {} s at {load}, so that its trial took {} s",
                    asked.as_secs_f64(),
                    duration.as_secs_f64()
                ));
                self.longer = self.longer.max(duration);
            }
            if calls > 0 || self.laboratory.is_over() || duration * 2 > longest {
                break measured;
            }
            duration *= 2;
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

    /// One trial, and once more if it had no result.
    fn measure(&mut self, load: u64, duration: Duration, confirms: bool) -> Result<Measured, End> {
        let plan = self.plan;
        let trial = Trial::timed(plan.load(load), plan.warmup, duration);
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
        self.asked += plan.warmup + measured.duration;
        Ok(measured)
    }

    fn note(&mut self, note: String) {
        self.notes.push(note);
    }
}
