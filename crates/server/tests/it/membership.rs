//! A cluster of one node: its persistent identity, and its reactions to a wrong configuration.

use larder_protocol::config::{ClusterMode, ServerConfig};

use crate::resp::{Client, server_with};
use crate::support::TestServer;

fn one(config: &mut ServerConfig) {
    config.cluster.mode = ClusterMode::One;
}

fn id(server: &TestServer) -> String {
    Client::connect(server).call("CLUSTER MYID")
}

#[test]
fn a_node_keeps_its_id_after_a_restart() {
    let mut server = server_with(one);
    let before = id(&server);
    server.restart(|_| {});
    assert_eq!(id(&server), before);
    assert_ne!(id(&server_with(one)), before);
}

#[test]
fn clients_receive_the_announced_address() {
    for (announce, text) in [
        ("larder.example:7000", "$14|larder.example|:7000"),
        ("[fe80::1]:7000", "$7|fe80::1|:7000"),
    ] {
        let server = server_with(|config| {
            one(config);
            config.cluster.announce = announce.to_owned();
        });
        let reply = Client::connect(&server).call("CLUSTER SLOTS");
        let reply = reply.replace("\r\n", "|");
        assert!(reply.contains(text), "{reply}");
    }
}

#[test]
fn clients_receive_configured_zones_and_host_names() {
    let server = server_with(|config| {
        one(config);
        config.cluster.announce = "larder.example:7000".to_owned();
        config.cluster.zone = "rack-1".to_owned();
    });
    let mut client = Client::connect(&server);
    let zone = "$17|availability-zone|$6|rack-1";
    let slots = client.call("CLUSTER SLOTS");
    assert!(slots.ends_with(&format!("|*2|{zone}")), "{slots}");
    let shards = client.call("CLUSTER SHARDS");
    let name = "$8|endpoint|$14|larder.example|$8|hostname|$14|larder.example|";
    assert!(
        shards.contains(name) && shards.ends_with(&format!("|$6|online|{zone}")),
        "{shards}"
    );
    let nodes = client.call("CLUSTER NODES");
    assert!(
        nodes.contains(" larder.example:7000@7000,larder.example myself,master "),
        "{nodes}"
    );
    let info = client.call("INFO server");
    assert!(info.contains("availability_zone:rack-1"), "{info}");
    let slots = Client::connect(&server_with(one)).call("CLUSTER SLOTS");
    assert!(slots.ends_with("|*0"), "{slots}");
}

#[test]
fn invalid_names_addresses_and_data_of_another_node_are_rejected() {
    let mut server = server_with(one);
    let why = server.start_refused(|config| config.cluster.node = "two words".to_owned());
    assert!(
        why.contains("cluster.node") && why.contains("two words"),
        "{why}"
    );
    let why = server.start_refused(|config| config.cluster.node = "other".to_owned());
    assert!(
        why.contains("other is not the node that owns this data folder (node-1)"),
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
