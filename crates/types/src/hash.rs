//! The hash that orders keys: XXH3 (64 bits), whose output is fixed by its specification, so a file
//! written on one machine is read on any other.

use xxhash_rust::xxh3;

/// The 64-bit hash that orders records inside a segment.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxh3::xxh3_64(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_xxh3_as_specified() {
        // Vectors of the XXH3 specification's reference implementation.
        assert_eq!(key_hash(b""), 0x2d06_8005_38d3_94c2);
    }
}
