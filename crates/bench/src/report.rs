//! Results: printed, and written to the folder of `--out`.

use std::fs;
use std::path::Path;

use crate::Result;

/// Returns the median of some values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// Formats the median of some values, with the minimum and the maximum.
pub fn spread(values: &[f64], digits: usize) -> String {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(0.0, f64::max);
    format!(
        "{:.digits$} ({min:.digits$}-{max:.digits$})",
        median(values)
    )
}

/// Returns whether a target was met, as text.
pub fn verdict(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}

/// Prints a report, and writes it and its raw lines as `<name>.md` and `<name>.jsonl` into `folder`.
pub fn keep(
    folder: Option<&Path>,
    name: &str,
    markdown: &str,
    raw: &[serde_json::Value],
) -> Result<()> {
    println!("{markdown}");
    let Some(folder) = folder else { return Ok(()) };
    fs::create_dir_all(folder)?;
    fs::write(folder.join(format!("{name}.md")), markdown)?;
    let lines: String = raw.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.join(format!("{name}.jsonl")), lines)?;
    Ok(())
}

/// Returns the command that repeats this run.
pub fn command() -> String {
    let args: Vec<String> = std::env::args().skip(1).collect();
    format!("cargo run --release -p larder-bench -- {}", args.join(" "))
}
