//! A cluster of one node: what it remembers, and how it is told wrong things.

use larder_protocol::config::{ClusterMode, ServerConfig};

use crate::resp::{Client, server_with};
use crate::support::TestServer;

fn one(config: &mut ServerConfig) {
    config.cluster.mode = ClusterMode::One;
}

fn id(server: &TestServer) -> String {
    Client::connect(server).ask("CLUSTER MYID")
}

#[test]
fn a_node_keeps_its_id_when_it_starts_again() {
    let mut server = server_with(one);
    let before = id(&server);
    server.restart(|_| {});
    assert_eq!(id(&server), before);
    assert_ne!(id(&server_with(one)), before);
}

#[test]
fn clients_are_told_the_address_that_is_announced() {
    for (announce, told) in [
        ("larder.example:7000", "$14|larder.example|:7000"),
        ("[fe80::1]:7000", "$7|fe80::1|:7000"),
    ] {
        let server = server_with(|config| {
            one(config);
            config.cluster.announce = announce.to_owned();
        });
        let reply = Client::connect(&server).ask("CLUSTER SLOTS");
        let reply = reply.replace("\r\n", "|");
        assert!(reply.contains(told), "{reply}");
    }
}

#[test]
fn a_wrong_name_or_address_is_refused_and_another_nodes_data_too() {
    let mut server = server_with(one);
    let why = server.start_refused(|config| config.cluster.node = "two words".to_owned());
    assert!(
        why.contains("cluster.node") && why.contains("two words"),
        "{why}"
    );
    let why = server.start_refused(|config| config.cluster.node = "other".to_owned());
    assert!(
        why.contains("other is not the node whose data this is (node-1)"),
        "{why}"
    );
    let why = server.start_refused(|config| {
        config.cluster.node = "node-1".to_owned();
        config.cluster.announce = "nowhere:".to_owned();
    });
    assert!(
        why.contains("cluster.announce") && why.contains("nowhere:"),
        "{why}"
    );
}
