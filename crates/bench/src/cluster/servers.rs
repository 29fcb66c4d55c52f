//! Clusters as processes on one core: larder's, started by `larder cluster local`, and Redis's.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use larder_client::RespClient;
use larder_testing::free_port;
use larder_types::SLOTS;

use super::map;
use crate::Result;
use crate::net::services::{CLIENT_CORE, SERVER_CORE};
use crate::process::{self, Server};

/// One node: its addresses and its process.
pub struct ServerNode {
    pub resp: SocketAddr,
    /// The HTTP API; `None` for Redis.
    pub http: Option<String>,
    pid: u32,
}

impl ServerNode {
    pub fn cpu_s(&self) -> Result<f64> {
        process::cpu_s_of(self.pid)
    }
}

pub struct Cluster {
    pub nodes: Vec<ServerNode>,
    /// The owner of each slot, as an index into `nodes`.
    pub owners: Vec<usize>,
    /// The process id of the coordinator.
    coordinator: Option<u32>,
    _local: Option<Local>,
    _servers: Vec<Server>,
}

/// `larder cluster local`, which stops its nodes when it is stopped.
struct Local(Child);

impl Drop for Local {
    fn drop(&mut self) {
        // SAFETY: the child is ours and has not been waited for, so its process id has not been reused.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

impl Cluster {
    /// Starts nodes of larder with one thread each, all on one core.
    pub fn start_larder(
        binary: &Path,
        data: &Path,
        nodes: usize,
        replicas: usize,
    ) -> Result<Cluster> {
        let mut command = process::on_core(binary, Some(SERVER_CORE));
        command.args(["cluster", "local", "--json", "--set", "server.threads=1"]);
        command.args([
            "--nodes",
            &nodes.to_string(),
            "--replicas",
            &replicas.to_string(),
        ]);
        command.arg("--data").arg(data);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("larder has no output")?;
        let local = Local(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let ready: serde_json::Value = serde_json::from_str(&line).map_err(|_| {
            format!("larder cluster local printed {line:?} instead of its nodes' addresses")
        })?;
        let node = |node: &serde_json::Value| -> Result<ServerNode> {
            let pid = node["pid"].as_u64().ok_or("a node has no pid")?;
            Ok(ServerNode {
                resp: node["resp"]
                    .as_str()
                    .ok_or("a node has no address")?
                    .parse()?,
                http: node["http"].as_str().map(str::to_owned),
                pid: u32::try_from(pid)?,
            })
        };
        let nodes = ready["nodes"].as_array().ok_or("there are no nodes")?;
        let coordinator = ready["etcd_pid"]
            .as_u64()
            .and_then(|pid| u32::try_from(pid).ok());
        Cluster::discover_owners(
            nodes.iter().map(node).collect::<Result<_>>()?,
            coordinator,
            Some(local),
            Vec::new(),
        )
    }

    /// Starts masters of a Redis Cluster, all on one core. With `logs`, they write a log that is synced every second,
    /// like larder's.
    pub fn start_redis(program: &Path, folder: &Path, nodes: usize, logs: bool) -> Result<Cluster> {
        let appendonly = if logs { "yes" } else { "no" };
        let mut servers = Vec::new();
        for at in 0..nodes {
            let port = free_port();
            let own = folder.join(format!("redis-{at}-{appendonly}"));
            std::fs::create_dir(&own)?;
            let mut command = process::on_core(program, Some(SERVER_CORE));
            command
                .current_dir(&own)
                .args(["--port", &port.to_string()]);
            command.args(["--bind", "127.0.0.1", "--save", ""]);
            command.args(["--appendonly", appendonly, "--appendfsync", "everysec"]);
            command.args(["--cluster-enabled", "yes", "--loglevel", "warning"]);
            servers.push(process::start_listening(command, port, "redis-server")?);
        }
        let addresses: Vec<String> = servers.iter().map(|it| it.resp.to_string()).collect();
        let made = Command::new("redis-cli")
            .args(["--cluster-yes", "--cluster", "create"])
            .args(&addresses)
            .stdout(Stdio::null())
            .status()?;
        if !made.success() {
            return Err("redis-cli cannot make a cluster".into());
        }
        let nodes = servers.iter().map(|server| ServerNode {
            resp: server.resp,
            http: None,
            pid: server.pid(),
        });
        let nodes = nodes.collect();
        Cluster::discover_owners(nodes, None, None, servers)
    }

    /// Requests the owners until every slot has one.
    fn discover_owners(
        nodes: Vec<ServerNode>,
        coordinator: Option<u32>,
        local: Option<Local>,
        servers: Vec<Server>,
    ) -> Result<Cluster> {
        process::pin_self(CLIENT_CORE)?;
        let mut cluster = Cluster {
            owners: Vec::new(),
            nodes,
            coordinator,
            _local: local,
            _servers: servers,
        };
        let client = RespClient::new(cluster.nodes[0].resp.to_string());
        loop {
            let mut owners = vec![usize::MAX; usize::from(SLOTS)];
            for (from, to, port) in map::slots(&client)? {
                let owner = cluster
                    .nodes
                    .iter()
                    .position(|node| node.resp.port() == port);
                owners[from..=to].fill(owner.ok_or("a slot is owned by no node of this cluster")?);
            }
            if !owners.contains(&usize::MAX) {
                cluster.owners = owners;
                return Ok(cluster);
            }
            std::thread::yield_now();
        }
    }

    /// Returns the CPU time of each node so far, in seconds.
    pub fn cpu_s(&self) -> Result<Vec<f64>> {
        self.nodes.iter().map(ServerNode::cpu_s).collect()
    }

    /// Returns the CPU time of the coordinator so far, in seconds; 0 without one.
    pub fn coordinator_cpu_s(&self) -> Result<f64> {
        self.coordinator.map_or(Ok(0.0), process::cpu_s_of)
    }

    pub fn owner_of(&self, key: &[u8]) -> usize {
        self.owners[usize::from(larder_types::slot_of(key))]
    }
}
