//! The numbers that a simulation draws: those of `larder_types::Random`, and what simulations often ask of them.

#[derive(Clone, Debug)]
pub struct Random(larder_types::Random);

impl Random {
    /// Streams of the same seed and number are the same; those of other numbers have nothing to do with each other.
    pub fn stream(seed: u64, number: u64) -> Random {
        Random(larder_types::Random::stream(seed, number))
    }

    pub fn word(&mut self) -> u64 {
        self.0.word()
    }

    /// Below `bound`, which is not zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// An index of a list of this size, which is not zero.
    pub fn index(&mut self, size: usize) -> usize {
        self.0.index(size)
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
        self.0.shuffle(items);
    }
}
