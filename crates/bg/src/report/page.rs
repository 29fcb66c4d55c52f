//! The page: what was found, how, and why to believe it.

use std::fmt::{self, Write as _};
use std::time::Duration;

use super::chart::{Axis, Look, Point, Scale, Series, bars, plot};
use super::{Report, Row};
use crate::action::Action;
use crate::measure::{ActionMeasured, Judged, Level, Measured};
use crate::rate::{Goal, Purpose};
use crate::sla::Judgement;

pub fn html(report: &Report) -> String {
    let mut page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8>\
         <meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>{}: {}</title><style>{}</style>\n",
        escape(&report.facts.store),
        goal(report.plan.goal),
        include_str!("page.css")
    );
    // Writing to a string cannot fail.
    let _ = head(&mut page, report)
        .and_then(|()| search(&mut page, report))
        .and_then(|()| match &report.measured {
            Some(measured) => trial(&mut page, report, measured),
            None => Ok(()),
        })
        .and_then(|()| foot(&mut page, report));
    page
}

/// The rating, in a sentence, and the clauses that it met or missed.
fn head(out: &mut String, report: &Report) -> fmt::Result {
    let (store, sla) = (escape(&report.facts.store), &report.plan.sla);
    let (goal, unit) = (goal(report.plan.goal), report.unit());
    match (report.end, report.plan.goal) {
        ("rated", Goal::Soar) => writeln!(
            out,
            "<h1>{store}: {goal} {} actions/s</h1>",
            count(report.throughput)
        )?,
        ("rated", Goal::Socialites) => {
            writeln!(
                out,
                "<h1>{store}: {} {goal}</h1>",
                count(report.load as f64)
            )?;
        }
        (end, _) => writeln!(out, "<h1>{store}: {goal} not known: {end}</h1>")?,
    }
    let sla = escape(&sla.to_string());
    if report.load > 0 {
        writeln!(
            out,
            "<p class=sub>{} actions/s at {} {unit}, confirmed over {} s under the agreement <code>{sla}</code>.</p>",
            count(report.throughput),
            count(report.load as f64),
            number(report.confirm_seconds),
        )?;
    } else if report.end == "rated" {
        writeln!(
            out,
            "<p class=sub>No load meets the agreement <code>{sla}</code>.</p>"
        )?;
    } else {
        let why = report.why.as_deref().unwrap_or("before it was done");
        writeln!(
            out,
            "<p class=sub>The search ended early: {}.</p>",
            escape(why)
        )?;
    }
    for warning in &report.warnings {
        writeln!(out, "<p class=warning>{}</p>", escape(warning))?;
    }
    let Some(shown) = report.shown() else {
        return Ok(());
    };
    let which = if report.load > 0 {
        "confirming"
    } else {
        "last"
    };
    writeln!(
        out,
        "<div class=wide><table><tr><th class=text>Clause<th>In the {which} trial<th>Of<th class=text>Verdict</tr>"
    )?;
    for judgement in &shown.verdict.clauses {
        let percent = judgement.percent.map_or("–".to_owned(), fine_percent);
        writeln!(
            out,
            "<tr><td class=text><code>{}</code><td>{percent}<td>{}<td class=\"text {}\">{}</tr>",
            escape(&judgement.clause.to_string()),
            count(judgement.of as f64),
            met(judgement.met),
            verdict(judgement),
        )?;
    }
    writeln!(out, "</table></div>")
}

