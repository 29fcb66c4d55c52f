//! Any node serves any client: it forwards requests for rows of other nodes, and join outputs over rows of several
//! nodes are as fresh as on one node.

use larder_types::Random;

use super::harness::{Cluster, Options};
use crate::resp::{Client, TIMELINE, request};
use crate::support::TestServer;

/// Opens a connection to each node.
pub fn clients(cluster: &Cluster) -> Vec<Client> {
    (0..cluster.len())
        .map(|node| cluster.client(node))
        .collect()
}

/// Returns the number of commands of this kind that were forwarded, according to INFO, summed over all nodes.
pub fn forwarded(cluster: &Cluster, command: &str) -> u64 {
    let of_node = |node: usize| {
        let text = cluster.ask(node, "INFO commandstats");
        let prefix = format!("cmdstat_{command}:");
        let mut lines = text.split(['|', '\r', '\n']);
        let line = lines.find_map(|line| line.strip_prefix(&prefix));
        let count = line.and_then(|line| line.rsplit_once("forwarded=")?.1.parse().ok());
        count.unwrap_or(0)
    };
    cluster.running().into_iter().map(of_node).sum()
}

#[test]
fn any_node_serves_any_key() {
    for threads in ["1", "2"] {
        let Some(cluster) = Cluster::start(3, &[("server.threads", threads)]) else {
            return;
        };
        let mut at = clients(&cluster);
        for number in 0..30 {
            at[number % 3].check(&format!("SET t|{number:02}|x {number}"), "+OK");
        }
        for number in 0..30 {
            let value = number.to_string();
            let expected = format!("${}|{value}", value.len());
            for client in &mut at {
                client.check(&format!("GET t|{number:02}|x"), &expected);
            }
        }
        assert!(forwarded(&cluster, "get") >= 30, "most keys are elsewhere");
        for client in &mut at {
            client.check(
                "MGET t|00|x t|01|x t|none|x t|02|x t|00|x",
                "*5|$1|0|$1|1|$-1|$1|2|$1|0",
            );
            client.check("EXISTS t|00|x t|01|x t|none|x t|02|x", ":3");
            client.check("DBSIZE", ":30");
            client.check("RANGECOUNT t| t}", ":30");
            client.check("RANGE t|03 t|05 KEYSONLY", "*2|$6|t|03|x|$6|t|04|x");
            let keys = client.call("KEYS t|*");
            assert!(keys.starts_with("*30|$6|t|00|x|$6|t|01|x|"), "{keys}");
            let range = client.call("RANGE t| t} LIMIT 3 REV");
            assert_eq!(range, "*6|$6|t|29|x|$2|29|$6|t|28|x|$2|28|$6|t|27|x|$2|27");
            let scanned = client.call("SCAN 0 MATCH t|* COUNT 100");
            assert!(scanned.starts_with("*2|$1|0|*30|$6|t|00|x|"), "{scanned}");
        }
        at[0].check("INCRBY n|a 5", ":5");
        at[1].check("INCRBY n|a 5", ":10");
        at[2].check("DEL t|00|x t|01|x t|02|x t|none|x n|a", ":4");
        at[0].check("RANGEDEL t|03 t|10", ":7");
        at[1].check("DBSIZE", ":20");
        let refused = at[0].call("MSET t|10|x 1 t|11|x 1 t|12|x 1 t|13|x 1 t|14|x 1");
        assert!(refused.starts_with("-CROSSSLOT "), "{refused}");
        for client in &mut at {
            client.check("MSET a|{u}|1 x b|{u}|2 y", "+OK");
            client.check("RENAME a|{u}|1 c|{u}|1", "+OK");
            client.check("MGET a|{u}|1 b|{u}|2 c|{u}|1", "*3|$-1|$1|y|$1|x");
            client.check("MULTI", "+OK");
            client.check("INCR n|{u}", "+QUEUED");
            client.check("PING", "+QUEUED");
            client.check("GET b|{u}|2", "+QUEUED");
            let done = client.call("EXEC");
            assert!(
                done.starts_with("*3|:") && done.ends_with("|+PONG|$1|y"),
                "{done}"
            );
            client.check("MULTI", "+OK");
            for number in 10..20 {
                client.check(&format!("SET t|{number}|x 2"), "+QUEUED");
            }
            let refused = client.call("EXEC");
            assert!(refused.starts_with("-CROSSSLOT "), "{refused}");
        }
        at[2].check("GET n|{u}", "$1|3");
        at[1].check("FLUSHALL", "+OK");
        at[0].check("DBSIZE", ":0");
    }
}

