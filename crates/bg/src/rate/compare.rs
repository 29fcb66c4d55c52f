//! Compares two reports: finds the changes, and determines whether noise could explain them.
//!
//! A report is the output of `bg rate` or of `bg run --json`. For ratings, the noise is estimated from the loads that
//! were run several times, in either report. For runs, it is estimated from their seconds, each of which counts as a
//! small trial. A change is significant if it exceeds both this noise and the tolerance.
//!
//! | row | reports | better |
//! |---|---|---|
//! | throughput, or the load of Socialites | ratings | higher |
//! | throughput | runs | higher |
//! | p50, p95, p99 | runs | lower |
//! | unpredictable | both: percent of the reads, including those with wrong bytes | lower; any increase is worse |

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::rate::Goal;
use crate::rate::noise::Noise;
use crate::rate::report::{Report, ReportOutcome};
use crate::verdict::measure::{ActionMeasurements, Measurements, SecondMeasurements};

/// The part of a report that is compared.
#[derive(Clone, Debug)]
pub struct Subject {
    rows: Vec<Figure>,
    /// Percent of the reads.
    unpredictable: f64,
    /// The parameters, as names and values, which should be equal in both reports.
    parameters: Vec<(String, String)>,
    /// For a rating: the throughputs of each load that met the agreement.
    loads: BTreeMap<u64, Vec<f64>>,
}

#[derive(Clone, Debug)]
struct Figure {
    name: &'static str,
    value: f64,
    more_is_better: bool,
    /// Relative standard error. None if it follows from repeated trials of a load.
    error: Option<f64>,
}

/// One value in both reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    pub name: &'static str,
    pub a: f64,
    pub b: f64,
    /// Percent by which b exceeds a. Null if a is zero.
    pub change: Option<f64>,
    /// The change, in percent, that noise could explain.
    pub noise: f64,
    pub verdict: ComparisonVerdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ComparisonVerdict {
    Better,
    Alike,
    Worse,
}

/// The whole comparison. The verdict is `Worse` if any row is worse; otherwise `Better` if any row is better.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub rows: Vec<ComparisonRow>,
    pub verdict: ComparisonVerdict,
    /// The parameters that differ between the two, as text.
    pub differences: Vec<String>,
}

impl Subject {
    /// Parses a report.
    ///
    /// # Errors
    ///
    /// The text is not a report that can be compared.
    pub fn read(text: &str) -> Result<Subject, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|why| format!("not valid JSON: {why}"))?;
        match value["format"].as_str() {
            Some(_) => from_rating(&Report::read(text)?),
            None => {
                let measured = serde_json::from_value(value);
                let measured: Measurements = measured.map_err(|why| {
                    format!("neither a rating.json nor the output of bg run --json: {why}")
                })?;
                Ok(from_run(&measured))
            }
        }
    }
}

fn from_rating(report: &Report) -> Result<Subject, String> {
    if report.end != ReportOutcome::Rated {
        return Err(format!(
            "the report has no rating: the search was {}",
            report.end
        ));
    }
    let (mut loads, mut reads, mut bad) = (BTreeMap::<u64, Vec<f64>>::new(), 0.0, 0.0);
    for one in &report.experiments {
        reads += one.reads as f64;
        bad += (one.unpredictable + one.wrong) as f64;
        if one.verdict.met {
            loads.entry(one.load).or_default().push(one.throughput);
        }
    }
    let plan = &report.plan;
    let (name, value) = match plan.goal {
        Goal::Socialites => ("socialites", report.load as f64),
        Goal::Soar => ("throughput", report.throughput),
    };
    let plan_parameters = [
        ("sla", plan.sla.to_string()),
        ("load", report.unit().to_owned()),
    ];
    let settings = report.facts.settings.iter();
    let settings = settings.filter(|(name, _)| name != "address").cloned();
    let plan_parameters = plan_parameters.map(|(name, value)| (name.to_owned(), value));
    Ok(Subject {
        rows: vec![Figure {
            name,
            value,
            more_is_better: true,
            error: None,
        }],
        unpredictable: share(bad, reads),
        parameters: plan_parameters.into_iter().chain(settings).collect(),
        loads,
    })
}

