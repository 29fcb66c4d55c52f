//! Computes until when a lease certainly lasts.
//!
//! The service counts a lease from when a renewal arrives. The holder knows only when the renewal was sent and when it was
//! answered. It therefore counts from the sending of the last answered renewal, which is earlier than the service's count,
//! whatever the network does. A fraction of the time is subtracted for clock drift. The clock must continue while the machine is
//! suspended (`CLOCK_BOOTTIME`).

/// A lease: renewals in flight, and the result of the last answered one.
#[derive(Debug, Clone)]
pub struct RenewalLease {
    ttl_ms: u64,
    /// Parts per million by which this clock may be slower than the service's.
    drift_ppm: u64,
    counts_from_the_answer: bool,
    sent: Vec<(u64, u64)>,
    until_ms: u64,
}

impl RenewalLease {
    pub fn new(ttl_ms: u64, drift_ppm: u64) -> RenewalLease {
        RenewalLease {
            ttl_ms,
            drift_ppm,
            counts_from_the_answer: false,
            sent: Vec::new(),
            until_ms: 0,
        }
    }

    /// A deliberate bug, which tests must find.
    pub fn with_reply_time_bug(mut self) -> RenewalLease {
        self.counts_from_the_answer = true;
        self
    }

    /// Records that a renewal with this unique number was sent.
    pub fn sent(&mut self, number: u64, now_ms: u64) {
        self.sent.push((number, now_ms));
    }

    /// Records the answer: the lease existed, and lasts for its TTL from then on.
    pub fn answered(&mut self, number: u64, now_ms: u64) {
        let Some(at) = self.sent.iter().position(|(it, _)| *it == number) else {
            return;
        };
        let sent_ms = self.sent[at].1;
        self.sent.drain(..=at);
        let from = if self.counts_from_the_answer {
            now_ms
        } else {
            sent_ms
        };
        let margin = self.ttl_ms * self.drift_ppm / 1_000_000 + 1;
        self.until_ms = self.until_ms.max(from + self.ttl_ms.saturating_sub(margin));
    }

    /// Records that the lease is gone.
    pub fn ended(&mut self) {
        self.until_ms = 0;
        self.sent.clear();
    }

    pub fn until_ms(&self) -> u64 {
        self.until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_the_send_time_of_the_answered_renewal() {
        let mut lease = RenewalLease::new(1_000, 0);
        lease.sent(1, 100);
        lease.sent(2, 400);
        assert_eq!(lease.until_ms(), 0);
        lease.answered(1, 900);
        assert_eq!(lease.until_ms(), 1_099);
        lease.answered(2, 1_300);
        assert_eq!(lease.until_ms(), 1_399);
        lease.answered(1, 1_350);
        assert_eq!(
            lease.until_ms(),
            1_399,
            "an answer that comes late changes nothing"
        );
    }

    #[test]
    fn clock_drift_shortens_the_lease() {
        let mut lease = RenewalLease::new(10_000, 10_000);
        lease.sent(1, 0);
        lease.answered(1, 5);
        assert_eq!(lease.until_ms(), 9_899);
    }
}
