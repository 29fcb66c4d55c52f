//! Writes the confirming trial: over time, by action, and the validation of its reads.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::model::action::Action;
use crate::model::draw::{Cell, DrawCounts};
use crate::rate::report::Report;
use crate::verdict::measure::{
    ActionMeasurements, Level, Measurements, ReadValidation, SecondMeasurements,
};
use larder_page::chart::{Axis, MarkStyle, Point, Scale, Series, bars, plot};
use larder_page::figures::{
    capitalize, coarse_percent, count, escape, fine_percent, micros, short, tiny_percent,
};

pub fn write(out: &mut String, report: &Report, measured: &Measurements) -> fmt::Result {
    let what = if report.load > 0 {
        "The confirming trial"
    } else {
        "The last trial"
    };
    writeln!(out, "<h2>{what}</h2>")?;
    if measured.series.len() > 1 {
        write_over_time(out, measured)?;
    }
    writeln!(
        out,
        "<h3>By action</h3><div class=wide><table><tr><th class=text>Action<th>Answered<th>Of all<th>Actions/s<th>p50<th>p95<th>p99<th>p99.9<th>Max\
         <th>Refused<th>Unknown<th>Skipped<th>Wrong</tr>"
    )?;
    let delivered = measured.delivered();
    let mut all = ActionMeasurements::new();
    for action in Action::ALL {
        let one = measured.of(action);
        all.add(one);
        if one.calls() + one.skipped > 0 {
            let share = delivered.share(action);
            action_row(out, action.name(), one, share, measured.duration)?;
        }
    }
    action_row(out, "all", &all, 1.0, measured.duration)?;
    writeln!(
        out,
        "</table></div><p class=sub>Latencies include failed calls. Skipped: drawn, but not possible. \
         Wrong: the bytes of the answer differ from those stored.</p>"
    )?;
    if let Some(summary) = delivered.summary() {
        writeln!(out, "<p>{}.</p>", escape(&capitalize(&summary)))?;
    }
    write_draws(out, &measured.drawn)?;
    match &measured.reads {
        Some(judged) => write_reads(out, judged)?,
        None => writeln!(
            out,
            "<h3>Reads</h3><p class=none>No reads were validated.</p>"
        )?,
    }
    if let Some(effort) = measured.effort {
        writeln!(
            out,
            "<h3>The load generator</h3><p>The load generator used {:.2} of {} processors; its busiest worker used {} of one processor.</p>",
            effort.processors_used(measured.duration),
            effort.processors,
            coarse_percent(100.0 * effort.busiest_worker)
        )?;
    }
    Ok(())
}

fn write_over_time(out: &mut String, measured: &Measurements) -> fmt::Result {
    let time = Axis {
        title: "seconds".to_owned(),
        scale: Scale::Linear,
        label: short,
    };
    // The last moment may be shorter than a second.
    let last = measured.duration.as_secs_f64() - (measured.series.len() - 1) as f64;
    let line = |name: &str, class, y: &dyn Fn(&SecondMeasurements) -> f64| Series {
        name: name.to_owned(),
        class,
        style: MarkStyle::Line,
        points: measured
            .series
            .iter()
            .enumerate()
            .filter(|(index, _)| index + 1 < measured.series.len() || last > 0.9)
            .map(|(index, moment)| Point {
                x: (index + 1) as f64,
                y: y(moment),
                description: String::new(),
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
        move |moment: &SecondMeasurements| moment.latency.value_at_quantile(share) as f64 / 1e3
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

fn action_row(
    out: &mut String,
    name: &str,
    one: &ActionMeasurements,
    share: f64,
    time: Duration,
) -> fmt::Result {
    write!(
        out,
        "<tr><td class=name>{name}<td>{}<td>{}<td>{}",
        count(one.done() as f64),
        fine_percent(100.0 * share),
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

/// Writes the observed distribution of draws next to the intended one: per member of each cell.
fn write_draws(out: &mut String, drawn: &DrawCounts) -> fmt::Result {
    let Some(summary) = drawn.summary() else {
        return Ok(());
    };
    let draws = drawn.draws() as f64;
    let series = |name: &str, class, style, share: &dyn Fn(&Cell) -> f64| Series {
        name: name.to_owned(),
        class,
        style,
        points: drawn
            .cells
            .iter()
            .map(|cell| {
                let members = f64::from(cell.last_rank - cell.first_rank + 1);
                Point {
                    x: f64::from(cell.first_rank) + (members - 1.0) / 2.0,
                    y: share(cell) / members,
                    description: match cell.last_rank - cell.first_rank {
                        0 => format!("rank {}: {} draws", cell.first_rank, cell.drawn),
                        _ => format!(
                            "ranks {} to {}: {} draws",
                            cell.first_rank, cell.last_rank, cell.drawn
                        ),
                    },
                }
            })
            .collect(),
    };
    let intended: f64 = drawn.cells.iter().map(|cell| cell.intended).sum();
    let lines = [
        series("intended", "b", MarkStyle::Line, &|cell| {
            100.0 * cell.intended / intended
        }),
        series("drawn", "a", MarkStyle::Dots, &|cell| {
            100.0 * cell.drawn as f64 / draws
        }),
    ];
    let rank = Axis {
        title: "member, by popularity".to_owned(),
        scale: Scale::Log,
        label: short,
    };
    let share = Axis {
        title: "of all draws".to_owned(),
        scale: Scale::Log,
        label: tiny_percent,
    };
    writeln!(
        out,
        "<h3>Members drawn</h3><p>{}.</p>{}<p class=sub>Members that were busy when they were drawn are not counted. Total variation is \
         the proportion of the draws that would have to go to other members to match the intended distribution. By chance alone, chi-square is about as large as its \
         degrees of freedom.</p>",
        escape(&capitalize(&summary)),
        plot(&rank, &share, &lines)
    )
}

fn write_reads(out: &mut String, judged: &ReadValidation) -> fmt::Result {
    let share = |part: u64| fine_percent(100.0 * part as f64 / judged.reads.max(1) as f64);
    writeln!(
        out,
        "<h3>Reads</h3><p>{} reads were validated: {} unpredictable ({}), {} undecided.</p>",
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
        writeln!(
            out,
            "<p>Unpredictable reads by class: {}.</p>",
            classes.join(", ")
        )?;
    }
    writeln!(
        out,
        "<p>Sessions with an unpredictable read: {}.</p>",
        count(judged.unpredictable_sessions as f64)
    )?;
    write_ages(out, &judged.ages)?;
    if !judged.witnesses.is_empty() {
        writeln!(out, "<h3>First unpredictable reads</h3><pre>")?;
        for witness in &judged.witnesses {
            writeln!(out, "{}", escape(witness))?;
        }
        writeln!(out, "</pre>")?;
    }
    Ok(())
}

/// Writes the ages of stale reads: one bar for each power of two, in nanoseconds.
fn write_ages(out: &mut String, ages: &[u64]) -> fmt::Result {
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
        bars(
            "time since the answer was last acceptable",
            &y,
            &stale,
            "missed"
        )
    )
}
