//! `larder cluster`: runs, inspects and changes clusters of servers.
//!
//! `local` runs a cluster on this machine, `demo` demonstrates one, and `certs` creates certificates. The other
//! commands use `/v1/cluster` of any node: `status`, `moves` (current and planned moves), `asks` (join, drain, keep,
//! remove, abort-push), `settings`, and `recover` (recover, backup).

mod certs;
mod demo;
mod local;
mod membership;
mod moves;
mod recover;
mod settings;
mod status;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Run a cluster on this machine, with etcd and several nodes, until ctrl-c
    Local(local::LocalArgs),
    /// Run a demonstration on this machine: three nodes, one of which is killed and replaced
    Demo(demo::DemoArgs),
    /// Create TLS certificates: a certificate authority, and a certificate for each node
    Certs(certs::CertsArgs),
    /// Show the nodes, their slots, and slots that are moving or lack copies
    Status(status::StatusArgs),
    /// Show what would move if nodes were added or removed, without changing anything
    Plan(moves::PlanArgs),
    /// Assign slots to a registered node
    Join(membership::JoinArgs),
    /// Move all slots off a node; it remains a member
    Drain(membership::DrainArgs),
    /// Reverse a drain or a removal
    Keep(membership::KeepArgs),
    /// Move all slots off a node, and remove it from the cluster
    Remove(membership::RemoveArgs),
    /// Abort the push of a store that is in progress, whoever started it
    AbortPush(membership::AbortPushArgs),
    /// Rebuild the cluster map from the nodes' copies after etcd has lost it
    Recover(recover::RecoverArgs),
    /// Save the cluster map to a file
    Backup(recover::BackupArgs),
    /// Show or change the settings of the cluster, which all nodes share
    Set(settings::SetArgs),
}

pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Local(args) => local::run(args),
        ClusterCommand::Demo(args) => demo::run(args),
        ClusterCommand::Certs(args) => certs::run(args),
        ClusterCommand::Status(args) => status::run(args),
        ClusterCommand::Plan(args) => moves::plan(args),
        ClusterCommand::Join(args) => membership::join(args),
        ClusterCommand::Drain(args) => membership::drain(args),
        ClusterCommand::Keep(args) => membership::keep(args),
        ClusterCommand::Remove(args) => membership::remove(args),
        ClusterCommand::AbortPush(args) => membership::abort_push(args),
        ClusterCommand::Recover(args) => recover::recover(args),
        ClusterCommand::Backup(args) => recover::backup(args),
        ClusterCommand::Set(args) => settings::set(args),
    }
}
