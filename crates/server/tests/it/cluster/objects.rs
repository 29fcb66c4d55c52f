//! Objects in a cluster: any node serves any object. `rows` tests failover and slot moves, for objects as well.

use std::thread;

use super::forward::{clients, forwarded};
use super::harness::{Cluster, Options};
use crate::resp::Client;

#[test]
fn any_node_serves_any_object() {
    for threads in ["1", "2"] {
        let Some(cluster) = Cluster::start(3, &[("server.threads", threads)]) else {
            return;
        };
        let mut at = clients(&cluster);
        for number in 0..30 {
            let line = format!("HSET h|{number:02}|x n {number} f v");
            at[number % 3].check(&line, ":2");
            let line = format!("JSON.SET d|{number:02} $ {{\"n\":{number}}}");
            at[number % 3].check(&line, "+OK");
        }
        for number in 0..30 {
            let value = number.to_string();
            let value = format!("${}|{value}", value.len());
            for client in &mut at {
                client.check(&format!("HGET h|{number:02}|x n"), &value);
                client.check(&format!("JSON.GET d|{number:02} .n"), &value);
                client.check(&format!("TYPE h|{number:02}|x"), "+hash");
            }
        }
        assert!(forwarded(&cluster, "hget") >= 30, "most keys are elsewhere");
        for client in &mut at {
            client.check(
                "JSON.MGET d|00 d|01 d|none d|02 h|01|x d|03 d|00 $.n",
                "*7|$3|[0]|$3|[1]|$-1|$3|[2]|$-1|$3|[3]|$3|[0]",
            );
            client.check("EXISTS h|00|x h|01|x d|02 h|none|x h|03|x", ":4");
            client.check("DBSIZE", ":60");
            client.check("RANGECOUNT h| h}", ":0");
            let keys = client.call("KEYS h|*");
            assert!(keys.starts_with("*30|$6|h|00|x|$6|h|01|x|"), "{keys}");
            let scanned = client.call("SCAN 0 MATCH h|* COUNT 100 TYPE hash");
            assert!(scanned.starts_with("*2|$1|0|*30|$6|h|00|x|"), "{scanned}");
            let scanned = client.call("SCAN 0 MATCH h|* COUNT 100 TYPE string");
            assert_eq!(scanned, "*2|$1|0|*0");
            client.check("HSET a|{u}|1 f v", ":1");
            client.check("RENAME a|{u}|1 c|{u}|1", "+OK");
            client.check("COPY c|{u}|1 b|{u}|1", ":1");
            client.check("HGETALL b|{u}|1", "*2|$1|f|$1|v");
            client.check("SET b|{u}|1 text", "+OK");
            client.check("GET b|{u}|1", "$4|text");
            client.check("HEXPIRE c|{u}|1 100 FIELDS 1 f", "*1|:1");
            client.check("MULTI", "+OK");
            client.check("HINCRBY c|{u}|1 n 1", "+QUEUED");
            client.check("OBJ.CHANGE c|{u}|1 DO ADD n 5", "+QUEUED");
            client.check("HGET c|{u}|1 n", "+QUEUED");
            client.check("EXEC", "*3|:1|:1|$1|6");
            client.check("DEL c|{u}|1 b|{u}|1", ":2");
        }
        for number in 0..9 {
            let (key, text) = (format!("\0h|{number:02}|x"), number.to_string());
            assert_eq!(at[number % 3].call_words(&["SET", &key, &text]), "+OK");
            for client in &mut at {
                assert_eq!(client.call_words(&["GET", &key]), format!("$1|{text}"));
                let scanned = client.call_words(&["SCAN", "0", "MATCH", &key, "TYPE", "string"]);
                assert_eq!(scanned, format!("*2|$1|0|*1|$7|{key}"));
                client.check("HLEN h|00|x", ":2");
            }
            assert_eq!(at[(number + 1) % 3].call_words(&["DEL", &key]), ":1");
        }
        for number in 0..9 {
            at[number % 3].check(&format!("SET plain{number} {number} EX 1000"), "+OK");
            for client in &mut at {
                client.check(&format!("GET plain{number}"), &format!("$1|{number}"));
                client.check(&format!("INCRBY plain{number} 0"), &format!(":{number}"));
            }
        }
        at[1].check("MGET plain0 d|00 plain5", "*3|$1|0|$-1|$1|5");
        assert!(
            at[2]
                .call("KEYS plain*")
                .starts_with("*9|$6|plain0|$6|plain1|")
        );
        at[0].check(
            "DEL plain0 plain1 plain2 plain3 plain4 plain5 plain6 plain7 plain8",
            ":9",
        );
        // No node returns an expired field.
        at[0].check("HSET h|e f v g w", ":2");
        at[1].check("HPEXPIRE h|e 1 FIELDS 1 f", "*1|:1");
        while at[2].call("HGETALL h|e") != "*2|$1|g|$1|w" {}
        at[1].check("DEL h|e", ":1");
        at[2].check("FLUSHALL", "+OK");
        at[0].check("DBSIZE", ":0");
    }
}

