//! A node that is partitioned from etcd while the other nodes continue. It serves no reads from a version that a
//! newer map has replaced.

use serde_json::{Value, json};

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;
use super::stores::{mget, text, version};

/// Starts three nodes with two copies of each partition, and partitions one from etcd between the pushes of two
/// versions. Returns the cluster and the index of that node.
fn partitioned_cluster(reads: &str) -> Option<(Cluster, usize)> {
    let cluster = Options::new(3)
        .set("tables.replicas", 2)
        .set("fetch.allow", "/")
        .set("cluster.cut_off_reads", reads)
        .proxied()
        .start()?;
    wait_until_settled(&cluster);
    let (old, new) = (version("v1"), version("v2"));
    let controller = cluster.index_of(&cluster.info(0, "cluster_controller"));
    let (other, seen_by) = ((controller + 1) % 3, (controller + 2) % 3);
    push(&cluster, seen_by, text(old.path()));
    cluster.wait_for("the first version is live", || {
        cluster.ask(other, "GET s:k1") == "$2|v1"
    });
    cluster.etcd_proxy(other, 0).cut();
    cluster.wait_until_down(seen_by, other);
    push(&cluster, seen_by, text(new.path()));
    assert_eq!(cluster.ask(seen_by, "GET s:k1"), "$2|v2");
    Some((cluster, other))
}

fn push(cluster: &Cluster, node: usize, source: &str) {
    let (status, answer) = cluster.post(node, "/v1/stores/s/pull", &json!({ "source": source }));
    assert_eq!(status, 202, "{answer}");
    let pull: Value = serde_json::from_str(&answer).expect("JSON");
    let id = pull["id"].as_str().expect("an id");
    let (_, ended) = cluster.get(node, &format!("/v1/pulls/{id}?wait=60"));
    let ended: Value = serde_json::from_str(&ended).expect("JSON");
    assert_eq!(ended["state"], "done", "{ended:#}\n{}", cluster.logs());
}

fn check_not_ready(cluster: &Cluster, node: usize) {
    let (status, why) = cluster.get(node, "/readyz");
    let newer = "other nodes have a newer map of the cluster";
    assert!(status == 503 && why.contains(newer), "{status} {why}");
}

#[test]
fn a_partitioned_node_forwards_reads_to_the_newer_version() {
    let Some((cluster, other)) = partitioned_cluster("forward") else {
        return;
    };
    let mut client = cluster.client(other);
    cluster.wait_for("the node reads the newer version", || {
        client.call("GET s:k1") == "$2|v2"
    });
    check_not_ready(&cluster, other);
    for key in 0..50 {
        client.check(&format!("GET s:k{key}"), "$2|v2");
    }
    assert!(!client.call(&mget()).contains("v1"));
    cluster.etcd_proxy(other, 0).heal();
    let mut is_ready = false;
    while !is_ready {
        is_ready = cluster.get(other, "/readyz").0 == 200;
        client.check("GET s:k1", "$2|v2");
        assert!(!client.call(&mget()).contains("v1"));
    }
}

#[test]
fn a_partitioned_node_rejects_reads_if_configured() {
    let Some((cluster, other)) = partitioned_cluster("refuse") else {
        return;
    };
    let mut client = cluster.client(other);
    cluster.wait_for("the node rejects reads", || {
        client
            .call("GET s:k1")
            .starts_with("-CLUSTERDOWN store s cannot be read: this node's lease has ended")
    });
    check_not_ready(&cluster, other);
    assert_eq!(cluster.get(other, "/v1/stores/s/keys/k1").0, 503);
    assert!(client.call(&mget()).starts_with("-CLUSTERDOWN "));
    cluster.etcd_proxy(other, 0).heal();
    cluster.wait_for("the node reads again", || {
        client.call("GET s:k1") == "$2|v2"
    });
}
