//! A bounded estimate of the most frequently read keys of stores, so that a new version can have them in memory before it is
//! read.
//!
//! ```text
//!  reads ─ one key in 61 ─► the thread's list (bounded; excess is dropped) ─ fold ─► a summary per store ─► hottest
//! ```
//!
//! The summary is that of J. Misra and D. Gries (Finding repeated elements, 1982), with spare room: when it has twice as many
//! keys as requested, all counts are reduced by the count of the first surplus key, and keys without a count are removed. A count
//! is too small by at most one `count`-th of all counted reads, so every key that is read more often than that is included.
//! Counts are halved periodically, so that formerly hot keys are dropped.
//!
//! A read that is not sampled costs one decrement of a thread-local counter. If no keys are requested, there is no sampler.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_types::StoreName;

/// A prime, so that no regular pattern of reads coincides with it.
const SAMPLE_EVERY: usize = 61;
/// Maximum number of samples per thread between two folds.
const SAMPLED_MAX: usize = 4096;
/// Longer keys are not sampled.
const KEY_BYTES_MAX: usize = 1024;
/// The number of samples of a store after which its counts are halved.
const HALVE_EVERY: u64 = 1 << 20;

type SampledKeys = Mutex<Vec<(StoreName, Box<[u8]>)>>;

/// The samples of all serving threads.
pub struct HotKeys {
    /// The number of keys requested per store; 0 disables sampling.
    count: usize,
    threads: Mutex<Vec<Arc<SampledKeys>>>,
    stores: Mutex<HashMap<StoreName, Summary>>,
    /// The number of keys found in new versions since the server started.
    warmed: AtomicU64,
}

/// The sampler of a serving thread.
pub struct Sampler {
    /// The number of keys until the next sample.
    until_sample: Cell<usize>,
    sampled: Arc<SampledKeys>,
}

impl HotKeys {
    pub fn new(count: usize) -> HotKeys {
        HotKeys {
            count,
            threads: Mutex::default(),
            stores: Mutex::default(),
            warmed: AtomicU64::new(0),
        }
    }

    /// Returns a sampler for a serving thread; `None` if sampling is disabled.
    pub fn sampler(&self) -> Option<Sampler> {
        if self.count == 0 {
            return None;
        }
        let sampled: Arc<SampledKeys> = Arc::default();
        lock(&self.threads).push(sampled.clone());
        Some(Sampler {
            until_sample: Cell::new(SAMPLE_EVERY),
            sampled,
        })
    }

    /// Collects the samples of all threads. To be called periodically, not on a serving thread.
    pub fn merge_samples(&self) {
        let threads = lock(&self.threads).clone();
        for thread in threads {
            // A serving thread that finds the list locked drops its sample, so the lock is held only briefly.
            let sampled = std::mem::take(&mut *lock(&thread));
            let mut stores = lock(&self.stores);
            for (store, key) in sampled {
                stores.entry(store).or_default().add(key, self.count);
            }
        }
    }

    /// Returns the hottest keys of a store, the hottest first, at most the requested number.
    pub fn hottest(&self, store: &StoreName) -> Vec<Box<[u8]>> {
        self.merge_samples();
        let stores = lock(&self.stores);
        let counts = stores.get(store).into_iter().flat_map(|it| &it.counts);
        let mut all: Vec<(&Box<[u8]>, u64)> = counts.map(|(key, count)| (key, *count)).collect();
        all.sort_by(|(a, x), (b, y)| y.cmp(x).then_with(|| a.cmp(b)));
        all.truncate(self.count);
        all.into_iter().map(|(key, _)| key.clone()).collect()
    }

    /// Counts keys that were found in a new version.
    pub fn add_warmed(&self, keys: u64) {
        self.warmed.fetch_add(keys, Relaxed);
    }

    pub fn warmed(&self) -> u64 {
        self.warmed.load(Relaxed)
    }

    /// Removes stores that no longer exist.
    pub fn keep_only(&self, is_there: impl Fn(&StoreName) -> bool) {
        lock(&self.stores).retain(|store, _| is_there(store));
    }
}

impl Sampler {
    /// Records reads of keys of one store.
    #[inline]
    pub fn record(&self, store: &StoreName, keys: &[&[u8]]) {
        let until_sample = self.until_sample.get();
        if until_sample > keys.len() {
            self.until_sample.set(until_sample - keys.len());
            return;
        }
        self.sample(store, keys, until_sample);
    }

    #[cold]
    fn sample(&self, store: &StoreName, keys: &[&[u8]], until_sample: usize) {
        let places = (until_sample - 1..keys.len()).step_by(SAMPLE_EVERY);
        let last = until_sample - 1 + (places.len() - 1) * SAMPLE_EVERY;
        self.until_sample
            .set(SAMPLE_EVERY - (keys.len() - 1 - last));
        let Ok(mut sampled) = self.sampled.try_lock() else {
            return;
        };
        for key in places.map(|place| keys[place]) {
            if sampled.len() < SAMPLED_MAX && key.len() <= KEY_BYTES_MAX {
                sampled.push((store.clone(), key.into()));
            }
        }
    }
}

