//! Deterministic mutations: the number of a failure suffices to reproduce it.

/// An endless sequence of variations of some seeds.
pub struct Mutations<'a> {
    seeds: &'a [Vec<u8>],
    state: u64,
}

impl<'a> Mutations<'a> {
    /// Creates the sequence. `seeds` must not be empty.
    pub fn new(seeds: &'a [Vec<u8>]) -> Mutations<'a> {
        assert!(!seeds.is_empty(), "there is nothing to vary");
        Mutations {
            seeds,
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// xorshift64*.
    fn random(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    fn below(&mut self, bound: usize) -> usize {
        if bound == 0 {
            0
        } else {
            (self.random() >> 16) as usize % bound
        }
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        const EDGES: [u64; 8] = [
            0,
            1,
            0x7f,
            0xff,
            0x7fff_ffff,
            0xffff_ffff,
            i64::MAX as u64,
            u64::MAX,
        ];
        let at = self.below(bytes.len());
        // Mostly change bytes in place, because decoders soon reject input in which everything after a position has
        // moved.
        match self.below(12) {
            0..=2 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            3..=4 if !bytes.is_empty() => bytes[at] = self.random() as u8,
            5 => bytes.truncate(at),
            6 => {
                let byte = self.random() as u8;
                bytes.insert(at, byte);
            }
            7..=9 => {
                let width = [1, 2, 4, 8][self.below(4)];
                let edge = EDGES[self.below(EDGES.len())].to_le_bytes();
                for (byte, new) in bytes.iter_mut().skip(at).zip(&edge[..width]) {
                    *byte = *new;
                }
            }
            10 => {
                // Insert a piece of another seed.
                let other = &self.seeds[self.below(self.seeds.len())];
                let from = self.below(other.len());
                let size = self.below((other.len() - from).min(64) + 1);
                bytes.splice(at..at, other[from..from + size].iter().copied());
            }
            _ => {
                // Remove a piece.
                let end = (at + self.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}

impl Iterator for Mutations<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut bytes = self.seeds[self.below(self.seeds.len())].clone();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes);
        }
        Some(bytes)
    }
}
