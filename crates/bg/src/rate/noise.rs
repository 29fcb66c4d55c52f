//! Decides whether two throughputs differ or whether noise hides the difference.
//!
//! All loads are assumed to have the same relative noise, which is estimated from repeated trials. Without any, it is
//! assumed to be [`DEFAULT_DEVIATION`]. The weight of this assumption decreases with each repeated trial, so that two
//! trials that agree by chance do not suggest an absence of noise.

/// Assumed relative standard deviation of a trial's throughput before there is evidence.
const DEFAULT_DEVIATION: f64 = 0.02;

/// The evidence on noise from repeated trials.
#[derive(Debug, Default)]
pub struct Noise {
    /// Sum of squared relative deviations from the mean of their load.
    squares: f64,
    /// Degrees of freedom: the number of trials minus the number of loads.
    freedom: u32,
}

impl Noise {
    /// Returns the noise of the throughputs measured at each load.
    pub fn from_trials<'a>(loads: impl Iterator<Item = &'a [f64]>) -> Noise {
        let mut noise = Noise::default();
        for samples in loads {
            let mean = mean(samples);
            if samples.len() < 2 || mean <= 0.0 {
                continue;
            }
            noise.freedom += samples.len() as u32 - 1;
            noise.squares += samples
                .iter()
                .map(|sample| (sample / mean - 1.0).powi(2))
                .sum::<f64>();
        }
        noise
    }

    /// Returns half the width of the 80 % t-interval for the difference between the means of `trials` and `others`
    /// trials, relative to the means.
    pub fn margin(&self, trials: usize, others: usize) -> f64 {
        let guess = DEFAULT_DEVIATION / f64::from(1 + self.freedom);
        let seen = self.squares / f64::from(self.freedom.max(1));
        (seen + guess * guess).sqrt()
            * t_90(self.freedom.max(1))
            * (1.0 / trials as f64 + 1.0 / others as f64).sqrt()
    }
}

pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Returns the 90th percentile of Student's t distribution. Above nine degrees of freedom it is the expansion in their
/// reciprocal, accurate to half a percent.
fn t_90(freedom: u32) -> f64 {
    const TABLE: [f64; 9] = [
        3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383,
    ];
    let z = 1.2816_f64;
    TABLE
        .get(freedom as usize - 1)
        .copied()
        .unwrap_or(z + (z.powi(3) + z) / (4.0 * f64::from(freedom)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_quantiles_match_the_table() {
        for (freedom, t) in [(1, 3.078), (9, 1.383), (10, 1.372), (30, 1.310)] {
            assert!((t_90(freedom) - t).abs() < 0.007, "{freedom}");
        }
    }

    #[test]
    fn repeated_trials_outweigh_the_default_noise() {
        let unknown = Noise::default().margin(1, 1);
        let quiet = Noise::from_trials([[100.0, 100.0].as_slice(), &[50.0]].into_iter());
        let loud = Noise::from_trials([[100.0, 140.0].as_slice(), &[50.0]].into_iter());
        assert!(quiet.margin(1, 1) < unknown && unknown < loud.margin(1, 1));
        assert!(quiet.margin(2, 2) < quiet.margin(1, 1));
    }
}
