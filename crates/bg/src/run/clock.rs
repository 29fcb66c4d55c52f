//! Nanoseconds since a run's start on the monotonic clock: what traces are stamped with.

use std::time::{Duration, Instant};

/// Never goes back; all workers of a run share one.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts now, a microsecond late: nothing of the run is at 0, which is for what was before it.
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

    /// When the clock will show this.
    pub fn instant(&self, nanoseconds: u64) -> Instant {
        self.start + Duration::from_nanos(nanoseconds)
    }
}
