//! A node of a local cluster: `larder serve`, run by the same executable.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use larder_protocol::config;
use serde::{Deserialize, Serialize};

use super::process::Process;
use crate::failure::Failure;
use crate::interrupt;

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The parameters that all nodes share.
pub struct NodeSettings {
    pub etcd: String,
    pub replicas: u32,
    pub nodes: u32,
    pub zones: u32,
    pub folder: PathBuf,
    pub settings: Vec<String>,
}

pub struct Node {
    pub process: Process,
    pub address: NodeAddress,
}

/// A node, in the form of the JSON output.
#[derive(Debug, Clone, Serialize)]
pub struct NodeAddress {
    pub name: String,
    /// `host:port` for Redis clients.
    pub resp: String,
    /// The URL of the HTTP API and the console.
    pub http: String,
    pub pid: u32,
    pub data: PathBuf,
    pub log: PathBuf,
}

/// The output of `larder serve --json` when the server is ready.
#[derive(Deserialize)]
struct ReadyLine {
    resp: String,
    http: String,
}

/// A node that was started and is not ready yet.
pub struct StartingNode {
    process: Process,
    data: PathBuf,
    line: Receiver<String>,
}

impl NodeSettings {
    /// Starts node number `number` (from 1) on the given ports for RESP and HTTP; 0 means a free port.
    pub fn start(&self, number: u32, ports: [u16; 2]) -> Result<StartingNode, Failure> {
        let program = std::env::current_exe().map_err(Failure::io("find this program"))?;
        let name = format!("node-{number}");
        let data = self.folder.join(&name);
        let mut command = Command::new(program);
        command.args(self.arguments(number, ports, &data));
        command.arg("--json").stdout(Stdio::piped());
        // The nodes ignore the user's configuration of other servers.
        for key in config::keys() {
            command.env_remove(key.env);
        }
        command.env_remove("LARDER_CONFIG");
        let mut process = Process::start(&name, command, self.folder.join(format!("{name}.log")))?;
        let stdout = process.stdout();
        let (tell, line) = channel();
        // The thread keeps reading, so that the node never writes to a closed pipe.
        std::thread::spawn(move || {
            for line in stdout
                .map(|stdout| BufReader::new(stdout).lines())
                .into_iter()
                .flatten()
            {
                let _ = line.map(|line| tell.send(line));
            }
        });
        Ok(StartingNode {
            process,
            data,
            line,
        })
    }

    /// The password that the nodes require from clients.
    pub fn password(&self) -> Option<&str> {
        let mut settings = self.settings.iter().rev();
        settings.find_map(|setting| setting.strip_prefix("server.password="))
    }

    /// Returns the arguments of `larder` for a node.
    pub fn arguments(&self, number: u32, [resp, http]: [u16; 2], data: &Path) -> Vec<String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / self.nodes as usize).max(1);
        let mut settings = vec![
            "cluster.mode=etcd".to_owned(),
            "cluster.name=local".to_owned(),
            format!("cluster.etcd={}", self.etcd),
            format!("cluster.node=node-{number}"),
            format!("cluster.zone=zone-{}", (number - 1) % self.zones + 1),
            "cluster.peer=127.0.0.1:0".to_owned(),
            format!("cluster.start_nodes={}", self.nodes),
            format!("tables.replicas={}", self.replicas),
            format!("server.threads={threads}"),
        ];
        settings.extend(self.settings.iter().cloned());
        let mut arguments = vec!["serve".to_owned()];
        let given = [
            ("--data", data.display().to_string()),
            ("--resp", format!("127.0.0.1:{resp}")),
            ("--http", format!("127.0.0.1:{http}")),
        ];
        for (flag, value) in given {
            arguments.extend([flag.to_owned(), value]);
        }
        for setting in settings {
            arguments.extend(["--set".to_owned(), setting]);
        }
        arguments
    }
}

impl StartingNode {
    pub fn wait(mut self) -> Result<Node, Failure> {
        let line = loop {
            interrupt::check()?;
            match self.line.recv_timeout(POLL_INTERVAL) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.process.stop_within(Duration::from_secs(1));
                    return Err(Failure::new(format!(
                        "{} did not start; the end of its log {}:\n{}",
                        self.process.name,
                        self.process.log.display(),
                        self.process.log_tail()
                    )));
                }
            }
        };
        let ready: ReadyLine = serde_json::from_str(&line).map_err(|error| {
            Failure::new(format!(
                "{} printed {line:?} instead of its addresses: {error}",
                self.process.name
            ))
        })?;
        let address = NodeAddress {
            name: self.process.name.clone(),
            resp: ready.resp,
            http: ready.http,
            pid: self.process.pid(),
            data: self.data,
            log: self.process.log.clone(),
        };
        Ok(Node {
            process: self.process,
            address,
        })
    }
}
