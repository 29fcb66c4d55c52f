//! The server's counters: calls, errors and latency per store and command, bytes, connections, slow commands.
//!
//! Each serving thread has its own [`CoreStats`] and is its only writer, so counting is a plain add to memory that no other core
//! writes. [`Stats::snapshot`] adds them up for INFO, `/metrics` and the console.
//!
//! Invariants:
//! 1. Only a core's thread writes that core's series (a second writer would lose counts, but corrupt nothing).
//! 2. Counters only grow; after CONFIG RESETSTAT, values are differences from a snapshot.
//! 3. A bucket's upper bound is at most 1.25 times its lower bound, which bounds the error of a quantile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_protocol::config::ServerConfig;
use larder_protocol::errors::{Code, ROWS};

/// Number of buckets of a latency histogram: below 64 ns, then four per power of two; the last is unbounded.
const BUCKETS: usize = 1 + 4 * 31;
const FIRST_POWER: u32 = 6;

/// All counters of a server.
pub struct Stats {
    cores: Vec<Arc<CoreStats>>,
    pub clients: Arc<ClientFigures>,
    /// The counters at the last CONFIG RESETSTAT.
    at_reset: Mutex<StatsSnapshot>,
    slowlog: Mutex<SlowLog>,
    slowlog_threshold_ns: AtomicU64,
    slowlog_length: usize,
}

/// The memory held for clients of the Redis protocol, and the clients closed because of it. Writable by any thread.
#[derive(Debug, Default)]
pub struct ClientFigures {
    pub memory_bytes: AtomicUsize,
    pub memory_limit_bytes: AtomicUsize,
    /// Closed because one client exceeded its limit.
    pub closed_too_large: AtomicU64,
    /// Closed because all clients together exceeded their limit.
    pub closed_evicted: AtomicU64,
    /// Closed because they did not read their replies.
    pub closed_unread: AtomicU64,
    /// Closed because a long reply could not be completed: more rows changed than may be retained for it.
    pub closed_reply_lost: AtomicU64,
}

