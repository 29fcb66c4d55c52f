//! Random numbers from a seed, so that every failure can be reproduced.

pub struct Random(larder_types::Random);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(larder_types::Random::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.word()
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Returns the number of histories in a normal run, and in one with `LARDER_SLOW_TESTS=1`.
pub fn rounds(usual: u64, slow: u64) -> u64 {
    match std::env::var_os("LARDER_SLOW_TESTS") {
        Some(_) => slow,
        None => usual,
    }
}
