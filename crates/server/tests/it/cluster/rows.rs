//! Rows of tables while nodes die, are suspended, join and leave: no acknowledged write is lost, and no stale value
//! is returned.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_testing::SetOnDrop;
use larder_types::Random;
use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use crate::full_disk::SmallDisk;
use crate::resp::{Client, request};
use crate::wire;

/// Number of rows, which are overwritten with increasing numbers. Every other row is a hash.
const ROWS: u64 = 40;

/// The knowledge of one writer about its rows.
#[derive(Default)]
struct Written {
    /// The last acknowledged number.
    acknowledged: BTreeMap<u64, u64>,
    /// Later numbers whose writes have an unknown outcome.
    unknown: BTreeMap<u64, Vec<u64>>,
    /// Replies other than OK.
    refused: Vec<String>,
}

fn key(row: u64) -> String {
    format!("t|u{row}|k")
}

fn is_hash(row: u64) -> bool {
    row.is_multiple_of(2)
}

fn ask(client: &mut Client, words: &[&str]) -> io::Result<String> {
    client.stream.get_mut().write_all(&request(words))?;
    Ok(wire::format_frame(&wire::frame(&mut client.stream)?))
}

/// Writes through varying nodes until `stop` is set. `progress` counts acknowledged writes.
fn write(nodes: &[SocketAddr], stop: &AtomicBool, progress: &AtomicU64) -> Written {
    let mut random = Random::new(7);
    let mut written = Written::default();
    let mut client: Option<Client> = None;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        if client.is_none() || random.below(50) == 0 {
            let addr = nodes[random.index(nodes.len())];
            let Ok(open) = Client::try_to(addr) else {
                continue;
            };
            client = Some(open);
        }
        let Some(open) = &mut client else { continue };
        number += 1;
        let row = random.below(ROWS);
        let (key, number_text) = (key(row), number.to_string());
        let reply = if is_hash(row) {
            ask(open, &["HSET", &key, "number", &number_text])
        } else {
            ask(open, &["SET", &key, &number_text])
        };
        match reply.as_deref() {
            Ok("+OK" | ":0" | ":1") => {
                written.acknowledged.insert(row, number);
                written.unknown.remove(&row);
                progress.fetch_add(1, Ordering::Relaxed);
            }
            other => {
                if other.is_err() {
                    client = None;
                }
                written.unknown.entry(row).or_default().push(number);
                let reply = other.map_or_else(|error| error.to_string(), str::to_owned);
                written.refused.push(reply);
            }
        }
    }
    written
}

#[track_caller]
fn check(cluster: &Cluster, node: usize, written: &Written) {
    let mut client = cluster.client(node);
    for (row, acknowledged) in &written.acknowledged {
        let reply = if is_hash(*row) {
            client.call(&format!("HGET {} number", key(*row)))
        } else {
            client.call(&format!("GET {}", key(*row)))
        };
        let value = reply
            .rsplit('|')
            .next()
            .and_then(|it| it.parse::<u64>().ok());
        let unknown = written.unknown.get(row);
        let holds = value.is_some_and(|value| {
            value == *acknowledged || unknown.is_some_and(|all| all.contains(&value))
        });
        assert!(
            holds,
            "{}: {reply}, and {acknowledged} was acknowledged last, unknown are {unknown:?}\n{}",
            key(*row),
            cluster.logs()
        );
    }
}

/// A complete SCAN, and KEYS, return all rows that exist throughout, or an error if a move takes too long.
#[track_caller]
fn check_lists(cluster: &Cluster, client: &mut Client) {
    let all: BTreeSet<String> = (0..ROWS).map(key).collect();
    let mut scanned = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let reply = client.call(&format!("SCAN {cursor} MATCH t|* COUNT 17"));
        if is_retry_error(&reply) {
            return;
        }
        let mut words = reply.split('|').filter(|it| !it.starts_with(['*', '$']));
        cursor = words.next().unwrap_or_default().to_owned();
        assert!(cursor.parse::<u64>().is_ok(), "{reply}\n{}", cluster.logs());
        scanned.extend(parse_list(&reply));
        if cursor == "0" {
            break;
        }
    }
    let missing = |of: &BTreeSet<String>| all.difference(of).cloned().collect::<Vec<String>>();
    assert_eq!(missing(&scanned), [""; 0], "SCAN\n{}", cluster.logs());
    let reply = client.call("KEYS t|*");
    if is_retry_error(&reply) {
        return;
    }
    assert_eq!(
        missing(&parse_list(&reply).collect()),
        [""; 0],
        "KEYS: {reply}\n{}",
        cluster.logs()
    );
}