/// Each load visited: two charts and a table.
fn search(out: &mut String, report: &Report) -> fmt::Result {
    if report.experiments.is_empty() {
        return Ok(());
    }
    writeln!(out, "<h2>The search</h2>")?;
    for note in &report.notes {
        writeln!(out, "<p>{}.</p>", escape(&capital(note)))?;
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
    let rows = |keep: &dyn Fn(&&Row) -> bool| report.experiments.iter().filter(keep).collect();
    let points = |rows: Vec<&Row>, y: fn(&Row) -> f64| -> Vec<Point> {
        rows.into_iter()
            .map(|row| Point {
                x: row.load as f64,
                y: y(row),
                says: saying(row, report.unit()),
            })
            .collect()
    };
    let series = |name: &str, class, look, points| Series {
        name: name.to_owned(),
        class,
        look,
        points,
    };
    let visited = |row: &Row| row.throughput;
    let best = |row: &&Row| report.load > 0 && row.number == report.shown;
    writeln!(out, "<h3>Throughput of each load visited</h3>")?;
    let dots = [
        series(
            "met the agreement",
            "met",
            Look::Dots,
            points(rows(&|row| row.verdict.met), visited),
        ),
        series(
            "missed it",
            "missed",
            Look::Crosses,
            points(rows(&|row| !row.verdict.met), visited),
        ),
        series("the rating", "a", Look::Rings, points(rows(&best), visited)),
    ];
    writeln!(out, "{}", plot(&load, &throughput, &dots))?;
    let latency = Axis {
        title: "latency".to_owned(),
        scale: Scale::Log,
        label: micros,
    };
    // A line needs one point a load: that of its last trial.
    let last: Vec<&Row> = {
        let mut rows: Vec<&Row> = report.experiments.iter().collect();
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
            Look::Line,
            points(last.clone(), |row| row.p99_us),
        ),
        series(
            "p95",
            "b",
            Look::Line,
            points(last.clone(), |row| row.p95_us),
        ),
        series("p50", "a", Look::Line, points(last, |row| row.p50_us)),
    ];
    writeln!(out, "{}", plot(&load, &latency, &lines))?;
    writeln!(
        out,
        "<h3>Experiments</h3><div class=wide><table><tr><th>#<th class=text>Why<th>{}<th>Seconds<th>Actions/s<th>p50<th>p95<th>p99\
         <th>Failed<th>Unpredictable<th class=text>Verdict</tr>",
        capital(report.unit())
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
            met(row.verdict.met),
            if row.verdict.met {
                "met".to_owned()
            } else {
                escape(&format!("missed: {}", row.verdict.why()))
            },
        )?;
    }
    writeln!(out, "</table></div>")
}

/// The trial that the rating stands on: over time, by action, and what was read.
fn trial(out: &mut String, report: &Report, measured: &Measured) -> fmt::Result {
    let what = if report.load > 0 {
        "The confirming trial"
    } else {
        "The last trial"
    };
    writeln!(out, "<h2>{what}</h2>")?;
    if measured.series.len() > 1 {
        over_time(out, measured)?;
    }
    writeln!(
        out,
        "<h3>By action</h3><div class=wide><table><tr><th class=text>Action<th>Answered<th>Actions/s<th>p50<th>p95<th>p99<th>p99.9<th>Max\
         <th>Refused<th>Unknown<th>Skipped<th>Wrong</tr>"
    )?;
    let mut all = ActionMeasured::new();
    for action in Action::ALL {
        let one = measured.of(action);
        all.add(one);
        if one.calls() + one.skipped > 0 {
            action_row(out, action.name(), one, measured.duration)?;
        }
    }
    action_row(out, "all", &all, measured.duration)?;
    writeln!(
        out,
        "</table></div><p class=sub>Latencies are of all calls, those that failed too. Skipped: drawn, but there was nothing to do it with. \
         Wrong: the answer's bytes were not those stored.</p>"
    )?;
    match &measured.reads {
        Some(judged) => reads(out, judged)?,
        None => writeln!(out, "<h3>Reads</h3><p class=none>No reads were judged.</p>")?,
    }
    if let Some(effort) = measured.effort {
        writeln!(
            out,
            "<h3>The generator</h3><p>It used {:.2} of {} processors; its busiest worker was on a processor {} of the time.</p>",
            effort.processors_used(measured.duration),
            effort.processors,
            coarse_percent(100.0 * effort.busiest_worker)
        )?;
    }
    Ok(())
}

fn over_time(out: &mut String, measured: &Measured) -> fmt::Result {
    let time = Axis {
        title: "seconds".to_owned(),
        scale: Scale::Linear,
        label: short,
    };
    // The last moment may be shorter than a second.
    let last = measured.duration.as_secs_f64() - (measured.series.len() - 1) as f64;
    let line = |name: &str, class, y: &dyn Fn(&crate::measure::Moment) -> f64| Series {
        name: name.to_owned(),
        class,
        look: Look::Line,
        points: measured
            .series
            .iter()
            .enumerate()
            .filter(|(index, _)| index + 1 < measured.series.len() || last > 0.9)
            .map(|(index, moment)| Point {
                x: (index + 1) as f64,
                y: y(moment),
                says: String::new(),
            })
            .collect(),
    };
    let throughput = Axis {
        title: "actions/s".to_owned(),
        scale: Scale::Linear,
        label: short,
    };
    let done = line("", "a", &|moment| {
        (moment.latency.len() - moment.failed.min(moment.latency.len())) as f64
    });
    writeln!(
        out,
        "<h3>Throughput over time</h3>{}",
        plot(&time, &throughput, &[done])
    )?;
    let latency = Axis {
        title: "latency".to_owned(),
        scale: Scale::Log,
        label: micros,
    };
    let quantile = |share| {
        move |moment: &crate::measure::Moment| moment.latency.value_at_quantile(share) as f64 / 1e3
    };
    let lines = [
        line("p99", "c", &quantile(0.99)),
        line("p95", "b", &quantile(0.95)),
        line("p50", "a", &quantile(0.5)),
    ];
    writeln!(
        out,
        "<h3>Latency over time</h3>{}",
        plot(&time, &latency, &lines)
    )?;
    if measured.series.iter().any(|moment| moment.reads > 0) {
        let share = Axis {
            title: "unpredictable reads".to_owned(),
            scale: Scale::Linear,
            label: coarse_percent,
        };
        let unpredictable = line("", "missed", &|moment| {
            100.0 * moment.unpredictable as f64 / moment.reads.max(1) as f64
        });
        writeln!(
            out,
            "<h3>Unpredictable reads over time</h3>{}",
            plot(&time, &share, &[unpredictable])
        )?;
    }
    Ok(())
}

