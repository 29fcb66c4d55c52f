//! Nodes that join, die and return, and outages of etcd.

use super::harness::{Cluster, Options};

/// Returns the distinct replies to CLUSTER SLOTS of all running nodes.
fn slots(cluster: &Cluster) -> Vec<String> {
    let mut replies: Vec<String> = cluster
        .running()
        .iter()
        .map(|&node| cluster.ask(node, "CLUSTER SLOTS"))
        .collect();
    replies.sort();
    replies.dedup();
    replies
}

fn controller(cluster: &Cluster, seen_by: usize) -> usize {
    cluster.index_of(&cluster.info(seen_by, "cluster_controller"))
}

#[test]
fn three_nodes_share_all_slots_and_have_the_same_map() {
    let Some(cluster) = Cluster::start(3, &[]) else {
        return;
    };
    assert_eq!(slots(&cluster).len(), 1, "all nodes report the same slots");
    for node in 0..3 {
        let info = cluster.ask(node, "CLUSTER INFO");
        assert!(
            info.contains("cluster_state:ok") && info.contains("cluster_size:3"),
            "{info}"
        );
        assert_eq!(cluster.info(node, "cluster_state"), "up");
        assert_eq!(cluster.get(node, "/readyz"), (200, "ready\n".to_owned()));
        let nodes = cluster.ask(node, "CLUSTER NODES");
        let mine = format!("{}@", cluster.resp(node));
        let own = nodes
            .split(['|', '\n'])
            .find(|line| line.contains("myself"));
        assert!(own.is_some_and(|line| line.contains(&mine)), "{nodes}");
    }
    let leaders: Vec<usize> = (0..3).map(|node| controller(&cluster, node)).collect();
    assert!(leaders.iter().all(|it| *it == leaders[0]), "{leaders:?}");
}

