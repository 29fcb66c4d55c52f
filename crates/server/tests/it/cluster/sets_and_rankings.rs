//! Sets (SMEMBERS and related commands) and rankings (ZRANGE and related commands) whose rows are on other nodes, or
//! are computed from rows of several nodes.

use larder_types::Random;

use super::forward::clients;
use super::harness::Cluster;
use crate::resp::{Client, request};
use crate::support::TestServer;

/// Votes are stored by user and their outputs by thing, so that each output combines rows of all nodes.
const JOINS: [(&str, &str); 3] = [
    ("by", "by|<thing>|<user> = copy vote|<user>|<thing>"),
    (
        "best",
        "best|<thing>|<rank:2>|<user> = top 3 by|<thing>|<user>",
    ),
    (
        "worst",
        "worst|<thing>|<rank:2>|<user> = top 3 asc by|<thing>|<user>",
    ),
];

/// Returns a random command. There are few rows, so that commands conflict.
fn command(random: &mut Random) -> String {
    let (user, thing) = (random.below(6), random.below(6));
    let other = random.below(6);
    let ranking = ["best", "worst"][random.index(2)];
    match random.below(18) {
        0..=3 => format!("SET vote|u{user}|t{thing} {}", random.below(100)),
        4 => format!("DEL vote|u{user}|t{thing} vote|u{other}|t{thing}"),
        5 => format!("SMEMBERS vote|u{user}"),
        6 => format!("SCARD vote|u{user}"),
        7 => format!("SMEMBERS by|t{thing}"),
        8 => format!("SCARD by|t{thing}"),
        9 => format!("SISMEMBER by|t{thing} u{user}"),
        10 => format!("SMISMEMBER by|t{thing} u{user} u{other} none"),
        11 => format!("ZRANGE {ranking}|t{thing} 0 -1 WITHSCORES"),
        12 => format!("ZREVRANGE {ranking}|t{thing} 0 1"),
        13 => format!("ZRANGEBYSCORE {ranking}|t{thing} 20 (80 WITHSCORES"),
        14 => format!("ZCARD {ranking}|t{thing}"),
        15 => format!("ZCOUNT {ranking}|t{thing} 50 +inf"),
        16 => format!("ZSCORE {ranking}|t{thing} u{user}"),
        _ => format!("ZREVRANK {ranking}|t{thing} u{user}"),
    }
}

#[test]
fn sets_and_rankings_match_a_single_server_at_each_node() {
    for threads in ["1", "2"] {
        let Some(cluster) = Cluster::start(3, &[("server.threads", threads)]) else {
            return;
        };
        let oracle = TestServer::start();
        let mut one = Client::connect(&oracle);
        let mut at = clients(&cluster);
        for (name, definition) in JOINS {
            one.create(name, definition);
            at[0].create(name, definition);
        }
        for client in &mut at {
            cluster.wait_for("all nodes have the joins", || {
                let joins = client.call("JOIN.LIST");
                JOINS.iter().all(|(name, _)| joins.contains(name))
            });
        }
        let mut random = Random::new(30);
        for round in 0..1_500 {
            let line = command(&mut random);
            let words: Vec<&str> = line.split(' ').collect();
            let node = random.index(3);
            one.send(&request(&words));
            at[node].send(&request(&words));
            let (expected, actual) = (one.reply(), at[node].reply());
            assert!(!expected.starts_with('-'), "{line}: {expected}");
            assert_eq!(
                actual,
                expected,
                "round {round}, at node {node}: {line}\n{}",
                cluster.logs()
            );
        }
    }
}