fn is_retry_error(reply: &str) -> bool {
    let words = ["-CLUSTERDOWN ", "-TRYAGAIN ", "-LOADING "];
    words.iter().any(|word| reply.starts_with(word))
}

/// Returns the keys in a formatted reply, in which `|` also stands for line breaks.
fn parse_list(reply: &str) -> impl Iterator<Item = String> {
    let words: Vec<&str> = reply.split('|').collect();
    let keys = words.windows(3).filter(|it| it[0] == "t" && it[2] == "k");
    let keys: Vec<String> = keys.map(|it| it.join("|")).collect();
    keys.into_iter()
}

/// Runs `inject_faults` on the cluster while a writer writes, and then checks all rows through every node.
fn while_writing(
    cluster: &mut Cluster,
    inject_faults: impl FnOnce(&mut Cluster, &dyn Fn(&Cluster)),
) -> Written {
    let (stop, progress) = (AtomicBool::new(false), AtomicU64::new(0));
    let nodes: Vec<SocketAddr> = (0..cluster.len()).map(|node| cluster.resp(node)).collect();
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&nodes, &stop, &progress));
        let wait_for_writes = |cluster: &Cluster| {
            let before = progress.load(Ordering::Relaxed);
            cluster.wait_for("writes are acknowledged", || {
                progress.load(Ordering::Relaxed) > before + 200
            });
        };
        let stopping = SetOnDrop(&stop);
        wait_for_writes(cluster);
        inject_faults(cluster, &wait_for_writes);
        wait_for_writes(cluster);
        drop(stopping);
        writer.join().expect("the writer thread succeeds")
    });
    assert_eq!(written.acknowledged.len() as u64, ROWS);
    for node in cluster.running() {
        check(cluster, node, &written);
    }
    written
}

/// Starts three nodes with two copies of each row.
fn start() -> Option<Cluster> {
    start_with(&[])
}

/// Like [`start`], with additional settings.
pub fn start_with(settings: &[(&str, &str)]) -> Option<Cluster> {
    let settings = [&[("tables.replicas", "2")], settings].concat();
    Cluster::start(3, &settings)
}

/// Returns whether no slot is moving or being filled.
fn is_settled(cluster: &Cluster) -> bool {
    let (_, status) = cluster.get(cluster.running()[0], "/v1/cluster");
    let status: Value = serde_json::from_str(&status).unwrap_or_default();
    let slots = status["slots"].as_array().cloned().unwrap_or_default();
    let is_settled = |it: &Value| {
        let is_empty = |of: &str| it[of].as_array().is_some_and(Vec::is_empty);
        is_empty("goal") && is_empty("filling")
    };
    !slots.is_empty() && slots.iter().all(is_settled)
}

pub fn wait_until_settled(cluster: &Cluster) {
    cluster.wait_until_served();
    cluster.wait_for("every slot is at its planned owner", || is_settled(cluster));
}

#[test]
fn acknowledged_writes_survive_killing_each_node_in_turn() {
    let Some(mut cluster) = start() else {
        return;
    };
    while_writing(&mut cluster, |cluster, wait_for_writes| {
        for node in 0..3 {
            wait_until_settled(cluster);
            cluster.kill(node);
            cluster.wait_until_served();
            wait_for_writes(cluster);
            cluster.restart(node);
        }
        wait_until_settled(cluster);
    });
}

#[test]
fn acknowledged_writes_survive_killing_all_nodes_together() {
    let Some(mut cluster) = start() else {
        return;
    };
    while_writing(&mut cluster, |cluster, _| {
        (0..3).for_each(|node| cluster.kill(node));
        cluster.start_all();
        cluster.wait_until_served();
    });
}

