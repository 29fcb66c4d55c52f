//! The eviction clock: decides which range is evicted when memory is short. This file contains the complete policy;
//! `evict` carries it out.
//!
//! ```text
//!          evicted next                                      evicted last
//!  hand ──► [ r3 ][ r7 ][ r1 ][ r9 ] … [ r2 ][ r8 ]  ◄── add, and ranges that the hand has spared
//!     ▲
//!     └── add, while most evicted ranges were never read again
//! ```
//!
//! Ranges form a ring. The hand takes the next one. A range that was read since the hand's last visit is spared and
//! loses its mark; others are evicted. A range that others were computed from is kept until those are dropped.
//!
//! If the ranges that are read in turn exceed the memory, the oldest range is always the one that is needed next, and
//! eviction in this order has no hits. The policy detects this: most evicted ranges were never read again. While that
//! is so, new ranges are added as the next to evict, so that the older ones stay and are hit. One in `APPEND_ONE_IN` is
//! still added at the end, so that ranges that become popular get in (bimodal insertion: Qureshi and others, Adaptive
//! Insertion Policies, ISCA 2007).
//!
//! 1. A range is in the ring exactly once, from its addition until it is evicted or found to be gone. Ranges may be
//!    dropped in other ways; the hand discovers this later.

use std::collections::VecDeque;

/// Share of evicted ranges never read again, in 256ths, from which on new ranges are the next to evict.
const UNUSED_SHARE_HIGH: u32 = 192;
/// One in this many new ranges is added at the end nevertheless.
const APPEND_ONE_IN: u32 = 16;
/// Approximate number of recent evictions that the share is based on.
const RECENT_EVICTIONS: u32 = 32;
/// Minimum ring size at which ranges that are gone are removed.
const CLEAN_RING_MIN: usize = 64;

#[derive(Debug)]
pub struct Clock<R> {
    ring: VecDeque<R>,
    /// Ring size at which ranges that are gone are removed next.
    clean_at: usize,
    /// The share of recently evicted ranges that were never read again, in 256ths, as a moving average.
    unused_share: u32,
    added: u32,
}

/// The state of a range that the hand takes.
pub enum RangeState<'r> {
    Gone,
    /// Others were computed from it.
    Pinned,
    Idle {
        /// Its mark, which is true if it was read since the hand's last visit.
        is_read: &'r mut bool,
    },
}

/// The decision about a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It is gone already.
    Gone,
    Keep,
    Evict,
}

impl<R> Default for Clock<R> {
    fn default() -> Self {
        Clock {
            ring: VecDeque::new(),
            clean_at: 0,
            unused_share: 0,
            added: 0,
        }
    }
}

impl<R: Copy> Clock<R> {
    /// Adds a range.
    pub fn add(&mut self, range: R) {
        self.added = self.added.wrapping_add(1);
        if self.unused_share < UNUSED_SHARE_HIGH || self.added.is_multiple_of(APPEND_ONE_IN) {
            self.ring.push_back(range);
        } else {
            self.ring.push_front(range);
        }
    }

    /// Removes ranges that are gone, if the ring has grown enough.
    pub fn clean(&mut self, is_current: impl FnMut(&R) -> bool) {
        if self.ring.len() >= self.clean_at.max(CLEAN_RING_MIN) {
            self.ring.retain(is_current);
            self.clean_at = self.ring.len() * 2;
        }
    }

    /// Maximum number of ranges that the hand passes before everything that can be evicted is: two rounds, because the
    /// first only clears marks.
    pub fn turns_max(&self) -> usize {
        self.ring.len() * 2 + 1
    }

    /// Takes the next range; [`Clock::decide`] decides about it.
    pub fn take_next(&mut self) -> Option<R> {
        self.ring.pop_front()
    }

