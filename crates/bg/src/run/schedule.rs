//! When the parts of a trial are: its warm-up, its measured time, its seconds.

use super::clock::Clock;
use crate::verdict::measure::Trial;

/// When the parts of a trial are, on its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub clock: Clock,
    pub measured_from: u64,
    pub end: u64,
}

const SECOND: u64 = 1_000_000_000;

impl Schedule {
    /// That of a trial that starts now.
    pub fn start(trial: &Trial) -> Schedule {
        let measured_from = trial.warmup.as_nanos() as u64;
        Schedule {
            clock: Clock::start(),
            measured_from,
            end: measured_from + trial.duration.as_nanos() as u64,
        }
    }

    /// How many intervals there are before the measured time.
    fn warmup_intervals(&self) -> u64 {
        self.measured_from.div_ceil(SECOND)
    }

    /// When an interval ends: each a second, but for the last before the measured time and the last of it.
    pub fn interval_end(&self, index: u64) -> u64 {
        match index.checked_sub(self.warmup_intervals()) {
            None => self.measured_from.min((index + 1) * SECOND),
            Some(index) => self.end.min(self.measured_from + (index + 1) * SECOND),
        }
    }

    pub fn is_measured(&self, interval: u64) -> bool {
        interval >= self.warmup_intervals()
    }

    /// Whether a call that was meant to begin then counts.
    pub fn covers(&self, instant: u64) -> bool {
        (self.measured_from..self.end).contains(&instant)
    }
}
