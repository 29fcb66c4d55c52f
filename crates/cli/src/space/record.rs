//! `larder space record`: records the operations on a space, as a workload for planning.
//!
//! The server records on all cores and nodes (SPACE.RECORD). This command starts the recording, waits, fetches the
//! result, and stops the recording, also after an interrupt.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use larder_space::plan::Workload;

use super::layout::{Layout, text};
use super::nodes::Nodes;
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, count};
use crate::progress::{Progress, Unit};

const EXAMPLES: &str = "\
Examples:
    larder space record --space hotels --seconds 60 -o hotels.toml
    larder space plan --workload hotels.toml --space hotels

Ctrl-c ends the recording early, and keeps what has been recorded.";

/// Time for which a recording continues if the command that started it is killed.
const GRACE_SECONDS: u64 = 60;
const SECONDS_MAX: u64 = 7 * 86_400 - GRACE_SECONDS;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RecordArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The space
    #[arg(long, value_name = "NAME")]
    space: String,
    /// The duration of the recording
    #[arg(long, value_name = "N", value_parser = parse_count::<u64>)]
    seconds: u64,
    /// The file for the workload, in TOML [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: RecordArgs) -> Result<(), Failure> {
    if !(1..=SECONDS_MAX).contains(&args.seconds) {
        return Err(Failure::usage(format!(
            "--seconds {}: it is from 1 to {SECONDS_MAX}",
            args.seconds
        )));
    }
    if let Some(path) = &args.output {
        ensure_writable(path)?;
    }
    let nodes = Nodes::connect(&args.server)?;
    Layout::fetch(&nodes, &args.space)?;
    interrupt::listen()?;
    let _recording = Recording::begin(&nodes, &args.space, args.seconds)?;
    let (started, all) = (Instant::now(), Duration::from_secs(args.seconds));
    let progress = Progress::new(Unit::Seconds, "recording", false);
    while !interrupt::is_interrupted()
        && let Some(left) = all.checked_sub(started.elapsed())
        && !left.is_zero()
    {
        progress.set("recording", started.elapsed().as_secs(), args.seconds);
        interrupt::wait(left.min(Duration::from_millis(250)));
    }
    drop(progress);
    let workload = fetch_workload(&nodes, &args.space)?;
    let queries: f64 = workload.queries.iter().map(|it| it.frequency).sum();
    let changes: f64 = workload.modifications.iter().map(|it| it.frequency).sum();
    let seen = format!(
        "{} searches in {} classes, {} modifications in {}, {} reads by key, in {}",
        count(queries as u64),
        workload.queries.len(),
        count(changes as u64),
        workload.modifications.len(),
        count(workload.gets as u64),
        output::duration(started.elapsed()),
    );
    if workload.frequency() == 0.0 {
        return Err(Failure::new(format!(
            "nothing was done with {} in {}: there is nothing to plan for",
            args.space,
            output::duration(started.elapsed())
        )));
    }
    match &args.output {
        None => {
            eprintln!("{seen}");
            output::print_line(workload.to_toml().trim_end())
        }
        Some(path) => {
            let written = std::fs::write(path, workload.to_toml());
            written.map_err(Failure::io(format!("write {}", path.display())))?;
            output::print_line(&format!("{seen}: {}", path.display()))
        }
    }
}

/// Returns the workload recorded so far.
pub fn fetch_workload(nodes: &Nodes, space: &str) -> Result<Workload, Failure> {
    let reply = nodes.long_command(&["SPACE.RECORD", "GET", space])?;
    let toml = text(&reply).unwrap_or_default();
    // Unlike a file, it may be empty.
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::new(format!("the server's recording cannot be decoded: {error}"))
    };
    Workload::from_toml_unchecked(&toml).map_err(|error| cannot(&error))
}

/// A recording that this command has started. It ends on drop.
pub struct Recording<'a>(&'a Nodes, &'a str);

impl<'a> Recording<'a> {
    /// Starts a recording of at least `seconds`.
    ///
    /// # Errors
    /// The space is being recorded already, or there was no reply.
    pub fn begin(nodes: &'a Nodes, space: &'a str, seconds: u64) -> Result<Self, Failure> {
        if fetch_workload(nodes, space).is_ok() {
            return Err(Failure::refused(format!(
                "{space} is being recorded already: `larder space plan --workload recorded --space {space}` shows the recording so far, and SPACE.RECORD STOP {space} ends it"
            )));
        }
        let seconds = (seconds + GRACE_SECONDS).to_string();
        // Created first, so that the recording is stopped even if the reply is late.
        let recording = Recording(nodes, space);
        nodes.long_command(&["SPACE.RECORD", "START", space, "SECONDS", &seconds])?;
        Ok(recording)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        // If this fails, the server ends the recording itself a little later.
        let _ = self.0.long_command(&["SPACE.RECORD", "STOP", self.1]);
    }
}

/// Checks that a file can be written, before work that would otherwise be lost.
///
/// # Errors
/// The file cannot be written.
pub fn ensure_writable(path: &std::path::Path) -> Result<(), Failure> {
    let was_there = path.exists();
    let opened = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path);
    opened.map_err(Failure::io(format!("write {}", path.display())))?;
    if !was_there {
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}
