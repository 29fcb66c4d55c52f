//! A hash table from byte strings to ids. A lookup has two cache misses; a binary search would have one for each
//! halving.
//!
//! It uses linear hashing (Litwin 1980): one bucket is split for every [`SPLIT`] new ids, so no write waits for a
//! complete rehash. The strings are not stored here; the caller provides the string of an id.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

/// The maximum average number of ids per bucket. Buckets are merged when the average falls to a quarter of it.
const SPLIT: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Hashes differ between processes, so that clients cannot choose colliding words.
    state: RandomState,
    buckets: Vec<HashTable<u32>>,
    len: usize,
}

impl Ids {
    fn hash(&self, bytes: &[u8]) -> u64 {
        self.state.hash_one(bytes)
    }

    /// Looks up the id of a string. `bytes` returns the string of an id.
    pub fn find<'b>(&self, sought: &[u8], bytes: impl Fn(u32) -> &'b [u8]) -> Option<u32> {
        let hash = self.hash(sought);
        let bucket = self.buckets.get(bucket_of(hash, self.buckets.len()))?;
        bucket.find(hash, |id| bytes(*id) == sought).copied()
    }

    /// Inserts an id, whose string must not be present.
    pub fn insert<'b>(&mut self, id: u32, bytes: impl Fn(u32) -> &'b [u8]) {
        if self.len >= self.buckets.len() * SPLIT {
            self.split(&bytes);
        }
        let hash = self.hash(bytes(id));
        let at = bucket_of(hash, self.buckets.len());
        let state = &self.state;
        self.buckets[at].insert_unique(hash, id, |id| state.hash_one(bytes(*id)));
        self.len += 1;
    }

    pub fn remove<'b>(&mut self, id: u32, bytes: impl Fn(u32) -> &'b [u8]) {
        let hash = self.hash(bytes(id));
        let at = bucket_of(hash, self.buckets.len());
        if let Ok(found) = self.buckets[at].find_entry(hash, |it| *it == id) {
            found.remove();
            self.len -= 1;
        }
        if self.buckets.len() > 1 && self.len < self.buckets.len() * SPLIT / 4 {
            self.join(&bytes);
        }
    }

    fn split<'b>(&mut self, bytes: &impl Fn(u32) -> &'b [u8]) {
        let count = self.buckets.len() + 1;
        self.buckets.push(HashTable::new());
        let Some(from) = origin_of(count - 1) else {
            return;
        };
        let state = &self.state;
        let hash = |id: &u32| state.hash_one(bytes(*id));
        let (olds, news) = self.buckets.split_at_mut(count - 1);
        let moved = olds[from].extract_if(|id| bucket_of(hash(id), count) != from);
        for id in moved {
            news[0].insert_unique(hash(&id), id, hash);
        }
        olds[from].shrink_to(0, hash);
    }

    fn join<'b>(&mut self, bytes: &impl Fn(u32) -> &'b [u8]) {
        let Some(last) = self.buckets.pop() else {
            return;
        };
        let Some(into) = origin_of(self.buckets.len()) else {
            return;
        };
        let state = &self.state;
        let hash = |id: &u32| state.hash_one(bytes(*id));
        for id in last {
            self.buckets[into].insert_unique(hash(&id), id, hash);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        let of_buckets: usize = self.buckets.iter().map(HashTable::allocation_size).sum();
        of_buckets + self.buckets.capacity() * size_of::<HashTable<u32>>()
    }
}

/// Returns the bucket of a hash among `count` buckets; 0 if there are none.
fn bucket_of(hash: u64, count: usize) -> usize {
    let mask = count.next_power_of_two() - 1;
    // The table of a bucket uses the lowest and the highest bits of the hash.
    let at = (hash >> 20) as usize & mask;
    if at < count { at } else { at & (mask >> 1) }
}

/// Returns the bucket that is split when bucket `at` is created, or `None` for the first bucket.
fn origin_of(at: usize) -> Option<usize> {
    Some(at - (at.checked_ilog2().map(|it| 1 << it)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_are_found_after_any_insertions_and_removals(changes in proptest::collection::vec((0_u32..4_000, 1_u32..1_500, any::<bool>()), 0..24)) {
            let names: Vec<Vec<u8>> = (0..6_000).map(|id| format!("name {id}").into_bytes()).collect();
            let bytes = |id: u32| &names[id as usize][..];
            let mut ids = Ids::default();
            let mut known = std::collections::BTreeSet::new();
            for (from, count, comes) in changes {
                for id in from..from + count {
                    if comes && known.insert(id) {
                        ids.insert(id, bytes);
                    } else if !comes && known.remove(&id) {
                        ids.remove(id, bytes);
                    }
                }
                prop_assert_eq!(ids.len, known.len());
                prop_assert!(ids.buckets.len() <= 4 * known.len() / SPLIT + 2);
                prop_assert!(ids.buckets.len() >= known.len() / SPLIT);
            }
            for id in 0..6_000 {
                let expected = known.contains(&id).then_some(id);
                prop_assert_eq!(ids.find(bytes(id), bytes), expected);
            }
        }
    }

    #[test]
    fn buckets_are_about_even() {
        let names: Vec<Vec<u8>> = (0..100_000)
            .map(|id| format!("{id}").into_bytes())
            .collect();
        let mut ids = Ids::default();
        for id in 0..100_000 {
            ids.insert(id, |id| &names[id as usize][..]);
        }
        let largest = ids.buckets.iter().map(HashTable::len).max();
        // Buckets that are not split yet have twice as many.
        assert!(largest.is_some_and(|it| it < 3 * SPLIT), "{largest:?}");
        assert!(ids.heap_bytes() < 100_000 * 16, "{}", ids.heap_bytes());
    }
}
