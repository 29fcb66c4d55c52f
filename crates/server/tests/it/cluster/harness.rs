//! A cluster of processes: an etcd, and nodes that can be killed, suspended and restarted.
//!
//! Each node is this program itself, started again to run only [`a_node_of_a_cluster`]. All nodes listen on loopback,
//! on ports that they keep across restarts. Their data and logs are in temporary folders. All waits are for
//! conditions: [`wait_for`] fails after a time that no successful step takes, and then shows the nodes' logs.
//!
//! ```ignore
//! let Some(cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else { return };   // etcd is not installed
//! cluster.kill(0);
//! cluster.wait_until_served();
//! cluster.client(1).check("GET k", "$1|v|");
//! ```

#![allow(dead_code, reason = "some test files use only a part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use larder_protocol::config::ServerConfig;
use larder_server::Server;
use larder_testing::etcd::Etcd;
use larder_testing::free_port;
use larder_testing::proxy::Proxy;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::resp::Client;

/// The value of a setting with this name is TOML text.
pub const TOML: &str = "toml";
const SETTINGS: &str = "TEST_NODE_SETTINGS";
const READY: &str = "the node is ready: ";

/// Longer than any successful step takes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The interval between checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Not a test: the process of a node. Without the environment of [`Cluster`], it does nothing.
#[test]
fn a_node_of_a_cluster() {
    let Ok(settings) = std::env::var(SETTINGS) else {
        return;
    };
    let _ = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .try_init();
    let settings: Vec<(String, String)> = serde_json::from_str(&settings).expect("settings");
    let mut config = ServerConfig::default();
    // The default timeout would let a test's outcome depend on how busy the machine is.
    config.spaces.search_timeout_ms = 0;
    for (key, value) in &settings {
        let set = match key.as_str() {
            TOML => config.apply_toml(value, "the test"),
            _ => config.set(key, value, key),
        };
        set.expect("a known setting");
    }
    config.check().expect("consistent settings");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime
        .block_on(Server::start(config))
        .expect("the server starts");
    let (resp, http) = (server.resp_addr(), server.http_addr());
    let peer = server.peer_addr().expect("the node has a peer address");
    println!(
        "\n{READY}{}",
        json!({ "resp": resp, "http": http, "peer": peer })
    );
    // Waits for the end of the test, which closes this pipe.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    runtime
        .block_on(server.stop())
        .expect("the server stops cleanly");
}

/// The configuration of a cluster.
pub struct Options {
    nodes: usize,
    etcd_members: usize,
    is_proxied: bool,
    are_peers_proxied: bool,
    settings: Vec<(String, String)>,
    node_settings: Vec<(usize, String, String)>,
    clocks: Vec<i64>,
}

impl Options {
    pub fn new(nodes: usize) -> Options {
        Options {
            nodes,
            etcd_members: 1,
            is_proxied: false,
            are_peers_proxied: false,
            settings: Vec::new(),
            node_settings: Vec::new(),
            clocks: Vec::new(),
        }
    }

    /// Adds a setting for all nodes.
    pub fn set(mut self, key: &str, value: impl ToString) -> Options {
        self.settings.push((key.to_owned(), value.to_string()));
        self
    }

    /// Adds a setting for one node.
    pub fn set_on(mut self, node: usize, key: &str, value: impl ToString) -> Options {
        self.node_settings
            .push((node, key.to_owned(), value.to_string()));
        self
    }

    pub fn etcd_members(mut self, members: usize) -> Options {
        self.etcd_members = members;
        self
    }

    /// Connects each node to etcd through a separate proxy: [`Cluster::etcd_proxy`].
    pub fn proxied(mut self) -> Options {
        self.is_proxied = true;
        self
    }

    /// Connects the other nodes to each node through a separate proxy: [`Cluster::peer_proxy`].
    pub fn peers_proxied(mut self) -> Options {
        self.are_peers_proxied = true;
        self
    }

    /// Sets the number of seconds by which each node's clock is ahead.
    pub fn clocks(mut self, ahead: &[i64]) -> Options {
        self.clocks = ahead.to_vec();
        self
    }

    /// Starts etcd but no node. If etcd is not installed, reports that and returns `None`.
    pub fn prepare(self) -> Option<Cluster> {
        let etcd = Etcd::start(self.etcd_members)?;
        let mut cluster = Cluster {
            etcd,
            nodes: Vec::new(),
            settings: self.settings,
        };
        for at in 0..self.nodes {
            let node_settings = self.node_settings.iter().filter(|(node, ..)| *node == at);
            let own = node_settings.map(|(_, key, value)| (key.clone(), value.clone()));
            cluster.add(&format!("n{}", at + 1), own.collect(), self.is_proxied);
            cluster.nodes[at].clock = self.clocks.get(at).copied().unwrap_or(0);
            if self.are_peers_proxied {
                cluster.proxy_peer(at);
            }
        }
        Some(cluster)
    }