fn from_run(measured: &Measurements) -> Subject {
    let mut all = ActionMeasurements::new();
    measured.actions.iter().for_each(|one| all.add(one));
    // The last second may be incomplete.
    let complete = measured.duration.as_secs() as usize;
    let seconds = &measured.series[..complete.min(measured.series.len())];
    let error = |of: &dyn Fn(&SecondMeasurements) -> f64| {
        let values: Vec<f64> = seconds.iter().map(of).collect();
        standard_error(&values)
    };
    let quantile = |name, quantile: f64| Figure {
        name,
        value: all.latency.value_at_quantile(quantile) as f64 / 1e3,
        more_is_better: false,
        error: Some(error(&|second| {
            second.latency.value_at_quantile(quantile) as f64
        })),
    };
    let (mut reads, mut bad) = (measured.done() as f64, all.wrong as f64);
    if let Some(judged) = &measured.reads {
        reads = judged.reads as f64;
        bad += judged.unpredictable as f64;
    }
    let throughput = Figure {
        name: "throughput",
        value: measured.throughput(),
        more_is_better: true,
        error: Some(error(&|second| {
            second.latency.len().saturating_sub(second.failed) as f64
        })),
    };
    Subject {
        rows: vec![
            throughput,
            quantile("p50_us", 0.5),
            quantile("p95_us", 0.95),
            quantile("p99_us", 0.99),
        ],
        unpredictable: share(bad, reads),
        parameters: Vec::new(),
        loads: BTreeMap::new(),
    }
}

/// Returns the standard error relative to the mean. With fewer than three seconds, 5 % is assumed.
fn standard_error(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    if values.len() < 3 || mean <= 0.0 {
        return 0.05;
    }
    let squares: f64 = values
        .iter()
        .map(|value| (value / mean - 1.0).powi(2))
        .sum();
    (squares / (count - 1.0) / count).sqrt()
}

fn share(bad: f64, reads: f64) -> f64 {
    if bad > 0.0 {
        100.0 * bad / reads.max(bad)
    } else {
        0.0
    }
}

/// Compares b with a. `tolerance`: the relative change that does not matter, even if it is significant.
///
/// # Errors
///
/// A rating and a run have no values in common.
pub fn compare(a: &Subject, b: &Subject, tolerance: f64) -> Result<Comparison, String> {
    let names = |of: &Subject| of.rows.iter().map(|row| row.name).collect::<Vec<_>>();
    if names(a) != names(b) {
        return Err(
            "the reports have different kinds: compare two runs, or two ratings with the same goal"
                .to_owned(),
        );
    }
    let repeated = a.loads.values().chain(b.loads.values());
    let noise = Noise::from_trials(repeated.map(Vec::as_slice)).margin(1, 1);
    let mut rows: Vec<ComparisonRow> = a
        .rows
        .iter()
        .zip(&b.rows)
        .map(|(a, b)| {
            let noise = match (a.error, b.error) {
                // Two standard errors: without a real change, about one comparison in twenty exceeds this.
                (Some(one), Some(other)) => 2.0 * one.hypot(other),
                _ => noise,
            };
            let change = b.value / a.value - 1.0;
            let verdict = if !change.is_finite() {
                ComparisonVerdict::of(b.value > a.value, b.value != a.value, a.more_is_better)
            } else {
                let counts = change.abs() > noise.max(tolerance);
                ComparisonVerdict::of(change > 0.0, counts, a.more_is_better)
            };
            ComparisonRow {
                name: a.name,
                a: a.value,
                b: b.value,
                change: change.is_finite().then_some(100.0 * change),
                noise: 100.0 * noise,
                verdict,
            }
        })
        .collect();
    let (one, other) = (a.unpredictable, b.unpredictable);
    rows.push(ComparisonRow {
        name: "unpredictable_percent",
        a: one,
        b: other,
        change: (one > 0.0).then(|| 100.0 * (other / one - 1.0)),
        noise: 0.0,
        verdict: ComparisonVerdict::of(other > one, other != one, false),
    });
    let verdict = [ComparisonVerdict::Worse, ComparisonVerdict::Better]
        .into_iter()
        .find(|verdict| rows.iter().any(|row| row.verdict == *verdict));
    Ok(Comparison {
        rows,
        verdict: verdict.unwrap_or(ComparisonVerdict::Alike),
        differences: differences(a, b),
    })
}

impl ComparisonVerdict {
    fn of(is_more: bool, counts: bool, more_is_better: bool) -> ComparisonVerdict {
        match (counts, is_more == more_is_better) {
            (false, _) => ComparisonVerdict::Alike,
            (true, true) => ComparisonVerdict::Better,
            (true, false) => ComparisonVerdict::Worse,
        }
    }
}

fn differences(a: &Subject, b: &Subject) -> Vec<String> {
    let value = |of: &Subject, name: &str| {
        let found = of.parameters.iter().find(|(known, _)| known == name);
        found.map_or("unset", |(_, value)| value).to_owned()
    };
    let mut names: Vec<&String> = a
        .parameters
        .iter()
        .chain(&b.parameters)
        .map(|it| &it.0)
        .collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| (name, value(a, name), value(b, name)))
        .filter(|(_, one, other)| one != other)
        .map(|(name, one, other)| format!("{name}: {one} and {other}"))
        .collect()
}
