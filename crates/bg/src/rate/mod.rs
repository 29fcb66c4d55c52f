//! The rating: the load that a data store sustains under an agreement.
//!
//! *SoAR* is the highest throughput among the loads that meet the agreement, *Socialites* the highest number of threads
//! (or actions per second) that meets it. [`rate`] finds them with few experiments. It accesses the data store only
//! through [`TrialRunner`].
//!
//! ```text
//!   double ──(misses or stops rising, twice)──► narrow ──(no further gain)──► choose ──► confirm ──(met)──► rating
//!     │ first load misses                                                                  │ missed   ▲
//!     ▼                                                                                    ▼          │ another load was better
//!   halve ──(misses at 1)──► rating 0                                                  back off ──────┘
//! ```
//!
//! The algorithm is the search of BG's technical report (its section on heuristic search, and Figure 13), made robust
//! against noise.
//!
//! - `search` doubles and narrows.
//! - `choose` repeats trials whose order may be due to noise.
//! - `confirm` runs the full duration and backs off.
//! - `noise` decides whether two throughputs differ.
//! - `report` is the stored form of a rating.
//! - `compare` compares two reports.
//!
//! Invariants:
//!
//! 1. The values of a rating come from one trial of the agreement's full duration that met it. Without such a trial,
//!    the rating is zero.
//! 2. No load is run twice without need: results are kept, and a load is run again only if noise could have decided its
//!    result.
//! 3. The search also explores loads below the last one that increased the throughput: the peak may lie on either side
//!    of it.
//! 4. A trial of the search that clearly misses ends early (`agreement/early`); confirming trials never do.
//! 5. No load that met the agreement exceeded the rating by more than noise, unless a trial of the full duration
//!    contradicted it or a note reports that none was run.
//! 6. A load ends the doubling only after two trials. If they disagree, the first is discarded, and a note reports
//!    this.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::verdict::agreement::{Sla, Verdict};
use crate::verdict::measure::{Load, Measurements, Trial, TrialRunner};
use search::Search;

mod choose;
pub mod compare;
mod confirm;
mod noise;
pub mod report;
mod search;

/// The goal of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// The highest throughput among loads that meet the agreement.
    Soar,
    /// The highest load that meets the agreement.
    Socialites,
}

/// The unit of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadUnit {
    /// Closed loop: emulated threads.
    Threads,
    /// Open loop: actions per second.
    Rate,
}

/// The parameters of a rating.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub sla: Sla,
    pub goal: Goal,
    #[serde(rename = "over")]
    pub load_unit: LoadUnit,
    /// The load of the first experiment; at least 1.
    pub first: u64,
    /// The highest load to try.
    pub most: u64,
    #[serde(skip)]
    pub warmup: Duration,
    /// Duration of each experiment of the search. The agreement defines the duration of the confirming one.
    #[serde(skip)]
    pub trial: Duration,
    /// The proportion of the throughput (0.01 is one percent) that is not worth another experiment. Socialites are
    /// exact regardless.
    pub tolerance: f64,
    /// Maximum number of trials of one load in the search, if noise could decide its result.
    pub trials_max: u32,
    /// True if trials of the search continue although they clearly miss the agreement.
    pub full_trials: bool,
    /// Time limit: the search ends early enough that the rating is confirmed within this time. None: the search ends
    /// when no gain is expected.
    #[serde(skip)]
    pub within: Option<Duration>,
}

impl Plan {
    pub fn new(sla: Sla, goal: Goal) -> Plan {
        Plan {
            sla,
            goal,
            load_unit: LoadUnit::Threads,
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
        match self.load_unit {
            LoadUnit::Threads => Load::Threads(u32::try_from(load).unwrap_or(u32::MAX)),
            LoadUnit::Rate => Load::Rate(load as f64),
        }
    }
}

/// The reason for an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    Double,
    /// The first load missed; tries a lower one.
    Halve,
    Narrow,
    /// Noise could have decided the result.
    Again,
    Confirm,
    /// The confirming trial missed; tries a lower load for the full duration.
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

/// A trial of the search and its result.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub load: u64,
    pub purpose: Purpose,
    /// Actions per second.
    pub throughput: f64,
    /// The verdict on this trial alone.
    pub verdict: Verdict,
    /// True if the trial ended early because it clearly missed.
    pub ended_early: bool,
    pub measured: Measurements,
}

