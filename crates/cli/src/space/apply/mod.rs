//! `larder space apply`: gives a space the subspaces of a plan, and the local indexes if the plan chose them, while the
//! space serves searches.
//!
//! The servers store the state of the change in the space's record. This command starts the change, watches it, and
//! switches to the new subspaces; an interrupted command can be run again. `away` reports outages, `change` contains
//! the steps, `shown` formats a change, and `watch` plans repeatedly.

mod away;
mod change;
mod shown;
mod watch;

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use self::change::{State, Target};
use super::nodes::Nodes;
use super::plan::Plan;
use super::{files, told};
use crate::command_line::whole_number;
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
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole_number::<u64>)]
    window: u64,
    /// With --watch: the number of consecutive windows in which another plan must be better
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = whole_number::<u32>)]
    windows: u32,
    /// With --watch: the minimum gain in percent of all work, less the cost of the move spread over an hour
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = whole_number::<u32>)]
    gain: u32,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn run(args: ApplyArgs) -> Result<(), Failure> {
    match (&args.plan, &args.space) {
        (Some(path), _) => apply(&args, path),
        (None, Some(space)) if args.cancel => cancel(&Nodes::of(&args.server)?, space),
        (None, Some(space)) => watch::watch(&args, space),
        (None, None) => Err(Failure::usage("say which space, with --space")),
    }
}

fn apply(args: &ApplyArgs, path: &Path) -> Result<(), Failure> {
    let plan = files::plan(path)?;
    let space = space_of(args, &plan, path)?;
    let mut target = Target::of(&plan, path)?;
    if args.keep_indexes {
        target.indexes = None;
    }
    let nodes = Nodes::of(&args.server)?;
    let state = State::ask(&nodes, &space)?;
    let turnover = target.turnover(&state)?;
    let [come, go] = target.indexes(&state.definition)?;
    let has_indexes = come.is_empty() && go.is_empty();
    interrupt::listen()?;
    let begun = match &state.filling {
        Some(filling) if !filling.is(&state, &target)? => {
            return Err(Failure::refused(format!(
                "{space} is being given other subspaces already, {}: apply that plan to its end first, or drop it with `larder space apply --cancel --space {space}`",
                told::subspaces(&filling.subspaces, false)
            )));
        }
        Some(_) => {
            output::print_line(&format!("{space}: goes on to {}", target.text()))?;
            true
        }
        None if turnover.come.is_empty() && turnover.go.is_empty() && has_indexes => {
            match (&target.indexes, state.built) {
                (Some(_), Some(_)) => {
                    output::print_line(&format!("{space}: goes on to {}", target.text()))?;
                    true
                }
                _ => {
                    return Err(Failure::refused(format!(
                        "{space} has the subspaces of this plan already: {}; there is nothing to apply",
                        target.text()
                    )));
                }
            }
        }
        None => false,
    };
    if !begun {
        output::print_line(&shown::shown(
            &space,
            &plan,
            &state,
            &turnover,
            [&come, &go],
        ))?;
        ensure_wanted(args)?;
    }
    change::make(&nodes, &space, &target, begun)
}

/// Returns the space to which the plan is applied.
fn space_of(args: &ApplyArgs, plan: &Plan, path: &Path) -> Result<String, Failure> {
    match (&plan.space, &args.space) {
        (Some(planned), Some(asked)) if planned != asked => Err(Failure::refused(format!(
            "{} is a plan for {planned}, and not for {asked}: plan for that one, with `larder space plan --space {asked} --json`",
            path.display()
        ))),
        (Some(space), _) | (None, Some(space)) => Ok(space.clone()),
        (None, None) => Err(Failure::usage(format!(
            "{} does not say which space it is for: say it with --space",
            path.display()
        ))),
    }
}

fn ensure_wanted(args: &ApplyArgs) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    let (input, mut output) = (std::io::stdin(), std::io::stdout());
    if !input.is_terminal() {
        return Err(Failure::usage(
            "nothing is done without --yes where nobody can be asked",
        ));
    }
    let mut answer = String::new();
    let asked = write!(output, "\napply it? [y/N] ").and_then(|()| output.flush());
    let asked = asked.and_then(|()| input.lock().read_line(&mut answer));
    asked.map_err(Failure::io("ask"))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::refused("not applied")),
    }
}

fn cancel(nodes: &Nodes, space: &str) -> Result<(), Failure> {
    let state = State::ask(nodes, space)?;
    let Some(filling) = state.filling else {
        return Err(Failure::refused(format!(
            "no subspaces of {space} are being filled: there is nothing to cancel"
        )));
    };
    nodes.patient(&["FT.ALTER", space, "SUBSPACES", "CANCEL"])?;
    output::print_line(&format!(
        "{space} keeps {}; {} is dropped",
        told::subspaces(&state.definition.subspace_texts(), false),
        told::subspaces(&filling.subspaces, false)
    ))
}
