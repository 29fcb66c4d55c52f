//! `bg report`: generates the page of a rating from its JSON.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::output;
use crate::rate::report::Report;
use crate::ui::page;

const EXAMPLES: &str = "\
Examples:
  bg report rating/rating.json
  bg rate --store memory --sla '95% < 10ms, 5s' --json > today.json; bg report today.json --to /tmp/today.html";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArguments {
    /// The file rating.json of `bg rate --report` (or its folder), or the output of `bg rate --json`
    #[arg(value_name = "FILE.json")]
    rating: PathBuf,
    /// The file for the page [default: the name of the JSON file with the extension .html]
    #[arg(long, value_name = "FILE.html")]
    to: Option<PathBuf>,
}

pub fn report(arguments: &ReportArguments) -> Result<(), String> {
    let (file, text) = read(&arguments.rating)?;
    let report = Report::read(&text).map_err(|why| format!("{}: {why}", file.display()))?;
    let to = &arguments.to;
    let path = to.clone().unwrap_or_else(|| file.with_extension("html"));
    if path == file {
        return Err(format!(
            "{}: the page would overwrite its JSON; choose another file with --to",
            file.display()
        ));
    }
    fs::write(&path, page::html(&report)).map_err(|why| format!("{}: {why}", path.display()))?;
    output::out(format_args!("{}", path.display()));
    Ok(())
}

/// Reads a report and returns its path and its text. For a folder, reads its rating.json.
///
/// # Errors
///
/// The file cannot be read.
pub fn read(path: &Path) -> Result<(PathBuf, String), String> {
    let file = if path.is_dir() {
        path.join("rating.json")
    } else {
        path.to_owned()
    };
    let text = fs::read_to_string(&file).map_err(|why| format!("{}: {why}", file.display()))?;
    Ok((file, text))
}
