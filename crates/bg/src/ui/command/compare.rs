//! `bg compare`: compares two reports.

use std::path::{Path, PathBuf};

use clap::Args;

use super::outcome::CommandOutcome;
use super::{output, report};
use crate::rate::compare::{self, Comparison, ComparisonVerdict, Subject};

const EXAMPLES: &str = "\
Examples:
  bg compare before/rating.json after/rating.json
  bg run --store larder --duration 30s --json > after.json; bg compare before.json after.json --tolerance 3

Exit status: 0 if B is as good as A or better, 1 if it is worse, 2 if they cannot be compared.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompareArguments {
    /// The file rating.json of `bg rate --report` (or its folder), or the output of `bg run --json`
    #[arg(value_name = "A")]
    one: PathBuf,
    #[arg(value_name = "B")]
    other: PathBuf,
    /// The percentage by which a figure may change without being reported as a difference
    #[arg(long, default_value_t = 2.0, value_name = "PERCENT")]
    tolerance: f64,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
}

pub fn compare(arguments: &CompareArguments) -> Result<CommandOutcome, String> {
    if !(0.0..=100.0).contains(&arguments.tolerance) {
        return Err(format!(
            "--tolerance {}: must be 0 to 100 percent",
            arguments.tolerance
        ));
    }
    let (one, other) = (
        read_subject(&arguments.one)?,
        read_subject(&arguments.other)?,
    );
    let comparison = compare::compare(&one, &other, arguments.tolerance / 100.0)?;
    if arguments.json {
        let text = serde_json::to_string(&comparison).map_err(|why| why.to_string())?;
        output::out(format_args!("{text}"));
    } else {
        output::out(format_args!("{}", format_comparison(&comparison)));
    }
    Ok(CommandOutcome::from_met(
        comparison.verdict != ComparisonVerdict::Worse,
    ))
}

fn read_subject(path: &Path) -> Result<Subject, String> {
    let (file, text) = report::read(path)?;
    Subject::read(&text).map_err(|why| format!("{}: {why}", file.display()))
}

fn format_comparison(comparison: &Comparison) -> String {
    let mut out = format!(
        "{:<22} {:>14} {:>14} {:>10} {:>10}  verdict",
        "figure", "A", "B", "change", "noise"
    );
    for row in &comparison.rows {
        let change = row
            .change
            .map_or("-".to_owned(), |change| format!("{change:+.1} %"));
        out += &format!(
            "\n{:<22} {:>14.2} {:>14.2} {change:>10} {:>9.1}%  {}",
            row.name,
            row.a,
            row.b,
            row.noise,
            verdict_name(row.verdict)
        );
    }
    for difference in &comparison.differences {
        out += &format!("\nwarning: the parameters differ: {difference}");
    }
    out += &format!(
        "\nB {}",
        match comparison.verdict {
            ComparisonVerdict::Better => "is better than A",
            ComparisonVerdict::Alike => "does not differ from A beyond noise",
            ComparisonVerdict::Worse => "is worse than A",
        }
    );
    out
}

fn verdict_name(verdict: ComparisonVerdict) -> &'static str {
    match verdict {
        ComparisonVerdict::Better => "better",
        ComparisonVerdict::Alike => "alike",
        ComparisonVerdict::Worse => "worse",
    }
}
