//! Start and end of the parts of a trial: warm-up, measured time, seconds.

use super::clock::Clock;
use crate::verdict::measure::Trial;

/// Times of the parts of a trial, in nanoseconds of its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub clock: Clock,
    pub measured_from: u64,
    pub end: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Schedule {
    /// Returns the schedule of a trial that starts now.
    pub fn start(trial: &Trial) -> Schedule {
        let measured_from = trial.warmup.as_nanos() as u64;
        Schedule {
            clock: Clock::start(),
            measured_from,
            end: measured_from + trial.duration.as_nanos() as u64,
        }
    }

    /// Returns the number of intervals before the measured time.
    fn warmup_intervals(&self) -> u64 {
        self.measured_from.div_ceil(SECOND)
    }

    /// Returns the end of an interval. Each lasts a second, except the last of the warm-up and the last of the measured
    /// time, which may be shorter.
    pub fn interval_end(&self, index: u64) -> u64 {
        match index.checked_sub(self.warmup_intervals()) {
            None => self.measured_from.min((index + 1) * SECOND),
            Some(index) => self.end.min(self.measured_from + (index + 1) * SECOND),
        }
    }

    pub fn is_measured(&self, interval: u64) -> bool {
        interval >= self.warmup_intervals()
    }

    /// Returns whether a call with this scheduled start counts.
    pub fn covers(&self, instant: u64) -> bool {
        (self.measured_from..self.end).contains(&instant)
    }
}
