//! Formats a rating for a terminal: a line for each trial, then a summary.

use super::super::table;
use crate::rate::report::{ExperimentRow, Report, ReportOutcome};
use crate::rate::{Experiment, Goal, LoadUnit, Plan};
use crate::verdict::agreement::{Clause, Judgement};

pub fn header(plan: &Plan) -> String {
    let load = match plan.load_unit {
        LoadUnit::Threads => "threads",
        LoadUnit::Rate => "rate",
    };
    format!(
        "{:>3}  {:<8} {load:>8} {:>12} {:>10} {:>10} {:>9} {:>13}  verdict",
        "#", "why", "actions/s", "p50", "p99", "in time", "unpredictable"
    )
}

pub fn line(number: usize, experiment: &Experiment) -> String {
    let row = ExperimentRow::new(number, experiment);
    let verdict = if row.verdict.met {
        "met".to_owned()
    } else {
        let early = if experiment.ended_early {
            format!(" after {:.0} s", row.seconds)
        } else {
            String::new()
        };
        format!("missed{early} {}", row.verdict.reason())
    };
    format!(
        "{number:>3}  {:<8} {:>8} {:>12.0} {:>10} {:>10} {:>9} {:>13}  {verdict}",
        row.purpose.to_string(),
        row.load,
        row.throughput,
        table::format_time((row.p50_us * 1e3) as u64),
        table::format_time((row.p99_us * 1e3) as u64),
        percent(&row, |clause| matches!(clause, Clause::Within { .. })),
        if row.reads == 0 {
            "-".to_owned()
        } else {
            let share = (row.unpredictable + row.wrong) as f64 / row.reads as f64;
            format!("{:.4}%", 100.0 * share)
        },
    )
}

/// Returns the percentage of the first clause of this kind.
fn percent(row: &ExperimentRow, is: fn(&Clause) -> bool) -> String {
    let judgement = row.verdict.clauses.iter().find(|one| is(&one.clause));
    match judgement.and_then(|judgement: &Judgement| judgement.percent) {
        Some(percent) => format!("{percent:.2}%"),
        None => "-".to_owned(),
    }
}

pub fn summary(report: &Report) -> String {
    let goal = match report.plan.goal {
        Goal::Soar => "SoAR",
        Goal::Socialites => "Socialites",
    };
    let unit = match report.plan.load_unit {
        LoadUnit::Threads => "threads",
        LoadUnit::Rate => "actions/s offered",
    };
    let mut out = String::new();
    for note in &report.notes {
        out += &format!("note: {note}\n");
    }
    for warning in &report.warnings {
        out += &format!("warning: {warning}\n");
    }
    out += &match (report.end, report.load, report.plan.goal) {
        (ReportOutcome::Rated, 0, _) => format!("{goal} 0: no load meets {}\n", report.plan.sla),
        (ReportOutcome::Rated, load, Goal::Soar) => format!(
            "{goal} {:.0} actions/s, at {load} {unit}, under {}\n",
            report.throughput, report.plan.sla
        ),
        (ReportOutcome::Rated, load, Goal::Socialites) => format!(
            "{goal} {load} {unit}, with {:.0} actions/s, under {}\n",
            report.throughput, report.plan.sla
        ),
        (end, ..) => format!("{goal} unknown: {end}\n"),
    };
    if let Some(spread) = report.spread.filter(|spread| spread.trials > 1) {
        out += &format!(
            "{} trials of that load: {:.0} to {:.0} actions/s, standard deviation {:.1} %\n",
            spread.trials,
            spread.least,
            spread.most,
            100.0 * spread.deviation
        );
    }
    out + &format!("repeat with: {}\n", report.facts.command)
}

/// Quotes words as one would type them in a shell.
pub fn command(words: impl Iterator<Item = String>) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    let quoted = words.skip(1).map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    std::iter::once("bg".to_owned())
        .chain(quoted)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn commands_are_quoted_for_the_shell() {
        let words = ["/bin/bg", "rate", "--sla", "95% < 1ms", "it's", ""];
        assert_eq!(
            command(words.into_iter().map(str::to_owned)),
            r"bg rate --sla '95% < 1ms' 'it'\''s' ''"
        );
    }
}
