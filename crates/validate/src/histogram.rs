//! A histogram of values that takes little memory, whatever the values. `hdrhistogram`, with which bg measures, has a
//! finer resolution. This crate links only `types`, and an eighth suffices for the age of reads.

/// The buckets are an eighth of a power of two wide, so values have a precision of 12.5 %; below 16 they are exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max: u64,
}

impl Histogram {
    pub fn record(&mut self, value: u64) {
        let bucket = bucket(value);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(value);
    }

    pub fn add(&mut self, other: &Histogram) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        let pairs = self.buckets.iter_mut().zip(&other.buckets);
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the exact maximum; zero if there are no values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the smallest bucket bound that this share of the values (0.0 to 1.0) does not exceed; `None` if there
    /// are no values.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = ((share * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        self.buckets().find_map(|(_, last, count)| {
            seen += count;
            (seen >= wanted).then_some(last.min(self.max))
        })
    }

    /// Returns the nonempty buckets: first value, last value, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        let filled = self.buckets.iter().enumerate();
        filled
            .filter(|(_, count)| **count > 0)
            .map(|(index, count)| {
                let (first, last) = bounds(index);
                (first, last, *count)
            })
    }
}

fn bucket(value: u64) -> usize {
    if value < 8 {
        return value as usize;
    }
    let power = value.ilog2();
    ((power as usize - 2) << 3) + (value >> (power - 3)) as usize % 8
}

fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < 8 {
        return (bucket as u64, bucket as u64);
    }
    let shift = (bucket >> 3) - 1;
    let first = (8 + bucket as u64 % 8) << shift;
    (first, first + ((1 << shift) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_its_bucket_and_buckets_touch() {
        let mut next = 0u64;
        for index in 0..=bucket(u64::MAX) {
            let (first, last) = bounds(index);
            assert_eq!(first, next);
            assert_eq!((bucket(first), bucket(last)), (index, index));
            assert!(last - first <= first / 8);
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends with the last value");
    }

    #[test]
    fn quantiles_are_upper_bounds_within_an_eighth() {
        let mut all = Histogram::default();
        let mut half = Histogram::default();
        (1..=500).for_each(|value| all.record(value));
        (501..=1000).for_each(|value| half.record(value));
        all.add(&half);
        assert_eq!((all.count(), all.max()), (1000, 1000));
        for (share, exact) in [(0.0, 1), (0.5, 500), (0.99, 990), (1.0, 1000)] {
            let found = all.quantile(share).unwrap();
            assert!(
                exact <= found && found <= exact + exact / 8,
                "{share}: {found}"
            );
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
