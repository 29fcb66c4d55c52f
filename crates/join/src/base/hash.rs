//! Hash maps keyed by byte strings. The hash has a fixed seed, because this crate draws no random numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub type ByteMap<V> = HashMap<Box<[u8]>, V, BuildHasherDefault<FoldHasher>>;

/// Folds eight bytes at a time with a 128-bit multiplication.
#[derive(Default, Clone, Copy)]
pub struct FoldHasher(u64);

const FOLD_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide as u64) ^ ((wide >> 64) as u64)
}

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut hash = self.0 ^ (bytes.len() as u64).wrapping_mul(FOLD_MULTIPLIER);
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let word = u64::from_le_bytes(chunk.try_into().expect("chunks of eight"));
            hash = fold(hash ^ word ^ 0x2d35_8dcc_aa6c_78a5, FOLD_MULTIPLIER);
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            hash = fold(
                hash ^ u64::from_le_bytes(word) ^ 0x8bb8_4b93_962e_acc9,
                FOLD_MULTIPLIER,
            );
        }
        self.0 = hash;
    }

    fn write_u32(&mut self, word: u32) {
        self.0 = fold(
            self.0 ^ u64::from(word) ^ 0x2d35_8dcc_aa6c_78a5,
            FOLD_MULTIPLIER,
        );
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word ^ 0x2d35_8dcc_aa6c_78a5, FOLD_MULTIPLIER);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