#[test]
fn a_fourth_node_receives_its_share_during_writes() {
    let Some(mut cluster) = start() else {
        return;
    };
    while_writing(&mut cluster, |cluster, wait_for_writes| {
        cluster.wait_for("all rows were written once", || {
            parse_list(&cluster.ask(0, "KEYS t|*")).count() as u64 == ROWS
        });
        let fourth = cluster.add("n4", Vec::new(), false);
        cluster.restart(fourth);
        cluster.wait_for("the fourth node is up", || {
            cluster.info(fourth, "cluster_state") == "up"
        });
        // A read over several nodes succeeds throughout.
        let keys: Vec<String> = (0..ROWS).map(key).collect();
        let (line, mut reader) = (format!("MGET {}", keys.join(" ")), cluster.client(0));
        cluster.wait_for("the new node owns its share", || {
            let reply = reader.call(&line);
            assert!(
                reply.starts_with(&format!("*{ROWS}|")),
                "{reply} {}",
                cluster.logs()
            );
            check_lists(cluster, &mut reader);
            is_settled(cluster)
        });
        wait_until_settled(cluster);
        wait_for_writes(cluster);
        let own = cluster.ask(fourth, "CLUSTER SLOTS");
        let port = format!(":{}|", cluster.resp(fourth).port());
        assert!(own.contains(&port), "the new node owns slots: {own}");
    });
}

/// No node dies, so that no write may have an unknown outcome.
#[test]
fn every_write_succeeds_while_slots_move_between_running_nodes() {
    let Some(mut cluster) = start() else {
        return;
    };
    wait_until_settled(&cluster);
    let written = while_writing(&mut cluster, |cluster, wait_for_writes| {
        for node in [0, 1, 2] {
            for action in ["drain", "keep"] {
                let ask = json!({"action": action, "node": cluster.name(node)});
                let (status, answer) = cluster.post(node, "/v1/cluster/asks", &ask);
                assert_eq!(status, 200, "{answer}");
                let owns = || cluster.info(node, "cluster_slots_owned") != "0";
                cluster.wait_for("slots have moved", || owns() == (action == "keep"));
                wait_until_settled(cluster);
                wait_for_writes(cluster);
            }
        }
    });
    assert_eq!(written.refused, Vec::<String>::new(), "{}", cluster.logs());
}

#[test]
fn nodes_that_reach_only_etcd_lose_nothing_and_serve_nothing_stale() {
    let options = Options::new(3).set("tables.replicas", 2).peers_proxied();
    let Some(cluster) = options.start() else {
        return;
    };
    wait_until_settled(&cluster);
    let keys: Vec<String> = (0..3).map(|node| owned_key(&cluster, node)).collect();
    for key in &keys {
        cluster.client(0).check(&format!("SET {key} before"), "+OK");
    }
    (0..3).for_each(|node| cluster.peer_proxy(node).cut());
    for (node, key) in keys.iter().enumerate() {
        // The owner's replica does not respond, and counts as in sync until the map changes. Until then, the outcome
        // of a write is unknown.
        cluster.wait_for("the owner accepts writes while partitioned", || {
            let reply = cluster.ask(node, &format!("SET {key} alone"));
            assert!(reply == "+OK" || reply.starts_with("-UNKNOWN"), "{reply}");
            reply == "+OK"
        });
        cluster
            .client(node)
            .check(&format!("GET {key}"), "$5|alone");
        let other = cluster.ask((node + 1) % 3, &format!("GET {key}"));
        assert!(other.starts_with("-CLUSTERDOWN"), "{other}");
    }
    for node in 0..3 {
        cluster.wait_for("the node reports the unreachable nodes", || {
            let (status, reply) = cluster.get(node, "/readyz");
            status == 503 && reply.contains("cannot be reached")
        });
    }
    (0..3).for_each(|node| cluster.peer_proxy(node).heal());
    wait_until_settled(&cluster);
    for node in 0..3 {
        for key in &keys {
            cluster
                .client(node)
                .check(&format!("GET {key}"), "$5|alone");
        }
    }
}

