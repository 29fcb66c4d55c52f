//! Draws from any weights with one random number per draw: Walker's alias method, built as by Vose.

use larder_types::Random;

#[derive(Clone, Debug)]
pub struct Alias {
    /// For each index, the part of its slot that is its own, in units of 2^-32, and the index that has the rest.
    slots: Vec<(u32, u32)>,
}

impl Alias {
    /// Creates the table. Weights must not be negative, and at least one must be positive.
    pub fn new(weights: &[f64]) -> Alias {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut left: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let mut slots: Vec<(u32, u32)> =
            (0..weights.len() as u32).map(|it| (u32::MAX, it)).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..weights.len() as u32).partition(|index| left[*index as usize] < 1.0);
        while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
            let own = left[less as usize];
            slots[less as usize] = ((own * (1u64 << 32) as f64) as u32, more);
            left[more as usize] -= 1.0 - own;
            if left[more as usize] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Alias { slots }
    }

    pub fn draw(&self, random: &mut Random) -> usize {
        let (index, within) = random.slot(self.slots.len());
        let (own, other) = self.slots[index];
        if ((within >> 32) as u32) <= own {
            index
        } else {
            other as usize
        }
    }
}
