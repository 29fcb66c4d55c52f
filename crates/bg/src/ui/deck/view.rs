//! What the deck says, as JSON: the shapes of `GET /v1/state`, and how they are made of what was measured.
//!
//! Names of figures end with their unit; a figure that nobody has is null, never zero.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::model::action::Action;
use crate::verdict::agreement::{Clause, Judgement, Sla};
use crate::verdict::measure::{ActionMeasured, Judged, Level, Load, Measured, Trial};

/// What runs; it does not change while the deck is open.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    /// `run`, `rate` or `deck`.
    pub command: &'static str,
    pub store: String,
    pub mix: String,
    /// How members are drawn.
    pub draw: String,
    pub members: u32,
    pub friends: u32,
    pub resources: u32,
    pub image_size_bytes: Option<usize>,
    pub workers: usize,
    /// More emulated threads than these are refused.
    pub threads_max: u32,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// No figures yet: it connects, or makes itself ready for the next trial.
    Waiting,
    /// The data store is being filled.
    Loading,
    Running,
    /// The trial is over: last answers come in, and reads are judged.
    Ending,
    /// Until someone presses start.
    Stopped,
    /// There is no more to come.
    Ended,
}

/// The trial that runs, or ran last.
#[derive(Clone, Debug, Serialize)]
pub struct TrialView {
    /// The first is 1.
    pub number: u32,
    pub load: LoadView,
    /// Emulated threads at present; of an open loop, at most.
    pub threads: u32,
    pub warmup_seconds: f64,
    /// How long is measured, after the warm-up; null if only the count of actions ends the trial.
    pub seconds: Option<f64>,
    /// How many actions are measured, if the trial is bounded by a count.
    pub actions: Option<u64>,
    /// Since its start, warm-up and all.
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
    /// How long the trial lasts, warm-up and all, unless only a count of actions ends it.
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

/// Of one action, or of all, over some time.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    pub actions_per_second: f64,
    /// Answered.
    pub done: u64,
    pub refused: u64,
    pub unknown: u64,
    pub skipped: u64,
    pub wrong: u64,
    #[serde(flatten)]
    pub latency: Latency,
}

/// Of calls, failed ones too; null where there were none.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    pub latency_us_p50: Option<f64>,
    pub latency_us_p95: Option<f64>,
    pub latency_us_p99: Option<f64>,
    pub latency_us_max: Option<f64>,
}

