//! A Redis Cluster of three masters and three replicas, whose nodes are killed, partitioned and restarted. Nodes
//! announce the addresses of proxies as their own, so their messages pass through the proxies.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_client::RespClient;
use larder_protocol::resp::client::Reply;
use larder_testing::free_port;
use larder_testing::proxy::Proxy;
use larder_types::SLOTS;

use super::probes::Service;
use crate::Result;
use crate::process::{self, Server};

const MASTERS: usize = 3;
const NODES: usize = 2 * MASTERS;
/// The time limit for a cluster to settle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub struct Redis {
    program: PathBuf,
    folder: PathBuf,
    /// The time without messages after which a node is considered dead.
    timeout: Duration,
    nodes: Vec<RedisNode>,
}

struct RedisNode {
    port: u16,
    bus_port: u16,
    /// The proxies through which clients and replicas, and other nodes, reach this one.
    data: Proxy,
    bus: Proxy,
    server: Option<Server>,
}

impl Redis {
    pub fn start(program: &Path, folder: &Path, timeout: Duration) -> Result<Redis> {
        let mut redis = Redis {
            program: program.to_owned(),
            folder: folder.to_owned(),
            timeout,
            nodes: Vec::new(),
        };
        for at in 0..NODES {
            let (port, bus_port) = (free_port(), free_port());
            let to = |port: u16| Proxy::to(format!("127.0.0.1:{port}"));
            redis.nodes.push(RedisNode {
                port,
                bus_port,
                data: to(port),
                bus: to(bus_port),
                server: None,
            });
            std::fs::create_dir_all(redis.folder.join(format!("redis-{at}")))?;
            redis.run(at)?;
        }
        for at in 1..NODES {
            let [data, bus] = redis.nodes[at].announced();
            redis.send(0, &["CLUSTER", "MEET", "127.0.0.1", &data, &bus])?;
        }
        for master in 0..MASTERS {
            let bound = |at: usize| at * usize::from(SLOTS) / MASTERS;
            let (from, to) = (bound(master), bound(master + 1) - 1);
            let [from, to] = [from, to].map(|slot| slot.to_string());
            redis.send(master, &["CLUSTER", "ADDSLOTSRANGE", &from, &to])?;
            let Reply::Bulk(id) = redis.send(master, &["CLUSTER", "MYID"])? else {
                return Err("CLUSTER MYID is answered by something else than a name".into());
            };
            let id = String::from_utf8(id)?;
            let began = Instant::now();
            while let Err(error) = redis.send(MASTERS + master, &["CLUSTER", "REPLICATE", &id]) {
                // The node does not know its master yet.
                if began.elapsed() > SETTLE_TIMEOUT {
                    return Err(error);
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        redis.settle()?;
        Ok(redis)
    }

    fn run(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        let own = self.folder.join(format!("redis-{at}"));
        let [port, bus_port] = [node.port, node.bus_port].map(|port| port.to_string());
        let [data, bus] = node.announced();
        let timeout_ms = self.timeout.as_millis().to_string();
        let mut command = Command::new(&self.program);
        command.current_dir(own).stdout(Stdio::null());
        for (name, value) in [
            ("port", &*port),
            ("bind", "127.0.0.1"),
            ("save", ""),
            ("appendonly", "no"),
            ("loglevel", "warning"),
            ("cluster-enabled", "yes"),
            ("cluster-port", &bus_port),
            ("cluster-node-timeout", &timeout_ms),
            ("cluster-announce-ip", "127.0.0.1"),
            ("cluster-announce-port", &data),
            ("cluster-announce-bus-port", &bus),
            // A restarted replica is filled immediately, instead of after 5 seconds.
            ("repl-diskless-sync-delay", "0"),
        ] {
            command.args([&format!("--{name}"), value]);
        }
        node.server = Some(process::start_listening(
            command,
            node.port,
            "redis-server",
        )?);
        Ok(())
    }

    /// Sets the timeout of all nodes, including later restarted ones.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<()> {
        self.timeout = timeout;
        let ms = timeout.as_millis().to_string();
        for at in 0..NODES {
            self.send(at, &["CONFIG", "SET", "cluster-node-timeout", &ms])?;
        }
        Ok(())
    }

    /// Returns the number of elections.
    pub fn elections(&self) -> Result<u64> {
        let text = self.text(0, &["CLUSTER", "INFO"])?;
        let mut lines = text.lines();
        let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        Ok(epoch.ok_or("CLUSTER INFO has no epoch")?.trim().parse()?)
    }

    /// Sends a command without using the proxies.
    fn send(&self, at: usize, parts: &[&str]) -> Result<Reply> {
        let client = RespClient::new(format!("127.0.0.1:{}", self.nodes[at].port));
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        Ok(client.command(&parts)?)
    }

    fn text(&self, at: usize, parts: &[&str]) -> Result<String> {
        match self.send(at, parts)? {
            Reply::Bulk(text) => Ok(String::from_utf8(text)?),
            other => Err(format!("{parts:?} is answered by {other:?}").into()),
        }
    }

    /// Returns whether all running nodes consider all slots served, by masters that each have a replica.
    fn is_settled(&self) -> Result<bool> {
        let (mut masters, mut replicas) = (0, 0);
        for at in (0..NODES).filter(|at| self.nodes[*at].server.is_some()) {
            let state = self.text(at, &["CLUSTER", "INFO"])?;
            let is_ready = state.contains("cluster_state:ok")
                && state.contains(&format!("cluster_slots_ok:{SLOTS}"))
                && state.contains(&format!("cluster_known_nodes:{NODES}"));
            let role = self.text(at, &["INFO", "replication"])?;
            if !is_ready {
                return Ok(false);
            }
            masters += usize::from(role.contains("role:master") && role.contains("state=online"));
            replicas += usize::from(role.contains("master_link_status:up"));
        }
        let running = self.nodes.iter().filter(|node| node.server.is_some());
        Ok(masters == MASTERS && replicas == running.count() - MASTERS)
    }
}

impl RedisNode {
    /// Returns the ports that the node announces to others.
    fn announced(&self) -> [String; 2] {
        [&self.data, &self.bus].map(|proxy| {
            let address = proxy.address();
            address.rsplit(':').next().unwrap_or_default().to_owned()
        })
    }
}

impl Service for Redis {
    fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.data.address()).collect()
    }

    fn kill(&mut self, at: usize) {
        if let Some(server) = self.nodes[at].server.take() {
            server.kill();
        }
    }

    fn restart(&mut self, at: usize) -> Result<()> {
        self.run(at)
    }

    fn cut(&mut self, at: usize) {
        let pid = |node: &RedisNode| node.server.as_ref().map(Server::pid);
        let own: Vec<u32> = pid(&self.nodes[at]).into_iter().collect();
        let others = self.nodes.iter().filter_map(pid);
        let others: Vec<u32> = others.filter(|pid| !own.contains(pid)).collect();
        for (other, node) in self.nodes.iter().enumerate() {
            let cut = if other == at { &others } else { &own };
            node.data.cut_from(cut);
            node.bus.cut_from(cut);
        }
    }

    fn heal(&mut self) {
        for node in &self.nodes {
            node.data.heal();
            node.bus.heal();
        }
    }

    fn settle(&mut self) -> Result<()> {
        let began = Instant::now();
        while !self.is_settled()? {
            if began.elapsed() > SETTLE_TIMEOUT {
                let state = self.text(0, &["CLUSTER", "NODES"])?;
                return Err(format!("the Redis Cluster does not come to rest: {state}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}
