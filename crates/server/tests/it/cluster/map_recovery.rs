//! etcd loses the cluster map, or returns to an older one. No node serves by such a map, and a recovery restores
//! every acknowledged write.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;

const ROWS: usize = 300;

fn key(row: usize) -> String {
    format!("post|u{row}|1")
}

/// Writes all rows. Repeats a write that is rejected or whose outcome is unknown.
fn write_rows(cluster: &Cluster, value: &str) {
    for row in 0..ROWS {
        cluster.wait_for("a row is written", || {
            cluster.ask(0, &format!("SET {} {value}{row}", key(row))) == "+OK"
        });
    }
}

/// Checks that every node returns the expected value of each row. Temporary errors are allowed, other values and
/// absence are not.
#[track_caller]
fn check_rows(cluster: &Cluster, value: &str) {
    for node in cluster.running() {
        for row in 0..ROWS {
            let text = format!("{value}{row}");
            let expected = format!("${}|{text}", text.len());
            cluster.wait_for("a row is read", || {
                let reply = cluster.ask(node, &format!("GET {}", key(row)));
                let is_read = !reply.starts_with('-');
                assert!(!is_read || reply == expected, "row {row}: {reply}");
                is_read
            });
        }
    }
}

/// Starts three nodes with two copies of each row, adds a fourth, and creates a join and some rows.
fn four_nodes() -> Option<Cluster> {
    let mut cluster = Options::new(3).set("tables.replicas", 2).start()?;
    cluster.add("n4", Vec::new(), false);
    cluster.start_all();
    cluster.wait_for_state(3, "up");
    wait_until_settled(&cluster);
    let mut client = cluster.client(0);
    client.create("by", "by|<time>|<poster> = copy post|<poster>|<time>");
    write_rows(&cluster, "v");
    Some(cluster)
}

fn restart_all(cluster: &mut Cluster) {
    for node in cluster.running() {
        cluster.kill(node);
    }
    for node in 0..cluster.len() {
        cluster.restart(node);
    }
}

/// Waits until every node is not ready with a reason that contains `words`. Then checks that no node answers a read,
/// and that none reports a row as absent.
#[track_caller]
fn check_refused(cluster: &Cluster, words: &str) {
    // A node that has not noticed the loss yet still answers forwarded requests.
    for node in cluster.running() {
        cluster.wait_for("the node rejects requests", || {
            let (status, body) = cluster.get(node, "/readyz");
            let is_rejected = cluster
                .ask(node, "GET post|u0|1")
                .starts_with("-CLUSTERDOWN");
            status == 503 && body.contains(words) && is_rejected
        });
    }
    for node in cluster.running() {
        let (_, status) = cluster.get(node, "/v1/cluster");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let missing = status["missing"].as_str().unwrap_or_default();
        assert!(missing.contains("larder cluster recover"), "{status}");
        let mut client = cluster.client(node);
        for row in 0..ROWS {
            let reply = client.call(&format!("GET {}", key(row)));
            assert!(reply.starts_with("-CLUSTERDOWN"), "{reply}");
        }
    }
}

/// Returns the state that these nodes have kept on disk.
fn read_kept(cluster: &Cluster, nodes: &[usize]) -> Vec<Value> {
    let reports = nodes.iter().map(|&node| {
        let (status, body) = cluster.get(node, "/v1/cluster/kept");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    });
    reports.collect()
}

