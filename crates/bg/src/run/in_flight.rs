//! Finds a lower bound on the start of the oldest call in flight without examining each call: counts calls by the
//! second in which they started.
//!
//! Invariant: [`InFlightCalls::tick`] returns an instant no later than the start of every call that has not ended.

use std::cell::RefCell;
use std::collections::VecDeque;

/// The calls in flight of one worker.
#[derive(Default)]
pub struct InFlightCalls(RefCell<Epochs>);

#[derive(Default)]
struct Epochs {
    /// The number of the first epoch.
    first: u64,
    /// The start of each epoch and the number of its calls in flight. The last epoch is the current one.
    epochs: VecDeque<(u64, u32)>,
}

/// The epoch in which a call started.
#[derive(Clone, Copy, Debug)]
pub struct CallEpoch(u64);

impl InFlightCalls {
    /// Counts a call that is about to start.
    pub fn begin(&self) -> CallEpoch {
        let mut all = self.0.borrow_mut();
        if all.epochs.is_empty() {
            all.epochs.push_back((0, 0));
        }
        let last = all.epochs.len() - 1;
        all.epochs[last].1 += 1;
        CallEpoch(all.first + last as u64)
    }

    pub fn end(&self, began: CallEpoch) {
        let mut all = self.0.borrow_mut();
        let place = (began.0 - all.first) as usize;
        all.epochs[place].1 -= 1;
    }

    /// Starts a new epoch. Returns an instant before which no call in flight started.
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
    use super::InFlightCalls;

    #[test]
    fn tick_returns_a_bound_on_the_oldest_call_in_flight() {
        let calls = InFlightCalls::default();
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
