//! Measures node failures and network partitions: the time for which the keys of the affected node are unavailable, and
//! the lost writes, compared with Redis Cluster.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::nodes::Nodes;
use super::probes::{self, Fault, Outcome, Owners, Probe, ProbeKind, ProbeResult, Service, Target};
use super::redis::Redis;
use crate::net::services;
use crate::report;
use crate::{Result, process, server, store};

const READ_BAR_S: f64 = 2.0;
const WRITE_BAR_S: f64 = 5.0;
/// The default timeout of Redis Cluster.
const REDIS_TIMEOUT: Duration = Duration::from_secs(15);
/// Decreasing timeouts, which are tried until the cluster changes masters without a failure.
const REDIS_TIMEOUTS_MS: [u64; 4] = [1_000, 500, 250, 100];
/// The duration for which the cluster must be stable under the same load with a timeout, without any fault.
const STABLE_TIME: Duration = Duration::from_secs(6);
/// The time by which a fault exceeds the time to detect it.
const FAULT_MARGIN: Duration = Duration::from_secs(2);

#[derive(Args)]
pub struct ClusterFailoverArgs {
    /// Number of kills and of partitions, with larder's default lease and with Redis's shortest timeout
    #[arg(long, default_value_t = 10)]
    faults: usize,
    /// Number of kills and of partitions with larder's shortest lease, and with Redis's default timeout
    #[arg(long, default_value_t = 2)]
    few: usize,
    /// Leases of larder in seconds: the default one and the shortest one; 0 skips larder
    #[arg(long, value_delimiter = ',', default_value = "5,2")]
    leases: Vec<u64>,
    /// Skip Redis
    #[arg(long)]
    no_redis: bool,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The results for a system with one of its settings.
struct SystemResults {
    title: String,
    is_larder: bool,
    probes: Vec<Probe>,
    killed: Vec<Outcome>,
    partitioned: Vec<Outcome>,
}

pub fn run(args: &ClusterFailoverArgs) -> Result<()> {
    let binary = process::larder_binary(args.larder.as_deref())?;
    let folder = tempfile::tempdir()?;
    let mut raw = Vec::new();
    let mut found = Vec::new();
    for (at, &lease) in args
        .leases
        .iter()
        .enumerate()
        .filter(|(_, lease)| **lease > 0)
    {
        let faults = if at == 0 { args.faults } else { args.few };
        let folder = folder.path().join(format!("lease-{lease}"));
        found.push(measure_larder(&binary, &folder, lease, faults, &mut raw)?);
    }
    match services::find("redis-server").filter(|_| !args.no_redis) {
        Some(program) => found.extend(measure_redis(&program, folder.path(), args, &mut raw)?),
        None => eprintln!("without Redis"),
    }
    report::keep(
        args.out.as_deref(),
        "cluster-failover",
        &markdown(&found)?,
        &raw,
    )
}

fn measure_larder(
    binary: &Path,
    folder: &Path,
    lease: u64,
    faults: usize,
    raw: &mut Vec<Value>,
) -> Result<SystemResults> {
    let settings = [
        "tables.replicas=2".to_owned(),
        format!("cluster.lease_seconds={lease}"),
    ];
    let mut nodes = Nodes::start(binary, folder, 3, &settings, true)?;
    let version = folder.join("version");
    store::build(&version, probes::RECORDS, b'A')?;
    server::publish_at(nodes.http(0), &version)?;
    let whats = [
        ProbeKind::ReadRow,
        ProbeKind::ReadRecord,
        ProbeKind::WriteRow,
    ];
    let ways = [Target::Survivor, Target::Rust];
    let probes = whats.into_iter().flat_map(|what| {
        ways.map(|way| Probe {
            target: way,
            kind: what,
        })
    });
    let mut found = SystemResults {
        title: format!("larder, lease of {lease} s"),
        is_larder: true,
        probes: probes.collect(),
        killed: Vec::new(),
        partitioned: Vec::new(),
    };
    let lasts = Duration::from_secs(lease) + FAULT_MARGIN;
    found.run_faults(&mut nodes, faults, lasts, raw)?;
    Ok(found)
}

fn measure_redis(
    program: &Path,
    folder: &Path,
    args: &ClusterFailoverArgs,
    raw: &mut Vec<Value>,
) -> Result<Vec<SystemResults>> {
    let mut redis = Redis::start(program, &folder.join("redis"), REDIS_TIMEOUT)?;
    let probes = [ProbeKind::ReadRow, ProbeKind::WriteRow].map(|what| Probe {
        target: Target::Owner,
        kind: what,
    });
    let mut borne = Vec::new();
    for ms in REDIS_TIMEOUTS_MS {
        let timeout = Duration::from_millis(ms);
        redis.set_timeout(timeout)?;
        let before = redis.elections()?;
        let outcome = probes::run_fault(&mut redis, Fault::Nothing, 0, STABLE_TIME, &probes)?;
        let failed: usize = outcome.probe_results.iter().map(|seen| seen.failed).sum();
        let elections = redis.elections()? - before;
        record(
            raw,
            json!({"system": "Redis Cluster", "timeout_ms": ms, "fault": "none", "elections": elections, "failed": failed}),
        );
        if elections > 0 || failed > 0 {
            break;
        }
        borne.push(timeout);
    }
    let mut play =
        |redis: &mut Redis, timeout: Duration, which: &str, faults| -> Result<SystemResults> {
            redis.set_timeout(timeout)?;
            let seconds = timeout.as_secs_f64();
            let mut found = SystemResults {
                title: format!("Redis Cluster, time-out of {seconds} s, {which}"),
                is_larder: false,
                probes: probes.to_vec(),
                killed: Vec::new(),
                partitioned: Vec::new(),
            };
            found.run_faults(redis, faults, timeout + FAULT_MARGIN, raw)?;
            Ok(found)
        };
    let mut found = Vec::new();
    if args.few > 0 {
        found.push(play(&mut redis, REDIS_TIMEOUT, "the default", args.few)?);
    }
    // Use the shortest timeout with which all slots are served again after each fault.
    while let Some(timeout) = borne.pop() {
        match play(
            &mut redis,
            timeout,
            "the shortest that it bore",
            args.faults,
        ) {
            Ok(it) => {
                found.push(it);
                break;
            }
            Err(error) => {
                let ms = timeout.as_millis();
                eprintln!("Redis Cluster with a time-out of {ms} ms: {error}");
                let folder = folder.join(format!("redis-{ms}"));
                redis = Redis::start(program, &folder, REDIS_TIMEOUT)?;
            }
        }
    }
    Ok(found)
}

fn record(raw: &mut Vec<Value>, line: Value) {
    eprintln!("{line}");
    raw.push(line);
}

impl SystemResults {
    /// Kills nodes that own slots, one after another, and then partitions nodes, `faults` times each.
    fn run_faults(
        &mut self,
        service: &mut dyn Service,
        faults: usize,
        lasts: Duration,
        raw: &mut Vec<Value>,
    ) -> Result<()> {
        for (fault, name) in [(Fault::Kill, "killed"), (Fault::Cut, "cut off")] {
            for turn in 0..faults {
                let addresses = service.addresses();
                let owners = Owners::from_nodes(&addresses)?.all();
                let owner = &owners[turn % owners.len()];
                let node = addresses.iter().position(|address| address == owner);
                let node = node.ok_or("an owner is none of the nodes")?;
                let outcome = probes::run_fault(service, fault, node, lasts, &self.probes)?;
                record(raw, self.to_json(name, turn, node, &outcome));
                match fault {
                    Fault::Kill => self.killed.push(outcome),
                    _ => self.partitioned.push(outcome),
                }
            }
        }
        Ok(())
    }

