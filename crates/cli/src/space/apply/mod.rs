//! `larder space apply`: gives a space the subspaces of a plan, and the local indexes if the plan chose them, while the
//! space serves searches.
//!
//! The servers store the state of the change in the space's record. This command starts the change, watches it, and
//! switches to the new subspaces; an interrupted command can be run again. `away` reports outages, `change` contains
//! the steps, `shown` formats a change, and `watch` plans repeatedly.

mod change;
mod outage;
mod summary;
mod watch;

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use self::change::{SpaceState, Target};
use super::nodes::Nodes;
use super::plan::Plan;
use super::{files, plan_text};
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::{interrupt, output};

const EXAMPLES: &str = "\
Examples:
    larder space plan --workload hotels.toml --deployment servers.toml --space hotels --json > plan.json
    larder space apply plan.json
    larder space apply plan.json --yes
    larder space apply --cancel --space hotels
    larder space apply --watch --space hotels --deployment servers.toml --yes

Searches use the current subspaces until all new ones are complete. If this command is ended, the servers continue to fill the new subspaces;
run the same command again to watch the progress. With --watch, the command repeatedly records the space, computes a plan, and applies it
if the gain exceeds the cost of the move: docs/guide/spaces-plan.md.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ApplyArgs {
    /// The output of `larder space plan --json`
    #[arg(value_name = "PLAN", required_unless_present_any = ["cancel", "watch"], conflicts_with_all = ["cancel", "watch"])]
    plan: Option<PathBuf>,
    /// The space [default: the space of the plan]
    #[arg(long, value_name = "NAME", required_if_eq_any = [("cancel", "true"), ("watch", "true")])]
    space: Option<String>,
    /// Apply the plan without confirmation; with --watch: apply plans instead of only printing them
    #[arg(long)]
    yes: bool,
    /// Keep the current local indexes, even if the plan chose others
    #[arg(long, conflicts_with_all = ["cancel", "watch"])]
    keep_indexes: bool,
    /// Drop the subspaces that are being filled, and keep the current ones
    #[arg(long, conflicts_with = "watch")]
    cancel: bool,
    /// Repeatedly record the space's workload, plan, and apply plans that are worth the move, until ctrl-c
    #[arg(long, requires = "deployment")]
    watch: bool,
    /// With --watch: the servers and their measured costs, as written by `larder space calibrate`
    #[arg(long, value_name = "FILE", requires = "watch")]
    deployment: Option<PathBuf>,
    /// With --watch: the length of a recording window, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = parse_count::<u64>)]
    window: u64,
    /// With --watch: the number of consecutive windows in which another plan must be better
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = parse_count::<u32>)]
    windows: u32,
    /// With --watch: the minimum gain in percent of all work, less the cost of the move spread over an hour
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = parse_count::<u32>)]
    gain: u32,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn run(args: ApplyArgs) -> Result<(), Failure> {
    match (&args.plan, &args.space) {
        (Some(path), _) => apply(&args, path),
        (None, Some(space)) if args.cancel => cancel(&Nodes::connect(&args.server)?, space),
        (None, Some(space)) => watch::watch(&args, space),
        (None, None) => Err(Failure::usage("name the space with --space")),
    }
}

fn apply(args: &ApplyArgs, path: &Path) -> Result<(), Failure> {
    let plan = files::read_plan(path)?;
    let space = resolve_space(args, &plan, path)?;
    let mut target = Target::from_plan(&plan, path)?;
    if args.keep_indexes {
        target.indexes = None;
    }
    let nodes = Nodes::connect(&args.server)?;
    let state = SpaceState::fetch_state(&nodes, &space)?;
    let turnover = target.turnover(&state)?;
    let [added, dropped] = target.index_changes(&state.definition)?;
    let has_indexes = added.is_empty() && dropped.is_empty();
    interrupt::listen()?;
    let started = match &state.filling {
        Some(filling) if !filling.matches(&state, &target)? => {
            return Err(Failure::refused(format!(
                "{space} is being given other subspaces already, {}: apply that plan to its end first, or drop it with `larder space apply --cancel --space {space}`",
                plan_text::subspaces(&filling.subspaces, false)
            )));
        }
        Some(_) => {
            output::print_line(&format!("{space}: continues with {}", target.describe()))?;
            true
        }
        None if turnover.added.is_empty() && turnover.removed.is_empty() && has_indexes => {
            match (&target.indexes, state.built) {
                (Some(_), Some(_)) => {
                    output::print_line(&format!("{space}: continues with {}", target.describe()))?;
                    true
                }
                _ => {
                    return Err(Failure::refused(format!(
                        "{space} has the subspaces of this plan already: {}; there is nothing to apply",
                        target.describe()
                    )));
                }
            }
        }
        None => false,
    };
    if !started {
        output::print_line(&summary::summarize(
            &space,
            &plan,
            &state,
            &turnover,
            [&added, &dropped],
        ))?;
        confirm(args)?;
    }
    change::apply_target(&nodes, &space, &target, started)
}

/// Returns the space to which the plan is applied.
fn resolve_space(args: &ApplyArgs, plan: &Plan, path: &Path) -> Result<String, Failure> {
    match (&plan.space, &args.space) {
        (Some(planned), Some(requested)) if planned != requested => Err(Failure::refused(format!(
            "{} is a plan for {planned}, and not for {requested}: plan for that one, with `larder space plan --space {requested} --json`",
            path.display()
        ))),
        (Some(space), _) | (None, Some(space)) => Ok(space.clone()),
        (None, None) => Err(Failure::usage(format!(
            "{} does not name its space: name the space with --space",
            path.display()
        ))),
    }
}

fn confirm(args: &ApplyArgs) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    let (input, mut output) = (std::io::stdin(), std::io::stdout());
    if !input.is_terminal() {
        return Err(Failure::usage(
            "pass --yes to apply a plan without a terminal for the confirmation",
        ));
    }
    let mut answer = String::new();
    let requested = write!(output, "\napply it? [y/N] ").and_then(|()| output.flush());
    let requested = requested.and_then(|()| input.lock().read_line(&mut answer));
    requested.map_err(Failure::io("ask"))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::refused("not applied")),
    }
}

fn cancel(nodes: &Nodes, space: &str) -> Result<(), Failure> {
    let state = SpaceState::fetch_state(nodes, space)?;
    let Some(filling) = state.filling else {
        return Err(Failure::refused(format!(
            "no subspaces of {space} are being filled: there is nothing to cancel"
        )));
    };
    nodes.long_command(&["FT.ALTER", space, "SUBSPACES", "CANCEL"])?;
    output::print_line(&format!(
        "{space} keeps {}; {} is dropped",
        plan_text::subspaces(&state.definition.subspace_texts(), false),
        plan_text::subspaces(&filling.subspaces, false)
    ))
}
