//! Limits log lines that a client can trigger many times per second to one per minute, with the number of occurrences since the
//! last line.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The minimum interval between two lines about the same event.
const EVERY: Duration = Duration::from_secs(60);

/// An event that is logged at most once per minute.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl LogLimit {
    /// Records an occurrence. If a line is due, returns the number of occurrences since the last one.
    pub fn note(&self) -> Option<u64> {
        self.note_at(Instant::now())
    }

    fn note_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.unlogged += 1;
        let is_due = state
            .logged_at
            .is_none_or(|logged_at| now.saturating_duration_since(logged_at) >= EVERY);
        is_due.then(|| {
            state.logged_at = Some(now);
            std::mem::take(&mut state.unlogged)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_is_logged_immediately_and_later_ones_once_a_minute() {
        let (limit, start) = (LogLimit::default(), Instant::now());
        assert_eq!(limit.note_at(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(limit.note_at(start + EVERY / 2), None);
        }
        assert_eq!(limit.note_at(start + EVERY), Some(1001));
        assert_eq!(limit.note_at(start + EVERY), None);
    }
}
