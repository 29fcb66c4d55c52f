//! `larder store verify`, `rollback`, `swap` and `remove`: what is done to versions as a whole.

use std::time::{Duration, Instant};

use clap::Args;
use larder_protocol::http::SwapResult;
use larder_types::StoreName;

use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output::{self, bytes, count, duration};
use crate::progress::{Progress, Unit};

#[derive(Args)]
#[command(
    after_help = "Example:\n    larder store verify pymk\n\nExits with 6 when the version is damaged."
)]
pub struct VerifyArgs {
    /// The store
    store: StoreName,
    /// A version that is not the live one
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder store rollback pymk\n    larder store rollback pymk --version 3"
)]
pub struct RollbackArgs {
    /// The store
    store: StoreName,
    /// The version to return to; without it, the one that was live before
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n    larder store swap pymk 5")]
pub struct SwapArgs {
    /// The store
    store: StoreName,
    /// The version to make live
    version: u64,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder store remove pymk --version 1\n    larder store remove pymk --all"
)]
pub struct RemoveArgs {
    /// The store
    store: StoreName,
    /// One version, which must not be live
    #[arg(
        long,
        value_name = "N",
        required_unless_present = "all",
        conflicts_with = "all"
    )]
    version: Option<u64>,
    /// The store with every version: readers then find no such store
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn verify(args: VerifyArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let admin = args.server.admin()?;
    let progress = Progress::new(Unit::Bytes, "verifying", args.json);
    let tell = |done, total| progress.set("verifying", done, total);
    let report = admin.verify_telling(&args.store, args.version, &tell)?;
    drop(progress);
    if args.json {
        return output::print_json(&report);
    }
    output::print_line(&format!(
        "{} version {} is whole: {} records, {} read and checked in {}",
        args.store,
        report.version,
        count(report.record_count),
        bytes(report.size_bytes),
        duration(started.elapsed())
    ))
}

pub fn rollback(args: RollbackArgs) -> Result<(), Failure> {
    let result = args.server.admin()?.rollback(&args.store, args.version)?;
    if args.json {
        return output::print_json(&result);
    }
    output::print_line(&swapped(&args.store, &result, "live again"))
}

pub fn swap(args: SwapArgs) -> Result<(), Failure> {
    let result = args.server.admin()?.swap(&args.store, args.version)?;
    if args.json {
        return output::print_json(&result);
    }
    output::print_line(&swapped(&args.store, &result, "live"))
}

pub fn remove(args: RemoveArgs) -> Result<(), Failure> {
    let admin = args.server.admin()?;
    let (removed, text) = match args.version {
        Some(version) => {
            admin.remove_version(&args.store, version)?;
            (
                serde_json::json!(version),
                format!("{} version {version} is removed", args.store),
            )
        }
        None => {
            admin.remove_store(&args.store)?;
            (
                serde_json::json!("all"),
                format!("{} is removed with all its versions", args.store),
            )
        }
    };
    if args.json {
        return output::print_json(&serde_json::json!({ "store": args.store, "removed": removed }));
    }
    output::print_line(&text)
}

fn swapped(store: &StoreName, result: &SwapResult, state: &str) -> String {
    format!(
        "{store} version {} is {state} (in {})",
        result.live,
        duration(Duration::from_micros(result.took_us))
    )
}
