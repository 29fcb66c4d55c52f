//! The page of a rating: one self-contained HTML file that shows the result, how it was found, and the evidence for it.
//!
//! The style, the charts and the number format are those of `larder_page`.
//!
//! From top to bottom, the page shows the rating and its clauses (`write_head`), the loads visited (`search`), the
//! confirming trial (`trial`), and how to repeat the rating (`write_foot`).

use std::fmt::{self, Write as _};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::rate::Goal;
use crate::rate::report::{ExperimentRow, Report, ReportOutcome};
use crate::verdict::agreement::Judgement;
use larder_page::figures::{coarse_percent, count, escape, fine_percent, number};

mod search;
mod trial;

/// Creates the folder and checks that it is writable.
///
/// # Errors
///
/// As for [`write`].
pub fn check_writable(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let probe = folder.join(".rating");
    fs::write(&probe, "")?;
    fs::remove_file(&probe)
}

/// Writes `rating.html` and `rating.json` to a folder, which it creates. Returns the page's path.
///
/// # Errors
///
/// The folder or a file cannot be written.
pub fn write(report: &Report, folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("rating.json"), report.to_json())?;
    let page = folder.join("rating.html");
    fs::write(&page, html(report))?;
    Ok(page)
}

/// Returns the whole page.
pub fn html(report: &Report) -> String {
    let title = format!("{}: {}", report.facts.store, goal_name(report.plan.goal));
    let mut page = larder_page::head(&title);
    // Writing to a string cannot fail.
    let _ = write_head(&mut page, report)
        .and_then(|()| search::write(&mut page, report))
        .and_then(|()| match &report.measured {
            Some(measured) => trial::write(&mut page, report, measured),
            None => Ok(()),
        })
        .and_then(|()| write_foot(&mut page, report));
    page
}

/// Writes the rating as a sentence, and the clauses that it met or missed.
fn write_head(out: &mut String, report: &Report) -> fmt::Result {
    let (store, sla) = (escape(&report.facts.store), &report.plan.sla);
    let (goal, unit) = (goal_name(report.plan.goal), report.unit());
    match (report.end, report.plan.goal) {
        (ReportOutcome::Rated, Goal::Soar) => writeln!(
            out,
            "<h1>{store}: {goal} {} actions/s</h1>",
            count(report.throughput)
        )?,
        (ReportOutcome::Rated, Goal::Socialites) => {
            writeln!(
                out,
                "<h1>{store}: {} {goal}</h1>",
                count(report.load as f64)
            )?;
        }
        (end, _) => writeln!(out, "<h1>{store}: {goal} unknown: {end}</h1>")?,
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
    } else if report.end == ReportOutcome::Rated {
        writeln!(
            out,
            "<p class=sub>No load meets the agreement <code>{sla}</code>.</p>"
        )?;
    } else {
        let why = report.why.as_deref().unwrap_or("it did not complete");
        writeln!(
            out,
            "<p class=sub>The search ended early: {}.</p>",
            escape(why)
        )?;
    }
    if let Some(spread) = report.spread.filter(|spread| spread.trials > 1) {
        writeln!(
            out,
            "<p class=sub>{} trials of that load: {} to {} actions/s, standard deviation {:.1} %.</p>",
            spread.trials,
            count(spread.least),
            count(spread.most),
            100.0 * spread.deviation
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
            verdict_text(judgement.met),
            verdict_with_confidence(judgement),
        )?;
    }
    writeln!(out, "</table></div>")
}

/// Writes how to repeat the rating, and the machine that it ran on.
fn write_foot(out: &mut String, report: &Report) -> fmt::Result {
    let facts = &report.facts;
    writeln!(
        out,
        "<h2>Command to repeat the rating</h2><pre>{}</pre><dl class=facts>",
        escape(&facts.command)
    )?;
    let machine = &facts.machine;
    let memory = larder_types::figures::bytes(machine.memory_bytes);
    let plan = format!(
        "experiments of {} s after {} s of warm-up, tolerance {} of the throughput, at most {} per load",
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
        "</dl><p class=sub>The JSON file of this page contains all figures and the complete measurements of the trial shown.</p>"
    )
}

impl Report {
    fn shown(&self) -> Option<&ExperimentRow> {
        self.experiments.get(self.shown.checked_sub(1)?)
    }
}

fn goal_name(goal: Goal) -> &'static str {
    match goal {
        Goal::Soar => "SoAR",
        Goal::Socialites => "Socialites",
    }
}

fn verdict_text(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn verdict_with_confidence(judgement: &Judgement) -> String {
    let chance = if judgement.sure {
        ""
    } else {
        ", near the limit: possibly by chance"
    };
    format!("{}{chance}", verdict_text(judgement.met))
}