/// Returns a key that a node owns.
fn owned_key(cluster: &Cluster, owner: usize) -> String {
    owned_keys(cluster, owner, 1).remove(0)
}

/// Returns keys that a node owns.
pub fn owned_keys(cluster: &Cluster, owner: usize, count: usize) -> Vec<String> {
    let (_, status) = cluster.get(owner, "/v1/cluster");
    let status: Value = serde_json::from_str(&status).expect("JSON");
    let slots = status["slots"].as_array().expect("a list");
    let owns = |tag: u64| {
        let slot = u64::from(larder_types::slot_of(format!("{{{tag}}}").as_bytes()));
        let range = |it: &&Value| {
            let at = |of: &str| it[of].as_u64().expect("a slot");
            (at("from")..=at("to")).contains(&slot)
        };
        let found = slots.iter().find(range);
        found.is_some_and(|it| it["owner"] == cluster.name(owner))
    };
    let tags = (0..).filter(|tag| owns(*tag)).take(count);
    tags.map(|tag| format!("t|{{{tag}}}|k")).collect()
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &to)
        } else {
            std::fs::copy(entry.path(), to).expect("copied");
        }
    }
}

#[test]
fn a_node_with_an_old_disk_is_refilled_and_restores_no_old_rows() {
    let Some(mut cluster) = start() else {
        return;
    };
    wait_until_settled(&cluster);
    let old = tempfile::tempdir().expect("a folder");
    while_writing(&mut cluster, |cluster, wait_for_writes| {
        // The graceful shutdown makes the copied state complete.
        cluster.shut_down(2);
        copy_folder(&cluster.data(2), &old.path().join("data"));
        cluster.restart(2);
        wait_until_settled(cluster);
        wait_for_writes(cluster);
        cluster.kill(2);
        std::fs::remove_dir_all(cluster.data(2)).expect("removed");
        copy_folder(&old.path().join("data"), &cluster.data(2));
        cluster.restart(2);
        wait_until_settled(cluster);
        // The node now owns slots whose other copies are gone.
        cluster.kill(0);
        cluster.wait_until_served();
    });
    let log = cluster.log(2);
    assert!(log.contains("are not valid any more"), "{log}");
}

/// Fills a node's disk and writes `key` until the node reports that the disk is full. Returns the client and the number of its
/// writes. The node replaces its copy of the map at any time; that frees the space of the older copy, so the disk is filled
/// repeatedly.
pub fn fill_disk(cluster: &Cluster, node: usize, disk: &SmallDisk, key: &str) -> (Client, usize) {
    let write = request(&["SET", key, &"x".repeat(20_000)]);
    let mut client = cluster.client(node);
    let mut writes = 0;
    cluster.wait_for("the node reports that its disk is full", || {
        disk.fill();
        client.send(&write);
        writes += 1;
        let (status, why) = cluster.get(node, "/readyz");
        status == 503 && why.contains("the disk is full; free space there")
    });
    (client, writes)
}

#[test]
fn a_full_disk_rejects_writes_only_on_its_own_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(disk) = SmallDisk::mount(&folder.path().join("disk"), 6) else {
        return larder_testing::report_unsupported("mount a small file system (it takes root)");
    };
    // The node keeps its slots.
    let options = Options::new(3)
        .set("tables.replicas", 2)
        .set("tables.stall_seconds", 3600);
    let data = disk.0.join("data").display().to_string();
    let Some(cluster) = options.set_on(1, "server.data", data).start() else {
        return;
    };
    wait_until_settled(&cluster);
    let [mine, others] = [1, 0].map(|node| owned_key(&cluster, node));
    let (mut held, sent) = fill_disk(&cluster, 1, &disk, &mine);
    let set = |key: &str, value: &str| cluster.ask(0, &format!("SET {key} {value}"));
    cluster.wait_for("the node rejects writes to its slots", || {
        disk.fill();
        set(&mine, "1").starts_with("-DISKFULL ")
    });
    // Slots of which this node has a replica accept writes as well, because their owners no longer wait for it.
    for row in 0..30 {
        let key = format!("t|{row}|full");
        cluster.wait_for("the other nodes accept writes", || {
            let answer = set(&key, "1");
            answer == "+OK" || answer.starts_with("-DISKFULL ")
        });
    }
    assert_eq!(set(&others, "1"), "+OK");
    disk.free();
    for _ in 0..sent {
        // The write waited until there was space, or was refused; if the connection ended, its outcome is unknown.
        let Some(reply) = held.reply_or_end() else {
            break;
        };
        assert!(reply == "+OK" || reply.starts_with("-DISKFULL "), "{reply}");
    }
    cluster.wait_for("the node accepts writes again", || set(&mine, "2") == "+OK");
    wait_until_settled(&cluster);
    for node in 0..3 {
        assert_eq!(cluster.ask(node, &format!("GET {mine}")), "$1|2");
        assert_eq!(cluster.ask(node, &format!("GET {others}")), "$1|1");
    }
}

