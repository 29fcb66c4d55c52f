//! The distribution of the number of matches over the queries of a class.
//!
//! The work per match ends when enough rows are found. A query with a hundred thousand matches therefore does not cost
//! a hundred times as much as one with a thousand, as the mean would suggest.

use super::super::workload::QueryClass;

#[derive(Debug, Clone)]
pub(in crate::plan) struct MatchDistribution {
    /// Numbers of matches, ascending, each with its share of the queries.
    spread: Vec<(f64, f64)>,
    /// The maximum number of rows that are sent.
    sent_max: f64,
}

/// The number of equal parts of an exponential distribution, which is assumed if only the mean is known.
const PARTS: usize = 8;

impl MatchDistribution {
    /// Returns the distribution with `matches` on average, of which `results` are sent.
    pub fn of(class: &QueryClass, matches: f64, results: f64) -> MatchDistribution {
        let mut spread: Vec<(f64, f64)> = class
            .histogram
            .iter()
            .map(|bucket| (bucket.matches, bucket.share))
            .collect();
        if spread.is_empty() {
            spread = if results < matches {
                exponential(matches).collect()
            } else {
                vec![(matches, 1.0)]
            };
        }
        spread.sort_by(|one, other| one.0.total_cmp(&other.0));
        let shares: f64 = spread.iter().map(|it| it.1).sum();
        spread.iter_mut().for_each(|it| it.1 /= shares);
        let sent_max = sent_max(&spread, results);
        MatchDistribution { spread, sent_max }
    }

    pub fn mean(&self, of: impl Fn(f64) -> f64) -> f64 {
        let parts = self.spread.iter();
        parts.map(|(matches, share)| share * of(*matches)).sum()
    }

    /// Returns the mean total of matches found on this many servers, each of which finds at most as many as it sends.
    pub fn total_on(&self, servers: f64) -> f64 {
        self.mean(|matches| matches.min(servers * self.sent_max))
    }

    /// Returns the mean number of these servers that find and send something.
    pub fn servers_with_matches(&self, servers: f64) -> f64 {
        if self.sent_max <= 0.0 {
            return 0.0;
        }
        self.mean(|matches| {
            if matches < 1.0 {
                matches
            } else {
                servers * (1.0 - (1.0 - 1.0 / servers).powf(matches))
            }
        })
    }

    /// Returns the cost of selecting the rows to send, on this many servers with this total number of objects. A server
    /// either examines each match, or visits its objects in order until it has enough rows. It does the latter if it
    /// expects to visit at most four fifths as many. If an index provides the total (`is_counted`), visiting in order
    /// also saves listing the matches.
    pub fn selection_us(
        &self,
        servers: f64,
        objects: f64,
        is_counted: bool,
        match_us: f64,
        walk_us: Option<f64>,
    ) -> f64 {
        const SURE: f64 = 1.25;
        let rows_sent = servers * self.sent_max;
        self.mean(|matches| {
            // Among the visited objects, the share of matches is the same as among all objects.
            let passed = rows_sent * (objects / matches).max(1.0);
            let weighed = if is_counted { 2.0 * matches } else { matches };
            match walk_us {
                Some(us) if matches > rows_sent && SURE * passed < weighed => passed * us,
                _ if rows_sent > 0.0 => matches * match_us,
                _ => 0.0,
            }
        })
    }
}

/// Returns the means of equal parts of an exponential distribution with this mean.
fn exponential(mean: f64) -> impl Iterator<Item = (f64, f64)> {
    // The mean excess above zero of the part of the distribution beyond the point exceeded by this share, times the
    // share.
    let above = |share: f64| {
        if share > 0.0 {
            share * (1.0 - share.ln())
        } else {
            0.0
        }
    };
    let parts = PARTS as f64;
    (0..PARTS).map(move |at| {
        let (from, to) = (1.0 - at as f64 / parts, 1.0 - (at + 1) as f64 / parts);
        (mean * parts * (above(from) - above(to)), 1.0 / parts)
    })
}

/// Returns the limit at which `results` rows are sent on average, or infinity if all matches are sent.
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
    fn a_mean_alone_becomes_an_exponential_distribution() {
        let found = MatchDistribution::of(&QueryClass::default(), 40.0, 10.0);
        near(found.mean(|it| it), 40.0);
        near(found.total_on(1.0), 10.0);
        // Queries with few matches on one server do not find more on eight.
        let on_eight = found.total_on(8.0);
        assert!((34.0..38.0).contains(&on_eight), "{on_eight}");
    }

    #[test]
    fn queries_with_many_matches_walk_and_others_compare_all() {
        let bucket = |matches, share| Bucket { matches, share };
        let class = QueryClass {
            histogram: vec![bucket(10_000.0, 0.25), bucket(4.0, 0.75)],
            ..QueryClass::default()
        };
        let found = MatchDistribution::of(&class, 2_503.0, 0.75 * 4.0 + 0.25 * 20.0);
        near(found.total_on(2.0), 0.75 * 4.0 + 0.25 * 40.0);
        near(found.servers_with_matches(2.0), 0.75 * 1.875 + 0.25 * 2.0);
        // Two servers with 100,000 objects visit ten for each of the twenty rows.
        let walked = 2.0 * 20.0 * 10.0 * 0.1;
        let us = |walk_us| found.selection_us(2.0, 100_000.0, false, 0.05, walk_us);
        near(us(Some(0.1)), 0.75 * 4.0 * 0.05 + 0.25 * walked);
        near(us(None), 2_503.0 * 0.05);
        // Visiting 1,000 objects is not clearly less than examining 800, unless those must be listed too.
        let class = QueryClass {
            histogram: vec![bucket(800.0, 1.0)],
            ..QueryClass::default()
        };
        let found = MatchDistribution::of(&class, 800.0, 10.0);
        let us = |is_counted| found.selection_us(1.0, 80_000.0, is_counted, 0.05, Some(0.1));
        near(us(false), 40.0);
        near(us(true), 100.0);
    }

    #[test]
    fn a_query_without_returned_rows_has_no_selection_cost() {
        let found = MatchDistribution::of(&QueryClass::default(), 100.0, 0.0);
        near(found.total_on(3.0), 0.0);
        near(found.servers_with_matches(3.0), 0.0);
        near(found.selection_us(3.0, 1_000.0, true, 1.0, Some(1.0)), 0.0);
        let none = MatchDistribution::of(&QueryClass::default(), 0.0, 0.0);
        near(none.total_on(3.0), 0.0);
        near(none.servers_with_matches(3.0), 0.0);
    }
}