#[test]
fn an_acknowledged_post_is_on_every_timeline_at_every_node() {
    for threads in ["1", "2"] {
        let Some(cluster) = Cluster::start(3, &[("server.threads", threads)]) else {
            return;
        };
        let mut at = clients(&cluster);
        at[0].create("timeline", TIMELINE);
        for client in &mut at {
            cluster.wait_for("all nodes have the join", || {
                client.call("JOIN.LIST").contains("timeline")
            });
        }
        for user in 0..12 {
            at[user % 3].check(&format!("SET sub|u{user}|bob 1"), "+OK");
            at[user % 3].check(&format!("SET sub|u{user}|eve 1"), "+OK");
        }
        for round in 0..20 {
            let author = ["bob", "eve"][round % 2];
            at[round % 3].check(&format!("SET post|{author}|{round:04} text{round}"), "+OK");
            for user in 0..12 {
                let key = format!("tline|u{user}|{round:04}|{author}");
                let reader = (round + user) % 3;
                let expected = format!("text{round}");
                at[reader].check(
                    &format!("GET {key}"),
                    &format!("${}|{expected}", expected.len()),
                );
                at[reader].check(
                    &format!("RANGECOUNT tline|u{user}| tline|u{user}}}"),
                    &format!(":{}", round + 1),
                );
            }
        }
        // A read that follows a write in the same pipeline, and that another node computes.
        for (number, client) in at.iter_mut().enumerate() {
            let batch = (0..12).flat_map(|user| {
                let time = 100 + number * 12 + user;
                let set = request(&["SET", &format!("post|bob|{time:04}"), "x"]);
                let (lo, hi) = (format!("tline|u{user}|"), format!("tline|u{user}}}"));
                [set, request(&["RANGECOUNT", &lo, &hi])]
            });
            let batch: Vec<u8> = batch.flatten().collect();
            client.send(&batch);
            for user in 0..12 {
                assert_eq!(client.reply(), "+OK");
                assert_eq!(client.reply(), format!(":{}", 21 + number * 12 + user));
            }
        }
        at[1].check("JOIN.DROP timeline", "+OK");
        at[1].check("RANGECOUNT tline| tline}", ":0");
        for client in &mut at {
            cluster.wait_for("no node has the join", || {
                !client.call("JOIN.LIST").contains("timeline")
            });
        }
    }
}

/// Returns a random command. There are few rows, so that commands conflict.
fn command(random: &mut Random) -> Vec<String> {
    let user = |random: &mut Random| format!("u{}", random.below(6));
    let time = |random: &mut Random| format!("{:02}", random.below(12));
    let key = |random: &mut Random| match random.below(3) {
        0 => format!("sub|{}|{}", user(random), user(random)),
        1 => format!("post|{}|{}", user(random), time(random)),
        _ => format!("n|{}", user(random)),
    };
    let words: Vec<String> = match random.below(14) {
        0..=2 => vec![
            "SET".into(),
            format!("post|{}|{}", user(random), time(random)),
            random.below(100).to_string(),
        ],
        3 => vec![
            "SET".into(),
            format!("sub|{}|{}", user(random), user(random)),
            "1".into(),
        ],
        4 => vec!["DEL".into(), key(random), key(random), key(random)],
        5 => vec![
            "INCRBY".into(),
            format!("n|{}", user(random)),
            random.below(9).to_string(),
        ],
        6 => vec![
            "MGET".into(),
            key(random),
            key(random),
            key(random),
            key(random),
        ],
        7 => vec!["EXISTS".into(), key(random), key(random), key(random)],
        8 => vec!["GET".into(), key(random)],
        9 => {
            let user = user(random);
            vec![
                "RANGE".into(),
                format!("tline|{user}|"),
                format!("tline|{user}}}"),
            ]
        }
        10 => vec![
            "RANGE".into(),
            "post|".into(),
            "post}".into(),
            "LIMIT".into(),
            random.below(9).to_string(),
        ],
        11 => vec!["RANGECOUNT".into(), "tline|".into(), "tline}".into()],
        12 => vec!["RANGE".into(), "sub|".into(), "sub}".into(), "REV".into()],
        _ => vec!["DBSIZE".into()],
    };
    words
}

