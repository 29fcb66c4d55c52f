//! Detects, before the end of a trial, that it misses its agreement: a sequential test, after Wald.
//!
//! For each clause, the test counts bad calls (late, failed, unpredictable). It compares two hypotheses: bad calls
//! occur exactly as often as the clause allows, or more often. The test statistic is the likelihood ratio, averaged
//! over [`ALTERNATIVES`]. If the clause is met in the long run, the probability that this ratio ever exceeds 1 /
//! [`ERROR`] during a trial is below [`ERROR`], no matter how often it is checked (Ville's inequality). No such test
//! exists for agreements that are met: a trial whose first second is good may still have growing queues.
//!
//! Calls in flight at the same time may be correlated (one stall delays many calls), so that they count as a single
//! call: the geometric mean of their ratios. Its expectation is at most that of each ratio, whatever their correlation.

use std::time::Duration;

use super::{Clause, Sla, Tally};
use crate::verdict::measure::Measurements;

/// The proportion of trials, at most, in which a clause that is met counts as missed.
pub const ERROR: f64 = 0.001;

/// The factors by which the odds of a bad call exceed the allowed odds, if the clause is missed.
const ALTERNATIVES: [f64; 4] = [1.5, 3.0, 10.0, 100.0];

impl Sla {
    /// Returns whether the measurements over `elapsed` show that a clause is missed, with certainty or up to [`ERROR`].
    /// A clause about reads that are not validated yet is undecided.
    pub fn is_certainly_missed(&self, measured: &Measurements, elapsed: Duration) -> bool {
        let concurrency = calls_in_flight(measured, elapsed);
        self.clauses
            .iter()
            .any(|clause| clause.is_certainly_missed(clause.tally(measured), concurrency))
    }
}

impl Clause {
    /// `concurrency`: mean number of calls in flight at the same time.
    fn is_certainly_missed(&self, tally: Tally, concurrency: f64) -> bool {
        let (bad, allowed) = match *self {
            Clause::Within { percent, .. } => (tally.of - tally.counted, 1.0 - percent / 100.0),
            // The proportion of draws that can be carried out changes during the trial.
            Clause::Drift { .. } => return false,
            Clause::Errors { percent, .. } | Clause::Unpredictable { percent, .. } => {
                (tally.counted, percent / 100.0)
            }
        };
        if tally.not_validated || bad == 0 || allowed >= 1.0 {
            return false;
        }
        // If no bad call is allowed, one is enough, and chance plays no part.
        allowed <= 0.0 || exceeds_allowed(bad, tally.of, allowed, concurrency)
    }
}

/// Returns whether `bad` of `of` calls are significantly more than the allowed proportion.
pub fn exceeds_allowed(bad: u64, of: u64, allowed: f64, concurrency: f64) -> bool {
    let concurrency = concurrency.max(1.0);
    let (bad, good) = (bad as f64 / concurrency, (of - bad) as f64 / concurrency);
    let odds = allowed / (1.0 - allowed);
    let ratios = ALTERNATIVES.map(|more| {
        let share = more * odds / (1.0 + more * odds);
        bad * (share / allowed).ln() + good * ((1.0 - share) / (1.0 - allowed)).ln()
    });
    let most = ratios.into_iter().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = ratios.iter().map(|ratio| (ratio - most).exp()).sum();
    most + (sum / ALTERNATIVES.len() as f64).ln() > -ERROR.ln()
}

/// Returns the mean number of calls in flight at the same time: their total latency divided by the elapsed time
/// (Little's law).
fn calls_in_flight(measured: &Measurements, elapsed: Duration) -> f64 {
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

    /// Returns how many trials the test ends, of trials of sixty seconds with this many calls per second, in fully
    /// correlated groups.
    fn count_early_ends(trials: u64, bad: f64, allowed: f64, calls: u64, concurrency: u64) -> u64 {
        (0..trials)
            .filter(|trial| {
                let mut random = Random::stream(17, *trial);
                let (mut seen, mut of) = (0, 0);
                (0..60).any(|_| {
                    for _ in 0..calls / concurrency {
                        seen += concurrency * u64::from(random.unit() < bad);
                        of += concurrency;
                    }
                    exceeds_allowed(seen, of, allowed, concurrency as f64)
                })
            })
            .count() as u64
    }

    #[test]
    fn a_met_agreement_ends_fewer_than_one_of_a_thousand_trials_early() {
        for (allowed, calls, concurrency) in [
            (0.05, 200, 1),
            (0.05, 200, 20),
            (0.001, 1000, 1),
            (0.5, 100, 4),
        ] {
            // Exactly at the limit, where a wrong decision by chance is the most likely.
            let trials = 4000;
            let wrong = count_early_ends(trials, allowed, allowed, calls, concurrency);
            // At most four are expected. Eleven or more occur in four of a hundred such tests.
            assert!(
                wrong <= 10,
                "{allowed} {calls} {concurrency}: {wrong} of {trials}"
            );
        }
    }

    #[test]
    fn a_clearly_missed_agreement_ends_the_trial_early() {
        for (bad, allowed, concurrency) in [(0.2, 0.05, 1), (0.9, 0.05, 100), (0.02, 0.001, 1)] {
            let mut random = Random::stream(5, 5);
            let calls = 2000;
            let late = (0..calls / concurrency)
                .map(|_| concurrency * u64::from(random.unit() < bad))
                .sum();
            assert!(
                exceeds_allowed(late, calls, allowed, concurrency as f64),
                "{bad} of {allowed}"
            );
        }
    }

    #[test]
    fn few_calls_decide_nothing() {
        assert!(!exceeds_allowed(1, 1, 0.05, 1.0));
        // All calls of one round of a hundred threads.
        assert!(!exceeds_allowed(100, 100, 0.05, 100.0));
        assert!(exceeds_allowed(100, 100, 0.05, 1.0));
    }
}