/// The store, if the command concerns one, and the command.
type SeriesKey = (Option<Box<str>>, &'static str);

/// The counters of one serving thread.
#[derive(Default)]
pub struct CoreStats {
    series: Mutex<BTreeMap<SeriesKey, Arc<Series>>>,
    pub bytes_in: Counter,
    pub bytes_out: Counter,
    pub connections_accepted: Counter,
    pub connections_rejected: Counter,
    pub connections_closed: Counter,
    /// Connections closed because their input was not RESP.
    pub protocol_errors: Counter,
    /// Connections closed because their input was HTTP.
    pub http_refused: Counter,
    /// Lookups that had to wait for the disk.
    pub disk_reads: Counter,
    pub error_replies: ErrorCounts,
}

/// Error replies by code.
pub struct ErrorCounts([Counter; ROWS.len()]);

impl Default for ErrorCounts {
    fn default() -> ErrorCounts {
        ErrorCounts(std::array::from_fn(|_| Counter::default()))
    }
}

impl ErrorCounts {
    pub fn add(&self, code: Code) {
        self.0[code as usize].add(1);
    }
}

/// A counter with one writing thread and any number of readers.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub fn add(&self, n: u64) {
        // Not `fetch_add`: there is one writer (invariant 1), so no locked instruction is needed.
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters of one command on one store.
pub struct Series {
    buckets: [Counter; BUCKETS],
    total_ns: Counter,
    errors: Counter,
    keys: Counter,
    misses: Counter,
    forwarded: Counter,
}

impl Default for Series {
    fn default() -> Series {
        Series {
            buckets: std::array::from_fn(|_| Counter::default()),
            total_ns: Counter::default(),
            errors: Counter::default(),
            keys: Counter::default(),
            misses: Counter::default(),
            forwarded: Counter::default(),
        }
    }
}

impl Series {
    /// Counts `calls` that took `took` together. Calls that were executed together are assumed to take equally long.
    #[inline]
    pub fn record(&self, calls: u64, took: Duration) {
        let total_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(total_ns / calls.max(1))].add(calls);
        self.total_ns.add(total_ns);
    }

    #[inline]
    pub fn record_keys(&self, requested: u64, absent: u64) {
        self.keys.add(requested);
        if absent > 0 {
            self.misses.add(absent);
        }
    }

    /// Counts a call that was forwarded to one or several other nodes.
    #[inline]
    pub fn record_forwarded(&self) {
        self.forwarded.add(1);
    }

    pub fn record_error(&self) {
        self.errors.add(1);
    }

    /// The counters, without the names of the store and the command.
    fn snapshot(&self) -> SeriesSnapshot {
        SeriesSnapshot {
            errors: self.errors.get(),
            keys: self.keys.get(),
            misses: self.misses.get(),
            forwarded: self.forwarded.get(),
            total_ns: self.total_ns.get(),
            buckets: std::array::from_fn(|bucket| self.buckets[bucket].get()),
            ..SeriesSnapshot::default()
        }
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FIRST_POWER {
        return 0;
    }
    let power = 63 - ns.leading_zeros();
    let quarter = (ns >> (power - 2)) & 3;
    (1 + (power - FIRST_POWER) as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The first number of nanoseconds above the bucket.
fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket == 0 {
        return 1 << FIRST_POWER;
    }
    let (power, quarter) = (
        (bucket - 1) as u32 / 4 + FIRST_POWER,
        (bucket - 1) as u64 % 4,
    );
    (5 + quarter) << (power - 2)
}

impl Stats {
    /// One [`CoreStats`] per thread that serves RESP, and one for HTTP.
    pub fn new(config: &ServerConfig) -> Stats {
        let cores = thread_count(config) + 1;
        Stats {
            cores: (0..cores).map(|_| Arc::default()).collect(),
            clients: Arc::default(),
            at_reset: Mutex::default(),
            slowlog: Mutex::default(),
            slowlog_threshold_ns: AtomicU64::new(config.slowlog.threshold_us.saturating_mul(1000)),
            slowlog_length: config.slowlog.length as usize,
        }
    }

    /// The counters of serving thread `index`.
    pub fn core(&self, index: usize) -> Arc<CoreStats> {
        self.cores[index].clone()
    }

    /// The counters of the HTTP thread.
    pub fn http(&self) -> Arc<CoreStats> {
        self.cores[self.cores.len() - 1].clone()
    }

    /// Adds up all counters. Takes a few microseconds per series.
    pub fn snapshot(&self) -> StatsSnapshot {
        let mut all = StatsSnapshot::default();
        let mut merged: BTreeMap<SeriesKey, SeriesSnapshot> = BTreeMap::new();
        for core in &self.cores {
            all.bytes_in += core.bytes_in.get();
            all.bytes_out += core.bytes_out.get();
            all.connections_accepted += core.connections_accepted.get();
            all.connections_rejected += core.connections_rejected.get();
            all.connections_closed += core.connections_closed.get();
            all.protocol_errors += core.protocol_errors.get();
            all.http_refused += core.http_refused.get();
            all.disk_reads += core.disk_reads.get();
            for (row, count) in ROWS.iter().zip(&core.error_replies.0) {
                if count.get() > 0 {
                    *all.error_replies.entry(row.resp_prefix).or_default() += count.get();
                }
            }
            for ((store, command), series) in lock(&core.series).iter() {
                let sum = merged.entry((store.clone(), command)).or_default();
                sum.store = store.as_deref().map(str::to_owned);
                sum.command = command;
                sum.add(&series.snapshot());
            }
        }
        all.series = merged.into_values().collect();
        all
    }

    /// CONFIG RESETSTAT: makes [`Stats::since_reset`] start at 0; the counters themselves only grow.
    pub fn reset(&self) {
        *lock(&self.at_reset) = self.snapshot();
    }

    /// All counters since the last [`Stats::reset`].
    pub fn since_reset(&self) -> StatsSnapshot {
        let mut all = self.snapshot();
        all.subtract(&lock(&self.at_reset));
        all
    }

    /// Commands that take at least this long are recorded in the slow log.
    pub fn set_slowlog_threshold_us(&self, threshold_us: u64) {
        self.slowlog_threshold_ns
            .store(threshold_us.saturating_mul(1000), Relaxed);
    }

    #[inline]
    pub fn is_slow(&self, took: Duration) -> bool {
        took.as_nanos() >= u128::from(self.slowlog_threshold_ns.load(Relaxed))
    }

    pub fn slowlog(&self) -> MutexGuard<'_, SlowLog> {
        lock(&self.slowlog)
    }

    /// Records a slow command, and removes the oldest one if there are too many.
    pub fn record_slow(&self, entry: SlowEntry) {
        let mut log = self.slowlog();
        let id = log.next_id;
        log.next_id += 1;
        log.entries.push_front(SlowEntry { id, ..entry });
        log.entries.truncate(self.slowlog_length);
    }
}

impl CoreStats {
    /// The series of `command` on `store`, created if necessary. Keep it, because finding it takes a lock.
    pub fn series(&self, store: Option<&str>, command: &'static str) -> Arc<Series> {
        let key = (store.map(Box::from), command);
        lock(&self.series).entry(key).or_default().clone()
    }
}

/// The number of threads that serve RESP.
pub fn thread_count(config: &ServerConfig) -> usize {
    match config.server.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads as usize,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sums over all threads at approximately one instant.
#[derive(Debug, Clone, Default)]
pub struct StatsSnapshot {
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub connections_accepted: u64,
    pub connections_rejected: u64,
    pub connections_closed: u64,
    pub protocol_errors: u64,
    pub http_refused: u64,
    pub disk_reads: u64,
    /// Error replies by their first word.
    pub error_replies: BTreeMap<&'static str, u64>,
    /// Sorted by store (none first), then by command.
    pub series: Vec<SeriesSnapshot>,
}

impl StatsSnapshot {
    fn subtract(&mut self, before: &StatsSnapshot) {
        for (count, before) in [
            (&mut self.bytes_in, before.bytes_in),
            (&mut self.bytes_out, before.bytes_out),
            (&mut self.connections_accepted, before.connections_accepted),
            (&mut self.connections_rejected, before.connections_rejected),
            (&mut self.connections_closed, before.connections_closed),
            (&mut self.protocol_errors, before.protocol_errors),
            (&mut self.http_refused, before.http_refused),
            (&mut self.disk_reads, before.disk_reads),
        ] {
            *count = count.saturating_sub(before);
        }
        for (prefix, count) in &mut self.error_replies {
            let before = before.error_replies.get(prefix).copied();
            *count = count.saturating_sub(before.unwrap_or(0));
        }
        self.error_replies.retain(|_, count| *count > 0);
        let key = |series: &SeriesSnapshot| (series.store.clone(), series.command);
        let before: BTreeMap<_, _> = before.series.iter().map(|it| (key(it), it)).collect();
        for series in &mut self.series {
            if let Some(before) = before.get(&key(series)) {
                series.subtract(before);
            }
        }
        self.series
            .retain(|series| series.calls() + series.errors + series.forwarded > 0);
    }

    pub fn connections_open(&self) -> u64 {
        self.connections_accepted
            .saturating_sub(self.connections_closed)
    }

    pub fn calls(&self) -> u64 {
        self.series.iter().map(SeriesSnapshot::calls).sum()
    }

    /// The series of each command over all stores, sorted by name.
    pub fn by_command(&self) -> Vec<SeriesSnapshot> {
        let mut merged: BTreeMap<&'static str, SeriesSnapshot> = BTreeMap::new();
        for series in &self.series {
            let sum = merged.entry(series.command).or_default();
            sum.command = series.command;
            sum.add(series);
        }
        merged.into_values().collect()
    }
}

/// The counters of one command on one store, or on none.
#[derive(Debug, Clone)]
pub struct SeriesSnapshot {
    pub store: Option<String>,
    pub command: &'static str,
    pub errors: u64,
    /// Requested keys, and how many of them were absent.
    pub keys: u64,
    pub misses: u64,
    /// Calls that were forwarded to other nodes.
    pub forwarded: u64,
    pub total_ns: u64,
    buckets: [u64; BUCKETS],
}

impl Default for SeriesSnapshot {
    fn default() -> SeriesSnapshot {
        SeriesSnapshot {
            store: None,
            command: "",
            errors: 0,
            keys: 0,
            misses: 0,
            forwarded: 0,
            total_ns: 0,
            buckets: [0; BUCKETS],
        }
    }
}

impl SeriesSnapshot {
    /// Each counter with its counterpart in `other`.
    fn pairs<'a>(
        &'a mut self,
        other: &'a SeriesSnapshot,
    ) -> impl Iterator<Item = (&'a mut u64, u64)> {
        let counters = [
            (&mut self.errors, other.errors),
            (&mut self.keys, other.keys),
            (&mut self.misses, other.misses),
            (&mut self.forwarded, other.forwarded),
            (&mut self.total_ns, other.total_ns),
        ];
        let buckets = self.buckets.iter_mut().zip(other.buckets);
        counters.into_iter().chain(buckets)
    }

    fn add(&mut self, other: &SeriesSnapshot) {
        self.pairs(other).for_each(|(sum, count)| *sum += count);
    }

    fn subtract(&mut self, before: &SeriesSnapshot) {
        self.pairs(before)
            .for_each(|(count, before)| *count = count.saturating_sub(before));
    }

    pub fn calls(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The latency that a fraction `quantile` (0 to 1) of the calls did not exceed, rounded up to its bucket's end; 0 without
    /// calls.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = (quantile * self.calls() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return bucket_end_ns(bucket);
            }
        }
        0
    }

    /// For each bucket, its end in nanoseconds and the number of calls below it, in increasing order. Omits the last, unbounded
    /// bucket.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut sum = 0;
        self.buckets[..BUCKETS - 1]
            .iter()
            .enumerate()
            .map(move |(bucket, count)| {
                sum += count;
                (bucket_end_ns(bucket), sum)
            })
    }
}

