//! Nodes of larder that are killed, partitioned, restarted and added. Each keeps its addresses and its folder. They run
//! on all cores.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_client::AdminClient;
use larder_protocol::http::{ClusterRequest, ClusterSettingsChange, ClusterStatus};
use larder_testing::etcd::Etcd;
use larder_testing::free_port;
use larder_testing::proxy::Proxy;
use larder_types::SLOTS;

use super::probes::Service;
use crate::Result;
use crate::process::{self, Server};

/// The time limit for a cluster to settle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub struct Nodes {
    pub etcd: Etcd,
    binary: PathBuf,
    folder: PathBuf,
    /// The settings of every node.
    settings: Vec<String>,
    is_proxied: bool,
    nodes: Vec<LarderNode>,
}

struct LarderNode {
    name: String,
    resp: String,
    /// Includes the scheme.
    http: String,
    settings: Vec<String>,
    /// The proxy through which other nodes reach this one, and the one through which it reaches etcd.
    peer_proxy: Option<Proxy>,
    etcd_proxy: Option<Proxy>,
    server: Option<Server>,
}

impl Nodes {
    /// Starts nodes with these settings, and waits until the cluster has settled. With `is_proxied`, each node has
    /// proxies of its own, so that its links can be cut.
    pub fn start(
        binary: &Path,
        folder: &Path,
        nodes: usize,
        settings: &[String],
        is_proxied: bool,
    ) -> Result<Nodes> {
        let etcd = Etcd::start(1).ok_or("etcd is not installed; scripts/setup test installs it")?;
        let mut all = Nodes {
            etcd,
            binary: binary.to_owned(),
            folder: folder.to_owned(),
            settings: settings.to_vec(),
            is_proxied,
            nodes: Vec::new(),
        };
        all.settings.push(format!("cluster.start_nodes={nodes}"));
        for _ in 0..nodes {
            all.add()?;
        }
        all.settle()?;
        Ok(all)
    }

    /// Starts another node, without waiting for it.
    pub fn add(&mut self) -> Result<()> {
        let name = format!("node-{}", self.nodes.len() + 1);
        let peer = format!("127.0.0.1:{}", free_port());
        let mut settings = vec![
            format!("cluster.node={name}"),
            format!("cluster.peer={peer}"),
        ];
        let (mut peer_proxy, mut etcd_proxy) = (None, None);
        let mut etcd = self.etcd.address(0);
        if self.is_proxied {
            let to_peer = peer_proxy.insert(Proxy::to(peer));
            settings.push(format!("cluster.peer_announce={}", to_peer.address()));
            etcd = etcd_proxy.insert(Proxy::to(etcd)).address();
        }
        settings.push(format!("cluster.etcd=http://{etcd}"));
        self.nodes.push(LarderNode {
            resp: format!("127.0.0.1:{}", free_port()),
            http: format!("http://127.0.0.1:{}", free_port()),
            name,
            settings,
            peer_proxy,
            etcd_proxy,
            server: None,
        });
        self.run(self.nodes.len() - 1)
    }

    fn run(&mut self, at: usize) -> Result<()> {
        let node = &mut self.nodes[at];
        let data = self.folder.join(&node.name);
        std::fs::create_dir_all(&data)?;
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{}.log", node.name)))?;
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--json", "--resp", &node.resp]);
        command.args(["--http", node.http.trim_start_matches("http://")]);
        command.arg("--data").arg(&data);
        let common = ["cluster.mode=etcd", "server.threads=1", "log.level=warn"];
        let common = common.map(str::to_owned);
        for setting in common.iter().chain(&self.settings).chain(&node.settings) {
            command.args(["--set", setting]);
        }
        node.server = Some(process::serve(command.stderr(Stdio::from(log)))?);
        Ok(())
    }

    fn pid(&self, at: usize) -> Option<u32> {
        self.nodes[at].server.as_ref().map(Server::pid)
    }

    pub fn http(&self, at: usize) -> &str {
        &self.nodes[at].http
    }

    /// Returns the name of the most recently added node.
    pub fn newest(&self) -> &str {
        &self.nodes[self.nodes.len() - 1].name
    }

    /// Changes settings in the cluster map.
    pub fn set(&self, settings: ClusterSettingsChange) -> Result<()> {
        AdminClient::new(&self.nodes[0].http)?
            .cluster_request(&ClusterRequest::Set { settings })?;
        Ok(())
    }

    /// Returns the status of the cluster as one node sees it.
    pub fn status(&self, seen_by: usize) -> Result<ClusterStatus> {
        Ok(AdminClient::new(&self.nodes[seen_by].http)?.cluster()?)
    }

    /// Returns whether, according to every running node, all running nodes are members, and each slot is at its target
    /// with all its copies.
    pub fn is_settled(&self) -> bool {
        let running = (0..self.nodes.len()).filter(|at| self.nodes[*at].server.is_some());
        let running: Vec<usize> = running.collect();
        let sees_rest = |at: &usize| {
            self.status(*at).is_ok_and(|status| {
                let up = status.members.iter().filter(|it| it.state == "up");
                let copies = usize::from(status.settings.replicas).min(running.len());
                status.missing.is_none()
                    && status.slots_served == u32::from(SLOTS)
                    && up.count() == running.len()
                    && status.slots.iter().all(|run| {
                        run.goal.is_empty()
                            && run.filling.is_empty()
                            && run.in_sync.len() + 1 >= copies
                    })
            })
        };
        running.iter().all(sees_rest)
    }

    /// Waits until every slot is at its target with all its copies.
    pub fn settle(&self) -> Result<()> {
        let began = Instant::now();
        while !self.is_settled() {
            if began.elapsed() > SETTLE_TIMEOUT {
                let status = self.status(0)?;
                return Err(format!("the cluster does not come to rest: {status:?}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Service for Nodes {
    fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.resp.clone()).collect()
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
        let own: Vec<u32> = self.pid(at).into_iter().collect();
        for (other, node) in self.nodes.iter().enumerate() {
            let to_peer = node.peer_proxy.iter();
            if other == at {
                to_peer.chain(&node.etcd_proxy).for_each(Proxy::cut)
            } else {
                to_peer.for_each(|it| it.cut_from(&own))
            }
        }
    }

    fn heal(&mut self) {
        let proxies = |node: &LarderNode| {
            let both = node.peer_proxy.iter().chain(&node.etcd_proxy);
            both.for_each(Proxy::heal);
        };
        self.nodes.iter().for_each(proxies);
    }

    fn settle(&mut self) -> Result<()> {
        Nodes::settle(self)
    }
}
