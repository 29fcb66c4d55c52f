//! The binary `larder`: one file per command, this table, and nothing else here.
//!
//! To follow a data set in, read `push`, then `build`. To follow the demo's story, read `demo`.
//! Every command ends in `Ok` or in a [`failure::Failure`], whose exit code scripts can trust.

mod allocator;
mod build;
mod cluster;
mod command_line;
mod compact;
mod config;
mod connection;
mod demo;
mod ending;
mod failure;
mod in_place;
mod interrupt;
mod keygen;
mod log;
mod output;
mod progress;
mod push;
mod quality;
mod serve;
mod space;
mod store;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Keeps derived data ready to serve: build a data set, push it, read it with any Redis client
#[derive(Parser)]
#[command(name = "larder", version, after_help = failure::EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a server: one process, one data folder
    Serve(serve::ServeArgs),
    /// Build a version from files, without a server
    Build(build::BuildCommand),
    /// Make one whole version of a version that was built on others
    Compact(compact::CompactArgs),
    /// Make a key that signs versions
    Keygen(keygen::KeygenArgs),
    /// Build a version and make it live on a server
    Push(push::PushArgs),
    /// Print values of a version where its files lie, without a server
    Get(in_place::GetArgs),
    /// Print every record of a version where its files lie, as JSON lines
    Dump(in_place::DumpArgs),
    /// Look at stores, check them, roll them back
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Spaces, whose objects are found by any attribute: look at them
    #[command(subcommand)]
    Space(space::SpaceCommand),
    /// A cluster of servers: run one on this machine, look at one, change its nodes, make certificates
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Check, show or explain the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// See it work: "people you may know", built, served, replaced and rolled back
    Demo(demo::DemoArgs),
}

fn main() -> ExitCode {
    allocator::give_back_at_once();
    let mut command = command_line::with_negative_numbers(Cli::command());
    let matches = command.get_matches_mut();
    let cli =
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    let done = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Build(command) => build::run(command),
        Command::Compact(args) => compact::run(args),
        Command::Keygen(args) => keygen::run(&args),
        Command::Push(args) => push::run(args),
        Command::Get(args) => in_place::get(args),
        Command::Dump(args) => in_place::dump(args),
        Command::Store(command) => store::run(command),
        Command::Space(command) => space::run(command),
        Command::Cluster(command) => cluster::run(command),
        Command::Config(command) => config::run(command),
        Command::Demo(args) => demo::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let message = output::without_controls(&failure.message, "\n\t");
            eprintln!("larder: {message}");
            ExitCode::from(failure.exit_code)
        }
    }
}
