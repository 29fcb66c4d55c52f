//! Random numbers that can be drawn again: SplitMix64, one stream per worker.

use crate::model::content::mix;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Streams of the same seed are the same; those of different `stream` have nothing to do with each other.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random {
            state: mix(mix(seed) ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93)),
        }
    }

    /// SplitMix64 from this state on, as others have it.
    pub fn splitmix(state: u64) -> Random {
        Random { state }
    }

    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Below `bound`, which is not zero; each as often.
    pub fn below(&mut self, bound: u32) -> u32 {
        self.index(bound as usize) as u32
    }

    /// An index of a list of this size, which is not zero; each as often, to a part in 2^64.
    pub fn index(&mut self, size: usize) -> usize {
        self.slot(size).0
    }

    /// An index, and how far into its slot the draw fell, of 2^64.
    pub fn slot(&mut self, size: usize) -> (usize, u64) {
        let place = size as u128 * u128::from(self.word());
        ((place >> 64) as usize, place as u64)
    }

    /// At least 0, less than 1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Exponentially distributed, 1 in the mean: the gaps of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}
