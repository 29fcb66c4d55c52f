//! The random numbers of a simulation: `larder_types::Random` with additional methods.

#[derive(Clone, Debug)]
pub struct Random(larder_types::Random);

impl Random {
    /// Returns the stream with this number. Equal seeds and numbers yield equal streams; different numbers yield
    /// unrelated streams.
    pub fn stream(seed: u64, number: u64) -> Random {
        Random(larder_types::Random::stream(seed, number))
    }

    pub fn word(&mut self) -> u64 {
        self.0.word()
    }

    /// Returns a number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Returns a random index for a list of `size` elements, which must not be zero.
    pub fn index(&mut self, size: usize) -> usize {
        self.0.index(size)
    }

    /// Returns a number from `first` to `last`, both inclusive.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// Returns true with probability 1/`draws`; never if `draws` is 0.
    pub fn one_in(&mut self, draws: u64) -> bool {
        draws > 0 && self.below(draws) == 0
    }

    /// Shuffles a slice; every permutation has the same probability.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.0.shuffle(items);
    }
}
