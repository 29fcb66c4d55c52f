//! A split block Bloom filter over the hashes of a segment's keys. It rejects most absent keys from memory, without a
//! disk read.
//!
//! Source: Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007), in the form that
//! Parquet specifies: lines of 256 bits, with one bit set in each of their eight words. The hash's high bits select
//! the line, so a build, which processes hashes in order, fills the filter from front to back. With 10 bits per key,
//! about one absent key in a hundred passes.

use super::block::prefetch;
use super::memory::IndexBytes;

pub const BITS_PER_KEY: u64 = 10;
/// For filters of deltas. A lookup queries one filter per layer, and each false positive costs a record read.
pub const BITS_PER_KEY_DELTA: u64 = 16;

const WORDS: usize = 8;
const LINE_SIZE: usize = WORDS * 4;
const SALT: [u32; WORDS] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// The bits of a hash within its line.
pub type Mask = [u32; WORDS];

/// A filter under construction.
pub struct FilterBuilder {
    words: Vec<u32>,
}

impl FilterBuilder {
    /// Creates a filter of at least `bits` bits. Its number of lines is a multiple of `multiple`, so that the next
    /// section can be aligned to a cache line.
    pub fn for_bits(bits: u64, multiple: u64) -> FilterBuilder {
        let lines = bits
            .div_ceil(LINE_SIZE as u64 * 8)
            .max(1)
            .next_multiple_of(multiple);
        FilterBuilder {
            words: vec![0; lines as usize * WORDS],
        }
    }

    pub fn insert(&mut self, hash: u64) {
        let start = line_index(hash, self.words.len() / WORDS) * WORDS;
        for (word, bit) in self.words[start..start + WORDS].iter_mut().zip(mask(hash)) {
            *word |= bit;
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        self.words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }
}

/// A filter in the encoding of the file.
pub struct Filter {
    bytes: IndexBytes,
    lines: usize,
}

impl Filter {
    /// Returns `None` if `bytes` is not a multiple of the line size.
    pub fn decode(bytes: IndexBytes) -> Option<Filter> {
        let lines = bytes.len() / LINE_SIZE;
        (lines > 0 && bytes.len().is_multiple_of(LINE_SIZE)).then_some(Filter { bytes, lines })
    }

    /// Returns false only if `hash` was never inserted. Reads one cache line.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        self.may_contain_mask(hash, &mask(hash))
    }

    /// Like [`Filter::may_contain`], with a precomputed mask, for lookups that query several filters.
    #[inline]
    pub fn may_contain_mask(&self, hash: u64, mask: &Mask) -> bool {
        let line = &self.bytes[line_index(hash, self.lines) * LINE_SIZE..][..LINE_SIZE];
        let mut missing = 0;
        for (word, bit) in line.chunks_exact(4).zip(mask) {
            missing |= !u32::from_le_bytes([word[0], word[1], word[2], word[3]]) & bit;
        }
        missing == 0
    }

    #[inline]
    pub fn prefetch(&self, hash: u64) {
        prefetch(
            self.bytes
                .as_ptr()
                .wrapping_add(line_index(hash, self.lines) * LINE_SIZE),
        );
    }

    pub fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[inline]
fn line_index(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// Returns one bit for each of the eight words, from the hash's low half (the high half selects the line).
#[inline]
pub fn mask(hash: u64) -> Mask {
    std::array::from_fn(|word| 1 << ((hash as u32).wrapping_mul(SALT[word]) >> 27))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_types::key_hash;

    #[test]
    fn every_key_passes_and_few_absent_keys_do() {
        let hash = |i: u32| key_hash(&i.to_le_bytes());
        let mut builder = FilterBuilder::for_bits(100_000 * BITS_PER_KEY, 1);
        (0..100_000).for_each(|i| builder.insert(hash(i)));
        let filter = Filter::decode(IndexBytes::of(&builder.encode())).expect("round trip");
        assert!((0..100_000).all(|i| filter.may_contain(hash(i))));
        let passed = (100_000..200_000)
            .filter(|&i| filter.may_contain(hash(i)))
            .count();
        assert!(passed < 2_500, "{passed} of 100,000 absent keys pass");
        assert!(Filter::decode(IndexBytes::of(&[0; 33])).is_none());
    }
}
