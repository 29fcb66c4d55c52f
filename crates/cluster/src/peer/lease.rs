//! Computes until when rows of another node may be trusted, and from when the other node certainly no longer trusts this node's
//! rows.
//!
//! ```text
//!   reader   ping sent ─────────────────────────── subscribed until ►│        trusts no row of the owner any more
//!                 └──► received by the owner ── lease and margin ────────────►│ forgotten after: the owner stops waiting
//! ```
//!
//! 1. The reader counts from when it sent the last answered ping. The owner counts from when it received the last ping, which is
//!    later. The margin covers clocks of different speeds.
//! 2. The reader's lease belongs to one connection. Everything that the owner sent before it answered a ping arrives before the
//!    answer, so a reader that trusts a row has received all of it.
//! 3. The owner uses the lease that the reader announced. It answers pings as long as the connection exists. To stop waiting for
//!    a reader, an owner first closes the connection.
//! 4. An answer contains how long the owner certainly may serve its slots, and the reader trusts its rows no longer than that:
//!    after the owner's own lease has expired, another node may accept writes to them. Trust therefore never outlasts the lease
//!    on which it depends.

use std::collections::VecDeque;

use larder_types::wire::Malformed;

/// Times are milliseconds of this node's clock, which continues while the machine is suspended.
#[derive(Debug, Clone)]
pub struct SubscriptionLease {
    lease_ms: u64,
    ping_every_ms: u64,
    margin_ms: u64,
    /// Pings without an answer, oldest first.
    unanswered: VecDeque<u64>,
    next_ping_ms: u64,
    subscribed_until_ms: u64,
    peer_lease_ms: u64,
    forgotten_after_ms: u64,
}

impl SubscriptionLease {
    pub fn new(lease_ms: u64, ping_every_ms: u64, margin_ms: u64) -> SubscriptionLease {
        SubscriptionLease {
            lease_ms,
            ping_every_ms,
            margin_ms,
            unanswered: VecDeque::new(),
            next_ping_ms: u64::MAX,
            subscribed_until_ms: 0,
            peer_lease_ms: 0,
            forgotten_after_ms: 0,
        }
    }

    /// Starts the lease: the peer has announced how long it trusts this node. The first ping is due.
    pub fn begin(&mut self, now_ms: u64, peer_lease_ms: u64) {
        self.peer_lease_ms = peer_lease_ms;
        self.next_ping_ms = now_ms;
    }

    pub fn next_ping_ms(&self) -> u64 {
        self.next_ping_ms
    }

    /// Sends a ping, if one is due. Returns its timestamp.
    pub fn ping(&mut self, now_ms: u64) -> Option<u64> {
        (now_ms >= self.next_ping_ms).then(|| {
            self.next_ping_ms = now_ms + self.ping_every_ms;
            self.unanswered.push_back(now_ms);
            now_ms
        })
    }

    /// Handles a pong. The owner certainly serves its slots for `acts_for_ms` from when it received the ping.
    ///
    /// # Errors
    /// It does not answer the oldest unanswered ping.
    pub fn record_pong(&mut self, sent_ms: u64, acts_for_ms: u64) -> Result<(), Malformed> {
        if self.unanswered.front() != Some(&sent_ms) {
            return Err(Malformed("a pong does not answer the oldest ping"));
        }
        self.unanswered.pop_front();
        let until_ms = sent_ms.saturating_add(self.lease_ms.min(acts_for_ms));
        // An earlier answer remains valid.
        self.subscribed_until_ms = self.subscribed_until_ms.max(until_ms);
        Ok(())
    }

    /// Handles a ping, which the caller must answer.
    pub fn record_ping(&mut self, now_ms: u64) {
        let after = self.peer_lease_ms.saturating_add(self.margin_ms);
        self.forgotten_after_ms = now_ms.saturating_add(after);
    }

    /// Stops trusting the peer.
    pub fn end(&mut self) {
        self.subscribed_until_ms = 0;
        self.next_ping_ms = u64::MAX;
    }

    /// For a reader: the time (exclusive) until which it is certainly subscribed.
    pub fn subscribed_until_ms(&self) -> u64 {
        self.subscribed_until_ms
    }

    /// For an owner: the time from which the peer certainly trusts nothing sent over this connection. It remains valid after the
    /// connection has ended.
    pub fn forgotten_after_ms(&self) -> u64 {
        self.forgotten_after_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease() -> SubscriptionLease {
        let mut lease = SubscriptionLease::new(3_000, 1_000, 500);
        lease.begin(10_000, 4_000);
        lease
    }

    #[test]
    fn a_reader_counts_from_the_send_time_of_the_last_answered_ping() {
        let mut lease = lease();
        assert_eq!(lease.subscribed_until_ms(), 0);
        assert_eq!(lease.ping(10_000), Some(10_000));
        assert_eq!(
            (lease.ping(10_999), lease.ping(11_000)),
            (None, Some(11_000))
        );
        assert_eq!(lease.subscribed_until_ms(), 0, "none was answered");
        // A late answer counts from when the ping was sent.
        lease.record_pong(10_000, u64::MAX).expect("the oldest");
        assert_eq!(lease.subscribed_until_ms(), 13_000);
        lease.record_pong(11_000, u64::MAX).expect("the next");
        assert_eq!(lease.subscribed_until_ms(), 14_000);
        lease.end();
        assert_eq!((lease.subscribed_until_ms(), lease.ping(90_000)), (0, None));
    }

    #[test]
    fn an_owner_counts_from_the_receipt_of_the_last_ping_with_the_readers_lease() {
        let mut lease = lease();
        assert_eq!(
            lease.forgotten_after_ms(),
            0,
            "the owner has sent nothing yet"
        );
        lease.record_ping(20_000);
        assert_eq!(lease.forgotten_after_ms(), 24_500);
        lease.end();
        assert_eq!(
            lease.forgotten_after_ms(),
            24_500,
            "the reader may not know of the end"
        );
    }

    #[test]
    fn a_reader_trusts_rows_no_longer_than_the_owner_may_serve() {
        let mut lease = lease();
        lease.ping(10_000);
        lease.record_pong(10_000, 1_200).expect("the oldest");
        assert_eq!(lease.subscribed_until_ms(), 11_200);
        lease.ping(11_000);
        lease.record_pong(11_000, 0).expect("the next");
        assert_eq!(
            lease.subscribed_until_ms(),
            11_200,
            "an owner without a lease adds nothing"
        );
        lease.ping(12_000);
        lease.record_pong(12_000, 60_000).expect("the next");
        assert_eq!(lease.subscribed_until_ms(), 15_000);
    }

    #[test]
    fn unexpected_pongs_do_not_extend_the_lease() {
        let mut lease = lease();
        lease
            .record_pong(9_999, u64::MAX)
            .expect_err("no ping was sent");
        lease.ping(10_000);
        lease.ping(11_000);
        lease
            .record_pong(11_000, u64::MAX)
            .expect_err("another is older");
        assert_eq!(lease.subscribed_until_ms(), 0);
    }
}
