//! The stored form of a rating: the parameters, a summary of each experiment, and the complete confirming trial.
//!
//! ```text
//!   Rating + Plan + Facts ──► Report ◄──► rating.json
//!                               └───────► rating.html   (`ui/page`)
//! ```
//!
//! The structs of this module define the JSON format (`docs/formats/rating.md`). The page shows nothing else, so it can
//! be generated from the JSON at any time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::rate::{self, LoadUnit, Plan, Purpose, Rating, RatingOutcome, Spread};
use crate::verdict::agreement::Verdict;
use crate::verdict::measure::{ActionMeasurements, Effort, Measurements};

mod lines;
mod machine;

pub use machine::Machine;

/// The format name in the JSON.
pub const FORMAT: &str = "bg-rating-1";

/// Information for the reader besides the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The data store, as in `--store`.
    pub store: String,
    /// The command that repeats the rating.
    pub command: String,
    /// Names and values of the population, the mix and other parameters, in display order.
    pub settings: Vec<(String, String)>,
    pub machine: Machine,
}

/// A rating in its JSON form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    pub format: String,
    pub facts: Facts,
    pub plan: Plan,
    /// Duration of each experiment of the search.
    pub trial_seconds: f64,
    /// Duration of the confirming experiment.
    pub confirm_seconds: f64,
    pub warmup_seconds: f64,
    pub end: ReportOutcome,
    /// The reason for a failure.
    pub why: Option<String>,
    /// Zero if no load meets the agreement or the search did not complete.
    pub load: u64,
    /// Actions per second.
    pub throughput: f64,
    /// The spread of all trials of that load. None without a rating.
    pub spread: Option<Spread>,
    pub notes: Vec<String>,
    /// Warnings that the load generator was short of processor time, or that other processes used it.
    pub warnings: Vec<String>,
    /// In the order of execution.
    pub experiments: Vec<ExperimentRow>,
    /// Number in `experiments`, from 1, of the experiment that confirmed the rating, or of the last one if none did.
    pub shown: usize,
    /// The complete measurements of that experiment.
    pub measured: Option<Measurements>,
}

/// The outcome of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportOutcome {
    Rated,
    Interrupted,
    Failed,
}

impl fmt::Display for ReportOutcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            ReportOutcome::Rated => "rated",
            ReportOutcome::Interrupted => "interrupted",
            ReportOutcome::Failed => "failed",
        })
    }
}

/// The summary of an experiment. Latencies are in microseconds, of all calls.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExperimentRow {
    pub number: usize,
    pub load: u64,
    pub purpose: Purpose,
    pub seconds: f64,
    pub throughput: f64,
    pub verdict: Verdict,
    pub done: u64,
    pub failed: u64,
    pub skipped: u64,
    /// Proportion of writes in the delivered actions, in percent.
    #[serde(default)]
    pub writes_percent: f64,
    /// Distance between the delivered mix and the drawn mix, in percent.
    #[serde(default)]
    pub drift_percent: f64,
    pub wrong: u64,
    pub p50_us: f64,
    pub p95_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
    pub reads: u64,
    pub unpredictable: u64,
    /// This and `busiest_worker` are as in [`Effort`](crate::verdict::measure::Effort). None if not measured.
    pub processors_used: Option<f64>,
    pub busiest_worker: Option<f64>,
    /// Number of processors used by other processes; `processors_stolen`: taken by the host of this machine. None if
    /// unknown.
    pub processors_others: Option<f64>,
    pub processors_stolen: Option<f64>,
}

impl ExperimentRow {
    pub fn new(number: usize, experiment: &rate::Experiment) -> ExperimentRow {
        let measured = &experiment.measured;
        let mut all = ActionMeasurements::new();
        measured.actions.iter().for_each(|one| all.add(one));
        let quantile = |share| all.latency.value_at_quantile(share) as f64 / 1e3;
        let reads = measured.reads.as_ref();
        let seconds = measured.duration.as_secs_f64().max(1e-9);
        let processors = |time: fn(&Effort) -> Option<Duration>| {
            Some(time(measured.effort.as_ref()?)?.as_secs_f64() / seconds)
        };
        ExperimentRow {
            number,
            load: experiment.load,
            purpose: experiment.purpose,
            seconds: measured.duration.as_secs_f64(),
            throughput: experiment.throughput,
            verdict: experiment.verdict.clone(),
            done: all.done(),
            failed: all.failed.len(),
            skipped: all.skipped,
            writes_percent: 100.0 * measured.delivered().writes(),
            drift_percent: 100.0 * measured.delivered().drift(),
            wrong: all.wrong,
            p50_us: quantile(0.5),
            p95_us: quantile(0.95),
            p99_us: quantile(0.99),
            max_us: all.latency.max() as f64 / 1e3,
            reads: reads.map_or(0, |reads| reads.reads),
            unpredictable: reads.map_or(0, |reads| reads.unpredictable),
            processors_used: measured
                .effort
                .map(|effort| effort.processors_used(measured.duration)),
            busiest_worker: measured.effort.map(|effort| effort.busiest_worker),
            processors_others: processors(|effort| effort.others),
            processors_stolen: processors(|effort| effort.stolen),
        }
    }
}

