//! Connections between nodes that break at arbitrary points. No reply omits an acknowledged write, and in the end
//! every join output matches its sources.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use larder_types::Random;

use super::harness::{Cluster, Options};
use crate::resp::{Client, TIMELINE};
use crate::validation::actor::{Actor, prepare};
use crate::validation::check_explained;

/// Starts a cluster in which the connections to each node pass through a separate proxy.
fn proxied(nodes: usize, threads: usize) -> Option<Cluster> {
    let options = Options::new(nodes).set("server.threads", threads);
    options.peers_proxied().start()
}

/// Reads the keys and values of a range through a node. Repeats the request while the node returns an error.
fn rows(cluster: &Cluster, node: usize, table: &str) -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    cluster.wait_for("a node returns the range", || {
        let mut client = cluster.client(node);
        let reply = client.call(&format!("RANGE {table}| {table}}}"));
        if reply.starts_with('-') {
            return false;
        }
        // Keys contain the separator of the formatted reply, so that the count is needed to parse it.
        let count: usize = reply[1..]
            .split('|')
            .next()
            .and_then(|it| it.parse().ok())
            .expect("an array");
        rows = pairs(&reply, count);
        true
    });
    rows
}

/// Parses `*4|$5|t|a|1|$1|x|...`, in which the strings may contain the separator.
fn pairs(shown: &str, count: usize) -> BTreeMap<String, String> {
    let mut rest = shown.split_once('|').map_or("", |(_, rest)| rest);
    let mut next = || {
        let (size, after) = rest[1..].split_once('|').expect("a size");
        let size: usize = size.parse().expect("a size");
        let (text, after) = after.split_at(size);
        rest = after.strip_prefix('|').unwrap_or(after);
        text.to_owned()
    };
    (0..count / 2).map(|_| (next(), next())).collect()
}

/// Computes the timelines from their sources.
fn compute_timelines(
    sub: &BTreeMap<String, String>,
    post: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut timelines = BTreeMap::new();
    for follows in sub.keys() {
        let words: Vec<&str> = follows.split('|').collect();
        let [_, user, author] = words[..] else {
            continue;
        };
        for (key, value) in post {
            if let [_, by, time] = key.split('|').collect::<Vec<&str>>()[..]
                && by == author
            {
                timelines.insert(format!("tline|{user}|{time}|{author}"), value.clone());
            }
        }
    }
    timelines
}

#[test]
fn connections_that_break_at_random_lose_no_acknowledged_write() {
    let Some(cluster) = proxied(3, 1) else {
        return;
    };
    let mut at: Vec<Client> = (0..3).map(|node| cluster.client(node)).collect();
    at[0].create("timeline", TIMELINE);
    let mut random = Random::new(77);
    let (mut acknowledged, mut refused) = (0, 0);
    for round in 0..700 {
        if round % 7 == 0 {
            cluster.peer_proxy(random.index(3)).break_connections();
        }
        let (user, author) = (random.below(8), random.below(8));
        let by = random.index(3);
        if round % 5 == 0 {
            at[by].call(&format!("SET sub|u{user}|u{author} 1"));
            continue;
        }
        let answer = at[by].call(&format!("SET post|u{author}|{round:05} text{round}"));
        let reader = random.index(3);
        let follows = at[reader].call(&format!("EXISTS sub|u{user}|u{author}"));
        let shown = at[reader].call(&format!("GET tline|u{user}|{round:05}|u{author}"));
        for reply in [&answer, &follows, &shown] {
            let is_expected = !reply.starts_with('-')
                || reply.starts_with("-UNKNOWN")
                || reply.starts_with("-CLUSTERDOWN");
            assert!(is_expected, "round {round}: {reply}\n{}", cluster.logs());
        }
        match (answer.as_str(), follows.as_str(), shown.as_str()) {
            ("+OK", ":1", shown) if !shown.starts_with('-') => {
                let text = format!("text{round}");
                assert_eq!(
                    shown,
                    format!("${}|{text}", text.len()),
                    "round {round}\n{}",
                    cluster.logs()
                );
                acknowledged += 1;
            }
            ("+OK", ":0", shown) if !shown.starts_with('-') => {
                assert_eq!(shown, "$-1", "round {round}")
            }
            _ => refused += 1,
        }
    }
    assert!(
        acknowledged > 100,
        "{acknowledged} were visible, {refused} were rejected"
    );
    let (sub, post) = (rows(&cluster, 0, "sub"), rows(&cluster, 1, "post"));
    let expected = compute_timelines(&sub, &post);
    assert!(expected.len() > 500, "{}", expected.len());
    for node in 0..3 {
        let mut all = BTreeMap::new();
        for user in 0..8 {
            all.extend(rows_of(&cluster, node, user));
        }
        assert_eq!(all, expected, "at node {node}\n{}", cluster.logs());
    }
}

