//! INFO: one function for each section, based on statistics that exist anyway.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use larder_protocol::resp::Request;

use super::super::state::ConnectionState;
use crate::Shared;
use crate::catalog::{Cause, Snapshot};
use crate::clients::Client;

/// The Redis version whose behavior larder follows. Some clients select their protocol by it.
pub(in crate::resp) const REDIS_VERSION: &str = "7.4.0";

type Section = fn(&ConnectionState, &Snapshot) -> String;

const SECTIONS: &[(&str, Section)] = &[
    ("server", info_server),
    ("clients", info_clients),
    ("memory", info_memory),
    ("persistence", |_, _| {
        "loading:0\r\nrdb_changes_since_last_save:0\r\naof_enabled:0\r\n".to_owned()
    }),
    ("stats", info_stats),
    ("replication", |_, _| REPLICATION.to_owned()),
    ("cpu", info_cpu),
    ("modules", |_, _| super::modules::info_modules()),
    ("stores", info_stores),
    ("background", info_background),
    ("tables", info_tables),
    ("joins", info_joins),
    ("spaces", info_spaces),
    ("search", info_search),
    ("postgres", info_postgres),
    ("errorstats", info_errorstats),
    ("commandstats", info_commandstats),
    ("latencystats", info_latencystats),
    ("cluster", info_cluster),
    ("keyspace", info_keyspace),
];

/// Sections shown only on request, or with `all` and `everything`.
const EXTRA: [&str; 2] = ["commandstats", "latencystats"];

pub(in crate::resp) fn info(
    state: &mut ConnectionState,
    snapshot: &Snapshot,
    request: Request<'_>,
) {
    let filter = SectionFilter::of(request);
    state.core.tables.publish_stats();
    let mut text = String::new();
    for (name, section) in SECTIONS {
        if filter.includes(name) {
            add_section(&mut text, name, &section(state, snapshot));
        }
    }
    state.encoder().verbatim(&text);
}

/// Returns the sections that need no serving thread, and the progress of loading.
pub(in crate::resp) fn info_while_loading(
    shared: &Shared,
    client: &Client,
    request: Request<'_>,
) -> String {
    let filter = SectionFilter::of(request);
    let loading = &shared.loading;
    let (bytes, bytes_total) = loading.bytes();
    let persistence = lines(&[
        ("loading", &1),
        ("async_loading", &0),
        ("loading_total_bytes", &bytes_total),
        ("loading_loaded_bytes", &bytes),
        ("loading_loaded_perc", &loading.percent()),
        ("larder_loading", &loading.describe().unwrap_or_default()),
        ("rdb_changes_since_last_save", &0),
        ("aof_enabled", &0),
    ]);
    let mut text = String::new();
    for (name, section) in [
        ("server", server_lines(shared, client)),
        ("persistence", persistence),
        ("replication", REPLICATION.to_owned()),
    ] {
        if filter.includes(name) {
            add_section(&mut text, name, &section);
        }
    }
    text
}

const REPLICATION: &str = "role:master\r\nconnected_slaves:0\r\n";

/// The sections requested from INFO, in lower case. If empty, the default sections are shown.
struct SectionFilter(Vec<String>);

impl SectionFilter {
    fn of(request: Request<'_>) -> SectionFilter {
        let names = request.args().skip(1);
        SectionFilter(
            names
                .map(|name| String::from_utf8_lossy(name).to_ascii_lowercase())
                .collect(),
        )
    }

    fn includes(&self, name: &str) -> bool {
        let lists = |section: &str| self.0.iter().any(|listed| listed == section);
        let default = (self.0.is_empty() || lists("default")) && !EXTRA.contains(&name);
        default || lists(name) || lists("all") || lists("everything")
    }
}

fn add_section(text: &mut String, name: &str, section: &str) {
    if !text.is_empty() {
        text.push_str("\r\n");
    }
    let title = name[..1].to_ascii_uppercase() + &name[1..];
    let _ = write!(text, "# {title}\r\n{section}");
}

fn lines(pairs: &[(&str, &dyn std::fmt::Display)]) -> String {
    pairs.iter().fold(String::new(), |text, (name, value)| {
        text + &format!("{name}:{value}\r\n")
    })
}

