//! Formats the result of a trial for a terminal.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;
use larder_types::figures;

use crate::model::action::Action;
use crate::run::live::LiveState;
use crate::verdict::measure::{ActionMeasurements, Level, Load, Measurements, ReadValidation};

/// Formats the last completed second as a line.
pub fn format_second(seen: &LiveState) -> String {
    let all = merge_latencies(&seen.second);
    let failed: u64 = seen.second.actions.iter().map(|it| it.failed.len()).sum();
    let seconds = seen.now_ns as f64 / 1e9;
    let load = match seen.trial.load {
        Load::Threads(_) => format!("{} threads", seen.threads),
        Load::Rate(rate) => format!("rate {rate}"),
    };
    format!(
        "{seconds:5.1} s  {load}  {:>9} actions  p50 {}  p99 {}  max {}  failed {failed}",
        seen.second.done(),
        format_time(all.value_at_quantile(0.5)),
        format_time(all.value_at_quantile(0.99)),
        format_time(all.max()),
    )
}

/// Formats a trial as a line.
pub fn format_summary(measured: &Measurements) -> String {
    let all = merge_latencies(measured);
    let failed: u64 = measured.actions.iter().map(|it| it.failed.len()).sum();
    let mut out = format!(
        "{:.0} actions a second  p50 {}  p95 {}  p99 {}  failed {failed}",
        measured.throughput(),
        format_time(all.value_at_quantile(0.5)),
        format_time(all.value_at_quantile(0.95)),
        format_time(all.value_at_quantile(0.99)),
    );
    if let Some(reads) = &measured.reads {
        let _ = write!(
            out,
            "  unpredictable {} of {} reads",
            reads.unpredictable, reads.reads
        );
    }
    out
}

/// A note on what the latencies of a closed loop leave out.
pub const CLOSED_LOOP: &str = "closed loop: a thread that waits for a slow reply sends no other request meanwhile, so the latencies exclude requests \
that would have arrived in that time (coordinated omission); --rate includes them";

/// Formats a row for each action that was drawn, and a row for all actions.
pub fn format_result(measured: &Measurements) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{:<22} {:>11} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>6}",
        "action",
        "actions",
        "of all",
        "a second",
        "p50",
        "p95",
        "p99",
        "max",
        "refused",
        "unknown",
        "skipped",
        "wrong"
    );
    let seconds = measured.duration.as_secs_f64().max(1e-9);
    let delivered = measured.delivered();
    let mut total = ActionMeasurements::new();
    for action in Action::ALL {
        let one = measured.of(action);
        total.add(one);
        if one.calls() + one.skipped > 0 {
            let share = delivered.share(action);
            row(&mut out, action.name(), one, share, seconds);
        }
    }
    row(&mut out, "all", &total, 1.0, seconds);
    if let Some(summary) = delivered.summary() {
        let _ = writeln!(out, "{summary}");
    }
    if measured.sessions > 0 {
        let rate = measured.sessions as f64 / seconds;
        let _ = writeln!(out, "{} sessions, {rate:.0} a second", measured.sessions);
    }
    if measured.missed_starts > 0 {
        let _ = writeln!(
            out,
            "{} actions did not start because no thread was free: the rate exceeds the throughput of the data store",
            measured.missed_starts
        );
    }
    if let Some(summary) = measured.drawn.summary() {
        let _ = writeln!(out, "{summary}");
    }
    if let Some(effort) = measured.effort {
        let _ = writeln!(
            out,
            "measured {seconds:.1} s; bg used {:.2} of {} processors, its busiest worker {:.0} % of one",
            effort.cpu.as_secs_f64() / seconds,
            effort.processors,
            effort.busiest_worker * 100.0
        );
    }
    let warnings = [
        delivered.warning(),
        measured.generator_warning(),
        measured.disturbance_warning(),
    ];
    for warning in warnings.iter().flatten() {
        let _ = writeln!(out, "warning: {warning}");
    }
    if let Some(reads) = &measured.reads {
        out += &format_reads(reads);
    }
    out
}

/// Formats the results of validation.
pub fn format_reads(judged: &ReadValidation) -> String {
    let mut out = String::new();
    let part = 100.0 * judged.unpredictable as f64 / (judged.reads as f64).max(1.0);
    let _ = writeln!(
        out,
        "reads validated {}, unpredictable {} ({part:.4} %), undecided {}",
        judged.reads, judged.unpredictable, judged.undecided
    );
    if judged.unpredictable_sessions > 0 {
        let _ = writeln!(
            out,
            "sessions with an unpredictable read: {}",
            judged.unpredictable_sessions
        );
    }
    for (class, count) in judged.by_class.iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(out, "  {class:<10} {count}");
    }
    let levels = Level::ALL.iter().zip(judged.by_level);
    let levels: Vec<String> = levels
        .filter_map(|(level, refused)| Some(format!("{} {}", level.name(), refused?)))
        .collect();
    if !levels.is_empty() {
        let _ = writeln!(
            out,
            "rejected by a level or one below it: {}",
            levels.join(", ")
        );
    }
    for witness in &judged.witnesses {
        let _ = writeln!(out, "  {witness}");
    }
    out
}

fn row(out: &mut String, name: &str, one: &ActionMeasurements, share: f64, seconds: f64) {
    let quantile = |quantile| format_time(one.latency.value_at_quantile(quantile));
    let _ = writeln!(
        out,
        "{name:<22} {:>11} {:>5.2} % {:>9.0} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>6}",
        one.done(),
        100.0 * share,
        one.done() as f64 / seconds,
        quantile(0.5),
        quantile(0.95),
        quantile(0.99),
        format_time(one.latency.max()),
        one.refused,
        one.unknown,
        one.skipped,
        one.wrong
    );
}

fn merge_latencies(measured: &Measurements) -> Histogram<u64> {
    let mut all = ActionMeasurements::new();
    measured.actions.iter().for_each(|one| all.add(one));
    all.latency
}

/// Formats nanoseconds in the most readable unit.
pub fn format_time(nanoseconds: u64) -> String {
    figures::duration(Duration::from_nanos(nanoseconds))
}