    /// Starts all nodes and waits until every slot is served. Afterwards, moves may fill all slots of a node in
    /// parallel.
    pub fn start(self) -> Option<Cluster> {
        let mut cluster = self.prepare()?;
        cluster.start_all();
        cluster.wait_until_served();
        // Slots move without the usual limit, which keeps tests short.
        let set = json!({"action": "set", "settings": {"fill_slots_at_once": 16_384}});
        let (status, answer) = cluster.post(0, "/v1/cluster/asks", &set);
        assert_eq!(status, 200, "{answer}");
        Some(cluster)
    }
}

pub struct Cluster {
    pub etcd: Etcd,
    nodes: Vec<Node>,
    settings: Vec<(String, String)>,
}

struct Node {
    name: String,
    folder: TempDir,
    settings: Vec<(String, String)>,
    etcd_proxies: Vec<Proxy>,
    peer_proxy: Option<Proxy>,
    /// Number of seconds by which the node's clock is ahead.
    clock: i64,
    child: Option<Child>,
    stdout: Option<BufReader<ChildStdout>>,
    addresses: Option<Addresses>,
    /// Number of starts.
    starts: usize,
}

#[derive(Clone, Copy)]
struct Addresses {
    resp: SocketAddr,
    http: SocketAddr,
    peer: SocketAddr,
}

impl Cluster {
    /// Starts nodes named `n1`, `n2` and so on, with one etcd, and waits until every slot is served.
    pub fn start(nodes: usize, settings: &[(&str, &str)]) -> Option<Cluster> {
        let options = Options::new(nodes);
        let set = |options: Options, (key, value): &(&str, &str)| options.set(key, value);
        settings.iter().fold(options, set).start()
    }

    /// Adds a node without starting it, and returns its index.
    pub fn add(&mut self, name: &str, own: Vec<(String, String)>, is_proxied: bool) -> usize {
        let members = self.etcd.endpoints();
        let proxies = members.iter().enumerate();
        let proxies: Vec<Proxy> = if is_proxied {
            proxies
                .map(|(at, _)| Proxy::to(self.etcd.address(at)))
                .collect()
        } else {
            Vec::new()
        };
        let endpoints = if is_proxied {
            proxies
                .iter()
                .map(|it| format!("http://{}", it.address()))
                .collect()
        } else {
            members
        };
        let folder = tempfile::tempdir().expect("a folder");
        let text = |text: &str| text.to_owned();
        // The addresses stay the same across restarts.
        let address = || format!("127.0.0.1:{}", free_port());
        let mut settings = vec![
            (
                text("server.data"),
                folder.path().join("data").display().to_string(),
            ),
            (text("server.resp"), address()),
            (text("server.http"), address()),
            (text("server.threads"), text("1")),
            (text("server.stop_timeout_seconds"), text("1")),
            (text("cluster.mode"), text("etcd")),
            (text("cluster.node"), text(name)),
            (text("cluster.peer"), address()),
            (text("cluster.etcd"), endpoints.join(",")),
            (text("cluster.lease_seconds"), text("2")),
            (
                text("cluster.start_nodes"),
                (self.nodes.len().max(1)).to_string(),
            ),
        ];
        settings.extend(self.settings.iter().cloned());
        settings.extend(own);
        self.nodes.push(Node {
            name: text(name),
            folder,
            settings,
            etcd_proxies: proxies,
            peer_proxy: None,
            clock: 0,
            child: None,
            stdout: None,
            addresses: None,
            starts: 0,
        });
        self.nodes.len() - 1
    }

    /// Starts all nodes that are not running. A new cluster assigns its slots when all of them have joined.
    pub fn start_all(&mut self) {
        let count = self.nodes.len().to_string();
        let absent: Vec<usize> = (0..self.nodes.len())
            .filter(|at| !self.is_running(*at))
            .collect();
        for &at in &absent {
            let settings = &mut self.nodes[at].settings;
            // Later settings, which the test requested, override this one.
            let first = settings
                .iter_mut()
                .find(|(key, _)| key == "cluster.start_nodes");
            first.expect("the setting exists").1.clone_from(&count);
            self.spawn(at);
        }
        absent.into_iter().for_each(|at| self.wait_for_start(at));
    }

    /// Starts a node, for the first time or again, and waits until it listens.
    pub fn restart(&mut self, node: usize) {
        self.spawn(node);
        self.wait_for_start(node);
    }

