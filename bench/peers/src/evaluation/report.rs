//! Formats the measurements, as text with bars and as a page with charts.

use std::fmt::Write as _;

use larder_page::chart::{Axis, Look, Point, Scale, Series, plot};
use larder_page::figures::{escape, micros, number, short};

use super::steady::Draw;
use super::{Build, Measured, Read, Swap};

/// Classes of the page's style.
const CLASSES: [&str; 4] = ["a", "b", "c", "missed"];

pub fn text(measured: &Measured) -> String {
    let mut out = String::from("# Voldemort's evaluation, redone\n\n");
    for (name, value) in &measured.host {
        let _ = writeln!(out, "- {name}: {value}");
    }
    let _ = writeln!(out, "- command: `{}`\n", measured.command);
    builds(&mut out, measured);
    reads(&mut out, measured);
    swaps(&mut out, measured);
    out
}

fn engines(measured: &Measured) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for build in &measured.builds {
        if !all.contains(&build.engine.as_str()) {
            all.push(&build.engine);
        }
    }
    all
}

fn build_of<'a>(measured: &'a Measured, engine: &str, gb: u64) -> Option<&'a Build> {
    let mut all = measured.builds.iter();
    all.find(|it| it.engine == engine && it.gb == gb)
}

fn builds(out: &mut String, measured: &Measured) {
    let engines = engines(measured);
    let mut sizes: Vec<u64> = measured.builds.iter().map(|it| it.gb).collect();
    sizes.dedup();
    let _ = writeln!(
        out,
        "## Builds\n\nSeconds from a CSV file in the page cache to files that are on the disk; values of 1,024 bytes.\n\n| GB | {} | larder, of MyISAM's |",
        engines.join(" | ")
    );
    let _ = writeln!(out, "|{}", "---|".repeat(engines.len() + 2));
    for gb in sizes {
        let took = |engine: &str| build_of(measured, engine, gb).map(|it| it.seconds);
        let cells: Vec<String> = engines
            .iter()
            .map(|it| took(it).map_or("-".to_owned(), |it| format!("{it:.2}")))
            .collect();
        let share = took("larder").zip(took("myisam"));
        let share = share.map_or("-".to_owned(), |(ours, theirs)| {
            format!("{:.3}", ours / theirs)
        });
        let _ = writeln!(out, "| {gb} | {} | {share} |", cells.join(" | "));
    }
}

fn read_of<'a>(measured: &'a Measured, engine: &str, like: &Read) -> Option<&'a Read> {
    let mut all = measured.reads.iter();
    all.find(|it| it.engine == engine && it.draw == like.draw && it.rate == like.rate)
}

fn reads(out: &mut String, measured: &Measured) {
    let _ = writeln!(
        out,
        "\n## Reads at a steady rate\n\nMicroseconds from when a read was due; eight connections, all in memory.\n\n\
         | keys | reads/s | larder p50 | MyISAM p50 | times | larder p99 | MyISAM p99 | times |\n|---|---|---|---|---|---|---|---|"
    );
    for ours in measured.reads.iter().filter(|it| it.engine == "larder") {
        let Some(theirs) = read_of(measured, "myisam", ours) else {
            continue;
        };
        let _ = writeln!(
            out,
            "| {} | {} | {:.0} | {:.0} | {:.1} | {:.0} | {:.0} | {:.1} |",
            name(ours.draw),
            ours.rate,
            ours.p50_us,
            theirs.p50_us,
            theirs.p50_us / ours.p50_us,
            ours.p99_us,
            theirs.p99_us,
            theirs.p99_us / ours.p99_us,
        );
    }
    let failed: u64 = measured.reads.iter().map(|it| it.failed).sum();
    let _ = writeln!(out, "\n{failed} reads failed.");
}

fn name(draw: Draw) -> &'static str {
    match draw {
        Draw::Uniform => "uniform",
        Draw::Zipf => "Zipf",
    }
}

