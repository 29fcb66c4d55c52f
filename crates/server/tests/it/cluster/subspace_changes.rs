//! Changes of a space's subspaces on three nodes during writes, searches, the death of a node and an outage of etcd.
//! Searches reflect every write that was acknowledged before they began, and each change completes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_testing::SetOnDrop;

use super::harness::Cluster;
use super::spaces::{
    CITIES, aggregate_count, ask, city_of, count_region_replies, put, search_count,
    start_with_hotels,
};
use crate::resp::Client;

/// Enough objects for cuts by their values.
const HOTELS: u64 = 1100;

/// Repeats a command until it succeeds. Every other reply must be an error that is expected meanwhile, or `also`.
fn repeat_until_ok(cluster: &Cluster, client: &mut Client, line: &str, also: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    cluster.wait_for(line, || {
        let reply = ask(client, &words);
        let passes = ["-TRYAGAIN ", "-CLUSTERDOWN ", "-IOERR ", "-LOADING "];
        assert!(
            reply == "+OK"
                || passes.iter().any(|it| reply.starts_with(it))
                || (!also.is_empty() && reply.contains(also)),
            "{line}: {reply}\n{}",
            cluster.logs()
        );
        reply == "+OK" || (!also.is_empty() && reply.contains(also))
    });
}

/// Switches searches to the filled subspaces. If the reply of a successful switch was lost, the next attempt returns
/// the expected error.
fn switch(cluster: &Cluster, client: &mut Client) {
    repeat_until_ok(
        cluster,
        client,
        "FT.ALTER hotels SUBSPACES SWITCH",
        "no subspaces of hotels are being filled",
    );
}

/// A client that searches and compares the results with the acknowledged writes.
struct Searcher<'a> {
    client: Client,
    acknowledged: &'a AtomicU64,
    seen: u64,
}

impl Searcher<'_> {
    fn search(&mut self, cluster: &Cluster, times: u64) {
        // The number of hotels in a city among the first `hotels` ones.
        let in_city = |hotels: u64, city: u64| (hotels + CITIES - 1 - city) / CITIES;
        let until = self.seen + times;
        cluster.wait_for("searches return results", || {
            let city = self.seen % CITIES;
            let before = in_city(self.acknowledged.load(Ordering::SeqCst), city);
            let query = format!("@city:{{c{city}}}");
            let found = match self.seen % 3 {
                0 => aggregate_count(&mut self.client, &query),
                _ => search_count(&mut self.client, &query),
            };
            let Some(found) = found else {
                return false;
            };
            // One more hotel may be written but not acknowledged yet.
            let after = in_city(self.acknowledged.load(Ordering::SeqCst) + 1, city);
            assert!(
                (before..=after).contains(&found),
                "{before} <= {found} <= {after}\n{}",
                cluster.logs()
            );
            let range = search_count(&mut self.client, "@n:[10 29]");
            assert!(range.is_none_or(|found| found == 20), "{range:?}");
            self.seen += 1;
            self.seen > until
        });
    }

    fn wait_for_regions(&mut self, cluster: &Cluster, subspace: &str, query: &str) {
        let expected = format!("subspace {subspace}: ");
        cluster.wait_for(&expected, || {
            ask(&mut self.client, &["FT.EXPLAIN", "hotels", query]).contains(&expected)
        });
        let before = count_region_replies(&mut self.client);
        cluster.wait_for("holders of regions serve the search", || {
            search_count(&mut self.client, query);
            count_region_replies(&mut self.client) > before
        });
    }
}

#[test]
fn subspaces_change_while_a_node_dies_and_etcd_is_down() {
    let Some(mut cluster) = start_with_hotels(1, city_of, "", HOTELS) else {
        return;
    };
    let nodes: Vec<_> = (0..3).map(|node| cluster.resp(node)).collect();
    let (stop, acknowledged) = (AtomicBool::new(false), AtomicU64::new(HOTELS));
    std::thread::scope(|scope| {
        // A writer, which repeats a write until its outcome is known.
        scope.spawn(|| {
            let mut client = Client::to(nodes[0]);
            for number in HOTELS.. {
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
        let mut searcher = Searcher {
            client: Client::to(nodes[1]),
            acknowledged: &acknowledged,
            seen: 0,
        };
        let mut client = Client::to(nodes[1]);
        // From no subspaces.
        repeat_until_ok(
            &cluster,
            &mut client,
            "FT.ALTER hotels SUBSPACES 2 city n REGIONS 16",
            "",
        );
        searcher.search(&cluster, 20);
        switch(&cluster, &mut client);
        searcher.wait_for_regions(&cluster, "n", "@n:[10 12]");
        searcher.search(&cluster, 50);
        // A node dies during a fill.
        repeat_until_ok(
            &cluster,
            &mut client,
            "FT.ALTER hotels SUBSPACES 2 n:2,city:2 n",
            "",
        );
        cluster.kill(2);
        searcher.search(&cluster, 100);
        cluster.restart(2);
        searcher.search(&cluster, 50);
        switch(&cluster, &mut client);
        cluster.wait_until_served();
        searcher.wait_for_regions(&cluster, "n", "@n:[10 12]");
        searcher.search(&cluster, 50);
        // The indexes of objects and of copies change.
        repeat_until_ok(
            &cluster,
            &mut client,
            "FT.ALTER hotels INDEX 1 n",
            "already has these indexes",
        );
        searcher.search(&cluster, 50);
        cluster.wait_for("indexes are built", || {
            ask(&mut client, &["FT.INFO", "hotels"]).contains("|$8|indexing|:0|")
        });
        repeat_until_ok(
            &cluster,
            &mut client,
            "FT.ALTER hotels INDEX DEFAULT",
            "already has these indexes",
        );
        searcher.search(&cluster, 50);
        // No node reaches etcd during a fill.
        repeat_until_ok(
            &cluster,
            &mut client,
            "FT.ALTER hotels SUBSPACES 1 city:2",
            "",
        );
        (0..3).for_each(|node| cluster.etcd_proxy(node, 0).cut());
        let refused = ask(&mut client, &["FT.ALTER", "hotels", "SUBSPACES", "SWITCH"]);
        assert!(refused.starts_with('-'), "{refused}");
        (0..3).for_each(|node| cluster.etcd_proxy(node, 0).heal());
        searcher.search(&cluster, 50);
        switch(&cluster, &mut client);
        searcher.search(&cluster, 50);
        drop(stopping);
    });
    let all = acknowledged.load(Ordering::SeqCst);
    for node in 0..3 {
        let mut client = cluster.client(node);
        cluster.wait_for("every node finds all objects", || {
            search_count(&mut client, "*").is_some_and(|found| found >= all)
        });
        let info = ask(&mut client, &["FT.INFO", "hotels"]);
        assert!(info.contains("|subspaces|*1|$6|city:2|"), "{info}");
    }
}