fn warnings(shown: Option<&Measurements>, rating: &Rating) -> Vec<String> {
    let drifted = shown.and_then(|shown| shown.delivered().warning());
    let short = shown.and_then(Measurements::generator_warning);
    let mut warnings: Vec<String> = drifted.into_iter().chain(short).collect();
    // A disturbance during the search may have led it astray, even if the last trial was not disturbed.
    let disturbed = rating.experiments.iter().enumerate();
    let disturbed: Vec<(usize, String)> = disturbed
        .filter_map(|(index, one)| Some((index + 1, one.measured.disturbance_warning()?)))
        .collect();
    if let Some((number, why)) = disturbed.last() {
        warnings.push(format!(
            "{} of {} trials were disturbed; in trial {number}, {why}",
            disturbed.len(),
            rating.experiments.len()
        ));
    }
    warnings
}

impl Report {
    pub fn new(plan: &Plan, rating: &Rating, facts: Facts) -> Report {
        let last = rating.experiments.len().checked_sub(1);
        let shown = rating.confirmed.or(last);
        let measured = shown.map(|index| rating.experiments[index].measured.clone());
        let (end, why) = match &rating.end {
            RatingOutcome::Rated => (ReportOutcome::Rated, None),
            RatingOutcome::Interrupted => (ReportOutcome::Interrupted, None),
            RatingOutcome::Failed(why) => (ReportOutcome::Failed, Some(why.clone())),
        };
        let rows = rating.experiments.iter().enumerate();
        Report {
            format: FORMAT.to_owned(),
            facts,
            plan: plan.clone(),
            trial_seconds: plan.trial.as_secs_f64(),
            confirm_seconds: plan.sla.duration.as_secs_f64(),
            warmup_seconds: plan.warmup.as_secs_f64(),
            end,
            why,
            load: rating.load(),
            throughput: rating.throughput(),
            spread: rating.spread(),
            notes: rating.notes.clone(),
            warnings: warnings(measured.as_ref(), rating),
            experiments: rows
                .map(|(index, experiment)| ExperimentRow::new(index + 1, experiment))
                .collect(),
            shown: shown.map_or(0, |index| index + 1),
            measured,
        }
    }

    /// Returns the JSON for a file, with lines as in `lines`.
    pub fn to_json(&self) -> String {
        let value = serde_json::to_value(self).expect("numbers and names are JSON");
        lines::lines(&value)
    }

    /// Parses a report from its JSON.
    ///
    /// # Errors
    ///
    /// The text is not a report of a rating.
    pub fn read(text: &str) -> Result<Report, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|why| format!("not valid JSON: {why}"))?;
        match value["format"].as_str() {
            Some(FORMAT) => {}
            Some(other) => return Err(format!("the format is {other} instead of {FORMAT}")),
            None => return Err(format!("not a {FORMAT} report: JSON without a format name")),
        }
        let mut report: Report =
            serde_json::from_value(value).map_err(|why| format!("not a {FORMAT} report: {why}"))?;
        let seconds = |seconds| Duration::try_from_secs_f64(seconds).map_err(|why| why.to_string());
        report.plan.trial = seconds(report.trial_seconds)?;
        report.plan.warmup = seconds(report.warmup_seconds)?;
        Ok(report)
    }

    /// Returns the unit of a load: `threads` or `actions/s offered`.
    pub(crate) fn unit(&self) -> &'static str {
        match self.plan.load_unit {
            LoadUnit::Threads => "threads",
            LoadUnit::Rate => "actions/s offered",
        }
    }
}