/// The rating of a data store.
#[derive(Clone, Debug)]
pub struct Rating {
    /// Index into `experiments` of the trial that confirmed the rating. None for a rating of zero.
    pub confirmed: Option<usize>,
    /// In the order of execution.
    pub experiments: Vec<Experiment>,
    /// Remarks for the reader: discarded trials, back-off, the maximum load reached.
    pub notes: Vec<String>,
    pub end: RatingOutcome,
}

/// The outcome of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RatingOutcome {
    Rated,
    /// Ended early by the caller.
    Interrupted,
    /// An experiment failed twice; the reason.
    Failed(String),
}

/// The variation between several trials of one load, which shows how reliable a rating is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub trials: usize,
    /// Actions per second.
    pub least: f64,
    pub most: f64,
    /// Standard deviation relative to the mean. Zero for a single trial.
    pub deviation: f64,
}

impl Spread {
    /// Returns the spread of throughputs. None if there are none.
    pub fn new(throughputs: &[f64]) -> Option<Spread> {
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
    /// Returns whether the trial ran for the agreement's full duration.
    fn confirms(&self) -> bool {
        matches!(self.purpose, Purpose::Confirm | Purpose::BackOff)
    }
}

impl Rating {
    /// Returns the spread of all trials of the rated load that met the agreement, including those of the search.
    pub fn spread(&self) -> Option<Spread> {
        let load = self.best()?.load;
        let same = self.experiments.iter().filter(|one| one.load == load);
        let throughputs: Vec<f64> = same
            .filter(|one| one.verdict.met)
            .map(|one| one.throughput)
            .collect();
        Spread::new(&throughputs)
    }

    pub fn best(&self) -> Option<&Experiment> {
        self.confirmed.map(|index| &self.experiments[index])
    }

    /// Returns the rated load. Zero if no load meets the agreement or the search did not complete.
    pub fn load(&self) -> u64 {
        self.best().map_or(0, |best| best.load)
    }