/// The most recent slow commands, newest first.
#[derive(Debug, Default)]
pub struct SlowLog {
    pub entries: VecDeque<SlowEntry>,
    next_id: u64,
}

#[derive(Debug, Clone, Default)]
pub struct SlowEntry {
    /// Assigned by [`Stats::record_slow`].
    pub id: u64,
    /// Seconds since 1970.
    pub at: u64,
    pub took: Duration,
    /// Truncated, as in Redis.
    pub args: Vec<Vec<u8>>,
    pub client_addr: String,
    pub client_name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_without_gap_and_are_a_quarter_wide_at_most() {
        for ns in (0..5000u64).chain([1 << 20, (1 << 30) + 12345, u64::MAX]) {
            let bucket = bucket_of(ns);
            assert!(bucket == BUCKETS - 1 || ns < bucket_end_ns(bucket), "{ns}");
            assert!(bucket == 0 || ns >= bucket_end_ns(bucket - 1), "{ns}");
        }
        for bucket in 1..BUCKETS {
            assert!(
                bucket_end_ns(bucket) * 4 <= bucket_end_ns(bucket - 1) * 5,
                "{bucket}"
            );
        }
    }

    #[test]
    fn cores_are_added_up_and_quantiles_read_from_the_sum() {
        let mut config = ServerConfig::default();
        config.server.threads = 2;
        let stats = Stats::new(&config);
        for core in 0..2 {
            let series = stats.core(core).series(Some("pymk"), "GET");
            series.record(9, Duration::from_nanos(900));
            series.record(1, Duration::from_micros(50));
            series.record_keys(10, 3);
            stats.core(core).connections_accepted.add(2);
        }
        stats.core(0).connections_closed.add(1);
        let all = stats.snapshot();
        assert_eq!((all.connections_open(), all.calls()), (3, 20));
        let get = &all.series[0];
        assert_eq!(
            (get.store.as_deref(), get.command, get.keys, get.misses),
            (Some("pymk"), "GET", 20, 6)
        );
        assert_eq!(get.quantile_ns(0.5), 112);
        assert!((50_000..=62_500).contains(&get.quantile_ns(0.99)));
        assert_eq!(get.cumulative().last().map(|(_, calls)| calls), Some(20));
        assert_eq!(all.by_command()[0].calls(), 20);
    }

    #[test]
    fn the_slow_log_keeps_the_newest() {
        let mut config = ServerConfig::default();
        config.slowlog.length = 2;
        let stats = Stats::new(&config);
        assert!(
            stats.is_slow(Duration::from_millis(10)) && !stats.is_slow(Duration::from_millis(9))
        );
        for _ in 0..3 {
            stats.record_slow(SlowEntry::default());
        }
        let ids: Vec<u64> = stats
            .slowlog()
            .entries
            .iter()
            .map(|entry| entry.id)
            .collect();
        assert_eq!(ids, [2, 1]);
    }
}
