//! Rows of tables when nodes are killed, are suspended and return: no acknowledged write is lost.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::harness::{Cluster, Options};
use crate::resp::request;

/// A connection that may break.
pub(super) struct Caller(BufReader<TcpStream>);

impl Caller {
    pub fn to(addr: SocketAddr) -> Option<Caller> {
        let stream = TcpStream::connect_timeout(&addr, Duration::from_secs(2)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .ok()?;
        Some(Caller(BufReader::new(stream)))
    }

    /// Returns the reply with `|` for line breaks, or `None` if the outcome of the command is unknown.
    pub fn ask(&mut self, words: &[&str]) -> Option<String> {
        self.0.get_mut().write_all(&request(words)).ok()?;
        let mut line = String::new();
        if self.0.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        let size = line
            .strip_prefix('$')
            .and_then(|size| size.parse::<usize>().ok());
        let Some(size) = size else {
            return Some(line);
        };
        let mut value = vec![0; size + 2];
        self.0.read_exact(&mut value).ok()?;
        value.truncate(size);
        Some(String::from_utf8(value).unwrap())
    }
}

/// Returns whether every slot has an owner and a replica, and none is being filled or moved.
fn is_settled(cluster: &Cluster, seen_by: usize) -> bool {
    let (_, status) = cluster.get(seen_by, "/v1/cluster");
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let slots = status["slots"].as_array().cloned().unwrap_or_default();
    let has_replica = |it: &Value| it["in_sync"].as_array().is_some_and(|it| it.len() == 1);
    let fills = |it: &Value| it["filling"].as_array().is_some_and(|it| !it.is_empty());
    status["slots_served"] == 16_384 && slots.iter().all(|it| has_replica(it) && !fills(it))
}

fn settle(cluster: &Cluster, seen_by: usize) {
    cluster.wait_for("every slot has a replica in sync", || {
        is_settled(cluster, seen_by)
    });
}

/// Clients that write increasing numbers to keys, each key by one client, and the last acknowledged number of each
/// key.
struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    count: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Writers {
    /// Each client uses one of these nodes, and another one when it gets no reply.
    fn start(clients: usize, nodes: &[SocketAddr]) -> Writers {
        let writers = Writers {
            stop: Arc::default(),
            acknowledged: Arc::default(),
            count: Arc::default(),
            threads: Vec::new(),
        };
        let threads = (0..clients).map(|client| {
            let (stop, acknowledged, count) = (
                writers.stop.clone(),
                writers.acknowledged.clone(),
                writers.count.clone(),
            );
            let nodes = nodes.to_vec();
            std::thread::spawn(move || {
                let (mut at, mut number, mut caller) = (client, 0_u64, None);
                while !stop.load(SeqCst) {
                    number += 1;
                    let key = format!("t|{client}-{}|x", number % 7);
                    if caller.is_none() {
                        at += 1;
                        caller = Caller::to(nodes[at % nodes.len()]);
                    }
                    let reply = caller
                        .as_mut()
                        .and_then(|it| it.ask(&["SET", &key, &number.to_string()]));
                    match reply.as_deref() {
                        Some("+OK") => {
                            count.fetch_add(1, SeqCst);
                            acknowledged.lock().unwrap().insert(key, number);
                        }
                        Some(error) => {
                            let words = [
                                "-CLUSTERDOWN",
                                "-TRYAGAIN",
                                "-IOERR",
                                "-UNKNOWN",
                                "-LOADING",
                            ];
                            let is_known = words.iter().any(|word| error.starts_with(word));
                            assert!(is_known, "{error}");
                            std::thread::yield_now();
                        }
                        None => caller = None,
                    }
                }
            })
        });
        let threads = threads.collect();
        Writers { threads, ..writers }
    }

    fn count(&self) -> u64 {
        self.count.load(SeqCst)
    }

    fn end(self) -> BTreeMap<String, u64> {
        self.stop.store(true, SeqCst);
        for thread in self.threads {
            thread.join().expect("the writer thread succeeds");
        }
        std::mem::take(&mut *self.acknowledged.lock().unwrap())
    }
}

/// Checks that each row has the last acknowledged number, or a later one whose reply was lost.
fn check(cluster: &Cluster, acknowledged: &BTreeMap<String, u64>) {
    for node in cluster.running() {
        let mut caller = Caller::to(cluster.resp(node)).unwrap();
        for (key, number) in acknowledged {
            let mut read = None;
            cluster.wait_for("a row is read", || {
                read = caller.ask(&["GET", key]);
                read.as_ref().is_some_and(|it| !it.starts_with('-'))
            });
            let read: u64 = read.unwrap().parse().unwrap_or(0);
            assert!(
                read >= *number,
                "{key} is {read} by {}, and {number} was acknowledged\n{}",
                cluster.name(node),
                cluster.logs()
            );
        }
    }
}

fn cluster() -> Option<Cluster> {
    Options::new(3)
        .set("tables.replicas", 2)
        .set("cluster.lease_seconds", 2)
        .set("cluster.start_nodes", 3)
        .start()
}

fn rounds() -> usize {
    match std::env::var_os("LARDER_SLOW_TESTS") {
        Some(_) => 10,
        None => 2,
    }
}

#[test]
fn acknowledged_writes_survive_killed_owners() {
    let Some(mut cluster) = cluster() else {
        return;
    };
    settle(&cluster, 0);
    let nodes: Vec<SocketAddr> = (0..3).map(|node| cluster.resp(node)).collect();
    for round in 0..rounds() {
        let (dead, other) = (round % 3, (round + 1) % 3);
        let writers = Writers::start(4, &nodes);
        cluster.wait_for("writes are acknowledged", || writers.count() > 300);
        cluster.kill(dead);
        let before = writers.count();
        cluster.wait_until_down(other, dead);
        cluster.wait_for("writes are acknowledged again", || {
            writers.count() > before + 300
        });
        let acknowledged = writers.end();
        check(&cluster, &acknowledged);
        cluster.restart(dead);
        cluster.wait_for_state(dead, "up");
        settle(&cluster, other);
        check(&cluster, &acknowledged);
    }
}

#[test]
fn a_node_with_an_empty_disk_is_filled_while_it_serves() {
    let Some(mut cluster) = cluster() else {
        return;
    };
    settle(&cluster, 0);
    let nodes: Vec<SocketAddr> = (0..3).map(|node| cluster.resp(node)).collect();
    let writers = Writers::start(3, &nodes);
    cluster.wait_for("writes are acknowledged", || writers.count() > 500);
    cluster.kill(2);
    cluster.wait_until_down(0, 2);
    std::fs::remove_dir_all(cluster.data(2)).unwrap();
    cluster.restart(2);
    cluster.wait_for_state(2, "up");
    settle(&cluster, 0);
    let acknowledged = writers.end();
    check(&cluster, &acknowledged);
    // The copies on the refilled node are complete, so that another node may die.
    cluster.kill(0);
    cluster.wait_until_down(1, 0);
    check(&cluster, &acknowledged);
}

#[test]
fn a_suspended_owner_serves_nothing_stale_after_its_lease() {
    let Some(cluster) = cluster() else {
        return;
    };
    settle(&cluster, 0);
    let mut other = cluster.client(1);
    let keys: Vec<String> = (0..60).map(|at| format!("t|{at}|x")).collect();
    for key in &keys {
        other.check(&format!("SET {key} old"), "+OK");
    }
    // These requests reach the node's sockets while it is suspended.
    let mut waiting: Vec<Caller> = keys
        .iter()
        .map(|_| Caller::to(cluster.resp(0)).unwrap())
        .collect();
    for caller in &mut waiting {
        assert!(caller.ask(&["PING"]).is_some());
    }
    cluster.suspend(0);
    for (caller, key) in waiting.iter_mut().zip(&keys) {
        caller
            .0
            .get_mut()
            .write_all(&request(&["GET", key]))
            .unwrap();
    }
    cluster.wait_until_down(1, 0);
    for key in &keys {
        cluster.wait_for("the new owner acknowledges a write", || {
            let mut caller = Caller::to(cluster.resp(1)).unwrap();
            caller.ask(&["SET", key, "new"]).as_deref() == Some("+OK")
        });
    }
    cluster.resume(0);
    for (caller, key) in waiting.iter_mut().zip(&keys) {
        let mut line = String::new();
        let _ = caller.0.read_line(&mut line);
        if line.starts_with('$') {
            let mut value = String::new();
            let _ = caller.0.read_line(&mut value);
            assert_eq!(value.trim_end(), "new", "{key}\n{}", cluster.log(0));
        }
    }
}

#[test]
fn no_request_is_rejected_while_a_node_shuts_down() {
    let Some(mut cluster) = Options::new(3).set("tables.replicas", 2).start() else {
        return;
    };
    settle(&cluster, 0);
    const KEYS: u64 = 300;
    let (stop, count) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let (is_over, done, addr) = (stop.clone(), count.clone(), cluster.resp(0));
    let client = std::thread::spawn(move || {
        let mut caller = Caller::to(addr).expect("a connection");
        while !is_over.load(SeqCst) {
            let number = done.load(SeqCst);
            // The keys belong to slots of all nodes.
            let (key, value) = (format!("t|{}|x", number % KEYS), number.to_string());
            let set = caller.ask(&["SET", &key, &value]);
            assert_eq!(set.as_deref(), Some("+OK"), "{key}");
            assert_eq!(caller.ask(&["GET", &key]), Some(value), "{key}");
            done.fetch_add(1, SeqCst);
        }
    });
    let all_once = |what: &str| {
        let upto = count.load(SeqCst) + KEYS;
        wait_while_running(what, &client, || count.load(SeqCst) >= upto);
    };
    all_once("all rows are written");
    cluster.shut_down(2);
    all_once("all rows are read and written without n3");
    stop.store(true, SeqCst);
    client.join().expect("every command was acknowledged");
    let log = cluster.log(2);
    assert!(log.contains("other nodes own this node's slots"), "{log}");
    cluster.restart(2);
    settle(&cluster, 0);
    cluster.wait_for("n3 owns its slots again", || {
        cluster.info(2, "cluster_slots_owned") != "0"
    });
}

/// Waits until `holds` returns true. Fails if the thread ends before.
fn wait_while_running(what: &str, thread: &std::thread::JoinHandle<()>, holds: impl Fn() -> bool) {
    while !holds() {
        assert!(!thread.is_finished(), "{what}: a client gave up");
        std::thread::yield_now();
    }
}
