//! `larder cluster`: what is done for and with a cluster of servers.

mod certs;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Make certificates for TLS: an authority of the cluster's own, and what it signs for each node
    Certs(certs::CertsArgs),
}

pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Certs(args) => certs::run(args),
    }
}