    /// Returns the throughput of the confirming trial.
    pub fn throughput(&self) -> f64 {
        self.best().map_or(0.0, |best| best.throughput)
    }
}

/// Searches for the rating. `progress` receives each experiment when it ends, and returns whether to continue. A
/// runner that is over ends the search too.
pub fn rate(
    plan: &Plan,
    runner: &mut dyn TrialRunner,
    progress: &mut dyn FnMut(&Experiment) -> bool,
) -> Rating {
    let began = runner.now();
    let mut bench = ExperimentRunner {
        plan,
        runner,
        progress,
        experiments: Vec::new(),
        notes: Vec::new(),
        trial_min: Duration::ZERO,
        began,
        planned: Duration::ZERO,
        noted_time_limit: false,
    };
    let (confirmed, end) = match Search::new(&mut bench).find_rating() {
        Ok(confirmed) => (confirmed, RatingOutcome::Rated),
        Err(end) => (None, end),
    };
    Rating {
        confirmed,
        experiments: bench.experiments,
        notes: bench.notes,
        end,
    }
}

/// Rates with trials of each of these durations (at least one, ascending) until two consecutive ratings differ by no
/// more than the tolerance. Returns the last rating and its plan.
pub fn rate_until_stable(
    plan: &Plan,
    trials: &[Duration],
    runner: &mut dyn TrialRunner,
    progress: &mut dyn FnMut(&Experiment) -> bool,
) -> (Plan, Rating) {
    let mut before: Option<(Duration, f64)> = None;
    let mut rated = None;
    for &trial in trials {
        let plan = Plan {
            trial,
            ..plan.clone()
        };
        let mut rating = rate(&plan, runner, progress);
        let throughput = rating.throughput();
        let mut settled = rating.end != RatingOutcome::Rated;
        if let Some((shorter, other)) = before {
            rating.notes.push(format!(
                "trials of {} s rated {throughput:.0} actions/s, and trials of {} s rated {other:.0}",
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

/// Runs experiments and keeps their results.
struct ExperimentRunner<'a> {
    plan: &'a Plan,
    runner: &'a mut dyn TrialRunner,
    progress: &'a mut dyn FnMut(&Experiment) -> bool,
    experiments: Vec<Experiment>,
    notes: Vec<String>,
    /// Duration of the search's trials, if shorter ones had no calls.
    trial_min: Duration,
    /// Start of the rating on the runner's clock.
    began: Duration,
    /// The planned duration of all trials so far.
    planned: Duration,
    noted_time_limit: bool,
}

/// A trial without calls is repeated with twice the duration, up to this or the agreement's duration, whichever is
/// longer.
const TRIAL_MAX: Duration = Duration::from_secs(60);

impl ExperimentRunner<'_> {
    /// Returns whether another trial of the search would leave too little time for the confirming one.
    fn is_late(&mut self) -> bool {
        let Some(within) = self.plan.within else {
            return false;
        };
        let spent = self.runner.now().saturating_sub(self.began);
        // Connecting and validating also take time.
        let slower = if self.planned.is_zero() {
            1.0
        } else {
            (spent.as_secs_f64() / self.planned.as_secs_f64()).max(1.0)
        };
        let plan = self.plan;
        let due = 2 * plan.warmup + plan.trial.max(self.trial_min) + plan.sla.duration;
        let late = spent + due.mul_f64(slower) > within;
        if late && !self.noted_time_limit {
            self.noted_time_limit = true;
            self.note(format!(
                "the search ended early to finish within {} s: another load may be better",
                within.as_secs_f64()
            ));
        }
        late
    }

    /// Runs an experiment and returns its index.
    fn run(&mut self, load: u64, purpose: Purpose) -> Result<usize, RatingOutcome> {
        let confirms = matches!(purpose, Purpose::Confirm | Purpose::BackOff);
        let planned = if confirms {
            self.plan.sla.duration
        } else {
            self.plan.trial.max(self.trial_min)
        };
        let longest = TRIAL_MAX.max(self.plan.sla.duration);
        let mut duration = planned;
        let measured = loop {
            let measured = self.measure(load, duration, confirms)?;
            let calls: u64 = measured.actions.iter().map(|one| one.calls()).sum();
            if calls > 0 && duration > planned {
                self.note(format!(
                    "no call started within {} s at a load of {load}, so the trial was extended to {} s",
                    planned.as_secs_f64(),
                    duration.as_secs_f64()
                ));
                self.trial_min = self.trial_min.max(duration);
            }
            if calls > 0 || self.runner.is_over() || duration * 2 > longest {
                break measured;
            }
            duration *= 2;
        };
        self.experiments.push(Experiment {
            load,
            purpose,
            throughput: measured.throughput(),
            verdict: self.plan.sla.judge_trial(&measured),
            ended_early: measured.duration < duration && !self.runner.is_over(),
            measured,
        });
        let index = self.experiments.len() - 1;
        if (self.progress)(&self.experiments[index]) && !self.runner.is_over() {
            Ok(index)
        } else {
            Err(RatingOutcome::Interrupted)
        }
    }

    /// Runs a trial, and repeats it once if it failed.
    fn measure(
        &mut self,
        load: u64,
        duration: Duration,
        confirms: bool,
    ) -> Result<Measurements, RatingOutcome> {
        let plan = self.plan;
        let trial = Trial::timed(plan.load(load), plan.warmup, duration);
        let should_stop = |measured: &Measurements, elapsed: Duration| {
            !confirms && !plan.full_trials && plan.sla.is_certainly_missed(measured, elapsed)
        };
        let measured = match self.runner.run_until(&trial, &should_stop) {
            Ok(measured) => measured,
            Err(_) if self.runner.is_over() => return Err(RatingOutcome::Interrupted),
            Err(why) => {
                self.note(format!(
                    "the trial of a load of {load} had no result and was repeated: {why}"
                ));
                let repeated = self.runner.run_until(&trial, &should_stop);
                repeated.map_err(RatingOutcome::Failed)?
            }
        };
        self.planned += plan.warmup + measured.duration;
        Ok(measured)
    }

    fn note(&mut self, note: String) {
        self.notes.push(note);
    }
}
