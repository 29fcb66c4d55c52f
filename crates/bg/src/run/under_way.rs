//! Since when the oldest call under way may run, without a look at each: calls are counted by the second in which they began.
//!
//! Invariant: [`UnderWay::tick`] says an instant at or before the beginning of every call that has not ended.

use std::cell::RefCell;
use std::collections::VecDeque;

/// Calls under way of one worker.
#[derive(Default)]
pub struct UnderWay(RefCell<Epochs>);

#[derive(Default)]
struct Epochs {
    /// The number of the first.
    first: u64,
    /// When each began, and how many calls of it are under way; the last is the present one.
    epochs: VecDeque<(u64, u32)>,
}

/// In which epoch a call began.
#[derive(Clone, Copy, Debug)]
pub struct Began(u64);

impl UnderWay {
    /// A call is about to begin.
    pub fn begin(&self) -> Began {
        let mut all = self.0.borrow_mut();
        if all.epochs.is_empty() {
            all.epochs.push_back((0, 0));
        }
        let last = all.epochs.len() - 1;
        all.epochs[last].1 += 1;
        Began(all.first + last as u64)
    }

    pub fn end(&self, began: Began) {
        let mut all = self.0.borrow_mut();
        let place = (began.0 - all.first) as usize;
        all.epochs[place].1 -= 1;
    }

    /// Calls from here on are of a new epoch. No call that is under way began before the instant returned.
    pub fn tick(&self, now: u64) -> u64 {
        let mut all = self.0.borrow_mut();
        while all.epochs.front().is_some_and(|(_, calls)| *calls == 0) {
            all.epochs.pop_front();
            all.first += 1;
        }
        all.epochs.push_back((now, 0));
        all.epochs[0].0
    }
}

#[cfg(test)]
mod tests {
    use super::UnderWay;

    #[test]
    fn no_call_under_way_began_before_the_instant_that_a_tick_says() {
        let calls = UnderWay::default();
        let slow = calls.begin();
        let quick = calls.begin();
        calls.end(quick);
        assert_eq!(calls.tick(10), 0);
        let second = calls.begin();
        assert_eq!(calls.tick(20), 0);
        calls.end(slow);
        assert_eq!(calls.tick(30), 10);
        calls.end(second);
        assert_eq!(calls.tick(40), 40);
        assert_eq!(calls.tick(50), 50);
        let last = calls.begin();
        assert_eq!(calls.tick(60), 50);
        calls.end(last);
        assert_eq!(calls.tick(70), 70);
    }
}
