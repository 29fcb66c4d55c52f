//! Reproducible pseudorandom numbers: SplitMix64 (Steele, Lea, Flood, 2014), identical on every machine.
//!
//! For benchmarks, demonstrations and tests. Not suitable for secrets.

/// A pseudorandom stream. Its state determines all further numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Starts SplitMix64 from this state.
    #[inline]
    pub fn new(state: u64) -> Random {
        Random { state }
    }

    /// Returns the stream with this number. Equal seeds and numbers yield equal streams; different numbers yield
    /// unrelated streams.
    pub fn stream(seed: u64, number: u64) -> Random {
        Random {
            state: mix(mix(seed) ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93)),
        }
    }

    #[inline]
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number below `bound`, which must not be zero. The distribution is uniform up to a bias of 2^-64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(bound) * u128::from(self.word())) >> 64) as u64
    }

    /// Returns a random index for a list of `size` elements, which must not be zero.
    #[inline]
    pub fn index(&mut self, size: usize) -> usize {
        self.slot(size).0
    }

    /// Returns a random index, and the position of the draw within that index's interval, in units of 2^-64.
    #[inline]
    pub fn slot(&mut self, size: usize) -> (usize, u64) {
        let place = size as u128 * u128::from(self.word());
        ((place >> 64) as usize, place as u64)
    }

    /// Returns a number in `[0, 1)`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns an exponentially distributed number with mean 1, such as the interarrival times of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Returns a random element of a slice, or `None` if it is empty.
    pub fn choose<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.index(from.len())])
    }

    /// Shuffles a slice; every permutation has the same probability.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

/// Applies the finalizer of SplitMix64: changing one bit of the input flips each output bit with probability one
/// half.
#[inline]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::Random;

    /// Compares with the output of the reference implementation for this seed.
    #[test]
    fn a_seed_gives_the_published_numbers() {
        let mut random = Random::new(1_234_567);
        let words = [(); 3].map(|()| random.word());
        assert_eq!(
            words,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn draws_stay_within_their_bounds() {
        let mut random = Random::stream(1, 2);
        for bound in 1..1000 {
            assert!(random.below(bound) < bound);
            assert!((0.0..1.0).contains(&random.unit()) && random.exponential() >= 0.0);
        }
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }
}
