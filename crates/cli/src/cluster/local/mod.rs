//! `larder cluster local`: runs a cluster on this machine, for experiments and tests.
//!
//! ```text
//!   larder cluster local ─┬─ etcd                      process.rs: no process outlives the command,
//!                         ├─ larder serve (node-1)     however it ends
//!                         └─ larder serve (node-2) ...
//! ```
//!
//! All files are in one folder: `etcd/`, `node-1/` and so on, and a log of each process. With `--data`, the folder is
//! kept, and the next start uses it again.

mod etcd;
mod node;
mod process;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use larder_client::AdminClient;
use rustix::process::Signal;
use tempfile::TempDir;

use super::status::SLOTS;
use crate::failure::Failure;
use crate::interrupt;
use crate::output;

pub use node::NodeAddress;
use node::{Node, NodeSettings};
use process::{Process, describe_exit};

const EXAMPLES: &str = "\
Examples:
    larder cluster local --nodes 3 --replicas 2
    larder cluster local --nodes 3 --replicas 2 --port 7301 --data ./cluster
    larder cluster local --nodes 4 --json --set cluster.lease_seconds=2

With --json, the command prints one line when all nodes serve requests:
    {\"etcd\":\"http://127.0.0.1:39117\",\"nodes\":[{\"name\":\"node-1\",\"resp\":\"127.0.0.1:44011\",\"http\":\"http://127.0.0.1:36207\",\"pid\":4711,...},...]}";

/// Time within which all nodes must serve.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time that nodes have to end, in addition to the time for their clients.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Difference between the HTTP port and the RESP port.
const HTTP_PORT_OFFSET: u16 = 1000;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LocalArgs {
    #[command(flatten)]
    shape: ClusterShape,
    /// Print one line of JSON when all nodes serve requests, instead of instructions
    #[arg(long)]
    json: bool,
}

/// The size and placement of a local cluster.
#[derive(Args)]
pub struct ClusterShape {
    /// The number of nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub nodes: u32,
    /// The number of copies of each row and of each partition of a store
    #[arg(long, value_name = "R", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub replicas: u32,
    /// The number of zones over which the nodes are distributed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    zones: u32,
    /// The folder for all data and logs, which is kept and can be reused [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The port for Redis clients of node-1; node-2 uses PORT+1 and so on, and HTTP uses ports higher by 1000 [default: free ports]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=60_000))]
    port: Option<u16>,
    /// A setting for every node, such as cluster.lease_seconds=2; can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// The path of etcd [default: found in PATH]
    #[arg(long, value_name = "PROGRAM")]
    etcd: Option<PathBuf>,
}

pub fn run(args: LocalArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    let mut local = Local::start(&args.shape)?;
    if args.json {
        output::print_line(&local.json())?;
    } else {
        output::print_line(&local.usage_text())?;
    }
    local.report_until_interrupted();
    local.end();
    Ok(())
}

/// A running cluster.
pub struct Local {
    common: NodeSettings,
    port: Option<u16>,
    nodes: Vec<Node>,
    etcd: Process,
    /// Process ids of ended processes that were reported.
    reported_pids: Vec<u32>,
    _temporary: Option<TempDir>,
}

impl Local {
    pub fn start(args: &ClusterShape) -> Result<Local, Failure> {
        let program = match &args.etcd {
            Some(program) if !program.is_file() => return Err(etcd::missing(program)),
            Some(program) => program.clone(),
            None => etcd::program()?,
        };
        let (folder, temporary) = match &args.data {
            Some(folder) => (folder.clone(), None),
            None => {
                let folder = tempfile::Builder::new().prefix("larder-cluster-").tempdir();
                let folder = folder.map_err(Failure::io("make a temporary folder"))?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        let (etcd, url) = etcd::start(&program, &folder)?;
        let common = NodeSettings {
            etcd: url,
            replicas: args.replicas,
            nodes: args.nodes,
            zones: args.zones,
            folder,
            settings: args.settings.clone(),
        };
        let mut local = Local {
            common,
            port: args.port,
            nodes: Vec::new(),
            etcd,
            reported_pids: Vec::new(),
            _temporary: temporary,
        };
        let mut starting = Vec::new();
        for number in 1..=args.nodes {
            starting.push(local.common.start(number, ports(local.port, number)?)?);
        }
        for node in starting {
            local.nodes.push(node.wait()?);
        }
        local.wait_until_all_serve()?;
        Ok(local)
    }

    /// Waits until every node is up, and each slot is served.
    fn wait_until_all_serve(&mut self) -> Result<(), Failure> {
        let started = Instant::now();
        for at in 0..self.nodes.len() {
            while !is_serving(
                &self.nodes[at].address,
                self.common.nodes,
                self.common.password(),
            ) {
                interrupt::check()?;
                if let Some(why) = self.drain_exit_messages().first() {
                    return Err(Failure::new(format!("the cluster does not start: {why}")));
                }
                if started.elapsed() > START_TIMEOUT {
                    let address = &self.nodes[at].address;
                    return Err(Failure::new(format!(
                        "{} does not serve all slots after {} s; its log is {}",
                        address.name,
                        START_TIMEOUT.as_secs(),
                        address.log.display()
                    )));
                }
                interrupt::wait(POLL_INTERVAL / 5);
            }
        }
        Ok(())
    }

    /// Reports events until an interrupt.
    pub fn report_until_interrupted(&mut self) {
        while !interrupt::is_interrupted() {
            for line in self.drain_exit_messages() {
                eprintln!("larder: {line}");
            }
            interrupt::wait(POLL_INTERVAL);
        }
    }

    /// Ends a node immediately, like `kill -9`.
    pub fn kill(&mut self, at: usize) {
        let process = &mut self.nodes[at].process;
        process.signal(Signal::KILL);
        process.stop_within(STOP_TIMEOUT);
        self.reported_pids.push(process.pid());
    }

    /// Starts another node.
    pub fn add_node(&mut self) -> Result<NodeAddress, Failure> {
        let number = self.nodes.len() as u32 + 1;
        let starting = self.common.start(number, ports(self.port, number)?)?;
        self.nodes.push(starting.wait()?);
        Ok(self.nodes[self.nodes.len() - 1].address.clone())
    }

    pub fn replicas(&self) -> u32 {
        self.common.replicas
    }

    /// Returns messages about the processes that have ended since the last call.
    pub fn drain_exit_messages(&mut self) -> Vec<String> {
        let nodes = self.nodes.iter_mut().map(|node| &mut node.process);
        let mut news = Vec::new();
        for process in nodes.chain([&mut self.etcd]) {
            let pid = process.pid();
            if let Some(status) = process.ended()
                && !self.reported_pids.contains(&pid)
            {
                self.reported_pids.push(pid);
                let (name, log) = (&process.name, process.log.display());
                news.push(format!(
                    "{name} (process {pid}): {}; its log is {log}",
                    describe_exit(status)
                ));
            }
        }
        news
    }

    /// Ends the nodes, then etcd.
    pub fn end(&mut self) {
        for node in &mut self.nodes {
            node.process.signal(Signal::TERM);
        }
        for node in &mut self.nodes {
            node.process.stop_within(STOP_TIMEOUT);
        }
        self.etcd.signal(Signal::TERM);
        self.etcd.stop_within(STOP_TIMEOUT);
    }

    /// Returns all nodes that were started, in order.
    pub fn addresses(&self) -> Vec<&NodeAddress> {
        self.nodes.iter().map(|node| &node.address).collect()
    }

    fn json(&self) -> String {
        let text = serde_json::json!({
            "etcd": self.common.etcd,
            "etcd_pid": self.etcd.pid(),
            "nodes": self.addresses(),
        });
        text.to_string()
    }

    pub fn usage_text(&self) -> String {
        let runs = |node: &&Node| !self.reported_pids.contains(&node.process.pid());
        let running: Vec<&NodeAddress> = self
            .nodes
            .iter()
            .filter(runs)
            .map(|node| &node.address)
            .collect();
        let mut text = format!(
            "A cluster of {} nodes is running. Its etcd is {}, its files are in {}\n\n",
            running.len(),
            self.common.etcd,
            self.common.folder.display()
        );
        for node in &running {
            text += &format!(
                "  {:8} Redis protocol {}  HTTP, console {}/  process {}\n",
                node.name, node.resp, node.http, node.pid
            );
        }
        let [first, .., last] = &running[..] else {
            return text + "\nCtrl-c ends it.";
        };
        let port = |node: &NodeAddress| {
            node.resp
                .rsplit_once(':')
                .map_or("", |(_, port)| port)
                .to_owned()
        };
        let number = self.nodes.len() as u32 + 1;
        let name = format!("node-{number}");
        let more = self
            .common
            .arguments(number, [0, 0], &self.common.folder.join(name));
        text += &format!(
            "\nTry, from another terminal:\n\n  \
             redis-cli -p {} SET 'post|bob|1' hello\n  \
             redis-cli -p {} GET 'post|bob|1'                # any node answers\n  \
             export LARDER_SERVER={}\n  \
             larder cluster status\n  \
             kill -9 {}                                   # {} fails, the others continue\n  \
             larder cluster remove {}                     # other nodes copy its slots now instead of in 5 minutes\n\n\
             One more node:\n\n  larder {}\n\nCtrl-c ends all but that.",
            port(first),
            port(last),
            first.http,
            last.pid,
            last.name,
            last.name,
            more.join(" ")
        );
        text
    }
}

/// Returns the ports of a node; 0 means a free port.
fn ports(first: Option<u16>, number: u32) -> Result<[u16; 2], Failure> {
    let Some(first) = first else {
        return Ok([0, 0]);
    };
    let resp = u16::try_from(number - 1)
        .ok()
        .and_then(|more| first.checked_add(more));
    let http = resp.and_then(|resp| resp.checked_add(HTTP_PORT_OFFSET));
    match (resp, http) {
        (Some(resp), Some(http)) => Ok([resp, http]),
        _ => Err(Failure::usage(format!(
            "--port {first}: there are no ports so high"
        ))),
    }
}

/// Returns whether a node is up, and its map shows that all nodes are up and each slot is served. The map of an earlier run
/// does not count.
fn is_serving(node: &NodeAddress, nodes: u32, password: Option<&str>) -> bool {
    if node.http.starts_with("https") {
        // The node's certificate authority is not known here.
        return true;
    }
    let Ok(admin) = AdminClient::new(&node.http) else {
        return false;
    };
    let admin = match password {
        Some(password) => admin.with_password(password),
        None => admin,
    };
    admin.cluster().is_ok_and(|status| {
        let members = status.members.iter();
        let taking_part = members.filter(|it| !matches!(it.state.as_str(), "down" | "joining"));
        status.missing.is_none()
            && status.slots_served == SLOTS
            && taking_part.count() >= nodes as usize
    })
}
