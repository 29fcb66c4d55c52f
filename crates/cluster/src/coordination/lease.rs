//! Whether a node surely still holds its lease: a value that is told the time.
//!
//! The service ends a lease no sooner than its seconds after the last keepalive *reached* it. The holder cannot know when that was,
//! only that it was not before the keepalive was *sent*; so it counts from there, and stops a margin earlier, because
//! the two clocks may run at different speeds.
//!
//! ```text
//! holder   sent ────────────────────────── held_until      (sent + ttl - margin)
//! service     └──► arrived ──────────────────────────────── ended at the earliest
//! ```
//!
//! What this cannot know: etcd 3.4 before 3.4.30 may end leases early when its leader was stuck and lost its place. So each change
//! compares the holder's own key as well, and what goes to replicas carries a term.

use super::LeaseId;

/// One part in so many of the lease is kept as the margin: clocks that differ by 5 % in speed are still safe.
const MARGIN_PART: u64 = 20;

/// Sent again after this part of the lease, so that two tries in a row may fail.
const RENEWAL_PART: u64 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    id: LeaseId,
    ttl_ms: u64,
    /// When the last request was sent that was answered with "it lasts".
    sent_at_ms: u64,
    /// The service said that it has ended.
    has_ended: bool,
}

impl Lease {
    /// A lease that was asked for at this time, of [`super::boot_ms`], and granted.
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

    /// A keepalive that was sent at this time was answered so. Answers may come in any order.
    pub fn answered(&mut self, sent_at_ms: u64, ttl_seconds: Option<u32>) {
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

    /// The first time at which it is not surely held any more; zero when it has ended.
    pub fn held_until_ms(&self) -> u64 {
        match self.has_ended {
            true => 0,
            false => self.sent_at_ms + self.ttl_ms - self.ttl_ms / MARGIN_PART,
        }
    }

    pub fn is_held_surely(&self, now_ms: u64) -> bool {
        now_ms < self.held_until_ms()
    }

    /// When to send the next keepalive.
    pub fn renewal_at_ms(&self) -> u64 {
        self.sent_at_ms + self.ttl_ms / RENEWAL_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LeaseId = LeaseId(7);

    #[test]
    fn time_counts_from_the_sending_of_what_was_answered() {
        let mut lease = Lease::new(ID, 10, 1_000);
        assert_eq!(lease.held_until_ms(), 10_500);
        assert!(lease.is_held_surely(10_499) && !lease.is_held_surely(10_500));
        // Sent at 4 s; the answer took until 9 s, which changes nothing.
        lease.answered(4_000, Some(10));
        assert_eq!(
            (lease.held_until_ms(), lease.renewal_at_ms()),
            (13_500, 7_333)
        );
    }

    #[test]
    fn an_answer_that_was_overtaken_takes_nothing_back() {
        let mut lease = Lease::new(ID, 10, 1_000);
        lease.answered(5_000, Some(10));
        lease.answered(3_000, Some(10));
        assert_eq!(lease.held_until_ms(), 14_500);
    }

    #[test]
    fn a_lease_that_ended_stays_so() {
        let mut lease = Lease::new(ID, 10, 1_000);
        lease.answered(4_000, None);
        lease.answered(5_000, Some(10));
        assert!(lease.has_ended() && !lease.is_held_surely(1_000));
    }

    #[test]
    fn a_process_that_was_suspended_finds_itself_out() {
        let mut lease = Lease::new(ID, 5, 1_000);
        lease.answered(2_000, Some(5));
        // The next look at the clock comes an hour later: nothing else is needed.
        assert!(!lease.is_held_surely(3_602_000));
        // The service may have been away for that hour as well: what it answers now counts.
        lease.answered(3_602_000, Some(5));
        assert!(lease.is_held_surely(3_602_001));
    }

    /// Any latencies, any losses, clocks that differ by 4 % in speed: when the service ends the lease, the holder knew.
    #[test]
    fn the_holder_never_outlasts_the_service() {
        let mut random = larder_types::Random::new(42);
        for _ in 0..2_000 {
            let ttl_seconds = 1 + random.below(10) as u32;
            let ttl_ms = u64::from(ttl_seconds) * 1000;
            // A holder's millisecond is `speed` / 1000 of the service's.
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
                    lease.answered(sent_at, Some(ttl_seconds));
                }
                assert!(service_time(lease.held_until_ms()) <= ends_at);
            }
        }
    }
}
