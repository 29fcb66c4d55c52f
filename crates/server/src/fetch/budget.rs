//! The budget that all background work of a node shares: bytes per second, and CPU time. Background work yields to reads.
//!
//! ```text
//!        enqueue ─► ticket ─► try_admit ── in ticket order, while there are tokens ──► work ─► pause
//!  observe(how long the serving threads waited for a CPU) ─► share: halved if that is long, one step up otherwise
//! ```
//!
//! Time is an argument, in microseconds from an arbitrary start. [`super::throttle`] provides the clock.
//!
//! Invariants:
//! 1. In any period of `t` seconds at rate `r`, at most `r * t` bytes pass, plus a burst of a quarter of a second and one chunk.
//! 2. Waiters are served in the order of their tickets. A waiter that gives up delays no other.
//! 3. The share is between [`SHARE_MIN`] and 1. While reads wait longer than the limit, each observation halves the share, down
//!    to the minimum; otherwise it increases in steps. Bytes pass at the rate times the share, and work that took the time `b`
//!    pauses for `b * (1 - share) / share`. Low-priority work, for which no client waits, has its own share, computed by the same
//!    rule with other constants.

use std::collections::VecDeque;

/// Background work never stops completely, because a pull that does not end is useless.
pub const SHARE_MIN: f64 = 0.1;
const SHARE_STEP: f64 = 0.1;
/// Low-priority work yields at this fraction (1/3) of the wait limit, and has a lower minimum share.
const LOW_PRIORITY_LIMIT_DIVISOR: u64 = 3;
const LOW_PRIORITY_SHARE_MIN: f64 = 0.05;
const LOW_PRIORITY_SHARE_STEP: f64 = 0.05;
/// The interval between observations of the reads' wait time.
pub const SAMPLE_INTERVAL_US: u64 = 100_000;
const BURST_SECONDS: f64 = 0.25;
/// The retry interval for a ticket that is not the next.
const QUEUE_RETRY_US: u64 = 5_000;
/// Maximum rest, regardless of how long the preceding work took.
const PAUSE_US_MAX: f64 = 1e6;

pub struct Budget {
    /// 0 means unlimited.
    bytes_per_second: u64,
    /// Background work yields when reads wait longer than this; 0 disables yielding.
    yield_at_us: u64,
    /// The fraction of the rate and of CPU time that may be used.
    share: f64,
    /// The share of low-priority work.
    low_priority_share: f64,
    /// Negative while a chunk that exceeded the available tokens is being paid off.
    tokens: f64,
    refilled_at_us: u64,
    sampled_at_us: u64,
    waiting: VecDeque<u64>,
    last_ticket: u64,
    passed_bytes: u64,
    yielded_count: u64,
}

/// A place in the queue. It must be used or given back.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The observable state of a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BudgetFigures {
    pub bytes_per_second: u64,
    pub share: f64,
    pub low_priority_share: f64,
    pub waiting: usize,
    /// Since the server started, like `yielded_count`.
    pub passed_bytes: u64,
    /// The number of times that the share was halved.
    pub yielded_count: u64,
}

impl Budget {
    pub fn new(bytes_per_second: u64, yield_at_us: u64, now_us: u64) -> Budget {
        Budget {
            bytes_per_second,
            yield_at_us,
            share: 1.0,
            low_priority_share: 1.0,
            tokens: 0.0,
            refilled_at_us: now_us,
            sampled_at_us: now_us,
            waiting: VecDeque::new(),
            last_ticket: 0,
            passed_bytes: 0,
            yielded_count: 0,
        }
    }

    /// Sets the rate. Accumulated tokens are limited to the burst at the new rate.
    pub fn set_rate(&mut self, now_us: u64, bytes_per_second: u64) {
        self.refill(now_us);
        self.bytes_per_second = bytes_per_second;
        let burst = bytes_per_second as f64 * BURST_SECONDS;
        self.tokens = self.tokens.max(0.0).min(burst);
    }

    pub fn enqueue(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.waiting.push_back(self.last_ticket);
        Ticket(self.last_ticket)
    }

    /// Returns `None` if the bytes pass, which uses up the ticket; otherwise the microseconds until the next attempt.
    pub fn try_admit(&mut self, now_us: u64, ticket: &Ticket, bytes: u64) -> Option<u64> {
        self.refill(now_us);
        let is_next = self.waiting.front() == Some(&ticket.0);
        if self.bytes_per_second > 0 {
            if self.tokens < 0.0 {
                let rate = self.bytes_per_second as f64 * self.share;
                // At least a millisecond, so that rounding never turns waiting into spinning.
                return Some((-self.tokens / rate * 1e6).clamp(1e3, 3.6e9) as u64);
            }
            if !is_next {
                return Some(QUEUE_RETRY_US);
            }
            self.tokens -= bytes as f64;
        }
        self.cancel(ticket);
        self.passed_bytes += bytes;
        None
    }