/// Reports the limits and the resource use of background work on stores.
fn info_background(state: &ConnectionState, _: &Snapshot) -> String {
    let throttle = &state.core.shared.pulls.throttle;
    let (budget, local) = (throttle.figures(), throttle.local_figures());
    let passed_bytes = budget.passed_bytes + local.passed_bytes;
    lines(&[
        ("background_bytes_per_second", &budget.bytes_per_second),
        (
            "background_verify_bytes_per_second",
            &local.bytes_per_second,
        ),
        ("background_share_percent", &(budget.share * 100.0).round()),
        ("background_waiting", &(budget.waiting + local.waiting)),
        ("background_bytes", &passed_bytes),
        ("background_fetched_bytes", &budget.passed_bytes),
        ("background_verified_bytes", &local.passed_bytes),
        ("background_yields", &budget.yielded_count),
        ("background_hot_keys", &state.core.shared.hot_keys.warmed()),
    ])
}

fn info_cluster(state: &ConnectionState, _: &Snapshot) -> String {
    let Some(membership) = &state.core.shared.membership else {
        return lines(&[("cluster_enabled", &0)]);
    };
    let view = membership.view();
    let own = view.own();
    let mut text = lines(&[
        ("cluster_enabled", &1),
        ("cluster_name", &view.map.cluster()),
        ("cluster_epoch", &view.map.epoch()),
        ("cluster_node", &own.map_or("", |it| it.name().as_str())),
        (
            "cluster_state",
            &own.map_or("absent", |it| it.display_state()),
        ),
    ]);
    if let Some(health) = membership.health() {
        let leader = health.state.leader.as_ref();
        let one_line = |text: Option<String>| text.unwrap_or_default().replace(['\r', '\n'], " ");
        text += &lines(&[
            ("cluster_controller", &leader.map_or("", |it| &it.name)),
            ("cluster_lease_left_ms", &health.lease_left_ms(&view)),
            ("cluster_missing", &one_line(health.readiness_error(&view))),
            (
                "cluster_etcd_trouble",
                &one_line(health.etcd_warning(&view)),
            ),
            (
                "cluster_unreached",
                &one_line(Some(health.describe_unreached(&view).join("; "))),
            ),
            ("cluster_blocked", &health.state.blocked.len()),
            ("cluster_etcd_requests", &membership.etcd_requests()),
        ]);
        let (replicas, figures) = (view.replicas(), state.core.shared.tables.stats());
        let figures = figures.replication;
        text += &lines(&[
            ("cluster_slots_owned", &view.slots_owned()),
            ("cluster_replicas_in_sync", &replicas.in_sync),
            ("cluster_replicas_filling", &replicas.filling),
            ("cluster_replicas_lacking", &replicas.missing),
            ("cluster_replicas_filled", &figures.filled),
            ("cluster_fillings_begun_anew", &figures.fill_restarts),
            ("cluster_unacknowledged_changes", &figures.unacknowledged),
            (
                "cluster_unacknowledged_bytes",
                &figures.unacknowledged_bytes,
            ),
            ("cluster_acknowledgements", &figures.acknowledged),
            ("cluster_acknowledgement_ms", &figures.latency_sum_ms),
        ]);
    }
    text
}

fn info_server(state: &ConnectionState, _: &Snapshot) -> String {
    server_lines(&state.core.shared, &state.client)
}

fn server_lines(shared: &Shared, client: &Client) -> String {
    let uptime = shared.started_at.elapsed().as_secs();
    let config = &shared.config;
    lines(&[
        ("redis_version", &REDIS_VERSION),
        ("redis_mode", &shared.mode()),
        ("larder_version", &env!("CARGO_PKG_VERSION")),
        ("os", &std::env::consts::OS),
        ("arch_bits", &usize::BITS),
        ("process_id", &std::process::id()),
        ("tcp_port", &client.local_addr.port()),
        ("io_threads", &crate::stats::thread_count(config)),
        ("uptime_in_seconds", &uptime),
        ("uptime_in_days", &(uptime / 86_400)),
        // Clients of Valkey that prefer their own zone read it from this field.
        ("availability_zone", &config.cluster.zone),
    ])
}

