//! `bg validate`: judges a trace.

use std::path::PathBuf;
use std::thread::available_parallelism;

use clap::Args;

use super::table;
use crate::judge;

const EXAMPLES: &str = "\
Examples:
  bg run --store memory --duration 5s --trace /tmp/trace && bg validate /tmp/trace
  bg validate /tmp/trace --json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder that `bg run --trace` made
    dir: PathBuf,
    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
}

pub fn validate(arguments: Arguments) -> Result<(), String> {
    let cores = available_parallelism().map_or(1, |count| count.get());
    let judged = judge::judge_folder(&arguments.dir, cores)?;
    if arguments.json {
        let text = serde_json::to_string(&judged).map_err(|why| why.to_string())?;
        println!("{text}");
    } else {
        print!("{}", table::judged(&judged));
    }
    Ok(())
}
