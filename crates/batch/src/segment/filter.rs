//! A split block Bloom filter over the hashes of a segment's keys: it answers "certainly absent"
//! from memory, so that a miss costs no disk read.
//!
//! Source: Putze, Sanders, Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007), in
//! the form that Parquet specifies: lines of 256 bits, one bit set in each of their eight words.
//! The line is picked by the hash's high bits, so a build, which meets hashes in order, fills the
//! filter from front to back. With 10 bits a key about one absent key in a hundred passes.

use super::memory::with_huge_pages;

pub const BITS_PER_KEY: u64 = 10;

const WORDS: usize = 8;
pub const LINE_SIZE: usize = WORDS * 4;
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(32))]
struct Line([u32; WORDS]);

pub struct Filter {
    lines: Vec<Line>,
}

impl Filter {
    pub fn with_capacity(key_count: u64) -> Filter {
        let lines = (key_count * BITS_PER_KEY)
            .div_ceil(LINE_SIZE as u64 * 8)
            .max(1);
        Filter {
            lines: vec![Line([0; WORDS]); lines as usize],
        }
    }

    /// `None` if `bytes` is not a whole number of lines.
    pub fn decode(bytes: &[u8]) -> Option<Filter> {
        if bytes.is_empty() || !bytes.len().is_multiple_of(LINE_SIZE) {
            return None;
        }
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("4 bytes"));
        let line = |bytes: &[u8]| Line(std::array::from_fn(|i| word(&bytes[i * 4..i * 4 + 4])));
        let mut lines = with_huge_pages(bytes.len() / LINE_SIZE);
        lines.extend(bytes.chunks_exact(LINE_SIZE).map(line));
        Some(Filter { lines })
    }

    pub fn encode(&self) -> Vec<u8> {
        self.lines
            .iter()
            .flat_map(|line| line.0)
            .flat_map(u32::to_le_bytes)
            .collect()
    }

    pub fn insert(&mut self, hash: u64) {
        let index = self.line_index(hash);
        let mask = mask(hash);
        for (word, bit) in self.lines[index].0.iter_mut().zip(mask) {
            *word |= bit;
        }
    }

    /// False only if `hash` was never inserted. One cache line.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        let line = &self.lines[self.line_index(hash)].0;
        let mask = mask(hash);
        let mut missing = 0;
        for word in 0..WORDS {
            missing |= !line[word] & mask[word];
        }
        missing == 0
    }

    #[inline]
    pub fn prefetch(&self, hash: u64) {
        super::block::prefetch(
            self.lines
                .as_ptr()
                .wrapping_add(self.line_index(hash))
                .cast(),
        );
    }

    pub fn memory_bytes(&self) -> usize {
        self.lines.len() * LINE_SIZE
    }

    #[inline]
    fn line_index(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.lines.len() as u128) >> 64) as usize
    }
}

/// One bit for each of the eight words, from the hash's low half (the high half picks the line).
#[inline]
fn mask(hash: u64) -> [u32; WORDS] {
    std::array::from_fn(|word| 1 << ((hash as u32).wrapping_mul(SALT[word]) >> 27))
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_types::key_hash;

    #[test]
    fn no_key_is_denied_and_few_strangers_pass() {
        let hash = |i: u32| key_hash(&i.to_le_bytes());
        let mut filter = Filter::with_capacity(100_000);
        (0..100_000).for_each(|i| filter.insert(hash(i)));
        let filter = Filter::decode(&filter.encode()).expect("round trip");
        assert!((0..100_000).all(|i| filter.may_contain(hash(i))));
        let passed = (100_000..200_000)
            .filter(|&i| filter.may_contain(hash(i)))
            .count();
        assert!(passed < 2_500, "{passed} of 100,000 absent keys pass");
    }
}
