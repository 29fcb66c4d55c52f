//! Limits log lines that a client can trigger many times per second to one per minute, with the number of occurrences since the
//! last line.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum interval between two lines about the same event.
const EVERY: Duration = Duration::from_secs(60);

/// An event that is logged at most once per minute.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    told: Option<Instant>,
    untold: u64,
}

impl LogLimit {
    /// Records an occurrence. If a line is due, returns the number of occurrences since the last one.
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
