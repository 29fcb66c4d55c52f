//! Joins that are replaced while clients read them, and joins whose outputs other joins read.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::json;

use crate::cluster::harness::Cluster;
use crate::resp::{Client, request};
use crate::support::TestServer;

const COUNT: &str = "out|<a> = count in|<a>|<b>";
const SUM: &str = "out|<a> = sum in|<a>|<b>";
const GROUPS: usize = 8;

fn define(client: &mut Client, words: &[&str]) -> String {
    let command: Vec<&str> = ["JOIN.CREATE"].iter().chain(words).copied().collect();
    client.send(&request(&command));
    client.reply()
}

fn write_groups(client: &mut Client) {
    for group in 0..GROUPS {
        for row in 0..3 {
            client.check(&format!("SET in|g{group}|{row} 5"), "+OK");
        }
    }
}

/// Reads all groups with each command until `ended` is set. Each result must be that of one of the two definitions
/// for three rows of value 5.
fn read_until(client: &mut Client, ended: &AtomicBool) -> usize {
    let mut rounds = 0;
    while !ended.load(Relaxed) || rounds < 10 {
        rounds += 1;
        for group in 0..GROUPS {
            let got = client.call(&format!("GET out|g{group}"));
            assert!(matches!(&*got, "$1|3" | "$2|15"), "{got}");
            let got = client.call(&format!("RANGE out|g{group} out|g{group}}}"));
            assert!(got.ends_with("|$1|3") || got.ends_with("|$2|15"), "{got}");
            client.check(&format!("EXISTS out|g{group}"), ":1");
        }
        let keys: Vec<String> = (0..GROUPS).map(|group| format!("out|g{group}")).collect();
        let got = client.call(&format!("MGET {}", keys.join(" ")));
        assert!(!got.contains("$-1"), "{got}");
        client.check("RANGECOUNT out| out}", &format!(":{GROUPS}"));
    }
    rounds
}

fn replace_again_and_again(client: &mut Client, ended: &AtomicBool) {
    for round in 0..60 {
        let definition = [SUM, COUNT][round % 2];
        let done = define(client, &["out", "OR", "REPLACE", definition]);
        assert_eq!(done, "+OK", "round {round}");
        let value = ["$2|15", "$1|3"][round % 2];
        client.check("GET out|g3", value);
    }
    ended.store(true, Relaxed);
}

#[test]
fn reads_during_the_replacement_of_a_join_see_its_rows() {
    for threads in [1, 3] {
        let mut server = TestServer::with(|config| config.server.threads = threads);
        let mut client = Client::connect(&server);
        write_groups(&mut client);
        client.create("out", COUNT);
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| read_until(&mut Client::connect(&server), &ended));
            }
            scope.spawn(|| replace_again_and_again(&mut Client::connect(&server), &ended));
        });
        assert_eq!(define(&mut client, &["out", "or", "replace", SUM]), "+OK");
        server.restart(|_| {});
        let mut client = Client::connect(&server);
        client.check("GET out|g1", "$2|15");
        assert!(client.call("JOIN.LIST").contains(SUM));
    }
}

#[test]
fn a_join_is_dropped_only_together_with_its_dependents() {
    for threads in [1, 3] {
        let server = TestServer::with(|config| config.server.threads = threads);
        let mut client = Client::connect(&server);
        client.create("out", COUNT);
        client.create("twice", "twice|<a> = copy out|<a>");
        client.check("SET in|a|1 5", "+OK");
        client.check("GET twice|a", "$1|1");
        let refused = "-ERR the output of join out is read by twice: drop these joins first, or drop all of them with CASCADE";
        client.check("JOIN.DROP out", refused);
        client.check("JOIN.DROP out NOW", "-ERR syntax error");
        let (status, reply) = server.delete("/v1/joins/out");
        assert_eq!(status, 400, "{reply}");
        client.check("GET twice|a", "$1|1");
        let done = define(
            &mut client,
            &["out", "OR REPLACE", "elsewhere|<a> = count in|<a>|<b>"],
        );
        assert!(done.contains("is read by twice"), "{done}");
        client.check("JOIN.DROP out CASCADE", "+OK");
        client.check("JOIN.LIST", "*0");
        client.check("SET out|a base", "+OK");
        client.check("GET twice|a", "$-1");
        client.check("DEL out|a", ":1");
        // The same in a transaction, and over HTTP.
        client.create("out", COUNT);
        client.create("twice", "twice|<a> = copy out|<a>");
        client.check("MULTI", "+OK");
        client.check("JOIN.DROP out cascade", "+QUEUED");
        client.send(&request(&[
            "JOIN.CREATE",
            "out",
            "IF",
            "NOT",
            "EXISTS",
            SUM,
        ]));
        assert_eq!(client.reply(), "+QUEUED");
        client.check("EXEC", "*2|+OK|+OK");
        client.check("GET out|a", "$1|5");
        let body = |definition, if_defined| json!({ "name": "out", "definition": definition, "if_defined": if_defined });
        assert_eq!(server.post("/v1/joins", body(COUNT, "refuse")).0, 400);
        assert_eq!(server.post("/v1/joins", body(SUM, "refuse")).0, 201);
        assert_eq!(server.post("/v1/joins", body(COUNT, "keep")).0, 201);
        client.check("GET out|a", "$1|5");
        assert_eq!(server.post("/v1/joins", body(COUNT, "replace")).0, 201);
        client.check("GET out|a", "$1|1");
        client.create("twice", "twice|<a> = copy out|<a>");
        assert_eq!(server.delete("/v1/joins/out?cascade=true").0, 204);
        client.check("JOIN.LIST", "*0");
    }
}

/// The nodes apply a change of the map one after another. Meanwhile, one node may use the new join and another the
/// old one, but no node is without a join.
#[test]
fn reads_on_all_nodes_during_the_replacement_of_a_join_see_its_rows() {
    let Some(cluster) = Cluster::start(3, &[("server.threads", "2")]) else {
        return;
    };
    let mut at: Vec<Client> = (0..3).map(|node| cluster.client(node)).collect();
    at[0].create("out", COUNT);
    for client in &mut at {
        cluster.wait_for("the join is everywhere", || {
            client.call("JOIN.LIST").contains("out")
        });
    }
    write_groups(&mut at[1]);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in &mut at {
            let ended = &ended;
            scope.spawn(move || read_until(client, ended));
        }
        let mut client = cluster.client(1);
        for round in 0..10 {
            let definition = [SUM, COUNT][round % 2];
            let done = define(&mut client, &["out", "OR", "REPLACE", definition]);
            assert_eq!(done, "+OK", "round {round}");
        }
        ended.store(true, Relaxed);
    });
    at[0].create("twice", "twice|<a> = copy out|<a>");
    assert!(at[0].call("JOIN.DROP out").contains("is read by twice"));
    assert_eq!(
        define(&mut at[0], &["out", "IF", "NOT", "EXISTS", SUM]),
        "+OK"
    );
    assert_eq!(define(&mut at[0], &["out", COUNT]), "+OK");
    at[0].check("JOIN.DROP out CASCADE", "+OK");
    at[0].check("JOIN.LIST", "*0");
}
