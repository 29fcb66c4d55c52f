//! Computes whether a node certainly still holds its lease. Sans-IO: the time is an argument.
//!
//! The service ends a lease at the earliest one TTL after the last keepalive *arrived*. The holder knows only that this was not
//! before the keepalive was *sent*, so it counts from there. It subtracts a margin, because the two clocks may run at different
//! speeds.
//!
//! ```text
//! holder   sent ────────────────────────── held_until      (sent + ttl - margin)
//! service     └──► arrived ──────────────────────────────── earliest end
//! ```
//!
//! Limitation: etcd 3.4 before 3.4.30 may end leases early if its leader stalled and was replaced. Therefore each change also
//! compares the holder's own key, and messages to replicas carry a term.

use super::LeaseId;

/// The margin is 1/20 of the TTL: clocks whose speeds differ by 5 % are safe.
const MARGIN_PART: u64 = 20;

/// The lease is renewed after 1/3 of the TTL, so two consecutive attempts may fail.
const RENEWAL_PART: u64 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    id: LeaseId,
    ttl_ms: u64,
    /// The send time of the latest request that was answered with a TTL.
    sent_at_ms: u64,
    /// The service has reported the end of the lease.
    has_ended: bool,
}

impl Lease {
    /// Creates a lease that was requested at this time of [`super::boot_ms`] and granted.
    pub fn new(id: LeaseId, ttl_seconds: u32, sent_at_ms: u64) -> Lease {
        Lease {
            id,
            ttl_ms: u64::from(ttl_seconds) * 1000,
            sent_at_ms,
            has_ended: false,
        }
    }

    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Records the answer to a keepalive that was sent at this time. Answers may arrive in any order.
    pub fn record_reply(&mut self, sent_at_ms: u64, ttl_seconds: Option<u32>) {
        match ttl_seconds {
            None => self.has_ended = true,
            Some(seconds) if sent_at_ms >= self.sent_at_ms => {
                self.sent_at_ms = sent_at_ms;
                self.ttl_ms = u64::from(seconds) * 1000;
            }
            Some(_) => {}
        }
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The first time at which the lease is possibly not held; zero if it has ended.
    pub fn held_until_ms(&self) -> u64 {
        if self.has_ended {
            0
        } else {
            self.sent_at_ms + self.ttl_ms - self.ttl_ms / MARGIN_PART
        }
    }

    pub fn is_certainly_held(&self, now_ms: u64) -> bool {
        now_ms < self.held_until_ms()
    }

    /// The time at which to send the next keepalive.
    pub fn renewal_at_ms(&self) -> u64 {
        self.sent_at_ms + self.ttl_ms / RENEWAL_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LeaseId = LeaseId(7);

    #[test]
    fn the_ttl_counts_from_the_send_time_of_the_answered_request() {
        let mut lease = Lease::new(ID, 10, 1_000);
        assert_eq!(lease.held_until_ms(), 10_500);
        assert!(lease.is_certainly_held(10_499) && !lease.is_certainly_held(10_500));
        // Sent at 4 s. The reply took until 9 s, which has no effect.
        lease.record_reply(4_000, Some(10));
        assert_eq!(
            (lease.held_until_ms(), lease.renewal_at_ms()),
            (13_500, 7_333)
        );
    }

    #[test]
    fn an_overtaken_reply_does_not_shorten_the_lease() {
        let mut lease = Lease::new(ID, 10, 1_000);
        lease.record_reply(5_000, Some(10));
        lease.record_reply(3_000, Some(10));
        assert_eq!(lease.held_until_ms(), 14_500);
    }

    #[test]
    fn an_ended_lease_stays_ended() {
        let mut lease = Lease::new(ID, 10, 1_000);
        lease.record_reply(4_000, None);
        lease.record_reply(5_000, Some(10));
        assert!(lease.has_ended() && !lease.is_certainly_held(1_000));
    }

    #[test]
    fn a_suspended_process_detects_that_its_lease_expired() {
        let mut lease = Lease::new(ID, 5, 1_000);
        lease.record_reply(2_000, Some(5));
        // The clock is read an hour later: no other event is needed.
        assert!(!lease.is_certainly_held(3_602_000));
        // The service may have been down for that hour as well, so its current answer counts.
        lease.record_reply(3_602_000, Some(5));
        assert!(lease.is_certainly_held(3_602_001));
    }

    /// With any latencies and losses, and clocks whose speeds differ by 4 %: when the service ends the lease, the holder no
    /// longer relies on it.
    #[test]
    fn the_holder_never_outlasts_the_service() {
        let mut random = larder_types::Random::new(42);
        for _ in 0..2_000 {
            let ttl_seconds = 1 + random.below(10) as u32;
            let ttl_ms = u64::from(ttl_seconds) * 1000;
            // The holder's clock runs `speed` / 1000 times as fast as the service's.
            let speed = 961 + random.below(80);
            let service_time = |holder_ms: u64| holder_ms * 1000 / speed;
            let mut now = random.below(1_000_000);
            let mut lease = Lease::new(ID, ttl_seconds, now);
            let mut ends_at = service_time(now) + ttl_ms;
            for _ in 0..20 {
                now = now.max(lease.renewal_at_ms()) + random.below(ttl_ms);
                let (sent_at, arrived) = (now, service_time(now) + random.below(ttl_ms));
                if arrived >= ends_at || random.below(3) == 0 {
                    continue;
                }
                ends_at = arrived + ttl_ms;
                if random.below(3) != 0 {
                    lease.record_reply(sent_at, Some(ttl_seconds));
                }
                assert!(service_time(lease.held_until_ms()) <= ends_at);
            }
        }
    }
}
