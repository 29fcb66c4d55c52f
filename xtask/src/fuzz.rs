//! Runs every decoder under libFuzzer, which needs a nightly toolchain and cargo-fuzz.
//!
//! Every `cargo test` runs the same entry functions over the seeds and a few thousand mutations.

use crate::ci;

/// The targets in `fuzz/fuzz_targets`.
const TARGETS: [&str; 19] = [
    "resp",
    "dump",
    "reply",
    "segment",
    "version",
    "manifest",
    "journal",
    "peer",
    "replication",
    "wire",
    "pgoutput",
    "trace",
    "bg_text",
    "join",
    "csv",
    "json_lines",
    "bundle",
    "collected",
    "space",
];

pub fn run(seconds_each: &str) -> Result<(), String> {
    if seconds_each.parse::<u32>().is_err() {
        return Err(format!(
            "the duration of fuzz must be an integer number of seconds, not {seconds_each:?}"
        ));
    }
    if !ci::installed("cargo-fuzz") {
        return Err("cargo-fuzz is not installed: cargo install cargo-fuzz; rustup toolchain install nightly".into());
    }
    for target in TARGETS {
        // libFuzzer stores its findings here for the next run, but does not create the folder.
        let corpus = format!("fuzz/corpus/{target}");
        std::fs::create_dir_all(&corpus)
            .map_err(|error| format!("cannot make folder {corpus}: {error}"))?;
        // A version is built from a segment.
        let seeds = match target {
            "version" => "segment",
            target => target,
        };
        ci::step(
            target,
            &format!(
                "cargo +nightly fuzz run --fuzz-dir fuzz --features libfuzzer {target} fuzz/corpus/{target} fuzz/seeds/{seeds} -- \
                 -max_total_time={seconds_each} -rss_limit_mb=2048"
            ),
        )?;
    }
    Ok(())
}