/// The summary of one store.
#[derive(Default)]
struct Summary {
    counts: HashMap<Box<[u8]>, u64>,
    sampled: u64,
}

impl Summary {
    fn add(&mut self, key: Box<[u8]>, count: usize) {
        *self.counts.entry(key).or_insert(0) += 1;
        self.sampled += 1;
        if self.counts.len() >= 2 * count.max(1) {
            let mut all: Vec<u64> = self.counts.values().copied().collect();
            let (_, first_too_many, _) = all.select_nth_unstable_by(count, |a, b| b.cmp(a));
            let lower = *first_too_many;
            self.lower(|hits| hits - hits.min(lower));
        }
        if self.sampled.is_multiple_of(HALVE_EVERY) {
            self.lower(|hits| hits / 2);
        }
    }

    fn lower(&mut self, lowered: impl Fn(u64) -> u64) {
        self.counts.retain(|_, hits| {
            *hits = lowered(*hits);
            *hits > 0
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use larder_types::Random;

    use super::*;

    fn store(name: &str) -> StoreName {
        name.parse().expect("a name")
    }

    /// Samples like a thread that reads `at_a_time` keys per command.
    fn reads(hot: &HotKeys, at_a_time: usize, count: usize, mut key: impl FnMut() -> u64) {
        let sampler = hot.sampler().expect("sampling is on");
        for round in 0..count / at_a_time {
            let keys: Vec<String> = (0..at_a_time).map(|_| key().to_string()).collect();
            let keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
            sampler.record(&store("s"), &keys);
            if round % 64 == 0 {
                hot.merge_samples();
            }
        }
    }

    #[test]
    fn the_hottest_keys_are_found_among_a_million_others() {
        for at_a_time in [1, 7, 32, 200] {
            let hot = HotKeys::new(100);
            let mut random = Random::new(at_a_time as u64);
            reads(&hot, at_a_time, 600_000, || match random.below(2) {
                0 => random.below(20),
                _ => 1_000 + random.below(1_000_000),
            });
            let hottest = hot.hottest(&store("s"));
            let first: Vec<u64> = hottest[..20]
                .iter()
                .map(|key| String::from_utf8_lossy(key).parse().expect("a number"))
                .collect();
            assert!(first.iter().all(|key| *key < 20), "{at_a_time}: {first:?}");
            assert!(hottest.len() <= 100);
        }
    }

    #[test]
    fn every_nth_key_is_sampled_for_any_batch_size() {
        for at_a_time in [1, 2, 60, 61, 62, 122, 123, 500] {
            let hot = HotKeys::new(1_000_000);
            let sampler = hot.sampler().expect("sampling is on");
            let mut next = 0u64;
            let mut sampled = Vec::new();
            while next < 61 * 50 {
                let keys: Vec<[u8; 8]> = (0..at_a_time as u64)
                    .map(|at| (next + at).to_be_bytes())
                    .collect();
                next += at_a_time as u64;
                let keys: Vec<&[u8]> = keys.iter().map(|it| &it[..]).collect();
                sampler.record(&store("s"), &keys);
                sampled.append(&mut lock(&sampler.sampled));
            }
            let places = sampled
                .iter()
                .map(|(_, key)| u64::from_be_bytes((**key).try_into().expect("eight")));
            let expected: Vec<u64> = (0..)
                .map(|at| 60 + at * 61)
                .take_while(|at| *at < next)
                .collect();
            assert_eq!(places.collect::<Vec<_>>(), expected, "{at_a_time}");
        }
    }

    #[test]
    fn memory_is_bounded_and_stores_are_counted_separately() {
        let hot = HotKeys::new(10);
        let sampler = hot.sampler().expect("sampling is on");
        let long = vec![b'x'; KEY_BYTES_MAX + 1];
        for number in 0..1_000_000u64 {
            let key = number.to_be_bytes();
            sampler.record(&store(["a", "b"][(number % 2) as usize]), &[&key]);
        }
        assert_eq!(lock(&sampler.sampled).len(), SAMPLED_MAX);
        for _ in 0..SAMPLE_EVERY {
            sampler.record(&store("a"), &[&long]);
        }
        hot.merge_samples();
        for summary in lock(&hot.stores).values() {
            assert!(summary.counts.len() < 20);
        }
        assert_eq!(hot.hottest(&store("c")), Vec::<Box<[u8]>>::new());
        hot.keep_only(|name| name.as_str() == "a");
        assert_eq!(lock(&hot.stores).len(), 1);
        assert!(HotKeys::new(0).sampler().is_none());
    }
}
