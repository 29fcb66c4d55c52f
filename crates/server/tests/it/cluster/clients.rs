//! Clients that route requests themselves. They send each request to the owner of its key, so that no request is
//! forwarded, also after a node was killed and another has joined.

use super::forward::{clients, forwarded};
use super::harness::{Cluster, Options};
use super::rows::{start_with, wait_until_settled};
use crate::cluster_clients::{ALL, Running};
use crate::resp::Client;

/// Returns the number of forwarded requests of all kinds that these clients send.
fn forwarded_in_all(cluster: &Cluster) -> u64 {
    let kinds = ["get", "set", "mget", "del", "incr", "exec"];
    kinds.iter().map(|kind| forwarded(cluster, kind)).sum()
}

/// Starts the clients that are installed.
fn start_clients(cluster: &Cluster) -> Vec<Running> {
    let address = cluster.resp(0).to_string();
    ALL.iter()
        .filter_map(|client| client.start(&address))
        .collect()
}

/// Runs each client once more, and checks that none of its requests is forwarded.
fn check_direct_routing(cluster: &Cluster, running: &mut [Running], when: &str) {
    for client in running {
        let before = forwarded_in_all(cluster);
        client.check_run(when);
        let more = forwarded_in_all(cluster) - before;
        assert_eq!(more, 0, "{} had requests forwarded {when}", client.name);
    }
}

/// Adds a fourth node, and waits until it has its share of the slots.
fn add_a_node(cluster: &mut Cluster) {
    let fourth = cluster.add("n4", Vec::new(), false);
    cluster.restart(fourth);
    cluster.wait_for("the node is up", || {
        cluster.info(fourth, "cluster_state") == "up"
    });
    wait_until_settled(cluster);
}

/// Kills a node, and waits until others own its slots.
fn kill_a_node(cluster: &mut Cluster) {
    cluster.kill(2);
    cluster.wait_for_state(2, "down");
    cluster.wait_until_served();
}

#[test]
fn client_libraries_connect_to_the_owners_after_a_node_dies() {
    let Some(mut cluster) = start_with(&[]) else {
        return;
    };
    wait_until_settled(&cluster);
    let mut running = start_clients(&cluster);
    check_direct_routing(&cluster, &mut running, "at first");
    kill_a_node(&mut cluster);
    // The clients discover the failover by themselves.
    for client in &mut running {
        client.check_run("when a node has died");
    }
    // ioredis sends requests for the slots of an unreachable node to any node, and continues because they are
    // forwarded.
    running.retain(|client| client.name != "ioredis");
    check_direct_routing(&cluster, &mut running, "some time after a node died");
    // As a cross-check, requests of a client without routing are forwarded.
    let before = forwarded(&cluster, "get");
    (0..9).for_each(|number| drop(cluster.ask(0, &format!("GET t|{number}|x"))));
    assert!(forwarded(&cluster, "get") > before);
}

#[test]
fn redirected_client_libraries_follow_node_failures_and_slot_moves() {
    let Some(mut cluster) = start_with(&[("cluster.routing", "redirect")]) else {
        return;
    };
    wait_until_settled(&cluster);
    let mut running = start_clients(&cluster);
    check_direct_routing(&cluster, &mut running, "at first");
    add_a_node(&mut cluster);
    check_direct_routing(&cluster, &mut running, "after a move");
    kill_a_node(&mut cluster);
    check_direct_routing(&cluster, &mut running, "when a node has died");
}

#[test]
fn clients_that_route_requests_receive_moved_errors() {
    let options = Options::new(3).set("cluster.routing", "redirect");
    let Some(cluster) = options.start() else {
        return;
    };
    let mut at = clients(&cluster);
    let mut moved = 0;
    for number in 0..12 {
        let set = format!("SET t|{{{number}}}|x 1");
        for client in &mut at {
            let answer = client.call(&set);
            if answer != "+OK" {
                moved += 1;
                let words: Vec<&str> = answer.split(' ').collect();
                let ["-MOVED", _, address] = words[..] else {
                    panic!("{answer}");
                };
                let mut there = Client::to(address.parse().expect("an address"));
                there.check(&set, "+OK");
            }
            // Without braces, clients compute another slot for the key than larder. The node forwards the request
            // instead of redirecting it.
            client.check(&format!("SET t|{number}|x 1"), "+OK");
        }
    }
    assert_eq!(moved, 24, "two of three nodes do not have it");
}
