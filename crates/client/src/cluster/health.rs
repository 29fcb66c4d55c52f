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
const PAUSE_MIN_MS: u64 = 100;
const PAUSE_MAX_MS: u64 = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Since its last reply.
    failures: u32,
    excluded_until_ms: u64,
    /// The number of its requests that other nodes answered first, since its last reply.
    overtaken: u32,
}

/// This many overtaken requests in a row count as a failure.
const OVERTAKEN_MAX: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeState {
    Up,
    /// It failed before; one request may probe it.
    Due,
    /// Until this time, in milliseconds.
    Excluded(u64),
}

impl Health {
    pub fn state(&self, now_ms: u64) -> NodeState {
        match (self.failures, now_ms < self.excluded_until_ms) {
            (0, _) => NodeState::Up,
            (_, true) => NodeState::Excluded(self.excluded_until_ms),
            (_, false) => NodeState::Due,
        }
    }

    pub fn record_success(&mut self) {
        self.failures = 0;
        self.overtaken = 0;
    }

    /// Records that a hedged request to another node was faster. Returns true if this counts as a failure.
    pub fn record_overtaken(&mut self) -> bool {
        self.overtaken += 1;
        let is_failed = self.overtaken >= OVERTAKEN_MAX || self.failures > 0;
        if is_failed {
            self.overtaken = 0;
        }
        is_failed
    }

    /// Records a missing reply or a refused connection. `random` adds jitter, so that clients do not return
    /// simultaneously.
    pub fn record_failure(&mut self, now_ms: u64, random: u64) {
        let pause = (PAUSE_MIN_MS << self.failures.min(16)).min(PAUSE_MAX_MS);
        self.failures += 1;
        self.excluded_until_ms = now_ms + pause / 2 + random % (pause / 2 + 1);
    }

    /// Records that a request probes the node. Others avoid it for that time.
    pub fn begin_probe(&mut self, now_ms: u64, timeout_ms: u64) {
        self.excluded_until_ms = now_ms + timeout_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_a_success_ends_them() {
        let mut health = Health::default();
        assert_eq!(health.state(0), NodeState::Up);
        let (mut now, mut pauses) = (1_000, Vec::new());
        for _ in 0..9 {
            health.record_failure(now, 0);
            let NodeState::Excluded(until) = health.state(now) else {
                panic!("the node is excluded")
            };
            pauses.push(until - now);
            now = until;
            assert_eq!(health.state(now), NodeState::Due);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        health.begin_probe(now, 700);
        assert_eq!(
            health.state(now),
            NodeState::Excluded(now + 700),
            "only one probe runs at a time"
        );
        assert_eq!(health.state(now + 700), NodeState::Due);
        health.record_success();
        assert_eq!(health.state(now), NodeState::Up);
        assert_eq!(
            [0; 4].map(|_| health.record_overtaken()),
            [false, false, true, false]
        );
        health.record_failure(now, u64::MAX);
        assert!(
            health.record_overtaken(),
            "the node is still slow after the probe"
        );
        assert!(
            matches!(health.state(now), NodeState::Excluded(until) if (now + 50..=now + 100).contains(&until))
        );
    }
}
