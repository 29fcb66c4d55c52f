//! A limit of log lines that a client can cause many times a second: one a minute, with how often it has happened since the last.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two lines about the same thing.
const EVERY: Duration = Duration::from_secs(60);

/// What is logged at most once a minute.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    told: Option<Instant>,
    untold: u64,
}

impl LogLimit {
    /// Notes that it happened. If it is time for a line: how often since the last one.
    pub fn note(&self) -> Option<u64> {
        self.note_at(Instant::now())
    }

    fn note_at(&self, now: Instant) -> Option<u64> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.untold += 1;
        let is_time = noted
            .told
            .is_none_or(|told| now.saturating_duration_since(told) >= EVERY);
        is_time.then(|| {
            noted.told = Some(now);
            std::mem::take(&mut noted.untold)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_the_rest_together_a_minute_later() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.note_at(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(limit.note_at(start + EVERY / 2), None);
        }
        assert_eq!(limit.note_at(start + EVERY), Some(1001));
        assert_eq!(limit.note_at(start + EVERY), None);
    }
}
