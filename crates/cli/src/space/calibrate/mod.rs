//! `larder space calibrate`: measures the cost of each step of a search and of a write on a deployment. The result is a
//! file that `larder space plan` reads.
//!
//! Costs are processor time of the servers (from INFO), so the client and waiting times do not count. Many kinds of
//! commands are measured, all equally often, and the costs are fitted to all of them. The deployment's own load is
//! measured first and subtracted. Because the speed of processors varies, reads by key are measured between any two
//! measurements, and times are expressed in them.
//!
//! | costs | measured with |
//! |---|---|
//! | `get_us` | HGETALL, the median |
//! | `query_us`, `server_us`, `region_us`, `subspace_us` | searches without matches: on all servers, in one region, in several, next to one subspace and next to three |
//! | `condition_us`, `candidate_us`, `scan_us` | searches with two conditions that check no objects, some hundred, or all |
//! | `match_us`, `found_us`, `row_us`, `row_byte_us`, `result_us`, `result_byte_us` | searches that match few objects, a hundred or five hundred, and return one, twenty or all, with short and long objects: several servers find more than is returned |
//! | `walk_us` | searches that match so many objects that servers visit them in order |
//! | `write_us`, `index_entry_us`, `stage_us`, `move_us` | updates of one attribute and of five, with no copy in regions, with one and with three; and updates that move a copy |
//! | `commit_us`, `beside_us` | concurrent searches and updates: one update in ten, three, five and eight |
//!
//! [`kinds`] defines the commands, [`workbench`] measures them, and [`fit`] computes the costs. A cost that is smaller
//! than the spread of its measurements gets a warning.
//!
//! The calibration uses its own spaces and keys, which [`Workbench`] removes, also after an interrupt. A single server
//! has no copies: the file lists the costs that could not be measured as `guessed`. `larder space plan` repeats the
//! guesses and the warnings.

mod commands;
mod fit;
mod kinds;
mod workbench;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use larder_space::plan::Costs;

use self::commands::Objects;
use self::fit::Cost;
use self::workbench::{Workbench, clean, find_leftover_objects};
use super::nodes::Nodes;
use super::plan_text::{cost_warnings, warning_lines};
use super::record::ensure_writable;
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;

const EXAMPLES: &str = "\
Examples:
    larder space calibrate -o servers.toml
    larder space calibrate --objects 1000000 -o servers.toml
    larder space plan --workload hotels.toml --deployment servers.toml

Objects that are not in a processor's cache take longer to read. Measure with about as many objects as the space will have.

A calibration takes about a minute, and longer with more objects. Run it while the servers have no other load. It creates spaces and keys that begin with
larder-calibrate, and removes them at the end and on ctrl-c. If it is killed, --clean removes them.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CalibrateArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The file for the deployment, in TOML [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The number of objects, at least 20,000
    #[arg(long, value_name = "COUNT", default_value_t = Objects::COUNT_MIN, value_parser = parse_count::<u64>)]
    objects: u64,
    /// Only remove the objects and spaces of a calibration that was killed
    #[arg(long, conflicts_with_all = ["output", "objects"])]
    clean: bool,
}

pub fn run(args: CalibrateArgs) -> Result<(), Failure> {
    if let Some(path) = &args.output {
        ensure_writable(path)?;
    }
    let nodes = Nodes::connect(&args.server)?;
    if args.clean {
        clean(&nodes, find_leftover_objects(&nodes)?)?;
        return output::print_line("nothing of a calibration is left");
    }
    if args.objects > Objects::COUNT_MAX {
        return Err(Failure::usage(format!(
            "--objects {}: {} at most",
            args.objects,
            Objects::COUNT_MAX
        )));
    }
    let objects = Objects::rounded_up(args.objects);
    interrupt::listen_with_notices(
        "interrupted: the measurements are lost unless they are complete; removing the objects and spaces of the calibration; interrupt again to end without removing them",
        "interrupted again: objects and spaces of the calibration are left on the servers; `larder space calibrate --clean` removes them",
    )?;
    let started = Instant::now();
    let mut bench = Workbench::new(&nodes, objects)?;
    let measured = bench.write_objects().and_then(|()| bench.measure());
    let removed = bench.remove();
    drop(bench);
    let measured = measured.map_err(|failure| match removed {
        Err(_) if interrupt::is_interrupted() => Failure::interrupted("interrupted"),
        _ => failure,
    })?;
    let toml = format!("{HEADER}{}", measured.to_toml());
    match &args.output {
        None => output::print_line(toml.trim_end()),
        Some(path) => {
            let written = std::fs::write(path, toml);
            written.map_err(Failure::io(format!("write {}", path.display())))?;
            let took = output::duration(started.elapsed());
            let warnings = warning_lines(cost_warnings(&measured));
            output::print_line(&format!("measured in {took}: {}{warnings}", path.display()))
        }
    }
}

const HEADER: &str =
    "# Measured by `larder space calibrate`: processor time of the servers, in microseconds.\n";

/// Notes on the accuracy of measured costs, for the deployment's `warnings`. `busy`: number of processors that were
/// busy before the calibration.
fn notes(uncertain: &[Cost], busy: f64) -> Vec<String> {
    let uncertain = uncertain.iter().map(|cost| {
        format!(
            "{} is smaller than its uncertainty: {:.3}, give or take {:.3}",
            cost.name, cost.us, cost.spread_us
        )
    });
    let busy = (busy > 0.1).then(|| {
        format!("the servers had other work, {busy:.1} processors of it: calibrate again when they are idle")
    });
    uncertain.chain(busy).collect()
}

/// Rounds costs to three decimals (nanoseconds).
fn rounded(costs: Costs) -> Costs {
    let round = |cost: f64| (cost * 1e3).round() / 1e3;
    // Very small costs are rounded to six decimals.
    let finer = |cost: f64| (cost * 1e6).round() / 1e6;
    Costs {
        get_us: round(costs.get_us),
        query_us: round(costs.query_us),
        server_us: round(costs.server_us),
        subspace_us: round(costs.subspace_us),
        condition_us: round(costs.condition_us),
        region_us: round(costs.region_us),
        candidate_us: round(costs.candidate_us),
        scan_us: costs.scan_us.map(finer),
        match_us: costs.match_us.map(round),
        walk_us: costs.walk_us.map(round),
        found_us: round(costs.found_us),
        row_us: costs.row_us.map(round),
        row_byte_us: finer(costs.row_byte_us),
        result_us: round(costs.result_us),
        result_byte_us: finer(costs.result_byte_us),
        write_us: round(costs.write_us),
        commit_us: round(costs.commit_us),
        beside_us: round(costs.beside_us),
        stage_us: round(costs.stage_us),
        leave_us: costs.leave_us.map(round),
        move_us: round(costs.move_us),
        index_entry_us: round(costs.index_entry_us),
    }
}
