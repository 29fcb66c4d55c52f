//! Stores: lookups in a version, and the build of one.

use std::path::Path;

use larder_batch::{BuildOptions, Builder, Version};
use larder_protocol::resp::{Encoder, Proto};
use larder_types::Random;

use crate::{Result, count};

/// Records of the version. Its segments have several blocks.
const RECORDS: u64 = 20_000;
/// Records of a counted build.
const BUILT: u64 = 2_000;
const LOOKUPS: u64 = 1_000;

pub fn count_stores() -> Result<()> {
    let folder = Path::new("version");
    build(folder, RECORDS)?;
    let version = Version::open(folder)?;
    version.warm(&|_| true);
    let mut random = Random::new(1);
    let mut keys = |from: u64| -> Vec<String> {
        let keys = (0..=LOOKUPS).map(|_| key(from + random.below(RECORDS)));
        keys.collect()
    };
    let (present, absent) = (keys(0), keys(RECORDS));
    let get = |key: &str| version.get(key.as_bytes()).expect("the version is intact");
    count("store get, hit", LOOKUPS, 1, &mut |call| {
        let value = get(&present[call as usize]).expect("the key is present");
        std::hint::black_box(value[50]);
    });
    count("store get, miss", LOOKUPS, 1, &mut |call| {
        assert!(get(&absent[call as usize]).is_none());
    });
    let keys: Vec<&[u8]> = present[..100].iter().map(|key| key.as_bytes()).collect();
    let (mut found, mut reply) = (Vec::new(), Vec::new());
    count("store MGET of 100 keys", 10, 1, &mut |_| {
        reply.clear();
        version.get_many(&keys, &mut found);
        let mut encoder = Encoder {
            out: &mut reply,
            proto: Proto::Resp3,
        };
        encoder.array(found.len());
        for value in found.drain(..) {
            let value = value.expect("the version is intact");
            encoder.bulk(&value.expect("the key is present"));
        }
    });
    count("store build, per record", 1, BUILT, &mut |call| {
        build(Path::new(&format!("built-{call}")), BUILT).expect("the folder is empty");
    });
    Ok(())
}

fn key(number: u64) -> String {
    (10_000_000 + number).to_string()
}

/// Builds a version with values of 100 bytes, as in the other benchmarks of stores.
fn build(folder: &Path, records: u64) -> Result<()> {
    let builder = Builder::new(BuildOptions::new("counts".parse()?), folder)?;
    let mut writer = builder.writer();
    let mut random = Random::new(2);
    for number in 0..records {
        let mut value = [0; 100];
        value.fill_with(|| b'a' + random.below(26) as u8);
        writer.push(number, key(number).as_bytes(), &value)?;
    }
    writer.close()?;
    builder.finish(&|_| {})?;
    Ok(())
}
