//! Formats a report as text and as JSON.

use std::fmt::Write as _;

use larder_validate::histogram::Histogram;
use larder_validate::report::{Level, Names, Report, Tally, seconds};
use serde_json::{Value, json};

/// The names of the keys in a report.
pub struct Labels<'a> {
    pub names: &'a dyn Names,
    /// Returns the name of a kind of items, given by the highest 8 bits of an item.
    pub kind: &'a dyn Fn(u8) -> String,
}

const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p100", 1.0)];

/// Returns the classes with their names.
pub fn classes(tally: &Tally) -> [(&'static str, u64); 6] {
    [
        ("stale", tally.stale),
        ("fractured", tally.fractured),
        ("future", tally.future),
        ("phantom", tally.phantom),
        ("never", tally.never),
        ("untold", tally.unclassified),
    ]
}

/// Formats a report as several lines, each terminated by a newline.
pub fn format_report(report: &Report, labels: &Labels<'_>) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_report(&mut out, report, labels);
    out
}

fn write_report(out: &mut String, report: &Report, labels: &Labels<'_>) -> std::fmt::Result {
    let total = &report.total;
    writeln!(
        out,
        "{} reads beside {} writes: {} unpredictable ({}), {} undecided",
        total.reads,
        report.writes,
        total.unpredictable(),
        share(total.unpredictable(), total.reads),
        total.undecided
    )?;
    for (name, count) in classes(total).iter().filter(|(_, count)| *count > 0) {
        writeln!(out, "  {name:<10} {count}")?;
    }
    let sessions = report.unpredictable_sessions.len();
    if sessions > 0 {
        writeln!(out, "  sessions with an unpredictable read: {sessions}")?;
    }
    if report.ages.count() > 0 {
        let ages: Vec<String> = quantiles(&report.ages)
            .map(|(name, age)| format!("{name} {}", seconds(age.into())))
            .collect();
        let behind: Vec<String> = quantiles(&report.versions_behind)
            .map(|(name, writes)| format!("{name} {writes}"))
            .collect();
        writeln!(out, "  age of the stale reads: {}", ages.join(", "))?;
        writeln!(out, "  writes they missed: {}", behind.join(", "))?;
    }
    writeln!(
        out,
        "\nlevel         validated     rejected    undecided rejected up to it"
    )?;
    for level in Level::ALL {
        let tally = report.level(level);
        writeln!(
            out,
            "{} {:<10} {:>10} {:>12} {:>12} {:>17}",
            level as u8,
            level.name(),
            tally.judged,
            tally.refused,
            tally.undecided,
            report.rejected_up_to(level)
        )?;
    }
    if report.end_state.reads > 0 {
        let end = &report.end_state;
        writeln!(
            out,
            "end state: {} reads, {} unpredictable",
            end.reads,
            end.unpredictable()
        )?;
    }
    let by_action = report.actions.iter();
    let by_action = by_action.map(|(key, tally)| (labels.names.action(*key), tally));
    let by_kind = report.kinds.iter();
    let by_kind = by_kind.map(|(key, tally)| ((labels.kind)(*key), tally));
    for (heading, rows) in [
        ("action", by_action.collect::<Vec<_>>()),
        ("kind", by_kind.collect()),
    ] {
        writeln!(
            out,
            "\n{heading:<24}      reads  unpredictable    undecided"
        )?;
        for (name, tally) in rows {
            writeln!(
                out,
                "{name:<24} {:>10} {:>14} {:>12}",
                tally.reads,
                tally.unpredictable(),
                tally.undecided
            )?;
        }
    }
    if report.freshness.reads.iter().any(|reads| *reads > 0) {
        writeln!(
            out,
            "\nsince the last acknowledged write    reads    acceptable"
        )?;
        for (below, reads, fresh) in report.freshness.curve() {
            let below = format!("less than {}", seconds(below.into()));
            writeln!(out, "{below:<30} {reads:>11} {:>11.4} %", fresh * 100.0)?;
        }
    }
    if !report.witnesses.is_empty() {
        writeln!(out, "\nfirst unpredictable reads:")?;
    }
    for witness in &report.witnesses {
        writeln!(out, "  {}", witness.describe(labels.names))?;
    }
    Ok(())
}

pub fn json(report: &Report, labels: &Labels<'_>) -> Value {
    let tally = |tally: &Tally| {
        let classes: serde_json::Map<String, Value> = classes(tally)
            .map(|(name, count)| (name.to_owned(), count.into()))
            .into_iter()
            .collect();
        json!({
            "reads": tally.reads,
            "acceptable": tally.acceptable,
            "undecided": tally.undecided,
            "unpredictable": tally.unpredictable(),
            "classes": classes,
        })
    };
    let levels = Level::ALL.map(|level| {
        let tally = report.level(level);
        json!({
            "level": level as u8,
            "name": level.name(),
            "judged": tally.judged,
            "refused": tally.refused,
            "undecided": tally.undecided,
            "refused_up_to": report.rejected_up_to(level),
        })
    });
    let rows = |rows: Vec<(String, &Tally)>| {
        let rows = rows.into_iter().map(|(name, row)| (name, tally(row)));
        rows.collect::<serde_json::Map<String, Value>>()
    };
    let actions = report.actions.iter();
    let kinds = report.kinds.iter();
    let histogram = |histogram: &Histogram| {
        let buckets: Vec<Value> = histogram
            .buckets()
            .map(|(first, last, count)| json!([first, last, count]))
            .collect();
        let mut all = json!({ "count": histogram.count(), "buckets": buckets });
        for (name, value) in quantiles(histogram) {
            all[name] = value.into();
        }
        all
    };
    let curve = report.freshness.curve();
    let curve: Vec<Value> = curve
        .map(|(below, reads, fresh)| {
            json!({ "below_ns": below, "reads": reads, "acceptable": fresh })
        })
        .collect();
    let witnesses = report.witnesses.iter();
    let witnesses: Vec<String> = witnesses.map(|it| it.describe(labels.names)).collect();
    json!({
        "writes": report.writes,
        "total": tally(&report.total),
        "unpredictable_sessions": report.unpredictable_sessions.len(),
        "levels": levels,
        "end_state": tally(&report.end_state),
        "actions": rows(actions.map(|(key, row)| (labels.names.action(*key), row)).collect()),
        "kinds": rows(kinds.map(|(key, row)| ((labels.kind)(*key), row)).collect()),
        "ages_ns": histogram(&report.ages),
        "versions_behind": histogram(&report.versions_behind),
        "freshness": curve,
        "witnesses": witnesses,
    })
}

fn quantiles(histogram: &Histogram) -> impl Iterator<Item = (&'static str, u64)> {
    let found = QUANTILES.into_iter();
    found.filter_map(|(name, share)| Some((name, histogram.quantile(share)?)))
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "0 %".to_owned(),
        _ => format!("{:.4} %", part as f64 / whole as f64 * 100.0),
    }
}
