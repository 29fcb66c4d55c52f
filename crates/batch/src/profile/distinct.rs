//! Estimates the number of distinct values: HyperLogLog (Flajolet, Fusy, Gandouet, Meunier, 2007) with 1,024
//! registers, a standard error of 3.25 percent, and linear counting while many registers are empty.

pub const REGISTERS: usize = 1024;
const INDEX_BITS: u32 = REGISTERS.trailing_zeros();
/// Maximum value of a register.
pub const RANK_MAX: u8 = (u64::BITS - INDEX_BITS + 1) as u8;

#[derive(Clone)]
pub struct DistinctSketch {
    registers: Box<[u8; REGISTERS]>,
}

impl Default for DistinctSketch {
    fn default() -> DistinctSketch {
        DistinctSketch {
            registers: Box::new([0; REGISTERS]),
        }
    }
}

impl DistinctSketch {
    /// Creates a sketch from its registers, none of which may exceed [`RANK_MAX`].
    pub fn of(registers: [u8; REGISTERS]) -> DistinctSketch {
        DistinctSketch {
            registers: Box::new(registers),
        }
    }

    pub fn registers(&self) -> &[u8; REGISTERS] {
        &self.registers
    }

    #[inline]
    pub fn add(&mut self, hash: u64) {
        let index = (hash >> (64 - INDEX_BITS)) as usize;
        let rank = (hash << INDEX_BITS | 1 << (INDEX_BITS - 1)).leading_zeros() as u8 + 1;
        let register = &mut self.registers[index];
        *register = rank.max(*register);
    }

    pub fn merge(&mut self, other: &DistinctSketch) {
        for (own, other) in self.registers.iter_mut().zip(other.registers.iter()) {
            *own = (*own).max(*other);
        }
    }

    pub fn estimate(&self) -> u64 {
        let count = REGISTERS as f64;
        let sum: f64 = self
            .registers
            .iter()
            .map(|rank| 0.5f64.powi(i32::from(*rank)))
            .sum();
        let raw = 0.7213 / (1.0 + 1.079 / count) * count * count / sum;
        let empty = self.registers.iter().filter(|rank| **rank == 0).count();
        let estimate = match empty {
            1.. if raw <= 2.5 * count => count * (count / empty as f64).ln(),
            _ => raw,
        };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_accurate_and_sketches_merge() {
        for many in [0u64, 1, 100, 3_000, 100_000] {
            let mut parts = [DistinctSketch::default(), DistinctSketch::default()];
            for number in 0..many {
                let hash = larder_types::key_hash(&number.to_le_bytes());
                for _ in 0..2 {
                    parts[(number % 2) as usize].add(hash);
                }
            }
            let [mut all, other] = parts;
            all.merge(&other);
            let off = all.estimate() as f64 - many as f64;
            assert!(off.abs() <= 0.12 * many as f64, "{many}: {off}");
        }
    }
}
