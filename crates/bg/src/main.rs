//! The command line of bg.

use clap::{Parser, Subcommand};
use larder_bg::stores;

/// Rates a data store by social actions under an agreement, and proves what it read.
#[derive(Parser)]
#[command(name = "bg", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the data stores that bg knows
    Stores,
}

fn main() {
    match Arguments::parse().command {
        Command::Stores => {
            for known in stores::KNOWN {
                println!("{:<20} {}", known.name, known.about);
            }
        }
    }
}