fn info_clients(state: &ConnectionState, _: &Snapshot) -> String {
    let figures = &state.core.clients.figures;
    lines(&[
        ("connected_clients", &state.core.clients.len()),
        (
            "maxclients",
            &state.core.shared.descriptors.resp_connections(),
        ),
        ("blocked_clients", &0),
        (
            "tracking_clients",
            &state.core.shared.tables.tracking.clients(),
        ),
        ("clients_memory_bytes", &figures.memory_bytes.load(Relaxed)),
    ])
}

fn info_memory(state: &ConnectionState, snapshot: &Snapshot) -> String {
    let index: usize = snapshot
        .iter()
        .map(|live| live.version.index_memory_bytes())
        .sum();
    let mapped: u64 = snapshot
        .iter()
        .map(|live| live.version.residency().resident_bytes)
        .sum();
    let rss = resident_set_bytes().unwrap_or(0);
    lines(&[
        ("used_memory", &rss),
        ("used_memory_rss", &rss),
        ("store_index_bytes", &index),
        ("store_resident_bytes", &mapped),
        ("maxmemory", &0),
        ("maxmemory_policy", &"noeviction"),
        (
            "mem_clients_normal",
            &state.core.clients.figures.memory_bytes.load(Relaxed),
        ),
        ("maxmemory_clients", &state.core.clients.limits.total_bytes),
        (
            "maxmemory_client",
            &state.core.clients.limits.per_client_bytes,
        ),
    ])
}

/// Returns the process's resident memory. Mapped files count as far as they are in memory.
fn resident_set_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn info_stats(state: &ConnectionState, _: &Snapshot) -> String {
    let figures = &state.core.clients.figures;
    let all = state.core.shared.stats.since_reset();
    let keys: u64 = all.series.iter().map(|series| series.keys).sum();
    let misses: u64 = all.series.iter().map(|series| series.misses).sum();
    let errors: u64 = all.series.iter().map(|series| series.errors).sum();
    lines(&[
        ("total_connections_received", &all.connections_accepted),
        ("rejected_connections", &all.connections_rejected),
        ("total_commands_processed", &all.calls()),
        ("total_net_input_bytes", &all.bytes_in),
        ("total_net_output_bytes", &all.bytes_out),
        ("keyspace_hits", &(keys.saturating_sub(misses))),
        ("keyspace_misses", &misses),
        ("total_error_replies", &errors),
        (
            "acl_access_denied_auth",
            &state.core.shared.guess_limiter.wrong.load(Relaxed),
        ),
        (
            "passwords_not_looked_at",
            &state.core.shared.guess_limiter.refused.load(Relaxed),
        ),
        ("protocol_errors", &all.protocol_errors),
        ("http_refused", &all.http_refused),
        ("disk_reads", &all.disk_reads),
        ("expired_keys", &0),
        ("evicted_keys", &0),
        ("evicted_clients", &figures.closed_evicted.load(Relaxed)),
        (
            "tracking_total_keys",
            &state.core.shared.tables.tracking.keys(),
        ),
        (
            "client_memory_limit_disconnections",
            &figures.closed_too_large.load(Relaxed),
        ),
        (
            "client_unread_disconnections",
            &figures.closed_unread.load(Relaxed),
        ),
        (
            "client_answer_lost_disconnections",
            &figures.closed_reply_lost.load(Relaxed),
        ),
    ])
}

/// Reports the processor time of the complete process, in seconds.
fn info_cpu(_: &ConnectionState, _: &Snapshot) -> String {
    let [user, system, children_user, children_system] = cpu_seconds().unwrap_or_default();
    format!(
        "used_cpu_sys:{system:.6}\r\nused_cpu_user:{user:.6}\r\nused_cpu_sys_children:{children_system:.6}\r\n\
         used_cpu_user_children:{children_user:.6}\r\n"
    )
}

