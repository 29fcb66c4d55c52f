//! The binary `larder`. This file lists the commands; each command has its own file.
//!
//! To follow a data set into the server, read `push`, then `build`. The demo is in `demo`. Every command returns `Ok`
//! or a [`failure::Failure`], whose exit code scripts can rely on.

mod allocator;
mod build;
mod clock;
mod cluster;
mod command_line;
mod compact;
mod config;
mod connection;
mod demo;
mod failure;
mod in_place;
mod interrupt;
mod keygen;
mod log;
mod output;
mod progress;
mod push;
mod quality;
mod secret_file;
mod serve;
mod shutdown;
mod space;
mod store;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Serves derived data: build a data set, push it to a server, and read it with any Redis client
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
    /// Merge all layers of a delta into one complete version
    Compact(compact::CompactArgs),
    /// Create a key for signing versions
    Keygen(keygen::KeygenArgs),
    /// Build a version and make it live on a server
    Push(push::PushArgs),
    /// Print values of a version from its files, without a server
    Get(in_place::InPlaceGetArgs),
    /// Print every record of a version from its files, as JSON lines
    Dump(in_place::InPlaceDumpArgs),
    /// Inspect, verify, roll back and remove stores and their versions
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Load, dump, plan and inspect spaces
    #[command(subcommand)]
    Space(space::SpaceCommand),
    /// Run, inspect and change clusters, and create their certificates
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Check, show or describe the configuration
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Run a demonstration: build, serve, replace and roll back a "people you may know" data set
    Demo(demo::DemoArgs),
}

fn main() -> ExitCode {
    allocator::purge_immediately();
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
