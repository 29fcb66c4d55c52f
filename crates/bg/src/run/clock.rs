//! The clock of a run: nanoseconds since its start on the monotonic clock. Traces use these timestamps.

use std::time::{Duration, Instant};

/// A monotonic clock, shared by all workers of a run.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the clock at one microsecond: no event of the run has time 0, which stands for everything before the run.
    pub fn start() -> Clock {
        let now = Instant::now();
        Clock {
            start: now.checked_sub(Duration::from_micros(1)).unwrap_or(now),
        }
    }

    pub fn now(&self) -> u64 {
        let elapsed = self.start.elapsed();
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }

    /// Returns the instant at which the clock will show `nanoseconds`.
    pub fn instant(&self, nanoseconds: u64) -> Instant {
        self.start + Duration::from_nanos(nanoseconds)
    }
}
