//! Histories of many concurrent clients through all nodes, while nodes are killed, suspended or partitioned.
//! `larder-validate` checks that no acknowledged write is lost, that no rejected write takes effect, and that some order
//! of the writes explains every read.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use larder_testing::SetOnDrop;
use larder_validate::record::{Outcome, Record};
use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;
use super::stores;
use crate::source::{Fault, Source};
use crate::validation::actor::{Actor, JOINS, prepare};
use crate::validation::check_explained;

const CLIENTS: u32 = 6;
/// Number of replies between two faults, summed over all clients.
const CALLS: u64 = 400;

/// Runs one client, which uses any node that answers, and returns its records.
fn client(
    session: u32,
    nodes: &[SocketAddr],
    clock: Instant,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Vec<Record> {
    let mut at = session as usize;
    let mut actor = Actor::in_cluster(nodes[at % nodes.len()], clock, session, 0);
    while !stop.load(SeqCst) {
        if actor.act().is_ok() {
            done.fetch_add(1, SeqCst);
            continue;
        }
        // Moves to another node, and sends only a cheap read until a node answers again.
        while !stop.load(SeqCst) {
            at += 1;
            let is_there = actor.move_to(nodes[at % nodes.len()]);
            if is_there.and_then(|()| actor.read_once()).is_ok() {
                break;
            }
            std::thread::yield_now();
        }
    }
    actor.records
}

/// Returns the history of several clients while `inject_faults` runs on the cluster. The second argument of `inject_faults` is a
/// function that waits until further calls were answered.
fn history(
    cluster: &mut Cluster,
    inject_faults: impl FnOnce(&mut Cluster, &dyn Fn(&Cluster)),
) -> Vec<Record> {
    prepare(cluster.resp(0));
    let joins = format!("*{}|", 2 * JOINS.len());
    for node in 0..cluster.len() {
        cluster.wait_for("all nodes have the joins", || {
            cluster.ask(node, "JOIN.LIST").starts_with(&joins)
        });
    }
    wait_until_settled(cluster);
    let nodes: Vec<SocketAddr> = (0..cluster.len()).map(|node| cluster.resp(node)).collect();
    let (clock, stop, done) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
    let mut records = Vec::new();
    std::thread::scope(|scope| {
        let spawn = |session| {
            let (nodes, stop, done) = (&nodes, &stop, &done);
            scope.spawn(move || client(session, nodes, clock, stop, done))
        };
        let clients: Vec<_> = (0..CLIENTS).map(spawn).collect();
        let stopping = SetOnDrop(&stop);
        let wait_for_calls = |cluster: &Cluster| {
            let before = done.load(SeqCst);
            cluster.wait_for("calls return", || done.load(SeqCst) > before + CALLS);
        };
        wait_for_calls(cluster);
        inject_faults(cluster, &wait_for_calls);
        wait_for_calls(cluster);
        drop(stopping);
        for client in clients {
            records.extend(client.join().expect("the client thread succeeds"));
        }
    });
    wait_until_settled(cluster);
    let mut last = Actor::in_cluster(cluster.resp(1), clock, CLIENTS, 0);
    last.read_end_state();
    records.extend(last.records);
    records
}

#[track_caller]
fn check(cluster: &Cluster, records: &[Record]) {
    let unknown = records.iter().filter(|it| it.outcome == Outcome::Unknown);
    eprintln!("{} records, {} unknown", records.len(), unknown.count());
    let result = std::panic::catch_unwind(|| check_explained(records));
    let report = result.unwrap_or_else(|why| {
        eprintln!("{}", cluster.logs());
        std::panic::resume_unwind(why)
    });
    assert!(report.total.reads > CALLS, "{report:?}");
}

/// Kills and restarts two nodes, one after the other.
pub(super) fn kill_two(cluster: &mut Cluster, wait_for_calls: &dyn Fn(&Cluster)) {
    for node in [0, 2] {
        wait_until_settled(cluster);
        cluster.kill(node);
        cluster.wait_until_served();
        wait_for_calls(cluster);
        cluster.restart(node);
    }
}

/// Suspends two nodes, one after the other, for longer than their lease.
pub(super) fn stop_two(cluster: &mut Cluster, wait_for_calls: &dyn Fn(&Cluster)) {
    for node in [1, 0] {
        wait_until_settled(cluster);
        cluster.suspend(node);
        cluster.wait_until_down(2, node);
        cluster.resume(node);
        wait_for_calls(cluster);
    }
}

/// Partitions a running node from etcd and from the other nodes' connections to it.
pub(super) fn partition_one(cluster: &Cluster, wait_for_calls: &dyn Fn(&Cluster)) {
    cluster.cut_off(1);
    cluster.wait_until_down(0, 1);
    wait_for_calls(cluster);
    cluster.heal(1);
    wait_until_settled(cluster);
}

#[test]
fn histories_are_consistent_while_nodes_are_killed() {
    kill_and_return(1);
}

/// With two cores, join outputs are computed from rows of other cores of the same node, and from rows of other nodes.
#[test]
fn histories_are_consistent_while_two_core_nodes_are_killed() {
    kill_and_return(2);
}

fn kill_and_return(threads: u32) {
    let options = Options::new(3).set("tables.replicas", 2);
    let Some(mut cluster) = options.set("server.threads", threads).start() else {
        return;
    };
    let records = history(&mut cluster, kill_two);
    check(&cluster, &records);
}

#[test]
fn histories_are_consistent_while_nodes_are_suspended() {
    let Some(mut cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    let records = history(&mut cluster, stop_two);
    check(&cluster, &records);
}

#[test]
fn histories_are_consistent_while_nodes_are_partitioned() {
    let options = Options::new(3).set("tables.replicas", 2).proxied();
    let Some(mut cluster) = options.peers_proxied().start() else {
        return;
    };
    let records = history(&mut cluster, |cluster, wait_for_calls| {
        partition_one(cluster, wait_for_calls);
        // Partitions the node from etcd only. The other nodes can still reach it.
        cluster.etcd_proxy(0, 0).cut();
        cluster.wait_until_down(2, 0);
        wait_for_calls(cluster);
        cluster.etcd_proxy(0, 0).heal();
        wait_until_settled(cluster);
        // Partitions the node from the other nodes only. It keeps its lease and its slots, and all nodes report the
        // fault.
        cluster.peer_proxy(2).cut();
        cluster.wait_for("the node is reported as unreachable", || {
            cluster
                .get(0, "/readyz")
                .1
                .contains("node n3 is connected to etcd, and cannot be reached by n1, n2: ")
        });
        let (status, why) = cluster.get(2, "/readyz");
        assert!(status == 503 && why.contains("cannot be reached"), "{why}");
        cluster.peer_proxy(2).heal();
        wait_until_settled(cluster);
        let (_, why) = cluster.get(0, "/readyz");
        assert_eq!(why, "ready\n");
    });
    check(&cluster, &records);
}

/// Slots are filled on a new node and move to it in many small steps, while the participating nodes are killed,
/// suspended and partitioned.
#[test]
fn histories_are_consistent_while_moves_and_fills_are_interrupted() {
    let options = Options::new(3).set("tables.replicas", 2).proxied();
    let Some(mut cluster) = options.peers_proxied().start() else {
        return;
    };
    let records = history(&mut cluster, |cluster, wait_for_calls| {
        let set = json!({"action": "set", "settings": {"fill_slots_at_once": 128}});
        assert_eq!(cluster.post(0, "/v1/cluster/asks", &set).0, 200);
        let new = cluster.add("n4", Vec::new(), false);
        cluster.restart(new);
        let moves = |cluster: &Cluster| {
            cluster.wait_for("slots move to the new node", || {
                let (_, status) = cluster.get(2, "/v1/cluster");
                let status: Value = serde_json::from_str(&status).unwrap_or_default();
                let members = status["members"].as_array().cloned().unwrap_or_default();
                let new = members.iter().find(|it| it["name"] == "n4");
                new.is_some_and(|it| it["slots_filling"] != 0)
            });
        };
        moves(cluster);
        cluster.kill(new);
        cluster.restart(new);
        moves(cluster);
        cluster.suspend(0);
        cluster.wait_until_down(2, 0);
        cluster.resume(0);
        moves(cluster);
        cluster.cut_off(1);
        cluster.wait_until_down(2, 1);
        cluster.heal(1);
        let set = json!({"action": "set", "settings": {"fill_slots_at_once": 16_384}});
        cluster.wait_for("a controller is elected", || {
            cluster.post(2, "/v1/cluster/asks", &set).0 == 200
        });
        wait_for_calls(cluster);
    });
    check(&cluster, &records);
}

/// The controller moves to a node with another clock during a push, and rows move to owners with other clocks.
#[test]
fn histories_are_consistent_with_clocks_an_hour_apart() {
    let options = Options::new(3).set("tables.replicas", 2);
    let options = options.set("fetch.allow", "/,http://127.0.0.1/");
    let Some(mut cluster) = options.clocks(&[0, 3_600, -3_600]).start() else {
        return;
    };
    let folder = stores::version("one");
    let source = Source::serve(folder.path());
    (0..9).for_each(|_| source.break_next("p00003.segment", Fault::Hold));
    let records = history(&mut cluster, |cluster, wait_for_calls| {
        let first = cluster.index_of(&cluster.info(0, "cluster_controller"));
        let other = (first + 1) % 3;
        let request = json!({ "source": source.url() });
        let (status, started) = cluster.post(other, "/v1/stores/s/pull", &request);
        assert_eq!(status, 202, "{started}");
        source.wait_for("p00003.segment", 1);
        // Each of these controllers has another clock. The second one takes a few seconds more.
        let controllers = match std::env::var_os("LARDER_SLOW_TESTS") {
            Some(_) => 2,
            None => 1,
        };
        for _ in 0..controllers {
            let leads = cluster.index_of(&cluster.info(other, "cluster_controller"));
            if leads == other {
                // The node that waits for the push is the controller now.
                break;
            }
            cluster.kill(leads);
            cluster.wait_until_down(other, leads);
            wait_for_calls(cluster);
            cluster.restart(leads);
            wait_until_settled(cluster);
        }
        let (_, status) = cluster.get(other, "/v1/cluster");
        assert!(status.contains(source.url()), "the push goes on: {status}");
        cluster.wait_for("the version is live", || {
            source.release_held();
            cluster.get(other, "/v1/stores/s/keys/k1").1 == "one"
        });
    });
    check(&cluster, &records);
}

/// Kills one of three members of etcd, the leader, which has no effect. Then kills all of them; writes that are
/// rejected meanwhile must not happen.
#[test]
fn histories_are_consistent_while_etcd_members_are_killed() {
    let options = Options::new(3).set("tables.replicas", 2).etcd_members(3);
    let Some(mut cluster) = options.start() else {
        return;
    };
    let records = history(&mut cluster, |cluster, wait_for_calls| {
        cluster.etcd.kill(cluster.etcd.leader());
        wait_for_calls(cluster);
        cluster.etcd.start_all().expect("etcd starts");
        (0..3).for_each(|member| cluster.etcd.kill(member));
        for node in 0..3 {
            cluster.wait_for("the lease may have expired", || {
                cluster.info(node, "cluster_lease_left_ms") == "0"
            });
            let refused = cluster.ask(node, "SET t|{x}|refused 1");
            assert!(refused.starts_with("-CLUSTERDOWN "), "{refused}");
        }
        cluster.etcd.start_all().expect("etcd starts");
        cluster.wait_until_served();
        assert_eq!(cluster.ask(0, "GET t|{x}|refused"), "$-1");
    });
    check(&cluster, &records);
}
