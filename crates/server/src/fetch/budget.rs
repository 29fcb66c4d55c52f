//! The budget that all background work of a node shares: bytes per second, and CPU time. Background work yields to reads.
//!
//! ```text
//!            ask ─► ticket ─► may_pass ── in ticket order, while there are tokens ──► work ─► rest
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
//!    rests for `b * (1 - share) / share`. Unhurried work, for which no client waits, has its own share, computed by the same
//!    rule with other constants.

use std::collections::VecDeque;

/// Background work never stops completely, because a pull that does not end is useless.
pub const SHARE_MIN: f64 = 0.1;
const SHARE_STEP: f64 = 0.1;
/// Unhurried work yields at this fraction (1/3) of the wait limit, and has a lower minimum share.
const UNHURRIED_YIELDS_SOONER: u64 = 3;
const UNHURRIED_SHARE_MIN: f64 = 0.05;
const UNHURRIED_SHARE_STEP: f64 = 0.05;
/// The interval between observations of the reads' wait time.
pub const LOOK_EVERY_US: u64 = 100_000;
const BURST_SECONDS: f64 = 0.25;
/// The retry interval for a ticket that is not the next.
const NOT_NEXT_US: u64 = 5_000;
/// Maximum rest, regardless of how long the preceding work took.
const REST_US_MAX: f64 = 1e6;

