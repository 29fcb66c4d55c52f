//! Searches for the load to confirm: doubles, then narrows.
//!
//! Doubling ends with three loads of which the middle one is the best: the bracket. Narrowing runs probes inside it. A
//! probe is at the vertex of the parabola through the three points. Every second probe is at the golden section of the
//! wider side instead, so that a curve that is not a parabola cannot keep one side wide. A load that misses the
//! agreement ranks below all that meet it.
//!
//! Narrowing ends when no gain is expected, in one of two ways:
//!
//! - Each side of the bracket contains no further load, or allows no gain above the tolerance. This assumes that the
//!   throughput is concave from 0 on, as for stores that saturate.
//! - The vertex of a parabola was probed and reached the predicted throughput, and the parabola through the new bracket
//!   predicts no more.
//!
//! If noise prevents both, narrowing ends after half as many experiments as doubling took, plus one: by then the
//! bracket is as fine as the tolerance.

use std::collections::BTreeMap;

use super::noise::{Noise, mean};
use super::{ExperimentRunner, Goal, Purpose, RatingOutcome};
use crate::verdict::agreement::{Tally, Verdict};

/// Up to this load, the throughput may fall by any amount and rise again: with few concurrent calls, it depends
/// strongly on how they wait for each other.
const DIP_MAX: u64 = 8;

/// Above that load, a fall by more than this proportion means that the peak was passed.
const DIP_DEPTH: f64 = 0.25;

/// The trials of a load.
#[derive(Debug, Default)]
struct Point {
    throughputs: Vec<f64>,
    /// The sum over all trials, one tally for each clause.
    tallies: Vec<Tally>,
}

/// The interval of loads that contains the best one.
#[derive(Clone, Copy, Debug)]
struct Bracket {
    /// A load that was run, or 0.
    low: u64,
    /// The best load so far.
    best: u64,
    /// A load that was run and is worse, or the maximum load plus one.
    high: u64,
}

impl Bracket {
    /// Returns the bracket after a probe inside it.
    fn around(self, probe: u64, better: bool) -> Bracket {
        let Bracket { low, best, high } = self;
        match (probe < best, better) {
            (true, true) => Bracket {
                low,
                best: probe,
                high: best,
            },
            (true, false) => Bracket { low: probe, ..self },
            (false, true) => Bracket {
                low: best,
                best: probe,
                high,
            },
            (false, false) => Bracket {
                high: probe,
                ..self
            },
        }
    }
}

/// The vertex of a parabola.
#[derive(Clone, Copy, Debug)]
struct Parabola {
    top: f64,
    height: f64,
}

pub(super) struct Search<'s, 'b> {
    pub(super) bench: &'s mut ExperimentRunner<'b>,
    points: BTreeMap<u64, Point>,
}

impl<'s, 'b> Search<'s, 'b> {
    pub fn new(bench: &'s mut ExperimentRunner<'b>) -> Search<'s, 'b> {
        Search {
            bench,
            points: BTreeMap::new(),
        }
    }
}

impl Search<'_, '_> {
    /// Returns the index of the experiment that confirms the rating. None if no load meets the agreement.
    pub fn find_rating(&mut self) -> Result<Option<usize>, RatingOutcome> {
        let Some(start) = self.find_first_good()? else {
            return Ok(None);
        };
        let load = match self.bench.plan.goal {
            Goal::Soar => {
                let bracket = self.double(start, |search, from, to| search.rises(from, to))?;
                let found = self.narrow(bracket)?;
                self.choose(found)?
            }
            Goal::Socialites => {
                let bracket = self.double(start, |search, _, to| search.met(to))?;
                self.bisect(bracket)?
            }
        };
        self.confirm(load)
    }

    /// Returns the first load that meets the agreement, halving from the plan's first load.
    fn find_first_good(&mut self) -> Result<Option<u64>, RatingOutcome> {
        let mut load = self.bench.plan.first.max(1);
        self.visit(load, Purpose::Double)?;
        loop {
            if !self.met(load) {
                self.recheck(load, |search| search.met(load))?;
            }
            if self.met(load) {
                return Ok(Some(load));
            }
            if load == 1 {
                let why = self.verdict(load).reason();
                self.bench
                    .note(format!("even a load of 1 misses the agreement: {why}"));
                return Ok(None);
            }
            load /= 2;
            self.visit(load, Purpose::Halve)?;
        }
    }

