//! Measures node failures and network partitions: the time for which the keys of the affected node are unavailable, and
//! the lost writes, compared with Redis Cluster.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::nodes::Nodes;
use super::probes::{self, Fault, Outcome, Owners, Probe, Seen, Service, Way, What};
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
const BORNE_FOR: Duration = Duration::from_secs(6);
/// The time by which a fault exceeds the time to detect it.
const LASTS_MORE: Duration = Duration::from_secs(2);

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
struct Found {
    title: String,
    is_larder: bool,
    probes: Vec<Probe>,
    killed: Vec<Outcome>,
    cut: Vec<Outcome>,
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
        found.push(of_larder(&binary, &folder, lease, faults, &mut raw)?);
    }
    match services::find("redis-server").filter(|_| !args.no_redis) {
        Some(program) => found.extend(of_redis(&program, folder.path(), args, &mut raw)?),
        None => eprintln!("without Redis"),
    }
    report::keep(
        args.out.as_deref(),
        "cluster-failover",
        &text(&found)?,
        &raw,
    )
}

fn of_larder(
    binary: &Path,
    folder: &Path,
    lease: u64,
    faults: usize,
    raw: &mut Vec<Value>,
) -> Result<Found> {
    let settings = [
        "tables.replicas=2".to_owned(),
        format!("cluster.lease_seconds={lease}"),
    ];
    let mut nodes = Nodes::start(binary, folder, 3, &settings, true)?;
    let version = folder.join("version");
    store::build(&version, probes::RECORDS, b'A')?;
    server::publish_at(nodes.http(0), &version)?;
    let whats = [What::ReadRow, What::ReadRecord, What::WriteRow];
    let ways = [Way::Survivor, Way::Rust];
    let probes = whats
        .into_iter()
        .flat_map(|what| ways.map(|way| Probe { way, what }));
    let mut found = Found {
        title: format!("larder, lease of {lease} s"),
        is_larder: true,
        probes: probes.collect(),
        killed: Vec::new(),
        cut: Vec::new(),
    };
    let lasts = Duration::from_secs(lease) + LASTS_MORE;
    found.play(&mut nodes, faults, lasts, raw)?;
    Ok(found)
}

