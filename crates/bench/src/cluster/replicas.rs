//! The cost of a write with 1, 2 and 3 copies of each row, acknowledged by the owner alone and by all copies.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::AdminClient;
use larder_protocol::http::{ClusterRequest, ClusterSettingsChange};
use serde_json::json;

use super::cost::{self, Load, RequestKind};
use super::servers::Cluster;
use crate::Result;
use crate::net::services::{CLIENT_CORE, SERVER_CORE};
use crate::process;
use crate::report::{self, median, spread};

/// The maximum cost of a write that one more replica acknowledges, as a multiple of the cost without it.
const BAR: f64 = 2.0;
const NODES: usize = 3;
/// The time limit until all nodes apply a setting and every copy is in sync.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
const ACKNOWLEDGE: [&str; 2] = ["owner", "replicas"];

#[derive(Args)]
pub struct ClusterReplicasArgs {
    /// Number of rows, of 100 bytes each
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Connections, summed over all nodes
    #[arg(long, default_value_t = 48)]
    connections: usize,
    /// Outstanding requests on each connection (pipeline depth)
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    depths: Vec<usize>,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 1)]
    seconds: u64,
    /// Rounds; the deployments alternate within each round
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Path of the larder binary [default: built with cargo, next to this program]
    #[arg(long)]
    larder: Option<PathBuf>,
    /// Also write the report and the raw measurements to this folder
    #[arg(long)]
    out: Option<PathBuf>,
}

/// A cluster with this number of copies.
struct ComparedCluster {
    copies: u8,
    cluster: Cluster,
    admins: Vec<AdminClient>,
}

pub fn run(args: &ClusterReplicasArgs) -> Result<()> {
    if process::core_count() < 2 {
        return Err("this needs two cores: one for the nodes, one for the load".into());
    }
    let binary = process::larder_binary(args.larder.as_deref())?;
    let folder = tempfile::tempdir()?;
    let mut all = Vec::new();
    for copies in 1..=NODES as u8 {
        let data = folder.path().join(format!("copies-{copies}"));
        let cluster = Cluster::start_larder(&binary, &data, NODES, copies.into())?;
        let http = cluster.nodes.iter().filter_map(|node| node.http.as_deref());
        let admins = http
            .map(AdminClient::new)
            .collect::<std::result::Result<_, _>>()?;
        cost::fill(&cluster, args.rows)?;
        all.push(ComparedCluster {
            copies,
            cluster,
            admins,
        });
    }
    let mut raw = Vec::new();
    // Indexed by depth, then by number of copies and acknowledgement.
    let mut samples = vec![[const { Vec::new() }; 2 * NODES]; args.depths.len()];
    for round in 0..args.rounds {
        for (acknowledge, word) in ACKNOWLEDGE.into_iter().enumerate() {
            for compared in &all {
                compared.set(word)?;
                for (&depth, samples) in args.depths.iter().zip(&mut samples) {
                    let load = Load {
                        connections: args.connections,
                        seconds: args.seconds,
                        depth,
                    };
                    let requests =
                        cost::requests_by_owner(&compared.cluster, args.rows, RequestKind::Set);
                    let sample = cost::measure(&compared.cluster, &requests, &load)?;
                    let out = compared.count_out_of_sync()?;
                    raw.push(json!({
                        "copies": compared.copies, "acknowledge": word, "depth": depth, "round": round,
                        "cpu_us": sample.cpu_us, "per_second": sample.per_second, "slots_out_of_sync": out,
                    }));
                    if out > 0 {
                        return Err(format!(
                            "{out} copies fell out of sync under the load: {}",
                            raw[raw.len() - 1]
                        )
                        .into());
                    }
                    let at = 2 * usize::from(compared.copies - 1) + acknowledge;
                    samples[at].push(sample.cpu_us);
                }
            }
        }
    }
    let mut markdown = format!(
        "## The cost of copies\n\nMicroseconds of CPU time of all {NODES} nodes for a SET at the row's owner, by the number of copies of each row and by `tables.acknowledge`: \
         median (minimum-maximum).\n\n| in flight | copies | owner | replicas | one more copy, replicas | bar | |\n|---|---|---|---|---|---|---|\n"
    );
    for (depth, samples) in args.depths.iter().zip(&samples) {
        for copies in 0..NODES {
            let [owner, replicas] = [&samples[2 * copies], &samples[2 * copies + 1]];
            let more = copies
                .checked_sub(1)
                .map(|before| median(replicas) / median(&samples[2 * before + 1]));
            let [ratio, bar, verdict] = more.map_or_else(Default::default, |ratio| {
                [
                    format!("{ratio:.2} times"),
                    format!("<= {BAR}"),
                    report::verdict(ratio <= BAR).to_owned(),
                ]
            });
            writeln!(
                markdown,
                "| {depth} | {} | {} | {} | {ratio} | {bar} | {verdict} |",
                copies + 1,
                spread(owner, 2),
                spread(replicas, 2)
            )?;
        }
    }
    writeln!(
        markdown,
        "\n{} rows of 100 bytes, {} connections in all, {} s each, {} rounds in turns; all nodes on core {SERVER_CORE} with one thread each, the load on core {CLIENT_CORE}. \
         No copy fell out of sync.\n\nCommand: `{}`",
        args.rows,
        args.connections,
        args.seconds,
        args.rounds,
        report::command()
    )?;
    report::keep(args.out.as_deref(), "cluster-replicas", &markdown, &raw)
}

impl ComparedCluster {
    /// Sets which copies acknowledge a write, and waits until every node applies the setting and every copy is in sync.
    fn set(&self, acknowledge: &str) -> Result<()> {
        let settings = ClusterSettingsChange {
            acknowledge: Some(acknowledge.to_owned()),
            ..Default::default()
        };
        self.admins[0].cluster_request(&ClusterRequest::Set { settings })?;
        let began = Instant::now();
        loop {
            let mut is_everywhere = true;
            for admin in &self.admins {
                is_everywhere &= admin.cluster()?.settings.acknowledge == acknowledge;
            }
            if is_everywhere && self.count_out_of_sync()? == 0 {
                return Ok(());
            }
            if began.elapsed() > SETTLE_TIMEOUT {
                return Err("copies do not come to be in sync".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the number of missing copies.
    fn count_out_of_sync(&self) -> Result<usize> {
        let status = self.admins[0].cluster()?;
        let missing = status.slots.iter().map(|run| {
            // The owner has one of the copies.
            let selected = usize::from(self.copies) - 1;
            selected.saturating_sub(run.in_sync.len()) * usize::from(run.to - run.from + 1)
        });
        Ok(missing.sum())
    }
}