    fn to_json(&self, fault: &str, turn: usize, node: usize, outcome: &Outcome) -> Value {
        let probes = self.probes.iter().zip(&outcome.probe_results).map(|(probe, seen)| {
            json!({
                "probe": probe.title(), "unanswered_s": seen.unanswered_s, "failed": seen.failed,
                "unanswered_back_s": seen.unanswered_back_s, "failed_back": seen.failed_back,
            })
        });
        json!({
            "system": self.title, "fault": fault, "turn": turn, "node": node, "acknowledged": outcome.acknowledged, "lost": outcome.lost,
            "back_s": outcome.back_s, "probes": probes.collect::<Vec<_>>(),
        })
    }
}

fn markdown(found: &[SystemResults]) -> Result<String> {
    let mut text = String::from(
        "## Nodes that die, and nodes that are cut off\n\n\
         | system | fault | times | clients | longest without an answer, s | requests failed | when it was back, s | failed then |\n|---|---|---|---|---|---|---|---|\n",
    );
    let spread = |outcomes: &[Outcome], of: &dyn Fn(&Outcome) -> f64| {
        let all: Vec<f64> = outcomes.iter().map(of).collect();
        report::spread(&all, 2)
    };
    for system in found {
        for (fault, outcomes) in system.faults() {
            for (at, probe) in system.probes.iter().enumerate() {
                let sum = |of: fn(&ProbeResult) -> usize| -> usize {
                    outcomes.iter().map(|it| of(&it.probe_results[at])).sum()
                };
                writeln!(
                    text,
                    "| {} | {fault} | {} | {} | {} | {} | {} | {} |",
                    system.title,
                    outcomes.len(),
                    probe.title(),
                    spread(outcomes, &|it| it.probe_results[at].unanswered_s),
                    sum(|seen| seen.failed),
                    spread(outcomes, &|it| it.probe_results[at].unanswered_back_s),
                    sum(|seen| seen.failed_back),
                )?;
            }
        }
    }
    text += "\n| system | fault | times | writes acknowledged | of those lost | at rest again after, s |\n|---|---|---|---|---|---|\n";
    for system in found {
        for (fault, outcomes) in system.faults() {
            let sum = |of: fn(&Outcome) -> usize| -> usize { outcomes.iter().map(of).sum() };
            writeln!(
                text,
                "| {} | {fault} | {} | {} | {} | {} |",
                system.title,
                outcomes.len(),
                sum(|it| it.acknowledged),
                sum(|it| it.lost),
                spread(outcomes, &|it| it.back_s),
            )?;
        }
    }
    text += "\n| bar | measured, the longest | bar | |\n|---|---|---|---|\n";
    for system in found.iter().filter(|system| system.is_larder) {
        text += &bars(system);
    }
    write!(
        text,
        "\nThree nodes of larder with `tables.replicas = 2`; three masters and three replicas of Redis without persistence. All processes share the machine's cores. \
         Longest unavailability: the time between two replies for one key of the faulty node, of {} keys that each client requests in turn; median (minimum-maximum) over the faults. \
         A node is killed with SIGKILL and started again, or partitioned from all other nodes and from etcd by proxies, but not from its clients, and reconnected: when all keys had \
         replies again and the fault was detected. The counted writes are of rows that are written once, about {} per second at the faulty node while it accepts them, and as \
         many at the owners; rows that are missing after the cluster has settled are lost. With Redis, clients request the owner from the survivors after each failure; \
         a time-out counts as tolerated if there is no election in {} s without a fault, and all slots are served again after each of the faults.\n\nCommand: `{}`\n",
        probes::KEYS,
        probes::WRITES_A_SECOND,
        STABLE_TIME.as_secs(),
        report::command()
    )?;
    Ok(text)
}

impl SystemResults {
    fn faults(&self) -> [(&'static str, &[Outcome]); 2] {
        [("killed", &self.killed), ("cut off", &self.partitioned)]
    }
}

/// Returns the targets for larder, and whether they were met.
fn bars(system: &SystemResults) -> String {
    let mut text = String::new();
    let title = &system.title;
    let all = || system.killed.iter().chain(&system.partitioned);
    for (at, probe) in system.probes.iter().enumerate() {
        let longest = system
            .killed
            .iter()
            .map(|it| it.probe_results[at].unanswered_s);
        let longest = longest.fold(0.0, f64::max);
        let failed: usize = system
            .killed
            .iter()
            .map(|it| it.probe_results[at].failed)
            .sum();
        let what = probe.title();
        let (bar, is_met) = match (probe.kind, probe.target) {
            (ProbeKind::WriteRow, _) => (format!("<= {WRITE_BAR_S} s"), longest <= WRITE_BAR_S),
            (_, Target::Rust) => ("none fails".to_owned(), failed == 0),
            _ => (format!("<= {READ_BAR_S} s"), longest <= READ_BAR_S),
        };
        text += &format!(
            "| {title}, node failure: {what} | {longest:.2} s, {failed} failed | {bar} | {} |\n",
            report::verdict(is_met)
        );
    }
    let lost: usize = all().map(|it| it.lost).sum();
    text += &format!(
        "| {title}: acknowledged writes lost | {lost} | 0 | {} |\n",
        report::verdict(lost == 0)
    );
    text
}