fn rows_of(cluster: &Cluster, node: usize, user: u64) -> BTreeMap<String, String> {
    let mut rows = BTreeMap::new();
    cluster.wait_for("a node returns the timeline", || {
        let mut client = cluster.client(node);
        let reply = client.call(&format!("RANGE tline|u{user}| tline|u{user}}}"));
        if reply.starts_with('-') {
            return false;
        }
        let count = reply[1..].split('|').next().and_then(|it| it.parse().ok());
        rows = pairs(&reply, count.expect("an array"));
        true
    });
    rows
}

#[test]
fn reads_through_breaking_connections_are_consistent() {
    const CLIENTS: u32 = 6;
    for threads in [1, 2] {
        let Some(cluster) = proxied(3, threads) else {
            return;
        };
        prepare(cluster.resp(0));
        for node in 0..3 {
            cluster.wait_for("all nodes have the joins", || {
                cluster.ask(node, "JOIN.LIST").starts_with("*10|")
            });
        }
        let clock = Instant::now();
        let done = AtomicU64::new(0);
        let mut records = Vec::new();
        thread::scope(|scope| {
            let actors: Vec<_> = (0..CLIENTS)
                .map(|session| {
                    let (addr, done) = (cluster.resp(session as usize % 3), &done);
                    scope.spawn(move || {
                        let mut actor = Actor::in_cluster(addr, clock, session, 0);
                        for _ in 0..1_500 {
                            if let Err(error) = actor.act() {
                                assert_eq!(error.kind(), ErrorKind::Other, "{error}");
                            }
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                        actor.records
                    })
                })
                .collect();
            let mut random = Random::new(5);
            for breaks in 1..30 {
                while done.load(Ordering::SeqCst) < breaks * 300 {
                    thread::yield_now();
                }
                match breaks % 10 {
                    0 => cluster.peer_proxy(random.index(3)).stall(),
                    _ => cluster.peer_proxy(random.index(3)).break_connections(),
                }
            }
            for actor in actors {
                records.extend(actor.join().expect("ended"));
            }
        });
        (0..3).for_each(|node| cluster.peer_proxy(node).heal());
        let mut last = Actor::in_cluster(cluster.resp(1), clock, CLIENTS, 0);
        last.read_end_state();
        records.extend(last.records);
        let report = check_explained(&records);
        assert!(report.total.reads > 2_000, "{report:?}");
    }
}

/// The change is applied, its reply is lost between two nodes, and the client repeats the same command.
#[test]
fn a_retried_change_with_an_id_is_applied_once() {
    let Some(cluster) = proxied(3, 1) else {
        return;
    };
    let (mut sent, mut unknown) = (0, 0);
    const CHANGES: usize = 60;
    cluster.client(0).check("HSET hotel:1 n 0", ":1");
    for change in 0..CHANGES {
        let by = change % 3;
        (0..3).for_each(|node| cluster.peer_proxy(node).lose_reply_to("ONCE"));
        cluster.wait_for("the change is acknowledged", || {
            sent += 1;
            let reply = cluster.client(by).call(&format!(
                "OBJ.CHANGE hotel:1 ONCE last w{change} DO ADD n 1"
            ));
            unknown += usize::from(reply.starts_with("-UNKNOWN"));
            assert!(reply == ":1" || reply.starts_with('-'), "{reply}");
            reply == ":1"
        });
    }
    assert!(
        unknown > CHANGES / 4,
        "{unknown} of {sent} replies were lost"
    );
    cluster
        .client(0)
        .check("HGET hotel:1 n", &format!("$2|{CHANGES}"));
}
