//! `/v1/stats`: recent requests per second and latencies, for the console and for curl.
//!
//! "Recent" means since a sample taken one to a few seconds ago. All clients share the same samples, so any number of open
//! consoles show the same values.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use crate::Shared;
use crate::stats::StatsSnapshot;

/// Minimum age of a sample before a newer one replaces it.
const SAMPLE_AGE: Duration = Duration::from_secs(2);

/// The last two samples; rates are computed over the time since the older one.
#[derive(Default)]
pub struct Samples(Mutex<[Option<TimedSnapshot>; 2]>);

type TimedSnapshot = (Instant, Arc<StatsSnapshot>);

impl Samples {
    /// Returns the sample to compare `now` with, and its age. Keeps `now` for later requests.
    fn before(&self, now: &Arc<StatsSnapshot>) -> Option<(Duration, Arc<StatsSnapshot>)> {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let old = |sample: &Option<TimedSnapshot>| {
            sample
                .as_ref()
                .is_none_or(|(at, _)| at.elapsed() >= SAMPLE_AGE)
        };
        if old(&samples[1]) {
            samples[0] = samples[1].take();
            samples[1] = Some((Instant::now(), now.clone()));
        }
        let (at, sample) = samples[0].as_ref()?;
        Some((at.elapsed(), sample.clone()))
    }
}

pub async fn stats(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let now = Arc::new(shared.stats.snapshot());
    let before = shared.samples.before(&now);
    let describe = |selection: Selection<'_>| {
        let mut recent = Totals::of(&now, selection);
        if let Some((_, before)) = &before {
            recent.subtract(&Totals::of(before, selection));
        }
        recent.describe(before.as_ref().map(|(age, _)| age.as_secs_f64()))
    };
    let stores: serde_json::Map<String, Value> = shared
        .stores
        .list()
        .iter()
        .map(|store| {
            (
                store.name.to_string(),
                describe(Selection::Store(store.name.as_str())),
            )
        })
        .collect();
    // Commands that were called at least once, sorted by name.
    let names: BTreeSet<&str> = now
        .series
        .iter()
        .filter(|series| series.calls() > 0)
        .map(|series| series.command)
        .collect();
    let commands: serde_json::Map<String, Value> = names
        .into_iter()
        .map(|name| (name.to_owned(), describe(Selection::Command(name))))
        .collect();
    Json(json!({
        "resp": shared.resp_addr.map(|addr| addr.to_string()),
        "uptime_seconds": shared.started_at.elapsed().as_secs(),
        "window_seconds": before.as_ref().map(|(age, _)| age.as_secs_f64()),
        "in_cluster": shared.membership.is_some(),
        "connections": now.connections_open(),
        "received_bytes": now.bytes_in,
        "sent_bytes": now.bytes_out,
        "disk_reads": now.disk_reads,
        "requests": now.calls(),
        "all": describe(Selection::All),
        "stores": stores,
        "commands": commands,
        "tables_refuse_writes": shared.tables.refusal().map(|(_, why)| why),
    }))
}

/// The calls to add up.
#[derive(Clone, Copy)]
enum Selection<'a> {
    All,
    /// Calls of any command on one store.
    Store(&'a str),
    /// Calls of one command on any store or table.
    Command(&'a str),
}

/// The sums over several series.
#[derive(Default)]
struct Totals {
    calls: u64,
    keys: u64,
    misses: u64,
    errors: u64,
    /// Bucket end in nanoseconds, and the number of calls below it.
    cumulative: Vec<(u64, u64)>,
}

impl Totals {
    fn of(stats: &StatsSnapshot, selection: Selection<'_>) -> Totals {
        let mut sum = Totals::default();
        for series in &stats.series {
            let counts = match selection {
                Selection::All => true,
                Selection::Store(store) => series.store.as_deref() == Some(store),
                Selection::Command(command) => series.command == command,
            };
            if !counts {
                continue;
            }
            sum.calls += series.calls();
            sum.keys += series.keys;
            sum.misses += series.misses;
            sum.errors += series.errors;
            if sum.cumulative.is_empty() {
                sum.cumulative = series.cumulative().collect();
            } else {
                let both = sum.cumulative.iter_mut().zip(series.cumulative());
                both.for_each(|((_, sum), (_, cumulative))| *sum += cumulative);
            }
        }
        sum
    }

    fn subtract(&mut self, earlier: &Totals) {
        self.calls = self.calls.saturating_sub(earlier.calls);
        self.keys = self.keys.saturating_sub(earlier.keys);
        self.misses = self.misses.saturating_sub(earlier.misses);
        self.errors = self.errors.saturating_sub(earlier.errors);
        for ((_, cumulative), (_, earlier)) in self.cumulative.iter_mut().zip(&earlier.cumulative) {
            *cumulative = cumulative.saturating_sub(*earlier);
        }
    }

    /// The latency quantile in microseconds.
    fn latency_us(&self, quantile: f64) -> Option<f64> {
        if self.calls == 0 {
            return None;
        }
        let rank = (quantile * self.calls as f64).ceil() as u64;
        let bucket = self
            .cumulative
            .iter()
            .find(|(_, cumulative)| *cumulative >= rank);
        bucket
            .or(self.cumulative.last())
            .map(|(end_ns, _)| *end_ns as f64 / 1e3)
    }

    /// Without a sample to compare with, there are no rates, and the latencies are since the start.
    fn describe(&self, seconds: Option<f64>) -> Value {
        let rate = |count: u64| seconds.filter(|s| *s > 0.0).map(|s| count as f64 / s);
        json!({
            "requests_per_second": rate(self.calls),
            "keys_per_second": rate(self.keys),
            "misses_per_second": rate(self.misses),
            "errors_per_second": rate(self.errors),
            "latency_us_p50": self.latency_us(0.50),
            "latency_us_p99": self.latency_us(0.99),
            "latency_us_p999": self.latency_us(0.999),
        })
    }
}
