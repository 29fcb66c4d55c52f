//! `larder cluster local`: a cluster of processes, all of which end with the command.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use larder_client::{Error, Reply, RespClient};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{larder, run_failing, run_ok};

pub struct Local {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub ready: Value,
}

impl Local {
    /// Starts the command. If etcd is not installed, reports that and returns `None`.
    pub fn start(data: &Path, nodes: u32) -> Option<Local> {
        Local::start_with(data, nodes, &[])
    }

    /// Like [`Local::start`], with additional arguments.
    pub fn start_with(data: &Path, nodes: u32, more: &[&str]) -> Option<Local> {
        let Some(etcd) = larder_testing::etcd::program() else {
            larder_testing::report_missing("etcd");
            return None;
        };
        let mut child = larder()
            .args(["cluster", "local", "--json", "--nodes", &nodes.to_string()])
            .args(["--set", "cluster.lease_seconds=2", "--etcd"])
            .arg(etcd)
            .arg("--data")
            .arg(data)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("larder runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let Ok(ready) = serde_json::from_str(&line) else {
            let mut why = String::new();
            let _ = stderr.read_to_string(&mut why);
            panic!("{line}{why}");
        };
        Some(Local {
            child,
            stderr,
            ready,
        })
    }

    pub fn nodes(&self) -> &Vec<Value> {
        self.ready["nodes"].as_array().expect("nodes")
    }

    fn pids(&self) -> Vec<u64> {
        let nodes = self.nodes().iter().map(|node| &node["pid"]);
        let all = nodes.chain([&self.ready["etcd_pid"]]);
        all.map(|pid| pid.as_u64().expect("a number")).collect()
    }

    pub fn client(&self, at: usize) -> RespClient {
        RespClient::new(self.nodes()[at]["resp"].as_str().expect("an address"))
    }

    /// Sends a line, split at spaces, to a node and returns the reply.
    pub fn send(&self, at: usize, line: &str) -> Result<Reply, Error> {
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.client(at).command(&parts)
    }

    pub fn http(&self, at: usize) -> &str {
        self.nodes()[at]["http"].as_str().expect("an address")
    }

    pub fn signal(&self, signal: &str, pid: u64) {
        let sent = Command::new("kill")
            .args([signal, &pid.to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }

    /// Sends the command a signal, waits until all its processes have ended, and returns its exit code.
    pub fn end(mut self, signal: &str) -> Option<i32> {
        let pids = self.pids();
        self.signal(signal, u64::from(self.child.id()));
        let ended = self.child.wait().expect("our own child");
        for pid in pids {
            while is_running(pid) {
                std::thread::yield_now();
            }
        }
        ended.code()
    }
}

/// Returns whether the process exists and is not a zombie.
fn is_running(pid: u64) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state
        .rsplit_once(") ")
        .map(|(_, rest)| rest.starts_with('Z'));
    state == Some(false)
}

pub fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn all_nodes_serve_and_kept_data_survives_a_restart() {
    let data = folder();
    let Some(local) = Local::start(data.path(), 3) else {
        return;
    };
    assert_eq!(local.nodes().len(), 3);
    assert!(
        local.ready["etcd"]
            .as_str()
            .is_some_and(|etcd| etcd.starts_with("http://127.0.0.1:"))
    );
    let ids = [0, 1, 2].map(|at| {
        local
            .client(at)
            .command(&[b"CLUSTER", b"MYID"])
            .expect("an id")
    });
    assert!(ids[0] != ids[1] && ids[1] != ids[2]);
    for at in 0..3 {
        let value = at.to_string();
        let set: [&[u8]; 3] = [b"SET", b"post|bob|1", value.as_bytes()];
        local.client(at).command(&set).expect("any node takes it");
        let next = local.client((at + 1) % 3).get("post|bob|1");
        assert_eq!(next, Ok(Some(value.into_bytes())));
    }
    assert_eq!(local.end("-TERM"), Some(0));

    let local = Local::start(data.path(), 3).expect("etcd is there");
    let again = [0, 1, 2].map(|at| {
        local
            .client(at)
            .command(&[b"CLUSTER", b"MYID"])
            .expect("an id")
    });
    assert_eq!(again, ids);
    let kept = local.client(0).get("post|bob|1");
    assert_eq!(kept, Ok(Some(b"2".to_vec())));
    assert_eq!(local.end("-INT"), Some(0));
}

#[test]
fn cluster_status_and_plan_show_the_nodes() {
    let data = folder();
    let Some(local) = Local::start(data.path(), 2) else {
        return;
    };
    let http = local.http(1);
    let output = run_ok(["cluster", "status", "--server", http]);
    assert!(
        output.contains("16,384 of 16,384 slots are served"),
        "{output}"
    );
    assert!(
        output.contains("cluster local") && output.contains("as node-2 knows it"),
        "{output}"
    );
    let json = run_ok(["cluster", "status", "--json", "--server", http]);
    let status: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        status["members"].as_array().map(Vec::len),
        Some(2),
        "{status}"
    );