    pub fn decide(&mut self, range: R, found: RangeState<'_>) -> Decision {
        let stays = match found {
            RangeState::Gone => return Decision::Gone,
            RangeState::Pinned => true,
            RangeState::Idle { is_read } => std::mem::take(is_read),
        };
        if !stays {
            return Decision::Evict;
        }
        self.ring.push_back(range);
        Decision::Keep
    }

    /// Puts a partially evicted range back as the next one.
    pub fn put_back(&mut self, range: R) {
        self.ring.push_front(range);
    }

    /// Records an eviction, and whether the range was ever read again.
    pub fn record_eviction(&mut self, is_reread: bool) {
        let unused = if is_reread { 0 } else { 256 / RECENT_EVICTIONS };
        self.unused_share = self.unused_share - self.unused_share / RECENT_EVICTIONS + unused;
    }

    pub fn memory_bytes(&self) -> usize {
        self.ring.capacity() * size_of::<R>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A cache with room for `capacity` ranges.
    struct Cache {
        clock: Clock<u32>,
        capacity: usize,
        /// Two marks per range number: read since the hand's last visit, and ever read again.
        cached: HashMap<u32, (bool, bool)>,
    }

    impl Cache {
        fn new(capacity: usize) -> Cache {
            Cache {
                clock: Clock::default(),
                capacity,
                cached: HashMap::new(),
            }
        }

        /// Reads a range. Returns whether it was present.
        fn read(&mut self, range: u32) -> bool {
            if let Some(marks) = self.cached.get_mut(&range) {
                *marks = (true, true);
                return true;
            }
            self.cached.insert(range, (false, false));
            self.clock.add(range);
            while self.cached.len() > self.capacity {
                let next = self.clock.take_next().expect("all are in the ring");
                let (is_read, is_reread) = self
                    .cached
                    .get_mut(&next)
                    .expect("the ring holds only cached ranges");
                let is_reread = *is_reread;
                if self.clock.decide(next, RangeState::Idle { is_read }) == Decision::Evict {
                    self.cached.remove(&next);
                    self.clock.record_eviction(is_reread);
                }
            }
            false
        }

        /// Reads ranges in turn, `times` times. Returns the number of hits in the last round.
        fn read_all(&mut self, ranges: std::ops::Range<u32>, times: usize) -> usize {
            let count = |cache: &mut Cache| ranges.clone().filter(|r| cache.read(*r)).count();
            (0..times).map(|_| count(self)).last().unwrap_or(0)
        }
    }

    #[test]
    fn a_range_that_was_read_again_outlives_one_that_was_not() {
        let mut cache = Cache::new(2);
        cache.read(1);
        cache.read(2);
        assert!(cache.read(1));
        cache.read(3);
        assert!(cache.cached.contains_key(&1) && !cache.cached.contains_key(&2));
        cache.read(4);
        cache.read(5);
        assert!(!cache.cached.contains_key(&1), "its mark was taken");
    }

    #[test]
    fn cyclic_reads_of_more_ranges_than_fit_still_hit_some() {
        let mut cache = Cache::new(50);
        let found = cache.read_all(0..100, 100);
        assert!(found > 30, "{found} of 100, where 50 fit");
    }

    #[test]
    fn a_new_working_set_displaces_a_cyclic_scan() {
        let mut cache = Cache::new(50);
        cache.read_all(0..100, 100);
        assert_eq!(cache.read_all(1000..1040, 200), 40);
    }

    #[test]
    fn pinned_ranges_stay_and_removed_ranges_leave_the_ring() {
        let mut clock = Clock::default();
        clock.add(1);
        clock.add(2);
        let next = clock.take_next().expect("two were added");
        assert_eq!(clock.decide(next, RangeState::Pinned), Decision::Keep);
        let next = clock.take_next().expect("two were added");
        assert_eq!(
            (next, clock.decide(next, RangeState::Gone)),
            (2, Decision::Gone)
        );
        assert_eq!((clock.take_next(), clock.take_next()), (Some(1), None));
    }
}
