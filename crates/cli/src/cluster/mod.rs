//! `larder cluster`: what is done for and with a cluster of servers.
//!
//! `local` runs one on this machine, `certs` makes certificates for the nodes of any.

mod certs;
mod local;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Run a cluster on this machine: etcd and some nodes, until ctrl-c
    Local(local::LocalArgs),
    /// Make certificates for TLS: an authority of the cluster's own, and what it signs for each node
    Certs(certs::CertsArgs),
}

pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Local(args) => local::run(args),
        ClusterCommand::Certs(args) => certs::run(args),
    }
}
