//! The small store of all server benchmarks: keys from `bench:10000000`, values of 100 bytes.

use std::path::Path;

use larder_batch::{BuildOptions, Builder};
use larder_types::Random;

use crate::Result;

pub const NAME: &str = "bench";
pub const VALUE_BYTES: usize = 100;

/// Returns the key in the form that clients use.
pub fn redis_key(i: u64) -> String {
    format!("{NAME}:{}", key(i))
}

pub fn key(i: u64) -> u64 {
    10_000_000 + i
}

/// Returns a value that begins with the tag of its version.
pub fn value(i: u64, tag: u8) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    let mut state = Random::new(i);
    for byte in &mut value {
        *byte = b'a' + (state.word() % 26) as u8;
    }
    value[0] = tag;
    value
}

/// Builds a version of `keys` records into `out`.
pub fn build(out: &Path, keys: u64, tag: u8) -> Result<()> {
    let builder = Builder::new(BuildOptions::new(NAME.parse()?), out)?;
    let mut writer = builder.writer();
    for i in 0..keys {
        writer.push(i, key(i).to_string().as_bytes(), &value(i, tag))?;
    }
    writer.close()?;
    builder.finish(&|_| {})?;
    Ok(())
}
