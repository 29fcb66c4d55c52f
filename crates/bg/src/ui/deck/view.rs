//! The JSON of the deck: the structure of `GET /v1/state`, and how it is computed from the measurements.
//!
//! Names of quantities end with their unit. An unknown quantity is null, never zero.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::model::action::Action;
use crate::verdict::agreement::{Clause, Judgement, Sla};
use crate::verdict::measure::{
    ActionMeasurements, Level, Load, Measurements, ReadValidation, Trial,
};

/// The parameters of the run, which do not change while the deck is open.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// `run`, `rate` or `deck`.
    pub command: &'static str,
    pub store: String,
    pub mix: String,
    /// The distribution of the draws of members.
    pub draw: String,
    pub members: u32,
    pub friends: u32,
    pub resources: u32,
    pub image_size_bytes: Option<usize>,
    pub workers: usize,
    /// Maximum number of emulated threads; more are rejected.
    pub threads_max: u32,
}

/// The phase of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No measurements yet: connecting, or preparing the next trial.
    Waiting,
    /// The data store is being loaded.
    Loading,
    Running,
    /// The trial is over: the last answers arrive and reads are validated.
    Ending,
    /// Waits for a start request.
    Stopped,
    /// The run is over.
    Ended,
}

/// The current or last trial.
#[derive(Clone, Debug, Serialize)]
pub struct TrialView {
    /// The first trial has number 1.
    pub number: u32,
    pub load: LoadView,
    /// Current number of emulated threads; in an open loop, the maximum.
    pub threads: u32,
    pub warmup_seconds: f64,
    /// Length of the measured time after the warm-up. Null if only the number of actions ends the trial.
    pub seconds: Option<f64>,
    /// Number of actions to measure, if the trial is bounded by a count.
    pub actions: Option<u64>,
    /// Time since the start, including the warm-up.
    pub elapsed_seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadView {
    Threads(u32),
    Rate(f64),
}

impl From<Load> for LoadView {
    fn from(load: Load) -> LoadView {
        match load {
            Load::Threads(threads) => LoadView::Threads(threads),
            Load::Rate(rate) => LoadView::Rate(rate),
        }
    }
}

impl TrialView {
    /// Returns the length of the trial including the warm-up, unless only a number of actions ends it.
    pub fn length_seconds(&self) -> Option<f64> {
        self.seconds.map(|seconds| self.warmup_seconds + seconds)
    }

    pub fn new(number: u32, trial: &Trial, threads: u32) -> TrialView {
        TrialView {
            number,
            load: trial.load.into(),
            threads,
            warmup_seconds: trial.warmup.as_secs_f64(),
            seconds: (trial.duration < Trial::UNBOUNDED).then_some(trial.duration.as_secs_f64()),
            actions: trial.actions,
            elapsed_seconds: 0.0,
        }
    }
}

/// The statistics of one action, or of all, over some time.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub actions_per_second: f64,
    /// Number of answered calls.
    pub done: u64,
    pub refused: u64,
    pub unknown: u64,
    pub skipped: u64,
    pub wrong: u64,
    #[serde(flatten)]
    pub latency: Latency,
}

/// Latencies of calls, including failed ones. Null if there were none.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub latency_us_p50: Option<f64>,
    pub latency_us_p95: Option<f64>,
    pub latency_us_p99: Option<f64>,
    pub latency_us_max: Option<f64>,
}

