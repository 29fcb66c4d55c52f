//! `larder store`: inspects and changes a server's stores, over HTTP.

mod list;
pub mod records;
mod versions;

use clap::{Args, Subcommand};
use larder_types::VersionSelector;

use crate::failure::Failure;

#[derive(Subcommand)]
pub enum StoreCommand {
    /// List the stores with their live versions
    List(list::ListArgs),
    /// Show one store: its versions, and the pull in progress
    Info(list::InfoArgs),
    /// Print the value of one key
    Get(records::StoreGetArgs),
    /// Print a random sample of records
    Sample(records::SampleArgs),
    /// Print every record as JSON lines
    Dump(records::StoreDumpArgs),
    /// Compare two versions key by key
    Diff(records::DiffArgs),
    /// Read a complete version and check every checksum
    Verify(versions::VerifyArgs),
    /// Make the previous version, or a given one, live again
    Rollback(versions::RollbackArgs),
    /// Merge all layers of the live version into one complete version
    Compact(versions::CompactArgs),
    /// Make a kept version live
    Swap(versions::SwapArgs),
    /// Remove a store with all its versions, or one version that is not live
    Remove(versions::RemoveArgs),
}

/// A version, by default the live one.
#[derive(Args)]
pub struct VersionArgs {
    /// A number such as 3 or v3, or previous [default: live]
    #[arg(value_name = "VERSION")]
    place: Option<VersionSelector>,
    /// The same as VERSION
    #[arg(long, value_name = "VERSION", conflicts_with = "place")]
    version: Option<VersionSelector>,
}

impl VersionArgs {
    /// Returns the given version; `None` for the live one.
    fn named(&self) -> Option<VersionSelector> {
        self.place.or(self.version)
    }
}

pub fn run(command: StoreCommand) -> Result<(), Failure> {
    match command {
        StoreCommand::List(args) => list::list(args),
        StoreCommand::Info(args) => list::info(args),
        StoreCommand::Get(args) => records::get(args),
        StoreCommand::Sample(args) => records::sample(args),
        StoreCommand::Dump(args) => records::dump(args),
        StoreCommand::Diff(args) => records::diff(args),
        StoreCommand::Verify(args) => versions::verify(args),
        StoreCommand::Rollback(args) => versions::rollback(args),
        StoreCommand::Compact(args) => versions::compact(args),
        StoreCommand::Swap(args) => versions::swap(args),
        StoreCommand::Remove(args) => versions::remove(args),
    }
}
