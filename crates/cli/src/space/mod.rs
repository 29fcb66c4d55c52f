//! `larder space`: spaces and their objects, over RESP. Each subcommand has its own file.
//!
//! `nodes` connects to a server or to the nodes of a cluster, and `info` parses the replies of `FT.INFO`.
//!
//! `record` records the workload of a space. `plan` computes the best subspaces for a workload: `files` reads its
//! inputs, `layout` reads the current subspaces, and `told` and `picture` format the result. `apply` applies a plan to
//! a space.

mod apply;
mod calibrate;
mod dump;
mod files;
mod info;
mod layout;
mod list;
mod load;
mod nodes;
mod plan;
mod plan_page;
mod plan_text;
mod record;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum SpaceCommand {
    /// List the spaces with their definitions and numbers of objects
    List(list::ListArgs),
    /// Record the workload of a space for planning
    Record(record::RecordArgs),
    /// Compute the best subspaces for a workload, and their expected cost
    Plan(plan::PlanArgs),
    /// Apply the subspaces of a plan to a space, without downtime
    Apply(apply::ApplyArgs),
    /// Measure the cost of each operation on these servers, for planning
    Calibrate(calibrate::CalibrateArgs),
    /// Load files into a space; each row becomes an object
    Load(load::LoadArgs),
    /// Write all objects of a space to a file that `larder space load` can read
    Dump(dump::SpaceDumpArgs),
}

pub fn run(command: SpaceCommand) -> Result<(), Failure> {
    match command {
        SpaceCommand::List(args) => list::run(args),
        SpaceCommand::Record(args) => record::run(args),
        SpaceCommand::Plan(args) => plan::run(args),
        SpaceCommand::Apply(args) => apply::run(args),
        SpaceCommand::Calibrate(args) => calibrate::run(args),
        SpaceCommand::Load(args) => load::run(args),
        SpaceCommand::Dump(args) => dump::run(args),
    }
}
