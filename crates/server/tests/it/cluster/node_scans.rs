//! With `cluster.routing = "redirect"` each node answers SCAN, KEYS and DBSIZE for its own slots, as clients of Redis Cluster expect.

use serde_json::json;

use super::harness::{Cluster, Options};
use super::rows::wait_until_settled;
use super::stores::{KEYS, text, version};

const ROWS: usize = 60;

/// Returns the keys that a node returns in all pages of a SCAN.
fn scan_all(cluster: &Cluster, node: usize, pattern: &str) -> Vec<String> {
    let mut client = cluster.client(node);
    let (mut cursor, mut keys) = ("0".to_owned(), Vec::new());
    loop {
        let page = client.call(&format!("SCAN {cursor} MATCH {pattern} COUNT 7"));
        let mut words = page.split('|').filter(|it| !it.starts_with(['*', '$']));
        cursor = words.next().expect("a cursor").to_owned();
        keys.extend(words.map(str::to_owned));
        if cursor == "0" {
            return keys;
        }
    }
}

#[test]
fn cluster_clients_that_scan_every_node_get_each_key_once() {
    for threads in [1, 2] {
        let options = Options::new(3)
            .set("tables.replicas", 2)
            .set("server.threads", threads)
            .set("fetch.allow", "/")
            .set("cluster.routing", "redirect");
        let Some(cluster) = options.start() else {
            return;
        };
        wait_until_settled(&cluster);
        for number in 0..ROWS {
            let set = format!("SET t:{{{number}}} v");
            let owner = (0..3).find(|node| cluster.ask(*node, &set) == "+OK");
            assert!(owner.is_some(), "{set}");
        }
        let folder = version("v");
        let push = json!({"source": text(folder.path())});
        let (status, answer) = cluster.post(0, "/v1/stores/s/pull", &push);
        assert_eq!(status, 202, "{answer}");
        cluster.wait_for("the store is live on all nodes", || {
            (0..3).all(|node| cluster.ask(node, "STORE.VERSION s").starts_with(':'))
        });
        for (pattern, count) in [("t:*", ROWS), ("s:*", KEYS)] {
            let all = (0..3).flat_map(|node| scan_all(&cluster, node, pattern));
            let mut all: Vec<String> = all.collect();
            assert_eq!(all.len(), count, "{pattern} with {threads} threads");
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), count, "{pattern}");
        }
        let number = |reply: String| reply[1..].parse::<usize>().expect("a number");
        let sizes = (0..3).map(|node| number(cluster.ask(node, "DBSIZE")));
        assert_eq!(sizes.sum::<usize>(), ROWS + KEYS);
        let keys = (0..3).map(|node| {
            let keys = cluster.ask(node, "KEYS t:*");
            number(keys.split('|').next().expect("a line").to_owned())
        });
        assert_eq!(keys.sum::<usize>(), ROWS);
    }
}