    fn spawn(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        assert!(node.child.is_none(), "{} runs", node.name);
        let log = File::create(node.folder.path().join(format!("log-{}", node.starts)));
        node.starts += 1;
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--nocapture", "--exact"])
            .arg("cluster::harness::a_node_of_a_cluster")
            .env(SETTINGS, json!(node.settings).to_string())
            .env("LARDER_CLOCK_AHEAD_SECONDS", node.clock.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.expect("a file"))
            .spawn();
        node.child = Some(child.expect("the program starts"));
    }

    fn wait_for_start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let child = node.child.as_mut().expect("the node was started");
        // The pipe stays open, because the test harness in the child prints a warning after a minute.
        let stdout = node
            .stdout
            .insert(BufReader::new(child.stdout.take().expect("piped")));
        let mut lines = stdout.lines().map_while(Result::ok);
        let addresses_json = lines.find_map(|line| line.strip_prefix(READY).map(str::to_owned));
        let Some(addresses_json) = addresses_json else {
            panic!("{} does not start: {}", node.name, node.log());
        };
        let addresses_json: Value = serde_json::from_str(&addresses_json).expect("JSON");
        let address = |of: &str| {
            addresses_json[of]
                .as_str()
                .and_then(|it| it.parse().ok())
                .expect("an address")
        };
        let addresses = Addresses {
            resp: address("resp"),
            http: address("http"),
            peer: address("peer"),
        };
        node.addresses = Some(addresses);
        for (key, addr) in [
            ("server.resp", addresses.resp),
            ("server.http", addresses.http),
            ("cluster.peer", addresses.peer),
        ] {
            node.settings.push((key.to_owned(), addr.to_string()));
        }
    }

    /// Sends SIGKILL and waits for the process to end.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].child.take() {
            child.kill().expect("a child of this process");
            child.wait().expect("a child of this process");
        }
    }

    /// Shuts the node down gracefully, and waits until it has exited.
    pub fn shut_down(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].child.take() {
            drop(child.stdin.take());
            child.wait().expect("a child of this process");
        }
    }

    /// Suspends the node with SIGSTOP, and waits until all its threads are stopped. Its connections stay open.
    pub fn suspend(&self, node: usize) {
        self.signal(node, Signal::STOP);
        let child = self.nodes[node]
            .child
            .as_ref()
            .expect("the node is running");
        let tasks = format!("/proc/{}/task", child.id());
        let is_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses. A task that has ended counts as stopped.
            let state = stat
                .rsplit(')')
                .next()
                .and_then(|rest| rest.split_whitespace().next());
            matches!(state, None | Some("T"))
        };
        self.wait_for("all threads are stopped", || {
            let tasks = std::fs::read_dir(&tasks).expect("the task folder");
            tasks.flatten().all(is_stopped)
        });
    }

    /// Resumes a suspended node.
    pub fn resume(&self, node: usize) {
        self.signal(node, Signal::CONT);
    }

    fn signal(&self, node: usize, signal: Signal) {
        let child = self.nodes[node]
            .child
            .as_ref()
            .expect("the node is running");
        kill_process(Pid::from_child(child), signal).expect("a child of this process");
    }

    pub fn is_running(&self, node: usize) -> bool {
        self.nodes[node].child.is_some()
    }

    /// Returns the number of nodes, running or not.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the indexes of the running nodes.
    pub fn running(&self) -> Vec<usize> {
        (0..self.len()).filter(|at| self.is_running(*at)).collect()
    }

    pub fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    pub fn index_of(&self, name: &str) -> usize {
        let found = self.nodes.iter().position(|node| node.name == name);
        found.unwrap_or_else(|| panic!("no node {name}"))
    }

    pub fn resp(&self, node: usize) -> SocketAddr {
        self.addresses(node).resp
    }

    pub fn http(&self, node: usize) -> SocketAddr {
        self.addresses(node).http
    }

    /// Returns the address for connections from other nodes.
    pub fn peer(&self, node: usize) -> SocketAddr {
        self.addresses(node).peer
    }

    fn addresses(&self, node: usize) -> Addresses {
        self.nodes[node].addresses.expect("the node was started")
    }

    pub fn data(&self, node: usize) -> PathBuf {
        self.nodes[node].folder.path().join("data")
    }

    /// Returns the proxy between a node and a member of etcd, with [`Options::proxied`].
    pub fn etcd_proxy(&self, node: usize, member: usize) -> &Proxy {
        &self.nodes[node].etcd_proxies[member]
    }

    /// Cuts a node's connections to etcd and the other nodes' connections to it. Its own connections to other nodes
    /// stay.
    pub fn cut_off(&self, node: usize) {
        self.etcd_proxy(node, 0).cut();
        self.peer_proxy(node).cut();
    }

    /// Restores the connections.
    pub fn heal(&self, node: usize) {
        self.etcd_proxy(node, 0).heal();
        self.peer_proxy(node).heal();
    }

    /// Returns the proxy for connections from other nodes, with [`Options::peers_proxied`].
    pub fn peer_proxy(&self, node: usize) -> &Proxy {
        self.nodes[node]
            .peer_proxy
            .as_ref()
            .expect("Options::peers_proxied was set")
    }

    fn proxy_peer(&mut self, node: usize) {
        let address = format!("127.0.0.1:{}", free_port());
        let proxy = Proxy::to(address.clone());
        self.set(node, "cluster.peer", address);
        self.set(node, "cluster.peer_announce", proxy.address());
        self.nodes[node].peer_proxy = Some(proxy);
    }

    /// Changes a setting for the node's next start.
    pub fn set(&mut self, node: usize, key: &str, value: impl ToString) {
        let settings = &mut self.nodes[node].settings;
        settings.push((key.to_owned(), value.to_string()));
    }

    /// Opens a connection with the Redis protocol.
    pub fn client(&self, node: usize) -> Client {
        if let Err(error) = std::net::TcpStream::connect(self.resp(node)) {
            panic!("{}: {error}\n{}", self.name(node), self.logs());
        }
        Client::to(self.resp(node))
    }

    /// Sends one command over a new connection, and returns the reply with `|` for line breaks.
    pub fn ask(&self, node: usize, line: &str) -> String {
        self.client(node).call(line)
    }

    /// Returns a line of the section `cluster` of INFO.
    pub fn info(&self, node: usize, field: &str) -> String {
        self.client(node).info("cluster", field)
    }

    /// Returns the status and the body.
    pub fn get(&self, node: usize, path: &str) -> (u16, String) {
        let url = format!("http://{}{path}", self.http(node));
        self.status_and_body(agent().get(url).call())
    }

    pub fn post(&self, node: usize, path: &str, body: &Value) -> (u16, String) {
        let url = format!("http://{}{path}", self.http(node));
        self.status_and_body(agent().post(url).send_json(body))
    }

    fn status_and_body(
        &self,
        result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> (u16, String) {
        let mut response = result.unwrap_or_else(|error| panic!("{error}\n{}", self.logs()));
        let status = response.status().as_u16();
        (status, response.body_mut().read_to_string().expect("text"))
    }

    /// Waits until every running node has the same map, with every slot served.
    pub fn wait_until_served(&self) {
        self.wait_for("every slot is served", || {
            let running = self.running();
            let served = running.iter().all(|&node| {
                self.ask(node, "CLUSTER INFO")
                    .contains("cluster_slots_ok:16384")
                    && self.get(node, "/readyz").0 == 200
            });
            let mut epochs: Vec<String> = running
                .iter()
                .map(|&node| self.info(node, "cluster_epoch"))
                .collect();
            epochs.dedup();
            served && epochs.len() == 1
        });
    }

    /// Waits until all running nodes report this state of a node: `up`, `down`, `joining`, `draining`, or `absent`.
    pub fn wait_for_state(&self, node: usize, state: &str) {
        let name = self.name(node).to_owned();
        self.wait_for(&format!("{name} is {state}"), || {
            self.running()
                .iter()
                .filter(|it| **it != node || state == "up")
                .all(|&it| self.state(it, &name) == state)
        });
    }

    /// Waits until a node knows that another one is down.
    #[track_caller]
    pub fn wait_until_down(&self, seen_by: usize, node: usize) {
        let name = self.name(node);
        self.wait_for("the node is down", || self.state(seen_by, name) == "down");
    }

    /// Returns the state of a node in another node's map.
    pub fn state(&self, seen_by: usize, name: &str) -> String {
        let (_, status) = self.get(seen_by, "/v1/cluster");
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let members = status["members"].as_array().cloned().unwrap_or_default();
        let member = members.iter().find(|it| it["name"] == name);
        member
            .map_or("absent", |it| it["state"].as_str().unwrap_or(""))
            .to_owned()
    }

    /// Waits until `holds` returns true. After [`TIMEOUT`], fails and shows the nodes' logs.
    #[track_caller]
    pub fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            if began.elapsed() > TIMEOUT {
                panic!("the condition is not met in time: {what}\n{}", self.logs());
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Returns the logs of all nodes.
    pub fn logs(&self) -> String {
        let log = |node: &Node| format!("--- {}\n{}", node.name, node.log());
        self.nodes.iter().map(log).collect()
    }

    /// Returns a node's log since its last start.
    pub fn log(&self, node: usize) -> String {
        self.nodes[node].log()
    }
}

impl Node {
    fn log(&self) -> String {
        let path = |start: usize| self.folder.path().join(format!("log-{start}"));
        let read = |path: &Path| std::fs::read(path).unwrap_or_default();
        let last = self.starts.saturating_sub(1);
        String::from_utf8_lossy(&read(&path(last))).into_owned()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.kill(node));
    }
}

pub fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(TIMEOUT))
        .build()
        .new_agent()
}