fn action_row(out: &mut String, name: &str, one: &ActionMeasured, time: Duration) -> fmt::Result {
    write!(
        out,
        "<tr><td class=name>{name}<td>{}<td>{}",
        count(one.done() as f64),
        count(one.done() as f64 / time.as_secs_f64().max(1e-9))
    )?;
    for share in [0.5, 0.95, 0.99, 0.999, 1.0] {
        write!(
            out,
            "<td>{}",
            micros(one.latency.value_at_quantile(share) as f64 / 1e3)
        )?;
    }
    for counted in [one.refused, one.unknown, one.skipped, one.wrong] {
        write!(out, "<td>{}", count(counted as f64))?;
    }
    writeln!(out, "</tr>")
}

fn reads(out: &mut String, judged: &Judged) -> fmt::Result {
    let share = |part: u64| fine_percent(100.0 * part as f64 / judged.reads.max(1) as f64);
    writeln!(
        out,
        "<h3>Reads</h3><p>{} reads were judged: {} unpredictable ({}), {} undecided.</p>",
        count(judged.reads as f64),
        count(judged.unpredictable as f64),
        share(judged.unpredictable),
        count(judged.undecided as f64),
    )?;
    let levels = Level::ALL
        .into_iter()
        .filter_map(|level| Some((level, judged.at(level)?)));
    writeln!(
        out,
        "<div class=wide><table><tr><th class=text>Level<th>Unpredictable<th>Of the reads</tr>"
    )?;
    for (level, refused) in levels {
        writeln!(
            out,
            "<tr><td class=text>{}<td>{}<td>{}</tr>",
            level.name(),
            count(refused as f64),
            share(refused)
        )?;
    }
    writeln!(out, "</table></div>")?;
    if judged.unpredictable == 0 {
        return Ok(());
    }
    let classes: Vec<String> = judged
        .by_class
        .iter()
        .filter(|(_, number)| *number > 0)
        .map(|(class, number)| format!("{} {}", count(*number as f64), escape(class)))
        .collect();
    if !classes.is_empty() {
        writeln!(out, "<p>Of the unpredictable: {}.</p>", classes.join(", "))?;
    }
    ages(out, &judged.ages)?;
    if !judged.witnesses.is_empty() {
        writeln!(out, "<h3>The first of them</h3><pre>")?;
        for witness in &judged.witnesses {
            writeln!(out, "{}", escape(witness))?;
        }
        writeln!(out, "</pre>")?;
    }
    Ok(())
}

/// How old stale reads were: doublings of a microsecond, what is younger in one bar.
fn ages(out: &mut String, ages: &[u64]) -> fmt::Result {
    let (Some(first), Some(last)) = (
        ages.iter().position(|count| *count > 0),
        ages.iter().rposition(|count| *count > 0),
    ) else {
        return Ok(());
    };
    let stale = (first..=last)
        .map(|bits| {
            let below = 2f64.powi(bits as i32) / 1e3;
            (format!("< {}", micros(below)), ages[bits] as f64)
        })
        .collect::<Vec<_>>();
    let y = Axis {
        title: "stale reads".to_owned(),
        scale: Scale::Linear,
        label: short,
    };
    writeln!(
        out,
        "<h3>Age of stale reads</h3>{}",
        bars("since the answer was last acceptable", &y, &stale, "missed")
    )
}

