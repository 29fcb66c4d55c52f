//! The pause before a failed operation is retried.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);

/// Returns the pause after the given number of consecutive failures, counted from 1. It doubles with each, up to
/// `longest`.
pub fn back_off(failures: u32, longest: Duration) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(longest)
}

/// Reduces a pause by up to half, so that nodes do not retry in lockstep.
pub fn jitter(pause: Duration, random: u64) -> Duration {
    let half_ms = pause.as_millis() as u64 / 2;
    Duration::from_millis(half_ms + random % (half_ms + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let longest = Duration::from_secs(2);
        let pauses_ms =
            [1, 2, 3, 6, 7, u32::MAX].map(|failures| back_off(failures, longest).as_millis());
        assert_eq!(pauses_ms, [50, 100, 200, 1_600, 2_000, 2_000]);
    }

    #[test]
    fn jitter_keeps_at_least_half_of_a_pause() {
        let pause = Duration::from_millis(100);
        assert_eq!(jitter(pause, 0), Duration::from_millis(50));
        assert_eq!(jitter(pause, 50), pause);
        for random in 0..1_000 {
            let ms = jitter(pause, random).as_millis();
            assert!((50..=100).contains(&ms));
        }
    }
}