#[test]
fn random_commands_through_random_nodes_match_a_single_server() {
    let Some(cluster) = Cluster::start(3, &[]) else {
        return;
    };
    let oracle = TestServer::start();
    let mut one = Client::connect(&oracle);
    let mut at = clients(&cluster);
    one.create("timeline", TIMELINE);
    at[0].create("timeline", TIMELINE);
    let mut random = Random::new(12);
    for round in 0..3_000 {
        let words = command(&mut random);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let bytes = request(&words);
        one.send(&bytes);
        let node = random.below(3) as usize;
        at[node].send(&bytes);
        let (expected, actual) = (one.reply(), at[node].reply());
        assert_eq!(
            actual,
            expected,
            "round {round}, at node {node}: {words:?}\n{}",
            cluster.logs()
        );
    }
}

#[test]
fn compute_nodes_own_no_rows_and_serve_join_outputs() {
    let options = Options::new(3).set("cluster.start_nodes", 2);
    let options = options.set_on(2, "cluster.roles", "compute");
    let options = options.set_on(0, "cluster.roles", "base");
    let Some(cluster) = options.set_on(1, "cluster.roles", "base").start() else {
        return;
    };
    let mut at = clients(&cluster);
    at[2].create("timeline", TIMELINE);
    for client in &mut at {
        cluster.wait_for("all nodes have the join", || {
            client.call("JOIN.LIST").contains("timeline")
        });
    }
    for round in 0..20 {
        let user = round % 5;
        at[round % 3].check(&format!("SET sub|u{user}|bob 1"), "+OK");
        at[(round + 1) % 3].check(&format!("SET post|bob|{round:03} {round}"), "+OK");
        for (node, client) in at.iter_mut().enumerate() {
            let range = format!("RANGECOUNT tline|u{user}| tline|u{user}}}");
            client.check(&range, &format!(":{}", round + 1));
            // Nodes with the role `base` compute no outputs.
            let info = client.call("JOIN.INFO timeline");
            let rows = info.split("|rows|").nth(1).expect("a count of rows");
            assert_eq!(rows.starts_with(":0|"), node != 2, "at node {node}: {info}");
        }
    }
}

#[test]
fn watch_and_subscribe_for_rows_of_another_node_name_its_address() {
    let Some(cluster) = Cluster::start(2, &[]) else {
        return;
    };
    let mut at = clients(&cluster);
    let (mut watched, mut notified) = (0, 0);
    for number in 0..8 {
        for (node, client) in at.iter_mut().enumerate() {
            let answer = client.call(&format!("WATCH t|{number}|x"));
            let other = cluster.resp(1 - node).to_string();
            match answer.as_str() {
                "+OK" => watched += 1,
                refused => assert!(refused.contains(&other), "{refused}"),
            }
            let channel = format!("__keyspace@0__:t|{number}|x");
            let mut subscriber = cluster.client(node);
            match subscriber.call(&format!("SUBSCRIBE {channel}")).as_str() {
                refused if refused.starts_with('-') => {
                    assert!(refused.contains(&other), "{refused}")
                }
                _ => {
                    notified += 1;
                    client.check(&format!("SET t|{number}|x 1"), "+OK");
                    assert!(
                        subscriber.reply().ends_with("|set"),
                        "the subscriber is notified"
                    );
                }
            }
        }
    }
    assert_eq!((watched, notified), (8, 8), "each row is on one node");
}
