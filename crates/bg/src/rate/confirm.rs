//! Confirms a rating by a trial of the full duration: a load that meets the agreement for seconds may miss it within a
//! minute.
//!
//! If the confirming trial misses, the load is reduced by one, two, four, ... (or multiples of the tolerance, if that
//! is larger). It is then narrowed between the last load that missed and the first that met the agreement, with trials
//! of the full duration.
//!
//! If the confirmed load has a lower throughput than another load had in its trials, that other load is confirmed too:
//! the rating is the best confirmed load.

use super::search::Search;
use super::{ExperimentRunner, Goal, Plan, Purpose, RatingOutcome};

impl Search<'_, '_> {
    /// Returns the index of the experiment that confirms the rating. None if no load can be confirmed.
    pub fn confirm(&mut self, found: u64) -> Result<Option<usize>, RatingOutcome> {
        let Some(mut best) = confirm_or_back_off(self.bench, found)? else {
            return Ok(None);
        };
        if self.bench.plan.goal == Goal::Socialites {
            return Ok(Some(best));
        }
        for _ in 1..self.bench.plan.trials_max {
            let Some(load) = self.unconfirmed(best).filter(|_| !self.bench.is_late()) else {
                break;
            };
            let index = self.bench.run(load, Purpose::Confirm)?;
            let (new, old) = (
                &self.bench.experiments[index],
                &self.bench.experiments[best],
            );
            if new.verdict.met && new.throughput > old.throughput {
                best = index;
            }
        }
        if let Some(load) = self.unconfirmed(best) {
            self.bench.note(format!(
                "trials of a load of {load} exceeded the rating ({:.0} actions/s on average), but no trial of the full duration confirmed it",
                self.throughput(load)
            ));
        }
        Ok(Some(best))
    }

    /// Returns the load with the best trials, if it exceeds the confirmed throughput by more than the noise and no
    /// trial of the full duration has decided it.
    fn unconfirmed(&self, best: usize) -> Option<u64> {
        let experiments = &self.bench.experiments;
        let rated = experiments[best].throughput;
        let full = || experiments.iter().filter(|one| one.confirms());
        let is_known =
            |load: u64| full().any(|one| one.load == load || (one.load < load && !one.verdict.met));
        let noise = self.noise();
        let exceeds_rating = |load: &u64| {
            let margin = noise.margin(self.trials(*load), 1);
            let threshold = 1.0 + margin.max(self.bench.plan.tolerance);
            !is_known(*load) && self.throughput(*load) > rated * threshold
        };
        self.ranked().into_iter().find(exceeds_rating)
    }
}

/// Returns the index of the experiment of the full duration in which this load, or a lower one, met the agreement.
fn confirm_or_back_off(
    bench: &mut ExperimentRunner<'_>,
    load: u64,
) -> Result<Option<usize>, RatingOutcome> {
    let first = bench.run(load, Purpose::Confirm)?;
    if bench.experiments[first].verdict.met {
        return Ok(Some(first));
    }
    let full = bench.plan.sla.duration.as_secs_f64();
    let why = bench.experiments[first].verdict.reason();
    bench.note(format!(
        "a load of {load} missed the agreement over the full {full} s ({why}): tried lower loads"
    ));
    let mut step = smallest_step(bench.plan, load);
    let mut missed = load;
    let mut good = loop {
        if missed == 1 {
            let last = bench.experiments.last().expect("just run");
            let why = last.verdict.reason();
            bench.note(format!(
                "even a load of 1 misses the agreement over the full duration: {why}"
            ));
            return Ok(None);
        }
        let load = missed.saturating_sub(step).max(1);
        let index = bench.run(load, Purpose::BackOff)?;
        if bench.experiments[index].verdict.met {
            break index;
        }
        missed = load;
        step *= 2;
    };
    loop {
        let load = bench.experiments[good].load;
        if missed - load <= smallest_step(bench.plan, load) || bench.is_late() {
            return Ok(Some(good));
        }
        let load = load + (missed - load) / 2;
        let index = bench.run(load, Purpose::BackOff)?;
        if bench.experiments[index].verdict.met {
            good = index;
        } else {
            missed = load;
        }
    }
}

/// Returns the smallest difference between loads that is worth an experiment.
fn smallest_step(plan: &Plan, load: u64) -> u64 {
    match plan.goal {
        Goal::Soar => ((load as f64 * plan.tolerance) as u64).max(1),
        Goal::Socialites => 1,
    }
}
