//! `/metrics` in the OpenMetrics text format, generated at each scrape from the counters of `stats` and the status of stores and
//! pulls. Stores are not registered, so a removed store's lines disappear with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use larder_join::JoinInfo;
use larder_protocol::http::{StoreStatus, VersionStatus};
use larder_types::StoreName;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::Shared;
use crate::error::Error;
use crate::http::Failure;
use crate::spaces::SpaceStats;
use crate::stats::SeriesSnapshot;

/// Maximum time that a scrape waits for the figures of the serving threads.
const FIGURES_MAX: Duration = Duration::from_millis(500);

pub async fn scrape(State(shared): State<Arc<Shared>>) -> Result<Response, Failure> {
    if !shared.loading.is_loading() {
        let publish = shared
            .tables
            .run_on_all(None, |tables| async move { tables.publish_stats() });
        // For a serving thread that does not answer, the last published figures are used.
        if let Ok(published) = tokio::time::timeout(FIGURES_MAX, publish).await {
            published?;
        }
    }
    let mut registry = Registry::with_prefix("larder");
    registry.register_collector(Box::new(Scrape(shared)));
    let mut body = String::new();
    text::encode(&mut body, &registry)
        .map_err(|error| Error::Io(format!("the metrics cannot be written: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], body).into_response())
}

struct Scrape(Arc<Shared>);

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.requests(&mut encoder)?;
        self.stores(&mut encoder)?;
        self.pulls(&mut encoder)?;
        self.tables(&mut encoder)?;
        self.cluster(&mut encoder)?;
        self.postgres(&mut encoder)
    }
}

impl Scrape {
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = self.0.stats.snapshot();
        let labels = |series: &SeriesSnapshot| {
            let store = series.store.clone().unwrap_or_default();
            [("store", store), ("command", series.command.to_owned())]
        };
        let mut family = encoder.encode_descriptor(
            "request_duration",
            "Time to execute a command, by store and command; the count is the number of requests",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for series in &stats.series {
            let buckets = coarse_buckets(series);
            family
                .encode_family(&labels(series))?
                .encode_histogram::<[(&str, &str); 0]>(
                    series.total_ns as f64 / 1e9,
                    series.calls(),
                    &buckets,
                    None,
                )?;
        }
        type Count = fn(&SeriesSnapshot) -> u64;
        let counts: [(&str, &str, Count); 4] = [
            ("request_errors", "Commands answered with an error", |s| {
                s.errors
            }),
            ("keys", "Requested keys", |s| s.keys),
            ("key_misses", "Requested keys that were absent", |s| {
                s.misses
            }),
            ("forwarded", "Commands forwarded to other nodes", |s| {
                s.forwarded
            }),
        ];
        for (name, help, count) in counts {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for series in &stats.series {
                line(
                    &mut family,
                    &labels(series),
                    ConstCounter::new(count(series)),
                )?;
            }
        }
        let totals = [
            (
                "received_bytes",
                "Bytes received from clients",
                stats.bytes_in,
            ),
            ("sent_bytes", "Bytes sent to clients", stats.bytes_out),
            (
                "connections_accepted",
                "Connections accepted",
                stats.connections_accepted,
            ),
            (
                "connections_rejected",
                "Connections rejected because of the limit on their number",
                stats.connections_rejected,
            ),
            (
                "protocol_errors",
                "Connections closed because of input that is not RESP",
                stats.protocol_errors,
            ),
            (
                "wrong_passwords",
                "Wrong passwords received over RESP or HTTP",
                self.0.guess_limiter.wrong.load(Relaxed),
            ),
            (
                "passwords_not_looked_at",
                "Passwords rejected without a check because of the rate limit for wrong passwords",
                self.0.guess_limiter.refused.load(Relaxed),
            ),
            (
                "http_refused",
                "Connections to the port of the Redis protocol closed because of an HTTP request",
                stats.http_refused,
            ),
            (
                "disk_reads",
                "Lookups that waited for the disk",
                stats.disk_reads,
            ),
        ];
        for (name, help, total) in totals {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(total).encode(metric)?;
        }
        let clients = &self.0.stats.clients;
        let mut family = encoder.encode_descriptor(
            "clients_closed",
            "Clients of the Redis protocol closed because of memory limits or unread replies, by cause",
            None,
            MetricType::Counter,
        )?;
        for (why, count) in [
            ("client_memory", &clients.closed_too_large),
            ("clients_memory", &clients.closed_evicted),
            ("unread", &clients.closed_unread),
            ("answer_lost", &clients.closed_reply_lost),
        ] {
            let labels = [("why", why)];
            line(&mut family, &labels, ConstCounter::new(count.load(Relaxed)))?;
        }
        for (name, help, bytes) in [
            (
                "clients_memory_bytes",
                "Memory of clients of the Redis protocol: requests, replies, and row values held for long replies",
                &clients.memory_bytes,
            ),
            (
                "clients_memory_limit_bytes",
                "Limit of the memory of clients; above it, the largest clients are closed",
                &clients.memory_limit_bytes,
            ),
        ] {
            gauge(encoder, name, help, bytes.load(Relaxed) as u64)?;
        }
        gauge(
            encoder,
            "connections",
            "Open connections",
            stats.connections_open(),
        )?;
        let uptime = self.0.started_at.elapsed().as_secs();
        gauge(
            encoder,
            "uptime_seconds",
            "Time since the server started",
            uptime,
        )
    }

    fn stores(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stores = self.0.stores.list();
        let stores: Vec<StoreStatus> = stores
            .iter()
            .filter_map(|store| store.status(None).ok())
            .collect();
        type Value = fn(&StoreStatus) -> Option<u64>;
        let live =
            |store: &StoreStatus| store.versions.iter().find(|version| version.live).cloned();
        let gauges: [(&str, &str, Value); 3] = [
            (
                "store_live_version",
                "Number of the live version",
                |store| store.live,
            ),
            ("store_versions", "Number of kept versions", |store| {
                Some(store.versions.len() as u64)
            }),
            ("store_kept_bytes", "Size of all kept versions", |store| {
                Some(
                    store
                        .versions
                        .iter()
                        .map(|version| version.size_bytes)
                        .sum(),
                )
            }),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for store in &stores {
                if let Some(value) = value(store) {
                    let labels = [("store", store.name.as_str())];
                    line(&mut family, &labels, ConstGauge::new(value as i64))?;
                }
            }
        }
        type OfLive = fn(&VersionStatus) -> Option<u64>;
        let of_live: [(&str, &str, OfLive); 4] = [
            ("store_records", "Records of the live version", |v| {
                Some(v.record_count)
            }),
            ("store_size_bytes", "Size of the live version", |v| {
                Some(v.size_bytes)
            }),
            (
                "store_resident_bytes",
                "Part of the live version in memory at the last measurement",
                |v| v.resident_bytes,
            ),
            (
                "store_pulled_at_seconds",
                "Unix time at which the live version was pulled",
                |v| v.pulled_at,
            ),
        ];
        for (name, help, value) in of_live {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for store in &stores {
                if let Some(value) = live(store).as_ref().and_then(value) {
                    let labels = [("store", store.name.as_str())];
                    line(&mut family, &labels, ConstGauge::new(value as i64))?;
                }
            }
        }
        let mut family = encoder.encode_descriptor(
            "swaps",
            "Number of times that another version went live",
            None,
            MetricType::Counter,
        )?;
        for store in self.0.stores.list() {
            let labels = [("store", store.name.as_str())];
            line(&mut family, &labels, ConstCounter::new(store.swap_count()))?;
        }
        let damaged = self.0.stores.damaged().len() as u64;
        gauge(
            encoder,
            "stores_unreadable",
            "Stores whose live version is damaged or cannot be read",
            damaged,
        )
    }

    fn tables(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let figures = self.0.tables.stats();
        let sums = [
            (
                "tables_memory_bytes",
                "Memory of tables and join outputs",
                figures.memory_bytes,
            ),
            (
                "tables_values_on_disk_bytes",
                "Size of the values of tables that are stored on disk",
                figures.disk.used_bytes,
            ),
            (
                "tables_log_bytes",
                "Size of the logs since the newest snapshot of the tables",
                figures.log_bytes,
            ),
            (
                "tables_snapshot_bytes",
                "Size of the newest snapshot of the tables",
                figures.snapshot_bytes,
            ),
            (
                "tables_backlog_bytes",
                "Size of the changes that are not yet written to the log",
                figures.backlog_bytes,
            ),
            (
                "tables_visited_at_once",
                "Maximum number of rows that a core visited for joins in one turn",
                figures.visited_per_step_max,
            ),
            (
                "tables_writes_refused",
                "1 while writes to tables are rejected because the journal cannot be written",
                u64::from(self.0.tables.refusal().is_some()),
            ),
            (
                "unable",
                "1 while the server cannot serve requests: for tables.stall_seconds, its disk hangs or fails, or a serving thread is stalled",
                u64::from(self.0.tables.fault_monitor.fault().is_some()),
            ),
        ];
        for (name, help, value) in sums {
            gauge(encoder, name, help, value)?;
        }
        let mut family = encoder.encode_descriptor(
            "core_stalls",
            "Number of stalls of a serving thread of a second or longer",
            None,
            MetricType::Counter,
        )?;
        for stalls in self.0.turns.stalls() {
            let labels = [("core", stalls.core.to_string())];
            line(&mut family, &labels, ConstCounter::new(stalls.count))?;
        }
        let mut family = encoder.encode_descriptor(
            "core_stalled_seconds",
            "Duration of a serving thread's current stall, if it is a second or longer",
            None,
            MetricType::Gauge,
        )?;
        for stalls in self.0.turns.stalls() {
            let labels = [("core", stalls.core.to_string())];
            let seconds = stalls.current.unwrap_or_default().as_secs_f64();
            line(&mut family, &labels, ConstGauge::new(seconds))?;
        }
        let mut family =
            encoder.encode_descriptor("table_rows", "Base rows", None, MetricType::Gauge)?;
        for table in figures.tables.iter().filter(|table| !table.computed) {
            let name = String::from_utf8_lossy(&table.name).into_owned();
            let labels = [("table", name)];
            line(&mut family, &labels, ConstGauge::new(table.rows as i64))?;
        }
        type Value = fn(&JoinInfo) -> u64;
        let gauges: [(&str, &str, Value); 4] = [
            ("join_rows", "Rows that a join has computed", |join| {
                join.rows
            }),
            ("join_ranges", "Filled ranges of a join", |join| {
                join.ranges as u64
            }),
            (
                "join_updaters",
                "Source ranges whose changes are propagated to a join",
                |join| join.updaters as u64,
            ),
            ("join_memory_bytes", "Memory of a join", |join| {
                join.memory_bytes as u64
            }),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for join in &figures.joins {
                let labels = [("join", join.name.as_str())];
                line(&mut family, &labels, ConstGauge::new(value(join) as i64))?;
            }
        }
        type OfSpace = fn(&SpaceStats) -> u64;
        let gauges: [(&str, &str, OfSpace); 4] = [
            ("space_objects", "Objects in a space", |it| it.objects),
            (
                "space_memory_bytes",
                "Memory of a space's indexes and copies",
                |it| it.memory_bytes,
            ),
            (
                "space_failures",
                "Fields whose values do not have the type of their attribute",
                |it| it.failures,
            ),
            (
                "space_left",
                "Objects that a space has yet to index",
                |it| it.unindexed,
            ),
        ];
        for (name, help, value) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for space in &figures.spaces {
                let labels = [("space", space.name.as_str())];
                line(&mut family, &labels, ConstGauge::new(value(space) as i64))?;
            }
        }
        let counters: [(&str, &str, Value); 3] = [
            (
                "join_fills",
                "Number of fills of ranges of a join",
                |join| join.filled,
            ),
            (
                "join_evictions",
                "Number of evictions of ranges of a join",
                |join| join.evicted,
            ),
            (
                "join_rows_left_out",
                "Rows that a join omitted because a value to be aggregated is not a number",
                |join| join.left_out,
            ),
        ];
        for (name, help, value) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for join in &figures.joins {
                let labels = [("join", join.name.as_str())];
                line(&mut family, &labels, ConstCounter::new(value(join)))?;
            }
        }
        Ok(())
    }

    fn cluster(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(membership) = &self.0.membership else {
            return Ok(());
        };
        let view = membership.view();
        let served: u32 = (view.lookup.served_ranges().iter())
            .map(|it| it.slots.count())
            .sum();
        for (name, help, value) in [
            (
                "cluster_epoch",
                "Epoch of this node's cluster map",
                view.map.epoch().0,
            ),
            (
                "cluster_slots_served",
                "Slots whose owner is up, of 16384",
                u64::from(served),
            ),
            (
                "cluster_slots_owned",
                "Slots that this node owns",
                u64::from(view.slots_owned()),
            ),
            (
                "cluster_up",
                "1 while this node is up in the cluster map",
                u64::from(view.is_up()),
            ),
        ] {
            gauge(encoder, name, help, value)?;
        }
        let Some(health) = membership.health() else {
            return Ok(());
        };
        let leads = health
            .state
            .leader
            .as_ref()
            .is_some_and(|it| it.name == health.name.as_str());
        for (name, help, value) in [
            (
                "cluster_controller",
                "1 while this node is the controller",
                u64::from(leads),
            ),
            (
                "cluster_lease_left_milliseconds",
                "Remaining time of this node's lease",
                health.lease_left_ms(&view),
            ),
            (
                "cluster_etcd_silent",
                "1 while etcd does not answer this node",
                u64::from(health.etcd_error.is_some()),
            ),
            (
                "cluster_blocked",
                "Number of problems that need an operator",
                health.state.blocked.len() as u64,
            ),
        ] {
            gauge(encoder, name, help, value)?;
        }
        let mut family = encoder.encode_descriptor(
            "cluster_clock_ahead_milliseconds",
            "Time by which another node's clock is ahead of this node's; negative if it is behind",
            None,
            MetricType::Gauge,
        )?;
        for (node, skew) in membership.clocks() {
            let labels = [("node", node.to_string())];
            line(&mut family, &labels, ConstGauge::new(skew.ahead_ms))?;
        }
        let (replicas, figures) = (view.replicas(), self.0.tables.stats().replication);
        for (name, help, value) in [
            (
                "cluster_replicas_in_sync",
                "Replicas in sync of the slots that this node owns, counted per slot",
                replicas.in_sync,
            ),
            (
                "cluster_replicas_filling",
                "Replicas of own slots that are being filled",
                replicas.filling,
            ),
            (
                "cluster_replicas_lacking",
                "Required replicas of own slots that are not in sync",
                replicas.missing,
            ),
            (
                "cluster_unacknowledged_changes",
                "Changes of own slots that replicas in sync have not acknowledged",
                figures.unacknowledged,
            ),
            (
                "cluster_unacknowledged_bytes",
                "Bytes of these changes",
                figures.unacknowledged_bytes,
            ),
        ] {
            gauge(encoder, name, help, value)?;
        }
        for (name, help, value) in [
            (
                "cluster_replicas_filled",
                "Completed fills of replicas of own slots",
                figures.filled,
            ),
            (
                "cluster_fillings_begun_anew",
                "Fills that were restarted because writes were faster",
                figures.fill_restarts,
            ),
            (
                "cluster_acknowledgements",
                "Messages with changes that replicas have acknowledged",
                figures.acknowledged,
            ),
            (
                "cluster_acknowledgement_milliseconds",
                "Sum of the latencies of acknowledged messages, including the replica's journal",
                figures.latency_sum_ms,
            ),
            (
                "cluster_etcd_requests",
                "Requests that this node has sent to etcd",
                membership.etcd_requests(),
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        Ok(())
    }

    fn postgres(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(postgres) = &self.0.postgres else {
            return Ok(());
        };
        let stats = postgres.stats();
        gauge(
            encoder,
            "postgres_streaming",
            "1 while changes from PostgreSQL are received",
            u64::from(stats.is_streaming()),
        )?;
        let mut family = encoder.encode_descriptor(
            "postgres_table_up",
            "1 if the mapped table could be read and replicated at the last check",
            None,
            MetricType::Gauge,
        )?;
        for (name, fault) in stats.tables() {
            let labels = [("table", name.as_str())];
            line(
                &mut family,
                &labels,
                ConstGauge::new(i64::from(fault.is_none())),
            )?;
        }
        for (name, help, value) in stats.figures() {
            let name = format!("postgres_{name}");
            if larder_postgres::GAUGES.contains(&&name["postgres_".len()..]) {
                gauge(encoder, &name, help, value)?;
            } else {
                let metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
                ConstCounter::new(value).encode(metric)?;
            }
        }
        Ok(())
    }

    fn pulls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (ended, running) = (self.0.pulls.ended_counts(), self.0.pulls.all_running());
        let mut family = encoder.encode_descriptor(
            "pulls",
            "Ended pulls, by store and final state",
            None,
            MetricType::Counter,
        )?;
        for ((store, state), count) in &ended {
            let labels = [("store", store.as_str()), ("state", *state)];
            line(&mut family, &labels, ConstCounter::new(*count))?;
        }
        for (name, help, done) in [
            (
                "pull_done_bytes",
                "Bytes that a running pull has fetched",
                true,
            ),
            (
                "pull_total_bytes",
                "Bytes of the version that is being pulled",
                false,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for pull in &running {
                let value = if done {
                    pull.bytes_done
                } else {
                    pull.bytes_total
                };
                let labels = [("store", pull.store.as_str())];
                line(&mut family, &labels, ConstGauge::new(value as i64))?;
            }
        }
        let fetched = self.0.pulls.fetched_bytes();
        let metric = encoder.encode_descriptor(
            "fetched_bytes",
            "Bytes fetched by all pulls",
            None,
            MetricType::Counter,
        )?;
        ConstCounter::new(fetched).encode(metric)?;
        let throttle = &self.0.pulls.throttle;
        let budget = throttle.figures();
        let passed_bytes = budget.passed_bytes + throttle.local_figures().passed_bytes;
        let mut counter = |name, help, value| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)
        };
        counter(
            "background_bytes",
            "Bytes processed by background work on stores: fetched, verified, warmed",
            passed_bytes,
        )?;
        counter(
            "background_yields",
            "Number of times that background work halved its share because reads waited",
            budget.yielded_count,
        )?;
        let metric = encoder.encode_descriptor(
            "background_share",
            "Share of time and rates that background work uses, from 0.1 to 1",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(budget.share).encode(metric)
    }
}

/// Ended pulls, by store and final state.
pub type EndedCounts = BTreeMap<(StoreName, &'static str), u64>;

fn line(
    family: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    metric: impl EncodeMetric,
) -> fmt::Result {
    metric.encode(family.encode_family(labels)?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value as i64).encode(metric)
}

/// One bucket per power of two from about a microsecond to a few seconds: (end in seconds, calls in this bucket alone). The
/// counters have four times as many buckets, more than plots need.
fn coarse_buckets(series: &SeriesSnapshot) -> Vec<(f64, u64)> {
    const END_NS_MIN: u64 = 1 << 10;
    const END_NS_MAX: u64 = 1 << 33;
    let mut buckets = Vec::new();
    let mut before = 0;
    for (end_ns, below) in series.cumulative() {
        if end_ns.is_power_of_two() && (END_NS_MIN..=END_NS_MAX).contains(&end_ns) {
            buckets.push((end_ns as f64 / 1e9, below - before));
            before = below;
        }
    }
    buckets.push((f64::INFINITY, series.calls().saturating_sub(before)));
    buckets
}
