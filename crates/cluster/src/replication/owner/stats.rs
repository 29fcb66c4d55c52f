//! Statistics of replication at the owners of slots.

/// Statistics of owners about their replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicationStats {
    /// Changes that are not acknowledged by all in-sync replicas, and their bytes.
    pub unacknowledged: u64,
    pub unacknowledged_bytes: u64,
    /// Replicas of a slot that were filled and became in sync.
    pub filled: u64,
    /// Fills that were restarted because writes were faster.
    pub fill_restarts: u64,
    /// Acknowledged messages with changes, and the sum of their latencies, each in whole milliseconds.
    pub acknowledged: u64,
    pub latency_sum_ms: u64,
}

impl ReplicationStats {
    /// Adds the statistics of another owner.
    pub fn add(&mut self, other: &ReplicationStats) {
        self.unacknowledged += other.unacknowledged;
        self.unacknowledged_bytes += other.unacknowledged_bytes;
        self.filled += other.filled;
        self.fill_restarts += other.fill_restarts;
        self.acknowledged += other.acknowledged;
        self.latency_sum_ms += other.latency_sum_ms;
    }
}
