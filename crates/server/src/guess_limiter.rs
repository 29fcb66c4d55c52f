//! Limits the rate of wrong passwords, per address and in total.
//!
//! 1. A correct password costs nothing, and is answered immediately if few recent ones were wrong. After many wrong passwords
//!    from an address, its requests are delayed whether right or wrong; otherwise a delayed answer would reveal a wrong password.
//! 2. No client is locked out: an allowance recovers with time alone. One address cannot use up another's allowance, and an
//!    address that has given the correct password before does not share the total allowance.
//! 3. The number of remembered addresses is bounded by the total allowance.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::log_limit::LogLimit;

/// The number of wrong passwords that are answered immediately, and the time until one more is.
const ADDRESS_LIMIT: (u32, Duration) = (10, Duration::from_secs(1));
const GLOBAL_LIMIT: (u32, Duration) = (200, Duration::from_millis(50));
/// Maximum time that a password waits for its turn; it is then rejected unchecked.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum number of remembered addresses that gave the correct password.
const TRUSTED_MAX: usize = 4096;
/// The number of addresses with wrong passwords at which old ones are removed.
const PRUNE_AT: usize = 1024;

/// The password attempts of a server.
#[derive(Default)]
pub struct GuessLimiter {
    recent: Mutex<RecentGuesses>,
    /// The numbers of wrong passwords, and of passwords that were rejected unchecked.
    pub wrong: AtomicU64,
    pub refused: AtomicU64,
    log: LogLimit,
}

#[derive(Default)]
struct RecentGuesses {
    by_address: HashMap<IpAddr, Allowance>,
    all: Allowance,
    trusted: HashSet<IpAddr>,
}

/// The time at which the allowance is fully recovered.
#[derive(Clone, Copy, Default)]
struct Allowance(Option<Instant>);

impl Allowance {
    /// The time until a password may be answered.
    fn wait(self, now: Instant, (burst, each): (u32, Duration)) -> Duration {
        let used = self
            .0
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        used.saturating_sub(each * (burst - 1))
    }

    fn spend(&mut self, now: Instant, (_, each): (u32, Duration)) {
        self.0 = Some(self.0.map_or(now, |at| at.max(now)) + each);
    }

    fn is_full(self, now: Instant) -> bool {
        self.0.is_none_or(|at| at <= now)
    }
}

impl RecentGuesses {
    fn wait(&self, from: IpAddr, now: Instant) -> Duration {
        let own = self.by_address.get(&from).copied().unwrap_or_default();
        let all = if self.trusted.contains(&from) {
            Duration::ZERO
        } else {
            self.all.wait(now, GLOBAL_LIMIT)
        };
        own.wait(now, ADDRESS_LIMIT).max(all)
    }

    fn record_wrong(&mut self, from: IpAddr, now: Instant) {
        if self.by_address.len() >= PRUNE_AT {
            self.by_address.retain(|_, own| !own.is_full(now));
        }
        self.by_address
            .entry(from)
            .or_default()
            .spend(now, ADDRESS_LIMIT);
        if !self.trusted.contains(&from) {
            self.all.spend(now, GLOBAL_LIMIT);
        }
    }
}

/// Normalizes an address. For IPv6, this is the network, because a machine can use any number of addresses in it.
fn normalize_address(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V6(addr) => {
            let network = u128::from(addr) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 => v4,
    }
}

impl GuessLimiter {
    /// Returns how long to wait before a password may be answered; zero if it may be answered now.
    pub fn wait(&self, from: IpAddr) -> Duration {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.wait(normalize_address(from), Instant::now())
    }

    /// Waits until a password may be answered, if that is soon.
    pub async fn wait_for_turn(&self, from: IpAddr) {
        let started = Instant::now();
        loop {
            let wait = self.wait(from);
            if wait.is_zero() || started.elapsed() + wait > TURN_WAIT_MAX {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Records a password attempt and returns its result. The caller determines whether it was right.
    ///
    /// # Errors
    /// [`Error::WrongPassword`]; [`Error::TooManyGuesses`] if the result is not revealed, because it was not the address's turn.
    pub fn check(&self, from: IpAddr, is_correct: bool) -> Result<(), Error> {
        self.check_at(Instant::now(), from, is_correct)
    }

    fn check_at(&self, now: Instant, from: IpAddr, is_correct: bool) -> Result<(), Error> {
        let address = normalize_address(from);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = !recent.wait(address, now).is_zero();
        if !is_refused && is_correct {
            if recent.trusted.len() < TRUSTED_MAX {
                recent.trusted.insert(address);
            }
            return Ok(());
        }
        if !is_refused {
            recent.record_wrong(address, now);
        }
        drop(recent);
        let (count, error) = if is_refused {
            (&self.refused, Error::TooManyGuesses)
        } else {
            (&self.wrong, Error::WrongPassword)
        };
        count.fetch_add(1, Relaxed);
        if let Some(times) = self.log.note() {
            tracing::warn!(times, last_from = %from, "wrong passwords were given");
        }
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u32) -> IpAddr {
        IpAddr::V4((0x0a00_0000 + last).into())
    }

    /// Counts the passwords of an address that are reported as wrong in the given seconds, at a thousand attempts per second.
    fn count_answered(guesses: &GuessLimiter, start: Instant, seconds: u64, from: IpAddr) -> usize {
        let times = (0..seconds * 1000).map(|ms| start + Duration::from_millis(ms));
        times
            .filter(|&now| {
                matches!(
                    guesses.check_at(now, from, false),
                    Err(Error::WrongPassword)
                )
            })
            .count()
    }

    #[test]
    fn an_address_may_guess_ten_times_and_then_once_a_second() {
        let (guesses, start) = (GuessLimiter::default(), Instant::now());
        assert_eq!(count_answered(&guesses, start, 100, address(1)), 10 + 99);
        assert_eq!(guesses.wrong.load(Relaxed), 109);
        assert_eq!(guesses.refused.load(Relaxed), 100_000 - 109);
        // A correct password is not accepted either, but a second later it is. Other addresses are not affected.
        let end = start + Duration::from_millis(99_999);
        assert!(guesses.check_at(end, address(1), true).is_err());
        let later = end + Duration::from_secs(1);
        for _ in 0..1000 {
            assert!(guesses.check_at(later, address(1), true).is_ok());
            assert!(guesses.check_at(end, address(2), true).is_ok());
        }
    }

    #[test]
    fn addresses_share_an_allowance_and_trusted_addresses_are_not_locked_out() {
        let (guesses, now) = (GuessLimiter::default(), Instant::now());
        assert!(guesses.check_at(now, address(0), true).is_ok());
        let wrong = |last| guesses.check_at(now, address(last), false);
        let answered = (1..10_000).filter(|&last| matches!(wrong(last), Err(Error::WrongPassword)));
        assert_eq!(answered.count(), 200);
        assert!(guesses.check_at(now, address(20_000), true).is_err());
        assert!(guesses.check_at(now, address(0), true).is_ok());
        let soon = now + Duration::from_millis(50);
        assert!(guesses.check_at(soon, address(20_000), true).is_ok());
    }

    #[test]
    fn addresses_of_one_network_share_an_allowance() {
        let one = |text: &str| normalize_address(text.parse().expect("an address"));
        assert_eq!(one("2001:db8::1"), one("2001:db8::2:3"));
        assert_ne!(one("2001:db8::1"), one("2001:db8:0:1::1"));
        assert_eq!(one("::ffff:10.0.0.1"), address(1));
        assert_ne!(address(1), address(2));
    }
}
