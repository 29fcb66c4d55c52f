//! The eviction clock: which range goes when memory is short. This file is the policy, all of it; `evict` does what it decides.
//!
//! ```text
//!          next to go                                        last to go
//!  hand ──► [ r3 ][ r7 ][ r1 ][ r9 ] … [ r2 ][ r8 ]  ◄── add, and what stays when the hand came by
//!     ▲
//!     └── add, while ranges go that were never read again
//! ```
//!
//! Ranges stand in a ring. The hand takes the next one: a range that was read since it last came by stays and loses its mark,
//! another goes. A range that others were computed from stays until they are gone.
//!
//! Where more is read in turn than fits, the oldest range is always the one that will be read next, and all would go in
//! vain. That shows: ranges go that were never read again. While most do, new ranges line up as the next to go instead,
//! and what is there stays and is found; one in a few still lines up at the end, so that what is read more in time
//! comes in (bimodal insertion: Qureshi and others, Adaptive Insertion Policies, ISCA 2007).
//!
//! 1. A range is in the ring once from when it is added until it is found gone or goes. Ranges may go in other ways; the hand finds
//!    them gone later.

use std::collections::VecDeque;

/// New ranges are the next to go when so many went in vain, in 256ths.
const IN_VAIN_MANY: u32 = 192;
/// But one in so many.
const ONE_IN: u32 = 16;
/// How many of the last ranges that went count, about.
const REMEMBERED: u32 = 32;
/// Ranges that are gone are not looked for in a ring of so many.
const FEW: usize = 64;

#[derive(Debug)]
pub struct Clock<R> {
    ring: VecDeque<R>,
    /// Ranges that are gone are taken out when there are this many.
    clean_at: usize,
    /// How many of the last ranges that went were never read again, in 256ths: recent ones weigh more.
    in_vain: u32,
    added: u32,
}

/// What the hand finds of a range.
pub enum Found<'r> {
    Gone,
    /// Others were computed from it.
    Pinned,
    Idle {
        /// Its mark: it was read since the hand came by.
        is_read: &'r mut bool,
    },
}

/// What becomes of the range that is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is gone already.
    Gone,
    Stays,
    Goes,
}

impl<R> Default for Clock<R> {
    fn default() -> Self {
        Clock {
            ring: VecDeque::new(),
            clean_at: 0,
            in_vain: 0,
            added: 0,
        }
    }
}

impl<R: Copy> Clock<R> {
    /// A range came.
    pub fn add(&mut self, range: R) {
        self.added = self.added.wrapping_add(1);
        if self.in_vain < IN_VAIN_MANY || self.added.is_multiple_of(ONE_IN) {
            self.ring.push_back(range);
        } else {
            self.ring.push_front(range);
        }
    }

    /// Takes ranges out that are gone, when there may be many.
    pub fn clean(&mut self, is_there: impl FnMut(&R) -> bool) {
        if self.ring.len() >= self.clean_at.max(FEW) {
            self.ring.retain(is_there);
            self.clean_at = self.ring.len() * 2;
        }
    }

    /// How many ranges the hand passes at most until all that can go have gone: twice around, since the first time takes marks.
    pub fn turns_max(&self) -> usize {
        self.ring.len() * 2 + 1
    }

    /// The next range; [`Clock::decide`] says what becomes of it.
    pub fn take_next(&mut self) -> Option<R> {
        self.ring.pop_front()
    }

    pub fn decide(&mut self, range: R, found: Found<'_>) -> Fate {
        let stays = match found {
            Found::Gone => return Fate::Gone,
            Found::Pinned => true,
            Found::Idle { is_read } => std::mem::take(is_read),
        };
        if !stays {
            return Fate::Goes;
        }
        self.ring.push_back(range);
        Fate::Stays
    }

    /// A part of a large range went: the rest is next.
    pub fn goes_on(&mut self, range: R) {
        self.ring.push_front(range);
    }

    /// A range went; whether it was ever read again.
    pub fn went(&mut self, is_reread: bool) {
        let in_vain = if is_reread { 0 } else { 256 / REMEMBERED };
        self.in_vain = self.in_vain - self.in_vain / REMEMBERED + in_vain;
    }

    pub fn memory_bytes(&self) -> usize {
        self.ring.capacity() * size_of::<R>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// What there is of some ranges, of which so many fit.
    struct Cache {
        clock: Clock<u32>,
        fits: usize,
        /// By number: whether it was read since the hand came by, and whether it was read again at all.
        there: HashMap<u32, (bool, bool)>,
    }

    impl Cache {
        fn new(fits: usize) -> Cache {
            Cache {
                clock: Clock::default(),
                fits,
                there: HashMap::new(),
            }
        }

        /// Reads a range; says whether it was there.
        fn read(&mut self, range: u32) -> bool {
            if let Some(marks) = self.there.get_mut(&range) {
                *marks = (true, true);
                return true;
            }
            self.there.insert(range, (false, false));
            self.clock.add(range);
            while self.there.len() > self.fits {
                let next = self.clock.take_next().expect("all are in the ring");
                let (is_read, is_reread) = self.there.get_mut(&next).expect("it goes by the clock");
                let is_reread = *is_reread;
                if self.clock.decide(next, Found::Idle { is_read }) == Fate::Goes {
                    self.there.remove(&next);
                    self.clock.went(is_reread);
                }
            }
            false
        }

        /// Reads ranges in turn, so many times; how many of the last time were there.
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
        assert!(cache.there.contains_key(&1) && !cache.there.contains_key(&2));
        cache.read(4);
        cache.read(5);
        assert!(!cache.there.contains_key(&1), "its mark was taken");
    }

    #[test]
    fn ranges_in_turn_that_do_not_all_fit_are_found_in_part() {
        let mut cache = Cache::new(50);
        let found = cache.read_all(0..100, 100);
        assert!(found > 30, "{found} of 100, where 50 fit");
    }

    #[test]
    fn what_is_read_now_comes_in_after_what_was_read_in_turn() {
        let mut cache = Cache::new(50);
        cache.read_all(0..100, 100);
        assert_eq!(cache.read_all(1000..1040, 200), 40);
    }

    #[test]
    fn what_is_pinned_stays_and_what_is_gone_is_forgotten() {
        let mut clock = Clock::default();
        clock.add(1);
        clock.add(2);
        let next = clock.take_next().expect("two were added");
        assert_eq!(clock.decide(next, Found::Pinned), Fate::Stays);
        let next = clock.take_next().expect("two were added");
        assert_eq!((next, clock.decide(next, Found::Gone)), (2, Fate::Gone));
        assert_eq!((clock.take_next(), clock.take_next()), (Some(1), None));
    }
}