    /// Doubles while the load is `good`.
    fn double(
        &mut self,
        start: u64,
        good: impl Fn(&Self, u64, u64) -> bool,
    ) -> Result<Bracket, RatingOutcome> {
        let most = self.bench.plan.most;
        let mut bracket = Bracket {
            low: self.next_lower(start),
            best: start,
            high: most + 1,
        };
        // Halving started from a higher load that misses.
        if let Some((&high, _)) = self.points.range(start + 1..).next() {
            bracket.high = high;
            return Ok(bracket);
        }
        while bracket.best < most {
            if self.bench.is_late() {
                return Ok(bracket);
            }
            let next = bracket.best.saturating_mul(2).min(most);
            self.visit(next, Purpose::Double)?;
            if !good(self, bracket.best, next) {
                self.recheck(next, |search| good(search, bracket.best, next))?;
            }
            if !good(self, bracket.best, next) {
                if self.is_dip(bracket.best, next)? {
                    bracket.low = next;
                    bracket.best = next * 2;
                    continue;
                }
                bracket.high = next;
                return Ok(bracket);
            }
            bracket.low = bracket.best;
            bracket.best = next;
        }
        self.bench.note(format!(
            "the maximum load of {most} still meets the agreement: the rating may be higher"
        ));
        Ok(bracket)
    }

    /// Returns whether a load that ends the doubling is only a dip: the next one is better than the previous best. The
    /// placement of threads on processors affects throughput as much as the load does, so a curve may fall and rise
    /// again.
    fn is_dip(&mut self, best: u64, dip: u64) -> Result<bool, RatingOutcome> {
        let plan = &self.bench.plan;
        let may_be = plan.goal == Goal::Soar && dip.saturating_mul(2) <= plan.most;
        if !may_be || !self.met(dip) || self.bench.is_late() {
            return Ok(false);
        }
        let falls_far = self.throughput(dip) < self.throughput(best) * (1.0 - DIP_DEPTH);
        if dip > DIP_MAX && falls_far {
            return Ok(false);
        }
        self.visit(dip * 2, Purpose::Double)?;
        // On a plateau, chance alone would continue the doubling indefinitely.
        let margin = self.noise().margin(self.trials(dip * 2), self.trials(best));
        let threshold = 1.0 + margin.max(self.bench.plan.tolerance);
        let rises =
            self.met(dip * 2) && self.throughput(dip * 2) > self.throughput(best) * threshold;
        if rises {
            self.bench.note(format!(
                "the throughput at a load of {dip} is lower than at {best} and at {}: the dip is ignored",
                dip * 2
            ));
        }
        Ok(rises)
    }

    /// Returns whether the throughput at `to` is higher by more than the tolerance.
    fn rises(&self, from: u64, to: u64) -> bool {
        let threshold = 1.0 + self.bench.plan.tolerance;
        self.met(to) && self.throughput(to) > self.throughput(from) * threshold
    }

    /// Runs a second trial of a load that would end the doubling. If it is good by itself, the first is discarded.
    fn recheck(&mut self, load: u64, good: impl Fn(&Self) -> bool) -> Result<(), RatingOutcome> {
        if self.points[&load].throughputs.len() > 1 || self.bench.is_late() {
            return Ok(());
        }
        let first = self.points.remove(&load).expect("visited");
        self.run(load, Purpose::Again)?;
        if good(self) {
            self.bench.note(format!(
                "the first trial of a load of {load} was discarded: a second one contradicts it"
            ));
        } else {
            let second = self.points.get_mut(&load).expect("just run");
            second.throughputs.extend(first.throughputs);
            for (sum, tally) in second.tallies.iter_mut().zip(first.tallies) {
                sum.add(tally);
            }
        }
        Ok(())
    }

