//! Whether it is clear before a trial's end that it misses its agreement: a sequential test, after Wald.
//!
//! Of each clause the bad calls are counted (late, failed, unpredictable). What was seen is compared with what it would be like if bad
//! calls were just as many as the clause allows, and if they were more: the ratio of the likelihoods, in the mean over [`ALTERNATIVES`]. As
//! long as the clause is met in the long run, that ratio exceeds 1 / [`ERROR`] at any time of a trial in fewer than [`ERROR`] of all trials
//! (Ville's inequality), however often one looks. There is no such test for agreements that are met: a trial that goes well for a second may
//! be one whose queues still grow.
//!
//! Calls under way at the same time may share their luck (one stall, many late calls), so that they count as one together: the geometric mean of their
//! ratios, which is in the mean no more than each of them, whatever they have to do with each other.

use std::time::Duration;

use super::{Clause, Sla, Tally};
use crate::verdict::measure::Measured;

/// A clause that is met counts as missed in fewer than so many of the trials.
pub const ERROR: f64 = 0.001;

/// By how much more the odds of a bad call are than the clause allows, where it is missed.
const ALTERNATIVES: [f64; 4] = [1.5, 3.0, 10.0, 100.0];

impl Sla {
    /// Whether a clause is missed for certain, or but for an [`ERROR`], by what was measured over so long. What nobody judged yet is open.
    pub fn is_hopeless(&self, measured: &Measured, elapsed: Duration) -> bool {
        let together = under_way(measured, elapsed);
        self.clauses
            .iter()
            .any(|clause| clause.is_hopeless(clause.tally(measured), together))
    }
}

impl Clause {
    /// `together`: calls under way at the same time, in the mean.
    fn is_hopeless(&self, tally: Tally, together: f64) -> bool {
        let (bad, allowed) = match *self {
            Clause::Within { percent, .. } => (tally.of - tally.counted, 1.0 - percent / 100.0),
            // Whether draws can be carried out changes over the trial.
            Clause::Drift { .. } => return false,
            Clause::Errors { percent, .. } | Clause::Unpredictable { percent, .. } => {
                (tally.counted, percent / 100.0)
            }
        };
        if tally.unjudged || bad == 0 || allowed >= 1.0 {
            return false;
        }
        // Where none is allowed one is enough, and chance has no part in it.
        allowed <= 0.0 || is_more(bad, tally.of, allowed, together)
    }
}

/// Whether so many bad ones of all are more than a share that is allowed would make.
pub fn is_more(bad: u64, of: u64, allowed: f64, together: f64) -> bool {
    let together = together.max(1.0);
    let (bad, good) = (bad as f64 / together, (of - bad) as f64 / together);
    let odds = allowed / (1.0 - allowed);
    let ratios = ALTERNATIVES.map(|more| {
        let share = more * odds / (1.0 + more * odds);
        bad * (share / allowed).ln() + good * ((1.0 - share) / (1.0 - allowed)).ln()
    });
    let most = ratios.into_iter().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = ratios.iter().map(|ratio| (ratio - most).exp()).sum();
    most + (sum / ALTERNATIVES.len() as f64).ln() > -ERROR.ln()
}

/// Calls under way at the same time, in the mean: what all of them took together, by Little's law.
fn under_way(measured: &Measured, elapsed: Duration) -> f64 {
    let took: f64 = measured
        .actions
        .iter()
        .map(|one| one.latency.mean() * one.latency.len() as f64)
        .sum();
    took / 1e9 / elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use larder_types::Random;

    use super::*;

    /// Of trials of sixty seconds with these calls a second, in groups that share their luck, how many the test ends.
    fn ended(trials: u64, bad: f64, allowed: f64, calls: u64, together: u64) -> u64 {
        (0..trials)
            .filter(|trial| {
                let mut random = Random::stream(17, *trial);
                let (mut seen, mut of) = (0, 0);
                (0..60).any(|_| {
                    for _ in 0..calls / together {
                        seen += together * u64::from(random.unit() < bad);
                        of += together;
                    }
                    is_more(seen, of, allowed, together as f64)
                })
            })
            .count() as u64
    }

    #[test]
    fn an_agreement_that_is_met_is_called_hopeless_in_fewer_than_one_of_a_thousand_trials() {
        for (allowed, calls, together) in [
            (0.05, 200, 1),
            (0.05, 200, 20),
            (0.001, 1000, 1),
            (0.5, 100, 4),
        ] {
            // On the limit itself, where chance has its best chance.
            let trials = 4000;
            let wrong = ended(trials, allowed, allowed, calls, together);
            // Four expected at most; eleven or more come of four in a hundred such tests.
            assert!(
                wrong <= 10,
                "{allowed} {calls} {together}: {wrong} of {trials}"
            );
        }
    }

    #[test]
    fn an_agreement_that_is_missed_by_far_is_called_hopeless_at_once() {
        for (bad, allowed, together) in [(0.2, 0.05, 1), (0.9, 0.05, 100), (0.02, 0.001, 1)] {
            let mut random = Random::stream(5, 5);
            let calls = 2000;
            let late = (0..calls / together)
                .map(|_| together * u64::from(random.unit() < bad))
                .sum();
            assert!(
                is_more(late, calls, allowed, together as f64),
                "{bad} of {allowed}"
            );
        }
    }

    #[test]
    fn little_tells_nothing() {
        assert!(!is_more(1, 1, 0.05, 1.0));
        // All of one round of a hundred threads.
        assert!(!is_more(100, 100, 0.05, 100.0));
        assert!(is_more(100, 100, 0.05, 1.0));
    }
}
