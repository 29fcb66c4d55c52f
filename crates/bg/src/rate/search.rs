//! Doubling, then narrowing: which load to confirm.
//!
//! Doubling ends with three loads of which the middle one is the best: the bracket. Narrowing probes inside it. The probe is taken
//! at the top of the parabola through the three, and every other time at the golden section of the wider side, so that
//! a curve that is no parabola cannot keep one side wide. A load that misses the agreement counts as below all that meet it.
//!
//! Narrowing ends when nothing is to be gained. Either each side of the bracket holds no further load, or no more than the tolerance could be
//! gained there by a throughput that is concave from 0 on (as that of stores that saturate is). Or the top of a parabola was
//! visited, did what the parabola promised, and the parabola through the new bracket promises no more. Where noise lets neither
//! come true, narrowing ends with half as many experiments as doubling took, and one: by then the bracket is as fine as the tolerance.

use std::collections::BTreeMap;

use super::noise::{Noise, mean};
use super::{Bench, End, Goal, Purpose};
use crate::verdict::agreement::{Tally, Verdict};

/// At loads up to this one the throughput may fall by any part and rise again: few calls are under way at the same time, and their ways of waiting
/// for each other are few.
const DIP_MAX: u64 = 8;

/// At loads above it a fall by more than this part is the way down.
const DIP_DEPTH: f64 = 0.25;

/// A load and what its trials said.
#[derive(Debug, Default)]
struct Point {
    throughputs: Vec<f64>,
    /// Of all its trials, one for each clause.
    tallies: Vec<Tally>,
}

/// Loads around the one sought.
#[derive(Clone, Copy, Debug)]
struct Bracket {
    /// Visited, or 0.
    low: u64,
    /// The best known.
    best: u64,
    /// Visited and worse, or one above the largest allowed.
    high: u64,
}