impl Latency {
    pub fn new(ns: &Histogram<u64>) -> Latency {
        let at = |quantile| (!ns.is_empty()).then(|| micros(ns.value_at_quantile(quantile)));
        Latency {
            latency_us_p50: at(0.5),
            latency_us_p95: at(0.95),
            latency_us_p99: at(0.99),
            latency_us_max: at(1.0),
        }
    }
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl Figures {
    pub fn new(measured: &ActionMeasurements, seconds: f64) -> Figures {
        Figures {
            actions_per_second: per_second(measured.done(), seconds),
            done: measured.done(),
            refused: measured.refused,
            unknown: measured.unknown,
            skipped: measured.skipped,
            wrong: measured.wrong,
            latency: Latency::new(&measured.latency),
        }
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    let rate = count as f64 / seconds.max(1e-3);
    (rate * 10.0).round() / 10.0
}

/// Returns the sum over all actions.
pub fn sum_actions(measured: &Measurements) -> ActionMeasurements {
    let mut all = ActionMeasurements::new();
    measured.actions.iter().for_each(|one| all.add(one));
    all
}

/// The statistics of the last completed second and of the trial so far.
#[derive(Clone, Debug, Serialize)]
pub struct SecondAndTrial {
    pub second: Figures,
    pub trial: Figures,
}

/// An action that was drawn, with the agreement's condition on its latency.
#[derive(Clone, Debug, Serialize)]
pub struct ActionView {
    pub action: &'static str,
    #[serde(flatten)]
    pub figures: SecondAndTrial,
    /// From the clause of the action itself, or of all actions. Null if there is none.
    pub agreed: Option<LatencyLimit>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LatencyLimit {
    pub limit_us: f64,
    pub wanted_percent: f64,
    /// Percentage of the calls in the trial so far.
    pub within_percent: Option<f64>,
    pub met: bool,
}

/// Returns rows for all actions that were drawn at least once.
pub fn action_views(
    second: &Measurements,
    seconds: f64,
    total: &Measurements,
    total_seconds: f64,
    sla: Option<&Sla>,
) -> Vec<ActionView> {
    let drawn = |one: &ActionMeasurements| one.calls() + one.skipped > 0;
    let rows = Action::ALL
        .into_iter()
        .filter(|action| drawn(second.of(*action)) || drawn(total.of(*action)));
    rows.map(|action| ActionView {
        action: action.name(),
        figures: SecondAndTrial {
            second: Figures::new(second.of(action), seconds),
            trial: Figures::new(total.of(action), total_seconds),
        },
        agreed: sla.and_then(|sla| latency_limit(sla, action, total.of(action))),
    })
    .collect()
}

fn latency_limit(sla: &Sla, action: Action, measured: &ActionMeasurements) -> Option<LatencyLimit> {
    let within = |of: Option<Action>| {
        sla.clauses.iter().find_map(|clause| match *clause {
            Clause::Within {
                action,
                percent,
                limit,
            } if action == of => Some((percent, limit)),
            _ => None,
        })
    };
    let (required, limit) = within(Some(action)).or_else(|| within(None))?;
    let calls = measured.calls();
    let good = measured.within(limit.as_nanos() as u64);
    let percent = (calls > 0).then(|| 100.0 * good as f64 / calls as f64);
    Some(LatencyLimit {
        limit_us: limit.as_secs_f64() * 1e6,
        wanted_percent: required,
        within_percent: percent,
        met: percent.is_none_or(|percent| percent >= required),
    })
}

/// The agreement, evaluated on the trial so far.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    pub agreement: String,
    pub clauses: Vec<ClauseView>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ClauseView {
    pub clause: String,
    /// Null for a clause about all actions.
    pub action: Option<&'static str>,
    pub state: ClauseState,
    /// The limit; `percent` is the current value. The limit is a minimum for latencies, and a maximum for errors and
    /// unpredictable reads.
    pub limit_percent: f64,
    pub percent: Option<f64>,
    pub counted: u64,
    pub of: u64,
    /// True if the result is statistically significant.
    pub sure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClauseState {
    Met,
    Missed,
    /// Not known yet: no calls, or reads that are validated after the trial.
    Open,
}

impl Agreement {
    pub fn new(sla: &Sla, measured: Option<&Measurements>) -> Agreement {
        let clauses = match measured {
            Some(measured) => {
                let judged = sla.judge_trial(measured).clauses;
                judged
                    .iter()
                    .map(|judgement| ClauseView::new(judgement, measured))
                    .collect()
            }
            None => sla.clauses.iter().map(ClauseView::open).collect(),
        };
        Agreement {
            agreement: sla.to_string(),
            clauses,
        }
    }
}

impl ClauseView {
    fn open(clause: &Clause) -> ClauseView {
        let (action, limit_percent) = match *clause {
            Clause::Within {
                action, percent, ..
            }
            | Clause::Errors { action, percent } => (action, percent),
            Clause::Unpredictable { percent, .. } | Clause::Drift { percent } => (None, percent),
        };
        ClauseView {
            clause: clause.to_string(),
            action: action.map(Action::name),
            state: ClauseState::Open,
            limit_percent,
            percent: None,
            counted: 0,
            of: 0,
            sure: false,
        }
    }

    fn new(judgement: &Judgement, measured: &Measurements) -> ClauseView {
        let unjudged =
            matches!(judgement.clause, Clause::Unpredictable { .. }) && measured.reads.is_none();
        let state = match judgement.met {
            _ if unjudged || (judgement.percent.is_none() && judgement.of == 0) => {
                ClauseState::Open
            }
            true => ClauseState::Met,
            false => ClauseState::Missed,
        };
        ClauseView {
            state,
            percent: judgement.percent.filter(|_| !unjudged),
            counted: judgement.counted,
            of: judgement.of,
            sure: judgement.sure,
            ..ClauseView::open(&judgement.clause)
        }
    }
}

/// One second of the past.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub trial: u32,
    /// End of the second, since the deck was opened.
    pub at_seconds: f64,
    /// True if the second is part of a warm-up, which is shown but not measured.
    pub warmup: bool,
    pub threads: u32,
    pub actions_per_second: f64,
    #[serde(flatten)]
    pub latency: Latency,
    pub failed: u64,
    /// Null if reads are validated after the trial.
    pub unpredictable: Option<u64>,
}

impl Point {
    pub fn new(trial: &TrialView, at: Duration, second: &Measurements, seconds: f64) -> Point {
        let all = sum_actions(second);
        Point {
            trial: trial.number,
            at_seconds: (at.as_secs_f64() * 100.0).round() / 100.0,
            warmup: trial.elapsed_seconds <= trial.warmup_seconds,
            threads: trial.threads,
            actions_per_second: per_second(all.done(), seconds),
            latency: Latency::new(&all.latency),
            failed: all.refused + all.unknown,
            unpredictable: second.reads.as_ref().map(|reads| reads.unpredictable),
        }
    }
}

/// The validation results of a trial.
#[derive(Clone, Debug, Serialize)]
pub struct ReadsView {
    pub trial: u32,
    pub reads: u64,
    pub unpredictable: u64,
    pub undecided: u64,
    /// Reads that do not satisfy each level or one below it, as the agreement counts them. Levels that were not
    /// validated are omitted.
    pub by_level: Vec<(&'static str, u64)>,
    pub by_class: Vec<(String, u64)>,
    /// Descriptions of the first unpredictable reads.
    pub witnesses: Vec<String>,
}

impl ReadsView {
    pub fn new(trial: u32, judged: &ReadValidation) -> ReadsView {
        let levels = Level::ALL.into_iter();
        ReadsView {
            trial,
            reads: judged.reads,
            unpredictable: judged.unpredictable,
            undecided: judged.undecided,
            by_level: levels
                .filter_map(|level| Some((level.name(), judged.at(level)?)))
                .collect(),
            by_class: judged
                .by_class
                .iter()
                .filter(|(_, count)| *count > 0)
                .cloned()
                .collect(),
            witnesses: judged.witnesses.clone(),
        }
    }
}

/// A completed trial: a point that the search visited.
#[derive(Clone, Debug, Serialize)]
pub struct CompletedTrial {
    pub number: u32,
    /// The reason why the search ran the trial. Null outside of searches.
    pub purpose: Option<String>,
    /// The load at the start.
    pub load: LoadView,
    /// The number of threads at the end, which differs if a user changed it.
    pub threads: u32,
    pub seconds: f64,
    pub actions_per_second: f64,
    #[serde(flatten)]
    pub latency: Latency,
    pub failed: u64,
    pub unpredictable: Option<u64>,
    pub reads: Option<u64>,
    /// Null without an agreement, and for a trial without a result.
    pub met: Option<bool>,
    /// The clauses that are not met, or why there is no result.
    pub why: String,
}

impl CompletedTrial {
    pub fn new(
        trial: &TrialView,
        ended: &Result<Measurements, String>,
        sla: Option<&Sla>,
    ) -> CompletedTrial {
        let nothing = Measurements::new(Duration::ZERO);
        let measured = ended.as_ref().unwrap_or(&nothing);
        let all = sum_actions(measured);
        let verdict = match ended {
            Ok(measured) => sla.map(|sla| sla.judge_trial(measured)),
            Err(_) => None,
        };
        let seconds = measured.duration.as_secs_f64();
        CompletedTrial {
            number: trial.number,
            purpose: None,
            load: trial.load,
            threads: trial.threads,
            seconds,
            actions_per_second: per_second(all.done(), seconds),
            latency: Latency::new(&all.latency),
            failed: all.refused + all.unknown,
            unpredictable: measured.reads.as_ref().map(|reads| reads.unpredictable),
            reads: measured.reads.as_ref().map(|reads| reads.reads),
            met: verdict.as_ref().map(|verdict| verdict.met),
            why: match (ended, verdict) {
                (Err(why), _) => why.clone(),
                (Ok(_), verdict) => verdict.map_or_else(String::new, |verdict| verdict.reason()),
            },
        }
    }
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct RatingView {
    /// Zero if no load meets the agreement.
    pub load: u64,
    pub actions_per_second: f64,
    /// The trial that confirmed it. Null for a rating of zero.
    pub trial: Option<u32>,
    pub notes: Vec<String>,
}
