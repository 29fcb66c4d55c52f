//! The hash that orders keys: XXH3 (64 bits). Its specification fixes the output, so files are portable between
//! machines.

use xxhash_rust::xxh3;

/// Returns the 64-bit hash that orders records inside a segment.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxh3::xxh3_64(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_xxh3_as_specified() {
        // A test vector of the XXH3 reference implementation.
        assert_eq!(key_hash(b""), 0x2d06_8005_38d3_94c2);
    }
}
