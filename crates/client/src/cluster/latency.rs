//! Decides when to send a hedged request: after the 99th percentile of recent reads, and within a budget.
//!
//! [`LatencyWindow`] keeps the last 2,048 latencies in buckets that are 1/8 wider than the previous one: 5 kB, whatever the
//! values. A quantile is accurate to within a bucket, and rounded up.

/// The number of latencies that are kept.
const WINDOW: usize = 2_048;
/// Buckets per power of two.
const STEPS: u32 = 8;
/// For latencies up to 2^32 microseconds, over an hour.
const BUCKETS: usize = (33 * STEPS) as usize;
/// Minimum number of latencies for an estimate.
const SAMPLES_MIN: usize = 64;
/// The quantile is recomputed after this many latencies.
const RECOMPUTE_EVERY: u32 = 32;

/// The latencies of recent reads.
#[derive(Debug)]
pub(crate) struct LatencyWindow {
    counts: Box<[u16]>,
    /// A ring buffer of the buckets of the kept latencies.
    ring: Vec<u16>,
    next: usize,
    /// The last result, and the number of latencies since then.
    quantile_us: u64,
    since: u32,
}

impl Default for LatencyWindow {
    fn default() -> LatencyWindow {
        LatencyWindow {
            counts: vec![0; BUCKETS].into(),
            ring: Vec::with_capacity(WINDOW),
            next: 0,
            quantile_us: 0,
            since: RECOMPUTE_EVERY,
        }
    }
}

impl LatencyWindow {
    pub fn add(&mut self, us: u64) {
        let bucket = bucket(us);
        if self.ring.len() < WINDOW {
            self.ring.push(bucket as u16);
        } else {
            let oldest = std::mem::replace(&mut self.ring[self.next], bucket as u16);
            self.counts[usize::from(oldest)] -= 1;
            self.next = (self.next + 1) % WINDOW;
        }
        self.counts[bucket] += 1;
        self.since += 1;
    }

    /// Returns the 99th percentile in microseconds; `None` while there are too few latencies.
    pub fn p99_us(&mut self) -> Option<u64> {
        if self.ring.len() < SAMPLES_MIN {
            return None;
        }
        if self.since >= RECOMPUTE_EVERY {
            self.since = 0;
            self.quantile_us = self.quantile(99);
        }
        Some(self.quantile_us)
    }

    fn quantile(&self, percent: usize) -> u64 {
        let rank = (self.ring.len() * percent).div_ceil(100);
        let mut below = 0;
        let counts = self.counts.iter().enumerate();
        let found = counts.into_iter().find(|(_, count)| {
            below += usize::from(**count);
            below >= rank
        });
        found.map_or(0, |(bucket, _)| end_us(bucket))
    }
}

/// Returns the bucket: one each for 0 to 7 microseconds, then eight per power of two.
fn bucket(us: u64) -> usize {
    let us = us.min(u64::from(u32::MAX));
    if us < u64::from(STEPS) {
        return us as usize;
    }
    let doublings = us.ilog2() - 3;
    let step = (us >> doublings) as u32 - STEPS;
    ((doublings + 1) * STEPS + step) as usize
}

/// Returns the longest latency of a bucket.
fn end_us(bucket: usize) -> u64 {
    let (doublings, step) = (bucket as u64 / 8, bucket as u64 % 8);
    match doublings {
        0 => step,
        _ => ((9 + step) << (doublings - 1)) - 1,
    }
}

/// The budget of hedged requests: each read adds a fraction, up to a maximum.
#[derive(Debug)]
pub(crate) struct HedgeBudget {
    percent: u32,
    /// In hundredths of a request.
    units: u32,
}

impl HedgeBudget {
    /// Enough to hedge a burst of concurrent reads.
    const UNITS_MAX: u32 = 10 * 100;

    pub fn new(percent: u8) -> HedgeBudget {
        HedgeBudget {
            percent: u32::from(percent),
            units: 0,
        }
    }

    pub fn earn(&mut self) {
        self.units = (self.units + self.percent).min(HedgeBudget::UNITS_MAX);
    }

    /// Takes one request from the budget, and returns whether there was one.
    pub fn spend(&mut self) -> bool {
        let spent = self.units.checked_sub(100);
        self.units = spent.unwrap_or(self.units);
        spent.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_types::Random;

    #[test]
    fn every_time_is_in_the_bucket_that_contains_it() {
        for us in
            (0..5_000).chain((0..32).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]))
        {
            let bucket = bucket(us);
            assert!(
                us <= end_us(bucket) && (bucket == 0 || end_us(bucket - 1) < us),
                "{us}"
            );
            assert!(end_us(bucket) <= us + us / 8, "{us}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn the_estimate_is_exact_to_within_a_bucket() {
        let mut random = Random::new(7);
        let (mut recent, mut all) = (LatencyWindow::default(), Vec::new());
        for count in 1..=6_000 {
            let us = (random.exponential() * 300.0) as u64 + if count > 3_000 { 5_000 } else { 0 };
            recent.add(us);
            all.push(us);
            let mut last: Vec<u64> = all[all.len().saturating_sub(WINDOW)..].to_vec();
            if count < SAMPLES_MIN {
                assert_eq!(recent.p99_us(), None);
            } else if count % 500 == 0 {
                last.sort_unstable();
                let exact = last[(last.len() * 99).div_ceil(100) - 1];
                let estimate = recent.quantile(99);
                assert!(
                    exact <= estimate && estimate <= exact + exact / 8,
                    "{exact} {estimate}"
                );
            }
        }
        assert!(recent.p99_us() > Some(5_000), "old samples are dropped");
    }

    #[test]
    fn a_budget_is_a_share_of_the_reads_and_is_capped() {
        let mut budget = HedgeBudget::new(5);
        let spent = |budget: &mut HedgeBudget| (0..100).filter(|_| budget.spend()).count();
        assert_eq!(spent(&mut budget), 0, "nothing was read");
        (0..100).for_each(|_| budget.earn());
        assert_eq!(spent(&mut budget), 5);
        (0..1_000_000).for_each(|_| budget.earn());
        assert_eq!(spent(&mut budget), 10);
        let mut none = HedgeBudget::new(0);
        none.earn();
        assert!(!none.spend());
    }
}
