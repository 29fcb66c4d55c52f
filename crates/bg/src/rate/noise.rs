//! When two throughputs differ, and when noise hides it.
//!
//! All loads are taken to share one relative noise, known from the trials that were repeated. Before any was, it is guessed to be [`GUESS`];
//! what is left of the guess shrinks with each repeated trial, so that two trials alike by chance are not taken for silence.

/// Standard deviation of a trial's throughput, relative, before there is evidence.
const GUESS: f64 = 0.02;

/// What repeated trials say of the noise.
#[derive(Debug, Default)]
pub struct Noise {
    /// Sum of squared relative deviations from the mean of their load.
    squares: f64,
    /// Degrees of freedom: trials less loads.
    freedom: u32,
}

impl Noise {
    /// Of the throughputs seen at each load.
    pub fn of<'a>(loads: impl Iterator<Item = &'a [f64]>) -> Noise {
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

    /// Half the 80 % t-interval of the difference between the means of so many trials each, relative to those.
    pub fn margin(&self, trials: usize, others: usize) -> f64 {
        let guess = GUESS / f64::from(1 + self.freedom);
        let seen = self.squares / f64::from(self.freedom.max(1));
        (seen + guess * guess).sqrt()
            * t_90(self.freedom.max(1))
            * (1.0 / trials as f64 + 1.0 / others as f64).sqrt()
    }
}

pub fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// Student's t that one in ten exceeds; above nine degrees of freedom by the expansion in their reciprocal, good to half a percent.
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
    fn quantiles_of_t() {
        for (freedom, t) in [(1, 3.078), (9, 1.383), (10, 1.372), (30, 1.310)] {
            assert!((t_90(freedom) - t).abs() < 0.007, "{freedom}");
        }
    }

    #[test]
    fn repeated_trials_replace_the_guess() {
        let unknown = Noise::default().margin(1, 1);
        let quiet = Noise::of([[100.0, 100.0].as_slice(), &[50.0]].into_iter());
        let loud = Noise::of([[100.0, 140.0].as_slice(), &[50.0]].into_iter());
        assert!(quiet.margin(1, 1) < unknown && unknown < loud.margin(1, 1));
        assert!(quiet.margin(2, 2) < quiet.margin(1, 1));
    }
}
