//! `bg validate`: validates a trace.

use std::io::{self, Write};
use std::path::PathBuf;
use std::thread::available_parallelism;

use clap::{Args, ValueEnum};
use larder_validate::bg_text::{InitialData, Kind as TextKind};
use larder_validate::report::Report;
use larder_validate::trace::Options;

use super::interrupt::exit_on_interrupt;
use super::outcome::{AllowedUnpredictable, CommandOutcome};
use crate::model::item::Kind;
use crate::verdict::judge;
use crate::verdict::validate::print::{self, Labels};
use crate::verdict::validate::{Bound, TextFolder, TextNames, judge_within};

const EXAMPLES: &str = "\
Examples:
  bg run --store memory --duration 5s --trace /tmp/trace && bg validate /tmp/trace
  bg validate /tmp/trace --memory 256M --scratch /mnt/large --json
  bg validate logs --format bg-text --initial ACCEPTFRND=100";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ValidateArguments {
    /// A folder created by `bg run --trace`, or a folder with logs of the released BG
    dir: PathBuf,
    #[arg(long, value_enum, default_value_t = Format::Trace)]
    format: Format,
    /// For text logs: the initial ACCEPTFRND, PENDFRND or POSTCOMMENT of each member or resource [default: 0]
    #[arg(long, value_name = "KIND=COUNT", value_parser = parse_initial)]
    initial: Vec<(TextKind, i32)>,
    /// The memory to use; larger traces are split on disk
    #[arg(long, default_value = "2G", value_parser = parse_bytes)]
    memory: u64,
    /// The folder for the parts of a split trace [default: the trace's folder]
    #[arg(long)]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    allowed: AllowedUnpredictable,
    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// The format that bg writes
    Trace,
    /// read*.txt and update*.txt of the BG versions released from 2013 to 2018
    BgText,
}

pub fn validate(arguments: ValidateArguments) -> Result<CommandOutcome, String> {
    let cores = available_parallelism().map_or(1, |count| count.get());
    exit_on_interrupt()?;
    let scratch = arguments.scratch.as_ref().unwrap_or(&arguments.dir);
    let bound = Bound::new(arguments.memory, scratch);
    match arguments.format {
        Format::Trace if !arguments.initial.is_empty() => Err(
            "--initial requires --format bg-text; a trace contains its initial state".to_owned(),
        ),
        Format::Trace => {
            let report = judge::report_folder_within(&arguments.dir, cores, &bound)?;
            let labels = Labels {
                names: &judge::TraceNames,
                kind: &|number| {
                    let known = Kind::ALL.into_iter().find(|kind| *kind as u8 == number);
                    known.map_or(format!("kind {number}"), |kind| kind.name().to_owned())
                },
            };
            show(&report, &labels, &arguments)
        }
        Format::BgText => validate_text(&arguments, cores, &bound),
    }
}

fn validate_text(
    arguments: &ValidateArguments,
    cores: usize,
    bound: &Bound,
) -> Result<CommandOutcome, String> {
    let mut loaded = InitialData::default();
    for (kind, count) in &arguments.initial {
        match kind {
            TextKind::Friends => loaded.friends = *count,
            TextKind::Requests => loaded.requests = *count,
            TextKind::Comments => loaded.comments = *count,
        }
    }
    let options = Options {
        seed: 0,
        cores,
        witnesses_max: judge::WITNESSES_MAX,
    };
    let logs = TextFolder::open(&arguments.dir)?;
    let report = judge_within(&logs, &loaded, &options, bound)?;
    let labels = Labels {
        names: &TextNames,
        kind: &|number| {
            let kind = TextKind::from_item(u64::from(number) << 56);
            kind.map_or(format!("kind {number}"), |kind| kind.name().to_owned())
        },
    };
    let outcome = show(&report, &labels, arguments)?;
    let (without_value, of_graph) = logs.ignored_reads();
    if without_value + of_graph > 0 {
        eprintln!(
            "ignored: {without_value} reads logged without a value, {of_graph} reads of the graph"
        );
    }
    Ok(outcome)
}

fn show(
    report: &Report,
    labels: &Labels<'_>,
    arguments: &ValidateArguments,
) -> Result<CommandOutcome, String> {
    let text = if arguments.json {
        format!("{}\n", print::json(report, labels))
    } else {
        print::format_report(report, labels)
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe, as in `bg validate DIR | head`.
        Err(why) if why.kind() == io::ErrorKind::BrokenPipe => {}
        written => written.map_err(|why| format!("cannot print: {why}"))?,
    }
    let (total, end) = (&report.total, &report.end_state);
    let bad = total.unpredictable() + end.unpredictable();
    let allowed = arguments.allowed.accepts(bad, total.reads + end.reads);
    Ok(CommandOutcome::from_met(allowed))
}

fn parse_initial(text: &str) -> Result<(TextKind, i32), String> {
    let (name, count) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} must be KIND=COUNT"))?;
    let kind = TextKind::from_name(name)
        .ok_or_else(|| format!("{name:?} is not ACCEPTFRND, PENDFRND or POSTCOMMENT"))?;
    let count = count
        .parse()
        .map_err(|_| format!("{count:?} is not an integer"))?;
    Ok((kind, count))
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err("must be a number of bytes, optionally with K, M or G".to_owned()),
    };
    let count: Option<u64> = digits.parse().ok();
    let bytes = count.and_then(|count| count.checked_mul(unit));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "must be at least one byte".to_owned())
}
