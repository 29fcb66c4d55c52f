//! How many objects a class of queries finds: not the same number each time.
//!
//! What is done once for each that is found ends where enough are sent, so a query that finds a hundred thousand takes no hundred times what one takes that finds
//! a thousand. The mean of both would say so.

use super::super::workload::QueryClass;

#[derive(Debug, Clone)]
pub(in crate::plan) struct Found {
    /// So many match in this share of the queries; ascending.
    spread: Vec<(f64, f64)>,
    /// Rows that are sent at most.
    sent_max: f64,
}

/// Where a mean alone is known: that of so many equal parts of an exponential distribution.
const PARTS: usize = 8;

impl Found {
    /// `matches` in the mean, `results` of them sent.
    pub fn of(class: &QueryClass, matches: f64, results: f64) -> Found {
        let mut spread: Vec<(f64, f64)> = class
            .histogram
            .iter()
            .map(|bucket| (bucket.matches, bucket.share))
            .collect();
        if spread.is_empty() {
            spread = match results < matches {
                true => exponential(matches).collect(),
                false => vec![(matches, 1.0)],
            };
        }
        spread.sort_by(|one, other| one.0.total_cmp(&other.0));
        let shares: f64 = spread.iter().map(|it| it.1).sum();
        spread.iter_mut().for_each(|it| it.1 /= shares);
        let sent_max = sent_max(&spread, results);
        Found { spread, sent_max }
    }

    pub fn mean(&self, of: impl Fn(f64) -> f64) -> f64 {
        let parts = self.spread.iter();
        parts.map(|(matches, share)| share * of(*matches)).sum()
    }

    /// Found on so many servers together, each of which finds no more than are sent.
    pub fn on(&self, servers: f64) -> f64 {
        self.mean(|matches| matches.min(servers * self.sent_max))
    }

    /// On how many of these servers something is found and sent.
    pub fn servers_that_find(&self, servers: f64) -> f64 {
        if self.sent_max <= 0.0 {
            return 0.0;
        }
        self.mean(|matches| match matches < 1.0 {
            true => matches,
            false => servers * (1.0 - (1.0 - 1.0 / servers).powf(matches)),
        })
    }

    /// What it takes to choose those that are sent, on so many servers with so many objects together. Each that is found is weighed; or a server goes through its objects in order
    /// until it has enough, where it expects to go through a fourth less than it would weigh. `is_counted`: an index tells how many there are, and what finds them all has to
    /// list them, too.
    pub fn chosen_us(
        &self,
        servers: f64,
        objects: f64,
        is_counted: bool,
        match_us: f64,
        walk_us: Option<f64>,
    ) -> f64 {
        const SURE: f64 = 1.25;
        let wanted = servers * self.sent_max;
        self.mean(|matches| {
            // Of all that are gone through as many match as of all that there are.
            let passed = wanted * (objects / matches).max(1.0);
            let weighed = if is_counted { 2.0 * matches } else { matches };
            match walk_us {
                Some(us) if matches > wanted && SURE * passed < weighed => passed * us,
                _ if wanted > 0.0 => matches * match_us,
                _ => 0.0,
            }
        })
    }
}

/// The means of equal parts of an exponential distribution with this mean.
fn exponential(mean: f64) -> impl Iterator<Item = (f64, f64)> {
    // Of all above the point that this share is above, what they are above nothing, times the share.
    let above = |share: f64| match share > 0.0 {
        true => share * (1.0 - share.ln()),
        false => 0.0,
    };
    let parts = PARTS as f64;
    (0..PARTS).map(move |at| {
        let (from, to) = (1.0 - at as f64 / parts, 1.0 - (at + 1) as f64 / parts);
        (mean * parts * (above(from) - above(to)), 1.0 / parts)
    })
}

/// The limit by which so many are sent in the mean; no limit if all that match are.
fn sent_max(spread: &[(f64, f64)], results: f64) -> f64 {
    let (mut below, mut left) = (0.0, 1.0);
    for (matches, share) in spread {
        if results < below + left * matches {
            return ((results - below) / left).max(0.0);
        }
        below += share * matches;
        left -= share;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::super::super::workload::Bucket;
    use super::*;

    fn near(is: f64, expected: f64) {
        assert!((is - expected).abs() < 1e-9, "{is}, not {expected}");
    }

    #[test]
    fn a_mean_alone_is_spread_about_it() {
        let found = Found::of(&QueryClass::default(), 40.0, 10.0);
        near(found.mean(|it| it), 40.0);
        near(found.on(1.0), 10.0);
        // What finds little on one server finds no more on eight.
        let on_eight = found.on(8.0);
        assert!((34.0..38.0).contains(&on_eight), "{on_eight}");
    }

    #[test]
    fn what_finds_many_walks_and_what_finds_few_weighs_all() {
        let bucket = |matches, share| Bucket { matches, share };
        let class = QueryClass {
            histogram: vec![bucket(10_000.0, 0.25), bucket(4.0, 0.75)],
            ..QueryClass::default()
        };
        let found = Found::of(&class, 2_503.0, 0.75 * 4.0 + 0.25 * 20.0);
        near(found.on(2.0), 0.75 * 4.0 + 0.25 * 40.0);
        near(found.servers_that_find(2.0), 0.75 * 1.875 + 0.25 * 2.0);
        // Two servers with 100,000 objects go through ten for each of the twenty.
        let walked = 2.0 * 20.0 * 10.0 * 0.1;
        let us = |walk_us| found.chosen_us(2.0, 100_000.0, false, 0.05, walk_us);
        near(us(Some(0.1)), 0.75 * 4.0 * 0.05 + 0.25 * walked);
        near(us(None), 2_503.0 * 0.05);
        // To go through 1,000 is not surely less than to weigh 800, unless those are listed, too.
        let class = QueryClass {
            histogram: vec![bucket(800.0, 1.0)],
            ..QueryClass::default()
        };
        let found = Found::of(&class, 800.0, 10.0);
        let us = |is_counted| found.chosen_us(1.0, 80_000.0, is_counted, 0.05, Some(0.1));
        near(us(false), 40.0);
        near(us(true), 100.0);
    }

    #[test]
    fn what_sends_nothing_chooses_nothing() {
        let found = Found::of(&QueryClass::default(), 100.0, 0.0);
        near(found.on(3.0), 0.0);
        near(found.servers_that_find(3.0), 0.0);
        near(found.chosen_us(3.0, 1_000.0, true, 1.0, Some(1.0)), 0.0);
        let none = Found::of(&QueryClass::default(), 0.0, 0.0);
        near(none.on(3.0), 0.0);
        near(none.servers_that_find(3.0), 0.0);
    }
}