    /// Records bytes that passed without a ticket. Other waiters wait until they are paid off, for at most a second.
    pub fn charge(&mut self, now_us: u64, bytes: u64) {
        self.refill(now_us);
        if self.bytes_per_second > 0 {
            let least = self.tokens.min(-(self.bytes_per_second as f64));
            self.tokens = (self.tokens - bytes as f64).max(least);
        }
        self.passed_bytes += bytes;
    }

    /// Gives up a ticket. A used ticket has already left the queue.
    pub fn cancel(&mut self, ticket: &Ticket) {
        self.waiting.retain(|it| *it != ticket.0);
    }

    /// Returns whether an observation of the reads' wait time is due. Returns true once per interval.
    pub fn is_sample_due(&mut self, now_us: u64) -> bool {
        let is_due =
            self.yield_at_us > 0 && now_us.saturating_sub(self.sampled_at_us) >= SAMPLE_INTERVAL_US;
        if is_due {
            self.sampled_at_us = now_us;
        }
        is_due
    }

    /// Records how long serving threads waited for a CPU since the last observation, on average per time that they had work.
    pub fn observe(&mut self, now_us: u64, wait_us: u64) {
        self.refill(now_us);
        let yields = |at_us: u64| self.yield_at_us > 0 && wait_us > at_us;
        let (yields, low_priority_yields) = (
            yields(self.yield_at_us),
            yields(self.yield_at_us / LOW_PRIORITY_LIMIT_DIVISOR),
        );
        self.yielded_count += u64::from(yields);
        self.share = next_share(self.share, yields, SHARE_MIN, SHARE_STEP);
        self.low_priority_share = next_share(
            self.low_priority_share,
            low_priority_yields,
            LOW_PRIORITY_SHARE_MIN,
            LOW_PRIORITY_SHARE_STEP,
        );
    }

    /// The time to rest after work that took `busy_us`.
    pub fn pause_us(&self, busy_us: u64) -> u64 {
        (busy_us as f64 * (1.0 - self.share) / self.share).min(PAUSE_US_MAX) as u64
    }

    pub fn figures(&self) -> BudgetFigures {
        BudgetFigures {
            bytes_per_second: self.bytes_per_second,
            share: self.share,
            low_priority_share: self.low_priority_share,
            waiting: self.waiting.len(),
            passed_bytes: self.passed_bytes,
            yielded_count: self.yielded_count,
        }
    }

    fn refill(&mut self, now_us: u64) {
        let rate = self.bytes_per_second as f64;
        let earned = rate * self.share * now_us.saturating_sub(self.refilled_at_us) as f64 / 1e6;
        self.tokens = (self.tokens + earned).min(rate * BURST_SECONDS);
        self.refilled_at_us = self.refilled_at_us.max(now_us);
    }
}

