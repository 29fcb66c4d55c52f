//! Nodes that join, die and return, and outages of etcd.

use super::harness::{Cluster, Options};

/// Returns the distinct replies to CLUSTER SLOTS of all running nodes.
fn slots(cluster: &Cluster) -> Vec<String> {
    let mut told: Vec<String> = cluster
        .running()
        .iter()
        .map(|&node| cluster.ask(node, "CLUSTER SLOTS"))
        .collect();
    told.sort();
    told.dedup();
    told
}

fn controller(cluster: &Cluster, seen_by: usize) -> usize {
    cluster.named(&cluster.info(seen_by, "cluster_controller"))
}

#[test]
fn three_nodes_share_all_slots_and_agree() {
    let Some(cluster) = Cluster::start(3, &[]) else {
        return;
    };
    assert_eq!(slots(&cluster).len(), 1, "all tell the same");
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
fn a_killed_node_is_down_after_its_lease_and_others_have_its_slots() {
    let Some(mut cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    cluster.kill(1);
    cluster.wait_for("n2 is down", || {
        cluster.ask(0, "CLUSTER NODES").contains("fail")
    });
    cluster.wait_until_served();
    let told = slots(&cluster);
    assert_eq!(told.len(), 1);
    let port = format!(":{}|", cluster.resp(1).port());
    assert!(
        !told[0].contains(&port),
        "clients are not sent to it: {}",
        told[0]
    );
    cluster.wait_for("the others have done what was under way", || {
        let (_, status) = cluster.get(0, "/v1/cluster");
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        let moves = &status["moves"];
        // The node may still return, so that no replacement copies are made yet.
        moves["copied_slots"] == 0 && moves["owner_slots"] == 0
    });
    cluster.restart(1);
    cluster.wait_for("n2 is back", || {
        cluster.info(1, "cluster_state") == "up"
            && !cluster.ask(0, "CLUSTER NODES").contains("fail")
    });
}

#[test]
fn a_node_that_stops_in_good_order_is_replaced_at_once_and_returns() {
    let Some(mut cluster) = Options::new(2)
        .set("tables.replicas", 2)
        .set("cluster.lease_seconds", 3_600)
        .start()
    else {
        return;
    };
    // With a lease of an hour, the test passes only if the failover does not wait for its end.
    cluster.end(0);
    cluster.wait_until_served();
    cluster.restart(0);
    cluster.wait_for("n1 is back", || cluster.info(0, "cluster_state") == "up");
    // The same applies after a kill and a restart on the same data folder.
    cluster.kill(0);
    cluster.restart(0);
    cluster.wait_for("n1 is back", || cluster.info(0, "cluster_state") == "up");
}

#[test]
fn reads_go_on_while_etcd_is_stopped_and_the_cluster_after_it() {
    let Some(cluster) = Cluster::start(2, &[]) else {
        return;
    };
    cluster.etcd.stop(0);
    cluster.wait_for("the lease may have ended", || {
        cluster.info(0, "cluster_lease_left_ms") == "0"
    });
    cluster.wait_for("it is told", || {
        cluster
            .info(0, "cluster_etcd_trouble")
            .contains("does not answer")
    });
    let (status, ready) = cluster.get(0, "/readyz");
    assert!(
        status == 200 && ready.contains("reads of stores go on by the last map"),
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
    cluster.etcd.go_on(0);
    cluster.wait_until_served();
    cluster.wait_for("all is well", || {
        (0..2).all(|node| {
            cluster.info(node, "cluster_etcd_trouble").is_empty()
                && cluster.info(node, "cluster_lease_left_ms") != "0"
        })
    });
}

#[test]
fn when_the_controller_is_killed_another_goes_on() {
    let Some(mut cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    let first = controller(&cluster, 0);
    cluster.kill(first);
    let seen_by = cluster.running()[0];
    cluster.wait_for("another is the controller", || {
        let leads = cluster.info(seen_by, "cluster_controller");
        !leads.is_empty() && leads != cluster.name(first)
    });
    // The new controller detects the dead node and readmits it.
    cluster.wait_until_served();
    cluster.restart(first);
    cluster.wait_for("it is back", || {
        cluster.info(first, "cluster_state") == "up"
    });
}

#[test]
fn of_two_servers_with_one_name_the_second_waits_and_says_so() {
    let Some(mut cluster) = Cluster::start(1, &[]) else {
        return;
    };
    let second = cluster.add("n1", Vec::new(), false);
    cluster.restart(second);
    cluster.wait_for("the second says so", || {
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
        why.contains("n1 came back with another disk, and it alone had the rows")
    });
    assert_ne!(cluster.info(second, "cluster_blocked"), "0");
}

#[test]
fn nodes_that_start_before_etcd_say_so_and_join_when_it_is_there() {
    let Some(mut cluster) = Options::new(2).prepare() else {
        return;
    };
    cluster.etcd.kill(0);
    cluster.start_all();
    for node in 0..2 {
        cluster.wait_for("etcd's silence is told", || {
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
fn slots_are_given_out_when_as_many_nodes_are_there_as_are_to_start() {
    let Some(mut cluster) = Options::new(2).set("cluster.start_nodes", 2).prepare() else {
        return;
    };
    cluster.restart(0);
    cluster.wait_for("it is told who is waited for", || {
        cluster
            .get(0, "/readyz")
            .1
            .contains("1 of 2 nodes are there")
    });
    cluster.restart(1);
    cluster.wait_until_served();
}
