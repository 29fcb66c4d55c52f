//! Chooses the load to confirm among those with the highest throughput: repeats the trials of loads whose order may be
//! due to noise.
//!
//! The best of many trials is likely to overestimate its load, because its noise was favourable. Therefore the best
//! loads are run again until their means differ by more than the noise, or are equal within the tolerance.

use super::search::Search;
use super::{Purpose, RatingOutcome};

/// Number of best loads that are compared.
const CANDIDATES: usize = 3;

impl Search<'_, '_> {
    /// Returns the load with the highest mean, once noise cannot change the order. Returns `found` if no load is better
    /// by more than the tolerance.
    pub fn choose(&mut self, found: u64) -> Result<u64, RatingOutcome> {
        let most = self.bench.plan.trials_max as usize;
        // Other loads may become candidates as the means of the first ones fall.
        for _ in 0..2 * most {
            let ranked = self.ranked();
            let unsure = ranked
                .iter()
                .take(CANDIDATES)
                .skip(1)
                .find_map(|load| self.load_to_rerun(ranked[0], *load));
            let Some(load) = unsure.filter(|_| !self.bench.is_late()) else {
                break;
            };
            self.run(load, Purpose::Again)?;
        }
        let ranked = self.ranked();
        let Some(&best) = ranked.first() else {
            return Ok(found);
        };
        let threshold = 1.0 + self.bench.plan.tolerance;
        let alike =
            ranked.contains(&found) && self.throughput(best) <= self.throughput(found) * threshold;
        Ok(if alike { found } else { best })
    }

    /// Returns which of two loads to run again, if noise could change their order and the difference matters.
    fn load_to_rerun(&self, best: u64, other: u64) -> Option<u64> {
        let (many, few) = (self.trials(best), self.trials(other));
        let margin = self.noise().margin(many, few);
        let apart = self.throughput(best) / self.throughput(other) - 1.0;
        let fewer = if few <= many { other } else { best };
        let may = self.trials(fewer) < self.bench.plan.trials_max as usize;
        (may && apart <= margin && margin > self.bench.plan.tolerance).then_some(fewer)
    }
}
