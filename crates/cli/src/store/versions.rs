//! `larder store verify`, `rollback`, `compact`, `swap` and `remove`: operations on versions.

use std::time::{Duration, Instant};

use clap::Args;
use larder_protocol::http::SwapResult;
use larder_types::{StoreName, VersionSelector};

use super::VersionArgs;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, bytes, count, duration};
use crate::progress::{Progress, Unit};
use crate::push;

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder store verify pymk\n    larder store verify pymk previous\n\nA rollback skips a damaged version until a verification finds it undamaged.\nExits with 6 if the version is damaged."
)]
pub struct VerifyArgs {
    /// The store
    store: StoreName,
    #[command(flatten)]
    version: VersionArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder store rollback pymk\n    larder store rollback pymk 3\n\nExits with 4 if the version is damaged, or if it is empty and the live version is not."
)]
pub struct RollbackArgs {
    /// The store
    store: StoreName,
    /// The version to roll back to, such as 3 or v3 [default: previous, which was live before the current version]
    #[arg(value_name = "VERSION")]
    place: Option<VersionSelector>,
    /// The same as VERSION
    #[arg(long, value_name = "VERSION", hide = true, conflicts_with = "place")]
    version: Option<VersionSelector>,
    /// Roll back even to a version that is empty or that a verification found damaged
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder store compact pymk\n\nReads continue during the compaction. The version with several layers is kept as the previous version.\nExits with 4 if the live version has only one layer, or the server cannot compact it."
)]
pub struct CompactArgs {
    /// The store
    store: StoreName,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    override_usage = "larder store swap [OPTIONS] <STORE> <VERSION>",
    after_help = "Examples:\n    larder store swap pymk 5\n    larder store swap pymk previous\n\nExits with 4 if the version is damaged, or if it is empty and the live version is not."
)]
pub struct SwapArgs {
    /// The store
    store: StoreName,
    /// The version to make live: a number such as 5 or v5, or previous
    #[arg(value_name = "VERSION", required_unless_present = "version")]
    place: Option<VersionSelector>,
    /// The same as VERSION
    #[arg(long, value_name = "VERSION", hide = true, conflicts_with = "place")]
    version: Option<VersionSelector>,
    /// Make the version live even if it is empty or a verification found it damaged
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    override_usage = "larder store remove [OPTIONS] <STORE> <VERSION|--all>",
    after_help = "Examples:\n    larder store remove pymk 1\n    larder store remove pymk --all"
)]
pub struct RemoveArgs {
    /// The store
    store: StoreName,
    /// The version to remove, which must not be live: a number such as 1 or v1, or previous
    #[arg(
        value_name = "VERSION",
        required_unless_present_any = ["all", "version"],
        conflicts_with = "all"
    )]
    place: Option<VersionSelector>,
    /// The same as VERSION
    #[arg(long, value_name = "VERSION", hide = true, conflicts_with_all = ["place", "all"])]
    version: Option<VersionSelector>,
    /// Remove the store with all its versions
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
    let report = admin.verify_with_progress(&args.store, args.version.named(), &tell)?;
    drop(progress);
    if args.json {
        return output::print_json(&report);
    }
    output::print_line(&format!(
        "{} version {} is intact: {} records, {} read and verified in {}",
        args.store,
        report.version,
        count(report.record_count),
        bytes(report.size_bytes),
        duration(started.elapsed())
    ))
}

pub fn rollback(args: RollbackArgs) -> Result<(), Failure> {
    let to = args.place.or(args.version);
    let admin = args.server.admin()?;
    let result = admin.rollback_forced(&args.store, to, args.force)?;
    if args.json {
        return output::print_json(&result);
    }
    output::print_line(&swapped(&args.store, &result, "live again"))
}

pub fn swap(args: SwapArgs) -> Result<(), Failure> {
    // The command line has one of the two.
    let to = args.place.or(args.version).unwrap_or(VersionSelector::Live);
    let admin = args.server.admin()?;
    let result = admin.swap_forced(&args.store, to, args.force)?;
    if args.json {
        return output::print_json(&result);
    }
    output::print_line(&swapped(&args.store, &result, "live"))
}

pub fn compact(args: CompactArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    let started = Instant::now();
    let admin = args.server.admin()?;
    let begun = admin.compact(&args.store)?;
    let done = push::follow(&admin, &args.store, begun, "compacting", args.json)?;
    if args.json {
        return output::print_json(&serde_json::json!({
            "store": args.store,
            "live": done.version,
            "took_ms": started.elapsed().as_millis() as u64,
        }));
    }
    output::print_line(&format!(
        "{} version {} is live, of one layer (in {})",
        args.store,
        done.version,
        duration(started.elapsed())
    ))
}

pub fn remove(args: RemoveArgs) -> Result<(), Failure> {
    let admin = args.server.admin()?;
    let (removed, text) = match args.place.or(args.version) {
        Some(named) => {
            let number = admin.remove_version(&args.store, named)?;
            let removed = number.map_or(named, VersionSelector::from);
            (
                serde_json::json!(removed),
                format!("{} version {removed} is removed", args.store),
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