    let output = run_ok([
        "cluster",
        "plan",
        "--add",
        "node-3:zone-9",
        "--server",
        http,
    ]);
    assert!(
        output.contains("node-3") && output.contains("zone-9"),
        "{output}"
    );
    let output = run_ok(["cluster", "drain", "node-1", "--plan", "--server", http]);
    assert!(output.contains("slots"), "{output}");
    let output = run_failing(3, ["cluster", "drain", "node-9", "--server", http]);
    assert!(
        output.contains("no node node-9 is a member of the cluster (node-"),
        "{output}"
    );
    let output = run_failing(1, ["cluster", "plan", "--add", "node-1", "--server", http]);
    assert!(output.contains("node-1 is a node already"), "{output}");
    let error = run_ok(["cluster", "drain", "node-1", "--no-wait", "--server", http]);
    assert!(error.starts_with("node-1: "), "{error}");
    let error = run_ok(["cluster", "keep", "node-1", "--server", http]);
    assert!(error.starts_with("node-1: "), "{error}");
    local.end("-TERM");
}

#[test]
fn a_drained_node_is_empty_when_the_command_returns() {
    let data = folder();
    let Some(local) = Local::start(data.path(), 3) else {
        return;
    };
    let set: [&[u8]; 3] = [b"SET", b"post|bob|1", b"hello"];
    local.client(0).command(&set).expect("written");
    let http = local.http(0);
    let error = run_ok(["cluster", "drain", "node-3", "--server", http]);
    assert!(
        error.contains("has no slots any more, and stays a member"),
        "{error}"
    );
    let json = run_ok(["cluster", "status", "--wait", "--json", "--server", http]);
    let status: Value = serde_json::from_str(&json).expect("JSON");
    let members = status["members"].as_array().expect("members");
    let drained = members
        .iter()
        .find(|it| it["name"] == "node-3")
        .expect("a member");
    assert_eq!(drained["state"], "draining");
    for what in ["slots_owned", "slots_in_sync", "slots_filling"] {
        assert_eq!(drained[what], 0, "{drained}");
    }
    let set = ["cluster", "set", "replace_after_ms=60000"];
    run_ok([&set[..], &["--server", http]].concat());
    let output = run_failing(1, ["cluster", "set", "replicas=99", "--server", http]);
    assert!(output.contains("1 to 16"), "{output}");
    let read = local.client(2).get("post|bob|1");
    assert_eq!(
        read,
        Ok(Some(b"hello".to_vec())),
        "it asks those that have it"
    );
    local.end("-TERM");
}

#[test]
fn the_cluster_demo_replaces_a_killed_node() {
    if !larder_testing::is_enabled("LARDER_SLOW_TESTS", "it takes half a minute") {
        return;
    }
    let Some(etcd) = larder_testing::etcd::program() else {
        return larder_testing::report_missing("etcd");
    };
    let etcd = etcd.to_str().expect("text");
    let output = run_ok(["cluster", "demo", "--exit", "--etcd", etcd]);
    assert!(
        output.contains("1,000 of 1,000 acknowledged rows are there"),
        "{output}"
    );
    assert!(output.contains("node-4 takes its place"), "{output}");
}

#[test]
fn a_dead_node_is_reported_and_no_process_outlives_a_killed_command() {
    let data = folder();
    let Some(mut local) = Local::start(data.path(), 2) else {
        return;
    };
    let pid = local.nodes()[1]["pid"].as_u64().expect("a number");
    local.signal("-KILL", pid);
    let mut line = String::new();
    local.stderr.read_line(&mut line).expect("a line");
    assert!(
        line.contains(&format!("node-2 (process {pid}): it was killed")),
        "{line}"
    );
    assert!(line.contains("node-2.log"), "{line}");
    assert_eq!(local.end("-KILL"), None);
}

#[test]
fn a_missing_program_is_reported_with_advice() {
    let output = run_failing(3, ["cluster", "local", "--etcd", "no-such-program"]);
    assert!(
        output.contains("sudo apt-get install etcd-server"),
        "{output}"
    );
    let output = run_failing(2, ["cluster", "local", "--nodes", "0"]);
    assert!(output.contains("1..=64"), "{output}");
}