/// Returns the processor time in seconds: user and system time of the process, then of its terminated children.
fn cpu_seconds() -> Option<[f64; 4]> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name, in parentheses, may contain any characters.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11);
    let mut next = || {
        let ticks: f64 = fields.next()?.parse().ok()?;
        Some(ticks / rustix::param::clock_ticks_per_second() as f64)
    };
    Some([next()?, next()?, next()?, next()?])
}

fn info_errorstats(state: &ConnectionState, _: &Snapshot) -> String {
    let counts = state.core.shared.stats.since_reset().error_replies;
    counts.iter().fold(String::new(), |text, (prefix, count)| {
        text + &format!("errorstat_{prefix}:count={count}\r\n")
    })
}

fn info_stores(_: &ConnectionState, snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for live in snapshot.iter() {
        let manifest = live.version.manifest();
        let _ = write!(
            text,
            "store_{}:version={},records={},size_bytes={},resident_bytes={},partitions={},status=live\r\n",
            live.name,
            live.version_id,
            manifest.record_count,
            manifest.size_bytes,
            live.version.residency().resident_bytes,
            manifest.partitions,
        );
    }
    for why in snapshot.unavailable() {
        let status = match why.cause {
            Cause::Damaged => "corrupted",
            Cause::Unreadable => "unreadable",
            Cause::NotLive | Cause::CutOff => "empty",
        };
        let version = why.version_id.map_or(0, |version| version.0);
        let _ = write!(
            text,
            "store_{}:version={version},status={status}\r\n",
            why.name
        );
    }
    text
}

fn info_tables(state: &ConnectionState, _: &Snapshot) -> String {
    let figures = state.core.shared.tables.stats();
    let config = &state.core.shared.config.tables;
    let writes = match state.core.shared.tables.refusal() {
        None => "ok".to_owned(),
        Some((_, why)) => format!("refused: {}", why.replace(char::is_control, " ")),
    };
    let snapshot = match &figures.snapshot_failure {
        None => "ok".to_owned(),
        Some(why) => format!("failed: {}", why.replace(char::is_control, " ")),
    };
    let mut text = lines(&[
        ("tables_rows", &figures.rows),
        ("tables_memory_bytes", &figures.memory_bytes),
        ("tables_memory_limit_bytes", &config.memory.0),
        ("tables_values_on_disk_bytes", &figures.disk.used_bytes),
        ("tables_value_file_bytes", &figures.disk.file_bytes),
        ("tables_values_disk_refused", &figures.disk.refused),
        ("tables_visited_at_once", &figures.visited_per_step_max),
        ("tables_fsync", &config.fsync),
        ("tables_log_bytes", &figures.log_bytes),
        ("tables_snapshot_bytes", &figures.snapshot_bytes),
        ("tables_last_snapshot", &snapshot),
        ("tables_writes", &writes),
    ]);
    for table in figures.tables.iter().filter(|table| !table.computed) {
        // The separator is dropped. A name may contain any character but a separator.
        let name = String::from_utf8_lossy(&table.name[..table.name.len() - 1]);
        let name = name.replace(char::is_control, "?");
        let _ = write!(text, "table_{name}:rows={}\r\n", table.rows);
    }
    text
}

fn info_postgres(state: &ConnectionState, _: &Snapshot) -> String {
    let Some(postgres) = &state.core.shared.postgres else {
        return "postgres_state:not configured\r\n".to_owned();
    };
    let stats = postgres.stats();
    let shown = stats.state().replace(char::is_control, " ");
    let mut text = format!("postgres_state:{shown}\r\n");
    for (name, _, value) in stats.figures() {
        match name {
            "position" => {
                let _ = write!(
                    text,
                    "postgres_{name}:{}\r\n",
                    larder_postgres::show_lsn(value)
                );
            }
            _ => {
                let _ = write!(text, "postgres_{name}:{value}\r\n");
            }
        }
    }
    for (name, fault) in stats.tables() {
        let fault = fault.unwrap_or_else(|| "ok".to_owned());
        let fault = fault.replace(char::is_control, " ");
        let _ = write!(text, "postgres_table_{name}:{fault}\r\n");
    }
    text
}