/// How to run it again, and where it ran.
fn foot(out: &mut String, report: &Report) -> fmt::Result {
    let facts = &report.facts;
    writeln!(
        out,
        "<h2>To run it again</h2><pre>{}</pre><dl class=facts>",
        escape(&facts.command)
    )?;
    let machine = &facts.machine;
    let memory = format!(
        "{:.1} GiB",
        machine.memory_bytes as f64 / (1u64 << 30) as f64
    );
    let plan = format!(
        "experiments of {} s after {} s of warm-up, to {} of the throughput, at most {} of one load",
        number(report.trial_seconds),
        number(report.warmup_seconds),
        coarse_percent(100.0 * report.plan.tolerance),
        report.plan.trials_max
    );
    let settings = facts
        .settings
        .iter()
        .map(|(name, value)| (&**name, &**value));
    let fixed = [
        ("search", plan),
        (
            "processors",
            format!("{} of {}", machine.processors, machine.processor),
        ),
        ("memory", memory),
        (
            "system",
            format!("{}, Linux {}", machine.system, machine.kernel),
        ),
        ("bg", machine.bg.clone()),
        ("time", format!("{} UTC", machine.time)),
    ];
    let fixed = fixed.iter().map(|(name, value)| (*name, &**value));
    for (name, value) in settings.chain(fixed) {
        writeln!(out, "<dt>{}<dd>{}", escape(name), escape(value))?;
    }
    writeln!(
        out,
        "</dl><p class=sub>All figures, and the whole of the trial shown, are in <code>rating.json</code> beside this page.</p>"
    )
}

impl Report {
    fn shown(&self) -> Option<&Row> {
        self.experiments.get(self.shown.checked_sub(1)?)
    }
}

fn saying(row: &Row, unit: &str) -> String {
    let verdict = if row.verdict.met {
        "met".to_owned()
    } else {
        format!("missed: {}", row.verdict.why())
    };
    let again = match row.purpose {
        Purpose::Again => " (again)",
        _ => "",
    };
    format!(
        "#{}{again}: {} {unit}, {} actions/s, p50 {}, p95 {}, p99 {}; {verdict}",
        row.number,
        count(row.load as f64),
        count(row.throughput),
        micros(row.p50_us),
        micros(row.p95_us),
        micros(row.p99_us),
    )
}

fn goal(goal: Goal) -> &'static str {
    match goal {
        Goal::Soar => "SoAR",
        Goal::Socialites => "Socialites",
    }
}

fn met(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn verdict(judgement: &Judgement) -> String {
    let chance = if judgement.sure {
        ""
    } else {
        ", near the limit: chance could have decided it"
    };
    format!("{}{chance}", met(judgement.met))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase());
    first.into_iter().flatten().chain(letters).collect()
}

/// To the unit, with commas.
fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// 12.5k, 3M.
fn short(value: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| value >= *unit) {
        Some((unit, name)) => format!("{}{name}", number(value / unit)),
        None => number(value),
    }
}

/// With two digits behind the point at most.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A time given in microseconds, with three digits.
fn micros(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e6 => (value / 1e6, "s"),
        value if value >= 1e3 => (value / 1e3, "ms"),
        value if value >= 1.0 || value == 0.0 => (value, "µs"),
        value => (value * 1e3, "ns"),
    };
    match value {
        value if value >= 99.95 => format!("{value:.0} {unit}"),
        value if value >= 9.995 => format!("{} {unit}", number((value * 10.0).round() / 10.0)),
        value => format!("{} {unit}", number(value)),
    }
}

/// Four digits behind the point where it is near 0 or 100, so that few bad ones among many are seen.
fn fine_percent(value: f64) -> String {
    if value > 0.0 && (value < 1.0 || (value > 99.0 && value < 100.0)) {
        format!("{value:.4}%")
    } else {
        format!("{value:.2}%")
    }
}

fn coarse_percent(value: f64) -> String {
    format!("{}%", number(value))
}

pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_true() {
        assert_eq!(count(1234567.4), "1,234,567");
        assert_eq!(count(100.0), "100");
        assert_eq!(short(12_500.0), "12.5k");
        assert_eq!(micros(1_234.0), "1.23 ms");
        assert_eq!(micros(45_678_900.0), "45.7 s");
        assert_eq!(micros(0.25), "250 ns");
        assert_eq!(fine_percent(0.0004), "0.0004%");
        assert_eq!(fine_percent(99.99951), "99.9995%");
        assert_eq!(fine_percent(100.0), "100.00%");
        assert_eq!(escape("a<b & \"c\""), "a&lt;b &amp; &quot;c&quot;");
    }
}