impl Latency {
    pub fn of(ns: &Histogram<u64>) -> Latency {
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
    pub fn of(measured: &ActionMeasured, seconds: f64) -> Figures {
        Figures {
            actions_per_second: per_second(measured.done(), seconds),
            done: measured.done(),
            refused: measured.refused,
            unknown: measured.unknown,
            skipped: measured.skipped,
            wrong: measured.wrong,
            latency: Latency::of(&measured.latency),
        }
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    let rate = count as f64 / seconds.max(1e-3);
    (rate * 10.0).round() / 10.0
}

/// Of all actions together.
pub fn together(measured: &Measured) -> ActionMeasured {
    let mut all = ActionMeasured::new();
    measured.actions.iter().for_each(|one| all.add(one));
    all
}

/// The second that ended last beside the trial so far.
#[derive(Clone, Debug, Serialize)]
pub struct Both {
    pub second: Figures,
    pub trial: Figures,
}

/// An action that was drawn, with what the agreement says of its time.
#[derive(Clone, Debug, Serialize)]
pub struct ActionView {
    pub action: &'static str,
    #[serde(flatten)]
    pub figures: Both,
    /// By the clause of the action itself, or of all actions; null where there is none.
    pub agreed: Option<Agreed>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Agreed {
    pub limit_us: f64,
    pub wanted_percent: f64,
    /// Of the calls in the trial so far.
    pub within_percent: Option<f64>,
    pub met: bool,
}

/// Rows for all actions that were drawn at all.
pub fn actions(
    second: &Measured,
    seconds: f64,
    total: &Measured,
    total_seconds: f64,
    sla: Option<&Sla>,
) -> Vec<ActionView> {
    let drawn = |one: &ActionMeasured| one.calls() + one.skipped > 0;
    let rows = Action::ALL
        .into_iter()
        .filter(|action| drawn(second.of(*action)) || drawn(total.of(*action)));
    rows.map(|action| ActionView {
        action: action.name(),
        figures: Both {
            second: Figures::of(second.of(action), seconds),
            trial: Figures::of(total.of(action), total_seconds),
        },
        agreed: sla.and_then(|sla| agreed(sla, action, total.of(action))),
    })
    .collect()
}

fn agreed(sla: &Sla, action: Action, measured: &ActionMeasured) -> Option<Agreed> {
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
    let (wanted, limit) = within(Some(action)).or_else(|| within(None))?;
    let calls = measured.calls();
    let good = measured.within(limit.as_nanos() as u64);
    let percent = (calls > 0).then(|| 100.0 * good as f64 / calls as f64);
    Some(Agreed {
        limit_us: limit.as_secs_f64() * 1e6,
        wanted_percent: wanted,
        within_percent: percent,
        met: percent.is_none_or(|percent| percent >= wanted),
    })
}

/// The agreement, judged by the trial so far.
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
    /// The limit, and what there is; the first is a least for times, a most for errors and unpredictable reads.
    pub limit_percent: f64,
    pub percent: Option<f64>,
    pub counted: u64,
    pub of: u64,
    /// Whether chance could not have decided it.
    pub sure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClauseState {
    Met,
    Missed,
    /// Nobody can tell yet: no calls, or reads that are judged when the trial is over.
    Open,
}

impl Agreement {
    pub fn of(sla: &Sla, measured: Option<&Measured>) -> Agreement {
        let clauses = match measured {
            Some(measured) => {
                let judged = sla.judge_trial(measured).clauses;
                judged
                    .iter()
                    .map(|judgement| ClauseView::of(judgement, measured))
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

    fn of(judgement: &Judgement, measured: &Measured) -> ClauseView {
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

/// A second of the past.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub trial: u32,
    /// Since the deck was opened, at the second's end.
    pub at_seconds: f64,
    /// Of a warm-up: seen, not measured.
    pub warmup: bool,
    pub threads: u32,
    pub actions_per_second: f64,
    #[serde(flatten)]
    pub latency: Latency,
    pub failed: u64,
    /// Null where reads are judged when the trial is over.
    pub unpredictable: Option<u64>,
}

impl Point {
    pub fn of(trial: &TrialView, at: Duration, second: &Measured, seconds: f64) -> Point {
        let all = together(second);
        Point {
            trial: trial.number,
            at_seconds: (at.as_secs_f64() * 100.0).round() / 100.0,
            warmup: trial.elapsed_seconds <= trial.warmup_seconds,
            threads: trial.threads,
            actions_per_second: per_second(all.done(), seconds),
            latency: Latency::of(&all.latency),
            failed: all.refused + all.unknown,
            unpredictable: second.reads.as_ref().map(|reads| reads.unpredictable),
        }
    }
}

/// What validation said, and of which trial.
#[derive(Clone, Debug, Serialize)]
pub struct Reads {
    pub trial: u32,
    pub reads: u64,
    pub unpredictable: u64,
    pub undecided: u64,
    /// Those not as each level, or one below it, wants them: as the agreement counts. Levels that nobody judged are left out.
    pub by_level: Vec<(&'static str, u64)>,
    pub by_class: Vec<(String, u64)>,
    /// The first, in words.
    pub witnesses: Vec<String>,
}

impl Reads {
    pub fn of(trial: u32, judged: &Judged) -> Reads {
        let levels = Level::ALL.into_iter();
        Reads {
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

/// A trial that is over: a point that the search visited.
#[derive(Clone, Debug, Serialize)]
pub struct Visit {
    pub number: u32,
    /// Why the search ran it; null outside of searches.
    pub purpose: Option<String>,
    /// What it began with.
    pub load: LoadView,
    /// What it ended with, where someone changed them meanwhile.
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
    /// The clauses not met, or why there is no result.
    pub why: String,
}

impl Visit {
    pub fn of(trial: &TrialView, ended: &Result<Measured, String>, sla: Option<&Sla>) -> Visit {
        let nothing = Measured::new(Duration::ZERO);
        let measured = ended.as_ref().unwrap_or(&nothing);
        let all = together(measured);
        let verdict = match ended {
            Ok(measured) => sla.map(|sla| sla.judge_trial(measured)),
            Err(_) => None,
        };
        let seconds = measured.duration.as_secs_f64();
        Visit {
            number: trial.number,
            purpose: None,
            load: trial.load,
            threads: trial.threads,
            seconds,
            actions_per_second: per_second(all.done(), seconds),
            latency: Latency::of(&all.latency),
            failed: all.refused + all.unknown,
            unpredictable: measured.reads.as_ref().map(|reads| reads.unpredictable),
            reads: measured.reads.as_ref().map(|reads| reads.reads),
            met: verdict.as_ref().map(|verdict| verdict.met),
            why: match (ended, verdict) {
                (Err(why), _) => why.clone(),
                (Ok(_), verdict) => verdict.map_or_else(String::new, |verdict| verdict.why()),
            },
        }
    }
}

/// What a search came to.
#[derive(Clone, Debug, Serialize)]
pub struct Rated {
    /// Zero where no load meets the agreement.
    pub load: u64,
    pub actions_per_second: f64,
    /// The trial that confirmed it; null for a rating of zero.
    pub trial: Option<u32>,
    pub notes: Vec<String>,
}