/// The first whole second behind the swap, and the median of those before anything happened and of the last ten.
fn swaps(out: &mut String, measured: &Measured) {
    for swap in &measured.swaps {
        let p99: Vec<f64> = swap.seconds.iter().map(|it| it.p99_us).collect();
        let failed: u64 = swap.seconds.iter().map(|it| it.failed).sum();
        let after = (swap.at.ceil() as usize).min(p99.len() - 1);
        let quiet = median(&p99[..4.min(p99.len())]);
        let steady = median(&p99[p99.len().saturating_sub(10)..]);
        let _ = writeln!(
            out,
            "\n## {}\n\nIt was live after {:.1} s. p99 in us: {:.0} before, {:.0} in the first second after, {:.0} in the last ten; the first is {:.2} of the last. {failed} reads failed.\n\n\
             By second: {}",
            capital(&swap.what),
            swap.at,
            quiet,
            p99[after],
            steady,
            p99[after] / steady,
            p99.iter()
                .map(|it| format!("{it:.0}"))
                .collect::<Vec<_>>()
                .join(", "),
        );
    }
}

fn capital(text: &str) -> String {
    larder_page::figures::capital(text)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

pub fn page(measured: &Measured) -> String {
    let mut out = larder_page::head("Voldemort's evaluation, redone");
    out += "<h1>Voldemort's evaluation, redone</h1>";
    out += "<h2>Build time by size</h2>";
    let series = engines(measured).into_iter().enumerate();
    let series: Vec<Series> = series
        .map(|(at, engine)| {
            let of = measured.builds.iter().filter(|it| it.engine == engine);
            line(engine, at, of.map(|it| (it.gb as f64, it.seconds)))
        })
        .collect();
    let axis = |title: &str, scale, label| Axis {
        title: title.to_owned(),
        scale,
        label,
    };
    out += &plot(
        &axis("GB", Scale::Doubling, number),
        &axis("seconds", Scale::Log, number),
        &series,
    );
    for draw in [Draw::Uniform, Draw::Zipf] {
        let _ = write!(out, "<h2>Latency by rate, {} keys</h2>", name(draw));
        let of = |engine: &str, at: usize, what: &str, us: fn(&Read) -> f64| {
            let reads = measured.reads.iter();
            let reads = reads.filter(|it| it.engine == engine && it.draw == draw);
            line(
                &format!("{engine}, {what}"),
                at,
                reads.map(|it| (it.rate as f64, us(it))),
            )
        };
        let series = [
            of("larder", 0, "median", |it| it.p50_us),
            of("larder", 1, "p99", |it| it.p99_us),
            of("myisam", 2, "median", |it| it.p50_us),
            of("myisam", 3, "p99", |it| it.p99_us),
        ];
        out += &plot(
            &axis("reads a second", Scale::Doubling, short),
            &axis("latency", Scale::Log, micros),
            &series,
        );
    }
    for swap in &measured.swaps {
        out += &swap_charts(swap);
    }
    out
}

fn swap_charts(swap: &Swap) -> String {
    let by_second = |us: fn(&super::Second) -> f64| {
        let seconds = swap.seconds.iter().enumerate();
        let points: Vec<(f64, f64)> = seconds.map(|(at, it)| (at as f64, us(it))).collect();
        points.into_iter()
    };
    let series = [
        line("median", 0, by_second(|it| it.p50_us)),
        line("p99", 1, by_second(|it| it.p99_us)),
    ];
    format!(
        "<h2>{}</h2><p>It was live after {:.1} s.</p>{}",
        escape(&capital(&swap.what)),
        swap.at,
        plot(
            &Axis {
                title: "second".to_owned(),
                scale: Scale::Linear,
                label: number
            },
            &Axis {
                title: "latency".to_owned(),
                scale: Scale::Log,
                label: micros
            },
            &series
        ),
    )
}

fn line(name: &str, at: usize, points: impl Iterator<Item = (f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        class: CLASSES[at % CLASSES.len()],
        look: Look::Line,
        points: points
            .map(|(x, y)| Point {
                x,
                y,
                says: format!("{name}: {}", number(y)),
            })
            .collect(),
    }
}
