//! `larder space`: spaces and their objects, over RESP. One file per subcommand.
//!
//! `nodes` is how they all reach a server, or the nodes of a cluster; `info` reads what `FT.INFO` tells of a space.
//!
//! `record` has a server say what is done with a space. `plan` computes which subspaces are best for a
//! workload: `files` reads what it is given, `layout` asks what there is now, `told` and `picture` show what comes of it, and `apply` gives a space what was planned.

mod apply;
mod calibrate;
mod dump;
mod files;
mod info;
mod layout;
mod list;
mod load;
mod nodes;
mod picture;
mod plan;
mod record;
mod told;

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
    Dump(dump::DumpArgs),
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
