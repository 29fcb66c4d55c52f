//! Spaces on three nodes. A search through any node reflects every write that was acknowledged before it began, also
//! while a node dies and its slots move. Its result is complete, or an error.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_testing::SetOnDrop;

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;
use crate::resp::{Client, request};
use crate::spaces::{call_all, info_number};

/// Number of cities, in tests that need several.
pub(super) const CITIES: u64 = 16;

pub(super) fn ask(client: &mut Client, words: &[&str]) -> String {
    client.send(&request(words));
    client.reply()
}

pub(super) fn put(client: &mut Client, number: u64, city: &str) -> String {
    let (key, n) = (format!("hotel:{number}"), number.to_string());
    ask(client, &["HSET", &key, "city", city, "n", &n])
}

/// Returns the city of a hotel, in tests with several cities.
pub(super) fn city_of(number: u64) -> String {
    format!("c{}", number % CITIES)
}

/// Returns the number of objects that a search finds, or `None` if it is rejected.
pub(super) fn search_count(client: &mut Client, query: &str) -> Option<u64> {
    let reply = ask(client, &["FT.SEARCH", "hotels", query, "LIMIT", "0", "0"]);
    let total = reply.strip_prefix("*1|:");
    total.or_else(|| check_expected_error(&reply))?.parse().ok()
}

/// Like [`search_count`], with an aggregation.
pub(super) fn aggregate_count(client: &mut Client, query: &str) -> Option<u64> {
    let count = ["GROUPBY", "0", "REDUCE", "COUNT", "0", "AS", "n"];
    let words: Vec<&str> = ["FT.AGGREGATE", "hotels", query]
        .into_iter()
        .chain(count)
        .collect();
    let reply = ask(client, &words);
    if reply == "*1|:0" {
        return Some(0);
    }
    let count = reply.strip_prefix("*2|:1|*2|$1|n|$");
    let count = count.and_then(|rest| rest.split_once('|'));
    let count = count.map(|(_, count)| count);
    count.or_else(|| check_expected_error(&reply))?.parse().ok()
}

/// Checks that a reply is an expected error.
#[track_caller]
fn check_expected_error(reply: &str) -> Option<&'static str> {
    let is_expected = [
        "-CLUSTERDOWN ",
        "-TRYAGAIN ",
        "-IOERR ",
        "-LOADING ",
        "-ERR hotels: no such index",
    ];
    assert!(
        is_expected.iter().any(|known| reply.starts_with(known)),
        "{reply}"
    );
    None
}

/// Number of hotels at the start.
pub(super) const HOTELS: u64 = 50;

pub(super) fn start_with_hotels(
    threads: u64,
    city: impl Fn(u64) -> String,
    subspaces: &str,
    hotels: u64,
) -> Option<Cluster> {
    let cluster = Options::new(3)
        .set("server.threads", threads)
        .set("tables.replicas", 2)
        .proxied()
        .peers_proxied()
        .start()?;
    let mut client = cluster.client(0);
    let puts = (0..hotels).map(|number| {
        let (key, n) = (format!("hotel:{number}"), number.to_string());
        ["HSET", &key, "city", &city(number), "n", &n]
            .map(str::to_owned)
            .to_vec()
    });
    let puts: Vec<_> = puts.collect();
    // On a busy machine, a lease may expire, and writes are rejected for a moment.
    cluster.wait_for("hotels are written", || {
        let replies = call_all(&mut client, &puts);
        replies.iter().all(|reply| reply.starts_with(':'))
    });
    let space =
        format!("FT.CREATE hotels PREFIX 1 hotel: {subspaces} SCHEMA city TAG n NUMERIC SORTABLE");
    let words: Vec<&str> = space.split_whitespace().collect();
    assert_eq!(ask(&mut client, &words), "+OK");
    Some(cluster)
}