/// The reply reveals the removal, which a failover could undo before it is replicated.
#[test]
fn a_write_waits_for_the_replication_of_the_delete_that_it_observed() {
    let settings = [("tables.replicas", "2"), ("cluster.lease_seconds", "20")];
    let Some(cluster) = Cluster::start(2, &settings) else {
        return;
    };
    wait_until_settled(&cluster);
    let key = owned_key(&cluster, 0);
    let mut clients: Vec<Client> = (0..4).map(|_| cluster.client(0)).collect();
    clients[0].check(&format!("SET {key} 1"), "+OK");
    cluster.suspend(1);
    for client in &mut clients[..2] {
        client.send(&request(&["DEL", &key]));
    }
    clients[2].send(&request(&["SET", &key, "2", "XX"]));
    // By now, the core has executed the commands.
    for _ in 0..100 {
        clients[3].check("PING", "+PONG");
    }
    for client in &mut clients[1..3] {
        client.stream.get_ref().set_nonblocking(true).expect("set");
        let early = client.stream.fill_buf().map(<[u8]>::to_vec);
        let why = early.expect_err("the reply arrived before the removal was replicated");
        assert_eq!(why.kind(), io::ErrorKind::WouldBlock);
        client.stream.get_ref().set_nonblocking(false).expect("set");
    }
    cluster.resume(1);
    let reply: Vec<String> = clients[..3].iter_mut().map(Client::reply).collect();
    assert_eq!(reply, [":1", ":0", "$-1"]);
}

#[test]
fn a_suspended_node_serves_nothing_stale() {
    let Some(cluster) = start() else {
        return;
    };
    wait_until_settled(&cluster);
    let owner = 0;
    let seen_by = (owner + 1) % 3;
    let name = cluster.name(owner).to_owned();
    let key = owned_key(&cluster, owner);
    assert_eq!(cluster.ask(seen_by, &format!("SET {key} old")), "+OK");
    let mut reader = cluster.client(owner);
    let mut writer = cluster.client(owner);
    cluster.suspend(owner);
    reader.send(&request(&["GET", &key]));
    writer.send(&request(&["SET", &key, "late"]));
    cluster.wait_until_down(seen_by, owner);
    cluster.wait_for("another node accepts its writes", || {
        cluster.ask(seen_by, &format!("SET {key} new")) == "+OK"
    });
    cluster.resume(owner);
    // If the connection was closed, the outcome of its request is unknown.
    let (read, wrote) = (reader.reply_or_end(), writer.reply_or_end());
    cluster.wait_for("the node has a new incarnation", || {
        cluster.state(seen_by, &name) == "up" && cluster.info(owner, "cluster_missing").is_empty()
    });
    let now = cluster.ask(seen_by, &format!("GET {key}"));
    let may_be: &[&str] = match wrote.as_deref() {
        Some("+OK") => &["$4|late"],
        Some(_) => &["$3|new"],
        None => &["$3|new", "$4|late"],
    };
    assert!(
        may_be.contains(&&*now),
        "{now}; the late write was answered {wrote:?}"
    );
    assert!(
        read.as_ref()
            .is_none_or(|read| read.starts_with('-') || read == "$3|new" || read == "$4|late"),
        "the suspended node served a stale value: {read:?}\n{}",
        cluster.logs()
    );
}
