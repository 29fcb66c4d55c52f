//! `larder space`: spaces and their objects, over RESP. One file per subcommand.
//!
//! `nodes` is how they all reach a server, or the nodes of a cluster; `info` reads what `FT.INFO` tells of a space.

mod info;
mod list;
mod nodes;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum SpaceCommand {
    /// List the spaces: what each has, and how many objects
    List(list::ListArgs),
}

pub fn run(command: SpaceCommand) -> Result<(), Failure> {
    match command {
        SpaceCommand::List(args) => list::run(args),
    }
}
