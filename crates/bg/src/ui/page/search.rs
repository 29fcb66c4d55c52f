//! Writes the loads visited: two charts and a table.

use std::fmt::{self, Write as _};

use super::verdict_text;
use crate::rate::Purpose;
use crate::rate::report::{ExperimentRow, Report};
use larder_page::chart::{Axis, MarkStyle, Point, Scale, Series, plot};
use larder_page::figures::{capitalize, count, escape, fine_percent, micros, number, short};

pub fn write(out: &mut String, report: &Report) -> fmt::Result {
    if report.experiments.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>The search</h2>")?;
    for note in &report.notes {
        writeln!(out, "<p>{}.</p>", escape(&capitalize(note)))?;
    }
    let load = Axis {
        title: report.unit().to_owned(),
        scale: Scale::Doubling,
        label: short,
    };
    let throughput = Axis {
        title: "actions/s".to_owned(),
        scale: Scale::Linear,
        label: short,
    };
    let rows =
        |keep: &dyn Fn(&&ExperimentRow) -> bool| report.experiments.iter().filter(keep).collect();
    let points = |rows: Vec<&ExperimentRow>, y: fn(&ExperimentRow) -> f64| -> Vec<Point> {
        rows.into_iter()
            .map(|row| Point {
                x: row.load as f64,
                y: y(row),
                description: point_label(row, report.unit()),
            })
            .collect()
    };
    let series = |name: &str, class, style, points| Series {
        name: name.to_owned(),
        class,
        style,
        points,
    };
    let visited = |row: &ExperimentRow| row.throughput;
    let best = |row: &&ExperimentRow| report.load > 0 && row.number == report.shown;
    writeln!(out, "<h3>Throughput of each load visited</h3>")?;
    let dots = [
        series(
            "met the agreement",
            "met",
            MarkStyle::Dots,
            points(rows(&|row| row.verdict.met), visited),
        ),
        series(
            "missed it",
            "missed",
            MarkStyle::Crosses,
            points(rows(&|row| !row.verdict.met), visited),
        ),
        series(
            "the rating",
            "a",
            MarkStyle::Rings,
            points(rows(&best), visited),
        ),
    ];
    writeln!(out, "{}", plot(&load, &throughput, &dots))?;
    let latency = Axis {
        title: "latency".to_owned(),
        scale: Scale::Log,
        label: micros,
    };
    // A line needs one point per load: that of its last trial.
    let last: Vec<&ExperimentRow> = {
        let mut rows: Vec<&ExperimentRow> = report.experiments.iter().collect();
        rows.sort_by_key(|row| (row.load, row.number));
        rows.reverse();
        rows.dedup_by_key(|row| row.load);
        rows.reverse();
        rows
    };
    writeln!(out, "<h3>Latency of each load visited</h3>")?;
    let lines = [
        series(
            "p99",
            "c",
            MarkStyle::Line,
            points(last.clone(), |row| row.p99_us),
        ),
        series(
            "p95",
            "b",
            MarkStyle::Line,
            points(last.clone(), |row| row.p95_us),
        ),
        series("p50", "a", MarkStyle::Line, points(last, |row| row.p50_us)),
    ];
    writeln!(out, "{}", plot(&load, &latency, &lines))?;
    writeln!(
        out,
        "<h3>Experiments</h3><div class=wide><table><tr><th>#<th class=text>Why<th>{}<th>Seconds<th>Actions/s<th>p50<th>p95<th>p99\
         <th>Failed<th>Unpredictable<th class=text>Verdict</tr>",
        capitalize(report.unit())
    )?;
    for row in &report.experiments {
        let unpredictable = match row.reads {
            0 => "–".to_owned(),
            reads => fine_percent(100.0 * (row.unpredictable + row.wrong) as f64 / reads as f64),
        };
        writeln!(
            out,
            "<tr{}><td>{}<td class=text>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{unpredictable}<td class=\"text {}\">{}</tr>",
            if best(&row) { " class=best" } else { "" },
            row.number,
            row.purpose,
            count(row.load as f64),
            number(row.seconds),
            count(row.throughput),
            micros(row.p50_us),
            micros(row.p95_us),
            micros(row.p99_us),
            count(row.failed as f64),
            verdict_text(row.verdict.met),
            if row.verdict.met {
                "met".to_owned()
            } else {
                escape(&format!("missed: {}", row.verdict.reason()))
            },
        )?;
    }
    writeln!(out, "</table></div>")
}

fn point_label(row: &ExperimentRow, unit: &str) -> String {
    let verdict = if row.verdict.met {
        "met".to_owned()
    } else {
        format!("missed: {}", row.verdict.reason())
    };
    let repeated = match row.purpose {
        Purpose::Again => " (again)",
        _ => "",
    };
    format!(
        "#{}{repeated}: {} {unit}, {} actions/s, p50 {}, p95 {}, p99 {}; {verdict}",
        row.number,
        count(row.load as f64),
        count(row.throughput),
        micros(row.p50_us),
        micros(row.p95_us),
        micros(row.p99_us),
    )
}