#[test]
fn a_killed_node_loses_its_slots_when_its_lease_expires() {
    let Some(mut cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    cluster.kill(1);
    cluster.wait_for("n2 is down", || {
        cluster.ask(0, "CLUSTER NODES").contains("fail")
    });
    cluster.wait_until_served();
    let slot_maps = slots(&cluster);
    assert_eq!(slot_maps.len(), 1);
    let port = format!(":{}|", cluster.resp(1).port());
    assert!(
        !slot_maps[0].contains(&port),
        "clients are not sent to it: {}",
        slot_maps[0]
    );
    cluster.wait_for("the other nodes have completed their moves", || {
        let (_, status) = cluster.get(0, "/v1/cluster");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let moves = &status["moves"];
        // The node may still return, so that no replacement copies are made yet.
        moves["copied_slots"] == 0 && moves["owner_slots"] == 0
    });
    cluster.restart(1);
    cluster.wait_for("n2 is up", || {
        cluster.info(1, "cluster_state") == "up"
            && !cluster.ask(0, "CLUSTER NODES").contains("fail")
    });
}

#[test]
fn a_node_that_shuts_down_is_replaced_immediately_and_rejoins() {
    let Some(mut cluster) = Options::new(2)
        .set("tables.replicas", 2)
        .set("cluster.lease_seconds", 3_600)
        .start()
    else {
        return;
    };
    // With a lease of an hour, the test passes only if the failover does not wait for its end.
    cluster.shut_down(0);
    cluster.wait_until_served();
    cluster.restart(0);
    cluster.wait_for("n1 is back", || cluster.info(0, "cluster_state") == "up");
    // The same applies after a kill and a restart on the same data folder.
    cluster.kill(0);
    cluster.restart(0);
    cluster.wait_for("n1 is back", || cluster.info(0, "cluster_state") == "up");
}

#[test]
fn reads_continue_while_etcd_is_down_and_the_cluster_recovers() {
    let Some(cluster) = Cluster::start(2, &[]) else {
        return;
    };
    cluster.etcd.suspend(0);
    cluster.wait_for("the lease may have expired", || {
        cluster.info(0, "cluster_lease_left_ms") == "0"
    });
    cluster.wait_for("the node reports that etcd is unreachable", || {
        cluster
            .info(0, "cluster_etcd_trouble")
            .contains("does not answer")
    });
    let (status, ready) = cluster.get(0, "/readyz");
    assert!(
        status == 200 && ready.contains("reads of stores continue with the last map"),
        "{ready}"
    );
    assert!(
        cluster
            .ask(0, "CLUSTER INFO")
            .contains("cluster_slots_ok:16384")
    );
    assert!(
        cluster
            .ask(0, "CLUSTER INFO")
            .contains("cluster_etcd:silent")
    );
    assert!(cluster.log(0).contains("etcd does not answer"));
    cluster.etcd.resume(0);
    cluster.wait_until_served();
    cluster.wait_for("the cluster is healthy", || {
        (0..2).all(|node| {
            cluster.info(node, "cluster_etcd_trouble").is_empty()
                && cluster.info(node, "cluster_lease_left_ms") != "0"
        })
    });
}

#[test]
fn another_controller_takes_over_after_the_first_is_killed() {
    let Some(mut cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    let first = controller(&cluster, 0);
    cluster.kill(first);
    let seen_by = cluster.running()[0];
    cluster.wait_for("another node is the controller", || {
        let leads = cluster.info(seen_by, "cluster_controller");
        !leads.is_empty() && leads != cluster.name(first)
    });
    // The new controller detects the dead node and readmits it.
    cluster.wait_until_served();
    cluster.restart(first);
    cluster.wait_for("the first controller is up", || {
        cluster.info(first, "cluster_state") == "up"
    });
}

#[test]
fn the_second_of_two_servers_with_one_name_waits_and_reports_it() {
    let Some(mut cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let second = cluster.add("n1", Vec::new(), false);
    cluster.restart(second);
    cluster.wait_for("the second reports it", || {
        cluster
            .get(second, "/readyz")
            .1
            .contains("another process is node n1")
    });
    let refused = cluster.ask(second, "SET t|a 1");
    assert!(
        refused.starts_with("-CLUSTERDOWN another process is node n1"),
        "{refused}"
    );
    assert!(cluster.log(second).contains("another process is node n1"));
    assert_eq!(cluster.get(0, "/readyz").0, 200);
    // After the first server's death, the second takes over its name. It does not have the rows, and neither does any
    // other node, so that an operator must decide.
    cluster.kill(0);
    cluster.wait_for("the second has the name", || {
        let why = cluster.get(second, "/readyz").1;
        why.contains("n1 returned with another disk, and only it had the rows")
    });
    assert_ne!(cluster.info(second, "cluster_blocked"), "0");
}

#[test]
fn nodes_started_before_etcd_report_it_and_join_once_it_is_up() {
    let Some(mut cluster) = Options::new(2).prepare() else {
        return;
    };
    cluster.etcd.kill(0);
    cluster.start_all();
    for node in 0..2 {
        cluster.wait_for("the node reports that etcd does not reply", || {
            let (status, why) = cluster.get(node, "/readyz");
            status == 503 && why.contains("has not been reached") && why.contains("connect")
        });
        let refused = cluster.ask(node, "GET t|a");
        assert!(refused.starts_with("-CLUSTERDOWN etcd at "), "{refused}");
        assert_eq!(cluster.ask(node, "PING"), "+PONG");
    }
    cluster.etcd.start_all().expect("etcd starts");
    cluster.wait_until_served();
}

#[test]
fn slots_are_assigned_once_start_nodes_have_joined() {
    let Some(mut cluster) = Options::new(2).set("cluster.start_nodes", 2).prepare() else {
        return;
    };
    cluster.restart(0);
    cluster.wait_for("the node reports how many nodes are missing", || {
        cluster
            .get(0, "/readyz")
            .1
            .contains("1 of 2 nodes are present")
    });
    cluster.restart(1);
    cluster.wait_until_served();
}
