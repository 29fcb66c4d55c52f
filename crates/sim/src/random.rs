//! The numbers that a simulation draws: SplitMix64, the same from the same seed.

#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Streams of the same seed and number are the same; those of other numbers have nothing to do with each other.
    pub fn stream(seed: u64, number: u64) -> Random {
        Random {
            state: mix(mix(seed) ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93)),
        }
    }

    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(bound) * u128::from(self.word())) >> 64) as u64
    }

    /// An index of a list of this size, which is not zero.
    pub fn index(&mut self, size: usize) -> usize {
        self.below(size as u64) as usize
    }

    /// From the first to the last, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in so many draws; never if 0.
    pub fn one_in(&mut self, draws: u64) -> bool {
        draws > 0 && self.below(draws) == 0
    }

    /// Every order as likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