fn info_joins(state: &ConnectionState, _: &Snapshot) -> String {
    let joins = state.core.shared.tables.stats().joins;
    named_lines("join", joins, |join| {
        let figures = format!(
            "rows={},ranges={},filled={},evicted={},left_out={},updaters={},memory_bytes={}",
            join.rows,
            join.ranges,
            join.filled,
            join.evicted,
            join.left_out,
            join.updaters,
            join.memory_bytes,
        );
        (join.name, figures)
    })
}

fn info_spaces(state: &ConnectionState, _: &Snapshot) -> String {
    let spaces = state.core.shared.tables.stats().spaces;
    named_lines("space", spaces, |space| {
        let figures = format!(
            "objects={},memory_bytes={},failures={},left={}",
            space.objects, space.memory_bytes, space.failures, space.unindexed,
        );
        (space.name, figures)
    })
}

/// Appends a line for each user-named item. `describe` returns its name and its values.
fn named_lines<T>(
    what: &str,
    all: impl IntoIterator<Item = T>,
    describe: impl Fn(T) -> (String, String),
) -> String {
    let mut text = String::new();
    for (name, figures) in all.into_iter().map(describe) {
        let name = name.replace(char::is_control, "?");
        let _ = write!(text, "{what}_{name}:{figures}\r\n");
    }
    text
}

fn info_commandstats(state: &ConnectionState, _: &Snapshot) -> String {
    let mut text = String::new();
    for series in state.core.shared.stats.since_reset().by_command() {
        let (calls, us) = (series.calls(), series.total_ns as f64 / 1000.0);
        let _ = write!(
            text,
            "cmdstat_{}:calls={calls},usec={us:.0},usec_per_call={:.2},rejected_calls=0,failed_calls={},forwarded={}\r\n",
            series.command.to_ascii_lowercase(),
            us / calls.max(1) as f64,
            series.errors,
            series.forwarded,
        );
    }
    text
}

fn info_latencystats(state: &ConnectionState, _: &Snapshot) -> String {
    let mut text = String::new();
    for series in state.core.shared.stats.since_reset().by_command() {
        let us = |quantile: f64| series.quantile_ns(quantile) as f64 / 1000.0;
        let name = series.command.to_ascii_lowercase();
        let _ = write!(
            text,
            "latency_percentiles_usec_{name}:p50={:.3},p99={:.3},p99.9={:.3}\r\n",
            us(0.5),
            us(0.99),
            us(0.999)
        );
    }
    text
}

/// Reports the fields that monitoring tools read of Redis's search module, and the most work of a search in one turn of
/// this core.
fn info_search(state: &ConnectionState, _: &Snapshot) -> String {
    let tables = &state.core.shared.tables;
    let spaces = tables.stats().spaces;
    let memory: u64 = spaces.iter().map(|it| it.memory_bytes).sum();
    let documents: u64 = spaces.iter().map(|it| it.objects).sum();
    let failures: u64 = spaces.iter().map(|it| it.failures).sum();
    let indexing = spaces.iter().filter(|it| it.unindexed > 0).count();
    lines(&[
        ("search_number_of_indexes", &spaces.len()),
        (
            "search_number_of_indexes_running_background_indexing",
            &indexing,
        ),
        ("search_total_number_of_docs", &documents),
        ("search_used_memory_indexes", &memory),
        ("search_errors_indexing_failures", &failures),
        (
            "search_global_total_user_cursors",
            &tables.space_cursors.count(state.core.tables.now()),
        ),
        (
            "search_turn_work_max",
            &state.core.tables.spaces().work_max(),
        ),
        ("search_abandoned", &tables.abandoned_searches.load(Relaxed)),
    ])
}

fn info_keyspace(state: &ConnectionState, snapshot: &Snapshot) -> String {
    let records: u64 = snapshot
        .iter()
        .map(|live| live.version.manifest().record_count)
        .sum();
    let figures = state.core.shared.tables.stats();
    let records = records + figures.rows;
    if records == 0 {
        String::new()
    } else {
        let (expiring, now) = (figures.expiring, state.core.tables.now());
        let (expires, ttl) = (expiring.rows, expiring.average_ttl_ms(now));
        format!("db0:keys={records},expires={expires},avg_ttl={ttl}\r\n")
    }
}
