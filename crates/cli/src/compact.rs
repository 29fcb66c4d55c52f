//! `larder compact`: merges the layers of a delta, from its files, into one complete version.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use larder_batch::{Compaction, Manifest, Version};

use crate::build::build_time;
use crate::failure::Failure;
use crate::interrupt;
use crate::keygen;
use crate::output::{self, bytes, count, duration};
use crate::progress::{Progress, Unit};

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder compact built/friday --out built/friday-complete\n\nThe result is byte for byte the same as that of `larder build` from the same records, and of `larder store compact` on a server.\nExits with 4 if the version has only one layer."
)]
pub struct CompactArgs {
    /// A version built with --on; its base versions must be where they were during the build
    version: PathBuf,
    /// The output: a folder that is empty or does not exist
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
    /// Sign the version with the key in this file, created by `larder keygen`
    #[arg(long, value_name = "KEYFILE")]
    sign: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: CompactArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    if !args.version.join(Manifest::FILE).is_file() {
        return Err(Failure::usage(format!(
            "{} is not a version: the folder has no {}",
            args.version.display(),
            Manifest::FILE
        )));
    }
    let started = Instant::now();
    let version = Version::open(&args.version)?;
    if !version.manifest().is_delta() {
        return Err(Failure::refused(format!(
            "the version in {} has one layer; there is nothing to compact",
            args.version.display()
        )));
    }
    let layers = version.manifest().layer_count();
    let total = 2 * (version.manifest().key_bytes + version.manifest().value_bytes);
    let progress = Progress::new(Unit::Bytes, "compacting", args.json);
    let sign = args.sign.as_deref().map(keygen::read).transpose()?;
    let done = std::sync::atomic::AtomicU64::new(0);
    let pace = |bytes: u64| {
        let before = done.fetch_add(bytes, std::sync::atomic::Ordering::Relaxed);
        progress.set("compacting", before + bytes, total);
        !interrupt::is_interrupted()
    };
    let compaction = Compaction {
        version: &version,
        by: format!("larder {}", env!("CARGO_PKG_VERSION")),
        at: build_time()?,
        sign: sign.as_ref(),
        pace: &pace,
    };
    let made = compaction
        .write_new(&args.out)
        .map_err(|error| match error {
            larder_batch::Error::Cancelled => {
                Failure::interrupted("interrupted; no partial output was left")
            }
            error => error.into(),
        })?;
    drop(progress);
    if args.json {
        return output::print_json(&serde_json::json!({
            "store": made.store,
            "out": args.out.display().to_string(),
            "layers": layers,
            "record_count": made.record_count,
            "size_bytes": made.size_bytes,
            "digest": made.digest,
            "took_ms": started.elapsed().as_millis() as u64,
        }));
    }
    output::print_line(&format!(
        "compacted {layers} layers to {} records, {}, in {}: {}",
        count(made.record_count),
        bytes(made.size_bytes),
        duration(started.elapsed()),
        args.out.display()
    ))
}
