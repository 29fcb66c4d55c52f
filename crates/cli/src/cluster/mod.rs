//! `larder cluster`: what is done for and with a cluster of servers.
//!
//! `local` runs one on this machine, `demo` tells a story of one, `certs` makes certificates for the nodes of any. The others look at a cluster and change it, over
//! `/v1/cluster` of any of its nodes: `status`, `moves` (what moves, and the plan of it), `asks` (join, drain, keep, remove, abort-push), `settings`, `recover` (recover, backup).

mod asks;
mod certs;
mod demo;
mod local;
mod moves;
mod recover;
mod settings;
mod status;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum ClusterCommand {
    /// Run a cluster on this machine: etcd and some nodes, until ctrl-c
    Local(local::LocalArgs),
    /// See one at work on this machine: three nodes, one of which dies and is replaced
    Demo(demo::DemoArgs),
    /// Make certificates for TLS: an authority of the cluster's own, and what it signs for each node
    Certs(certs::CertsArgs),
    /// Show the nodes, what each has, and what is moving or missing
    Status(status::StatusArgs),
    /// Say what would move if nodes came or went, and change nothing
    Plan(moves::PlanArgs),
    /// Give slots to a node that has registered
    Join(asks::JoinArgs),
    /// Move a node's slots elsewhere; it stays a member
    Drain(asks::DrainArgs),
    /// Take back a drain or a removal
    Keep(asks::KeepArgs),
    /// Move a node's slots elsewhere, and forget it
    Remove(asks::RemoveArgs),
    /// Give up the push of a store that is under way, whoever has begun it
    AbortPush(asks::AbortPushArgs),
    /// Write the cluster's map again from what the nodes have kept, after etcd has lost it
    Recover(recover::RecoverArgs),
    /// Save the cluster's map to a file
    Backup(recover::BackupArgs),
    /// Show or change the settings that all nodes have in common
    Set(settings::SetArgs),
}

pub fn run(command: ClusterCommand) -> Result<(), Failure> {
    match command {
        ClusterCommand::Local(args) => local::run(args),
        ClusterCommand::Demo(args) => demo::run(args),
        ClusterCommand::Certs(args) => certs::run(args),
        ClusterCommand::Status(args) => status::run(args),
        ClusterCommand::Plan(args) => moves::plan(args),
        ClusterCommand::Join(args) => asks::join(args),
        ClusterCommand::Drain(args) => asks::drain(args),
        ClusterCommand::Keep(args) => asks::keep(args),
        ClusterCommand::Remove(args) => asks::remove(args),
        ClusterCommand::AbortPush(args) => asks::abort_push(args),
        ClusterCommand::Recover(args) => recover::recover(args),
        ClusterCommand::Backup(args) => recover::backup(args),
        ClusterCommand::Set(args) => settings::set(args),
    }
}
