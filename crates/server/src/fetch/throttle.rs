//! One token bucket over all fetches of the server, with a rate that may change at any time.
//!
//! Invariants:
//! 1. Over any period of `t` seconds at rate `r`, at most `r * t`, a quarter of a second's burst and
//!    one chunk per fetch thread pass.
//! 2. A change of the rate takes effect within [`NAP_MAX`], also for those who wait.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest that a fetch sleeps before it looks at the rate again.
const NAP_MAX: Duration = Duration::from_millis(200);
const BURST_SECONDS: f64 = 0.25;

pub struct Throttle {
    bucket: Mutex<Bucket>,
}

struct Bucket {
    /// 0 is unlimited.
    bytes_per_second: u64,
    /// Below zero while a chunk larger than the bucket is being paid off.
    tokens: f64,
    filled_at: Instant,
}

impl Throttle {
    /// `bytes_per_second` of 0 lets everything pass.
    pub fn new(bytes_per_second: u64) -> Throttle {
        Throttle {
            bucket: Mutex::new(Bucket {
                bytes_per_second,
                tokens: 0.0,
                filled_at: Instant::now(),
            }),
        }
    }

    pub fn set_rate(&self, bytes_per_second: u64) {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.fill(Instant::now());
        bucket.bytes_per_second = bytes_per_second;
        bucket.tokens = bucket.tokens.max(0.0);
    }

    /// Returns once `bytes` may pass.
    pub async fn take(&self, bytes: u64) {
        loop {
            let nap = {
                let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
                bucket.take(bytes, Instant::now())
            };
            match nap {
                None => return,
                Some(nap) => tokio::time::sleep(nap.min(NAP_MAX)).await,
            }
        }
    }
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let rate = self.bytes_per_second as f64;
        let earned = rate * now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.tokens = (self.tokens + earned).min(rate * BURST_SECONDS);
        self.filled_at = now;
    }

    /// `None` if the bytes may pass, else how long until some may.
    fn take(&mut self, bytes: u64, now: Instant) -> Option<Duration> {
        if self.bytes_per_second == 0 {
            return None;
        }
        self.fill(now);
        if self.tokens >= 0.0 {
            self.tokens -= bytes as f64;
            return None;
        }
        let wait = -self.tokens / self.bytes_per_second as f64;
        // Not below a millisecond, so that rounding never turns waiting into spinning.
        Some(Duration::from_secs_f64(wait.clamp(0.001, 3600.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_in_a_second_is_the_rate_and_a_burst() {
        let start = Instant::now();
        let mut bucket = Bucket {
            bytes_per_second: 1_000_000,
            tokens: 0.0,
            filled_at: start,
        };
        let mut passed = 0;
        for millisecond in 0..10_000 {
            let now = start + Duration::from_millis(millisecond);
            while bucket.take(10_000, now).is_none() {
                passed += 10_000;
            }
        }
        assert!((9_900_000..=10_300_000).contains(&passed), "{passed}");
    }

    #[test]
    fn no_rate_is_no_limit() {
        let throttle = Throttle::new(0);
        let mut bucket = throttle.bucket.lock().unwrap();
        assert_eq!(bucket.take(u64::MAX, Instant::now()), None);
    }
}
