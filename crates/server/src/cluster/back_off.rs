//! The pause before an unreachable node is retried.

const FIRST_MS: u64 = 50;
const LONGEST_MS: u64 = 2_000;

/// Exponential backoff with jitter, so that nodes do not retry in lockstep.
#[derive(Debug, Default)]
pub struct BackOff {
    tries: u32,
}

impl BackOff {
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    /// Returns the next pause: between half and all of the current maximum.
    pub fn next_ms(&mut self, random: u64) -> u64 {
        let doubled = FIRST_MS << self.tries.min(16);
        self.tries += 1;
        let half = doubled.min(LONGEST_MS) / 2;
        half + random % (half + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_and_a_success_resets_them() {
        let mut back_off = BackOff::default();
        assert_eq!(back_off.next_ms(0), 25);
        assert_eq!(back_off.next_ms(50), 100);
        let longest = (0..100).map(|_| back_off.next_ms(1_000)).max();
        assert_eq!(longest, Some(2_000));
        assert_eq!(back_off.next_ms(0), 1_000, "at least half of it");
        back_off.reset();
        assert!((25..=50).contains(&back_off.next_ms(u64::MAX)));
    }
}