#[test]
fn every_node_searches_all_objects_and_follows_the_map() {
    let rome = |_| "Rome".to_owned();
    let Some(cluster) = start_with_hotels(2, rome, "", HOTELS) else {
        return;
    };
    for node in 0..3 {
        let mut client = cluster.client(node);
        // The space was created through another node, which replied when all nodes had it.
        cluster.wait_for("all objects are found", || {
            search_count(&mut client, "*") == Some(50 + node as u64)
        });
        assert_eq!(put(&mut client, 100 + node as u64, "Rome"), ":2");
        for other in 0..3 {
            let mut client = cluster.client(other);
            assert_eq!(search_count(&mut client, "*"), Some(51 + node as u64));
        }
        let sorted = ask(
            &mut client,
            &[
                "FT.SEARCH",
                "hotels",
                "@n:[3 6]",
                "NOCONTENT",
                "SORTBY",
                "n",
                "DESC",
            ],
        );
        assert_eq!(sorted, "*5|:4|$7|hotel:6|$7|hotel:5|$7|hotel:4|$7|hotel:3");
        let grouped = ask(
            &mut client,
            &[
                "FT.AGGREGATE",
                "hotels",
                "@n:[0 9]",
                "GROUPBY",
                "1",
                "@city",
                "REDUCE",
                "SUM",
                "1",
                "@n",
                "AS",
                "sum",
            ],
        );
        assert_eq!(grouped, "*2|:1|*4|$4|city|$4|Rome|$3|sum|$2|45");
        let info = ask(&mut client, &["FT.INFO", "hotels"]);
        assert!(
            info.contains(&format!("|num_docs|:{}|", 51 + node)),
            "{info}"
        );
        assert_eq!(
            ask(&mut client, &["FT.TAGVALS", "hotels", "city"]),
            "*1|$4|rome"
        );
        let profile = ask(
            &mut client,
            &["FT.PROFILE", "hotels", "SEARCH", "QUERY", "*"],
        );
        assert_eq!(profile.matches("|Shard|").count(), 6, "{profile}");
    }
    // Rows that are not grouped are read through a cursor, from all nodes.
    let mut client = cluster.client(1);
    let mut reply = ask(
        &mut client,
        &[
            "FT.AGGREGATE",
            "hotels",
            "*",
            "LOAD",
            "1",
            "@n",
            "WITHCURSOR",
            "COUNT",
            "20",
        ],
    );
    let mut rows = 0;
    loop {
        rows += reply.matches("|$1|n|").count();
        let (_, cursor) = reply.rsplit_once("|:").expect("a cursor");
        if cursor == "0" {
            break;
        }
        let cursor = cursor.to_owned();
        reply = ask(&mut client, &["FT.CURSOR", "READ", "hotels", &cursor]);
    }
    assert_eq!(rows, 53);
    assert_eq!(ask(&mut client, &["FT.ALIASADD", "inns", "hotels"]), "+OK");
    let mut other = cluster.client(2);
    assert_eq!(
        ask(
            &mut other,
            &["FT.ALTER", "inns", "SCHEMA", "ADD", "stars", "NUMERIC"]
        ),
        "+OK"
    );
    assert_eq!(
        ask(&mut client, &["FT.SEARCH", "inns", "@stars:[1 2]"]),
        "*1|:0"
    );
    assert_eq!(ask(&mut other, &["FT.DROPINDEX", "hotels", "DD"]), "+OK");
    assert_eq!(ask(&mut client, &["FT._LIST"]), "*0");
    assert_eq!(
        ask(&mut client, &["EXISTS", "hotel:1", "hotel:7", "hotel:100"]),
        ":0"
    );
}

/// A node's slots alternate with those of other nodes in blocks. The regions of a city with many hotels are
/// nevertheless in slots of one node.
#[test]
fn searches_for_a_town_contact_one_or_two_nodes() {
    let Some(cluster) = start_with_hotels(1, city_of, "SUBSPACES 1 city REGIONS 64", 2000) else {
        return;
    };
    let mut client = cluster.client(1);
    cluster.wait_for("regions are cut and complete", || {
        let cuts = info_number(&mut client, "hotels", "cuts");
        let copies = info_number(&mut client, "hotels", "copies");
        cuts >= Some(1.0) && copies == Some(2000.0)
    });
    let explain = |city| {
        let query = format!("@city:{{c{city}}}");
        ask(&mut client, &["FT.EXPLAIN", "hotels", &query])
    };
    let explained: Vec<String> = (0..CITIES).map(explain).collect();
    // Each search also contacts the region of hotels with several cities. A city whose regions extend over a block's
    // end is on two nodes. A few searches therefore contact three nodes.
    let at_few = |plan: &&String| {
        let at = |few| plan.contains(&format!(" of 64 regions, at {few} of 3 cores"));
        at(1) || at(2)
    };
    let few = explained.iter().filter(at_few).count();
    assert!(few >= 13, "{explained:?}");
}