fn of_redis(
    program: &Path,
    folder: &Path,
    args: &ClusterFailoverArgs,
    raw: &mut Vec<Value>,
) -> Result<Vec<Found>> {
    let mut redis = Redis::start(program, &folder.join("redis"), REDIS_TIMEOUT)?;
    let probes = [What::ReadRow, What::WriteRow].map(|what| Probe {
        way: Way::Owner,
        what,
    });
    let mut borne = Vec::new();
    for ms in REDIS_TIMEOUTS_MS {
        let timeout = Duration::from_millis(ms);
        redis.set_timeout(timeout)?;
        let before = redis.elections()?;
        let outcome = probes::play(&mut redis, Fault::Nothing, 0, BORNE_FOR, &probes)?;
        let failed: usize = outcome.seen.iter().map(|seen| seen.failed).sum();
        let elections = redis.elections()? - before;
        tell(
            raw,
            json!({"system": "Redis Cluster", "timeout_ms": ms, "fault": "none", "elections": elections, "failed": failed}),
        );
        if elections > 0 || failed > 0 {
            break;
        }
        borne.push(timeout);
    }
    let mut play = |redis: &mut Redis, timeout: Duration, which: &str, faults| -> Result<Found> {
        redis.set_timeout(timeout)?;
        let seconds = timeout.as_secs_f64();
        let mut found = Found {
            title: format!("Redis Cluster, time-out of {seconds} s, {which}"),
            is_larder: false,
            probes: probes.to_vec(),
            killed: Vec::new(),
            cut: Vec::new(),
        };
        found.play(redis, faults, timeout + LASTS_MORE, raw)?;
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

fn tell(raw: &mut Vec<Value>, line: Value) {
    eprintln!("{line}");
    raw.push(line);
}

impl Found {
    /// Kills nodes that own slots, one after another, and then partitions nodes, `faults` times each.
    fn play(
        &mut self,
        service: &mut dyn Service,
        faults: usize,
        lasts: Duration,
        raw: &mut Vec<Value>,
    ) -> Result<()> {
        for (fault, name) in [(Fault::Kill, "killed"), (Fault::Cut, "cut off")] {
            for turn in 0..faults {
                let addresses = service.addresses();
                let owners = Owners::known_to(&addresses)?.all();
                let owner = &owners[turn % owners.len()];
                let node = addresses.iter().position(|address| address == owner);
                let node = node.ok_or("an owner is none of the nodes")?;
                let outcome = probes::play(service, fault, node, lasts, &self.probes)?;
                tell(raw, self.told(name, turn, node, &outcome));
                match fault {
                    Fault::Kill => self.killed.push(outcome),
                    _ => self.cut.push(outcome),
                }
            }
        }
        Ok(())
    }

    fn told(&self, fault: &str, turn: usize, node: usize, outcome: &Outcome) -> Value {
        let probes = self.probes.iter().zip(&outcome.seen).map(|(probe, seen)| {
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

fn text(found: &[Found]) -> Result<String> {
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
                let sum = |of: fn(&Seen) -> usize| -> usize {
                    outcomes.iter().map(|it| of(&it.seen[at])).sum()
                };
                writeln!(
                    text,
                    "| {} | {fault} | {} | {} | {} | {} | {} | {} |",
                    system.title,
                    outcomes.len(),
                    probe.title(),
                    spread(outcomes, &|it| it.seen[at].unanswered_s),
                    sum(|seen| seen.failed),
                    spread(outcomes, &|it| it.seen[at].unanswered_back_s),
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
        "\nThree nodes of larder with `tables.replicas = 2`; three masters and three replicas of Redis, which keep nothing on disk. All processes share the machine's cores. \
         Longest without an answer: between two answers of one key of the node at fault, of {} keys that each client asks in turn; median (minimum-maximum) over the faults. \
         A node is killed with SIGKILL and started again, or cut from all other nodes and from etcd by proxies, but not from its clients, and healed: when all had been \
         answered again, and it was noticed. Writes counted are of rows that are written once, about {} a second at the node at fault for as long as it takes them, and as \
         many at the owners; lost are those that are not there when all is at rest. At Redis, clients ask the survivors who the owner is after each failure; \
         a time-out counts as borne if there is no election in {} s without a fault, and all slots are served again after each of the faults.\n\nCommand: `{}`\n",
        probes::KEYS,
        probes::WRITES_A_SECOND,
        BORNE_FOR.as_secs(),
        report::command()
    )?;
    Ok(text)
}

impl Found {
    fn faults(&self) -> [(&'static str, &[Outcome]); 2] {
        [("killed", &self.killed), ("cut off", &self.cut)]
    }
}

/// Returns the targets for larder, and whether they were met.
fn bars(system: &Found) -> String {
    let mut text = String::new();
    let title = &system.title;
    let all = || system.killed.iter().chain(&system.cut);
    for (at, probe) in system.probes.iter().enumerate() {
        let longest = system.killed.iter().map(|it| it.seen[at].unanswered_s);
        let longest = longest.fold(0.0, f64::max);
        let failed: usize = system.killed.iter().map(|it| it.seen[at].failed).sum();
        let what = probe.title();
        let (bar, is_met) = match (probe.what, probe.way) {
            (What::WriteRow, _) => (format!("<= {WRITE_BAR_S} s"), longest <= WRITE_BAR_S),
            (_, Way::Rust) => ("none fails".to_owned(), failed == 0),
            _ => (format!("<= {READ_BAR_S} s"), longest <= READ_BAR_S),
        };
        text += &format!(
            "| {title}, a node dies: {what} | {longest:.2} s, {failed} failed | {bar} | {} |\n",
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