/// Plans a recovery from the state of these nodes, checks that all slots have their newest rows, and executes it.
#[track_caller]
fn recover(cluster: &Cluster, nodes: &[usize]) -> Value {
    let mut request = json!({ "kept": read_kept(cluster, nodes) });
    let (status, planned) = cluster.post(nodes[0], "/v1/cluster/recover", &request);
    assert_eq!(status, 200, "{planned}");
    let planned: Value = serde_json::from_str(&planned).expect("JSON");
    assert_eq!(planned["waiting"], json!([]), "{planned}");
    assert_eq!(planned["slots_unconfirmed"], 0, "{planned}");
    assert_eq!(planned["is_written"], false);
    request["write"] = json!(true);
    let (status, written) = cluster.post(nodes[0], "/v1/cluster/recover", &request);
    assert_eq!(status, 200, "{written}");
    serde_json::from_str(&written).expect("JSON")
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

#[test]
fn a_cluster_recovers_every_row_after_etcd_lost_its_data() {
    let Some(mut cluster) = four_nodes() else {
        return;
    };
    cluster.etcd.lose_data().expect("etcd starts");
    // Running nodes detect the loss, and restarted ones do not create a new cluster.
    check_refused(&cluster, "etcd's data was lost");
    restart_all(&mut cluster);
    check_refused(&cluster, "etcd's data was lost");
    // A node that has never been in the cluster does not create a new one either.
    let stranger = cluster.add("n5", Vec::new(), false);
    cluster.restart(stranger);
    cluster.wait_for("the new node waits", || {
        let (_, body) = cluster.get(stranger, "/readyz");
        body.contains("applied the cluster's map up to epoch")
    });
    cluster.kill(stranger);
    let written = recover(&cluster, &[0, 1, 2, 3]);
    assert_eq!(written["joins"], json!(["by"]), "{written}");
    cluster.wait_until_served();
    check_rows(&cluster, "v");
    cluster.wait_for("the join is restored", || {
        (cluster.running().iter()).all(|&node| cluster.ask(node, "JOIN.LIST").contains("by|"))
    });
    cluster.client(2).check("GET by|1|u7", "$2|v7");
    let repeated = json!({ "kept": read_kept(&cluster, &[0, 1, 2, 3]), "write": true });
    let (status, reply) = cluster.post(0, "/v1/cluster/recover", &repeated);
    assert_eq!(status, 409, "{reply}");
    assert!(reply.contains("nothing to recover"), "{reply}");
}

#[test]
fn an_absent_node_keeps_the_slots_whose_only_rows_it_has() {
    let Some(mut cluster) = Cluster::start(2, &[]) else {
        return;
    };
    write_rows(&cluster, "v");
    cluster.etcd.lose_data().expect("etcd starts");
    check_refused(&cluster, "etcd's data was lost");
    cluster.kill(1);
    let request = json!({ "kept": read_kept(&cluster, &[0]), "write": true });
    let (status, reply) = cluster.post(0, "/v1/cluster/recover", &request);
    assert_eq!(status, 200, "{reply}");
    let reply: Value = serde_json::from_str(&reply).expect("JSON");
    assert_eq!(reply["waiting"][0]["nodes"], json!(["n2"]), "{reply}");
    // The rows of the absent node are not reported as absent meanwhile.
    cluster.wait_for("the other half is served", || {
        cluster
            .ask(0, "CLUSTER INFO")
            .contains("cluster_slots_ok:8192")
    });
    let mut client = cluster.client(0);
    for row in 0..ROWS {
        assert_ne!(client.call(&format!("GET {}", key(row))), "$-1");
    }
    cluster.restart(1);
    cluster.wait_until_served();
    check_rows(&cluster, "v");
}

#[test]
fn nodes_reject_an_older_copy_of_etcds_data() {
    let Some(mut cluster) = Options::new(3).set("tables.replicas", 2).start() else {
        return;
    };
    let old = tempfile::tempdir().expect("a folder");
    let copied = old.path().join("etcd");
    cluster.etcd.kill(0);
    copy(&cluster.etcd.data(0), &copied);
    cluster.etcd.start_all().expect("etcd starts");
    cluster.wait_until_served();
    cluster.add("n4", Vec::new(), false);
    cluster.start_all();
    cluster.wait_for_state(3, "up");
    wait_until_settled(&cluster);
    write_rows(&cluster, "v");
    cluster.etcd.kill(0);
    copy(&copied, &cluster.etcd.data(0));
    cluster.etcd.start_all().expect("etcd starts");
    check_refused(&cluster, "an old copy of etcd's data was restored");
    restart_all(&mut cluster);
    check_refused(&cluster, "an old copy of etcd's data was restored");
    recover(&cluster, &[0, 1, 2, 3]);
    cluster.wait_until_served();
    check_rows(&cluster, "v");
}

#[test]
fn recovery_ignores_old_values_on_a_returned_disk() {
    let Some(mut cluster) = Options::new(3).set("tables.replicas", 2).start() else {
        return;
    };
    write_rows(&cluster, "old");
    let old = tempfile::tempdir().expect("a folder");
    let copied = old.path().join("data");
    cluster.shut_down(2);
    copy(&cluster.data(2), &copied);
    cluster.restart(2);
    cluster.wait_until_served();
    wait_until_settled(&cluster);
    write_rows(&cluster, "new");
    cluster.etcd.lose_data().expect("etcd starts");
    for node in 0..3 {
        cluster.kill(node);
    }
    copy(&copied, &cluster.data(2));
    (0..3).for_each(|node| cluster.restart(node));
    check_refused(&cluster, "etcd's data was lost");
    let written = recover(&cluster, &[0, 1, 2]);
    let members = written["members"].as_array().expect("a list");
    let old = members.iter().find(|it| it["name"] == "n3").expect("n3");
    assert_eq!(old["state"], "other disk", "{written}");
    assert_eq!(old["slots_owned"], 0, "{written}");
    cluster.wait_until_served();
    check_rows(&cluster, "new");
}