/// Halves the share, down to the minimum, or increases it by a step.
fn next_share(share: f64, yields: bool, least: f64, step: f64) -> f64 {
    if yields {
        (share / 2.0).max(least)
    } else {
        (share + step).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use larder_types::Random;

    use super::*;

    /// Workers that request, wait, give up and work at random, under a changing rate. Checks what passes against invariant 1.
    #[test]
    fn each_second_admits_at_most_the_rate_a_burst_and_a_chunk() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let rate = 1 + random.below(50_000_000);
            let chunk_max = 1 + random.below(4 << 20);
            let mut budget = Budget::new(rate, 100, 0);
            let mut waiting: Vec<(Ticket, u64)> = Vec::new();
            let mut passed: Vec<(u64, u64)> = Vec::new();
            let mut served = 0;
            let mut now = 0;
            for _ in 0..4_000 {
                now += random.below(3_000);
                if waiting.len() < 5 {
                    waiting.push((budget.enqueue(), 1 + random.below(chunk_max)));
                }
                if random.below(50) == 0 {
                    let at = random.index(waiting.len());
                    let (ticket, _) = waiting.remove(at);
                    budget.cancel(&ticket);
                }
                if budget.is_sample_due(now) {
                    budget.observe(now, random.below(200));
                }
                // In random order.
                random.shuffle(&mut waiting);
                waiting.retain(
                    |(ticket, bytes)| match budget.try_admit(now, ticket, *bytes) {
                        Some(wait) => {
                            assert!(wait >= 1000, "no spinning");
                            true
                        }
                        None => {
                            assert!(ticket.0 > served, "tickets are admitted in FIFO order");
                            served = ticket.0;
                            passed.push((now, *bytes));
                            false
                        }
                    },
                );
            }
            let mut since = 0;
            let mut sum = 0;
            for (at, (now, bytes)) in passed.iter().enumerate() {
                sum += bytes;
                while passed[since].0 + 1_000_000 <= *now {
                    sum -= passed[since].1;
                    since += 1;
                }
                let most = rate as f64 * (1.0 + BURST_SECONDS) + chunk_max as f64;
                assert!(sum as f64 <= most, "seed {seed}, {at}: {sum} of {most}");
            }
            let all: u64 = passed.iter().map(|(_, bytes)| bytes).sum();
            let least = rate as f64 * SHARE_MIN * now as f64 / 1e6 / 2.0;
            assert!(all as f64 >= least, "seed {seed}: {all} of {least}");
        }
    }

    #[test]
    fn the_full_rate_is_admitted_while_reads_are_fast() {
        let mut budget = Budget::new(1_000_000, 100, 0);
        let mut passed = 0;
        for now in (0..10_000_000).step_by(1000) {
            let ticket = budget.enqueue();
            match budget.try_admit(now, &ticket, 10_000) {
                None => passed += 10_000,
                Some(_) => budget.cancel(&ticket),
            }
        }
        assert!((9_900_000..=10_300_000).contains(&passed), "{passed}");
        assert_eq!(budget.figures().passed_bytes, passed);
    }

    #[test]
    fn shares_shrink_to_the_minimum_while_reads_wait_and_recover() {
        let mut budget = Budget::new(0, 100, 0);
        let mut now = 0;
        let mut observe_after_interval = |budget: &mut Budget, wait| {
            now += SAMPLE_INTERVAL_US;
            assert!(budget.is_sample_due(now) && !budget.is_sample_due(now));
            budget.observe(now, wait);
            budget.figures().share
        };
        assert_eq!(budget.pause_us(5_000), 0, "no pause while reads are fast");
        assert_eq!(observe_after_interval(&mut budget, 101), 0.5);
        assert_eq!(budget.pause_us(5_000), 5_000);
        for _ in 0..10 {
            observe_after_interval(&mut budget, 1_000_000);
        }
        assert_eq!(budget.figures().share, SHARE_MIN);
        assert_eq!(budget.pause_us(5_000), 45_000);
        assert_eq!(
            budget.pause_us(3_600_000_000),
            1_000_000,
            "never longer than a second"
        );
        let back: Vec<f64> = (0..10)
            .map(|_| observe_after_interval(&mut budget, 100))
            .collect();
        assert!(
            back.windows(2).all(|pair| pair[0] <= pair[1]) && back[9] == 1.0,
            "{back:?}"
        );
        assert_eq!(budget.figures().yielded_count, 11);
    }

    #[test]
    fn low_priority_work_yields_earlier_and_to_a_smaller_share() {
        let mut budget = Budget::new(0, 300, 0);
        budget.observe(0, 101);
        let figures = budget.figures();
        assert_eq!((figures.share, figures.low_priority_share), (1.0, 0.5));
        (0..9).for_each(|_| budget.observe(0, 301));
        let figures = budget.figures();
        assert_eq!((figures.share, figures.low_priority_share), (0.1, 0.05));
        (0..20).for_each(|_| budget.observe(0, 100));
        let figures = budget.figures();
        assert_eq!((figures.share, figures.low_priority_share), (1.0, 1.0));
        let mut never = Budget::new(0, 0, 0);
        never.observe(0, u64::MAX);
        assert_eq!(never.figures().low_priority_share, 1.0);
    }

    #[test]
    fn bytes_pass_at_the_rate_times_the_share() {
        let mut budget = Budget::new(1_000_000, 100, 0);
        for _ in 0..10 {
            budget.observe(0, 1_000);
        }
        let mut passed = 0;
        for now in (0..10_000_000).step_by(1000) {
            let ticket = budget.enqueue();
            match budget.try_admit(now, &ticket, 1_000) {
                None => passed += 1_000,
                Some(_) => budget.cancel(&ticket),
            }
        }
        assert!((990_000..=1_010_000).contains(&passed), "{passed}");
    }

    #[test]
    fn charged_bytes_delay_admission_for_at_most_a_second() {
        let mut budget = Budget::new(1_000, 100, 0);
        budget.charge(0, 500);
        let ticket = budget.enqueue();
        assert_eq!(budget.try_admit(0, &ticket, 1), Some(500_000));
        budget.charge(0, 1 << 40);
        assert_eq!(budget.try_admit(0, &ticket, 1), Some(1_000_000));
        assert_eq!(budget.try_admit(1_000_000, &ticket, 1), None);
        assert_eq!(budget.figures().passed_bytes, 501 + (1 << 40));
    }

    #[test]
    fn a_budget_without_a_wait_limit_never_yields() {
        let mut budget = Budget::new(0, 0, 0);
        assert!(!budget.is_sample_due(1 << 40));
        budget.observe(1 << 40, u64::MAX);
        assert_eq!(budget.figures().share, 1.0);
    }

    #[test]
    fn a_rate_change_grants_no_burst_and_clears_debt() {
        let mut budget = Budget::new(1 << 30, 100, 0);
        let ticket = budget.enqueue();
        assert_eq!(budget.try_admit(10_000_000, &ticket, 1), None);
        budget.set_rate(10_000_000, 1_000);
        let ticket = budget.enqueue();
        assert_eq!(budget.try_admit(10_000_000, &ticket, 1_000_000), None);
        let ticket = budget.enqueue();
        assert!(
            budget
                .try_admit(10_000_000, &ticket, 1)
                .is_some_and(|wait| wait > 900_000_000)
        );
        budget.set_rate(10_000_001, 0);
        assert_eq!(budget.try_admit(10_000_001, &ticket, u64::MAX >> 1), None);
    }
}