    /// Returns the load with the highest throughput among those that meet the agreement, within the tolerance.
    fn narrow(&mut self, mut bracket: Bracket) -> Result<u64, RatingOutcome> {
        let budget = self.bench.experiments.len() / 2 + 1;
        let spent = self.bench.experiments.len() + budget;
        for turn in 0.. {
            if self.bench.is_late() {
                break;
            }
            // If the upper end misses the agreement, bisection continues until the limit is found.
            if self.bench.experiments.len() >= spent && self.height(bracket.high).is_some() {
                self.bench.note(format!(
                    "narrowing stopped after {budget} experiments: a load from {} to {} may be slightly better",
                    bracket.low, bracket.high
                ));
                break;
            }
            let (left, right) = (self.gains_left(bracket), self.gains_right(bracket));
            let parabola = self.parabola(bracket);
            let top = parabola.map(|parabola| parabola.top.round() as u64);
            let top = top.filter(|top| {
                turn % 2 == 0 && ((left && *top < bracket.best) || (right && *top > bracket.best))
            });
            let Some(probe) = top.or_else(|| self.golden_section(bracket, left, right)) else {
                break;
            };
            self.visit(probe, Purpose::Narrow)?;
            let better = self.is_better(probe, bracket, spent)?;
            bracket = bracket.around(probe, better);
            if let Some(predicted) = parabola
                && top.is_some()
                && self.reached_prediction(predicted, probe)
                && self.parabola(bracket).is_some_and(|new| {
                    new.height <= self.throughput(bracket.best) * (1.0 + self.bench.plan.tolerance)
                })
            {
                break;
            }
        }
        Ok(bracket.best)
    }

    /// Returns whether a probe at its vertex reached the throughput that a parabola predicted, within noise.
    fn reached_prediction(&self, predicted: Parabola, probe: u64) -> bool {
        let Some(height) = self.height(probe) else {
            return false;
        };
        let margin = self.noise().margin(self.trials(probe), 1);
        (height / predicted.height - 1.0).abs() <= margin.max(self.bench.plan.tolerance)
    }

    /// Returns the highest load that meets the agreement: `best` meets it, `high` does not.
    fn bisect(&mut self, mut bracket: Bracket) -> Result<u64, RatingOutcome> {
        while bracket.high - bracket.best > 1 && !self.bench.is_late() {
            let probe = bracket.best + (bracket.high - bracket.best) / 2;
            self.visit(probe, Purpose::Narrow)?;
            if self.met(probe) {
                bracket.best = probe;
            } else {
                bracket.high = probe;
            }
        }
        Ok(bracket.best)
    }

    /// Returns the golden section of the wider side with a possible gain.
    fn golden_section(&self, bracket: Bracket, left: bool, right: bool) -> Option<u64> {
        let Bracket { low, best, high } = bracket;
        let step = |width: u64| ((width as f64 * 0.381_966).round() as u64).clamp(1, width - 1);
        match (left, right) {
            (false, false) => None,
            (true, false) => Some(best - step(best - low)),
            (true, true) if best - low > high - best => Some(best - step(best - low)),
            // A load that misses the agreement gives no information on the throughput: the limit may be anywhere, so
            // bisect.
            (_, true) if self.height(high).is_none() => Some(best + (high - best) / 2),
            (_, true) => Some(best + step(high - best)),
        }
    }

    /// Returns whether a load above the best may gain more than the tolerance.
    fn gains_right(&self, Bracket { low, best, high }: Bracket) -> bool {
        let width = (high - best) as f64;
        let mut gain = width / best as f64;
        if let (Some(bottom), Some(top)) = (self.height(low), self.height(best)) {
            // The slope is at most that from `low` to `best`.
            gain = gain.min((top - bottom) / (best - low) as f64 * width / top);
        }
        high - best > 1 && gain > self.bench.plan.tolerance
    }

    /// Returns whether a load below the best may gain more than the tolerance.
    fn gains_left(&self, Bracket { low, best, high }: Bracket) -> bool {
        let width = (best - low) as f64;
        let mut gain = width / low as f64;
        if let (Some(top), Some(end)) = (self.height(best), self.height(high)) {
            // The slope is at most that from `best` to `high`.
            gain = gain.min((top - end) / (high - best) as f64 * width / top);
        }
        let below = self.next_lower(low);
        if let (Some(from), Some(bottom), Some(top)) =
            (self.height(below), self.height(low), self.height(best))
            && below < low
        {
            // The slope is at most that below `low`.
            let slope = (bottom - from) / (low - below) as f64;
            gain = gain.min((bottom + slope * width) / top - 1.0);
        }
        best - low > 1 && gain > self.bench.plan.tolerance
    }

