//! Two reports side by side: what changed, and whether noise alone could have made it so.
//!
//! A report is that of `bg rate` or that of `bg run --json`. Of ratings the noise is known from the loads that were run several times, in either;
//! of runs from their seconds, each a small trial. A change counts when it is more than that noise and more than the tolerance.
//!
//! | row | of | better is |
//! |---|---|---|
//! | throughput, or the load of Socialites | ratings | more |
//! | throughput | runs | more |
//! | p50, p95, p99 | runs | less |
//! | unpredictable | both: percent of the reads, with those of wrong bytes | less; more is worse however little it is |

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::rate::Goal;
use crate::rate::noise::Noise;
use crate::rate::report::{Ended, Report};
use crate::verdict::measure::{ActionMeasured, Measured, Moment};

/// What a report says, as far as two are compared.
#[derive(Clone, Debug)]
pub struct Subject {
    rows: Vec<Figure>,
    /// Percent of the reads.
    unpredictable: f64,
    /// What was asked: names and values that should be the same.
    question: Vec<(String, String)>,
    /// Of a rating: the throughputs of each load that met the agreement.
    loads: BTreeMap<u64, Vec<f64>>,
}

#[derive(Clone, Debug)]
struct Figure {
    name: &'static str,
    value: f64,
    more_is_better: bool,
    /// Standard error, relative; None where trials of the same load say it.
    error: Option<f64>,
}

/// One figure of both.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub a: f64,
    pub b: f64,
    /// Percent by which b is more than a; null where a is zero.
    pub change: Option<f64>,
    /// Percent that noise could make.
    pub noise: f64,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Better,
    Alike,
    Worse,
}

/// All of it. The verdict is `Worse` if any row's is; else `Better` if any row's is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    pub rows: Vec<Row>,
    pub verdict: Verdict,
    /// What both were not asked alike, in words.
    pub differences: Vec<String>,
}

impl Subject {
    /// # Errors
    ///
    /// Why the text is no report that can be compared.
    pub fn read(text: &str) -> Result<Subject, String> {
        let value: Value =
            serde_json::from_str(text).map_err(|why| format!("it is no JSON: {why}"))?;
        match value["format"].as_str() {
            Some(_) => of_rating(&Report::read(text)?),
            None => {
                let measured = serde_json::from_value(value);
                let measured: Measured = measured.map_err(|why| {
                    format!("it is neither rating.json nor what bg run --json prints: {why}")
                })?;
                Ok(of_run(&measured))
            }
        }
    }
}

fn of_rating(report: &Report) -> Result<Subject, String> {
    if report.end != Ended::Rated {
        return Err(format!("it has no rating: the search was {}", report.end));
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
    let asked = [
        ("sla", plan.sla.to_string()),
        ("load", report.unit().to_owned()),
    ];
    let settings = report.facts.settings.iter();
    let settings = settings.filter(|(name, _)| name != "address").cloned();
    let asked = asked.map(|(name, value)| (name.to_owned(), value));
    Ok(Subject {
        rows: vec![Figure {
            name,
            value,
            more_is_better: true,
            error: None,
        }],
        unpredictable: share(bad, reads),
        question: asked.into_iter().chain(settings).collect(),
        loads,
    })
}

fn of_run(measured: &Measured) -> Subject {
    let mut all = ActionMeasured::new();
    measured.actions.iter().for_each(|one| all.add(one));
    // The last second may be a part of one.
    let whole = measured.duration.as_secs() as usize;
    let seconds = &measured.series[..whole.min(measured.series.len())];
    let error = |of: &dyn Fn(&Moment) -> f64| {
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
        question: Vec::new(),
        loads: BTreeMap::new(),
    }
}

/// Relative to the mean; of fewer than three seconds a twentieth is guessed.
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
    match bad > 0.0 {
        true => 100.0 * bad / reads.max(bad),
        false => 0.0,
    }
}

/// What b is beside a. `tolerance`: a share of a figure that does not matter, however surely it changed.
///
/// # Errors
///
/// A rating and a run have nothing to compare.
pub fn compare(a: &Subject, b: &Subject, tolerance: f64) -> Result<Comparison, String> {
    let names = |of: &Subject| of.rows.iter().map(|row| row.name).collect::<Vec<_>>();
    if names(a) != names(b) {
        return Err("one is a rating and the other a run, or they are of other kinds of ratings: take two alike".to_owned());
    }
    let repeated = a.loads.values().chain(b.loads.values());
    let noise = Noise::of(repeated.map(Vec::as_slice)).margin(1, 1);
    let mut rows: Vec<Row> = a
        .rows
        .iter()
        .zip(&b.rows)
        .map(|(a, b)| {
            let noise = match (a.error, b.error) {
                // About one in twenty changes by more where nothing changed.
                (Some(one), Some(other)) => 2.0 * one.hypot(other),
                _ => noise,
            };
            let change = b.value / a.value - 1.0;
            let verdict = if !change.is_finite() {
                Verdict::of(b.value > a.value, b.value != a.value, a.more_is_better)
            } else {
                let counts = change.abs() > noise.max(tolerance);
                Verdict::of(change > 0.0, counts, a.more_is_better)
            };
            Row {
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
    rows.push(Row {
        name: "unpredictable_percent",
        a: one,
        b: other,
        change: (one > 0.0).then(|| 100.0 * (other / one - 1.0)),
        noise: 0.0,
        verdict: Verdict::of(other > one, other != one, false),
    });
    let verdict = [Verdict::Worse, Verdict::Better]
        .into_iter()
        .find(|verdict| rows.iter().any(|row| row.verdict == *verdict));
    Ok(Comparison {
        rows,
        verdict: verdict.unwrap_or(Verdict::Alike),
        differences: differences(a, b),
    })
}

impl Verdict {
    fn of(is_more: bool, counts: bool, more_is_better: bool) -> Verdict {
        match (counts, is_more == more_is_better) {
            (false, _) => Verdict::Alike,
            (true, true) => Verdict::Better,
            (true, false) => Verdict::Worse,
        }
    }
}

fn differences(a: &Subject, b: &Subject) -> Vec<String> {
    let value = |of: &Subject, name: &str| {
        let found = of.question.iter().find(|(known, _)| known == name);
        found.map_or("nothing", |(_, value)| value).to_owned()
    };
    let mut names: Vec<&String> = a
        .question
        .iter()
        .chain(&b.question)
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
