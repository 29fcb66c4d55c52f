//! The cost of a daily change of a store compared with a complete build, and the cost of lookups in several layers
//! compared with one. Runs in process on one core, with all data in memory. Results are CPU times, the best of all
//! rounds.

use std::path::Path;
use std::sync::Arc;

use clap::Args;
use larder_batch::{Base, BuildOptions, Builder, Compaction, DeltaBase, Manifest, Version};
use larder_types::Random;

use crate::Result;
use crate::store;
use crate::twip::cpu_seconds;

#[derive(Args)]
pub struct IncrementsArgs {
    /// Number of records
    #[arg(long, default_value_t = 2_000_000)]
    keys: u64,
    /// Percentage of records that change in a day
    #[arg(long, default_value_t = 5)]
    percent: u64,
    #[arg(long, default_value_t = 7)]
    layers: u64,
    /// Lookups of each kind per round
    #[arg(long, default_value_t = 1_000_000)]
    reads: u64,
    #[arg(long, default_value_t = 7)]
    rounds: u32,
}

const BATCH_KEYS: usize = 100;

pub fn run(args: &IncrementsArgs) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name);
    let began = cpu_seconds();
    store::build(&place("v1"), args.keys, b'a')?;
    let whole_seconds = cpu_seconds() - began;
    let mut below = place("v1");
    let whole_bytes = bytes_of(&below)?;
    let mut of_delta: Option<(f64, u64)> = None;
    for day in 2..=args.layers {
        let out = place(&format!("v{day}"));
        let began = cpu_seconds();
        build_on(&below, &out, args, day)?;
        let cost = (cpu_seconds() - began, bytes_of(&out)?);
        let first = of_delta.get_or_insert(cost);
        println!(
            "day {day}: {:5.2} % of a whole build's bytes, {:5.2} % of its CPU time",
            100.0 * cost.1 as f64 / whole_bytes as f64,
            100.0 * cost.0 / whole_seconds
        );
        first.0 = first.0.min(cost.0);
        below = out;
    }
    let layered = Version::open(&below)?;
    let one = place("one");
    let compaction = Compaction {
        version: &layered,
        by: String::new(),
        at: 0,
        sign: None,
        pace: &|_| true,
    };
    let began = cpu_seconds();
    compaction.write_new(&one)?;
    println!(
        "compaction: {:5.1} % of a whole build's CPU time",
        100.0 * (cpu_seconds() - began) / whole_seconds
    );
    lookups(args, &Version::open(&one)?, &layered)
}

fn bytes_of(folder: &Path) -> Result<u64> {
    let text = std::fs::read(folder.join(Manifest::FILE))?;
    let manifest = Manifest::decode("a version", &text)?;
    Ok(manifest.own_bytes() + text.len() as u64)
}

/// Changes every `step`-th record, different ones on each day.
fn build_on(base: &Path, out: &Path, args: &IncrementsArgs, day: u64) -> Result<()> {
    let base = Base::open(base, &base.to_string_lossy(), &out.to_string_lossy())?;
    let options = BuildOptions {
        delta_base: Some(DeltaBase {
            base: Arc::new(base),
            is_full: false,
        }),
        ..BuildOptions::new(store::NAME.parse()?)
    };
    let builder = Builder::new(options, out)?;
    let mut writer = builder.writer();
    let step = (100 / args.percent) as usize;
    for i in (day..args.keys).step_by(step) {
        let value = store::value(i, b'a' + day as u8);
        writer.push(i, store::key(i).to_string().as_bytes(), &value)?;
    }
    writer.close()?;
    builder.finish(&|_| {})?;
    Ok(())
}

fn lookups(args: &IncrementsArgs, one: &Version, layered: &Version) -> Result<()> {
    for version in [one, layered] {
        version.warm(&|_| true);
        if !version.is_resident() {
            return Err("the version does not stay in memory; give --keys less".into());
        }
    }
    let mut random = Random::new(7);
    let mut drawn = |from: u64| -> Vec<String> {
        let all = 0..args.reads;
        all.map(|_| store::key(from + random.word() % args.keys).to_string())
            .collect()
    };
    let hits = drawn(0);
    // After all existing keys.
    let misses = drawn(args.keys);
    for (name, keys) in [("hit", &hits), ("miss", &misses)] {
        let single = best_of(
            args,
            [one, layered].map(|version| move || get_each(version, keys)),
        )?;
        let together = best_of(
            args,
            [one, layered].map(|version| move || get_many(version, keys)),
        )?;
        for (how, [one, layered]) in [("one by one", single), ("100 at once", together)] {
            println!(
                "{name:>4}, {how:>11}: one layer {one:6.1} ns, {} layers {layered:6.1} ns, {:.2} times",
                args.layers,
                layered / one
            );
        }
    }
    Ok(())
}

/// Returns nanoseconds per lookup. The two kinds take turns, so that both meet the same conditions.
fn best_of<F: Fn() -> Result<u64>>(args: &IncrementsArgs, kinds: [F; 2]) -> Result<[f64; 2]> {
    let mut best = [f64::INFINITY; 2];
    for _ in 0..args.rounds {
        for (lookups, best) in kinds.iter().zip(&mut best) {
            let began = cpu_seconds();
            std::hint::black_box(lookups()?);
            *best = best.min((cpu_seconds() - began) * 1e9 / args.reads as f64);
        }
    }
    Ok(best)
}

fn get_each(version: &Version, keys: &[String]) -> Result<u64> {
    let mut sum = 0;
    for key in keys {
        let value = version.get(key.as_bytes())?;
        sum += value.map_or(0, |value| u64::from(value[50]));
    }
    Ok(sum)
}

fn get_many(version: &Version, keys: &[String]) -> Result<u64> {
    let (mut sum, mut found) = (0, Vec::new());
    for keys in keys.chunks(BATCH_KEYS) {
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        version.get_many(&keys, &mut found);
        for value in found.drain(..) {
            sum += value?.map_or(0, |value| u64::from(value[50]));
        }
    }
    Ok(sum)
}