pub struct Budget {
    /// 0 means unlimited.
    bytes_per_second: u64,
    /// Background work yields when reads wait longer than this; 0 disables yielding.
    yield_at_us: u64,
    /// The fraction of the rate and of CPU time that may be used.
    share: f64,
    /// The share of unhurried work.
    unhurried_share: f64,
    /// Negative while a chunk that exceeded the available tokens is being paid off.
    tokens: f64,
    filled_at_us: u64,
    looked_at_us: u64,
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
    pub unhurried_share: f64,
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
            unhurried_share: 1.0,
            tokens: 0.0,
            filled_at_us: now_us,
            looked_at_us: now_us,
            waiting: VecDeque::new(),
            last_ticket: 0,
            passed_bytes: 0,
            yielded_count: 0,
        }
    }

    /// Sets the rate. Accumulated tokens are limited to the burst at the new rate.
    pub fn set_rate(&mut self, now_us: u64, bytes_per_second: u64) {
        self.fill(now_us);
        self.bytes_per_second = bytes_per_second;
        let burst = bytes_per_second as f64 * BURST_SECONDS;
        self.tokens = self.tokens.max(0.0).min(burst);
    }

    pub fn ask(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.waiting.push_back(self.last_ticket);
        Ticket(self.last_ticket)
    }

    /// Returns `None` if the bytes pass, which uses up the ticket; otherwise the microseconds until the next attempt.
    pub fn may_pass(&mut self, now_us: u64, ticket: &Ticket, bytes: u64) -> Option<u64> {
        self.fill(now_us);
        let is_next = self.waiting.front() == Some(&ticket.0);
        if self.bytes_per_second > 0 {
            if self.tokens < 0.0 {
                let rate = self.bytes_per_second as f64 * self.share;
                // At least a millisecond, so that rounding never turns waiting into spinning.
                return Some((-self.tokens / rate * 1e6).clamp(1e3, 3.6e9) as u64);
            }
            if !is_next {
                return Some(NOT_NEXT_US);
            }
            self.tokens -= bytes as f64;
        }
        self.give_back(ticket);
        self.passed_bytes += bytes;
        None
    }

    /// Records bytes that passed without a ticket. Other waiters wait until they are paid off, for at most a second.
    pub fn charge(&mut self, now_us: u64, bytes: u64) {
        self.fill(now_us);
        if self.bytes_per_second > 0 {
            let least = self.tokens.min(-(self.bytes_per_second as f64));
            self.tokens = (self.tokens - bytes as f64).max(least);
        }
        self.passed_bytes += bytes;
    }

    /// Gives up a ticket. A used ticket has already left the queue.
    pub fn give_back(&mut self, ticket: &Ticket) {
        self.waiting.retain(|it| *it != ticket.0);
    }

    /// Returns whether an observation of the reads' wait time is due. Returns true once per interval.
    pub fn is_look_due(&mut self, now_us: u64) -> bool {
        let is_due =
            self.yield_at_us > 0 && now_us.saturating_sub(self.looked_at_us) >= LOOK_EVERY_US;
        if is_due {
            self.looked_at_us = now_us;
        }
        is_due
    }

    /// Records how long serving threads waited for a CPU since the last observation, on average per time that they had work.
    pub fn observe(&mut self, now_us: u64, wait_us: u64) {
        self.fill(now_us);
        let yields = |at_us: u64| self.yield_at_us > 0 && wait_us > at_us;
        let (yields, unhurried_yields) = (
            yields(self.yield_at_us),
            yields(self.yield_at_us / UNHURRIED_YIELDS_SOONER),
        );
        self.yielded_count += u64::from(yields);
        self.share = next_share(self.share, yields, SHARE_MIN, SHARE_STEP);
        self.unhurried_share = next_share(
            self.unhurried_share,
            unhurried_yields,
            UNHURRIED_SHARE_MIN,
            UNHURRIED_SHARE_STEP,
        );
    }

    /// The time to rest after work that took `busy_us`.
    pub fn rest_us(&self, busy_us: u64) -> u64 {
        (busy_us as f64 * (1.0 - self.share) / self.share).min(REST_US_MAX) as u64
    }

    pub fn figures(&self) -> BudgetFigures {
        BudgetFigures {
            bytes_per_second: self.bytes_per_second,
            share: self.share,
            unhurried_share: self.unhurried_share,
            waiting: self.waiting.len(),
            passed_bytes: self.passed_bytes,
            yielded_count: self.yielded_count,
        }
    }

    fn fill(&mut self, now_us: u64) {
        let rate = self.bytes_per_second as f64;
        let earned = rate * self.share * now_us.saturating_sub(self.filled_at_us) as f64 / 1e6;
        self.tokens = (self.tokens + earned).min(rate * BURST_SECONDS);
        self.filled_at_us = self.filled_at_us.max(now_us);
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
    fn no_second_has_more_than_the_rate_a_burst_and_a_chunk() {
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
                    waiting.push((budget.ask(), 1 + random.below(chunk_max)));
                }
                if random.below(50) == 0 {
                    let at = random.index(waiting.len());
                    let (ticket, _) = waiting.remove(at);
                    budget.give_back(&ticket);
                }
                if budget.is_look_due(now) {
                    budget.observe(now, random.below(200));
                }
                // In random order.
                random.shuffle(&mut waiting);
                waiting.retain(
                    |(ticket, bytes)| match budget.may_pass(now, ticket, *bytes) {
                        Some(wait) => {
                            assert!(wait >= 1000, "no spinning");
                            true
                        }
                        None => {
                            assert!(ticket.0 > served, "in the order in which they asked");
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
    fn all_that_is_allowed_passes_while_reads_are_quick() {
        let mut budget = Budget::new(1_000_000, 100, 0);
        let mut passed = 0;
        for now in (0..10_000_000).step_by(1000) {
            let ticket = budget.ask();
            match budget.may_pass(now, &ticket, 10_000) {
                None => passed += 10_000,
                Some(_) => budget.give_back(&ticket),
            }
        }
        assert!((9_900_000..=10_300_000).contains(&passed), "{passed}");
        assert_eq!(budget.figures().passed_bytes, passed);
    }

    #[test]
    fn shares_shrink_to_their_least_while_reads_wait_and_come_back() {
        let mut budget = Budget::new(0, 100, 0);
        let mut now = 0;
        let mut look = |budget: &mut Budget, wait| {
            now += LOOK_EVERY_US;
            assert!(budget.is_look_due(now) && !budget.is_look_due(now));
            budget.observe(now, wait);
            budget.figures().share
        };
        assert_eq!(
            budget.rest_us(5_000),
            0,
            "nobody rests while reads are quick"
        );
        assert_eq!(look(&mut budget, 101), 0.5);
        assert_eq!(budget.rest_us(5_000), 5_000);
        for _ in 0..10 {
            look(&mut budget, 1_000_000);
        }
        assert_eq!(budget.figures().share, SHARE_MIN);
        assert_eq!(budget.rest_us(5_000), 45_000);
        assert_eq!(
            budget.rest_us(3_600_000_000),
            1_000_000,
            "never longer than a second"
        );
        let back: Vec<f64> = (0..10).map(|_| look(&mut budget, 100)).collect();
        assert!(
            back.windows(2).all(|pair| pair[0] <= pair[1]) && back[9] == 1.0,
            "{back:?}"
        );
        assert_eq!(budget.figures().yielded_count, 11);
    }

    #[test]
    fn work_that_nobody_waits_for_yields_sooner_and_further() {
        let mut budget = Budget::new(0, 300, 0);
        budget.observe(0, 101);
        let figures = budget.figures();
        assert_eq!((figures.share, figures.unhurried_share), (1.0, 0.5));
        (0..9).for_each(|_| budget.observe(0, 301));
        let figures = budget.figures();
        assert_eq!((figures.share, figures.unhurried_share), (0.1, 0.05));
        (0..20).for_each(|_| budget.observe(0, 100));
        let figures = budget.figures();
        assert_eq!((figures.share, figures.unhurried_share), (1.0, 1.0));
        let mut never = Budget::new(0, 0, 0);
        never.observe(0, u64::MAX);
        assert_eq!(never.figures().unhurried_share, 1.0);
    }

    #[test]
    fn bytes_pass_at_the_rate_times_the_share() {
        let mut budget = Budget::new(1_000_000, 100, 0);
        for _ in 0..10 {
            budget.observe(0, 1_000);
        }
        let mut passed = 0;
        for now in (0..10_000_000).step_by(1000) {
            let ticket = budget.ask();
            match budget.may_pass(now, &ticket, 1_000) {
                None => passed += 1_000,
                Some(_) => budget.give_back(&ticket),
            }
        }
        assert!((990_000..=1_010_000).contains(&passed), "{passed}");
    }

    #[test]
    fn what_passed_without_asking_is_waited_for_and_not_for_ever() {
        let mut budget = Budget::new(1_000, 100, 0);
        budget.charge(0, 500);
        let ticket = budget.ask();
        assert_eq!(budget.may_pass(0, &ticket, 1), Some(500_000));
        budget.charge(0, 1 << 40);
        assert_eq!(budget.may_pass(0, &ticket, 1), Some(1_000_000));
        assert_eq!(budget.may_pass(1_000_000, &ticket, 1), None);
        assert_eq!(budget.figures().passed_bytes, 501 + (1 << 40));
    }

    #[test]
    fn one_that_never_yields_does_not() {
        let mut budget = Budget::new(0, 0, 0);
        assert!(!budget.is_look_due(1 << 40));
        budget.observe(1 << 40, u64::MAX);
        assert_eq!(budget.figures().share, 1.0);
    }

    #[test]
    fn a_change_of_the_rate_is_no_windfall_and_forgives_debts() {
        let mut budget = Budget::new(1 << 30, 100, 0);
        let ticket = budget.ask();
        assert_eq!(budget.may_pass(10_000_000, &ticket, 1), None);
        budget.set_rate(10_000_000, 1_000);
        let ticket = budget.ask();
        assert_eq!(budget.may_pass(10_000_000, &ticket, 1_000_000), None);
        let ticket = budget.ask();
        assert!(
            budget
                .may_pass(10_000_000, &ticket, 1)
                .is_some_and(|wait| wait > 900_000_000)
        );
        budget.set_rate(10_000_001, 0);
        assert_eq!(budget.may_pass(10_000_001, &ticket, u64::MAX >> 1), None);
    }
}