impl Bracket {
    /// With a probe inside of it.
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

/// Its highest point.
#[derive(Clone, Copy, Debug)]
struct Parabola {
    top: f64,
    height: f64,
}

pub(super) struct Search<'s, 'b> {
    pub(super) bench: &'s mut Bench<'b>,
    points: BTreeMap<u64, Point>,
}

impl<'s, 'b> Search<'s, 'b> {
    pub fn over(bench: &'s mut Bench<'b>) -> Search<'s, 'b> {
        Search {
            bench,
            points: BTreeMap::new(),
        }
    }
}

impl Search<'_, '_> {
    /// The index of the experiment that confirms the rating; None where no load meets the agreement.
    pub fn run_to_a_rating(&mut self) -> Result<Option<usize>, End> {
        let Some(start) = self.first()? else {
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

    /// The first load that meets the agreement, halving from the plan's first.
    fn first(&mut self) -> Result<Option<u64>, End> {
        let mut load = self.bench.plan.first.max(1);
        self.visit(load, Purpose::Double)?;
        loop {
            if !self.met(load) {
                self.doubt(load, |search| search.met(load))?;
            }
            if self.met(load) {
                return Ok(Some(load));
            }
            if load == 1 {
                let why = self.verdict(load).why();
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
    ) -> Result<Bracket, End> {
        let most = self.bench.plan.most;
        let mut bracket = Bracket {
            low: self.below(start),
            best: start,
            high: most + 1,
        };
        // Halving came down from a load that misses.
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
                self.doubt(next, |search| good(search, bracket.best, next))?;
            }
            if !good(self, bracket.best, next) {
                if self.rises_beyond(bracket.best, next)? {
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
            "the largest load allowed, {most}, is still good: the rating may be higher"
        ));
        Ok(bracket)
    }

    /// Whether a load that ends the doubling is but a dip: the next one is better than what was best. Who waits for whom on which processor
    /// decides as much as how much there is to do, so a curve may fall and rise again.
    fn rises_beyond(&mut self, best: u64, dip: u64) -> Result<bool, End> {
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
        // On a plateau chance alone would lead on and on.
        let margin = self.noise().margin(self.trials(dip * 2), self.trials(best));
        let enough = 1.0 + margin.max(self.bench.plan.tolerance);
        let rises = self.met(dip * 2) && self.throughput(dip * 2) > self.throughput(best) * enough;
        if rises {
            self.bench.note(format!(
                "the throughput at {dip} is lower than at {best} and at {}: a dip",
                dip * 2
            ));
        }
        Ok(rises)
    }

    /// Whether the throughput at `to` is higher by more than the tolerance.
    fn rises(&self, from: u64, to: u64) -> bool {
        let enough = 1.0 + self.bench.plan.tolerance;
        self.met(to) && self.throughput(to) > self.throughput(from) * enough
    }

    /// A second trial of a load that would end the doubling. When it is good by itself, the first is set aside.
    fn doubt(&mut self, load: u64, good: impl Fn(&Self) -> bool) -> Result<(), End> {
        if self.points[&load].throughputs.len() > 1 || self.bench.is_late() {
            return Ok(());
        }
        let first = self.points.remove(&load).expect("visited");
        self.run(load, Purpose::Again)?;
        if good(self) {
            self.bench.note(format!(
                "the first trial of {load} was set aside: a second one contradicts it"
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

    /// The load with the highest throughput among those that meet the agreement, to the tolerance.
    fn narrow(&mut self, mut bracket: Bracket) -> Result<u64, End> {
        let budget = self.bench.experiments.len() / 2 + 1;
        let spent = self.bench.experiments.len() + budget;
        for turn in 0.. {
            if self.bench.is_late() {
                break;
            }
            // An edge of the agreement is halved into until it is found.
            if self.bench.experiments.len() >= spent && self.height(bracket.high).is_some() {
                self.bench.note(format!(
                    "narrowing stopped after {budget} experiments: a load from {} to {} may be a little better",
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
            let Some(probe) = top.or_else(|| self.golden(bracket, left, right)) else {
                break;
            };
            self.visit(probe, Purpose::Narrow)?;
            let better = self.is_better(probe, bracket, spent)?;
            bracket = bracket.around(probe, better);
            if let Some(promised) = parabola
                && top.is_some()
                && self.kept(promised, probe)
                && self.parabola(bracket).is_some_and(|new| {
                    new.height <= self.throughput(bracket.best) * (1.0 + self.bench.plan.tolerance)
                })
            {
                break;
            }
        }
        Ok(bracket.best)
    }

    /// Whether a probe at its top did what a parabola promised, as far as noise can tell.
    fn kept(&self, promised: Parabola, probe: u64) -> bool {
        let Some(height) = self.height(probe) else {
            return false;
        };
        let margin = self.noise().margin(self.trials(probe), 1);
        (height / promised.height - 1.0).abs() <= margin.max(self.bench.plan.tolerance)
    }

    /// The highest load that meets the agreement: `best` does, `high` does not.
    fn bisect(&mut self, mut bracket: Bracket) -> Result<u64, End> {
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

    /// The golden section of the wider side that is worth it.
    fn golden(&self, bracket: Bracket, left: bool, right: bool) -> Option<u64> {
        let Bracket { low, best, high } = bracket;
        let step = |width: u64| ((width as f64 * 0.381_966).round() as u64).clamp(1, width - 1);
        match (left, right) {
            (false, false) => None,
            (true, false) => Some(best - step(best - low)),
            (true, true) if best - low > high - best => Some(best - step(best - low)),
            // What misses the agreement says nothing of the throughput: the edge may be anywhere.
            (_, true) if self.height(high).is_none() => Some(best + (high - best) / 2),
            (_, true) => Some(best + step(high - best)),
        }
    }

    /// Whether a load above the best may gain more than the tolerance.
    fn gains_right(&self, Bracket { low, best, high }: Bracket) -> bool {
        let width = (high - best) as f64;
        let mut gain = width / best as f64;
        if let (Some(bottom), Some(top)) = (self.height(low), self.height(best)) {
            // It rises no steeper than up to the best.
            gain = gain.min((top - bottom) / (best - low) as f64 * width / top);
        }
        high - best > 1 && gain > self.bench.plan.tolerance
    }

    /// Whether a load below the best may gain more than the tolerance.
    fn gains_left(&self, Bracket { low, best, high }: Bracket) -> bool {
        let width = (best - low) as f64;
        let mut gain = width / low as f64;
        if let (Some(top), Some(end)) = (self.height(best), self.height(high)) {
            // It falls no steeper than behind the best.
            gain = gain.min((top - end) / (high - best) as f64 * width / top);
        }
        let below = self.below(low);
        if let (Some(from), Some(bottom), Some(top)) =
            (self.height(below), self.height(low), self.height(best))
            && below < low
        {
            // It rises no steeper than below.
            let slope = (bottom - from) / (low - below) as f64;
            gain = gain.min((bottom + slope * width) / top - 1.0);
        }
        best - low > 1 && gain > self.bench.plan.tolerance
    }

    /// Through the three loads of the bracket; None where an end misses the agreement, or where all are alike.
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

    /// Whether a probe is better than the best; runs either again while noise could decide, until so many experiments were run.
    fn is_better(&mut self, probe: u64, bracket: Bracket, spent: usize) -> Result<bool, End> {
        let best = bracket.best;
        // Below an edge of the agreement more load is more throughput but for noise.
        let rises = probe > best && self.height(bracket.high).is_none();
        loop {
            let (Some(new), Some(old)) = (self.height(probe), self.height(best)) else {
                return Ok(self.height(probe).is_some());
            };
            let (mine, theirs) = (self.trials(probe), self.trials(best));
            let margin = self.noise().margin(mine, theirs);
            // Where noise is smaller than what is looked for, a wrong choice between two alike costs less than that.
            let clear = (new / old - 1.0).abs() > margin
                || margin <= self.bench.plan.tolerance
                || (rises && new > old);
            let fewer = if mine <= theirs { probe } else { best };
            if clear
                || self.trials(fewer) >= self.bench.plan.trials_max as usize
                || self.bench.experiments.len() >= spent
                || self.bench.is_late()
            {
                // Of two alike the smaller load is the better.
                return Ok(new > old || (new == old && probe < best));
            }
            self.run(fewer, Purpose::Again)?;
        }
    }

    /// Runs a load not run yet, again while chance could decide whether it meets the agreement.
    fn visit(&mut self, load: u64, purpose: Purpose) -> Result<(), End> {
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

    pub(super) fn run(&mut self, load: u64, purpose: Purpose) -> Result<(), End> {
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

    /// The throughput of a load that was visited and meets the agreement. Without load nothing is done.
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
        Noise::of(self.points.values().map(|point| &*point.throughputs))
    }

    /// The loads that meet the agreement, the one with the highest throughput first.
    pub(super) fn ranked(&self) -> Vec<u64> {
        let met = self.points.keys().copied().filter(|load| self.met(*load));
        let mut ranked: Vec<u64> = met.collect();
        ranked.sort_by(|a, b| self.throughput(*b).total_cmp(&self.throughput(*a)));
        ranked
    }

    /// The largest load visited below; 0 where there is none.
    fn below(&self, load: u64) -> u64 {
        self.points
            .range(..load)
            .next_back()
            .map_or(0, |(load, _)| *load)
    }
}
