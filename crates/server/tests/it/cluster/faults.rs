//! Faults and their consequences: nodes that are suspended for longer than their lease, are partitioned, or return
//! with an empty disk, and faults of etcd's members.

use serde_json::json;

use super::harness::{Cluster, Options};
use super::rows::{owned_keys, wait_until_settled};
use crate::resp::request;

fn controller(cluster: &Cluster, seen_by: usize) -> usize {
    cluster.index_of(&cluster.info(seen_by, "cluster_controller"))
}

/// Returns the reply to `CLUSTER MYID`.
fn id(cluster: &Cluster, node: usize) -> String {
    cluster.ask(node, "CLUSTER MYID")
}

fn wait_until_up(cluster: &Cluster, node: usize) {
    cluster.wait_for(&format!("{} is up", cluster.name(node)), || {
        cluster.info(node, "cluster_state") == "up" && cluster.get(node, "/readyz").0 == 200
    });
}

#[test]
fn a_node_suspended_beyond_its_lease_returns_with_a_new_incarnation() {
    let Some(cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    let other = (controller(&cluster, 0) + 1) % 3;
    let seen_by = (other + 1) % 3;
    let name = cluster.name(other).to_owned();
    let before = id(&cluster, other);
    cluster.suspend(other);
    cluster.wait_until_down(seen_by, other);
    cluster.wait_for("other nodes serve its slots", || {
        cluster
            .ask(seen_by, "CLUSTER INFO")
            .contains("cluster_slots_ok:16384")
    });
    cluster.resume(other);
    cluster.wait_for("the node has a new incarnation", || {
        cluster.log(other).contains("incarnation=2")
    });
    wait_until_up(&cluster, other);
    cluster.wait_for("every node lists the node as up", || {
        cluster.state(seen_by, &name) == "up"
    });
    let log = cluster.log(other);
    assert!(
        log.contains("this node's lease has expired") && log.contains("incarnation=2"),
        "{log}"
    );
    assert_eq!(id(&cluster, other), before, "the node keeps its disk id");
}

#[test]
fn a_suspended_controller_loses_its_leadership() {
    let Some(cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    let first = controller(&cluster, 0);
    let seen_by = (first + 1) % 3;
    cluster.suspend(first);
    cluster.wait_for("another node is the controller", || {
        let leads = cluster.info(seen_by, "cluster_controller");
        !leads.is_empty() && leads != cluster.name(first)
    });
    cluster.wait_for("the new controller has marked the first as down", || {
        cluster.state(seen_by, cluster.name(first)) == "down"
    });
    cluster.resume(first);
    // The state with which the node resumes is outdated.
    cluster.wait_for("the node has a new incarnation", || {
        cluster.log(first).contains("incarnation=2")
    });
    wait_until_up(&cluster, first);
    assert_ne!(controller(&cluster, first), first);
    assert_eq!(controller(&cluster, first), controller(&cluster, seen_by));
}

#[test]
fn a_node_without_etcd_reports_it_and_is_replaced() {
    let Some(cluster) = Options::new(3).set("tables.replicas", 2).proxied().start() else {
        return;
    };
    let other = (controller(&cluster, 0) + 1) % 3;
    let seen_by = (other + 1) % 3;
    let name = cluster.name(other).to_owned();
    cluster.etcd_proxy(other, 0).cut();
    cluster.wait_for("the other nodes mark it as down", || {
        cluster.state(seen_by, &name) == "down"
    });
    assert_eq!(
        cluster.info(other, "cluster_lease_left_ms"),
        "0",
        "the node reported its lost lease before the others did"
    );
    cluster.wait_for("the node reports the reason", || {
        cluster
            .info(other, "cluster_etcd_trouble")
            .contains("does not answer")
    });
    cluster.etcd_proxy(other, 0).heal();
    wait_until_up(&cluster, other);
}

#[test]
fn the_cluster_resumes_after_all_etcd_members_restart() {
    let Some(mut cluster) = Options::new(3).etcd_members(3).start() else {
        return;
    };
    let before: Vec<String> = (0..3).map(|node| id(&cluster, node)).collect();
    (0..3).for_each(|member| cluster.etcd.kill(member));
    for node in 0..3 {
        cluster.wait_for("the lease may have expired", || {
            cluster.info(node, "cluster_lease_left_ms") == "0"
        });
        assert!(
            cluster
                .ask(node, "CLUSTER INFO")
                .contains("cluster_slots_ok:16384")
        );
    }
    cluster.etcd.start_all().expect("etcd starts");
    cluster.wait_until_served();
    for (node, before) in before.iter().enumerate() {
        wait_until_up(&cluster, node);
        assert_eq!(id(&cluster, node), *before);
    }
}

#[test]
fn leases_survive_repeated_failures_of_the_etcd_leader() {
    let Some(mut cluster) = Options::new(2)
        .etcd_members(3)
        .set("cluster.lease_seconds", 10)
        .start()
    else {
        return;
    };
    let epoch = cluster.info(0, "cluster_epoch");
    for turn in 0..3 {
        let leader = cluster.etcd.leader();
        cluster.etcd.kill(leader);
        let set = json!({"action": "set", "settings": {"replace_after_ms": 1_000_000 + turn}});
        let (status, answer) = cluster.post(turn % 2, "/v1/cluster/asks", &set);
        assert_eq!(status, 200, "{answer}");
        cluster.etcd.start_all().expect("etcd starts");
    }
    cluster.wait_until_served();
    let changes: u64 = cluster
        .info(0, "cluster_epoch")
        .parse::<u64>()
        .expect("a number")
        - epoch.parse::<u64>().expect("a number");
    assert_eq!(
        changes,
        3,
        "each wish is one change, and nothing else came:\n{}",
        cluster.logs()
    );
}

#[test]
fn a_map_change_whose_reply_is_lost_is_applied_once() {
    let Some(cluster) = Options::new(2)
        .proxied()
        .set("cluster.lease_seconds", 10)
        .start()
    else {
        return;
    };
    let epoch: u64 = cluster.info(0, "cluster_epoch").parse().expect("a number");
    let wishes = 5;
    for wish in 0..wishes {
        (0..2).for_each(|node| cluster.etcd_proxy(node, 0).lose_replies(2));
        let set = json!({"action": "set", "settings": {"replace_after_ms": 2_000_000 + wish}});
        let (status, answer) = cluster.post(0, "/v1/cluster/asks", &set);
        assert_eq!(status, 200, "{answer}");
    }
    cluster.wait_until_served();
    let after: u64 = cluster.info(0, "cluster_epoch").parse().expect("a number");
    assert_eq!(after - epoch, wishes);
    assert!(cluster.etcd_proxy(0, 0).replies_lost() > 0);
}

#[test]
fn a_node_that_restarts_with_an_empty_folder_keeps_its_name_and_gets_a_new_disk_id() {
    let Some(mut cluster) = Cluster::start(3, &[("tables.replicas", "2")]) else {
        return;
    };
    let before = id(&cluster, 2);
    cluster.kill(2);
    std::fs::remove_dir_all(cluster.data(2)).expect("removed");
    cluster.restart(2);
    wait_until_up(&cluster, 2);
    assert_ne!(id(&cluster, 2), before);
    cluster.wait_until_served();
    assert!(cluster.log(2).contains("are not valid any more"));
}

/// An owner gives away a slot only after all its writes were acknowledged. Meanwhile, reads of the slot wait, and the
/// owner continues with everything else. It can therefore detect that the designated replica does not respond, and
/// keep the slot.
#[test]
fn an_owner_keeps_serving_while_reads_wait_for_its_moving_slots() {
    let Some(cluster) = Cluster::start(
        3,
        &[("tables.replicas", "2"), ("cluster.lease_seconds", "3600")],
    ) else {
        return;
    };
    wait_until_settled(&cluster);
    let leader = controller(&cluster, 0);
    let (owner, silent) = ((leader + 1) % 3, (leader + 2) % 3);
    let keys = owned_keys(&cluster, owner, 40);
    for key in &keys {
        cluster.client(owner).check(&format!("SET {key} 1"), "+OK");
    }
    let far = owned_keys(&cluster, leader, 1).remove(0);
    cluster.suspend(silent);
    // Writes of slots whose replica is suspended are not acknowledged.
    let mut writer = cluster.client(owner);
    for key in &keys {
        writer.send(&request(&["SET", key, "2"]));
    }
    let drain = json!({"action": "drain", "node": cluster.name(owner)});
    let (status, answer) = cluster.post(leader, "/v1/cluster/asks", &drain);
    assert_eq!(status, 200, "{answer}");
    let reply = cluster.ask(owner, &format!("MGET {far} {}", keys.join(" ")));
    assert!(reply.starts_with("*41|"), "{reply} {}", cluster.logs());
    assert_eq!(reply.matches("$1|2").count(), 40, "{reply}");
    cluster.resume(silent);
    wait_until_settled(&cluster);
}
