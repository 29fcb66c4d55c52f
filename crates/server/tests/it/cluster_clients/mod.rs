//! Client libraries of Redis Cluster in Python, Java and JavaScript: redis-py from `.venv`, the others from
//! `.cluster-clients`. `scripts/setup test` creates both folders.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use larder_protocol::config::ClusterMode;

use crate::redis_py;
use crate::resp::server_with;

/// A client program. For each line of its input, it uses the cluster and then prints `content`.
pub struct Client {
    name: &'static str,
    /// Returns `None` if the client is not installed.
    command: fn() -> Option<Command>,
}

pub const ALL: [Client; 3] = [
    Client {
        name: "redis-py",
        command: || {
            let mut python = Command::new(redis_py::python()?);
            python.arg(program("nodes.py"));
            Some(python)
        },
    },
    Client {
        name: "jedis",
        command: || {
            let mut java = Command::new("java");
            java.arg("-cp").arg(clients_folder()?.join("java/*"));
            java.arg(program("Cluster.java"));
            Some(java)
        },
    },
    Client {
        name: "ioredis",
        command: || {
            let mut node = Command::new("node");
            node.env("NODE_PATH", clients_folder()?.join("node_modules"));
            node.arg(program("cluster.js"));
            Some(node)
        },
    },
];

fn program(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/it/cluster_clients").join(name)
}

fn clients_folder() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let clients = here.join("../../.cluster-clients");
    clients.join("installed.txt").is_file().then_some(clients)
}

/// A running client program.
pub struct Running {
    pub name: &'static str,
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Client {
    /// Starts the program with the address of a server. Returns `None`, and reports it, if the client is not
    /// installed.
    pub fn start(&self, address: &str) -> Option<Running> {
        let Some(mut command) = (self.command)() else {
            larder_testing::report_missing(self.name);
            return None;
        };
        command.arg(address).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Some(Running {
            name: self.name,
            child,
            stdout,
        })
    }
}

impl Running {
    /// Runs the program's work once more and checks that it succeeds. `when` describes the situation for the failure
    /// message.
    #[track_caller]
    pub fn check_run(&mut self, when: &str) {
        // If the program has exited, the missing output below reveals it.
        let _ = self.child.stdin.as_mut().expect("piped").write_all(b"\n");
        let mut reply = String::new();
        self.stdout.read_line(&mut reply).expect("text");
        if reply.trim() != "content" {
            let _ = self.child.kill();
            let mut error_text = String::new();
            let errors = self.child.stderr.as_mut().expect("piped");
            errors.read_to_string(&mut error_text).expect("text");
            panic!("{}, {when}: {reply}{error_text}", self.name);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn cluster_clients_work_with_one_node() {
    let server = server_with(|config| {
        config.server.threads = 2;
        config.cluster.mode = ClusterMode::One;
    });
    let address = server.server().resp_addr().to_string();
    for client in ALL {
        if let Some(mut client) = client.start(&address) {
            client.check_run("at first");
        }
    }
}
