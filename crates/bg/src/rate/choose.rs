//! Chooses the load to confirm among those that did best: those whose order may be noise are run again.
//!
//! The best of many trials is better than it would be again: chance had a part in it. So the first few are run again until their means are further
//! apart than noise makes them, or alike to the tolerance.

use super::search::Search;
use super::{End, Purpose};

/// Loads that are told apart.
const CANDIDATES: usize = 3;

impl Search<'_, '_> {
    /// The load with the highest mean, once noise decides no more; `found` where nothing is better by more than the tolerance.
    pub fn choose(&mut self, found: u64) -> Result<u64, End> {
        let most = self.bench.plan.trials_max as usize;
        // Others may come up as the means of the first ones fall.
        for _ in 0..2 * most {
            let ranked = self.ranked();
            let unsure = ranked
                .iter()
                .take(CANDIDATES)
                .skip(1)
                .find_map(|load| self.unsure(ranked[0], *load));
            let Some(load) = unsure.filter(|_| !self.bench.is_late()) else {
                break;
            };
            self.run(load, Purpose::Again)?;
        }
        let ranked = self.ranked();
        let Some(&best) = ranked.first() else {
            return Ok(found);
        };
        let enough = 1.0 + self.bench.plan.tolerance;
        let alike =
            ranked.contains(&found) && self.throughput(best) <= self.throughput(found) * enough;
        Ok(if alike { found } else { best })
    }

    /// Which of two loads to run again, where noise could decide between them and that matters.
    fn unsure(&self, best: u64, other: u64) -> Option<u64> {
        let (many, few) = (self.trials(best), self.trials(other));
        let margin = self.noise().margin(many, few);
        let apart = self.throughput(best) / self.throughput(other) - 1.0;
        let fewer = if few <= many { other } else { best };
        let may = self.trials(fewer) < self.bench.plan.trials_max as usize;
        (may && apart <= margin && margin > self.bench.plan.tolerance).then_some(fewer)
    }
}
