//! `bg compare`: compares two reports.

use std::path::{Path, PathBuf};

use clap::Args;

use super::ending::Ending;
use super::{report, say};
use crate::rate::compare::{self, Comparison, Subject, Verdict};

const EXAMPLES: &str = "\
Examples:
  bg compare before/rating.json after/rating.json
  bg run --store larder --duration 30s --json > after.json; bg compare before.json after.json --tolerance 3

Exit status: 0 if B is as good as A or better, 1 if it is worse, 2 if they cannot be compared.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
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

pub fn compare(arguments: &Arguments) -> Result<Ending, String> {
    if !(0.0..=100.0).contains(&arguments.tolerance) {
        return Err(format!(
            "--tolerance {}: must be 0 to 100 percent",
            arguments.tolerance
        ));
    }
    let (one, other) = (subject(&arguments.one)?, subject(&arguments.other)?);
    let comparison = compare::compare(&one, &other, arguments.tolerance / 100.0)?;
    if arguments.json {
        let text = serde_json::to_string(&comparison).map_err(|why| why.to_string())?;
        say::out(format_args!("{text}"));
    } else {
        say::out(format_args!("{}", words(&comparison)));
    }
    Ok(Ending::of(comparison.verdict != Verdict::Worse))
}

fn subject(path: &Path) -> Result<Subject, String> {
    let (file, text) = report::read(path)?;
    Subject::read(&text).map_err(|why| format!("{}: {why}", file.display()))
}

fn words(comparison: &Comparison) -> String {
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
            word(row.verdict)
        );
    }
    for difference in &comparison.differences {
        out += &format!("\nwarning: they were not asked the same: {difference}");
    }
    out += &format!(
        "\nB is {}",
        match comparison.verdict {
            Verdict::Better => "better than A",
            Verdict::Alike => "as A, as far as noise lets one tell",
            Verdict::Worse => "worse than A",
        }
    );
    out
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Alike => "alike",
        Verdict::Worse => "worse",
    }
}