/// With few regions, 1,100 hotels are enough for cuts by values; with many regions, they are not.
const CUT: &str = "SUBSPACES 2 city n REGIONS 16";
const UNCUT: &str = "SUBSPACES 2 city n REGIONS 64";

#[test]
fn searches_reflect_acknowledged_writes_while_a_node_restarts() {
    search_during_fault(Fault::Killed, "", HOTELS);
}

#[test]
fn region_searches_reflect_acknowledged_writes_while_a_node_restarts() {
    search_during_fault(Fault::Killed, UNCUT, HOTELS);
}

#[test]
fn searches_reflect_acknowledged_writes_while_subspaces_are_cut_and_a_node_dies() {
    search_during_fault(Fault::Killed, CUT, 1100);
}

#[test]
fn region_searches_reflect_acknowledged_writes_while_a_node_returns_with_an_empty_disk() {
    search_during_fault(Fault::Emptied, UNCUT, HOTELS);
}

#[test]
fn region_searches_reflect_acknowledged_writes_while_a_node_is_suspended_past_its_lease() {
    search_during_fault(Fault::StoodStill, UNCUT, HOTELS);
}

#[test]
fn region_searches_reflect_acknowledged_writes_while_a_node_is_partitioned() {
    search_during_fault(Fault::CutOff, UNCUT, HOTELS);
}

/// A late partial answer must be based on the same map as the others. Otherwise, the search is repeated.
#[test]
fn a_search_that_waits_for_a_suspended_node_misses_nothing() {
    let Some(cluster) = start_with_hotels(1, city_of, "", HOTELS) else {
        return;
    };
    cluster.wait_for("all objects are found", || {
        search_count(&mut cluster.client(0), "*") == Some(HOTELS)
    });
    for node in [1, 2] {
        cluster.suspend(node);
        std::thread::scope(|scope| {
            let ask = |line: &'static str, all: String, of: usize| {
                let mut client = cluster.client(of);
                scope.spawn(move || {
                    for _ in 0..40 {
                        let words: Vec<&str> = line.split(' ').collect();
                        let reply = ask(&mut client, &words);
                        assert!(
                            reply == all || check_expected_error(&reply).is_none(),
                            "{reply}"
                        );
                    }
                });
            };
            for of in [0, 1, 2, 0, 1, 2] {
                ask("FT.SEARCH hotels * LIMIT 0 0", format!("*1|:{HOTELS}"), of);
                ask("DBSIZE", format!(":{HOTELS}"), of);
            }
            cluster.wait_until_down(0, node);
            cluster.resume(node);
        });
        cluster.wait_until_served();
        cluster.wait_for_state(node, "up");
        wait_until_settled(&cluster);
    }
}

/// A fault of a node.
#[derive(Clone, Copy)]
enum Fault {
    Killed,
    /// The node is killed, and its disk is lost.
    Emptied,
    StoodStill,
    /// The node is partitioned from etcd and from other nodes' connections to it. Its own connections to other nodes
    /// stay.
    CutOff,
}

impl Fault {
    fn begin(self, cluster: &mut Cluster, node: usize) {
        match self {
            Fault::Killed => cluster.kill(node),
            Fault::Emptied => {
                cluster.kill(node);
                std::fs::remove_dir_all(cluster.data(node)).expect("removed");
            }
            Fault::StoodStill => cluster.suspend(node),
            Fault::CutOff => cluster.cut_off(node),
        }
    }

    fn end(self, cluster: &mut Cluster, node: usize) {
        match self {
            Fault::Killed | Fault::Emptied => cluster.restart(node),
            Fault::StoodStill => cluster.resume(node),
            Fault::CutOff => cluster.heal(node),
        }
    }
}

/// A hotel that moves between cities, and therefore between regions. After each move, searches must find it in the
/// new city only.
struct MovingHotel {
    client: Client,
    number: u64,
    moves: u64,
}

impl MovingHotel {
    /// The number of the first hotel that moves.
    const FIRST: u64 = 900_000;

    fn new(addr: std::net::SocketAddr) -> MovingHotel {
        MovingHotel {
            client: Client::to(addr),
            number: MovingHotel::FIRST,
            moves: 0,
        }
    }

    fn town(&self, moves: u64) -> String {
        format!("m{}of{}", moves % 7, self.number)
    }

