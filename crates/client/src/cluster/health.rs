//! The health of a node: after a failure a node is avoided for a while, with exponential backoff.
//!
//! ```text
//!            failed                       pause over               begin_probe
//!     Up ─────────────► Out for a pause ───────────────► Due ────────────────► Out during the probe
//!      ▲                      ▲                                                    │
//!      │                      └──────────────────── failed ────────────────────────┤
//!      └─────────────────────────── succeeded ─────────────────────────────────────┘
//! ```

/// The first pause, in milliseconds; each further one is twice as long.
const FIRST_MS: u64 = 100;
const LONGEST_MS: u64 = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Since its last reply.
    failures: u32,
    out_until_ms: u64,
    /// The number of its requests that other nodes answered first, since its last reply.
    overtaken: u32,
}

/// This many overtaken requests in a row count as a failure.
const OVERTAKEN_MAX: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    Up,
    /// It failed before; one request may probe it.
    Due,
    /// Until this time, in milliseconds.
    Out(u64),
}

impl Health {
    pub fn state(&self, now_ms: u64) -> State {
        match (self.failures, now_ms < self.out_until_ms) {
            (0, _) => State::Up,
            (_, true) => State::Out(self.out_until_ms),
            (_, false) => State::Due,
        }
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
        self.overtaken = 0;
    }

    /// Records that a hedged request to another node was faster. Returns true if this counts as a failure.
    pub fn overtaken(&mut self) -> bool {
        self.overtaken += 1;
        let is_failed = self.overtaken >= OVERTAKEN_MAX || self.failures > 0;
        if is_failed {
            self.overtaken = 0;
        }
        is_failed
    }

    /// Records a missing reply or a refused connection. `random` adds jitter, so that clients do not return
    /// simultaneously.
    pub fn failed(&mut self, now_ms: u64, random: u64) {
        let pause = (FIRST_MS << self.failures.min(16)).min(LONGEST_MS);
        self.failures += 1;
        self.out_until_ms = now_ms + pause / 2 + random % (pause / 2 + 1);
    }

    /// Records that a request probes the node. Others avoid it for that time.
    pub fn begin_probe(&mut self, now_ms: u64, timeout_ms: u64) {
        self.out_until_ms = now_ms + timeout_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_one_answer_ends_them() {
        let mut health = Health::default();
        assert_eq!(health.state(0), State::Up);
        let (mut now, mut pauses) = (1_000, Vec::new());
        for _ in 0..9 {
            health.failed(now, 0);
            let State::Out(until) = health.state(now) else {
                panic!("it is left out")
            };
            pauses.push(until - now);
            now = until;
            assert_eq!(health.state(now), State::Due);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        health.begin_probe(now, 700);
        assert_eq!(
            health.state(now),
            State::Out(now + 700),
            "one asks at a time"
        );
        assert_eq!(health.state(now + 700), State::Due);
        health.succeeded();
        assert_eq!(health.state(now), State::Up);
        assert_eq!(
            [0; 4].map(|_| health.overtaken()),
            [false, false, true, false]
        );
        health.failed(now, u64::MAX);
        assert!(health.overtaken(), "it was tried, and is still slow");
        assert!(
            matches!(health.state(now), State::Out(until) if (now + 50..=now + 100).contains(&until))
        );
    }
}
