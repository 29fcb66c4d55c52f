//! The small store that all server benchmarks serve: keys `bench:10000000` and up, values of 100 bytes.

use std::path::Path;

use larder_batch::{BuildOptions, Builder};

use crate::Result;

pub const NAME: &str = "bench";
pub const VALUE_BYTES: usize = 100;

/// The key as a client asks for it.
pub fn redis_key(i: u64) -> String {
    format!("{NAME}:{}", key(i))
}

fn key(i: u64) -> u64 {
    10_000_000 + i
}

/// A value that begins with its version's tag.
pub fn value(i: u64, tag: u8) -> [u8; VALUE_BYTES] {
    let mut value = [0; VALUE_BYTES];
    let mut state = Random(i);
    for byte in &mut value {
        *byte = b'a' + (state.next() % 26) as u8;
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

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