    fn move_once(&mut self, logs: impl Fn() -> String) {
        let (before, town) = (self.town(self.moves + 6), self.town(self.moves));
        if !put(&mut self.client, self.number, &town).starts_with(':') {
            // The hotel may be in either city, also later. Continue with another hotel.
            (self.number, self.moves) = (self.number + 1, 0);
            return;
        }
        self.moves += 1;
        for (town, expected) in [(&town, 1), (&before, 0)] {
            let found = search_count(&mut self.client, &format!("@city:{{{town}}}"));
            assert!(
                found.is_none_or(|found| found == expected),
                "{town} after {} moves: {found:?}\n{}",
                self.moves,
                logs()
            );
        }
    }
}

/// Returns the number of searches that were answered from regions.
pub(super) fn count_region_replies(client: &mut Client) -> Option<u64> {
    let info = ask(client, &["FT.INFO", "hotels"]);
    let rest = info.split("|region_answers|:").nth(1)?;
    Some(rest.split('|').next()?.parse().expect("a number"))
}

fn search_during_fault(fault: Fault, subspaces: &str, hotels: u64) {
    let Some(mut cluster) = start_with_hotels(1, city_of, subspaces, hotels) else {
        return;
    };
    let nodes: Vec<_> = (0..3).map(|node| cluster.resp(node)).collect();
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(hotels));
    std::thread::scope(|scope| {
        // A writer, which repeats a write until its outcome is known.
        scope.spawn(|| {
            let mut client = Client::to(nodes[0]);
            for number in hotels.. {
                while !stop.load(Ordering::Relaxed)
                    && !put(&mut client, number, &city_of(number)).starts_with(':')
                {
                    std::hint::spin_loop();
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                acknowledged.store(number + 1, Ordering::SeqCst);
            }
        });
        let stopping = SetOnDrop(&stop);
        let mut client = Client::to(nodes[1]);
        let mut moving = MovingHotel::new(nodes[0]);
        // The number of hotels in a city among the first `hotels` ones.
        let in_city = |hotels: u64, city: u64| (hotels + CITIES - 1 - city) / CITIES;
        let mut search = |cluster: &Cluster, times: u64| {
            let mut seen = 0;
            cluster.wait_for("searches return results", || {
                let city = seen % CITIES;
                let before = in_city(acknowledged.load(Ordering::SeqCst), city);
                let query = format!("@city:{{c{city}}}");
                let found = match seen % 3 {
                    0 => aggregate_count(&mut client, &query),
                    _ => search_count(&mut client, &query),
                };
                let Some(found) = found else {
                    return false;
                };
                // One more hotel may be written but not acknowledged yet.
                let after = in_city(acknowledged.load(Ordering::SeqCst) + 1, city);
                assert!(
                    (before..=after).contains(&found),
                    "{before} <= {found} <= {after}\n{}",
                    cluster.logs()
                );
                // These hotels existed from the start, and no other hotel has their numbers.
                let range = search_count(&mut client, "@n:[10 29]");
                assert!(range.is_none_or(|found| found == 20), "{range:?}");
                moving.move_once(|| cluster.logs());
                seen += 1;
                seen > times
            });
            if hotels > HOTELS {
                let cuts = |client: &mut Client| info_number(client, "hotels", "cuts");
                cluster.wait_for("subspaces are cut", || cuts(&mut client) >= Some(1.0));
            }
            if !subspaces.is_empty() {
                cluster.wait_for("regions are searched", || {
                    let before = count_region_replies(&mut client);
                    // A search for one number needs one region. A city with many hotels is in several regions, and a
                    // search for it may contact all nodes instead.
                    for number in 10..30 {
                        search_count(&mut client, &format!("@n:[{number} {number}]"));
                    }
                    before.is_some() && count_region_replies(&mut client) > before
                });
            }
        };
        search(&cluster, 50);
        fault.begin(&mut cluster, 2);
        search(&cluster, 200);
        // A node that is suspended or partitioned is declared down as well, and others take over its slots.
        cluster.wait_until_down(0, 2);
        search(&cluster, 200);
        fault.end(&mut cluster, 2);
        cluster.wait_until_served();
        search(&cluster, 200);
        drop(stopping);
    });
    let all = acknowledged.load(Ordering::SeqCst);
    for node in 0..3 {
        let mut client = cluster.client(node);
        cluster.wait_for("every node finds all objects", || {
            search_count(&mut client, "*").is_some_and(|found| found >= all)
        });
    }
}
