//! Lookups in a version, in process on one core: from the mapped file, many at a time, and by positional reads. All
//! data is in the page cache, so the results compare the methods, not the disk. Results are CPU times, the best of all
//! rounds.

use clap::Args;
use larder_batch::Version;
use larder_types::Random;

use crate::Result;

use crate::store;
use crate::twip::cpu_seconds;

#[derive(Args)]
pub struct LookupsArgs {
    /// Number of records
    #[arg(long, default_value_t = 2_000_000)]
    keys: u64,
    /// Lookups of each kind per round
    #[arg(long, default_value_t = 1_000_000)]
    reads: u64,
    #[arg(long, default_value_t = 7)]
    rounds: u32,
}

const BATCH_KEYS: usize = 64;

pub fn run(args: &LookupsArgs) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("version");
    store::build(&out, args.keys, b'a')?;
    // A version that is opened but not warmed counts as not resident, and is read by position. Its data is in the page
    // cache nevertheless.
    let by_position = Version::open(&out)?;
    let mapped = Version::open(&out)?;
    mapped.warm(&|_| true);
    if !mapped.is_resident() {
        return Err("the version does not stay in memory; give --keys less".into());
    }
    let mut random = Random::new(7);
    let keys: Vec<String> = (0..args.reads)
        .map(|_| store::key(random.word() % args.keys).to_string())
        .collect();
    let one = |version: &Version| -> Result<u64> {
        let mut sum = 0;
        for key in &keys {
            sum += version
                .get(key.as_bytes())?
                .map_or(0, |value| u64::from(value[50]));
        }
        Ok(sum)
    };
    let many = |version: &Version| -> Result<u64> {
        let (mut sum, mut found) = (0, Vec::new());
        for keys in keys.chunks(BATCH_KEYS) {
            let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
            version.get_many(&keys, &mut found);
            for value in found.drain(..) {
                sum += value?.map_or(0, |value| u64::from(value[50]));
            }
        }
        Ok(sum)
    };
    let kinds: [(&str, &dyn Fn() -> Result<u64>); 3] = [
        ("map", &|| one(&mapped)),
        ("map, 64 together", &|| many(&mapped)),
        ("by position", &|| one(&by_position)),
    ];
    let mut best = [f64::INFINITY; 3];
    for _ in 0..args.rounds {
        for ((_, lookups), best) in kinds.iter().zip(&mut best) {
            let began = cpu_seconds();
            std::hint::black_box(lookups()?);
            *best = best.min(cpu_seconds() - began);
        }
    }
    for ((name, _), seconds) in kinds.iter().zip(best) {
        println!(
            "{name:>18}  {:7.1} ns a lookup",
            seconds * 1e9 / args.reads as f64
        );
    }
    Ok(())
}
