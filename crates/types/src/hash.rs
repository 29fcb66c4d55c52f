//! The two hash functions of larder's formats. Both are XXH3 (64 bits), whose output is fixed by
//! its specification, so a file written on one machine is read on any other.

use xxhash_rust::xxh3;

/// The 64-bit hash that orders records inside a segment.
pub fn key_hash(key: &[u8]) -> u64 {
    xxh3::xxh3_64(key)
}

/// A 32-bit checksum over `bytes`. The seed says where the bytes belong (a block's index, a
/// section's kind), so that intact bytes in the wrong place are found too.
pub fn checksum32(bytes: &[u8], seed: u64) -> u32 {
    // A seed of XXH3 itself would cost the derivation of a secret at each call.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (xxh3::xxh3_64(bytes) ^ seed.wrapping_mul(SPREAD).rotate_left(32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_xxh3_as_specified() {
        // Vectors of the XXH3 specification's reference implementation.
        assert_eq!(key_hash(b""), 0x2d06_8005_38d3_94c2);
        assert_ne!(checksum32(b"abc", 0), checksum32(b"abc", 1));
    }
}