/// Creates a space and `count` numbered objects whose keys do not begin with a table's name.
fn put_numbered(client: &mut Client, count: usize) {
    let create = "FT.CREATE things PREFIX 1 : SCHEMA n NUMERIC";
    assert_eq!(
        client.call_words(&create.split(' ').collect::<Vec<_>>()),
        "+OK"
    );
    for number in 0..count {
        client.check(&format!("HSET :shop.Thing:{number} n 0"), ":1");
    }
}

fn total(client: &mut Client, query: &str) -> Option<usize> {
    let reply = client.call_words(&["FT.SEARCH", "things", query, "LIMIT", "0", "0"]);
    reply.strip_prefix("*1|:")?.parse().ok()
}

#[test]
fn plain_keys_are_spread_and_groups_are_changed_through_any_node() {
    let Some(cluster) = Cluster::start(3, &[("server.threads", "2")]) else {
        return;
    };
    let mut at = clients(&cluster);
    put_numbered(&mut at[0], 300);
    for (node, client) in at.iter_mut().enumerate() {
        client.check(&format!("HSET plain{node} f v"), ":1");
        client.check(&format!("JSON.SET doc{node} $ {{}}"), "+OK");
    }
    for client in &mut at {
        client.check("EXISTS plain0 plain1 plain2 doc0 doc1 doc2 none", ":6");
        client.check("HGET plain1 f", "$1|v");
        let keys = client.call("SCAN 0 COUNT 1000 MATCH :shop.* TYPE hash");
        assert!(keys.starts_with("*2|$1|0|*300|"), "{keys}");
        client.check("KEYS plain*", "*3|$6|plain0|$6|plain1|$6|plain2");
    }
    for node in 0..3 {
        let reply = cluster.ask(node, "INFO tables");
        let rows = reply
            .split("tables_rows:")
            .nth(1)
            .and_then(|rest| rest.split("\r\n").next());
        let rows: usize = rows.and_then(|rows| rows.parse().ok()).unwrap_or_default();
        assert!(rows > 50, "node {node} has {rows} rows: {reply}");
    }
    for (round, client) in at.iter_mut().enumerate() {
        let query = format!("@n:[{round} {round}]");
        let reply = client.call_words(&["FT.CHANGE", "things", &query, "DO", "ADD", "n", "1"]);
        assert_eq!(reply, ":300");
    }
    assert_eq!(total(&mut at[1], "@n:[3 3]"), Some(300));
    at[2].check("DEL plain0 plain1 doc2", ":3");
    let reply = at[2].call_words(&["FT.CHANGE", "things", "*", "DO", "DELETE"]);
    assert_eq!(reply, ":300");
    assert_eq!(total(&mut at[0], "*"), Some(0));
}

/// The reported number of changed objects is exact or a lower bound, and no object is changed twice.
#[test]
fn a_group_change_reports_its_progress_when_a_node_dies() {
    const OBJECTS: usize = 3000;
    let started = Options::new(3).set("tables.replicas", 2).start();
    let Some(mut cluster) = started else { return };
    let mut client = cluster.client(0);
    put_numbered(&mut client, OBJECTS);
    let (mut changer, mut other) = (cluster.client(0), cluster.client(1));
    let reply = thread::scope(|scope| {
        let change = ["FT.CHANGE", "things", "*", "DO", "ADD", "n", "1"];
        let changing = scope.spawn(move || changer.call_words(&change));
        cluster.wait_for("some objects are changed", || {
            total(&mut other, "@n:[1 1]").is_some_and(|count| count > 0)
        });
        cluster.kill(2);
        changing.join().expect("the client thread ends")
    });
    cluster.wait_for("searches are answered", || {
        total(&mut client, "*").is_some()
    });
    let count = |client: &mut Client, query: &str| {
        total(client, query).expect("the search returns a count")
    };
    let changed = count(&mut client, "@n:[1 1]");
    assert_eq!(changed + count(&mut client, "@n:[0 0]"), OBJECTS, "{reply}");
    match reply.strip_prefix(':') {
        Some(all) => assert_eq!((all, changed), (&*OBJECTS.to_string(), OBJECTS)),
        None => {
            let reported = reply
                .split("after ")
                .nth(1)
                .and_then(|rest| rest.split(' ').next());
            let reported: usize = reported.map_or(0, |count| count.parse().expect("a number"));
            assert!(reported <= changed, "{reply}, and {changed} are");
        }
    }
}