    /// Returns the parabola through the three loads of the bracket. None if an end misses the agreement or if the three
    /// points have no maximum.
    fn parabola(&self, Bracket { low, best, high }: Bracket) -> Option<Parabola> {
        let middle = self.height(best)?;
        let (left, right) = ((best - low) as f64, (high - best) as f64);
        let fall_left = (middle - self.height(low)?) / left;
        let fall_right = (middle - self.height(high)?) / right;
        let bend = (fall_left + fall_right) / (left + right);
        let slope = fall_left - bend * left;
        (bend > 0.0).then(|| Parabola {
            top: best as f64 + slope / (2.0 * bend),
            height: middle + slope * slope / (4.0 * bend),
        })
    }

    /// Returns whether a probe is better than the best. Runs either again while noise could decide, until `spent`
    /// experiments were run.
    fn is_better(
        &mut self,
        probe: u64,
        bracket: Bracket,
        spent: usize,
    ) -> Result<bool, RatingOutcome> {
        let best = bracket.best;
        // Below the limit of the agreement, throughput increases with load except for noise.
        let rises = probe > best && self.height(bracket.high).is_none();
        loop {
            let (Some(new), Some(old)) = (self.height(probe), self.height(best)) else {
                return Ok(self.height(probe).is_some());
            };
            let (mine, theirs) = (self.trials(probe), self.trials(best));
            let margin = self.noise().margin(mine, theirs);
            // If the noise is below the tolerance, a wrong choice between two similar loads costs less than the
            // tolerance.
            let clear = (new / old - 1.0).abs() > margin
                || margin <= self.bench.plan.tolerance
                || (rises && new > old);
            let fewer = if mine <= theirs { probe } else { best };
            if clear
                || self.trials(fewer) >= self.bench.plan.trials_max as usize
                || self.bench.experiments.len() >= spent
                || self.bench.is_late()
            {
                // Of two equal loads, the smaller one is better.
                return Ok(new > old || (new == old && probe < best));
            }
            self.run(fewer, Purpose::Again)?;
        }
    }

    /// Runs a load that was not run yet, and repeats it while chance could decide whether it meets the agreement.
    fn visit(&mut self, load: u64, purpose: Purpose) -> Result<(), RatingOutcome> {
        if self.points.contains_key(&load) {
            return Ok(());
        }
        self.run(load, purpose)?;
        for _ in 1..self.bench.plan.trials_max {
            if self.verdict(load).is_sure() || self.bench.is_late() {
                break;
            }
            self.run(load, Purpose::Again)?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self, load: u64, purpose: Purpose) -> Result<(), RatingOutcome> {
        let index = self.bench.run(load, purpose)?;
        let experiment = &self.bench.experiments[index];
        let tallies = self.bench.plan.sla.tally(&experiment.measured);
        let point = self.points.entry(load).or_default();
        point.throughputs.push(experiment.throughput);
        if point.tallies.is_empty() {
            point.tallies = tallies;
        } else {
            for (sum, tally) in point.tallies.iter_mut().zip(tallies) {
                sum.add(tally);
            }
        }
        Ok(())
    }

    fn verdict(&self, load: u64) -> Verdict {
        self.bench.plan.sla.judge(&self.points[&load].tallies)
    }

    fn met(&self, load: u64) -> bool {
        self.verdict(load).met
    }

    pub(super) fn throughput(&self, load: u64) -> f64 {
        mean(&self.points[&load].throughputs)
    }

    /// Returns the throughput of a load that was run and meets the agreement. The throughput of load 0 is 0.
    fn height(&self, load: u64) -> Option<f64> {
        if load == 0 {
            return Some(0.0);
        }
        (self.points.contains_key(&load) && self.met(load)).then(|| self.throughput(load))
    }

    pub(super) fn trials(&self, load: u64) -> usize {
        self.points[&load].throughputs.len()
    }

    pub(super) fn noise(&self) -> Noise {
        Noise::from_trials(self.points.values().map(|point| &*point.throughputs))
    }

    /// Returns the loads that meet the agreement, in descending order of throughput.
    pub(super) fn ranked(&self) -> Vec<u64> {
        let met = self.points.keys().copied().filter(|load| self.met(*load));
        let mut ranked: Vec<u64> = met.collect();
        ranked.sort_by(|a, b| self.throughput(*b).total_cmp(&self.throughput(*a)));
        ranked
    }

    /// Returns the largest lower load that was run, or 0 if there is none.
    fn next_lower(&self, load: u64) -> u64 {
        self.points
            .range(..load)
            .next_back()
            .map_or(0, |(load, _)| *load)
    }
}
